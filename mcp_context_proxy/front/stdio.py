"""The stdio front: one host at the other end of the process's standard streams.

Hosts connect pipes. A file, a terminal or the null device, which an event loop cannot wait for, is copied
from or to a pipe by a thread, so that a person can try the proxy from a shell. While the front is open, file
descriptor 0 reads nothing and 1 writes to stderr: neither a stray print nor a child process can touch the
protocol. On Windows, where an event loop cannot wait for any pipe, two threads read and write them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
from mcp_context_proxy.front.conversation import Conversation
from mcp_context_proxy.protocol.envelope import is_large
from mcp_context_proxy.protocol.framing import LineFramer, MessageReader, PipeWriter, gate, on_one_line
from mcp_context_proxy.server.negotiation import Negotiation
from mcp_context_proxy.trust import THE_USER, Principal

logger = logging.getLogger(__name__)


COPY_SECONDS = 2.0
"""Time at the end for output to be copied to a file or a terminal."""

LAST_RESPONSES_SECONDS = 0.5
"""Time for requests that are under way when the input ends: enough for a person who pipes requests in, and
soon enough for the servers to be stopped after a host has gone."""


async def serve(negotiation: Negotiation, limits: Limits, rights: Principal = THE_USER) -> None:
    """Serve a host with its rights until it closes its end; requests under way soon after are cancelled."""
    async with anyio.create_task_group() as group, open_standard_pipes(limits.unread_bytes) as pipes:
        conversation = Conversation(negotiation=negotiation, limits=limits, channel=pipes, rights=rights)

        async def stop_when_stalled() -> None:
            await pipes.stalled(limits.stalled_seconds)
            logger.warning("the host has read nothing for %g s: stopping", limits.stalled_seconds)
            group.cancel_scope.cancel()

        group.start_soon(stop_when_stalled)
        await group.start(conversation.run)
        await pipes.read(conversation, limits.message_bytes)
        with anyio.move_on_after(LAST_RESPONSES_SECONDS):
            await conversation.finish()
            await pipes.flush()
        group.cancel_scope.cancel()


class StandardPipes:
    """Reads and writes frames over the process's standard streams. Implements `HostChannel`."""

    def __init__(
        self,
        read_fd: int,
        writer: PipeWriter,
        out: asyncio.WriteTransport,
        copying: threading.Thread | None,
        *,
        unread_bytes: int,
    ) -> None:
        self._read_fd, self._writer, self._out, self._copying = read_fd, writer, out, copying
        self.send_nowait, self.sent_at_once = writer.send_nowait, writer.sent_at_once
        self._unread, self._unread_bytes = 0, unread_bytes
        """Bytes that wait for the host, and how many of them may."""
        self._into: asyncio.ReadTransport | None = None

    async def send(self, frame: bytes) -> None:
        """Write one frame; while too many bytes wait for the host, the servers are not read."""
        if self.sent_at_once(frame):
            return
        self._unread += len(frame)
        if self._unread > self._unread_bytes:
            gate.close()
        try:
            await self._writer.send(frame)
        finally:
            was_over = self._unread > self._unread_bytes
            self._unread -= len(frame)
            if was_over and self._unread <= self._unread_bytes:
                gate.open()

    async def read(self, conversation: Conversation, message_bytes: int) -> None:
        """Hand the host's messages to its conversation, until the end of input."""
        reader = MessageReader(
            framer=LineFramer(message_bytes),
            receive=conversation.receive,
            receive_large=conversation.receive_large,
            resume=self.resume_reading,
        )
        loop = asyncio.get_running_loop()
        self._into, _ = await loop.connect_read_pipe(lambda: reader, os.fdopen(self._read_fd, "rb", 0))
        async with anyio.create_task_group() as group:
            group.start_soon(reader.run)
            await reader.ended.wait()
            group.cancel_scope.cancel()

    def pause_reading(self) -> None:
        if self._into is not None and self._into.is_reading():
            self._into.pause_reading()

    def resume_reading(self) -> None:
        if self._into is not None and not self._into.is_closing() and not self._into.is_reading():
            self._into.resume_reading()

    async def flush(self) -> None:
        """Wait until all is written, or the host is gone."""
        self._out.set_write_buffer_limits(0, 0)
        await self._writer.writable.wait()

    async def stalled(self, seconds: float) -> None:
        """Wait until the host has read nothing of a full pipe for `seconds`; then abort the output."""
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
async def open_standard_pipes(unread_bytes: int) -> AsyncIterator[StandardPipes]:
    """Take the standard streams over. Nothing is read before `StandardPipes.read`.

    While more than `unread_bytes` wait for the host, the servers are not read.
    """
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
    pipes = StandardPipes(read_fd, writer, out, copying, unread_bytes=unread_bytes)
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
    """Serve a host with its rights until it closes its end; requests under way soon after are cancelled."""
    source, sink = _taken_over()
    streams = ThreadedStreams(source, sink)
    conversation = Conversation(negotiation=negotiation, limits=limits, channel=streams, rights=rights)
    async with anyio.create_task_group() as group:
        group.start_soon(streams.write)
        await group.start(conversation.run)
        await streams.read(conversation, limits.message_bytes)
        with anyio.move_on_after(LAST_RESPONSES_SECONDS):
            await conversation.finish()
            await streams.flush()
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
    """Reads and writes frames of one host. Implements `HostChannel`."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._frames, self._queue = anyio.create_memory_object_stream[bytes](QUEUED)
        self._unwritten = 0
        self._written = anyio.Event()
        self._readable = anyio.Event()
        self._readable.set()

    async def read(self, conversation: Conversation, message_bytes: int) -> None:
        """Hand the host's messages to its conversation, until the end of input."""
        framer = LineFramer(message_bytes)
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
        """Wait until all is written."""
        while self._unwritten:
            await self._written.wait()

    def pause_reading(self) -> None:
        if self._readable.is_set():
            self._readable = anyio.Event()

    def resume_reading(self) -> None:
        self._readable.set()
