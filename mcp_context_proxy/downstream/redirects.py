"""Follows a server to another path of its own, such as one with a slash at its end; nobody anywhere else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from mcp_context_proxy.errors import BadAnswerError

AS_IT_WAS = frozenset({307, 308})
"""Statuses after which a request is made again with its method and body; after others it would be a GET."""

FOLLOWED = 2
"""Of one request: who sends it further has not run it, and who sends it round and round has no other path."""

SHOWN = 200
"""Characters of the address that are told."""


def within_origin(server: str) -> dict[str, Any]:
    """Options of an HTTP client that speaks to `server`."""
    return {
        "follow_redirects": True,
        "max_redirects": FOLLOWED,
        "event_hooks": {"response": [_refuse_others(server)]},
    }


def _refuse_others(server: str) -> Callable[[httpx2.Response], Awaitable[None]]:
    async def refuse(response: httpx2.Response) -> None:
        if not response.has_redirect_location:
            return
        here, location = response.request.url, response.headers["location"]
        try:
            there = here.join(location)
        except httpx2.InvalidURL:
            there = None
        kept = response.status_code in AS_IT_WAS or response.request.method == "GET"
        if there is not None and _origin(there) == _origin(here) and there != here and kept:
            return
        told = str(location if there is None else there)[:SHOWN]
        text = f"with HTTP status {response.status_code}, a redirect to {told}, which is not followed"
        raise BadAnswerError(server, text, response.status_code)

    return refuse


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    default = 443 if url.scheme == "https" else 80
    return url.scheme, url.host, url.port or default
