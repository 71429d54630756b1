"""One JSON-RPC peer over a duplex channel of frames (stdio, SSE, handshake-era HTTP).

Frames are handed in synchronously by whoever reads the channel, so that a reply resumes its caller
without another task in between. Ids are minted here, from a counter: a foreign, late or doubled reply
finds nobody waiting and is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import anyio
from msgspec import UNSET, Raw

from mcp_context_proxy.downstream.link import PLAIN, Notify, Outgoing, Party
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    CallTimeoutError,
    DownstreamError,
    RemoteError,
    ServerUnavailableError,
)
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import NO_PARAMS, Members
from mcp_context_proxy.wire.era import Era
from mcp_context_proxy.wire.framing import Oversized

logger = logging.getLogger(__name__)

BAD_LINES_LOGGED = 3
"""Lines that are not messages are common (banners, stray prints); more than a few tell nothing new."""

BAD_LINES = 1000
"""So many in a row without a message, and what speaks there is no MCP server."""

BAD_LINE_SHOWN = 120
"""Characters of such a line that are logged."""


class Channel(Protocol):
    """Carries frames to the other side."""

    async def send(self, frame: bytes) -> None:
        """Send one frame; waits while the other side does not read.

        Raises:
            ConnectionError: the channel is closed.
        """
        ...

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame without waiting; it may be dropped when the other side does not read."""
        ...

    def give_up(self, cause: str) -> None:
        """Treat the channel as lost."""
        ...


class _NoChannel:
    """Stands in until a peer is attached."""

    async def send(self, frame: bytes) -> None:
        raise ConnectionError("is not connected yet")

    def send_nowait(self, frame: bytes) -> None:
        del frame

    def give_up(self, cause: str) -> None:
        del cause


class _Pending:
    """A request under way: its caller's future, its deadline, and where its notifications go."""

    __slots__ = ("future", "give_up_at", "held_since", "holds", "outgoing", "sending", "timeout", "timer")

    def __init__(
        self, future: asyncio.Future[Raw], outgoing: Outgoing, timeout: float, give_up_at: float
    ) -> None:
        self.future, self.outgoing, self.timeout, self.give_up_at = future, outgoing, timeout, give_up_at
        self.timer: asyncio.TimerHandle | None = None
        self.holds = 0
        """Questions of the server that are open: while there are any, no time passes for the request."""
        self.held_since = 0.0
        self.sending: anyio.CancelScope | None = None
        """While the request waits for the channel to take it."""


class Peer:
    """Sends requests over a channel and matches what comes back. Implements `Link`."""

    def __init__(
        self,
        server: str,
        *,
        call_seconds: float,
        call_max_seconds: float,
        on_request: Callable[[envelope.RequestId, str, Members], None],
        on_notification: Notify,
    ) -> None:
        """Prepare a peer; `attach` gives it the channel.

        Args:
            server: Name of the server, for messages.
            call_seconds: Default time limit of a request.
            call_max_seconds: Upper bound that progress cannot extend.
            on_request: Takes a request that the server makes; answer it with `answer` or `refuse`.
            on_notification: Takes notifications that belong to no request.
        """
        self.era = Era.HANDSHAKE
        self.server = server
        self._channel: Channel = _NoChannel()
        self._call_seconds, self._call_max_seconds = call_seconds, call_max_seconds
        self._on_request, self._on_notification = on_request, on_notification
        self._loop = asyncio.get_running_loop()
        self._next_id = 0
        self._pending: dict[int, _Pending] = {}
        self._bad_lines = 0
        self._good_at = 0
        """How many bad lines there had been when the last message came."""
        self._closed: str | None = None

    def attach(self, channel: Channel) -> None:
        """Send over `channel` from now on."""
        self._channel = channel

    @property
    def in_flight(self) -> list[Outgoing]:
        """What goes with each request that is under way."""
        return [pending.outgoing for pending in self._pending.values()]

    @contextlib.contextmanager
    def held(self, party: Party | None) -> Iterator[None]:
        """Let no time pass for the requests of one party: somebody is being asked on their behalf."""
        held = [each for each in self._pending.values() if party is not None and each.outgoing.party is party]
        for pending in held:
            self._hold(pending)
        try:
            yield
        finally:
            for pending in held:
                self._release(pending)

    async def request(self, method: str, params: Members = NO_PARAMS, outgoing: Outgoing = PLAIN) -> Raw:
        """Send a request and return its result as it came; see `Link.request`."""
        if self._closed is not None:
            raise ServerUnavailableError(self.server, "disconnected", self._closed)
        self._next_id += 1
        request_id = self._next_id
        pending = self._register(request_id, outgoing)
        down = era.downward(
            params,
            self.era,
            capabilities=outgoing.capabilities,
            client_info=outgoing.client_info,
            log_level=outgoing.log_level,
            progress_token=request_id if outgoing.wants_progress else None,
        )
        try:
            await self._send(envelope.request(request_id, method, down), pending)
            return await pending.future
        except ConnectionError as error:
            raise self._interrupted(outgoing, str(error)) from None
        except CallTimeoutError:
            if pending.sending is None:
                self._cancel(request_id, "the deadline passed")
            raise
        except asyncio.CancelledError:
            if pending.sending is None:
                self._loop.call_soon(self._cancel, request_id, "the client cancelled")
            raise
        finally:
            self._forget(request_id)

    async def _send(self, frame: bytes, pending: _Pending) -> None:
        """Send within the time limit of the request: a server that stops reading holds nobody longer."""
        pending.sending = anyio.CancelScope()
        with pending.sending:
            await self._channel.send(frame)
            pending.sending = None

    async def notify(self, method: str, params: Members = NO_PARAMS) -> None:
        """Send a notification; it is dropped when the connection is lost."""
        try:
            await self._channel.send(envelope.notification(method, params))
        except ConnectionError:
            logger.debug("%s: dropped %s, the connection is closed", self.server, method)

    async def answer(self, request_id: envelope.RequestId, result: bytes) -> None:
        """Answer a request that the server made."""
        await self._reply(envelope.reply(request_id, result))

    async def refuse(self, request_id: envelope.RequestId, code: int, message: str, data: Any = None) -> None:
        """Refuse a request that the server made."""
        await self._reply(envelope.error_reply(request_id, code, message, data))

    async def _reply(self, frame: bytes) -> None:
        try:
            await self._channel.send(frame)
        except ConnectionError:
            logger.debug("%s: dropped a reply, the connection is closed", self.server)

    def close(self, cause: str) -> None:
        """Fail every request under way: the connection is lost because of `cause`."""
        self._closed = cause
        for pending in list(self._pending.values()):
            if not pending.future.done():
                pending.future.set_exception(self._interrupted(pending.outgoing, cause))

    def waits_for(self, request_id: envelope.RequestId) -> bool:
        """Whether a request has no answer yet."""
        return self._waiting(request_id) is not None

    def fail(self, request_id: envelope.RequestId, error: DownstreamError) -> None:
        """Fail one request, as the channel has to where it knows of single requests."""
        pending = self._waiting(request_id)
        if pending is not None:
            pending.future.set_exception(error)

    def interrupt(self, request_id: envelope.RequestId, cause: str) -> None:
        """Fail one request whose part of the channel is lost: it may have run."""
        pending = self._waiting(request_id)
        if pending is not None:
            pending.future.set_exception(self._interrupted(pending.outgoing, cause))

    def _interrupted(self, outgoing: Outgoing, cause: str) -> CallInterruptedError:
        return CallInterruptedError(self.server, outgoing.subject or "a request", self._closed or cause)

    def receive(self, frame: bytes | Oversized) -> None:
        """Take one frame from the channel."""
        if isinstance(frame, Oversized):
            size = f"{frame.size:,} bytes, over the limit of {frame.limit:,} for a message"
            self._reject(frame.head, frame.tail, f"with {size}")
            return
        try:
            message = envelope.decode(frame)
        except envelope.MalformedError as error:
            self._reject(frame, frame, f"with a message that cannot be read ({error})")
            return
        if message.method is UNSET:
            self._receive_reply(message, frame)
            return
        self._good_at = self._bad_lines
        if message.id is UNSET or message.id is None:
            self._receive_notification(message.method, _members(message.params))
        elif isinstance(message.id, float):
            logger.debug("%s: ignored a request with the id %s", self.server, message.id)
        else:
            self._on_request(message.id, message.method, _members(message.params))

    def _receive_reply(self, message: envelope.Envelope, frame: bytes) -> None:
        pending = self._waiting(message.id)
        if pending is None:
            if message.result is UNSET and message.error is UNSET:
                self._count_bad_line(frame)
            return
        self._good_at = self._bad_lines
        if message.error is not UNSET:
            error = envelope.decode_error(message.error)
            data = None if error.data is UNSET else error.data
            pending.future.set_exception(RemoteError(self.server, error.code, error.message, data))
        elif message.result is UNSET or not bytes(message.result).startswith(b"{"):
            pending.future.set_exception(BadAnswerError(self.server, "without a result object"))
        else:
            # A copy: the Raw view would keep the whole frame alive.
            pending.future.set_result(message.result.copy())

    def _receive_notification(self, method: str, params: Members) -> None:
        if method == "notifications/progress":
            pending = self._waiting(_number(params.get("progressToken")))
            if pending is not None:
                self._extend(pending)
                if pending.outgoing.on_notification is not None:
                    pending.outgoing.on_notification(method, params)
            return
        listening = self._waiting(_number(era.meta_of(params).get(era.SUBSCRIPTION_KEY)))
        if listening is not None and listening.outgoing.on_notification is not None:
            listening.outgoing.on_notification(method, params)
        else:
            self._on_notification(method, params)

    def _reject(self, head: bytes, tail: bytes, why: str) -> None:
        """A frame is unusable: fail the request it answers at once, or count it as noise."""
        pending = self._waiting(envelope.salvage_id(head, tail))
        if pending is None:
            self._count_bad_line(head)
        else:
            pending.future.set_exception(BadAnswerError(self.server, why))

    def _count_bad_line(self, line: bytes) -> None:
        self._bad_lines += 1
        if self._bad_lines <= BAD_LINES_LOGGED:
            shown = line[:BAD_LINE_SHOWN].decode("utf-8", "replace")
            logger.warning("%s: skipped a line that is not a message: %r", self.server, shown)
        if self._bad_lines - self._good_at == BAD_LINES:
            self._channel.give_up(f"sent {BAD_LINES:,} lines in a row that are no messages")

    def _waiting(self, request_id: object) -> _Pending | None:
        """The request under way by that id; a number in a string is how some servers echo it."""
        if isinstance(request_id, str) and request_id.isdecimal():
            request_id = int(request_id)
        if isinstance(request_id, float) and request_id.is_integer():
            request_id = int(request_id)
        pending = self._pending.get(request_id) if isinstance(request_id, int) else None
        return None if pending is None or pending.future.done() else pending

    def _register(self, request_id: int, outgoing: Outgoing) -> _Pending:
        timeout = outgoing.timeout if outgoing.timeout is not None else self._call_seconds
        give_up_at = self._loop.time() + max(timeout, self._call_max_seconds)
        pending = _Pending(self._loop.create_future(), outgoing, timeout, give_up_at)
        pending.timer = self._loop.call_later(timeout, self._expire, pending)
        self._pending[request_id] = pending
        return pending

    def _hold(self, pending: _Pending) -> None:
        if pending.holds == 0:
            pending.held_since = self._loop.time()
        pending.holds += 1
        if pending.timer is not None:
            pending.timer.cancel()

    def _release(self, pending: _Pending) -> None:
        pending.holds -= 1
        if pending.holds == 0 and not pending.future.done():
            pending.give_up_at += self._loop.time() - pending.held_since
            self._extend(pending)

    def _extend(self, pending: _Pending) -> None:
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.holds:
            return
        when = min(self._loop.time() + pending.timeout, pending.give_up_at)
        pending.timer = self._loop.call_at(when, self._expire, pending)

    def _expire(self, pending: _Pending) -> None:
        if not pending.future.done():
            subject = pending.outgoing.subject or "a request"
            pending.future.set_exception(CallTimeoutError(self.server, subject, pending.timeout))
            if pending.sending is not None:
                pending.sending.cancel()

    def _forget(self, request_id: int) -> None:
        pending = self._pending.pop(request_id)
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.future.done() and not pending.future.cancelled():
            pending.future.exception()  # retrieved, so that nothing is logged for an abandoned caller

    def _cancel(self, request_id: int, reason: str) -> None:
        """Tell the server; without waiting, since one that does not answer may not read either."""
        params = {"requestId": request_id, "reason": reason}
        with contextlib.suppress(ConnectionError):
            self._channel.send_nowait(envelope.notification("notifications/cancelled", params))


def _members(params: Raw | Any) -> Members:
    if params is UNSET:
        return {}
    try:
        return envelope.members(params)
    except ValueError:
        return {}


def _number(raw: Raw | None) -> object:
    return None if raw is None else envelope.value(raw)
