"""The HTTP client of one server: what it may take, where it may be led, and what its own failures mean."""

from __future__ import annotations

import httpx2

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import redirects
from mcp_context_proxy.errors import ServerUnavailableError
from mcp_context_proxy.wire import certificates

CONNECTIONS = 256
"""Open to one server at a time; further requests wait for one of them."""

KEPT_ALIVE = 32
"""Idle connections kept for the next request."""

KEPT_ALIVE_SECONDS = 4.0
"""For so long. Most servers close idle connections after 5 s or more, and what is sent at that moment is
lost: nobody knows whether it was read. A shorter time costs agents a new connection for nearly each call."""


async def client_of(config: ServerConfig, limits: Limits, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    """The client of a server at a URL; nothing is sent by it yet, and whoever asked for it closes it."""
    return httpx2.AsyncClient(
        auth=auth,
        headers=config.headers,
        timeout=httpx2.Timeout(limits.connect_seconds, read=None),
        limits=httpx2.Limits(
            max_connections=CONNECTIONS,
            max_keepalive_connections=KEPT_ALIVE,
            keepalive_expiry=KEPT_ALIVE_SECONDS,
        ),
        verify=await certificates.trusted(),
        **redirects.within_origin(config.name),
    )


def refusal(error: httpx2.HTTPError, server: str, url: str) -> ServerUnavailableError | None:
    """The error for whoever asked, where nothing was sent; None where the request may have been read."""
    if isinstance(error, httpx2.PoolTimeout):
        return ServerUnavailableError(server, "busy", "all connections to it are in use; try again")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return ServerUnavailableError(server, "unreachable", f"{url}: {str(error) or 'no answer'}")
    return None


def told(error: Exception) -> str:
    """What a failure says, or what it is where it says nothing."""
    return str(error) or type(error).__name__
