"""The client of one request, as the server sees it through any front."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw

from mcp_context_proxy.context.session import Session
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import Era


class Caller(Protocol):
    """The client that made one request: what it declared, and how it is notified and asked meanwhile."""

    era: Era
    session: Session | None
    """The session in the handshake era; None in the modern era, which has none."""
    capabilities: Raw | None
    """The capabilities that the client declared; None if it declared nothing."""
    client_info: Raw | None
    principal: str | None
    """The identity that the front knows, if any; nothing created by one principal is usable by another."""

    def notify(self, method: str, params: Members) -> None:
        """Send a notification that belongs to this request. Does not block."""
        ...

    def release(self) -> None:
        """Give back the room of the request at the front: the limits of its server count it from now on."""
        ...

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the client and return its encoded result.

        Raises:
            RequestError: the client refuses, or cannot be asked in this era.
        """
        ...
