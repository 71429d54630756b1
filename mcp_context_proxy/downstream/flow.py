"""Whether what servers send is taken at all: not while too much of it waits for the host to read.

A host on standard streams is the only one that its process serves, so there is one gate for all servers, and
nobody else waits behind it. Where many hosts are served, over HTTP, it stays open.
"""

from __future__ import annotations

import asyncio
from weakref import WeakSet

import anyio


class Gate:
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


gate = Gate()
"""Of this process."""
