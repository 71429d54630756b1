"""Reads each message that is posted before the SDK does, and refuses in the front's words what is none.

The SDK describes such a message by its own models, and looks at the header alone for the era of a request.
"""

from __future__ import annotations

import msgspec
from mcp.server.transport_security import RequestBodyLimitMiddleware
from msgspec import UNSET, Raw
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.config import Limits
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import INVALID_REQUEST, Envelope, MalformedError

VERSION_HEADER = "mcp-protocol-version"

HEADER_MISMATCH = -32020
"""Of the modern era: a header is missing, or does not say what the body says."""


class PostedMessages:
    """ASGI middleware in front of what takes messages by POST."""

    def __init__(self, app: ASGIApp, limits: Limits, *, with_headers: bool) -> None:
        """Stand in front of `app`; `with_headers` where headers repeat what the messages say."""
        self._app, self._with_headers = app, with_headers
        self._posted = RequestBodyLimitMiddleware(self._post, limits.http_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is a message, and everything that is no POST."""
        posted = scope["type"] == "http" and scope["method"] == "POST"
        await (self._posted if posted else self._app)(scope, receive, send)

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a POST whose whole body is the first that is received."""
        first: Message | None = await receive()
        body = (first or {}).get("body", b"")
        if first is not None and first["type"] == "http.request" and not first["more_body"]:
            headers = Headers(scope=scope) if self._with_headers else None
            refusal = _refusal(body, headers)
            if refusal is not None:
                await Response(refusal, 400, media_type="application/json")(scope, receive, send)
                return

        async def again() -> Message:
            nonlocal first
            message, first = first, None
            return await receive() if message is None else message

        await self._app(scope, again, send)


def _refusal(body: bytes, headers: Headers | None) -> bytes | None:
    """The error that answers a body; None where it is a message."""
    try:
        message = envelope.decode_from_client(body)
    except MalformedError as error:
        request_id = envelope.salvage_id(body, body)
        return envelope.error_reply(request_id, error.code, f"message that cannot be read: {error}")
    if message.method is UNSET and not _is_reply(message):
        text = "a reply needs a result, an object, or an error with code and message"
        return envelope.error_reply(None, INVALID_REQUEST, text)
    if headers is None or (said := _version(message)) is None:
        return None
    header = headers.get(VERSION_HEADER)
    if header == said or not _is_handshake(header):
        return None
    text = f"the header {VERSION_HEADER} must say {said!r}, as the body does"
    return envelope.error_reply(message.id, HEADER_MISMATCH, text)  # type: ignore[arg-type]


def _is_reply(message: Envelope) -> bool:
    if isinstance(message.result, Raw):
        return message.error is UNSET and bytes(message.result).startswith(b"{")
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
