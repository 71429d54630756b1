"""HTTP sessions with bounds that the SDK lacks: on their number, on requests with the same id, on guessing.

When all places are taken, the session that was idle for longest makes room. The SDK keeps no responses for
clients that come back, so a call whose stream has broken off is cancelled. Only one request with an id, and
one stream of its own, can be open in a session; the next one waits until the one before it has ended. A
session serves the principal that opened it; for any other it does not exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import anyio
from msgspec import UNSET
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.http_requests import POSTED_KEY, error_response, replay
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, Envelope, RequestId
from mcp_context_proxy.protocol.framing import Bucket
from mcp_context_proxy.server.caller import principal_of

SESSION_HEADER = "mcp-session-id"

ENDING_SECONDS = 1.0
"""Time for a response that its client has already read, or a stream that it has left, to end."""

EVENTS_TYPE = "text/event-stream"

GUESSES_PER_SECOND, GUESSES = 10.0, 100
"""Unknown sessions that are answered with 404: all clients of a restarted proxy, but no search for ids.
Nobody finds one of 128 random bits anyway."""

NO_SCOPE: Scope = {"type": "http", "path": "/mcp", "query_string": b"", "headers": []}
"""Scope of a request that the proxy makes itself."""


class HttpSessions:
    """ASGI application around that of the SDK's session manager."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._under_way: dict[str, int] = {}
        """Number of open requests of each known session, in the order in which their last ones ended."""
        self._owners: dict[str, str | None] = {}
        """Principal of each known session; without one, a session is the SDK's to refuse."""
        self._single: dict[tuple[str, str | None], anyio.Event] = {}
        """Set at the end of a request, by session and id, or of a session's stream, by session and None."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        message: Envelope | None = scope.get(POSTED_KEY)
        # Nothing is kept to continue a stream from, and the SDK fails if it is asked to.
        headers = [pair for pair in scope["headers"] if pair[0] != b"last-event-id"]
        scope = {**scope, "headers": headers}
        request_id = None
        if message is not None and message.method == "initialize":
            if not await self._make_room():
                text, status = "busy: all sessions are in use", HTTPStatus.SERVICE_UNAVAILABLE
                await error_response(status, None, text, INTERNAL_ERROR)(scope, receive, send)
                return
        elif message is not None and isinstance(message.id, int | str) and message.method is not UNSET:
            request_id = message.id
        session = Headers(scope=scope).get(SESSION_HEADER)
        if session in self._owners and self._owners[session] != principal_of(scope):
            await error_response(HTTPStatus.NOT_FOUND, None, "Session not found")(scope, receive, send)
            return
        if session is None or (request_id is None and scope["method"] != "GET"):
            await self._exchange(scope, receive, send, request_id)
            return
        # The SDK takes 7 and "7" for one id, and forgets the first of two requests with one id, or of two
        # streams.
        single = session, None if request_id is None else str(request_id)
        with anyio.move_on_after(ENDING_SECONDS):
            while (ended := self._single.get(single)) is not None:
                await ended.wait()
        if single in self._single:
            if request_id is None:
                refusal = error_response(HTTPStatus.CONFLICT, None, "the session has a stream")
            else:
                text = "a request with this id is under way"
                refusal = error_response(HTTPStatus.BAD_REQUEST, request_id, text)
            await refusal(scope, receive, send)
            return
        ended = self._single[single] = anyio.Event()
        try:
            await self._exchange(scope, receive, send, request_id)
        finally:
            del self._single[single]
            ended.set()

    async def _exchange(
        self, scope: Scope, receive: Receive, send: Send, request_id: RequestId | None
    ) -> None:
        """Have the SDK serve a request, and take care of its ends that the SDK leaves loose.

        A client that goes away has its request cancelled. A session counts as busy until each of its requests
        has ended; a request that opens one counts once the session has an id. A response that the SDK does
        not finish, because its session has ended, is finished here.
        """
        session, gone, counted = Headers(scope=scope).get(SESSION_HEADER), False, False

        async def listen() -> Message:
            nonlocal gone
            message = await receive()
            gone = not response.complete and message["type"] == "http.disconnect"
            if gone and request_id is not None and session is not None:
                cancelled = envelope.notification("notifications/cancelled", {"requestId": request_id})
                await self._send_to_sdk(scope, "POST", cancelled)
                # The SDK still answers the request, to nobody. If it knew that the client has gone, its
                # answer would go to the next request with the same id.
                await anyio.sleep_forever()
            return message

        def opened(new_session: str) -> None:
            nonlocal session, counted
            if session is None:
                session, counted = new_session, True
                self._under_way[new_session] = 1
                self._owners[new_session] = principal_of(scope)

        response = _Response(send, opened, None if session is None else request_id)
        if session in self._under_way:
            counted = True
            self._under_way[session] += 1
        try:
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                # Raised if the session ends while it takes a message.
                await self._app(scope, listen, response)
        finally:
            if counted and session is not None:
                # Reinserted, so that the session is the last that became idle, unless it has ended.
                count = self._under_way.pop(session, None)
                deleted = (scope["method"], response.status) == ("DELETE", HTTPStatus.OK)
                if count is not None and not deleted and response.status != HTTPStatus.NOT_FOUND:
                    self._under_way[session] = count - 1
                else:
                    self._owners.pop(session, None)
        if response.complete or gone:
            return
        if response.started:
            await response({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            text = "Not Found: Session has been terminated"
            await error_response(HTTPStatus.NOT_FOUND, None, text)(scope, receive, response)

    async def _make_room(self) -> bool:
        """End idle sessions until there is a place; return whether there is one."""
        while len(self._under_way) >= self._limits.sessions:
            idle = next((session for session, count in self._under_way.items() if not count), None)
            if idle is None:
                return False
            del self._under_way[idle]
            await self._send_to_sdk(NO_SCOPE, "DELETE", b"", idle)
            self._owners.pop(idle, None)
        return True

    async def _send_to_sdk(self, scope: Scope, method: str, body: bytes, session: str | None = None) -> None:
        """Make a request of the SDK as if a client had made it, and drop the response."""
        own = [(b"content-length", str(len(body)).encode())]
        own += [] if session is None else [(SESSION_HEADER.encode(), session.encode())]
        replaced = {name for name, _ in own}
        headers = [*own, *(pair for pair in scope["headers"] if pair[0] not in replaced)]

        async def ended() -> Message:
            return {"type": "http.disconnect"}

        async def ignore(message: Message) -> None:
            del message

        await self._app({**scope, "method": method, "headers": headers}, replay(body, ended), ignore)


@dataclass(slots=True)
class _Response:
    """Sends the SDK's response to one message, and completes an event stream that the SDK ends too early."""

    send: Send
    opened: Callable[[str], None]
    """Takes the id of the session that a request opens, before its client knows it."""
    request_id: RequestId | None
    """The id of a request in a session, which is answered whatever becomes of the session."""
    started: bool = False
    complete: bool = False
    status: int = 0
    unanswered: bool = False
    """True while the response is an event stream without the response to the request."""

    async def __call__(self, message: Message) -> None:
        if self.complete:
            # The SDK answers a second time if the session ends while it takes a notification.
            return
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            self.started, self.status = True, message["status"]
            is_stream = headers.get("content-type", "").startswith(EVENTS_TYPE)
            self.unanswered = self.request_id is not None and is_stream
            session = headers.get(SESSION_HEADER)
            if session is not None and self.status == HTTPStatus.OK:
                self.opened(session)
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
            self.unanswered = self.unanswered and not _is_response(message.get("body", b""))
            if self.complete and self.unanswered:
                text = "the session was ended meanwhile; the request may or may not have run"
                error = envelope.error_reply(self.request_id, INTERNAL_ERROR, text)
                message = {**message, "body": message.get("body", b"") + b"data: %b\r\n\r\n" % error}
        await self.send(message)


def _is_response(event: bytes) -> bool:
    """Return whether an event, which the SDK writes on one line at a time, is a JSON-RPC response."""
    try:
        return envelope.decode(event.partition(b"data: ")[2]).method is UNSET
    except envelope.MalformedError:
        return False


class SessionRateLimit:
    """ASGI application that answers guesses of session ids with 429, and all else as `app` does."""

    def __init__(self, app: ASGIApp, bucket: Bucket) -> None:
        self._app, self._bucket = app, bucket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refused = False

        async def limited(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.NOT_FOUND:
                refused = not self._bucket.take()
            if not refused:
                await send(message)

        await self._app(scope, receive, limited)
        if refused:
            text = "Too many requests for sessions that do not exist.\n"
            headers = {"Retry-After": "1"}
            await Response(text, HTTPStatus.TOO_MANY_REQUESTS, headers)(scope, receive, send)
