"""Routes the requests of all hosts to their handlers: method and raw params in, encoded result out.

All fronts share one gateway. It checks those members of the params that the proxy acts on (the server judges
the rest), runs the handler, and turns every failure into a JSON-RPC error, so that each request is answered,
also one that is refused or given up. Negotiation and subscriptions are answered before it, by
`server/negotiation.py`.

The gateway also cuts lists into pages where that is configured (by default a list has one page: many hosts
read no more), and drains requests when the proxy stops (`Drain`). Fronts over HTTP count the calls of each
person (`Quota`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import anyio
from msgspec import Raw

from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
)
from mcp_context_proxy.protocol.eras import LOG_LEVELS, MODERN, most_verbose
from mcp_context_proxy.protocol.strangers import quoted
from mcp_context_proxy.server import Caller, Profiles, meta_definitions
from mcp_context_proxy.server.meta_tools import MetaTools
from mcp_context_proxy.server.notifications import RESOURCES_CHANGED, OpenSessions, Send
from mcp_context_proxy.server.resources import Prompts, Resources
from mcp_context_proxy.server.skills import Skills
from mcp_context_proxy.server.tasks import Tasks
from mcp_context_proxy.server.tools_call import EndedCalls, ToolCalls
from mcp_context_proxy.server.tools_list import ToolList
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import Cancellable, in_task, in_thread, in_thread_if, keep_latest
from mcp_context_proxy.trust import ACTING, Principal

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing

logger = logging.getLogger(__name__)

Handler = Callable[[Members, Caller], Awaitable[bytes]]
"""Returns the encoded result of a method; raises `RequestError` if the request is refused or fails."""

List = Callable[[Members, Caller], Awaitable[Members]]
"""Returns the members of the result of a method that lists."""

RELAYED_NOTIFICATIONS = frozenset({"notifications/roots/list_changed"})
"""Notifications of clients that are passed on to servers."""

HANDSHAKE_ONLY = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods that the modern era does not have."""

SHUTTING_DOWN = -32000

LAST_RESPONSES_SECONDS = 1.0
"""Time for the error responses of given-up requests to be written."""

DIGEST_BYTES = 12
"""Bytes of a list's digest in a cursor: enough to tell lists apart; nothing is protected by it."""


class ContextSharing(Protocol):
    """Keeps sessions and handles for other replicas, too."""

    async def fetch(self, params: Members, caller: Caller) -> Members:
        """Have the handle that a request names as other replicas have left it; return the params."""

    async def keep(self, params: Members, caller: Caller, result: bytes) -> bytes:
        """Keep the changes that a request has made; return its result."""


class Gateway:
    """Answers requests."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        contexts: ContextEngine,
        open_sessions: OpenSessions,
        tool_list: ToolList,
        tool_calls: ToolCalls,
        meta_tools: MetaTools,
        resources: Resources,
        skills: Skills,
        prompts: Prompts,
        tasks: Tasks,
        profiles: Profiles,
        wait_for_first_lists: Callable[[], Awaitable[None]],
        page_size: int = 0,
        calls_per_second: float = 0.0,
    ) -> None:
        """Route requests to these parts; `page_size` is the number of entries on a page, 0 for no pages.

        `wait_for_first_lists` waits a short time for servers of which nothing is known; `calls_per_second` is
        the rate of calls of each person over HTTP, 0 for no limit.
        """
        self._wait_for_first_lists = wait_for_first_lists
        self._fleet, self._contexts, self._open_sessions = fleet, contexts, open_sessions
        self._tool_calls, self._meta_tools, self._page_size = tool_calls, meta_tools, page_size
        self.resources, self.profiles, self.tasks = resources, profiles, tasks
        self._announcing: dict[tuple[Session, str], bool] = {}
        """Notifications that are being passed on; True if one came again meanwhile."""
        self.drain = Drain()
        """Ends the requests that are under way when the proxy stops."""
        self.quota = Quota(calls_per_second)
        self.tracing: Tracing | None = None
        """Makes spans of requests; None while nobody collects them."""
        self.sharing: ContextSharing | None = None
        """Shares contexts with other replicas; None where there are none."""
        self._handlers: Mapping[str, Handler] = {
            "tools/list": self._paged("tools/list", "tools", tool_list.answer),
            "tools/call": self._call,
            "resources/list": self._paged("resources/list", "resources", self._complete(resources.list)),
            "resources/templates/list": self._paged(
                "resources/templates/list", "resourceTemplates", self._complete(resources.templates)
            ),
            "resources/read": resources.read,
            "resources/directory/read": self._paged(
                "resources/directory/read", "resources", skills.directory
            ),
            "resources/subscribe": resources.subscribe,
            "resources/unsubscribe": resources.unsubscribe,
            "skills/list": self._paged("skills/list", "skills", self._complete(skills.list)),
            "skills/get": skills.get,
            "prompts/list": self._paged("prompts/list", "prompts", self._complete(prompts.list)),
            "prompts/get": prompts.get,
            "completion/complete": prompts.complete,
            "tasks/get": tasks.get,
            "tasks/update": tasks.update,
            "tasks/cancel": tasks.cancel,
            "logging/setLevel": self._set_log_level,
        }
        self.methods = frozenset(self._handlers)
        """Methods that are answered here."""

    async def handle(self, method: str, params: Members, caller: Caller) -> bytes:
        """Answer a request with its encoded result, fitted to the caller's era.

        Raises `RequestError` if it is refused or failed, and nothing else but a cancellation.
        """
        handler = self._handlers.get(method)
        if handler is None or (caller.era is MODERN and method in HANDSHAKE_ONLY):
            raise RequestError(METHOD_NOT_FOUND, "Method not found", method)
        try:
            fault = params_fault(method, params, modern=caller.era is MODERN, meta=caller.meta)
            if (odd := envelope.misread(params)) is not None:
                fault = f"{method} has {quoted(odd[0])}, which some servers read as {odd[1]!r}"
            if fault is not None:
                raise RequestError(INVALID_PARAMS, fault)
            if caller.session is not None:
                # A new token of the same principal may reach less; notifications go by the session.
                caller.session.rights = caller.rights
            if method != "tools/call" or self.tracing is not None:
                await in_task()
            drain, request, acting = self.drain, Cancellable(), ACTING.get()
            if drain.stopping:
                raise RequestError(SHUTTING_DOWN, "shutting down: the proxy was told to stop; it did not run")
            drain.requests.add(request)
            try:
                with request:
                    if self.profiles.active or caller.rights.profile is not None:
                        await in_task()
                        caller = await self.profiles.admit(caller)
                    if self.sharing is not None:
                        params = await self.sharing.fetch(params, caller)
                    # A conversation acts for its host already.
                    if acting is not caller.rights:
                        ACTING.set(caller.rights)
                    if self.tracing is None:
                        result = await handler(params, caller)
                    else:
                        result = await self._traced(self.tracing, handler, method, params, caller)
                    if self.sharing is not None:
                        result = await self.sharing.keep(params, caller, result)
                    return result
            finally:
                if acting is not caller.rights:
                    ACTING.set(acting)
                drain.requests.discard(request)
            why = "shutting down: the request was given up; it may or may not have run"
            raise RequestError(SHUTTING_DOWN, why)
        except RequestError:
            raise
        except RecursionError:
            logger.debug("%s cannot be read", method, exc_info=True)
            raise RequestError(INVALID_PARAMS, envelope.TOO_DEEP) from None
        except Exception:
            # boundary: a bug of the proxy fails one request, and its details are for the log
            logger.exception("%s failed", method)
            raise RequestError(
                INTERNAL_ERROR, "internal error of the proxy; its log has the details"
            ) from None

    async def _traced(
        self, tracing: Tracing, handler: Handler, method: str, params: Members, caller: Caller
    ) -> bytes:
        with tracing.request(method, params, caller.era) as traced:
            result = await handler(params, caller)
            traced.answered(result)
            return result

    @property
    def ended_calls(self) -> EndedCalls:
        return self._tool_calls.ended

    def open_session(self, session: Session, send: Send) -> None:
        """Open a handshake-era session; `send` notifies its client beside its requests."""
        self._open_sessions.open(session, send)
        self._contexts.sessions.register(session)
        self._contexts.presets.begin(session, session.rights.all_presets)

    def end_session(self, session: Session) -> None:
        """End a session, its subscriptions, and its connections to servers; do nothing if it has ended."""
        if self._open_sessions.end(session):
            self._contexts.sessions.end(session)
            self._share_log_level()
            self.resources.end(session)
            self._tool_calls.results.kept.forget(session.id)
            self._fleet.end(session.party)

    async def notified(self, method: str, session: Session) -> None:
        """Take a notification of a handshake-era client; repeated ones wait together for a slow server."""
        key = session, method
        if method not in RELAYED_NOTIFICATIONS:
            return
        session.folders = None  # asked again with the next request
        if self.profiles.roots:
            self._open_sessions.notify(session, RESOURCES_CHANGED, {})
        if key in self._announcing:
            self._announcing[key] = True
            return
        self._announcing[key] = True
        try:
            while self._announcing[key]:
                self._announcing[key] = False
                await self._fleet.notify(session.party, method)
        finally:
            del self._announcing[key]

    def _call(self, params: Members, caller: Caller) -> Awaitable[bytes]:
        # No coroutine of its own: one less for each call to go through, on both ways.
        name = envelope.text(params.get("name"))
        if name is None or name not in meta_definitions.RESERVED:
            return self._tool_calls.call(name, params, caller)
        if name in meta_definitions.CALLS:
            return self._meta_tools.call_through(name, params, caller)
        return self._own(name, params, caller)

    async def _own(self, name: str, params: Members, caller: Caller) -> bytes:
        result = await self._meta_tools.call(name, params, caller)
        return eras.fit_result_to_client("tools/call", result, caller.era)

    async def _set_log_level(self, params: Members, caller: Caller) -> bytes:
        level = envelope.text(params.get("level"))
        if level not in LOG_LEVELS:
            raise RequestError(INVALID_PARAMS, f"the level must be one of {', '.join(LOG_LEVELS)}")
        if caller.session is not None:
            caller.session.log_level = level
        self._share_log_level()
        return b"{}"

    def _share_log_level(self) -> None:
        """Have servers log at the most verbose level of all sessions; each session is sent its own."""
        self._fleet.set_log_level(most_verbose(session.log_level for session in self._open_sessions))

    def _complete(self, whole: List) -> List:
        """Return a list that waits a short time for servers of which nothing is known."""

        async def complete(params: Members, caller: Caller) -> Members:
            await self._wait_for_first_lists()
            return await whole(params, caller)

        return complete

    def _paged(self, method: str, member: str, whole: List) -> Handler:
        """Return a handler of a list, whose entries are in `member`: in pages if those are configured."""

        async def listed(params: Members, caller: Caller) -> bytes:
            cursor = envelope.text(params.get("cursor"))
            if cursor and not self._page_size:
                raise RequestError(INVALID_PARAMS, "invalid cursor: the list has one page")
            result = await whole(params, caller)
            if self._page_size:
                page = await in_thread(_page, result[member], cursor, self._page_size)
                result = {**result, **dict(zip((member, "nextCursor"), page, strict=False))}
            large = len(result[member]) > envelope.LARGE_MESSAGE_BYTES
            return await in_thread_if(large, eras.fit_own_to_client, method, result, caller.era)

        return listed


def _page(whole: Raw, cursor: str | None, size: int) -> tuple[Raw, ...]:
    """Cut one page out of an encoded list; return it, with the cursor of the next page if there is one.

    A cursor is a digest of the whole list and the offset of the page in it. If the list has changed since,
    the next page would repeat or leave out entries, so the cursor is refused as stale.
    """
    entries = envelope.elements(whole)
    digest = hashlib.sha256(bytes(whole)).digest()[:DIGEST_BYTES]
    start = 0
    if cursor is not None:
        try:
            data = base64.b64decode(cursor, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            data = b""
        if len(data) != DIGEST_BYTES + 4:
            raise RequestError(INVALID_PARAMS, "invalid cursor: it was not given by this list")
        if data[:DIGEST_BYTES] != digest:
            text = "stale cursor: the list has changed; list again from its start"
            raise RequestError(INVALID_PARAMS, text)
        start = int.from_bytes(data[DIGEST_BYTES:], "big")
    page = envelope.raw(entries[start : start + size])
    if start + size >= len(entries):
        return (page,)
    following = base64.urlsafe_b64encode(digest + (start + size).to_bytes(4, "big"))
    return page, envelope.raw(following.decode())


class Drain:
    """Lets requests finish when the proxy stops: no new ones, some time for the others, then an end.

    Each request is answered, and its response written, inside of it, which delays the stop.
    """

    def __init__(self) -> None:
        self.leaving = False
        """True once balancers should choose another proxy; everything is still served."""
        self.stopping = False
        """True once new requests are refused."""
        self.requests: set[Cancellable] = set()
        """Requests that are being answered, to be given up if they take too long."""
        self._busy = 0
        self._idle: anyio.Event | None = None
        """Set when nothing is under way; None while nobody waits for that."""

    def __enter__(self) -> None:
        self._busy += 1

    def __exit__(self, *ended: object) -> None:
        self._busy -= 1
        if not self._busy and self._idle is not None:
            self._idle.set()

    async def finish(self, seconds: float) -> None:
        """Refuse new requests, wait for those under way, and give up the rest after `seconds`."""
        self.leaving = self.stopping = True
        with anyio.move_on_after(seconds):
            await self._wait_until_idle()
        for request in tuple(self.requests):
            request.cancel()
        with anyio.move_on_after(LAST_RESPONSES_SECONDS):
            await self._wait_until_idle()

    async def _wait_until_idle(self) -> None:
        while self._busy:
            self._idle = anyio.Event()
            await self._idle.wait()


PRINCIPALS_KEPT: Final = 10_000
"""People with a rate of their own, some 2 MB; of more, the one who was idle for longest is forgotten, who has
all of their calls again by then."""


class Quota:
    """The rate of calls of each person over HTTP, whatever profile their clients have."""

    def __init__(self, per_second: float) -> None:
        """Let each person make so many calls a second, and as many at once; 0 sets no limit."""
        self._rate = per_second
        self.replicas: Callable[[], int] = lambda: 1
        """Returns the number of replicas that share the calls of a client."""
        self._buckets: OrderedDict[str | None, Bucket] = OrderedDict()

    def take(self, rights: Principal, *, spread: bool = False) -> bool:
        """Count a call; return whether it is within the rate.

        Of calls that are `spread` over several replicas, each replica sees a part, and counts it for all.
        """
        if not self._rate:
            return True
        person = rights.person
        bucket = self._buckets.get(person) or Bucket(self._rate, max(math.ceil(self._rate), 1))
        keep_latest(self._buckets, person, bucket, PRINCIPALS_KEPT)
        return bucket.take(max(self.replicas(), 1) if spread else 1)

    @property
    def seconds(self) -> int:
        """Whole seconds after which a person has a call again."""
        return max(math.ceil(1 / self._rate), 1) if self._rate else 1

    def __str__(self) -> str:
        return f"too many calls: limits.calls_per_second is {self._rate:g} for each principal; it did not run"


STRING, OBJECT, NULL = b'"', b"{", b"n"
"""First characters that tell the kind of a JSON value."""

_KINDS = {STRING[0]: "a string", OBJECT[0]: "an object"}

_NEEDED: Mapping[str, Mapping[str, bytes]] = {
    "tools/call": {"name": STRING},
    "prompts/get": {"name": STRING},
    "resources/read": {"uri": STRING},
    "resources/directory/read": {"uri": STRING},
    "resources/subscribe": {"uri": STRING},
    "resources/unsubscribe": {"uri": STRING},
    "completion/complete": {"ref": OBJECT, "argument": OBJECT},
    "logging/setLevel": {"level": STRING},
    "skills/get": {"uri": STRING},
    "tasks/get": {"taskId": STRING},
    "tasks/update": {"taskId": STRING, "inputResponses": OBJECT},
    "tasks/cancel": {"taskId": STRING},
}
"""Required members of the params of each method, with their kind."""

_LISTS = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/directory/read",
    "skills/list",
)

_ALLOWED: Mapping[str, Mapping[str, bytes]] = {
    # Models sometimes write the object as a string of JSON; it is accepted.
    "tools/call": {"arguments": OBJECT + STRING + NULL},
    "prompts/get": {"arguments": OBJECT + NULL},
    **{method: {"cursor": STRING + NULL} for method in _LISTS},
}
"""Optional members of the params of each method, with the first characters of their possible kinds."""

_PASSED_ON = "arguments"
"""The param that is only passed on; all others are decoded here, and so bounded, as ``_meta`` is."""

_CHECKS: Mapping[str, tuple[tuple[str, bytes, bool, bool], ...]] = {
    method: tuple(
        (name, kinds, name in _NEEDED.get(method, {}), name != _PASSED_ON)
        for name, kinds in {**_NEEDED.get(method, {}), **_ALLOWED.get(method, {})}.items()
    )
    for method in {**_NEEDED, **_ALLOWED}
}
"""All of these by method, because every call is checked: each name with its kinds, whether it is needed, and
whether it is bounded."""

_REFERENCES = {"ref/prompt": "name", "ref/resource": "uri"}


def params_fault(
    method: str, params: Members, *, modern: bool = False, meta: eras.Meta | None = None
) -> str | None:
    """Return the fault in the params of a request, for its sender; None if they are right.

    `meta` is their ``_meta``, if it is decoded already.
    """
    for name, kinds, needed, bounded in _CHECKS.get(method, ()):
        raw = params.get(name)
        if raw is None:
            if needed:
                return f"{method} needs {name}, {_KINDS[kinds[0]]}"
        elif bounded and len(raw) > envelope.TAKEN_APART_BYTES:
            return _too_large(name, method, raw)
        elif not envelope.starts_with(raw, kinds):
            needs = f"{method} needs {name}," if needed else f"{name} of {method} must be"
            return f"{needs} {_KINDS[kinds[0]]}"
    raw_meta = params.get("_meta")
    # One that is decoded, and not empty, is an object of a right size.
    if raw_meta is not None and not meta:
        if len(raw_meta) > envelope.TAKEN_APART_BYTES:
            return _too_large("_meta", method, raw_meta)
        if not envelope.starts_with(raw_meta, OBJECT + NULL):
            return "_meta must be an object"
    if method == "completion/complete" and (wrong := _reference_fault(params)) is not None:
        return wrong
    if raw_meta is None:
        return f"{eras.CLIENT_CAPABILITIES_KEY} must be an object" if modern else None
    meta = eras.meta_of(params) if meta is None else meta
    return meta.modern_fault if modern else meta.fault


def _reference_fault(params: Members) -> str | None:
    reference, argument = envelope.members_of(params["ref"]), envelope.members_of(params["argument"])
    needed = _REFERENCES.get(envelope.text(reference.get("type")) or "")
    if needed is None or not _is(reference.get(needed), STRING):
        return "ref must be of type ref/prompt with a name, or of type ref/resource with a uri"
    if not (_is(argument.get("name"), STRING) and _is(argument.get("value"), STRING)):
        return "argument needs a name and a value, strings"
    return None


def _too_large(name: str, method: str, raw: Raw) -> str:
    return f"{name} of {method} has {len(raw):,} bytes; {envelope.TAKEN_APART_BYTES:,} are allowed"


def _is(raw: Raw | None, kinds: bytes) -> bool:
    return raw is not None and envelope.starts_with(raw, kinds)
