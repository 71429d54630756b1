"""Gives the SDK's HTTP sessions what they lack: room, an order, and an end of calls that nobody waits for.

The SDK keeps no answers for who comes back, so a call whose stream broke off is a call for nobody. When all
places are taken, the session that was idle for longest makes room. What a session can have once at a time, an
id or the stream of its own, is had anew once what had it has ended.

Refuses who guesses sessions: nobody finds one of 128 random bits, and nobody need be let try for ever.
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
from mcp_context_proxy.downstream.backpressure import Bucket
from mcp_context_proxy.front import http_requests
from mcp_context_proxy.front.http_requests import POSTED_KEY
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, INVALID_REQUEST, Envelope, RequestId

SESSION_HEADER = "mcp-session-id"

ENDING_SECONDS = 1.0
"""For an answer that its client has already read, or a stream that it has left, to end."""

EVENTS_TYPE = "text/event-stream"

NO_SCOPE: Scope = {"type": "http", "path": "/mcp", "query_string": b"", "headers": []}
"""Of what no client has asked."""


@dataclass(slots=True)
class _SessionAnswer:
    """What has become of one message."""

    send: Send
    opens: Callable[[str], None]
    """Takes the session that a request opens, before its client knows it."""
    asked: RequestId | None
    """The id of a request of a session, which is answered whatever becomes of the session."""
    started: bool = False
    complete: bool = False
    status: int = 0
    owes: bool = False
    """Whether it is an event stream that has not had the reply."""

    async def __call__(self, message: Message) -> None:
        if self.complete:
            # The SDK answers a second time where the session ends while it takes a notification.
            return
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            self.started, self.status = True, message["status"]
            self.owes = self.asked is not None and headers.get("content-type", "").startswith(EVENTS_TYPE)
            session = headers.get(SESSION_HEADER)
            if session is not None and self.status == HTTPStatus.OK:
                self.opens(session)
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
            self.owes = self.owes and not _is_reply(message.get("body", b""))
            if self.complete and self.owes:
                text = "the session was ended meanwhile; the request may or may not have run"
                reply = envelope.error_reply(self.asked, INTERNAL_ERROR, text)
                message = {**message, "body": message.get("body", b"") + b"data: %b\r\n\r\n" % reply}
        await self.send(message)


class HttpSessions:
    """ASGI application around that of the SDK's session manager."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._under_way: dict[str, int] = {}
        """Requests of each known session, in the order of their last end."""
        self._single: dict[tuple[str, str | None], anyio.Event] = {}
        """What is set when they end: of requests by session and id, of streams by session."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        message: Envelope | None = scope.get(POSTED_KEY)
        asked = None
        if message is not None and message.method == "initialize":
            if not await self._make_room():
                text = "busy: all sessions are in use"
                await _refused(HTTPStatus.SERVICE_UNAVAILABLE, None, text, INTERNAL_ERROR)(
                    scope, receive, send
                )
                return
        elif message is not None and isinstance(message.id, int | str) and message.method is not UNSET:
            asked = message.id
        session = Headers(scope=scope).get(SESSION_HEADER)
        if session is None or (asked is None and scope["method"] != "GET"):
            await self._exchange(_without_position(scope), receive, send, asked)
            return
        # The SDK takes 7 and "7" for one id, and forgets the first of two requests with the same, or streams.
        single = session, None if asked is None else str(asked)
        with anyio.move_on_after(ENDING_SECONDS):
            while (ended := self._single.get(single)) is not None:
                await ended.wait()
        if single in self._single:
            status = HTTPStatus.CONFLICT if asked is None else HTTPStatus.BAD_REQUEST
            text = "the session has a stream" if asked is None else "a request with this id is under way"
            await _refused(status, asked, text)(scope, receive, send)
            return
        ended = self._single[single] = anyio.Event()
        try:
            await self._exchange(_without_position(scope), receive, send, asked)
        finally:
            del self._single[single]
            ended.set()

    async def _exchange(self, scope: Scope, receive: Receive, send: Send, asked: RequestId | None) -> None:
        session, gone, counted = Headers(scope=scope).get(SESSION_HEADER), False, False

        async def listen() -> Message:
            nonlocal gone
            message = await receive()
            gone = not answer.complete and message["type"] == "http.disconnect"
            if gone and asked is not None and session is not None:
                cancelled = envelope.notification("notifications/cancelled", {"requestId": asked})
                await self._tell(scope, "POST", cancelled)
                # The SDK answers it, to nobody: what it has no response for any more would go to the next
                # request with the same id.
                await anyio.sleep_forever()
            return message

        def opens(opened: str) -> None:
            nonlocal session, counted
            if session is None:
                session, counted = opened, True
                self._under_way[opened] = 1

        answer = _SessionAnswer(send, opens, None if session is None else asked)
        if session in self._under_way:
            counted = True
            self._under_way[session] += 1
        try:
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                # Raised where the session ends while it takes a message.
                await self._app(scope, listen, answer)
        finally:
            if counted and session is not None:
                ended = (scope["method"], answer.status) == ("DELETE", HTTPStatus.OK)
                self._note(session, ended or answer.status == HTTPStatus.NOT_FOUND)
        if not answer.complete and not gone:
            await self._finish(scope, receive, answer)

    def _note(self, session: str, ended: bool) -> None:
        """One request less; the session is the last to become idle, or it has ended."""
        count = self._under_way.pop(session, None)
        if count is not None and not ended:
            self._under_way[session] = count - 1

    async def _finish(self, scope: Scope, receive: Receive, answer: _SessionAnswer) -> None:
        """End an answer that the SDK left unfinished because its session has ended."""
        if answer.started:
            await answer({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            text = "Not Found: Session has been terminated"
            await _refused(HTTPStatus.NOT_FOUND, None, text)(scope, receive, answer)

    async def _make_room(self) -> bool:
        """End idle sessions until there is a place; whether there is one."""
        while len(self._under_way) >= self._limits.sessions:
            idle = next((session for session, count in self._under_way.items() if not count), None)
            if idle is None:
                return False
            del self._under_way[idle]
            await self._tell(NO_SCOPE, "DELETE", b"", idle)
        return True

    async def _tell(self, scope: Scope, method: str, body: bytes, session: str | None = None) -> None:
        """Say something to the SDK as if a client had; nobody hears what it answers."""
        own = [(b"content-length", str(len(body)).encode())]
        own += [] if session is None else [(SESSION_HEADER.encode(), session.encode())]
        replaced = {name for name, _ in own}
        headers = [*own, *(pair for pair in scope["headers"] if pair[0] not in replaced)]

        async def ended() -> Message:
            return {"type": "http.disconnect"}

        async def ignore(message: Message) -> None:
            del message

        await self._app(
            {**scope, "method": method, "headers": headers}, http_requests.again(body, ended), ignore
        )


def _refused(
    status: HTTPStatus, request_id: RequestId | None, text: str, code: int = INVALID_REQUEST
) -> Response:
    return Response(envelope.error_reply(request_id, code, text), status, media_type=http_requests.JSON_TYPE)


def _is_reply(event: bytes) -> bool:
    """Whether what the SDK writes, an event on one line at a time, is a reply."""
    try:
        return envelope.decode(event.partition(b"data: ")[2]).method is UNSET
    except envelope.MalformedError:
        return False


def _without_position(scope: Scope) -> Scope:
    """Without ``Last-Event-ID``: nothing is kept to go on from, and the SDK fails where it is asked to."""
    headers = [pair for pair in scope["headers"] if pair[0] != b"last-event-id"]
    return {**scope, "headers": headers}


GUESSES_PER_SECOND, GUESSES = 10.0, 100
"""Unknown sessions that are answered as such: all clients of a proxy that was restarted, and no search."""


class SessionRateLimit:
    """ASGI application that answers who guesses sessions with 429, and everybody else as `app` does."""

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
