"""The response to one posted request: JSON, or an event stream if something comes before the result.

Most requests are answered in the flight that received them, and nothing else is started for them. Once one
takes longer, or has something to tell or to ask meanwhile, two tasks accompany it: one sends what comes
before the result, the other waits for the client to leave, which cancels the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import anyio
from anyio.abc import TaskGroup
from starlette.types import Receive, Scope, Send

from mcp_context_proxy.front.http_connections import PART_BYTES, send_body, waiting_of
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members, RequestError, RequestId
from mcp_context_proxy.protocol.framing import on_one_line
from mcp_context_proxy.system.flights import Cancellable

logger = logging.getLogger(__name__)

Header = tuple[bytes, bytes]

JSON_HEADER: Final = (b"content-type", b"application/json")

STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]

PING: Final = b": ping\r\n\r\n"

PING_SECONDS: Final = 15.0
"""Time between two comments on a silent stream, which keep proxies in between from closing it."""

ALONE_SECONDS: Final = 0.05
"""Time after which a request is accompanied: most are answered before, and a client that leaves is noticed
soon enough."""

NOTIFICATIONS_QUEUED, NOTIFICATIONS_QUEUED_BYTES = 1024, 1 << 20
"""Notifications of one request that wait to be sent; more are dropped, as progress may be."""

CANCELLED: Final = -32800
"""Error code of a request that its client has cancelled. Its response has to end all the same."""


class Exchange:
    """One request and its response. Implements `FrameChannel` for notifications before the result."""

    __slots__ = (
        "_accompanied",
        "_added",
        "_bytes",
        "_delivered",
        "_finished",
        "_frames",
        "_group",
        "_headers",
        "_left",
        "_patience",
        "_receive",
        "_scope",
        "_send",
        "_sent",
        "_streaming",
        "_waiting",
        "_watching",
        "_why",
    )

    _added: anyio.Event
    """Set when a frame is queued, and at the end. This and the next three are made by `accompany`."""
    _sent: anyio.Event
    _delivered: anyio.Event
    _watching: anyio.CancelScope

    def __init__(
        self,
        *,
        scope: Scope,
        receive: Receive,
        send: Send,
        group: TaskGroup,
        headers: list[Header],
        patience: float,
    ) -> None:
        """Answer by `send`, with more headers; after `patience` seconds, what has no result yet is a stream.

        Tasks that accompany the request are started in `group`.
        """
        self._receive, self._send, self._waiting = receive, send, waiting_of(scope)
        self._group, self._headers, self._patience = group, headers, patience
        self._scope = Cancellable()
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._accompanied = self._streaming = self._finished = self._left = False
        self._why: RequestError | None = None

    async def answer(
        self,
        request_id: RequestId,
        work: Callable[[], Awaitable[bytes]],
        status_of: Callable[[int], HTTPStatus],
    ) -> None:
        """Send the result of `work`, or its error with the status that belongs to the error code."""
        timer = asyncio.get_running_loop().call_later(ALONE_SECONDS, self.accompany)
        result, error = None, None
        try:
            with self._scope:
                try:
                    result = await work()
                except RequestError as refused:
                    error = refused
            if self._left:
                return
            if result is not None:
                await self._finish(HTTPStatus.OK, envelope.reply_parts(request_id, result))
                return
            error = error or self._why or RequestError(CANCELLED, "the request was cancelled")
            frame = envelope.error_reply(request_id, error.code, error.message, error.data)
            await self._finish(status_of(error.code), (frame,))
        finally:
            timer.cancel()
            self._end_company()

    async def stream(self) -> None:
        """Send an event stream without a result, until the client leaves or it is ended."""
        self.accompany()
        try:
            with self._scope:
                await anyio.sleep_forever()
            if not self._left:
                await self._finish(HTTPStatus.OK, ())
        finally:
            self._end_company()

    def _end_company(self) -> None:
        self._finished = True
        if self._accompanied:
            self._added.set()
            self._sent.set()
            self._watching.cancel()

    def end(self, why: RequestError | None = None) -> None:
        """Give the request up; its response is this error, or says that it was cancelled."""
        self._why = why
        self._scope.cancel()

    async def send(self, frame: bytes) -> None:
        """Send a frame before the result; waits until the connection takes it."""
        self._put(frame)
        while self._frames and not self._finished:
            await self._sent.wait()

    def send_nowait(self, frame: bytes) -> bool:
        """Send a frame soon, unless too many wait already."""
        if self._has_room(len(frame)):
            self._put(frame)
            return True
        return False

    def notify(self, method: str, params: Members) -> None:
        """Send a notification soon, unless too many wait already; then it is not even encoded."""
        if self._has_room(sum(map(len, params.values()))):
            self._put(envelope.notification(method, params))

    def _has_room(self, size: int) -> bool:
        if len(self._frames) < NOTIFICATIONS_QUEUED and self._bytes + size <= NOTIFICATIONS_QUEUED_BYTES:
            return True
        logger.debug("dropped a notification: the client does not read")
        return False

    def accompany(self) -> None:
        """Start to send notifications before the result, and to watch the client."""
        if not self._accompanied and not self._finished:
            self._accompanied = True
            self._added, self._sent, self._delivered = anyio.Event(), anyio.Event(), anyio.Event()
            self._watching = anyio.CancelScope()
            self._group.start_soon(self._deliver)
            self._group.start_soon(self._watch)

    def _put(self, frame: bytes) -> None:
        if self._finished:
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self.accompany()
        self._added.set()

    async def _watch(self) -> None:
        with self._watching:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._left = True
            self._scope.cancel()

    async def _deliver(self) -> None:
        try:
            while not self._finished or self._frames:
                patience = PING_SECONDS if self._streaming else self._patience
                with anyio.move_on_after(patience) as silence:
                    await self._added.wait()
                self._added = anyio.Event()
                if self._finished and not self._frames:
                    return
                if not self._streaming:
                    await self._begin()
                elif silence.cancelled_caught:
                    await self._write(PING)
                await self._write_frames()
        except Exception:
            # boundary: a client that has gone must not fail the request that is still being answered
            logger.debug("a stream has broken off", exc_info=True)
        finally:
            self._delivered.set()

    async def _write_frames(self) -> None:
        while self._frames:
            await self._write_first()
        sent, self._sent = self._sent, anyio.Event()
        sent.set()

    async def _write_first(self) -> None:
        # A method of its own, so that no local variable keeps a frame that is sent while the stream is idle.
        for piece in _event(self._frames[0]):
            await self._write(piece)
        self._bytes -= len(self._frames.popleft())

    async def _begin(self) -> None:
        self._streaming = True
        headers = [*STREAM_HEADERS, *self._headers]
        await self._send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})

    async def _write(self, piece: bytes, *, more: bool = True) -> None:
        await send_body(self._send, piece, self._waiting, more=more)

    async def _finish(self, status: HTTPStatus, parts: tuple[bytes, ...]) -> None:
        """Send the response, after all that comes before it."""
        self._finished = True
        if self._accompanied:
            self._added.set()
            await self._delivered.wait()
        if self._streaming:
            for piece in _event(b"".join(parts)) if parts else ():
                await self._write(piece)
            await self._write(b"", more=False)
            return
        size = sum(map(len, parts))
        headers = [JSON_HEADER, (b"content-length", b"%d" % size), *self._headers]
        start = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(start)
        if size <= PART_BYTES:
            await self._send({"type": "http.response.body", "body": b"".join(parts), "more_body": False})
            return
        for part in parts[:-1]:
            await self._write(part)
        await self._write(parts[-1], more=False)


def event_of(frame: bytes) -> bytes:
    return b"".join(_event(frame))


def _event(frame: bytes) -> tuple[bytes, ...]:
    line = on_one_line(frame)
    event = b"event: message\r\ndata: ", line, b"\r\n\r\n"
    return event if len(line) > PART_BYTES else (b"".join(event),)
