"""Bounds what waits for HTTP clients to take it: on each connection in time, and on all together in bytes.

A client that has taken nothing of what waits for it for a while is no client any more, and its connection is
closed; where too much waits on all, such clients go early, those first that have been deaf for longest.
"""

from __future__ import annotations

import array
import asyncio
import logging
import socket
import struct
import sys
from collections.abc import Callable

import anyio
from starlette.types import Scope

if sys.platform != "win32":
    import fcntl
    import termios

logger = logging.getLogger(__name__)

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


class Connection:
    """What one connection has not sent yet."""

    def __init__(self, transport: asyncio.Transport, counted: CountedTransport, unsent: Unsent) -> None:
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


class Unsent:
    """What waits on all connections of a front."""

    def __init__(self, stalled_seconds: float) -> None:
        """Leave a client that takes nothing for `stalled_seconds`."""
        self._stalled_seconds = stalled_seconds
        self._connections: set[Connection] = set()

    def add(self, connection: Connection) -> None:
        """Mind a connection from now on."""
        self._connections.add(connection)

    def discard(self, connection: Connection) -> None:
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

    def _leave(self, connection: Connection, why: str) -> None:
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
