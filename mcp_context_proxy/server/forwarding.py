"""Forwards a request to its downstream server and returns the result, changed only where the hop demands it.

Does not know the fronts: method and raw params in, encoded result out. While the request is under
way, its progress and log messages are relayed to the client that made it, and so are the server's own
requests (sampling, elicitation, roots), in each of the four pairs of eras:

- handshake client, handshake server: the request is passed on as it came;
- handshake client, modern server: the server asks by its result; the client is asked, and the call repeated;
- modern client, modern server: the result is passed on, and the client repeats the call;
- modern client, handshake server: the call waits in `PendingInput` while the client answers its result.

`questions` decides which parts of such a request may reach a person or a model.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from msgspec import Raw

from mcp_context_proxy.context.session import DEFAULT_LOG_LEVEL
from mcp_context_proxy.downstream import Ask, Notify, Outgoing, Party, allowed
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.inbound import LOG_MESSAGE, PROGRESS, waiting_facts
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallTimeoutError,
    DownstreamError,
    InputMissingError,
    RemoteError,
)
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import HANDSHAKE, MODERN, Era, client_capabilities, reaches
from mcp_context_proxy.protocol.strangers import named, quoted
from mcp_context_proxy.results import outcome_of
from mcp_context_proxy.server import Caller, questions
from mcp_context_proxy.server.consent import PendingInput
from mcp_context_proxy.server.questions import ClientQuestions, Requests, ask_for_input, url_elicitation
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import Repeating, in_task, in_thread, in_thread_if
from mcp_context_proxy.trust import Role
from mcp_context_proxy.trust.audit import AuditLog

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing

INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Methods whose modern results may ask for input."""

POLL_SECONDS = (0.1, 10.0)
"""Shortest and longest time between two questions how a task stands, whatever its server proposes."""

USUAL_POLL_SECONDS = 1.0
"""The time where it proposes none."""

CANCEL_SECONDS = 2.0
"""Time for a server to take note that nobody waits for a task any more."""

ASKED_BY_RESULT = "asked by the result of the call"

INPUT_ROUNDS = 10
"""Times that a modern server may ask a handshake-era client during one request; the SDK's number."""

PROGRESS_PER_SECOND = 10
"""Progress relayed for one call a second, and as many at once: more shows nobody anything."""

HOP_ERRORS = frozenset({-32000, -32001, -32020, -32022})
"""Codes about the connection to the server; a client would take them to be about its own."""


class _Request(Outgoing):
    """One request on its way to a server. Entered, it relays progress and log messages to its caller.

    Progress is thinned out: a message that comes too fast waits, and the newest replaces it. The last is
    never lost: it is sent on leaving, before the result. Progress that goes backwards is dropped; progress
    that stands still is relayed, as a sign of life by which a client may extend its timeout.
    """

    # Of the class, because one is made for every call.
    relay: Notify | None = None
    """Takes the notifications of the server instead of this."""
    _rate: Bucket | None = None
    _waiting: Members | None = None
    _reached = -math.inf
    _timer: asyncio.TimerHandle | None = None
    _over = False

    def __init__(
        self,
        client: DownstreamClient,
        method: str,
        params: Members,
        *,
        caller: Caller,
        subject: str,
        judge: Callable[[], None],
    ) -> None:
        """Send `params` with names as the server knows them; `caller` has their ``_meta``, decoded.

        `subject` and `judge` are those of `Outgoing`.
        """
        self.client, self.method, self.params, self.caller = client, method, params, caller
        self.subject, self.judge, self.timeout = subject, judge, client.config.call_timeout
        self.meta, self.capabilities, self.client_info = caller.meta, caller.capabilities, caller.client_info
        self.wants_progress, self.on_counted = "progressToken" in caller.meta, caller.release
        session = caller.session
        if session is not None:
            self.party = session.party
            # A handshake-era server is told once, not with each request, and only a level that a client set.
            level = session.log_level or (DEFAULT_LOG_LEVEL if client.era is MODERN else None)
            if level is not None:
                self.log_level = envelope.raw(level)
            return
        self.party = Party(caller.principal, sees_all=caller.rights.may(Role.VIEW))
        meta = caller.meta
        declared, info = meta.get(eras.CLIENT_CAPABILITIES_KEY), meta.get(eras.CLIENT_INFO_KEY)
        self.is_modern = declared is not None and self.capabilities is declared and self.client_info is info
        if eras.LOG_LEVEL_KEY in meta:
            self.log_level = meta[eras.LOG_LEVEL_KEY]
            if client.era is HANDSHAKE:
                client.subscriptions.include_log_level(envelope.text(self.log_level) or "")

    def on_notification(self, method: str, params: Members) -> None:
        """Take a notification of the server while the request is under way."""
        (self.relay or self)(method, params)

    def __call__(self, method: str, params: Members) -> None:
        """Take a notification of the server."""
        token = self.caller.meta.get("progressToken")
        if self._over or method not in (PROGRESS, LOG_MESSAGE):
            return
        if (shown := self.client.admitted(method, params)) is None:
            return
        if method == LOG_MESSAGE:
            level, session = envelope.text(shown.get("level")), self.caller.session
            least = envelope.text(self.caller.meta.get(eras.LOG_LEVEL_KEY))
            if session.wants_level(level) if session is not None else reaches(level, least):
                self.caller.notify(method, shown)
        elif token is not None:
            progress = envelope.number(shown.get("progress"))
            if progress is None or progress < self._reached:
                return
            self._reached = progress
            self._waiting = {**shown, "progressToken": token}
            if self._timer is None:
                self._send_waiting()

    def _send_waiting(self, *, last: bool = False) -> None:
        """Send the progress that waits, or else try again later; the last is sent at once."""
        self._timer = None
        if self._waiting is None:
            return
        if self._rate is None:
            self._rate = Bucket(PROGRESS_PER_SECOND, PROGRESS_PER_SECOND)
        if last or self._rate.take():
            self.caller.notify(PROGRESS, self._waiting)
            self._waiting = None
        else:
            later = 1 / PROGRESS_PER_SECOND
            self._timer = asyncio.get_running_loop().call_later(later, self._send_waiting)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        # Nobody waits for the progress of a cancelled request.
        if self._waiting is not None and (kind is None or issubclass(kind, Exception)):
            self._send_waiting(last=True)


class Forwarder:
    """Forwards requests on behalf of callers."""

    def __init__(self, pending: PendingInput, audit: AuditLog) -> None:
        """Keep what waits for a client in `pending`; `audit` takes the questions of servers, with answers."""
        self._pending, self.audit = pending, audit
        self.tracing: Tracing | None = None

    async def forward(
        self,
        client: DownstreamClient,
        method: str,
        params: Members,
        caller: Caller,
        subject: str,
        judge: Callable[[], None] = allowed,
        *,
        as_task: bool = False,
    ) -> bytes:
        """Send a request to a downstream server and return the result, fitted to the caller's era.

        The names in `params` are those that the server knows; `subject` names the request in error messages,
        such as ``tool 'create_issue'``; `judge` is that of `Outgoing`. A server of the handshake era runs it
        as a task if `as_task` is true, and the result is that of the task. Raises `DownstreamError` as
        `Link.request` does, and `RequestError` if the client refused a request of the server, or continues an
        unknown call.
        """
        request = _Request(client, method, params, caller=caller, subject=subject, judge=judge)
        if as_task and client.era is HANDSHAKE:
            request.as_task = True
        modern = caller.era is MODERN
        waits = modern and _may_be_asked(request)
        with request:
            try:
                if waits:
                    await in_task()
                    result = await self._send_pending(request)
                else:
                    if not modern:
                        # A server of the handshake era asks meanwhile, a modern one by its result.
                        request.ask = self._ask(request, caller.ask)
                    try:
                        result = await self._send(request, params)
                    except RemoteError as error:
                        if not _demands_task(error, request):
                            raise
                        request.as_task, request.is_modern = True, False
                        result = await self._run_task(request, params)
                    if modern:
                        if _may_ask(result):
                            result = await self._checked(request, result)
                    elif client.era is MODERN:
                        result = await self._resolve_input_required(request, result)
                    else:
                        # Nothing to fit, so nothing is parsed: the bytes pass as they came.
                        return result
            except RemoteError as error:
                # That of a call that waits is checked already, and may be of another server.
                checked = error if waits else await questions.checked_error(client, error)
                result = _in_place_of(checked, request)
        if len(result) > envelope.TAKEN_APART_BYTES:
            return await in_thread(eras.fit_result_to_client, method, result, caller.era)
        return eras.fit_result_to_client(method, result, caller.era)

    async def read(
        self,
        client: DownstreamClient,
        method: str,
        params: Members,
        caller: Caller,
        subject: str,
        judge: Callable[[], None],
        name: str | None,
    ) -> bytes:
        """Forward a request for a resource or a prompt; the audit has who has read it, and how that ended.

        `name` is the one that the server lists, of a template its own, so that the audit has no values of a
        request; None for a resource that only a result has linked to. The rest is as in `forward`.
        """
        began, outcome, size = time.perf_counter(), "failed", None
        try:
            result = await self.forward(client, method, params, caller, subject, judge)
            outcome, size = outcome_of(result).name.lower(), len(result)
            return result
        finally:
            self.audit.note(
                "read",
                **_who(caller),
                subject=caller.rights.label,
                server=client.name,
                method=method,
                name=name,
                outcome=outcome,
                ms=round((time.perf_counter() - began) * 1000, 3),
                result_bytes=size,
            )

    async def _send_pending(self, request: _Request) -> bytes:
        """Send a modern client's call to a server that may make requests of the client meanwhile."""

        async def work(ask: Ask, notify: Notify) -> bytes:
            request.ask, request.relay = self._ask(request, ask), notify
            try:
                result = await self._send(request, request.params)
                return await self._checked(request, result) if _may_ask(result) else result
            except RemoteError as error:
                raise await questions.checked_error(request.client, error) from None

        subject = f"{request.client.name} {request.method}"
        return await self._pending.call(request.caller.principal, subject, request.params, request, work)

    def _ask(self, request: _Request, ask: Ask) -> Ask | None:
        """Return the way in which the server asks the client; the audit has each question."""
        if not client_capabilities(request.caller.capabilities):
            return None
        return ClientQuestions(request.caller, request.client, ask, self._noting(request))

    def _noting(self, request: _Request) -> Callable[[str, str], None]:
        """Return a function for the audit that takes the method of a question, and how it was answered.

        It does not keep the request, which keeps it: each call would be left to the search for garbage.
        """
        return partial(self.note_question, request.caller, request.client.name, request.method)

    def note_question(self, caller: Caller, server: str, during: str, method: str, answer: str) -> None:
        self.audit.note(
            "question", server=server, method=method, answer=answer, **_who(caller), during=during
        )

    async def _resolve_input_required(self, request: _Request, result: bytes) -> bytes:
        """Ask a handshake-era client for the input that a modern server requires, until it has enough."""
        server = request.client.name
        for _ in range(INPUT_ROUNDS):
            parts, required = await questions.requests_in(server, result, request.client.limits)
            kind = eras.result_type(parts)
            if kind == "complete":
                return result
            if required is None:
                raise BadAnswerError(server, f"with a result of type {quoted(kind)}, which is not known")
            if not required and "requestState" not in parts:
                # The same call would be sent, which may have run.
                raise BadAnswerError(server, "that it requires input, and not which")
            answers = await self._answers(request, required)
            retry = {**request.params, "inputResponses": envelope.raw(answers)}
            retry.pop("requestState", None)
            if "requestState" in parts:
                retry["requestState"] = parts["requestState"]
            result = await self._send(request, retry)
        raise InputMissingError(server, f"it asked more than {INPUT_ROUNDS} times")

    def _send(self, request: _Request, params: Members) -> Awaitable[bytes]:
        # No coroutine of its own: one less for each call to go through, on both ways.
        if request.caller.era is MODERN and "inputResponses" in params:
            for answer in questions.answers_in(params):
                self._noting(request)("inputResponses", answer)
        return self._run_task(request, params) if request.as_task else self._send_once(request, params)

    def _send_once(self, request: _Request, params: Members) -> Awaitable[bytes]:
        if self.tracing is None:
            return request.client.call(request.method, params, request)
        return self._traced(self.tracing, request, params)

    async def _run_task(self, request: _Request, params: Members) -> bytes:
        """Have a server run a call as a task, and return the result of the task, which nobody else sees."""
        async with request.client.kept(request):
            return await self._in_place_of_task(request, await self._send_once(request, params))

    async def _in_place_of_task(self, request: _Request, result: bytes) -> bytes:
        client = request.client
        is_modern = client.era is MODERN
        parts = await in_thread_if(len(result) > envelope.TAKEN_APART_BYTES, envelope.members, result)
        if not (eras.result_type(parts) == "task" if is_modern else "task" in parts):
            return result
        task_id = task_id_in(client.name, parts if is_modern else _object(parts["task"]))
        named = {"taskId": envelope.raw(task_id)}
        request.as_task = is_modern
        has_ended = False
        try:
            result = await self._polled(request, named)
            has_ended = True
            return result
        except RemoteError:
            has_ended = True
            raise
        finally:
            if not has_ended:
                with anyio.move_on_after(CANCEL_SECONDS, shield=True):
                    with suppress(DownstreamError, RequestError):
                        await client.call("tasks/cancel", named, request)

    async def _polled(self, request: _Request, named: Members) -> bytes:
        """Ask a server how a task stands until it has ended, answer its questions, and return the result."""
        client, answered, told = request.client, set[str](), count(1)
        until = anyio.current_time() + client.limits.call_max_seconds
        shortest, longest = POLL_SECONDS

        def tell(message: Raw | None) -> None:
            if request.wants_progress:
                said = {} if message is None else {"message": message}
                request.on_notification(PROGRESS, {"progress": envelope.raw(next(told)), **said})

        while True:
            parts, required = await task_state(client, await client.call("tasks/get", named, request))
            status = envelope.text(parts["status"])
            if client.era is HANDSHAKE and status != "working":
                # It asks while it is asked for the result, and answers that once the task has ended.
                if status == "input_required":
                    request.timeout = max(until - anyio.current_time(), client.config.call_timeout)
                with Repeating(longest, partial(tell, parts.get("statusMessage"))):
                    return await client.call("tasks/result", named, request)
            if status == "completed":
                return bytes(parts["result"])
            if status == "failed":
                error = _object(parts.get("error"))
                message = envelope.text(error.get("message")) or "the task failed"
                code = envelope.value_or_none(error.get("code", b"null"))
                if not isinstance(code, int) or abs(code) >> 31:  # as many hosts read it
                    code = INTERNAL_ERROR
                raise RemoteError(client.name, code, message)
            if status == "cancelled":
                raise BadAnswerError(client.name, "that it has cancelled the task")
            new = {key: each for key, each in (required or {}).items() if key not in answered}
            if new:
                answers = envelope.raw(await self._answers(request, new))
                await client.call("tasks/update", {**named, "inputResponses": answers}, request)
                answered |= new.keys()
            tell(parts.get("statusMessage"))
            proposed = envelope.number(parts.get("pollIntervalMs", parts.get("pollInterval")))
            seconds = USUAL_POLL_SECONDS if proposed is None else proposed / 1000
            seconds = min(max(seconds, shortest), longest)
            if anyio.current_time() + seconds > until:
                raise CallTimeoutError(client.name, request.subject, client.limits.call_max_seconds)
            await anyio.sleep(seconds)

    async def _answers(self, request: _Request, required: Requests) -> Members:
        """Return the answers of a client to the requests of a modern server."""
        try:
            return {
                key: Raw(await ask_for_input(request.ask, each, params))
                for key, (each, params) in required.items()
            }
        except RequestError as error:
            raise InputMissingError(request.client.name, error.message) from error

    async def _checked(self, request: _Request, result: bytes) -> bytes:
        """Return a result for a modern client, which would answer the questions in it, of any server."""
        client = request.client
        parts, required = await questions.requests_in(client.name, result, client.limits)
        if required is None:
            return result
        checked = await questions.checked_requests(client, parts, required, request.caller)
        for method in questions.asked_by(checked):
            self._noting(request)(method, ASKED_BY_RESULT)
        return checked

    async def _traced(self, tracing: Tracing, request: _Request, params: Members) -> bytes:
        with tracing.downstream(request.client.name, request.method, params) as traced:
            request.meta = eras.meta_of(traced.params)
            result = await request.client.call(request.method, traced.params, request)
            traced.answered(result)
            return result


async def task_state(
    client: DownstreamClient, result: bytes, *, begins: bool = False
) -> tuple[Members, Requests | None]:
    """Return the state of a task as its reader may see it, and its questions, which are checked elsewhere.

    Of a task that begins, it has neither questions nor a result. Raises `BadAnswerError` if it cannot be
    understood, and `InputMissingError` if it asks too much.
    """
    parts, required = await questions.requests_in(client.name, result, client.limits, of_task=True)
    status = envelope.text(parts.get("status")) or ""
    if status not in _MEMBER_OF_STATE:
        raise BadAnswerError(client.name, f"that its task is {quoted(status)}")
    for member in _MEMBER_OF_STATE.values():
        if begins or member != _MEMBER_OF_STATE[status]:
            parts.pop(member, None)
    if status == "completed" and client.era is MODERN and not begins:
        held = bytes(parts.get("result", b""))
        if not envelope.starts_with(held, b"{"):
            raise BadAnswerError(client.name, "that its task has completed, but without a result")
        kind = eras.result_type((await questions.requests_in(client.name, held, client.limits))[0])
        if kind != "complete":
            raise BadAnswerError(
                client.name, f"that its task has completed, with a result of type {quoted(kind)}"
            )
    large = len(result) > envelope.TAKEN_APART_BYTES
    return await in_thread_if(large, client.shown_state, parts), required


_MEMBER_OF_STATE: Final = {
    "working": "",
    "input_required": "inputRequests",
    "completed": "result",
    "failed": "error",
    "cancelled": "",
}
"""The member that the state of a task has by its status, and no other."""


def task_id_in(server: str, task: Members) -> str:
    """Return the id of a task.

    Raises `BadAnswerError` if it has none by which it can be asked for.
    """
    task_id = envelope.text(task.get("taskId")) or ""
    if not 0 < len(task_id) <= envelope.ID_CHARACTERS:
        raise BadAnswerError(server, f"with a task whose taskId has {len(task_id):,} characters")
    return task_id


def _demands_task(error: RemoteError, request: _Request) -> bool:
    """Return whether a modern server refuses a call because its client does not take tasks."""
    if error.code != eras.MISSING_CAPABILITY or request.method != "tools/call" or request.as_task:
        return False
    needed = _object(error.data if isinstance(error.data, Raw) else None).get("requiredCapabilities")
    return request.client.era is MODERN and eras.has_extension(needed, eras.TASKS_EXTENSION)


def _object(raw: Raw | None) -> Members:
    """Return the members of an object of a server; none if it is no object."""
    return envelope.members(raw) if raw is not None and envelope.starts_with(raw, b"{") else {}


def _who(caller: Caller) -> dict[str, str | None]:
    """Return the facts of an entry of the audit about who has asked."""
    return {
        "principal": caller.principal,
        "session": None if caller.session is None else caller.session.id,
    }


def _may_ask(result: bytes) -> bool:
    """Return whether a result may require input; a large one is read in any case, in a thread."""
    return len(result) > envelope.TAKEN_APART_BYTES or eras.may_require_input(result)


def _asks_meanwhile(request: _Request) -> bool:
    """Return whether a server may ask during a request, which only one of the handshake era does."""
    return request.client.era is HANDSHAKE and request.method in INPUT_METHODS


def _in_place_of(error: RemoteError, request: _Request) -> bytes:
    """Return the result by which a modern client is sent to a URL, instead of the error of an older server.

    Raises `RemoteError` if it is any other error.
    """
    if request.caller.era is MODERN and _asks_meanwhile(request):
        asks = url_elicitation(error, request.params, request.caller)
        if asks is not None:
            return asks
    raise error


def _may_be_asked(request: _Request) -> bool:
    """Return whether a modern client may be asked so, or answers what it was asked."""
    if not _asks_meanwhile(request):
        return False
    return "requestState" in request.params or bool(client_capabilities(request.caller.capabilities))


def tell_waiting(params: Members, notify: Notify, seconds: float, standing: str) -> None:
    """Tell a client, if it asked for progress, for which servers its request has been waiting."""
    token = eras.meta_of(params).get("progressToken")
    if token is not None:
        notify(PROGRESS, {"progressToken": token, **waiting_facts(seconds, standing)})


class NotAnObjectError(RequestError):
    """A call whose arguments are no object."""


def object_in_text(arguments: Raw) -> Raw:
    """Return arguments that a model sent as a string of JSON as the object in it; none of an empty string.

    Raises `NotAnObjectError` if they are none.
    """
    text = "{}" if bytes(arguments) == b'""' else (envelope.text(arguments) or "").strip()
    try:
        envelope.members(text.encode())
    except (msgspec.DecodeError, RecursionError):
        raise NotAnObjectError(INVALID_PARAMS, "arguments of tools/call must be an object") from None
    return Raw(text.encode())


@contextmanager
def downstream_errors(era: Era) -> Iterator[None]:
    """Turn errors of downstream servers into errors of the caller's era."""
    try:
        yield
    except RemoteError as error:
        raise request_error(error, era) from error
    except DownstreamError as error:
        raise RequestError(INTERNAL_ERROR, str(error), {"server": error.server}) from error


def request_error(error: RemoteError, era: Era) -> RequestError:
    """Return the error that a client of `era` gets for a server's error.

    Code and data pass, but for a code that belongs to another hop or era; the message names its server.
    """
    if error.code in HOP_ERRORS:
        return RequestError(INTERNAL_ERROR, str(error), error.data)
    said = named(error.server, error.remote_message)
    return RequestError(eras.error_code(error.code, era), said, error.data)
