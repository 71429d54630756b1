"""HTTP+SSE, the transport before streamable HTTP: an event stream to the host, which posts its messages.

The stream carries frames as they are; those that wait count as unsent bytes of its connection.
"""

from __future__ import annotations

import secrets
from collections import deque
from http import HTTPStatus

import anyio
from msgspec import Struct, field
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front import http_requests
from mcp_context_proxy.front.auth import principal_of, rights_of
from mcp_context_proxy.front.conversation import Conversation
from mcp_context_proxy.front.http_connections import PART_BYTES, Waiting, send_body, waiting_of
from mcp_context_proxy.front.http_exchange import PING, PING_SECONDS, STREAM_HEADERS
from mcp_context_proxy.front.http_requests import AdmissionRules
from mcp_context_proxy.front.http_sessions import UnknownSessions
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR
from mcp_context_proxy.protocol.framing import on_one_line
from mcp_context_proxy.server.negotiation import Negotiation

MESSAGES_PATH = "/messages/"

QUEUED_BYTES = 64 * 1024
"""Queued bytes beyond which notifications are dropped: as many as are written to a connection ahead."""


class EventStreams:
    """The open event streams, by session id, and the two ASGI applications that serve them."""

    def __init__(
        self, negotiation: Negotiation, limits: Limits, guesses: UnknownSessions, admission: AdmissionRules
    ) -> None:
        self._negotiation, self._limits, self._guesses = negotiation, limits, guesses
        self._admission = admission
        self._open: dict[str, tuple[str | None, Conversation]] = {}
        """Principal and conversation of each stream."""
        self.prefix = ""
        """Beginning of each id: the name of the replica that has the stream, where there are several."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a stream, and serve its host until it goes away."""
        if scope["method"] != "GET":
            await Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET"})(scope, receive, send)
            return
        session_id, principal = self.prefix + secrets.token_hex(16), principal_of(scope)
        channel = EventChannel(send, waiting_of(scope))
        conversation = Conversation(
            negotiation=self._negotiation,
            limits=self._limits,
            channel=channel,
            write_response=channel.send,
            rights=rights_of(scope),
        )
        await channel.open(f"{scope.get('root_path', '')}{MESSAGES_PATH}?session_id={session_id}")
        async with anyio.create_task_group() as group:
            await group.start(conversation.run)
            group.start_soon(channel.deliver)
            self._open[session_id] = principal, conversation
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            finally:
                del self._open[session_id]
                group.cancel_scope.cancel()

    async def message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a posted message for a stream."""
        try:
            body, message = await http_requests.read(receive)
        except http_requests.BadMessageError as error:
            await error.response(scope, receive, send)
            return
        conversation = self._conversation(scope)
        if isinstance(conversation, Response):
            await conversation(scope, receive, send)
            return
        refused = self._admission.refusal(scope, message)
        if refused is not None:
            await refused(scope, receive, send)
            return
        if conversation.is_busy:
            text, status = "busy: too many requests are under way", HTTPStatus.SERVICE_UNAVAILABLE
            await http_requests.error_response(status, None, text, INTERNAL_ERROR)(scope, receive, send)
            return
        released = conversation.take(message, body)
        await Response("Accepted", HTTPStatus.ACCEPTED)(scope, receive, send)
        if released is not None and len(body) > http_requests.SMALL_BYTES:
            # The body keeps its room in `WholeBodies` until then.
            await released.wait()

    def _conversation(self, scope: Scope) -> Conversation | Response:
        """Return the conversation that a message belongs to, or else the response that refuses it."""
        if scope["method"] != "POST":
            return Response(None, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "POST"})
        content_type = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        if content_type != http_requests.JSON_TYPE:
            return Response(f"A message is {http_requests.JSON_TYPE}.\n", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        session_id = QueryParams(scope["query_string"]).get("session_id")
        if session_id is None:
            return Response("session_id is required", HTTPStatus.BAD_REQUEST)
        owner, conversation = self._open.get(session_id, (None, None))
        if conversation is None or owner != principal_of(scope):
            # Another principal learns no more about a session than about one that does not exist.
            not_found = Response("Could not find session", HTTPStatus.NOT_FOUND)
            return self._guesses.refusal(rights_of(scope).person, not_found)
        return conversation


class _Frame(Struct, eq=False):
    """A frame that waits to be sent."""

    content: bytes
    sent: anyio.Event = field(default_factory=anyio.Event)


class EventChannel:
    """Writes frames to an event stream. Implements `HostChannel`."""

    def __init__(self, write: Send, waiting: Waiting) -> None:
        self._write, self._waiting = write, waiting
        self._frames: deque[_Frame] = deque()
        self._bytes = 0
        self._added = anyio.Event()

    async def open(self, endpoint: str) -> None:
        """Begin the stream with the path to which messages are posted."""
        await self._write({"type": "http.response.start", "status": HTTPStatus.OK, "headers": STREAM_HEADERS})
        await self._send_event("endpoint", endpoint.encode())

    async def deliver(self) -> None:
        """Write queued frames until cancelled."""
        while True:
            with anyio.move_on_after(PING_SECONDS):
                await self._added.wait()
            self._added = anyio.Event()
            if not self._frames:
                await self._write({"type": "http.response.body", "body": PING, "more_body": True})
            while self._frames:
                await self._deliver_first()

    async def _deliver_first(self) -> None:
        # A method of its own, so that no local variable keeps a frame that is sent while the stream is idle.
        frame = self._frames[0]
        await self._send_event("message", frame.content)
        self._frames.popleft()
        self._count(-len(frame.content))
        frame.sent.set()

    async def _send_event(self, name: str, data: bytes) -> None:
        line = on_one_line(data)
        event = b"event: %b\r\ndata: " % name.encode(), line, b"\r\n\r\n"
        for piece in event if len(line) > PART_BYTES else [b"".join(event)]:
            await send_body(self._write, piece, lambda more: None, more=True)

    async def send(self, frame: bytes) -> None:
        """Send one frame; waits until the connection takes it."""
        queued = self._put(frame)
        # A cancelled task keeps its local variables until it is collected, which may be long.
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
        """Send one frame soon, unless too many bytes wait already."""
        if self._bytes > QUEUED_BYTES:
            return False
        self._put(frame)
        return True

    def pause_reading(self) -> None:
        """Do nothing: each message comes by a request of its own."""

    def resume_reading(self) -> None:
        """Do nothing: see `pause_reading`."""

    def _put(self, frame: bytes) -> _Frame:
        queued = _Frame(frame)
        self._frames.append(queued)
        self._count(len(frame))
        self._added.set()
        return queued

    def _count(self, more: int) -> None:
        self._bytes += more
        self._waiting(more)
