"""Sends a large body in parts, each once the one before it is taken: what waits is not copied for that."""

from __future__ import annotations

from starlette.types import Send

from mcp_context_proxy.front.unsent import Waiting

PART_BYTES = 256 * 1024
"""Handed to a connection at a time."""


async def send_body(send: Send, body: bytes, waiting: Waiting, *, more: bool) -> None:
    """Send a body, or a piece of one that has `more`; `waiting` hears what of it is still to be sent."""
    left = memoryview(body)
    waiting(len(left))
    try:
        while len(left) > PART_BYTES:
            await send({"type": "http.response.body", "body": left[:PART_BYTES], "more_body": True})
            left = left[PART_BYTES:]
            waiting(-PART_BYTES)
        await send({"type": "http.response.body", "body": bytes(left), "more_body": more})
    finally:
        waiting(-len(left))
        left.release()
