"""The process's own standard input and output as a bounded frame channel on the event loop (POSIX).

While it is open, file descriptor 0 reads nothing and 1 writes to stderr: neither a stray print nor a child
can touch the protocol.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from mcp_context_proxy.wire.framing import LineFramer, Oversized
from mcp_context_proxy.wire.pipes import FlowControl, PipeReader

Receive = Callable[[bytes | Oversized], None]


class StandardPipes:
    """Frames in and out over the process's standard streams."""

    def __init__(self, read_fd: int, writer: FlowControl, out: asyncio.WriteTransport) -> None:
        self._read_fd, self._writer, self._out = read_fd, writer, out
        self._reader: PipeReader | None = None
        self._into: asyncio.ReadTransport | None = None

    async def read(self, message_bytes: int, receive: Receive) -> None:
        """Hand frames to `receive` until the end of input."""
        framer = LineFramer(message_bytes)

        def feed(data: bytes) -> None:
            for frame in framer.feed(data):
                receive(frame)

        self._reader = reader = PipeReader(feed)
        loop = asyncio.get_running_loop()
        self._into, _ = await loop.connect_read_pipe(lambda: reader, os.fdopen(self._read_fd, "rb", 0))
        await reader.ended.wait()

    def close(self) -> None:
        """Close both directions."""
        if self._into is None:
            os.close(self._read_fd)
        else:
            self._into.close()
        self._out.close()

    async def send(self, frame: bytes) -> None:
        """Write one frame; waits while the host does not read. Dropped when the host is gone."""
        if not self._writer.writable.is_set():
            await self._writer.writable.wait()
        self._write(frame)

    def send_nowait(self, frame: bytes) -> bool:
        """Write one frame unless the host is not reading; whether it was written."""
        if not self._writer.writable.is_set():
            return False
        self._write(frame)
        return True

    async def flush(self) -> None:
        """Wait until all is written, or the host is gone."""
        self._out.set_write_buffer_limits(0, 0)
        await self._writer.writable.wait()

    def _write(self, frame: bytes) -> None:
        if not self._writer.closed:
            self._out.write(frame + b"\n")


@asynccontextmanager
async def open_standard_pipes() -> AsyncIterator[StandardPipes]:
    """Take the standard streams over. Nothing is read before `StandardPipes.read`."""
    loop = asyncio.get_running_loop()
    read_fd, write_fd = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    writer = FlowControl()
    out, _ = await loop.connect_write_pipe(lambda: writer, os.fdopen(write_fd, "wb", 0))
    pipes = StandardPipes(read_fd, writer, out)
    try:
        yield pipes
    finally:
        pipes.close()
