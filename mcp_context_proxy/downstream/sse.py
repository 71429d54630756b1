"""Carries frames over HTTP+SSE: one event stream to us, one POST for each frame from us.

The SDK's transport for it bounds an event at 1 MiB and cannot be told otherwise; one larger result would
end the connection. Here the bound is configured, and frames stay the bytes that came.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared._httpx_utils import sse_within_origin

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import redirects
from mcp_context_proxy.downstream.flow import gate
from mcp_context_proxy.errors import DownstreamError
from mcp_context_proxy.wire import certificates

logger = logging.getLogger(__name__)

QUEUE_FRAMES = 64
"""Frames that wait to be posted, before senders wait."""


class SseChannel:
    """An open event stream and the address that takes what we send. Implements `Channel`."""

    killed = False
    """Nothing is known of a process."""

    def __init__(self, client: httpx2.AsyncClient, queue: MemoryObjectSendStream[bytes]) -> None:
        self._client, self._queue = client, queue
        self._address = ""
        self._cause = "closed the connection"
        self.ready = anyio.Event()
        """The server has named its address, or the stream has ended without."""
        self._ended = anyio.Event()

    async def send(self, frame: bytes) -> None:
        """Queue one frame.

        Raises:
            ConnectionError: the stream has ended.
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
            logger.debug("dropped a frame, it cannot be posted now")

    def give_up(self, cause: str) -> None:
        """Treat the stream as lost: what comes over it is of no use."""
        self._cause = cause
        self._end()

    async def until_ended(self) -> None:
        """Wait until the stream has ended."""
        await self._ended.wait()

    async def wait_closed(self) -> str:
        """Wait until the stream has ended; say how, for a person."""
        await self.until_ended()
        return self._cause

    async def read(self, events: httpx2.EventSource, url: str, receive: Callable[[bytes], None]) -> None:
        """Hand over what comes until the stream ends."""
        try:
            async for event in events:
                await gate.wait()
                if event.event == "endpoint":
                    self._address = _same_origin(url, event.data)
                    self.ready.set()
                elif event.event == "message" and event.data:
                    receive(event.data.encode())
        except (httpx2.HTTPError, httpx2.SSEError, ValueError) as error:
            self._cause = f"broke off the event stream ({str(error) or type(error).__name__})"
        finally:
            self._end()

    async def write(self, frames: MemoryObjectReceiveStream[bytes]) -> None:
        """Post what is queued, in order."""
        try:
            async for frame in frames:
                headers = {"content-type": "application/json"}
                answer = await self._client.post(self._address, content=frame, headers=headers)
                answer.raise_for_status()
        except (httpx2.HTTPError, DownstreamError) as error:
            self._cause = f"took no message ({str(error) or type(error).__name__})"
            self._end()

    def _end(self) -> None:
        self.ready.set()
        self._ended.set()


@asynccontextmanager
async def open_sse(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, receive: Callable[[bytes], None]
) -> AsyncIterator[SseChannel]:
    """Open the event stream that `config` names.

    Raises:
        httpx2.HTTPError: it cannot be opened.
    """
    url = config.url or ""
    timeout = httpx2.Timeout(limits.connect_seconds, read=None)
    verify = await certificates.trusted()
    async with (
        httpx2.AsyncClient(
            auth=auth,
            headers=config.headers,
            timeout=timeout,
            verify=verify,
            **redirects.within_origin(config.name),
        ) as client,
        sse_within_origin(client, url, max_event_size=limits.sse_event_bytes) as events,
    ):
        events.response.raise_for_status()
        queue, frames = anyio.create_memory_object_stream[bytes](QUEUE_FRAMES)
        channel = SseChannel(client, queue)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.read, events, url, receive)
            try:
                await channel.ready.wait()
                group.start_soon(channel.write, frames)
                yield channel
            finally:
                group.cancel_scope.cancel()
                frames.close()
                queue.close()


def _same_origin(url: str, address: str) -> str:
    """The address to post to; a stream must not send us, and our headers, elsewhere."""
    found = urljoin(url, address)
    if urlsplit(found)[:2] != urlsplit(url)[:2]:
        raise ValueError(f"it names an address of another origin: {urlsplit(found).netloc}")
    return found
