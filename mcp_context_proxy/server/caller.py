"""Who is calling: all that the server needs to know of a client, whatever front it came through."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw

from mcp_context_proxy.context.session import Session
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.era import Era

PASSED_ON_KEY = "mcp-context-proxy/passed-on"
"""Of an ASGI scope: `Caller.passed_on`."""


class Caller(Protocol):
    """One request's client."""

    era: Era
    session: Session | None
    """Of the handshake era; None in the modern era, which has none."""
    capabilities: Raw | None
    """What the client declared it can do; None when it declared nothing."""
    client_info: Raw | None
    principal: str | None
    """Who it is, where the front knows; what one principal creates, no other may use."""

    def notify(self, method: str, params: Members) -> None:
        """Send a notification that belongs to this request. Does not block."""
        ...

    def passed_on(self) -> None:
        """The request counts as one of a server's: nobody else need count what it takes any more."""
        ...

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the client and return its encoded result.

        Raises:
            RequestError: the client refuses, or cannot be asked in this era.
        """
        ...
