"""Carries frames over the SDK's transport for standard streams, which Windows needs for its pipes.

The SDK's transport exchanges parsed messages. Payloads stay plain dicts in them, so nothing inside `params`
and `result` is lost.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.downstream.link import QUEUE_FRAMES, QueuedChannel
from mcp_context_proxy.protocol import envelope

logger = logging.getLogger(__name__)


class SdkChannel(QueuedChannel):
    """A frame channel over the SDK's message streams. Implements `Channel`."""

    async def read(self, reader: Any, receive: Callable[[bytes], None]) -> None:
        """Pass received messages on until the transport ends."""
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
    """Start the server of `config` as a child process of the SDK's transport.

    Raises:
        Exception: any error of the transport, possibly in an exception group.
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
