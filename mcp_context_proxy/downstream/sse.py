"""Carries frames over HTTP+SSE: an event stream from the server, and a POST for each frame to it.

The SDK's transport for it bounds an event at 1 MiB, so a larger result would end the connection. Here the
bound is configured, and frames stay undecoded.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import UNSET

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import http_client
from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.downstream.link import QUEUE_FRAMES, QueuedChannel
from mcp_context_proxy.errors import DownstreamError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.framing import Event

logger = logging.getLogger(__name__)

ORDER_SECONDS = 1.0
"""Time for a server to accept a frame before the next one is posted beside it."""

LATE_SECONDS = 0.02
"""The same for a server that was late before: it may answer a POST only when the request in it has run."""

UNKNOWN = frozenset({404, 410})
"""Statuses of a server that does not know the stream: no response would ever come over it."""

RECEIPT_BYTES = 64 << 10
"""Size up to which the body of a POST's response is read; it is not used."""


class SseChannel(QueuedChannel):
    """An open event stream and the address to post frames to. Implements `Channel`."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        client: httpx2.AsyncClient,
        queue: MemoryObjectSendStream[bytes],
        peer: Peer,
    ) -> None:
        super().__init__(queue)
        self._server, self._limits = config.name, limits
        self._client, self._peer = client, peer
        self._address = ""
        self.ready = anyio.Event()
        """Set when the server has named its address, or the stream has ended without."""

    async def read(self, stream: httpx2.Response, url: str) -> None:
        """Pass received events on until the stream ends."""

        def take(event: Event) -> bool:
            if event.name == b"endpoint":
                self._address = _same_origin(url, event.data.decode())
                self.ready.set()
            elif event.name == b"message" and event.data:
                self._peer.receive(event.data)
            return False

        try:
            await http_client.read_events(stream, self._server, self._limits.sse_event_bytes, take)
        except (httpx2.HTTPError, DownstreamError, ValueError) as error:
            self._cause = f"broke off the event stream ({http_client.described(error)})"
        finally:
            self._end()

    async def write(self, frames: MemoryObjectReceiveStream[bytes], group: TaskGroup) -> None:
        """Post the queued frames in order.

        The next frame is posted when the server has accepted the one before, or takes long to: some servers
        accept a request only when it has run.
        """
        patience = ORDER_SECONDS
        async for frame in frames:
            taken = anyio.Event()
            group.start_soon(self._post, frame, taken)
            with anyio.move_on_after(patience):
                await taken.wait()
            patience = ORDER_SECONDS if taken.is_set() else LATE_SECONDS

    async def _post(self, frame: bytes, taken: anyio.Event) -> None:
        """Post one frame; on an error, fail the request in it, if there is one."""
        headers = {"content-type": "application/json"}
        try:
            with anyio.move_on_after(self._limits.call_max_seconds):
                async with self._client.stream(
                    "POST", self._address, content=frame, headers=headers
                ) as response:
                    await http_client.read(response, self._server, RECEIPT_BYTES)
                if response.status_code in UNKNOWN:
                    self.give_up(f"took no message (HTTP status {response.status_code})")
                elif not response.is_success:
                    self._fail(frame, http_client.without_message(self._server, response.status_code))
        except httpx2.HTTPError as error:
            self._fail(frame, http_client.refusal(error, self._server, self._address) or error)
        except DownstreamError as error:
            logger.debug("a receipt cannot be read: %s", error)
        finally:
            taken.set()

    def _fail(self, frame: bytes, error: DownstreamError | httpx2.HTTPError) -> None:
        message = envelope.decode(frame)
        if not isinstance(message.id, int | str) or message.method is UNSET:
            logger.debug("%s took no message: %s", self._server, error)
        elif isinstance(error, DownstreamError):
            self._peer.fail(message.id, error)
        else:
            self._peer.interrupt(message.id, f"broke off ({http_client.described(error)})")

    def _end(self) -> None:
        self.ready.set()
        super()._end()


@asynccontextmanager
async def open_sse(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, peer: Peer
) -> AsyncIterator[SseChannel]:
    """Open the event stream that `config` names.

    Raises:
        httpx2.HTTPError: it cannot be opened.
    """
    url = config.url or ""
    async with (
        await http_client.client_of(config, limits, auth) as client,
        client.stream(
            "GET", url, headers={"accept": "text/event-stream", "cache-control": "no-store"}
        ) as stream,
    ):
        stream.raise_for_status()
        queue, frames = anyio.create_memory_object_stream[bytes](QUEUE_FRAMES)
        channel = SseChannel(config, limits, client, queue, peer)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.read, stream, url)
            try:
                await channel.ready.wait()
                group.start_soon(channel.write, frames, group)
                yield channel
            finally:
                group.cancel_scope.cancel()
                frames.close()
                queue.close()


def _same_origin(url: str, address: str) -> str:
    """Return the address to post to; a stream must not lead us, and our headers, to another origin."""
    found = urljoin(url, address)
    if urlsplit(found)[:2] != urlsplit(url)[:2]:
        raise ValueError(f"it names an address of another origin: {urlsplit(found).netloc}")
    return found
