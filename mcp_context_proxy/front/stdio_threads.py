"""The stdio front where an event loop cannot wait for pipes (Windows): two threads read and write them.

As on POSIX, neither a stray print nor a child process can touch the protocol while the front is open.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import BinaryIO, Final

import anyio
import anyio.to_thread

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.stdio import LAST_RESPONSES_SECONDS
from mcp_context_proxy.front.conversation import Conversation
from mcp_context_proxy.protocol.envelope import INVALID_REQUEST, is_large
from mcp_context_proxy.protocol.framing import LineFramer, Oversized
from mcp_context_proxy.server.negotiation import Negotiation
from mcp_context_proxy.trust.tokens import THE_USER, Principal

READ_BYTES: Final = 64 * 1024

QUEUED: Final = 1024
"""Frames that wait to be written; beyond it, notifications are dropped and all others wait."""



async def serve_in_threads(negotiation: Negotiation, limits: Limits, rights: Principal = THE_USER) -> None:
    """Serve a host with its rights until it closes its end; requests under way soon after are cancelled."""
    source, sink = _taken_over()
    streams = ThreadedStreams(source, sink)
    conversation = Conversation(
        negotiation=negotiation, limits=limits, channel=streams, write_response=streams.send, rights=rights
    )
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
                if isinstance(frame, Oversized):
                    why = f"message of {frame.size:,} bytes, limit {frame.limit:,}"
                    conversation.reject(frame.head, frame.tail, INVALID_REQUEST, why)
                elif is_large(frame):
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
                await anyio.to_thread.run_sync(self._sink.write, frame + b"\n", abandon_on_cancel=True)
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

    async def flush(self) -> None:
        """Wait until all is written."""
        while self._unwritten:
            await self._written.wait()

    def pause_reading(self) -> None:
        if self._readable.is_set():
            self._readable = anyio.Event()

    def resume_reading(self) -> None:
        self._readable.set()
