"""Reads each message that is posted before the SDK does, and refuses in the front's words what is none.

The SDK describes such a message by its own models, looks at the header alone for the era of a request, and
builds everything that it holds. So it is shown little of a request that the gateway answers, and of any other
message no more than it can read at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, Raw
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.front import bodies
from mcp_context_proxy.front.parts import send_body
from mcp_context_proxy.front.sdk_side import MOST_VALUES, TOO_MUCH
from mcp_context_proxy.front.unsent import Waiting, waiting_of
from mcp_context_proxy.server.bypass import SCOPE_KEY, Bypass, shown
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import INVALID_REQUEST, Envelope, MalformedError, Members
from mcp_context_proxy.wire.nesting import holds_more

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
            body = await bodies.whole(receive)
        except bodies.GoneError:
            return
        try:
            message = read(body)
            _check_era(message, Headers(scope=scope).get(VERSION_HEADER))
        except RefusedError as error:
            await Response(error.reply, 400, media_type=bodies.JSON_TYPE)(scope, receive, send)
            return
        scope = {**scope, POSTED_KEY: message}
        params = self._params(message)
        if params is not None:
            assert isinstance(message.id, int | str)
            assert isinstance(message.method, str)
            bypass = scope[SCOPE_KEY] = Bypass(params)
            body, send = shown(message.id, message.method, params), Answer(bypass, send, waiting_of(scope))
        elif holds_more(body, MOST_VALUES):
            request_id = message.id if isinstance(message.id, int | str) else None
            refused = envelope.error_reply(request_id, INVALID_REQUEST, TOO_MUCH)
            await Response(refused, 400, media_type=bodies.JSON_TYPE)(scope, receive, send)
            return
        await self._app(scope, bodies.again(body, receive), send)

    def _params(self, message: Envelope) -> Members | None:
        """The params of a request that is led around the SDK; None of any other message."""
        if not isinstance(message.id, int | str) or message.method not in self._relayed:
            return None
        return envelope.members(message.params) if isinstance(message.params, Raw) else {}


class Answer:
    """Sends an answer of the SDK with the payload that it should have."""

    def __init__(self, bypass: Bypass, send: Send, waiting: Waiting) -> None:
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


class RefusedError(Exception):
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
        raise RefusedError(envelope.error_reply(request_id, error.code, text)) from None
    if message.method is UNSET and not _is_reply(message):
        text = "a reply needs a result, an object, or an error with code and message"
        raise RefusedError(envelope.error_reply(None, INVALID_REQUEST, text))
    return message


def _check_era(message: Envelope, header: str | None) -> None:
    """Refuse a request of the modern era that the SDK would take for one of the other."""
    said = _version(message)
    if said is not None and header != said and _is_handshake(header):
        text = f"the header {VERSION_HEADER} must say {said!r}, as the body does"
        raise RefusedError(envelope.error_reply(message.id, HEADER_MISMATCH, text))  # type: ignore[arg-type]


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
        return envelope.text(era.meta_of(envelope.members(message.params)).get(era.VERSION_KEY))
    except msgspec.DecodeError:
        return None


def _is_handshake(header: str | None) -> bool:
    """Whether the SDK would take a request with this header for one of the handshake era."""
    return header is None or header in era.HANDSHAKE_VERSIONS


def _has_length(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-length" for name, _ in headers)


def _of_length(headers: Iterable[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    others = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*others, (b"content-length", str(length).encode())]
