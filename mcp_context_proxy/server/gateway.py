"""The one place where a request meets what answers it: method in, encoded result out.

Serves every front alike. Knows no SDK; what it does not handle here (negotiation, subscriptions) is the
SDK's.

Cuts lists into pages, where that is configured. By default a list has one page: many hosts read no more.

A cursor is good for the list that it was given for, as it was: same entries, same query. When that has
changed in between, the next page would repeat or leave out entries, so the cursor is refused as stale.

Lets requests finish when the proxy is told to stop: no new ones, a while for the others, then an end.

Every request is answered: also one that is refused, and one that is given up.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec import Raw

from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol import validation as params_of_requests
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
)
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.validation import LOG_LEVELS, most_verbose
from mcp_context_proxy.server import meta_definitions
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.forwarding import SERVER_INFO
from mcp_context_proxy.server.meta_tools import MetaTools
from mcp_context_proxy.server.notifications import OpenSessions
from mcp_context_proxy.server.prompts import Prompts
from mcp_context_proxy.server.resources import Resources
from mcp_context_proxy.server.tools_call import ToolCalls
from mcp_context_proxy.server.tools_list import ToolList

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing


DIGEST_BYTES = 12
"""Enough to tell lists apart; nothing is protected by it."""

_entries = msgspec.json.Decoder(list[Raw]).decode


def without_cursor(params: Members) -> Members:
    """The params that ask for the whole list."""
    return {key: raw for key, raw in params.items() if key != "cursor"}


def page(result: bytes, member: str, cursor: str | None, size: int) -> bytes:
    """One page of a list result.

    Args:
        result: With the whole list.
        member: Of the result: where the entries are.
        cursor: That the client sent; None for the first page.
        size: Entries on a page.

    Raises:
        RequestError: the cursor is none of ours, or the list is no longer the one it was given for.
    """
    parts = envelope.members(result)
    entries = _entries(parts[member])
    digest = hashlib.sha256(bytes(parts[member])).digest()[:DIGEST_BYTES]
    start = 0 if cursor is None else _offset(cursor, digest)
    parts[member] = envelope.raw(entries[start : start + size])
    if start + size < len(entries):
        following = base64.urlsafe_b64encode(digest + (start + size).to_bytes(4, "big"))
        parts["nextCursor"] = envelope.raw(following.decode())
    return envelope.encode(parts)


def _offset(cursor: str, digest: bytes) -> int:
    try:
        data = base64.b64decode(cursor, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != DIGEST_BYTES + 4:
        raise RequestError(INVALID_PARAMS, "invalid cursor: it was not given by this list")
    if data[:DIGEST_BYTES] != digest:
        raise RequestError(INVALID_PARAMS, "stale cursor: the list has changed; list again from its start")
    return int.from_bytes(data[DIGEST_BYTES:], "big")


SHUTTING_DOWN = -32000

LAST_WORDS_SECONDS = 1.0
"""For the refusals of what was given up to be written."""


class Drain:
    """Counts the requests that are under way."""

    def __init__(self) -> None:
        self.stopping = False
        """Whether new requests are refused."""
        self._scopes: set[anyio.CancelScope] = set()
        self._busy = 0
        self._idle = anyio.Event()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Something that has to be over before the proxy stops, such as writing an answer."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Answer a request inside; it is cancelled when its time is over.

        Raises:
            RequestError: the proxy is stopping, and the request was refused or given up.
        """
        if self.stopping:
            raise RequestError(SHUTTING_DOWN, "shutting down: the proxy was told to stop; it did not run")
        with self.busy():
            scope = anyio.CancelScope()
            self._scopes.add(scope)
            try:
                with scope:
                    yield
            finally:
                self._scopes.discard(scope)
            if scope.cancelled_caught:
                raise RequestError(
                    SHUTTING_DOWN, "shutting down: the request was given up; it may or may not have run"
                )

    async def finish(self, seconds: float) -> None:
        """Refuse what comes, wait for what is under way, give up what is left after `seconds`."""
        self.stopping = True
        with anyio.move_on_after(seconds):
            await self._quiet()
        for scope in self._scopes:
            scope.cancel()
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            await self._quiet()

    async def _quiet(self) -> None:
        while self._busy:
            self._idle = anyio.Event()
            await self._idle.wait()


logger = logging.getLogger(__name__)

Handler = Callable[[Members, Caller], Awaitable[bytes]]

ANNOUNCED = frozenset({"notifications/roots/list_changed"})
"""What a client tells that concerns the servers."""

HANDSHAKE_ONLY = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods that the modern era does not have."""


class Gateway:
    """Answers requests."""

    def __init__(
        self,
        fleet: Fleet,
        contexts: ContextEngine,
        open_sessions: OpenSessions,
        tool_list: ToolList,
        tool_calls: ToolCalls,
        own_tools: MetaTools,
        resources: Resources,
        prompts: Prompts,
        page_size: int = 0,
    ) -> None:
        self.open_sessions = open_sessions
        """For the fronts, which open and end them."""
        open_sessions.when_ended(lambda session: self._share_level())
        self._fleet, self._tool_calls, self._own_tools = fleet, tool_calls, own_tools
        self._contexts = contexts
        self.drain = Drain()
        """Ends what is under way, in order, when the proxy is told to stop."""
        self.tracing: Tracing | None = None
        """Makes spans, where somebody collects them."""
        self._resources, self._page_size = resources, page_size
        self._handlers: Mapping[str, Handler] = {
            "tools/list": self._listing("tools/list", "tools", tool_list.answer),
            "tools/call": self._call,
            "resources/list": self._listing("resources/list", "resources", resources.list),
            "resources/templates/list": self._listing(
                "resources/templates/list", "resourceTemplates", resources.templates
            ),
            "resources/read": _fitted("resources/read", resources.read),
            "resources/subscribe": resources.subscribe,
            "resources/unsubscribe": resources.unsubscribe,
            "prompts/list": self._listing("prompts/list", "prompts", prompts.list),
            "prompts/get": prompts.get,
            "completion/complete": prompts.complete,
            "logging/setLevel": self._set_level,
        }

    @property
    def methods(self) -> frozenset[str]:
        """Methods that are answered here."""
        return frozenset(self._handlers)

    async def handle(self, method: str, params: Members, caller: Caller) -> bytes:
        """Answer a request: its encoded result, fitted to the caller's era.

        Raises:
            RequestError: it is refused; nothing else is ever raised but a cancellation.
        """
        handler = self._handlers.get(method)
        if handler is None or (caller.era is Era.MODERN and method in HANDSHAKE_ONLY):
            raise RequestError(METHOD_NOT_FOUND, "Method not found", method)
        wrong = params_of_requests.fault(method, params, modern=caller.era is Era.MODERN)
        if wrong is not None:
            raise RequestError(INVALID_PARAMS, wrong)
        if caller.session is not None:
            self._contexts.register(caller.session)
        try:
            with self.drain.request():
                if self.tracing is None:
                    return await handler(params, caller)
                with self.tracing.request(method, params, caller.era) as traced:
                    result = await handler(params, caller)
                    traced.answered(result)
                    return result
        except RequestError:
            raise
        except Exception:
            # boundary: a fault of ours is one request's failure, and its details are for the log
            logger.exception("%s failed", method)
            raise RequestError(
                INTERNAL_ERROR, "internal error of the proxy; its log has the details"
            ) from None
        raise AssertionError("a request that is given up raises")

    def _listing(self, method: str, member: str, whole: Handler) -> Handler:
        """A handler of a list, in pages where they are configured."""
        size = self._page_size
        if size == 0:
            return _fitted(method, whole)

        async def paged(params: Members, caller: Caller) -> bytes:
            result = await whole(without_cursor(params), caller)
            return page(result, member, envelope.text(params.get("cursor")), size)

        return _fitted(method, paged)

    async def notified(self, method: str, session: Session) -> None:
        """Take what a handshake-era client announced."""
        if method in ANNOUNCED:
            await self._fleet.notify(session.party, method)

    def watching(self, uris: Iterable[str]) -> AbstractAsyncContextManager[None]:
        """Hear of updates of these resources, for a modern subscription, as long as it lasts."""
        return self._resources.watching(uris)

    async def _call(self, params: Members, caller: Caller) -> bytes:
        name = envelope.text(params.get("name"))
        if name is not None and name in meta_definitions.RESERVED:
            result = await self._own_tools.call(name, params, caller)
            return eras.fit_result_to_client("tools/call", result, caller.era, SERVER_INFO)
        return await self._tool_calls.call(params, caller)

    async def _set_level(self, params: Members, caller: Caller) -> bytes:
        """Remember the session's level; the servers log what serves all sessions."""
        level = envelope.text(params.get("level"))
        if level not in LOG_LEVELS:
            raise RequestError(INVALID_PARAMS, f"the level must be one of {', '.join(LOG_LEVELS)}")
        if caller.session is not None:
            caller.session.log_level = level
        self._share_level()
        return b"{}"

    def _share_level(self) -> None:
        self._fleet.set_log_level(most_verbose(session.log_level for session in self.open_sessions))


def _fitted(method: str, handler: Handler) -> Handler:
    """A handler whose own results are fitted to the caller's era; what was forwarded already is."""

    async def fit(params: Members, caller: Caller) -> bytes:
        return eras.fit_result_to_client(method, await handler(params, caller), caller.era, SERVER_INFO)

    return fit
