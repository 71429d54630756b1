"""Receives the result of a login: the browser of the person is redirected to a port of this machine.

Any program of this machine and any web page can send something there. So a result counts only if it names
the host of the redirect URI and the state of the login; nothing else of it is read before that, and whatever
else comes neither ends the login nor appears anywhere.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream
from mcp.shared.auth import AuthorizationCodeResult
from msgspec import Struct, field

from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.oauth.token_endpoint import REASON_SHOWN
from mcp_context_proxy.protocol.strangers import one_line

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"

HEAD_BYTES: Final = 32 * 1024
"""Limit of the head of a browser's request; codes are long, but not that long."""

HEAD_SECONDS: Final = 10.0
"""Time for the browser to send it."""

_PAGE: Final = (
    "<!doctype html><meta charset=utf-8><title>MCP Context Proxy</title>"
    "<p style='font: 1.2em sans-serif; margin: 3em'>{}</p>"
)

NOT_FOUND: Final = "404 Not Found", "There is nothing here."
NOT_OURS: Final = (
    "400 Bad Request",
    "This belongs to no login that is under way. Start the login again.",
)


class Loopback(Struct):
    """A port of this machine that waits for the result of a login."""

    server: str
    redirect_uri: str
    _state: bytes | None = None
    """State of the login that is under way."""
    _warned: bool = False
    _query: dict[str, str] = field(default_factory=dict)
    _came: anyio.Event = field(default_factory=anyio.Event)

    def expect(self, address: str) -> None:
        """Take the result of the login that begins at an address, and of no other."""
        # The parameters of the login come after those that the authorization server may have put there.
        self._state = parse_qs(urlsplit(address).query)["state"][-1].encode()

    async def answer(self) -> AuthorizationCodeResult:
        """Wait for the browser to return the result.

        Raises:
            AuthorizationError: the person or the authorization server has refused.
        """
        await self._came.wait()
        query = self._query
        if "error" in query:
            reason = ": ".join(query[key] for key in ("error", "error_description") if query.get(key))
            raise AuthorizationError(self.server, f"the login was refused ({one_line(reason, REASON_SHOWN)})")
        return AuthorizationCodeResult(
            code=query.get("code", ""), state=query.get("state"), iss=query.get("iss")
        )

    async def serve(self, stream: SocketStream) -> None:
        """Answer one request of a browser, and note the result of a login in it."""
        # A browser that goes away ends its connection, and not the login.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with stream:
                with anyio.move_on_after(HEAD_SECONDS):
                    await stream.send(_response(*self._take(await _head(stream))))

    def _take(self, head: bytes | None) -> tuple[str, str]:
        """Note the result of a login in the head of a request; return the status and text of the response."""
        query = None if head is None else self._query_of(head)
        if query is None:
            return NOT_FOUND
        states = query.get("state", [])
        if self._state is None or len(states) != 1 or not _equal(states[0], self._state):
            if not self._warned:
                logger.warning("%s: ignored a result that belongs to no login under way", self.server)
            self._warned = True
            return NOT_OURS
        if any(len(values) > 1 for values in query.values()):
            return NOT_OURS
        if not self._came.is_set():
            self._query = {key: values[0] for key, values in query.items()}
            self._came.set()
        outcome = "The login was refused." if "error" in query else "You can close this page."
        return "200 OK", f"{outcome} See the terminal for details."

    def _query_of(self, head: bytes) -> dict[str, list[str]] | None:
        """Return the query of a GET request to the redirect URI; None for anything else."""
        first, *lines = head.partition(b"\r\n\r\n")[0].decode("ascii", "replace").split("\r\n")
        method, _, rest = first.partition(" ")
        headers = (line.partition(":") for line in lines)
        hosts = [value.strip() for name, _, value in headers if name.lower() == "host"]
        own = urlsplit(self.redirect_uri)
        if method != "GET" or hosts != [own.netloc]:
            return None
        try:
            target = urlsplit(rest.partition(" ")[0])
            return parse_qs(target.query, keep_blank_values=True) if target.path == own.path else None
        except ValueError:
            return None


def _equal(given: str, expected: bytes) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), expected)


@asynccontextmanager
async def listening(server: str, port: int) -> AsyncIterator[Loopback]:
    """Open a port for the result of a login; 0 takes a free one.

    Raises:
        AuthorizationError: the port cannot be opened.
    """
    try:
        listener = await anyio.create_tcp_listener(local_host=HOST, local_port=port)
    except OSError as error:
        raise AuthorizationError(
            server, f"port {port} cannot be opened ({error.strerror or error})"
        ) from None
    try:
        async with listener, anyio.create_task_group() as group:
            bound = listener.extra(SocketAttribute.local_port)
            loopback = Loopback(server, f"http://{HOST}:{bound}{PATH}")
            group.start_soon(listener.serve, loopback.serve)
            yield loopback
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        # A failed login is raised as it is, not wrapped by the task group that serves the port.
        raise failed.exceptions[0] from None


async def _head(stream: SocketStream) -> bytes | None:
    """Return the head of a request; None if it does not come, or is too long."""
    head = bytearray()
    while b"\r\n\r\n" not in head:
        if len(head) >= HEAD_BYTES:
            return None
        try:
            head += await stream.receive()
        except anyio.EndOfStream:
            return None
    return bytes(head)


def _response(status: str, text: str) -> bytes:
    body = _PAGE.format(text).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
