"""Takes the body of a request whole before anything is done with it.

A slow sender holds a connection then, and not a session as well; and who goes away in the middle is no error.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from msgspec import UNSET, Raw, UnsetType
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import RequestId

JSON_TYPE = "application/json"


class GoneError(Exception):
    """The client went away before it had sent everything."""


class WholeBodies:
    """ASGI application that has the body of each request whole for another."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            body = await whole(scope, receive, self._limit)
        except GoneError:
            return
        if isinstance(body, Response):
            await body(scope, receive, send)
        else:
            await self._app(scope, again(body, receive), send)


class Head(msgspec.Struct):
    """Of a message, what tells which kind it is."""

    id: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET

    @property
    def request_id(self) -> RequestId | None:
        """The id, if it is one that MCP knows: a string or a whole number."""
        try:
            found = None if self.id is UNSET else msgspec.json.decode(self.id)
        except msgspec.DecodeError:
            return None
        return found if isinstance(found, int | str) and not isinstance(found, bool) else None


_decode_head = msgspec.json.Decoder(Head).decode


async def whole(scope: Scope, receive: Receive, limit: int) -> bytes | Response:
    """The body, or what is to be answered instead.

    Raises:
        GoneError: there is nobody to answer.
    """
    headers = Headers(scope=scope)
    if headers.get("content-encoding", "identity").lower() != "identity":
        text = "Bodies are taken as they are, not compressed.\n"
        return Response(text, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    body, more = bytearray(), True
    over = int(headers.get("content-length", "0")) > limit
    while more and not over:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        body += message.get("body", b"")
        over, more = len(body) > limit, message.get("more_body", False)
    if over:
        text = f"The body is over {limit:,} bytes.\n"
        return Response(text, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return bytes(body)


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


def head_of(body: bytes) -> Head | None:
    """What kind of message it is; None for what is none, which is for the SDK to refuse."""
    try:
        return _decode_head(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def failure(status: int, code: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """An answer of an HTTP status and of JSON-RPC, without an id."""
    return Response(envelope.error_reply(None, code, text), status, headers, JSON_TYPE)
