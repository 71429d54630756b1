"""One JSON-RPC peer over a duplex channel of frames (stdio, SSE, handshake-era HTTP).

Frames are handed in synchronously by whoever reads the channel, so that a reply resumes its caller
without another task in between. What answers nothing that was asked is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import anyio
from msgspec import UNSET, Raw

from mcp_context_proxy.downstream.channel import Channel, NoChannel
from mcp_context_proxy.downstream.link import PLAIN, Notify, Outgoing, Party
from mcp_context_proxy.downstream.output import Strays
from mcp_context_proxy.downstream.pending import Pending, PendingRequests
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    CallTimeoutError,
    DisconnectedError,
    DownstreamError,
    RemoteError,
)
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import NO_PARAMS, Members
from mcp_context_proxy.wire.era import Era
from mcp_context_proxy.wire.framing import Oversized

logger = logging.getLogger(__name__)

BAD_LINES = 1000
"""So many in a row without a message, and what speaks there is no MCP server."""


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
        strays: Strays,
    ) -> None:
        """Prepare a peer; `attach` gives it the channel.

        Args:
            server: Name of the server, for messages.
            call_seconds: Default time limit of a request.
            call_max_seconds: Upper bound that progress cannot extend.
            on_request: Takes a request that the server makes; answer it with `answer` or `refuse`.
            on_notification: Takes notifications that belong to no request.
            strays: Takes what is no message.
        """
        self.era = Era.HANDSHAKE
        self.server = server
        self._channel: Channel = NoChannel()
        self._pending = PendingRequests(server, call_seconds, call_max_seconds)
        self._on_request, self._on_notification = on_request, on_notification
        self._strays = strays
        self._bad_lines = 0
        """Since the last message."""
        self._closed: str | None = None

    def attach(self, channel: Channel) -> None:
        """Send over `channel` from now on."""
        self._channel = channel

    @property
    def in_flight(self) -> list[Outgoing]:
        """What goes with each request that is under way."""
        return self._pending.sent

    def held(self, party: Party | None) -> AbstractContextManager[None]:
        """Let no time pass for the requests of one party: somebody is being asked on their behalf."""
        return self._pending.held(party)

    async def request(self, method: str, params: Members = NO_PARAMS, outgoing: Outgoing = PLAIN) -> bytes:
        """Send a request and return its result as it came; see `Link.request`."""
        if self._closed is not None:
            raise self._unsent(self._closed)
        pending = self._pending.add(method, outgoing)
        down = era.downward(
            params,
            self.era,
            capabilities=outgoing.capabilities,
            client_info=outgoing.client_info,
            log_level=outgoing.log_level,
            progress_token=pending.id if outgoing.wants_progress else None,
        )
        try:
            await self._send(envelope.request(pending.id, method, down), pending)
            return await pending.result()
        except ConnectionError as error:
            raise self._unsent(str(error)) from None
        except CallTimeoutError:
            if pending.sending is None:
                self._cancel(pending.id, "the deadline passed")
            raise
        except asyncio.CancelledError:
            if pending.sending is None:
                asyncio.get_running_loop().call_soon(self._cancel, pending.id, "the client cancelled")
            raise
        finally:
            self._pending.remove(pending)

    async def _send(self, frame: bytes, pending: Pending) -> None:
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

    def refuse_nowait(self, request_id: envelope.RequestId, code: int, message: str) -> None:
        """Refuse one of more requests than are answered; a server that does not read hears nothing of it."""
        with contextlib.suppress(ConnectionError):
            self._channel.send_nowait(envelope.error_reply(request_id, code, message))

    async def _reply(self, frame: bytes) -> None:
        try:
            await self._channel.send(frame)
        except ConnectionError:
            logger.debug("%s: dropped a reply, the connection is closed", self.server)

    def close(self, cause: str) -> None:
        """Fail every request under way: the connection is lost because of `cause`, if that was not known."""
        self._closed = self._closed or cause
        for pending in self._pending.waiting():
            if pending.sending is None:
                pending.fail(self._interrupted(pending, cause))
            else:
                pending.fail(self._unsent(cause))
                pending.sending.cancel()

    def waits_for(self, request_id: envelope.RequestId) -> bool:
        """Whether a request has no answer yet."""
        return self._pending.find(request_id) is not None

    def fail(self, request_id: envelope.RequestId, error: DownstreamError) -> None:
        """Fail one request, as the channel has to where it knows of single requests."""
        pending = self._pending.find(request_id)
        if pending is not None:
            pending.fail(error)

    def interrupt(self, request_id: envelope.RequestId, cause: str) -> None:
        """Fail one request whose part of the channel is lost: it may have run."""
        pending = self._pending.find(request_id)
        if pending is not None:
            pending.fail(self._interrupted(pending, cause))

    def _unsent(self, cause: str) -> DisconnectedError:
        return DisconnectedError(self.server, self._closed or cause)

    def _interrupted(self, pending: Pending, cause: str) -> CallInterruptedError:
        return CallInterruptedError(self.server, pending.subject, self._closed or cause)

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
        self._bad_lines = 0
        if message.id is UNSET or message.id is None:
            self._receive_notification(message.method, _members(message.params))
        elif isinstance(message.id, float):
            logger.debug("%s: ignored a request with the id %s", self.server, message.id)
        elif (pending := self._echoed(message.id, message.method)) is not None:
            pending.fail(BadAnswerError(self.server, "with what it was sent, so it is no MCP server"))
        else:
            self._on_request(message.id, message.method, _members(message.params))

    def _echoed(self, request_id: envelope.RequestId, method: str) -> Pending | None:
        """Our own request, where the server makes it back to us, as a program does that repeats its input."""
        pending = self._pending.find(request_id)
        return pending if pending is not None and pending.method == method != "ping" else None

    def _receive_reply(self, message: envelope.Envelope, frame: bytes) -> None:
        pending = self._pending.find(message.id)
        if pending is None:
            if message.result is UNSET and message.error is UNSET:
                self._count_bad_line(frame)
            return
        self._bad_lines = 0
        if message.error is not UNSET:
            error = envelope.decode_error(message.error)
            data = None if error.data is UNSET else error.data
            pending.fail(RemoteError(self.server, error.code, error.message, data))
        elif message.result is UNSET or not envelope.starts_with(message.result, b"{"):
            pending.fail(BadAnswerError(self.server, "without a result object"))
        else:
            # A copy: the Raw view would keep the whole frame alive.
            pending.answer(bytes(message.result))

    def _receive_notification(self, method: str, params: Members) -> None:
        if method == "notifications/progress":
            pending = self._pending.find(_number(params.get("progressToken")))
            if pending is not None:
                self._pending.extend(pending)
                if pending.outgoing.on_notification is not None:
                    pending.outgoing.on_notification(method, params)
            return
        listening = self._pending.find(_number(era.meta_of(params).get(era.SUBSCRIPTION_KEY)))
        if listening is not None and listening.outgoing.on_notification is not None:
            listening.outgoing.on_notification(method, params)
        else:
            self._on_notification(method, params)

    def _reject(self, head: bytes, tail: bytes, why: str) -> None:
        """A frame is unusable: fail the request it answers at once, or count it as noise."""
        pending = self._pending.find(envelope.salvage_id(head, tail))
        if pending is None:
            self._count_bad_line(head)
        else:
            pending.fail(BadAnswerError(self.server, why))

    def _count_bad_line(self, line: bytes) -> None:
        self._bad_lines += 1
        self._strays.add(line)
        if self._bad_lines == BAD_LINES:
            self._channel.give_up(f"sent {BAD_LINES:,} lines in a row that are no messages")

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
