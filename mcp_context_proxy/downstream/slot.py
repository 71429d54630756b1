"""One of the places for servers that are being started: held for a bounded time, freed once."""

from __future__ import annotations

import asyncio

import anyio

SLOT_SECONDS = 5.0
"""How long a server that is being started keeps others waiting: one that hangs must not hold them up."""


class Slot:
    """A place; freed by whoever comes first."""

    def __init__(self, starting: anyio.Semaphore) -> None:
        self._starting = starting
        self._taken = False

    async def take(self) -> None:
        """Wait for a place."""
        await self._starting.acquire()
        self._taken = True
        asyncio.get_running_loop().call_later(SLOT_SECONDS, self.free)

    def free(self) -> None:
        """Leave the place to another server."""
        if self._taken:
            self._taken = False
            self._starting.release()
