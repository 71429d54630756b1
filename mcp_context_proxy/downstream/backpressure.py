"""Backpressure of this process: stops reading servers while the stdio host does not read responses.

A host on standard streams is the only one that its process serves, so one gate for all servers is enough.
Over HTTP, where many hosts are served, the gate stays open. Nothing is lost while it is closed: messages stay
in the pipes of the servers, and calls go on when the host reads again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from weakref import WeakSet

import anyio


class Backpressure:
    """A gate in front of pipes and response bodies of servers, open or closed."""

    def __init__(self) -> None:
        self._pipes: WeakSet[asyncio.ReadTransport] = WeakSet()
        self._opened: anyio.Event | None = None
        """Set when the gate opens; None while it is open."""

    def pass_through(self, pipe: asyncio.ReadTransport) -> None:
        """Pause this pipe whenever the gate is closed."""
        self._pipes.add(pipe)
        if self._opened is not None:
            pipe.pause_reading()

    @property
    def is_open(self) -> bool:
        """True while servers are read."""
        return self._opened is None

    async def wait(self) -> None:
        """Wait until the gate is open."""
        while self._opened is not None:
            await self._opened.wait()

    def close(self) -> None:
        """Stop reading the servers: messages stay in their pipes."""
        if self._opened is None:
            self._opened = anyio.Event()
            for pipe in self._pipes:
                if not pipe.is_closing():
                    pipe.pause_reading()

    def open(self) -> None:
        """Go on reading the servers."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None
            for pipe in self._pipes:
                if not pipe.is_closing():
                    pipe.resume_reading()


gate = Backpressure()


class Bucket:
    """A token bucket: lets `burst` events pass at once and `rate` a second after that."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at = float(burst), clock()
        self.refused = 0

    def take(self) -> bool:
        """Return whether one more event may pass now."""
        if self.is_empty:
            self.refused += 1
            return False
        self._left -= 1
        return True

    @property
    def is_empty(self) -> bool:
        """True if no event may pass now."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left < 1
