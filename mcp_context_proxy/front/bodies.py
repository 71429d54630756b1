"""Takes the body of a request whole before anything is done with it, and only so much of all at a time.

A slow sender holds a connection then, and not a session as well; and who goes away in the middle is no error.
Large bodies wait for room where they are: in the pipes of those who send them. What a server has been passed
needs no room here: it is counted there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from http import HTTPStatus

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.server.caller import PASSED_ON_KEY
from mcp_context_proxy.wire import envelope

JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
"""RFC 9457."""

SMALL_BYTES = 32 * 1024
"""Of a body that never waits for room: a connection may have received as much before anybody looks at it."""

TOGETHER_BYTES = 8 * 1024 * 1024
"""Of larger ones that are received and neither answered nor passed on at a time: two of the largest."""


class GoneError(Exception):
    """The client went away before it had sent everything."""


class Room:
    """Bounds the bytes of bodies that are under way; who came first is let in first."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._waiting: deque[tuple[int, anyio.Event]] = deque()

    async def enter(self, size: int) -> Callable[[], None]:
        """Wait for room for a body of `size` bytes; what gives it back, however often it is called."""
        if self._waiting or size > self._left:
            await self._wait(size)
        else:
            self._left -= size
        inside = True

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                self._left += size
                self._let_in()

        return leave

    async def _wait(self, size: int) -> None:
        place = size, anyio.Event()
        self._waiting.append(place)
        try:
            await place[1].wait()
        except anyio.get_cancelled_exc_class():
            if place[1].is_set():
                self._left += size
            else:
                self._waiting.remove(place)
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._left:
            size, let_in = self._waiting.popleft()
            self._left -= size
            let_in.set()


class WholeBodies:
    """ASGI middleware that has the body of each request whole for another."""

    def __init__(self, app: ASGIApp, limit: int, wait_seconds: float) -> None:
        """Take bodies of up to `limit` bytes, which wait for room no longer than `wait_seconds`."""
        self._app, self._limit, self._wait_seconds = app, limit, wait_seconds
        self._room = Room(max(TOGETHER_BYTES, limit))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not _has_body(headers := Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        refusal = _refusal(headers, self._limit)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        try:
            length = headers.get("content-length")
            await self._serve(scope, receive, send, None if length is None else int(length))
        except GoneError:
            return

    async def _serve(self, scope: Scope, receive: Receive, send: Send, announced: int | None) -> None:
        body, more = bytearray(), True
        leave: Callable[[], None] | None = None
        try:
            while more:
                if leave is None and max(announced or 0, len(body)) > SMALL_BYTES:
                    try:
                        with anyio.fail_after(self._wait_seconds):
                            leave = await self._room.enter(announced or self._limit)
                    except TimeoutError:
                        await _no_room()(scope, receive, send)
                        return
                    scope[PASSED_ON_KEY] = leave
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > self._limit:
                    await _too_large(self._limit)(scope, receive, send)
                    return
            whole_body = bytes(body)
            body.clear()
            await self._app(scope, again(whole_body, receive), send)
        finally:
            if leave is not None:
                leave()


async def whole(receive: Receive) -> bytes:
    """The body.

    Raises:
        GoneError: there is nobody to answer.
    """
    parts, more = list[bytes](), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _refusal(headers: Headers, limit: int) -> Response | None:
    if headers.get("content-encoding", "identity").lower() != "identity":
        text = "Bodies are taken as they are, not compressed."
        return _problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
    return _too_large(limit) if int(headers.get("content-length", "0")) > limit else None


def _too_large(limit: int) -> Response:
    return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is over {limit:,} bytes.")


def _no_room() -> Response:
    # The connection stays: who still sends when it is closed never reads why.
    text = "Too many large bodies are under way."
    return _problem(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": "1"})


def _problem(status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> Response:
    said = {"title": status.phrase, "status": status, "detail": detail}
    return Response(envelope.encode(said), status, headers, PROBLEM_TYPE)


def again(body: bytes, receive: Receive) -> Receive:
    """What gives the body to whoever asks next, and then what comes after it."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def failure(status: int, code: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """An answer of an HTTP status and of JSON-RPC, without an id."""
    return Response(envelope.error_reply(None, code, text), status, headers, JSON_TYPE)
