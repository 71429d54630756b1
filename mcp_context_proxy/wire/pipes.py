"""The two ends of an operating-system pipe on the event loop, as asyncio wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LARGE_BYTES = 64 * 1024
"""From this on a frame is not copied for the sake of its line end; a small one is written in one go."""


def write_line(pipe: asyncio.WriteTransport, frame: bytes) -> None:
    """Write a frame and its line end."""
    if len(frame) < LARGE_BYTES:
        pipe.write(frame + b"\n")
    else:
        pipe.write(frame)
        pipe.write(b"\n")


class PipeReader(asyncio.Protocol):
    """Feeds what is read to a function and notes the end."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._feed = feed
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        self._feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has closed its end."""
        del exc
        self.ended.set()


class FlowControl(asyncio.BaseProtocol):
    """Knows whether the other side of a pipe is reading."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        """Clear while the pipe is full; set again also when it is closed, so that nobody waits for ever."""
        self.writable.set()
        self.closed = asyncio.Event()

    def pause_writing(self) -> None:
        """The pipe is full."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has closed its end."""
        del exc
        self.closed.set()
        self.writable.set()
