"""Carries frames over the SDK's transport for standard streams: on Windows, where pipes need it.

It speaks in parsed messages. Payloads stay plain dicts on that way, so nothing inside `params` and `result`
is lost.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.downstream.link import Ending
from mcp_context_proxy.protocol import envelope

logger = logging.getLogger(__name__)

QUEUE_FRAMES = 64
"""Frames that wait for the transport to take them, before senders wait."""


class SdkChannel(Ending):
    """A frame channel over the SDK's message streams. Implements `OpenChannel`."""

    def __init__(self, queue: MemoryObjectSendStream[bytes]) -> None:
        super().__init__()
        self._queue = queue

    async def send(self, frame: bytes) -> None:
        """Queue one frame.

        Raises:
            ConnectionError: the transport is closed.
        """
        try:
            await self._queue.send(frame)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ConnectionError(self._cause) from None

    def send_nowait(self, frame: bytes) -> None:
        """Queue one frame, or drop it when the queue is full or closed."""
        try:
            self._queue.send_nowait(frame)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            logger.debug("dropped a frame, the transport is not reading")

    async def read(self, reader: Any, receive: Callable[[bytes], None]) -> None:
        """Hand over what comes until the transport ends."""
        try:
            async for item in reader:
                if isinstance(item, Exception):
                    logger.debug("transport: %s", item)
                else:
                    message = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                    receive(envelope.encode(message))
        finally:
            self._end()


@asynccontextmanager
async def open_sdk_channel(
    config: ServerConfig, receive: Callable[[bytes], None]
) -> AsyncIterator[SdkChannel]:
    """Open the SDK transport that `config` asks for.

    Raises:
        Exception: whatever the transport raises, possibly in an exception group.
    """
    send_frames, frames = anyio.create_memory_object_stream[bytes](QUEUE_FRAMES)
    channel = SdkChannel(send_frames)
    async with _transport(config) as (reader, writer), anyio.create_task_group() as group:
        group.start_soon(channel.read, reader, receive)
        group.start_soon(_write, frames, writer)
        try:
            yield channel
        finally:
            group.cancel_scope.cancel()
            frames.close()
            send_frames.close()


@asynccontextmanager
async def _transport(config: ServerConfig) -> AsyncIterator[tuple[Any, Any]]:
    from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 - 0.4 s, nowhere else

    parameters = StdioServerParameters(
        command=config.command or "", args=list(config.args), env=dict(config.env), cwd=config.cwd
    )
    async with stdio_client(parameters) as streams:
        yield streams[0], streams[1]


async def _write(frames: MemoryObjectReceiveStream[bytes], writer: Any) -> None:
    from mcp.shared.message import SessionMessage  # noqa: PLC0415
    from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415

    async for frame in frames:
        message = jsonrpc_message_adapter.validate_python(envelope.value(frame), by_name=False)
        await writer.send(SessionMessage(message))
