"""The stdio front: one host at the other end of the process's standard streams.

Hosts connect pipes. A file, a terminal or the null device, which an event loop cannot wait for, is copied
from or to a pipe by a thread, so that a person can try the proxy from a shell. While the front is open, file
descriptor 0 reads nothing and 1 writes to stderr: neither a stray print nor a child process can touch the
protocol. On Windows, where an event loop cannot wait for any pipe, two threads read and write them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO, Final

import anyio
import anyio.to_thread

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.conversation import Conversation, converse
from mcp_context_proxy.protocol.envelope import is_large
from mcp_context_proxy.protocol.framing import LineFramer, MessageReader, PipeWriter, gate, on_one_line
from mcp_context_proxy.server.negotiation import Negotiation
from mcp_context_proxy.trust import THE_USER, Principal

COPY_SECONDS = 2.0
"""Time at the end for output to be copied to a file or a terminal."""


async def serve(negotiation: Negotiation, limits: Limits, rights: Principal = THE_USER) -> None:
    """Serve a host with its rights until it closes its end."""
    async with open_standard_pipes(limits) as pipes:
        conversation = Conversation(negotiation=negotiation, limits=limits, channel=pipes, rights=rights)
        await converse(conversation, pipes, limits.stalled_seconds)


class StandardPipes:
    """Reads and writes frames over the process's standard streams. Implements `HostStream`."""

    def __init__(
        self,
        read_fd: int,
        writer: PipeWriter,
        out: asyncio.WriteTransport,
        copying: threading.Thread | None,
        *,
        limits: Limits,
    ) -> None:
        self._read_fd, self._writer, self._out, self._copying = read_fd, writer, out, copying
        self.send_nowait, self.sent_at_once = writer.send_nowait, writer.sent_at_once
        self._limits, self._unread = limits, 0
        """Bytes that wait for the host."""
        self._reader: MessageReader | None = None
        self._into: asyncio.ReadTransport | None = None

    async def send(self, frame: bytes) -> None:
        """Write one frame; while too many bytes wait for the host, the servers are not read."""
        if self.sent_at_once(frame):
            return
        most = self._limits.unread_bytes
        self._unread += len(frame)
        if self._unread > most:
            gate.close()
        try:
            await self._writer.send(frame)
        finally:
            was_over = self._unread > most
            self._unread -= len(frame)
            if was_over and self._unread <= most:
                gate.open()

    async def read(self, conversation: Conversation) -> None:
        self._reader = reader = MessageReader(
            framer=LineFramer(self._limits.message_bytes),
            receive=conversation.receive,
            receive_large=conversation.receive_large,
        )
        loop = asyncio.get_running_loop()
        self._into, _ = await loop.connect_read_pipe(lambda: reader, os.fdopen(self._read_fd, "rb", 0))
        await reader.run_until_ended()

    def pause_reading(self) -> None:
        if self._reader is not None:
            self._reader.pause_reading()

    def resume_reading(self) -> None:
        if self._reader is not None:
            self._reader.resume_reading()

    async def flush(self) -> None:
        self._out.set_write_buffer_limits(0, 0)
        await self._writer.writable.wait()

    async def stalled(self, seconds: float) -> None:
        await self._writer.stalled(seconds)
        if not self._out.is_closing():
            self._out.abort()

    def close(self) -> None:
        if self._into is None:
            os.close(self._read_fd)
        else:
            self._into.close()
        self._writer.hand_over()
        self._out.close()
        if self._copying is not None:
            self._copying.join(COPY_SECONDS)


@asynccontextmanager
async def open_standard_pipes(limits: Limits) -> AsyncIterator[StandardPipes]:
    """Take the standard streams over. Nothing is read before `StandardPipes.read`."""
    import fcntl  # noqa: PLC0415 - POSIX only

    loop = asyncio.get_running_loop()
    read_fd, write_fd = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    copying = None
    if not _is_pipe(read_fd):
        source, (read_fd, sink) = read_fd, os.pipe()
        _start_copying(source, sink)
    if not _is_pipe(write_fd):
        sink, (source, write_fd) = write_fd, os.pipe()
        copying = _start_copying(source, sink)
    writer = PipeWriter()
    out, _ = await loop.connect_write_pipe(lambda: writer, os.fdopen(write_fd, "wb", 0))
    pipes = StandardPipes(read_fd, writer, out, copying, limits=limits)
    try:
        yield pipes
    finally:
        pipes.close()


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _start_copying(source: int, sink: int) -> threading.Thread:
    """Copy in a thread until the end, or until one side is gone; then close both."""

    def copy() -> None:
        with open(source, "rb", 0) as reading, open(sink, "wb", 0) as writing, contextlib.suppress(OSError):
            shutil.copyfileobj(reading, writing)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


READ_BYTES: Final = 64 * 1024

QUEUED: Final = 1024
"""Frames that wait to be written; beyond it, notifications are dropped and all others wait."""


async def serve_in_threads(negotiation: Negotiation, limits: Limits, rights: Principal = THE_USER) -> None:
    """Serve a host with its rights until it closes its end."""
    source, sink = _taken_over()
    streams = ThreadedStreams(source, sink, limits.message_bytes)
    conversation = Conversation(negotiation=negotiation, limits=limits, channel=streams, rights=rights)
    async with anyio.create_task_group() as group:
        group.start_soon(streams.write)
        await converse(conversation, streams, limits.stalled_seconds)
        group.cancel_scope.cancel()


def _taken_over() -> tuple[BinaryIO, BinaryIO]:
    """Return copies of the standard streams, of which the originals lead to nothing and to stderr."""
    source, sink = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.flush()
    os.dup2(2, 1)
    return source, sink


class ThreadedStreams:
    """Reads and writes frames of one host. Implements `HostStream`."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, message_bytes: int) -> None:
        self._source, self._sink, self._message_bytes = source, sink, message_bytes
        self._frames, self._queue = anyio.create_memory_object_stream[bytes](QUEUED)
        self._unwritten = 0
        self._written = anyio.Event()
        self._readable = anyio.Event()
        self._readable.set()

    async def read(self, conversation: Conversation) -> None:
        framer = LineFramer(self._message_bytes)
        while data := await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True):
            for frame in framer.feed(data):
                await self._readable.wait()
                if isinstance(frame, bytes) and is_large(frame):
                    await conversation.receive_large(frame)
                else:
                    conversation.receive(frame)

    def _read(self) -> bytes:
        return self._source.read(READ_BYTES)

    async def write(self) -> None:
        """Write queued frames until cancelled."""
        async for frame in self._queue:
            # When the host is gone, the end of its input ends the conversation.
            with contextlib.suppress(OSError):
                line = on_one_line(frame) + b"\n"
                await anyio.to_thread.run_sync(self._sink.write, line, abandon_on_cancel=True)
            self._unwritten -= 1
            self._written.set()
            self._written = anyio.Event()

    async def send(self, frame: bytes) -> None:
        self._unwritten += 1
        await self._frames.send(frame)

    def send_nowait(self, frame: bytes) -> bool:
        try:
            self._frames.send_nowait(frame)
        except anyio.WouldBlock:
            return False
        self._unwritten += 1
        return True

    sent_at_once = send_nowait

    async def flush(self) -> None:
        while self._unwritten:
            await self._written.wait()

    async def stalled(self, seconds: float) -> None:
        await anyio.sleep_forever()  # the thread that writes waits for the host, and nothing can end it

    def pause_reading(self) -> None:
        if self._readable.is_set():
            self._readable = anyio.Event()

    def resume_reading(self) -> None:
        self._readable.set()
