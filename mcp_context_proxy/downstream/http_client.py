"""The HTTP client of one server: what it may take, where it may be led, and what its own failures mean.

Reads the bodies of HTTP answers: bounded in size, held back with the host, and fair to everybody else.

A server that sends faster than it is taken would have the event loop all the time: there is always more to
read. After some work without a pause a body rests for longer than that, so others have most of the time.

Follows a server to another path of its own, such as one with a slash at its end; nobody anywhere else.

Says what an HTTP status without a message means for whoever called, and what can be done.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import anyio
import httpx2

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream.backpressure import gate
from mcp_context_proxy.errors import BadAnswerError, ServerUnavailableError
from mcp_context_proxy.protocol.framing import Event, EventFramer, OversizedEventError
from mcp_context_proxy.system import threads

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
        verify=await threads.trusted_certificates(),
        **within_origin(config.name),
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


PIECE_BYTES = 64 << 10
"""Taken at a time: what a server compressed comes by the megabyte."""

WORK_SECONDS = 0.005
"""Of work without a pause; neighbours wait no longer than a few times that."""

REST = 3
"""Times as long as it worked a body rests. Honest ones are hardly work: 16 MiB take one or two rests."""

PIECES = 128
"""Without a pause, however little work they are here: to receive each takes some, too."""


async def read(answer: httpx2.Response, server: str, limit: int) -> bytes:
    """The whole body.

    Raises:
        BadAnswerError: it is larger than `limit`.
        httpx2.HTTPError: it broke off.
    """
    body = bytearray()

    def take(piece: bytes) -> bool:
        body.extend(piece)
        if len(body) > limit:
            raise BadAnswerError(server, f"with more than {limit:,} bytes, the limit of a message")
        return False

    await _read_pieces(answer, take)
    return bytes(body)


async def read_events(
    answer: httpx2.Response, server: str, limit: int, take: Callable[[Event], bool]
) -> bool:
    """Hand over the events of a body until `take` says that it has what it waits for; whether it said so.

    Raises:
        BadAnswerError: an event is larger than `limit`.
        httpx2.HTTPError: the stream broke off.
    """
    framer = EventFramer(limit)
    try:
        return await _read_pieces(answer, lambda piece: any(map(take, framer.feed(piece))))
    except OversizedEventError as error:
        raise BadAnswerError(server, f"with an event stream that cannot be read ({error})") from None


async def _read_pieces(answer: httpx2.Response, take: Callable[[bytes], bool]) -> bool:
    worked, pieces = 0.0, 0
    async for chunk in answer.aiter_bytes():
        for start in range(0, len(chunk), PIECE_BYTES):
            await gate.wait()
            began = time.perf_counter()
            if take(chunk[start : start + PIECE_BYTES]):
                return True
            worked, pieces = worked + time.perf_counter() - began, pieces + 1
            if worked > WORK_SECONDS or pieces > PIECES:
                await anyio.sleep(max(REST * worked, WORK_SECONDS))
                worked, pieces = 0.0, 0
    return False


PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""What is over sooner or later."""

_ADVICE: dict[int, str] = {
    HTTPStatus.FORBIDDEN: "it does not allow this with the credentials it was given",
    HTTPStatus.NOT_FOUND: "nothing is there; whoever configured its URL should look at the path",
    HTTPStatus.METHOD_NOT_ALLOWED: "nothing takes calls there; whoever configured its URL should look at it",
}


def without_message(server: str, status: int, kind: str = "") -> BadAnswerError:
    """The error of an answer that has a status, and content of some kind, but no message."""
    what = f"with HTTP status {status} and no message{f' ({kind})' if kind else ''}"
    return BadAnswerError(server, f"{what}: {_advice(status)}", status)


def _advice(status: int) -> str:
    if status < HTTPStatus.BAD_REQUEST:
        return (
            "what answers there does not speak MCP as it should; whoever configured its URL should look at it"
        )
    if status in PASSING:
        return "try again in a while"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "it has a fault, which only who runs it can mend"
    return _ADVICE.get(status, "it refuses the request; whoever configured its URL should look at it")
