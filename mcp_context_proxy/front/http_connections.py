"""Bounds what an HTTP connection may take: time for headers and for a body, and a place.

Uvicorn has a limit for kept-alive connections only. Here a peer that sends slowly is disconnected; and where
all places are taken, who has not asked yet makes room.

Bounds what waits for HTTP clients to take it: on each connection in time, and on all together in bytes.

A client that has taken nothing of what waits for it for a while is no client any more, and its connection is
closed; where too much waits on all, such clients go early, those first that have been deaf for longest.

Sends a large body in parts, each once the one before it is taken: what waits is not copied for that.
"""

from __future__ import annotations

import array
import asyncio
import logging
import socket
import struct
import sys
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import anyio
import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_context_proxy.config import Limits

if sys.platform != "win32":
    import fcntl
    import termios


SCOPE_KEY = "mcp-context-proxy/waiting"
"""Of an ASGI scope, under which a connection is told what waits for it elsewhere."""

TOGETHER_BYTES = 16 * 1024 * 1024
"""On all connections, beyond which deaf clients go early: one of the largest answers."""

MOST_BYTES = 256 * 1024 * 1024
"""Beyond which those go as well that do take something, if too slowly: sixteen of the largest answers."""

DEAF_SECONDS = 0.25
"""Who takes nothing for so long may go early: many round trips, and no time for much more to come."""

NOTEWORTHY_BYTES = 64 * 1024
"""Waiting on one connection, below which nobody counts what waits on all."""

Waiting = Callable[[int], None]
"""Told how many bytes more, or less, wait for a connection outside of it."""


def waiting_of(scope: Scope) -> Waiting:
    """What the connection of a request is told by."""
    found: Waiting | None = scope.get(SCOPE_KEY)
    return found or (lambda more: None)


class CountedTransport:
    """A connection's transport that knows how much was written."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        """Send soon."""
        self.written += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class BoundedWriter:
    """What one connection has not sent yet."""

    def __init__(self, transport: asyncio.Transport, counted: CountedTransport, unsent: WriteBacklog) -> None:
        self._transport, self._counted, self._unsent = transport, counted, unsent
        self._socket = transport.get_extra_info("socket")
        self._waiting = 0
        self._taken = 0
        self.since = asyncio.get_running_loop().time()
        """When its client last took something, or had nothing to take."""

    @property
    def size(self) -> int:
        """Bytes that this process holds for it."""
        return self._transport.get_write_buffer_size() + self._waiting

    def wait(self, more: int) -> None:
        """So much more, or less, waits to be written to it."""
        self._waiting += more
        if more > 0 and self._waiting > NOTEWORTHY_BYTES:
            self._unsent.spare()

    def look(self, now: float) -> None:
        """See whether its client has taken something since the last look."""
        if self._counted.written == self._taken and not self._waiting:
            self.since = now
            return
        taken = (
            self._counted.written
            - self._transport.get_write_buffer_size()
            - _in_kernel(self._socket.fileno())
        )
        if taken > self._taken or (taken == self._counted.written and not self._waiting):
            self._taken, self.since = taken, now

    def close(self, why: str) -> None:
        """Let go of it, and of what waits for it."""
        logger.info("closed a connection that did not read its answer%s", why)
        # Else the system goes on offering what it holds for it, for minutes.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class WriteBacklog:
    """What waits on all connections of a front."""

    def __init__(self, stalled_seconds: float) -> None:
        """Leave a client that takes nothing for `stalled_seconds`."""
        self._stalled_seconds = stalled_seconds
        self._connections: set[BoundedWriter] = set()

    def add(self, connection: BoundedWriter) -> None:
        """Mind a connection from now on."""
        self._connections.add(connection)

    def discard(self, connection: BoundedWriter) -> None:
        """It is closed."""
        self._connections.discard(connection)

    async def watch(self) -> None:
        """Look at all connections now and then, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await anyio.sleep(min(DEAF_SECONDS, self._stalled_seconds / 4))
            now = loop.time()
            for connection in list(self._connections):
                connection.look(now)
                if now - connection.since >= self._stalled_seconds:
                    self._leave(connection, "")
            self.spare()

    def spare(self) -> None:
        """Where too much waits, let go of it: of those first whose clients have been deaf for longest."""
        sizes = {connection: size for connection in self._connections if (size := connection.size)}
        waiting = sum(sizes.values())
        if waiting <= TOGETHER_BYTES:
            return
        now = asyncio.get_running_loop().time()
        for connection in sorted(sizes, key=lambda each: each.since):
            deaf = now - connection.since >= DEAF_SECONDS
            if waiting <= TOGETHER_BYTES or (not deaf and waiting <= MOST_BYTES):
                return
            waiting -= sizes[connection]
            self._leave(connection, ": too much waits to be read")

    def _leave(self, connection: BoundedWriter, why: str) -> None:
        self._connections.discard(connection)
        connection.close(why)


def _in_kernel(fd: int) -> int:
    """Bytes that the system holds, because the client does not take them; zero where it does not tell."""
    if fd < 0 or sys.platform == "win32":
        return 0
    held = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.TIOCOUTQ, held)
    except OSError:
        return 0
    return held[0]


logger = logging.getLogger(__name__)


HEADER_BYTES = 64 * 1024
"""Of one request: many times what proxies and browsers send."""

HEADER_STEP = 4096
"""The parser looks at their size only when it lacks something, so it is given no more at a time."""

BODY_STEP = 16 * 1024
"""Received at a time, and before somebody asks for it: each connection may have sent as much."""


class Phase(Enum):
    """What a connection is waiting for."""

    HEADERS = auto()
    BODY = auto()
    ANSWER = auto()
    """Nothing of the peer: it waits for us, or rests between two requests."""


class BoundedConnection(H11Protocol):
    """One connection with deadlines. `bounded` makes the class that knows the limits."""

    limits: Limits
    unsent: WriteBacklog

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app: ASGIApp = self._told_what_waits(self.app)
        self._phase = Phase.ANSWER
        self._deadline: asyncio.TimerHandle | None = None
        self._own: BoundedWriter | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give it a place; if there is none, that of the one that has kept us waiting longest."""
        if len(self.connections) >= self.limits.http_connections:
            self._make_room()
        # Asyncio's own number is 256 KiB; other event loops may not know it.
        if hasattr(transport, "max_size"):
            transport.max_size = BODY_STEP
        counted = CountedTransport(transport)
        super().connection_made(counted)  # type: ignore[arg-type]
        self._own = BoundedWriter(transport, counted, self.unsent)
        self.unsent.add(self._own)
        self._enter(Phase.HEADERS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._enter(Phase.ANSWER)
        if self._own is not None:
            self.unsent.discard(self._own)
        # Uvicorn leaves its own to expire: a minute of clients that came and went would be kept by it.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, and see what is still missing."""
        while data and self._missing() is Phase.HEADERS:
            part, data = data[:HEADER_STEP], data[HEADER_STEP:]
            super().data_received(part)
        if data and not self.transport.is_closing():
            super().data_received(data)
        self._enter(self._missing())
        unread = self._phase is Phase.BODY and not self.cycle.response_complete
        if unread and len(self.cycle.body) > BODY_STEP:
            self.flow.pause_reading()

    def on_response_complete(self) -> None:
        """A request is answered; the next one has all the idle time to begin."""
        super().on_response_complete()
        self._enter(Phase.ANSWER)

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is answered."""
        super().pause_writing()
        self.unsent.spare()

    def _told_what_waits(self, app: ASGIApp) -> ASGIApp:
        async def told(scope: Scope, receive: Receive, send: Send) -> None:
            if self._own is not None:
                scope[SCOPE_KEY] = self._own.wait
            await app(scope, receive, send)

        return told

    def _missing(self) -> Phase:
        if self.transport.is_closing():
            return Phase.ANSWER
        if self.conn.their_state is h11.IDLE:
            return Phase.HEADERS
        return Phase.BODY if self.conn.their_state is h11.SEND_BODY else Phase.ANSWER

    def _enter(self, phase: Phase) -> None:
        """Start the time of a phase, unless it is running already."""
        if phase is self._phase:
            return
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase is not Phase.ANSWER:
            headers = phase is Phase.HEADERS
            seconds = self.limits.http_header_seconds if headers else self.limits.http_body_seconds
            self._deadline = self.loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        if self._phase is Phase.BODY and self.flow.read_paused:
            # It is we who do not take the body.
            self._phase = Phase.ANSWER
            self._enter(Phase.BODY)
            return
        logger.info("closed a connection that took too long to send its %s", self._phase.name.lower())
        self.transport.abort()

    def _make_room(self) -> None:
        waiting = [
            other
            for other in self.connections
            if isinstance(other, BoundedConnection) and other._phase is Phase.HEADERS and other._deadline
        ]
        oldest = min(
            waiting, key=lambda other: other._deadline.when() if other._deadline else 0, default=None
        )
        if oldest is not None:
            self.connections.discard(oldest)
            oldest.transport.abort()


def bounded(limits: Limits, unsent: WriteBacklog) -> type[BoundedConnection]:
    """The class of connections within `limits`, as uvicorn wants it."""
    return type("Connection", (BoundedConnection,), {"limits": limits, "unsent": unsent})


PART_BYTES = 256 * 1024
"""Handed to a connection at a time."""


async def send_body(send: Send, body: bytes, waiting: Waiting, *, more: bool) -> None:
    """Send a body, or a piece of one that has `more`; `waiting` hears what of it is still to be sent."""
    left = memoryview(body)
    waiting(len(left))
    try:
        while len(left) > PART_BYTES:
            await send({"type": "http.response.body", "body": left[:PART_BYTES], "more_body": True})
            left = left[PART_BYTES:]
            waiting(-PART_BYTES)
        await send({"type": "http.response.body", "body": bytes(left), "more_body": more})
    finally:
        waiting(-len(left))
        left.release()
