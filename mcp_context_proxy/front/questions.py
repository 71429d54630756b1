"""Requests that are made of a host, and its replies to them."""

from __future__ import annotations

import asyncio

from msgspec import UNSET

from mcp_context_proxy.front.channel import Channel
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import Envelope, Members, RequestError

ASK_PREFIX = "ask-"
"""Ids of requests we make of the host start so; the SDK's are numbers."""


class Questions:
    """Those of one conversation."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._open: dict[str, asyncio.Future[bytes]] = {}
        self._count = 0

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the host; see `Caller.ask`."""
        self._count += 1
        request_id = f"{ASK_PREFIX}{self._count}"
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[request_id] = future
        try:
            await self._channel.send(envelope.request(request_id, method, params))
            return await future
        except asyncio.CancelledError:
            cancelled = envelope.notification("notifications/cancelled", {"requestId": request_id})
            self._channel.send_nowait(cancelled)
            raise
        finally:
            del self._open[request_id]

    def answer(self, message: Envelope) -> bool:
        """Take a reply; whether it was one to a request that was made here."""
        future = self._open.get(message.id) if isinstance(message.id, str) else None
        if future is None:
            return False
        if future.done():
            return True
        if message.result is not UNSET:
            future.set_result(bytes(message.result))
        else:
            error = envelope.decode_error(message.error) if message.error is not UNSET else envelope.Error()
            data = None if error.data is UNSET else error.data
            future.set_exception(RequestError(error.code, error.message or "no result", data))
        return True
