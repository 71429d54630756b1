"""Fronts: where hosts connect, over standard streams, a socket of the user, or HTTP.

Here is the way to one host: the channel that takes frames for it, and the requests that are made of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import UNSET

from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, Envelope, RequestError, RequestId

ASK_PREFIX: Final = "ask-"
"""Start of the ids of our requests to the host."""


ASKED_KEY: Final = "mcp-context-proxy/asked"
"""Key of an ASGI scope: the ids of the requests that the event stream under way answers, the latest last."""


def last_event(request_id: RequestId, why: str) -> bytes:
    """Return the end of a stream that breaks off, so that no client waits for the response for ever.

    The blank line ends an event of which only a part was sent.
    """
    error = envelope.error_reply(request_id, INTERNAL_ERROR, why)
    return b"\r\n\r\nevent: message\r\ndata: %b\r\n\r\n" % error


class FrameChannel(Protocol):
    """Takes frames for one host."""

    async def send(self, frame: bytes) -> None:
        """Write one frame; waits while the host does not read. Dropped when the host is gone."""
        ...

    def sent_at_once(self, frame: bytes) -> bool:
        """Write one frame if neither it nor one before it has to wait; False leaves it to `send`."""
        del frame
        return False

    def send_nowait(self, frame: bytes) -> bool:
        """Write one frame unless the host is not reading; return whether it was written."""
        ...


class HostChannel(FrameChannel, Protocol):
    """Takes frames for one host, and reads those of it."""

    def pause_reading(self) -> None:
        """Stop reading messages of the host."""
        ...

    def resume_reading(self) -> None: ...


class Questions:
    """Requests that are made of one host, by the ids under which it answers them."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[bytes]] = {}
        self._count = 0

    @contextlib.contextmanager
    def ask(self) -> Iterator[tuple[str, asyncio.Future[bytes]]]:
        """Provide the id of a new request, and its result in the future."""
        self._count += 1
        request_id = f"{ASK_PREFIX}{self._count}"
        future = self._pending[request_id] = asyncio.get_running_loop().create_future()
        try:
            yield request_id, future
        finally:
            del self._pending[request_id]

    def take_response(self, message: Envelope) -> None:
        """Take a response; a late one, or one to nothing that was asked, is nobody's business."""
        future = self._pending.get(message.id) if isinstance(message.id, str) else None
        if future is None or future.done():
            return
        if message.result is not UNSET:
            future.set_result(bytes(message.result))
        else:
            error = envelope.decode_error(message.error) if message.error is not UNSET else envelope.Error()
            data = None if error.data is UNSET else error.data
            future.set_exception(RequestError(error.code, error.message or "no result", data))
