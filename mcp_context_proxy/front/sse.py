"""HTTP+SSE, the transport before streamable HTTP: a stream is the way to a host, which posts beside it.

The stream carries frames as they are; what waits for it counts as unsent on its connection.
"""

from __future__ import annotations

import secrets
from collections import deque
from http import HTTPStatus

import anyio
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front import http_requests
from mcp_context_proxy.front.conversation import Conversation
from mcp_context_proxy.front.http_connections import PART_BYTES, Waiting, send_body, waiting_of
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR
from mcp_context_proxy.protocol.framing import on_one_line
from mcp_context_proxy.server.sdk import SdkServer, principal_of

MESSAGES_PATH = "/messages/"

PING_SECONDS = 15.0
"""Between two signs of life on a stream that is silent, for who stands between and closes what is."""

PING = b": ping\r\n\r\n"

QUEUED_BYTES = 64 * 1024
"""Waiting already when what may be dropped is: as much as is written to a connection ahead."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class _Frame:
    """One that waits to be sent."""

    __slots__ = ("content", "sent")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.sent = anyio.Event()


class EventChannel:
    """Writes frames to an event stream. Implements `Channel`."""

    def __init__(self, write: Send, waiting: Waiting) -> None:
        """Write by ASGI messages; `waiting` is told by how many bytes more, or less, there is to send."""
        self._write, self._waiting = write, waiting
        self._frames: deque[_Frame] = deque()
        self._bytes = 0
        self._news = anyio.Event()

    async def send(self, frame: bytes) -> None:
        """Send one frame; waits until the connection takes it."""
        queued = self._put(frame)
        # A cancellation keeps what is here until it is collected, which may be long.
        del frame
        try:
            await queued.sent.wait()
        except anyio.get_cancelled_exc_class():
            if queued in self._frames:
                self._frames.remove(queued)
                self._count(-len(queued.content))
            queued.content = b""
            raise

    def send_nowait(self, frame: bytes) -> bool:
        """Send one frame soon, unless too much waits already."""
        if self._bytes > QUEUED_BYTES:
            return False
        self._put(frame)
        return True

    def pause_reading(self) -> None:
        """Each message comes by a request of its own: there is nothing to pause."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    async def deliver(self) -> None:
        """Write what is sent until cancelled."""
        while True:
            with anyio.move_on_after(PING_SECONDS):
                await self._news.wait()
            self._news = anyio.Event()
            if not self._frames:
                await self._write({"type": "http.response.body", "body": PING, "more_body": True})
            while self._frames:
                await self._deliver_first()

    async def _deliver_first(self) -> None:
        frame = self._frames[0]
        await self._event("message", frame.content)
        self._frames.popleft()
        self._count(-len(frame.content))
        frame.sent.set()

    async def open(self, endpoint: str) -> None:
        """Begin the stream by telling where messages are posted."""
        await self._write({"type": "http.response.start", "status": HTTPStatus.OK, "headers": STREAM_HEADERS})
        await self._event("endpoint", endpoint.encode())

    async def _event(self, name: str, data: bytes) -> None:
        line = on_one_line(data)
        event = b"event: %b\r\ndata: " % name.encode(), line, b"\r\n\r\n"
        for piece in event if len(line) > PART_BYTES else [b"".join(event)]:
            await send_body(self._write, piece, lambda more: None, more=True)

    def _put(self, frame: bytes) -> _Frame:
        queued = _Frame(frame)
        self._frames.append(queued)
        self._count(len(frame))
        self._news.set()
        return queued

    def _count(self, more: int) -> None:
        self._bytes += more
        self._waiting(more)


class EventStreams:
    """All open streams."""

    def __init__(self, server: SdkServer, limits: Limits) -> None:
        self._server, self._limits = server, limits
        self._open: dict[str, Conversation] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI application that opens a stream, and serves its host until it goes away."""
        if scope["method"] != "GET":
            await Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET"})(scope, receive, send)
            return
        name = secrets.token_hex(16)
        channel = EventChannel(send, waiting_of(scope))
        principal = principal_of(Headers(scope=scope))
        conversation = Conversation(
            gateway=self._server.gateway,
            limits=self._limits,
            channel=channel,
            write_response=channel.send,
            principal=principal,
        )
        await channel.open(f"{scope.get('root_path', '')}{MESSAGES_PATH}?session_id={name}")
        async with anyio.create_task_group() as group:
            await group.start(conversation.run, self._server)
            group.start_soon(channel.deliver)
            self._open[name] = conversation
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            finally:
                del self._open[name]
                group.cancel_scope.cancel()

    async def message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI application that takes a message for a stream."""
        try:
            body = await http_requests.whole(receive)
            message = http_requests.read(body)
        except http_requests.GoneError:
            return
        except http_requests.BadMessageError as error:
            refused = Response(error.reply, HTTPStatus.BAD_REQUEST, media_type=http_requests.JSON_TYPE)
            await refused(scope, receive, send)
            return
        conversation = self._conversation(scope)
        if isinstance(conversation, Response):
            await conversation(scope, receive, send)
            return
        if conversation.is_busy:
            text = "busy: too many requests are under way"
            refused = http_requests.failure(HTTPStatus.SERVICE_UNAVAILABLE, INTERNAL_ERROR, text)
            await refused(scope, receive, send)
            return
        released = conversation.take(message, body)
        await Response("Accepted", HTTPStatus.ACCEPTED)(scope, receive, send)
        if released is not None and len(body) > http_requests.SMALL_BYTES:
            # It has its room until then.
            await released.wait()

    def _conversation(self, scope: Scope) -> Conversation | Response:
        """That which a message belongs to; else what is answered."""
        if scope["method"] != "POST":
            return Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "POST"})
        kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        if kind != http_requests.JSON_TYPE:
            return Response(f"A message is {http_requests.JSON_TYPE}.\n", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        name = QueryParams(scope["query_string"]).get("session_id")
        if name is None:
            return Response("session_id is required", HTTPStatus.BAD_REQUEST)
        return self._open.get(name) or Response("Could not find session", HTTPStatus.NOT_FOUND)
