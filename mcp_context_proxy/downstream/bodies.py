"""Reads the bodies of HTTP answers: bounded in size, held back with the host, and fair to everybody else.

A server that sends faster than it is taken would have the event loop all the time: there is always more to
read. After some work without a pause a body rests for longer than that, so others have most of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import httpx2

from mcp_context_proxy.downstream.flow import gate
from mcp_context_proxy.errors import BadAnswerError
from mcp_context_proxy.wire.events import Event, EventFramer, OversizedEventError

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
