"""Bounds the answers that wait for a host to read: while they are too many, servers are not taken from.

Nothing is lost by that: what a server sends stays in its pipe, and its calls go on when the host reads on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mcp_context_proxy.downstream.flow import gate


class Backlog:
    """The answers of one host that are not written yet."""

    def __init__(self, limit: int, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Let at most `limit` bytes wait, and one message of each server; `send` waits for the host."""
        self._limit, self._send = limit, send
        self._bytes = 0

    async def send(self, answer: bytes) -> None:
        """Write an answer once the host takes it."""
        self._bytes += len(answer)
        if self._bytes > self._limit:
            gate.close()
        try:
            await self._send(answer)
        finally:
            self._bytes -= len(answer)
            if self._bytes <= self._limit:
                gate.open()
