"""HTTP connections with bounds: on time for headers and bodies, on their number, and on unsent bytes.

Uvicorn has a timeout for kept-alive connections only. Here a client that sends slowly is disconnected; when
all places are taken, a connection on which nothing is being answered makes room (`BoundedConnection`). A
client that has read nothing of its response for a while is disconnected, too; while too many bytes wait on
all connections, such clients go early, those first that have read nothing for longest (`WriteBacklog`).
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
from mcp_context_proxy.front.auth import is_proven

if sys.platform != "win32":
    import fcntl
    import termios

logger = logging.getLogger(__name__)

HEADER_BYTES = 64 * 1024
"""Bytes of one request's headers: many times those that proxies and browsers send."""

HEADER_STEP = 4096
"""Bytes given to the parser at a time: it looks at the size of headers only when it needs more."""

BODY_STEP = 16 * 1024
"""Bytes received at a time, and before anybody asks for them: each connection may have sent as many."""

WAITING_KEY = "mcp-context-proxy/waiting"
"""Key of an ASGI scope: the `Waiting` of the request's connection."""

TOGETHER_BYTES = 16 * 1024 * 1024
"""Unsent bytes on all connections beyond which stalled clients go early: one of the largest responses."""

MOST_BYTES = 256 * 1024 * 1024
"""Unsent bytes beyond which clients go that do read, if too slowly: sixteen of the largest responses."""

STALLED_SECONDS = 0.25
"""Time without reading after which a client may go early: many round trips, but too little for much more to
pile up."""

NOTEWORTHY_BYTES = 64 * 1024
"""Bytes that wait outside of one connection from which all connections are counted."""

PART_BYTES = 256 * 1024
"""Bytes of a body handed to a connection at a time."""

Waiting = Callable[[int], None]
"""Tells a connection that so many bytes more (or less) wait outside of it to be written."""


def waiting_of(scope: Scope) -> Waiting:
    """Return the `Waiting` of a request's connection."""
    found: Waiting | None = scope.get(WAITING_KEY)
    return found or (lambda more: None)


async def send_body(send: Send, body: bytes, waiting: Waiting, *, more: bool) -> None:
    """Send a body, or a piece of one if there is `more`, in parts; the unsent part is not copied."""
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


HELD_KEY = "mcp-context-proxy/held"
"""Key of an ASGI scope: has the connection hold its responses, or write those that it has held."""


def held_of(scope: Scope) -> Callable[[bool], None]:
    """Return the function by which the start of a response is written together with its body."""
    found: Callable[[bool], None] | None = scope.get(HELD_KEY)
    return found or (lambda hold: None)


class _Phase(Enum):
    """Phases of a connection, by the part of a request that it is waiting for."""

    HEADERS = auto()
    BODY = auto()
    """Also of a request that was refused before its body had come."""
    RESPONSE = auto()
    """It waits for nothing: the request is being answered."""
    IDLE = auto()
    """It is answered, and the next request has not begun."""


class BoundedConnection(H11Protocol):
    """One connection with deadlines. `connection_class` makes the class that knows the limits."""

    limits: Limits
    backlog: WriteBacklog

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        app = self.app

        async def app_with_waiting(scope: Scope, receive: Receive, send: Send) -> None:
            if self._bounded is not None:
                scope[WAITING_KEY] = self._bounded.wait
                scope[HELD_KEY] = self._bounded.hold
            try:
                await app(scope, receive, send)
            finally:
                self._proven = is_proven(scope)

        self.app: ASGIApp = app_with_waiting
        self._phase = _Phase.RESPONSE
        self._since = 0.0
        """Time at which the phase began."""
        self._proven = False
        """Whether its last request had a token that is known."""
        self._deadline: asyncio.TimerHandle | None = None
        self._bounded: BoundedTransport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the connection a place; if there is none, one that is not being answered makes room."""
        if len(self.connections) >= self.limits.http_connections:
            self._make_room()
        # Asyncio's own number is 256 KiB; other event loops may not know it.
        if hasattr(transport, "max_size"):
            transport.max_size = BODY_STEP
        self._bounded = BoundedTransport(transport, self.backlog)
        super().connection_made(self._bounded)  # type: ignore[arg-type]
        self.backlog.connections.add(self._bounded)
        self._enter(_Phase.HEADERS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines."""
        self._enter(_Phase.RESPONSE)
        if self._bounded is not None:
            self.backlog.connections.discard(self._bounded)
        # Uvicorn lets its own timer expire, which would keep a minute of clients that came and went.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and start the deadline of the part that is still missing."""
        while data and self._missing() is _Phase.HEADERS:
            part, data = data[:HEADER_STEP], data[HEADER_STEP:]
            super().data_received(part)
        if data and not self.transport.is_closing():
            super().data_received(data)
        self._enter(self._missing())
        unread = self._phase is _Phase.BODY and not self.cycle.response_complete
        if unread and len(self.cycle.body) > BODY_STEP:
            self.flow.pause_reading()

    def on_response_complete(self) -> None:
        """Wait for the rest of the body as long as before, or for the next request as long as it may idle."""
        super().on_response_complete()
        # A request that was sent before this one was answered is under way by now.
        missing = self._missing()
        self._enter(_Phase.IDLE if missing is _Phase.HEADERS else missing)

    def pause_writing(self) -> None:
        """Count the unsent bytes: the client does not read as fast as it is answered."""
        super().pause_writing()
        self.backlog.reduce()

    def _missing(self) -> _Phase:
        if self.transport.is_closing():
            return _Phase.RESPONSE
        if self.conn.their_state is h11.IDLE:
            return _Phase.HEADERS
        return _Phase.BODY if self.conn.their_state is h11.SEND_BODY else _Phase.RESPONSE

    def _enter(self, phase: _Phase) -> None:
        """Start the deadline of a phase, unless it is running already."""
        if phase is self._phase:
            return
        self._phase, self._since = phase, self.loop.time()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase in (_Phase.HEADERS, _Phase.BODY):
            headers = phase is _Phase.HEADERS
            seconds = self.limits.http_header_seconds if headers else self.limits.http_body_seconds
            self._deadline = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self._phase is _Phase.BODY and self.flow.read_paused:
            # It is the proxy that does not read the body: the time starts again.
            self._phase = _Phase.RESPONSE
            self._enter(_Phase.BODY)
            return
        logger.info("closed a connection that took too long to send its %s", self._phase.name.lower())
        self.transport.abort()

    @property
    def _is_answered(self) -> bool:
        """True if nothing would be lost but the connection: no request on it waits for its response."""
        unread = self._phase is _Phase.BODY and self.cycle.response_complete
        return unread or self._phase in (_Phase.HEADERS, _Phase.IDLE)

    def _make_room(self) -> None:
        """Close a connection without a request, or else one that sends a body.

        Those go first whose client has not proven who it is, then those that have waited for longest.
        """
        others = [other for other in self.connections if isinstance(other, BoundedConnection)]
        waiting = [other for other in others if other._is_answered]
        waiting = waiting or [other for other in others if other._phase is _Phase.BODY]
        if waiting:
            chosen = min(waiting, key=lambda each: (each._proven, each._since))
            self.connections.discard(chosen)
            chosen.transport.abort()


def connection_class(limits: Limits, backlog: WriteBacklog) -> type[BoundedConnection]:
    """Return the class of connections within `limits`, as uvicorn wants it."""
    return type("Connection", (BoundedConnection,), {"limits": limits, "backlog": backlog})


class BoundedTransport:
    """Transport of one connection that knows its unsent bytes, and the time since its client has read any."""

    def __init__(self, transport: asyncio.Transport, backlog: WriteBacklog) -> None:
        self._transport, self._backlog = transport, backlog
        self._socket = transport.get_extra_info("socket")
        self._written = self._waiting = 0
        self._held: list[bytes] | None = None
        self._read = 0
        """Bytes that the client had read at the last look."""
        self.since = asyncio.get_running_loop().time()
        """Time at which the client last read something, or had nothing to read."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send soon."""
        self._written += len(data)
        if self._held is None:
            self._transport.write(data)
        else:
            self._held.append(data)

    def hold(self, hold: bool) -> None:
        """Hold responses from now on, or write all that was held at once: one packet instead of two."""
        held, self._held = self._held, [] if hold else None
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        """Close once all is sent."""
        self.hold(False)
        self._transport.close()

    @property
    def size(self) -> int:
        """Bytes that this process holds for the client."""
        return self._transport.get_write_buffer_size() + self._waiting

    def wait(self, more: int) -> None:
        """Note that so many bytes more (or less) wait outside of the connection. See `Waiting`."""
        self._waiting += more
        if more > 0 and self._waiting > NOTEWORTHY_BYTES:
            self._backlog.reduce()

    def look(self, now: float) -> None:
        """Note whether the client has read something since the last look."""
        written = self._written
        if written == self._read and not self._waiting:
            self.since = now
            return
        # Bytes in the system's buffer have left this process, but the client has not read them.
        read = written - self._transport.get_write_buffer_size() - _in_kernel(self._socket.fileno())
        if read > self._read or (read == written and not self._waiting):
            self._read, self.since = read, now

    def disconnect(self, why: str) -> None:
        """Close the connection at once, and free all that waits for it."""
        logger.info("closed a connection that did not read its answer%s", why)
        # Otherwise the system keeps offering the bytes in its buffer for minutes.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


def _in_kernel(fd: int) -> int:
    """Return the bytes that the system holds until the client reads them; zero where it does not tell."""
    if fd < 0 or sys.platform == "win32":
        return 0
    held = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.TIOCOUTQ, held)
    except OSError:
        return 0
    return held[0]


class WriteBacklog:
    """Unsent bytes on all connections of a front."""

    def __init__(self, stalled_seconds: float) -> None:
        """Disconnect a client that reads nothing for `stalled_seconds`."""
        self._stalled_seconds = stalled_seconds
        self.connections: set[BoundedTransport] = set()
        """The open connections."""

    async def watch(self) -> None:
        """Look at all connections in turn, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await anyio.sleep(min(STALLED_SECONDS, self._stalled_seconds / 4))
            now = loop.time()
            for connection in list(self.connections):
                connection.look(now)
                if now - connection.since >= self._stalled_seconds:
                    self._close(connection, "")
            self.reduce()

    def reduce(self) -> None:
        """Close connections while too many bytes wait, those first whose clients have stalled for longest."""
        sizes = {connection: size for connection in self.connections if (size := connection.size)}
        waiting = sum(sizes.values())
        if waiting <= TOGETHER_BYTES:
            return
        now = asyncio.get_running_loop().time()
        for connection in sorted(sizes, key=lambda each: each.since):
            stalled = now - connection.since >= STALLED_SECONDS
            if waiting <= TOGETHER_BYTES or (not stalled and waiting <= MOST_BYTES):
                return
            waiting -= sizes[connection]
            self._close(connection, ": too much waits to be read")

    def _close(self, connection: BoundedTransport, why: str) -> None:
        self.connections.discard(connection)
        connection.disconnect(why)
