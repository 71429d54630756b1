"""Reads each message that is posted before the SDK does, and refuses in the front's words what is none.

The SDK describes such a message by its own models, looks at the header alone for the era of a request, and
builds everything that it holds. So it is shown little of a request that the gateway answers, and of any other
message no more than it can read at once.

Takes the body of a request whole before anything is done with it, and only so much of all at a time.

A slow sender holds a connection then, and not a session as well; and who goes away in the middle is no error.
Large bodies wait for room where they are: in the pipes of those who send them. What a server has been passed
needs no room here: it is counted there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus

import anyio
import msgspec
from msgspec import UNSET, Raw
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.front.conversation import MOST_VALUES, TOO_MUCH
from mcp_context_proxy.front.http_connections import Waiting, send_body, waiting_of
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_REQUEST, Envelope, MalformedError, Members
from mcp_context_proxy.protocol.validation import holds_more
from mcp_context_proxy.server.sdk import BYPASS_KEY, RELEASE_KEY, PayloadBypass, shown

JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
"""RFC 9457."""

SMALL_BYTES = 32 * 1024
"""Of a body that never waits for room: a connection may have received as much before anybody looks at it."""

TOGETHER_BYTES = 8 * 1024 * 1024
"""Of larger ones that are received and neither answered nor passed on at a time: two of the largest."""


class GoneError(Exception):
    """The client went away before it had sent everything."""


class BodyBudget:
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
        self._room = BodyBudget(max(TOGETHER_BYTES, limit))

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
                    scope[RELEASE_KEY] = leave
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


VERSION_HEADER = "mcp-protocol-version"

HEADER_MISMATCH = -32020
"""Of the modern era: a header is missing, or does not say what the body says."""


POSTED_KEY = "mcp-context-proxy/posted"
"""Of an ASGI scope: the message of its body."""


class PostedMessages:
    """ASGI middleware in front of the SDK's application."""

    def __init__(self, app: ASGIApp, relayed: frozenset[str]) -> None:
        """Stand in front of `app`; requests of `relayed` methods are led around it."""
        self._app, self._relayed = app, relayed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is a message, and everything that is no POST."""
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            body = await whole(receive)
        except GoneError:
            return
        try:
            message = read(body)
            _check_era(message, Headers(scope=scope).get(VERSION_HEADER))
        except BadMessageError as error:
            await Response(error.reply, 400, media_type=JSON_TYPE)(scope, receive, send)
            return
        scope = {**scope, POSTED_KEY: message}
        params = self._params(message)
        if params is not None:
            assert isinstance(message.id, int | str)
            assert isinstance(message.method, str)
            bypass = scope[BYPASS_KEY] = PayloadBypass(params)
            body, send = (
                shown(message.id, message.method, params),
                PostAnswer(bypass, send, waiting_of(scope)),
            )
        elif holds_more(body, MOST_VALUES):
            request_id = message.id if isinstance(message.id, int | str) else None
            refused = envelope.error_reply(request_id, INVALID_REQUEST, TOO_MUCH)
            await Response(refused, 400, media_type=JSON_TYPE)(scope, receive, send)
            return
        await self._app(scope, again(body, receive), send)

    def _params(self, message: Envelope) -> Members | None:
        """The params of a request that is led around the SDK; None of any other message."""
        if not isinstance(message.id, int | str) or message.method not in self._relayed:
            return None
        return envelope.members(message.params) if isinstance(message.params, Raw) else {}


class PostAnswer:
    """Sends an answer of the SDK with the payload that it should have."""

    def __init__(self, bypass: PayloadBypass, send: Send, waiting: Waiting) -> None:
        self._bypass, self._send, self._waiting = bypass, send, waiting
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            if _has_length(message["headers"]):
                self._start = message
            else:
                await self._send(message)
            return
        more = message.get("more_body", False)
        body = self._bypass.put_back(message.get("body", b""))
        if self._start is not None:
            start, self._start = self._start, None
            headers = start["headers"] if more else _of_length(start["headers"], len(body))
            await self._send({**start, "headers": headers})
        await send_body(self._send, body, self._waiting, more=more)


class BadMessageError(Exception):
    """What was posted is not taken; `reply` says why."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(reply.decode(errors="replace"))
        self.reply = reply


def read(body: bytes) -> Envelope:
    """The message of a body.

    Raises:
        RefusedError: it is none.
    """
    try:
        message = envelope.decode_from_client(body)
    except MalformedError as error:
        request_id = envelope.salvage_id(body, body)
        text = f"message that cannot be read: {error}"
        raise BadMessageError(envelope.error_reply(request_id, error.code, text)) from None
    if message.method is UNSET and not _is_reply(message):
        text = "a reply needs a result, an object, or an error with code and message"
        raise BadMessageError(envelope.error_reply(None, INVALID_REQUEST, text))
    return message


def _check_era(message: Envelope, header: str | None) -> None:
    """Refuse a request of the modern era that the SDK would take for one of the other."""
    said = _version(message)
    if said is not None and header != said and _is_handshake(header):
        text = f"the header {VERSION_HEADER} must say {said!r}, as the body does"
        raise BadMessageError(envelope.error_reply(message.id, HEADER_MISMATCH, text))  # type: ignore[arg-type]


def _is_reply(message: Envelope) -> bool:
    if isinstance(message.result, Raw):
        return message.error is UNSET and envelope.starts_with(message.result, b"{")
    try:
        error = envelope.members(message.error)  # type: ignore[arg-type]
        return type(envelope.value(error["code"])) is int and envelope.text(error["message"]) is not None
    except (msgspec.DecodeError, KeyError):
        return False


def _version(message: Envelope) -> str | None:
    """The version that a request of the modern era says it is of; None for any other message."""
    if not isinstance(message.id, int | str) or not isinstance(message.params, Raw):
        return None
    try:
        return envelope.text(eras.meta_of(envelope.members(message.params)).get(eras.VERSION_KEY))
    except msgspec.DecodeError:
        return None


def _is_handshake(header: str | None) -> bool:
    """Whether the SDK would take a request with this header for one of the handshake era."""
    return header is None or header in eras.HANDSHAKE_VERSIONS


def _has_length(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-length" for name, _ in headers)


def _of_length(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    others = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*others, (b"content-length", str(length).encode())]
