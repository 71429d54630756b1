"""Tells the failures of an HTTP client that come before anything is sent: what was asked has not run."""

from __future__ import annotations

import httpx2

from mcp_context_proxy.errors import ServerUnavailableError


def refusal(error: httpx2.HTTPError, server: str, url: str) -> ServerUnavailableError | None:
    """The error for whoever asked; None where the request may have been read."""
    if isinstance(error, httpx2.PoolTimeout):
        return ServerUnavailableError(server, "busy", "all connections to it are in use; try again")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return ServerUnavailableError(server, "unreachable", f"{url}: {str(error) or 'no answer'}")
    return None
