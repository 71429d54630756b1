"""Receives what a browser brings back after a login: one request to a port of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream
from mcp.shared.auth import AuthorizationCodeResult

from mcp_context_proxy.errors import AuthorizationError

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"

HEAD_BYTES: Final = 32 * 1024
"""Of a browser's request; codes are long, but not that long."""

HEAD_SECONDS: Final = 10.0
"""For a browser to send it."""

_PAGE: Final = (
    "<!doctype html><meta charset=utf-8><title>MCP Context Proxy</title>"
    "<p style='font: 1.2em sans-serif; margin: 3em'>{}</p>"
)


@dataclass(slots=True)
class Loopback:
    """A port that waits for one answer."""

    server: str
    redirect_uri: str
    _query: dict[str, str] = field(default_factory=dict)
    _came: anyio.Event = field(default_factory=anyio.Event)

    async def answer(self) -> AuthorizationCodeResult:
        """Wait for the browser.

        Raises:
            AuthorizationError: the person, or the authorization server, has refused.
        """
        await self._came.wait()
        query = self._query
        if "error" in query:
            told = ": ".join(query[key] for key in ("error", "error_description") if query.get(key))
            raise AuthorizationError(self.server, f"it was refused ({told})")
        return AuthorizationCodeResult(
            code=query.get("code", ""), state=query.get("state"), iss=query.get("iss")
        )

    async def serve(self, stream: SocketStream) -> None:
        """Take one request; what is no answer is sent away."""
        async with stream:
            with anyio.move_on_after(HEAD_SECONDS):
                target = await _target(stream)
                if target is None or urlsplit(target).path != PATH:
                    await stream.send(_response("404 Not Found", "There is nothing here."))
                    return
                query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
                told = "The login was refused." if "error" in query else "You can close this page."
                await stream.send(_response("200 OK", f"{told} The terminal says more."))
                if not self._came.is_set():
                    self._query = query
                    self._came.set()


@asynccontextmanager
async def listening(server: str, port: int) -> AsyncIterator[Loopback]:
    """A port on which the answer is awaited; 0 takes a free one.

    Raises:
        AuthorizationError: the port cannot be had.
    """
    try:
        listener = await anyio.create_tcp_listener(local_host=HOST, local_port=port)
    except OSError as error:
        raise AuthorizationError(server, f"port {port} cannot be had ({error.strerror or error})") from None
    try:
        async with listener, anyio.create_task_group() as group:
            bound = listener.extra(SocketAttribute.local_port)
            loopback = Loopback(server, f"http://{HOST}:{bound}{PATH}")
            group.start_soon(listener.serve, loopback.serve)
            yield loopback
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        # A failed login comes out as itself, not wrapped by the task that served the port.
        raise failed.exceptions[0] from None


async def _target(stream: SocketStream) -> str | None:
    """The path and query of a GET request; None for anything else."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
        try:
            head += await stream.receive()
        except anyio.EndOfStream:
            return None
    method, _, rest = bytes(head).partition(b"\r\n")[0].partition(b" ")
    return rest.partition(b" ")[0].decode("ascii", "replace") if method == b"GET" else None


def _response(status: str, told: str) -> bytes:
    body = _PAGE.format(told).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
