"""The stdio front: one host at the other end of the process's standard streams.

Hosts connect pipes. A file, a terminal or the null device, which an event loop cannot wait for, is copied
from or to a socket by a thread, so that a person can try the proxy from a shell. So is every stream on
Windows, where an event loop cannot wait for pipes either. While the front is open, file descriptor 0 reads
nothing and 1 writes to stderr: neither a stray print nor a child process can touch the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO, Final

import anyio

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.conversation import Conversation, HostStream, converse
from mcp_context_proxy.protocol.framing import READ_BYTES, gate
from mcp_context_proxy.server.negotiation import Negotiation
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import THE_USER, Principal

COPY_SECONDS: Final = 2.0
"""Time at the end for output to be copied to a file or a terminal."""


async def serve(negotiation: Negotiation, limits: Limits, rights: Principal = THE_USER) -> None:
    """Serve a host with its rights until it closes its end."""
    read_fd, write_fd = _taken_over()
    pipes = sys.platform != "win32" and _is_pipe(read_fd) and _is_pipe(write_fd)
    opened = _open_pipes if pipes else _open_copies
    async with opened(read_fd, write_fd, limits) as stream:
        conversation = Conversation(negotiation=negotiation, limits=limits, channel=stream, rights=rights)
        await converse(conversation, stream, limits.stalled_seconds)


def _taken_over() -> tuple[int, int]:
    """Return copies of the standard streams, of which the originals lead to nothing and to stderr."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read_fd, write_fd


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class StandardPipes(HostStream):
    """Reads and writes frames over the process's standard streams."""

    def __init__(self, source: IO[bytes], limits: Limits) -> None:
        super().__init__(limits.message_bytes)
        self._source, self._most, self._unread = source, limits.unread_bytes, 0
        """The pipe that is read, and the bytes that may wait, and that do wait, for the host."""

    @classmethod
    async def open(cls, read_fd: int, write_fd: int, limits: Limits) -> StandardPipes:
        """Take both pipes over."""
        pipes, loop = cls(os.fdopen(read_fd, "rb", 0), limits), asyncio.get_running_loop()
        pipes._out, _ = await loop.connect_write_pipe(lambda: pipes._writer, os.fdopen(write_fd, "wb", 0))
        return pipes

    async def send(self, frame: bytes) -> None:
        """Write one frame; while too many bytes wait for the host, the servers are not read."""
        if self.sent_at_once(frame):
            return
        self._unread += len(frame)
        if self._unread > self._most:
            gate.close()
        try:
            await super().send(frame)
        finally:
            was_over = self._unread > self._most
            self._unread -= len(frame)
            if was_over and self._unread <= self._most:
                gate.open()

    async def read(self, conversation: Conversation) -> None:
        await asyncio.get_running_loop().connect_read_pipe(lambda: self, self._source)
        await super().read(conversation)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        else:  # also where a stop has come while the loop took the pipe, and has closed it
            self._source.close()
        super().close()


@asynccontextmanager
async def _open_pipes(read_fd: int, write_fd: int, limits: Limits) -> AsyncIterator[HostStream]:
    """Write to one pipe, and read the other from `StandardPipes.read` on."""
    pipes = await StandardPipes.open(read_fd, write_fd, limits)
    try:
        yield pipes
    finally:
        pipes.close()


@asynccontextmanager
async def _open_copies(read_fd: int, write_fd: int, limits: Limits) -> AsyncIterator[HostStream]:
    """Copy both streams in threads, from and to a socket that the event loop can wait for."""
    from mcp_context_proxy.front.local import SocketChannel  # noqa: PLC0415 - no host needs it

    near, far = socket.socketpair()

    def copy_in() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(read_fd, READ_BYTES):
                far.sendall(data)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    def copy_out() -> None:
        with contextlib.suppress(OSError), far:
            while data := far.recv(READ_BYTES):
                while data:
                    data = data[os.write(write_fd, data) :]

    channel = await SocketChannel.open(near, limits.message_bytes)
    _start(copy_in)
    copying = _start(copy_out)
    try:
        yield channel
    finally:
        channel.close()
        with anyio.CancelScope(shield=True):
            await in_thread(copying.join, COPY_SECONDS)


def _start(copy: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread
