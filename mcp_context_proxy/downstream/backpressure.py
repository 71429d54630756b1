"""Whether what servers send is taken at all: not while too much of it waits for the host to read.

A host on standard streams is the only one that its process serves, so there is one gate for all servers, and
nobody else waits behind it. Where many hosts are served, over HTTP, it stays open. Nothing is lost by it:
what a server sends stays in its pipe, and its calls go on when the host reads on.

How often something may happen: a token bucket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from weakref import WeakSet

import anyio


class Backpressure:
    """Open, or holding back pipes and response bodies."""

    def __init__(self) -> None:
        self._pipes: WeakSet[asyncio.ReadTransport] = WeakSet()
        self._opened: anyio.Event | None = None

    def pass_through(self, pipe: asyncio.ReadTransport) -> None:
        """Hold this pipe back whenever the gate is closed."""
        self._pipes.add(pipe)
        if self._opened is not None:
            pipe.pause_reading()

    async def wait(self) -> None:
        """Wait until the gate is open."""
        while self._opened is not None:
            await self._opened.wait()

    def close(self) -> None:
        """Take nothing more of the servers for now: it stays in their pipes, and they wait."""
        if self._opened is None:
            self._opened = anyio.Event()
            for pipe in self._pipes:
                if not pipe.is_closing():
                    pipe.pause_reading()

    def open(self) -> None:
        """Take on."""
        if self._opened is not None:
            self._opened.set()
            self._opened = None
            for pipe in self._pipes:
                if not pipe.is_closing():
                    pipe.resume_reading()


gate = Backpressure()
"""Of this process."""


class Bucket:
    """Lets `burst` events pass at once and `rate` a second after that; counts those it did not."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at = float(burst), clock()
        self.refused = 0

    def take(self) -> bool:
        """Whether one more may pass now."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            self.refused += 1
            return False
        self._left -= 1
        return True
