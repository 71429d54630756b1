"""A JSON-RPC peer over a duplex channel (stdio, SSE, handshake-era HTTP): requests in both directions.

Frames are handed in synchronously by the reader of the channel, so that a response resumes its caller without
another task in between. Ids come from a counter, so a response that is foreign, late or doubled matches
nothing and is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

import anyio
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, Struct, UnsetType

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.tables import KIB
from mcp_context_proxy.downstream import PLAIN, Channel, HeaderMap, Notify, Outgoing, Party
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    CallTimeoutError,
    DisconnectedError,
    DownstreamError,
    RemoteError,
)
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import NO_PARAMS, Members
from mcp_context_proxy.protocol.eras import HANDSHAKE
from mcp_context_proxy.protocol.framing import Oversized
from mcp_context_proxy.protocol.strangers import quoted
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import Reply, in_task, in_thread_if, keep_latest

logger = logging.getLogger(__name__)

CANCELLED = "notifications/cancelled"

ID_DIGITS = 18
"""Digits of an id in a string that is read as a number; ours are shorter."""

NOTIFICATION_BYTES = 64 * KIB
"""Largest notification of a server that is read: each may be kept for a while, and nobody reads more."""

REQUESTS_PER_SECOND, REQUESTS_AT_ONCE = 100, 1000
"""Requests of a server on a connection that are answered or refused; the others have no response at all. A
ping costs as much as a call, and a server that sends them as fast as it can would take all the time."""

OPEN_REQUESTS = 64
"""Requests of one server that may be open on a connection at a time; further ones are refused. Their bytes
together are bounded by the largest message."""

BAD_LINES = 1000
"""Lines in a row without a message after which the other side is taken for no MCP server."""

SILENT_TIMEOUTS = 2
"""Further timeouts, one after the other, after which a program is given up that has said nothing since the
first. One that works for minutes without reading is not to be ended in the middle of it."""

CALLERS_KEPT = 256
"""Principals of whom a connection remembers that they have made requests over it."""

Answer: TypeAlias = Callable[["Peer", str, Members], Awaitable[bytes]]
"""Answers a request that the server makes over a peer; raises `RequestError` to refuse."""


class Inbound(Struct, frozen=True):
    """Handlers of the messages that come over one connection, and the capabilities declared on it."""

    on_notification: Notify
    """Takes the notifications that belong to no request."""
    answer: Answer
    capabilities: Mapping[str, Any]
    """Declared in the handshake; the modern era declares with each request."""


class Peer:
    """Sends requests over a channel and matches the responses. Implements `Link`."""

    header_maps: dict[str, HeaderMap] | None = None

    def __init__(
        self,
        *,
        config: ServerConfig,
        limits: Limits,
        group: TaskGroup,
        inbound: Inbound,
        on_stray: Callable[[bytes], None],
    ) -> None:
        """Prepare a peer; `attach` gives it the channel.

        Requests of the server are answered in tasks of `group`. `on_stray` takes lines that are no messages.
        """
        self.era = HANDSHAKE
        self.server = config.name
        self._channel: Channel | None = None
        self._pending = _PendingRequests(config.name, config.call_timeout, limits.call_max_seconds)
        self.server_requests = ServerRequests(self, group, inbound.answer, limits)
        self._on_notification, self._on_stray = inbound.on_notification, on_stray
        self._bad_lines = 0
        self._silent_since: float | None = None
        """Time of a timeout after which nothing has come; None otherwise."""
        self._closed: str | None = None
        """Cause of the loss, once the connection is lost."""
        self._callers: dict[str | None, float] = {}
        """Time at which the latest request of each principal ended."""

    def attach(self, channel: Channel) -> None:
        self._channel = channel
        self._give_up_noise()

    @property
    def _attached(self) -> Channel:
        if self._channel is None:
            raise ConnectionError("is not connected yet")
        return self._channel

    @property
    def in_flight(self) -> list[Outgoing]:
        """Pending requests, oldest first; see `Link.in_flight`."""
        return [pending.outgoing for pending in self._pending.by_id.values()]

    def earlier_callers(self, seconds: float) -> list[str | None]:
        """Return the principals whose latest request ended at most so many seconds ago."""
        since = self._pending.now() - seconds
        return [principal for principal, ended in self._callers.items() if ended >= since]

    def held(self, party: Party | None) -> contextlib.AbstractContextManager[None]:
        """Pause the timeouts of a party's requests while the party is being asked for something."""
        return self._pending.held(party)

    async def request(self, method: str, params: Members = NO_PARAMS, outgoing: Outgoing = PLAIN) -> bytes:
        """Send a request and return its encoded result unchanged; see `Link.request`."""
        if self._closed is not None:
            raise self._unsent(self._closed)
        pending = self._pending.add(method, outgoing)
        token = pending.id if outgoing.wants_progress else None
        down = eras.fit_params_to_server(params, self.era, outgoing, token)
        try:
            frame, channel = envelope.request(pending.id, method, down), self._attached
            if not channel.sent_at_once(frame):
                # Within the timeout of the request: a server that stops reading delays nobody longer.
                await in_task()
                pending.sending = anyio.CancelScope()
                with pending.sending:
                    await channel.send(frame)
                    pending.sending = None
            return await pending
        except ConnectionError as error:
            raise self._unsent(str(error)) from None
        except CallTimeoutError:
            if pending.sending is None:
                self._cancel(pending.id, "the deadline passed")
            self._note_timeout(pending.timeout)
            raise
        except asyncio.CancelledError:
            if pending.sending is None:
                asyncio.get_running_loop().call_soon(self._cancel, pending.id, "the client cancelled")
            raise
        finally:
            del self._pending.by_id[pending.id]
            if (party := outgoing.party) is not None:
                keep_latest(self._callers, party.principal, self._pending.now(), CALLERS_KEPT)

    def _note_timeout(self, seconds: float) -> None:
        """Ask a program for a sign of life after a timeout; give it up some timeouts later if there was none.

        A server at a URL is not ours to start again.
        """
        if self._channel is None or self._channel.process_group is None:
            return
        now = asyncio.get_running_loop().time()
        if self._silent_since is None:
            self._silent_since = now
            self.send_nowait(envelope.request(next(self._pending.ids), "ping", {}))
        elif now - self._silent_since >= SILENT_TIMEOUTS * seconds:
            self._channel.give_up("answered neither calls nor a ping")

    def _cancel(self, request_id: int, reason: str) -> None:
        """Tell the server without waiting: a server that does not answer may not read either."""
        self.send_nowait(envelope.notification(CANCELLED, {"requestId": request_id, "reason": reason}))

    async def notify(self, method: str, params: Members = NO_PARAMS) -> None:
        """Send a notification; it is dropped when the connection is lost."""
        await self.send(envelope.notification(method, params))

    async def send(self, frame: bytes) -> None:
        """Send a frame that has no response; it is dropped when the connection is lost."""
        try:
            await self._attached.send(frame)
        except ConnectionError:
            logger.debug("%s: dropped a message, the connection is closed", self.server)

    def send_nowait(self, frame: bytes) -> None:
        """Send such a frame without waiting; it may also be dropped when the server does not read."""
        with contextlib.suppress(ConnectionError):
            self._attached.send_nowait(frame)

    def close(self, cause: str, stderr: Sequence[str] = ()) -> None:
        """Fail every pending request: the connection is lost because of the first `cause` given.

        `stderr` has the last lines of a program that has ended.
        """
        self._closed = self._closed or cause
        for pending in tuple(self._pending.by_id.values()):
            if pending.done:
                continue
            if pending.sending is None:
                pending.fail(self._interrupted(pending, cause, stderr))
            else:
                pending.fail(self._unsent(cause))
                pending.sending.cancel()

    def waits_for(self, request_id: envelope.RequestId) -> bool:
        """Return whether a request is still without a response."""
        return self._pending.find(request_id) is not None

    def fail(self, request_id: envelope.RequestId, error: DownstreamError) -> None:
        """Fail one request, on behalf of a channel that knows single requests."""
        if (pending := self._pending.find(request_id)) is not None:
            pending.fail(error)

    def interrupt(self, request_id: envelope.RequestId, cause: str) -> None:
        """Fail one request whose part of the channel is lost: it may have run."""
        if (pending := self._pending.find(request_id)) is not None:
            pending.fail(self._interrupted(pending, cause))

    def _unsent(self, cause: str) -> DisconnectedError:
        return DisconnectedError(self.server, self._closed or cause)

    def _interrupted(self, pending: _Pending, cause: str, stderr: Sequence[str] = ()) -> CallInterruptedError:
        return CallInterruptedError(self.server, pending.subject, self._closed or cause, stderr)

    def receive(self, frame: bytes | Oversized) -> None:
        if isinstance(frame, Oversized):
            self._reject(frame.head, frame.tail, f"with {frame}")
            return
        try:
            message = envelope.decode_from_server(frame)
        except envelope.MalformedError as error:
            self._reject_malformed(frame, error)
            return
        self._take(message, frame)

    async def receive_large(self, frame: bytes) -> None:
        """Take one frame that may be large from the channel."""
        try:
            message = await envelope.decode_any(frame, envelope.decode_from_server)
        except envelope.MalformedError as error:
            self._reject_malformed(frame, error)
        else:
            self._take(message, frame)

    def _take(self, message: envelope.Envelope, frame: bytes) -> None:
        self._silent_since = None
        if message.method is UNSET:
            self._receive_response(message, frame)
            return
        self._bad_lines = 0
        if message.id is UNSET or message.id is None:
            self._receive_notification(message.method, members_of_notification(message.params))
        elif isinstance(message.id, float):
            logger.debug("%s: ignored a request with the id %s", self.server, message.id)
        elif (own := self._pending.find(message.id)) and own.method == message.method != "ping":
            # A program that repeats its input.
            own.fail(BadAnswerError(self.server, "with what it was sent, so it is no MCP server"))
        else:
            self.server_requests.take(message.id, message.method, message.params, len(frame))

    def _receive_response(self, message: envelope.Envelope, frame: bytes) -> None:
        pending = self._pending.find(message.id)
        if pending is None:
            if message.result is UNSET and message.error is UNSET:
                self._count_bad_line(frame)
            return
        self._bad_lines = 0
        try:
            result = result_of(self.server, message)
        except DownstreamError as error:
            pending.fail(error)
        else:
            pending.answer(result)

    def _receive_notification(self, method: str, params: Members) -> None:
        if method == "notifications/progress":
            pending = self._pending.find(_scalar(params.get("progressToken")))
            if pending is not None:
                self._pending.extend(pending)
                if pending.outgoing.on_notification is not None:
                    pending.outgoing.on_notification(method, params)
            return
        listening = self._pending.find(_scalar(eras.meta_of(params).get(eras.SUBSCRIPTION_KEY)))
        if listening is not None and listening.outgoing.on_notification is not None:
            listening.outgoing.on_notification(method, params)
        elif method == CANCELLED:
            self.server_requests.cancel(params)
        else:
            self._on_notification(method, params)

    def _reject_malformed(self, frame: bytes, error: envelope.MalformedError) -> None:
        self._reject(frame, frame, f"with a message that cannot be read ({error})")

    def _reject(self, head: bytes, tail: bytes, why: str) -> None:
        """Fail the request that an unusable frame answers, or count the frame as noise."""
        pending = self._pending.find(envelope.salvage_id(head, tail))
        if pending is None:
            self._count_bad_line(head)
        else:
            pending.fail(BadAnswerError(self.server, why))

    def _count_bad_line(self, line: bytes) -> None:
        self._bad_lines += 1
        self._on_stray(line)
        self._give_up_noise()

    def _give_up_noise(self) -> None:
        # A fast server has sent all its lines before the channel is attached.
        if self._bad_lines >= BAD_LINES and self._channel is not None:
            self._channel.give_up(f"sent {BAD_LINES:,} lines in a row that are no messages")


def result_of(server: str, message: envelope.Envelope) -> bytes:
    """Return the encoded result in a response.

    Raises `DownstreamError` if the server answered with an error, or with no result.
    """
    if message.error is not UNSET:
        error = envelope.decode_error(message.error)
        raise RemoteError(server, error.code, error.message, None if error.data is UNSET else error.data)
    # A copy: the Raw view would keep the whole frame alive.
    result = b"" if message.result is UNSET else bytes(message.result)
    if not result.startswith(b"{"):
        raise BadAnswerError(server, "without a result object")
    return result


class ServerRequests:
    """The open requests that one server has made on one connection, each answered in a task of its own."""

    def __init__(self, peer: Peer, group: TaskGroup, answer: Answer, limits: Limits) -> None:
        self._peer, self._group, self._answer = peer, group, answer
        self._seconds, self._most_bytes = limits.ask_seconds, limits.message_bytes
        self._open: dict[envelope.RequestId, anyio.CancelScope] = {}
        self._bytes, self._rate = 0, Bucket(REQUESTS_PER_SECOND, REQUESTS_AT_ONCE)
        self._all_answered = anyio.Event()
        self.taken = 0

    async def wait_all_answered(self) -> None:
        while self._open:
            self._all_answered = anyio.Event()
            await self._all_answered.wait()

    def take(self, request_id: envelope.RequestId, method: str, params: Raw | UnsetType, size: int) -> None:
        """Answer a request of `size` bytes in a task of its own, or refuse it if too many are open.

        One that comes faster than any server asks is not even refused.
        """
        if not self._rate.take():
            logger.debug("%s: dropped a %s request: too many a second", self._peer.server, quoted(method))
            return
        too_large = self._bytes + size > self._most_bytes
        if request_id in self._open or len(self._open) >= OPEN_REQUESTS or too_large:
            # Without waiting for a server that does not read.
            text = "too many requests are open"
            self._peer.send_nowait(envelope.error_reply(request_id, envelope.INVALID_REQUEST, text))
            return
        self.taken += 1
        self._bytes += size
        self._open[request_id] = anyio.CancelScope()
        self._group.start_soon(self._reply, request_id, method, params, size)

    def cancel(self, params: Members) -> None:
        """Stop answering the request that the server cancelled; no response is sent."""
        target = _scalar(params.get("requestId"))
        scope = self._open.get(target) if isinstance(target, int | str) else None
        if scope is not None:
            scope.cancel()

    async def _reply(
        self, request_id: envelope.RequestId, method: str, params: Raw | UnsetType, size: int
    ) -> None:
        try:
            with self._open[request_id]:
                large = isinstance(params, Raw) and len(params) > envelope.TAKEN_APART_BYTES
                members = await in_thread_if(large, _members, params)
                try:
                    with anyio.fail_after(self._seconds):
                        result = await self._answer(self._peer, method, members)
                    frame = envelope.reply(request_id, result)
                except envelope.RequestError as error:
                    frame = envelope.error_reply(request_id, error.code, error.message, error.data)
                except TimeoutError:
                    text = f"the client did not answer {method} within {self._seconds:g} s"
                    frame = envelope.error_reply(request_id, envelope.INTERNAL_ERROR, text)
                await self._peer.send(frame)
        finally:
            del self._open[request_id]
            self._bytes -= size
            if not self._open:
                self._all_answered.set()


def members_of_notification(params: Raw | UnsetType) -> Members:
    """Return the params of a notification; those that are too large as one member, unread, to be dropped."""
    if isinstance(params, Raw) and len(params) > NOTIFICATION_BYTES:
        return {"": params}
    return _members(params)


def _members(params: Raw | UnsetType) -> Members:
    if not isinstance(params, Raw) or envelope.holds_a_flood(params):
        return {}
    return envelope.members_of(params)


def _scalar(raw: Raw | None) -> float | str | None:
    return envelope.text(raw) or envelope.number(raw)


def _echoed(request_id: object) -> int | None:
    """Return the number that a string or a float is, as some servers echo one; None if it is none."""
    if isinstance(request_id, str) and len(request_id) <= ID_DIGITS and request_id.isdecimal():
        return int(request_id)
    return int(request_id) if isinstance(request_id, float) and request_id.is_integer() else None


class _PendingRequests:
    """All pending requests of one peer: correlates them by id, enforces and pauses their timeouts.

    One timer is enough for all: it is set to the earliest deadline, and looks at all of them when it comes.
    """

    def __init__(self, server: str, call_seconds: float, call_max_seconds: float) -> None:
        self._server = server
        self._call_seconds, self._call_max_seconds = call_seconds, call_max_seconds
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.ids = count(1)
        self.by_id: dict[int, _Pending] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        """Time of the next look at the deadlines."""

    def find(self, request_id: object) -> _Pending | None:
        """Return the request with this id if its caller still waits."""
        number = request_id if isinstance(request_id, int) else _echoed(request_id)
        pending = None if number is None else self.by_id.get(number)
        return None if pending is None or pending.done else pending

    def add(self, method: str, outgoing: Outgoing) -> _Pending:
        timeout = outgoing.timeout if outgoing.timeout is not None else self._call_seconds
        pending = _Pending(next(self.ids), method, outgoing, timeout)
        now = self._loop.time()
        pending.give_up_at = now + (timeout if timeout > self._call_max_seconds else self._call_max_seconds)
        self.by_id[pending.id] = pending
        self._give_until(pending, now + timeout)
        return pending

    def extend(self, pending: _Pending) -> None:
        """Restart the timeout of a request, up to the bound that nothing extends."""
        if not pending.holds:
            self._give_until(pending, min(self._loop.time() + pending.timeout, pending.give_up_at))

    def _give_until(self, pending: _Pending, deadline: float) -> None:
        pending.deadline = deadline
        if deadline < self._looks_at:
            self._look_at(deadline)

    def _look_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = deadline
        self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """Give up the requests whose time is over, and look again when the next one's is."""
        over = self._looks_at
        self._timer, self._looks_at = None, math.inf
        for pending in tuple(self.by_id.values()):
            if pending.done:
                continue
            if pending.deadline <= over:
                pending.fail(CallTimeoutError(self._server, pending.subject, pending.timeout))
                if pending.sending is not None:
                    pending.sending.cancel()
            elif pending.deadline < math.inf:
                self._give_until(pending, pending.deadline)

    @contextlib.contextmanager
    def held(self, party: Party | None) -> Iterator[None]:
        """Pause the timeouts of a party's requests while the party is being asked for something."""
        held = [each for each in self.by_id.values() if party is not None and each.outgoing.party is party]
        for pending in held:
            if pending.holds == 0:
                pending.held_since = self._loop.time()
            pending.holds += 1
            pending.deadline = math.inf
        try:
            yield
        finally:
            for pending in held:
                pending.holds -= 1
                if pending.holds == 0 and not pending.done:
                    pending.give_up_at += self._loop.time() - pending.held_since
                    self.extend(pending)


class _Pending(Reply[bytes]):
    """One pending request: the reply that its caller awaits, its timeout, and its state."""

    deadline = give_up_at = math.inf
    holds = 0
    """Open requests of the server to the client; the timeout is paused while there are any."""
    held_since = 0.0
    sending: anyio.CancelScope | None = None
    """Set while the request waits for the channel to take it."""

    def __init__(self, request_id: int, method: str, outgoing: Outgoing, timeout: float) -> None:
        self.id, self.method, self.outgoing, self.timeout = request_id, method, outgoing, timeout

    @property
    def subject(self) -> str:
        return self.outgoing.subject or "a request"
