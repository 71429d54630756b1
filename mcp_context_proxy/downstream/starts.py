"""Bounds how many servers are being started at a time, and how many before the proxy itself is ready.

Programs that start take the processor from a host that waits for the proxy's first answer. So a first wave
starts beside the proxy, and the rest follows when it serves. A place is held for a bounded time, freed once.
"""

from __future__ import annotations

import asyncio

import anyio

SLOT_SECONDS = 5.0
"""How long a server that is being started keeps others waiting: one that hangs must not hold them up."""


class Starts:
    """The places for servers that are being started."""

    def __init__(self, at_once: int) -> None:
        """Have so many places, also in the first wave."""
        self._places = anyio.Semaphore(at_once)
        self._first = at_once
        self._all = anyio.Event()
        self._all.set()

    def hold_back(self) -> None:
        """Start no more than the first wave for now."""
        self._all = anyio.Event()

    def let_all(self) -> None:
        """Start all there are, as there are places."""
        self._all.set()

    async def take(self) -> None:
        """Wait for a place."""
        if not self._all.is_set():
            if self._first == 0:
                await self._all.wait()
            else:
                self._first -= 1
        await self._places.acquire()

    def free(self) -> None:
        """Give a place back."""
        self._places.release()


class Slot:
    """One place; freed by whoever comes first."""

    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self._taken = False

    async def take(self) -> None:
        """Wait for a place."""
        await self._starts.take()
        self._taken = True
        asyncio.get_running_loop().call_later(SLOT_SECONDS, self.free)

    def free(self) -> None:
        """Leave the place to another server."""
        if self._taken:
            self._taken = False
            self._starts.free()
