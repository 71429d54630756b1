"""Bounds what an HTTP connection may take: time for headers and for a body, and a place.

Uvicorn has a limit for kept-alive connections only. Here a peer that sends slowly is disconnected; and where
all places are taken, who has not asked yet makes room.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.unsent import SCOPE_KEY, Connection, CountedTransport, Unsent

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
    unsent: Unsent

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app: ASGIApp = self._told_what_waits(self.app)
        self._phase = Phase.ANSWER
        self._deadline: asyncio.TimerHandle | None = None
        self._own: Connection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give it a place; if there is none, that of the one that has kept us waiting longest."""
        if len(self.connections) >= self.limits.http_connections:
            self._make_room()
        # Asyncio's own number is 256 KiB; other event loops may not know it.
        if hasattr(transport, "max_size"):
            transport.max_size = BODY_STEP
        counted = CountedTransport(transport)
        super().connection_made(counted)  # type: ignore[arg-type]
        self._own = Connection(transport, counted, self.unsent)
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


def bounded(limits: Limits, unsent: Unsent) -> type[BoundedConnection]:
    """The class of connections within `limits`, as uvicorn wants it."""
    return type("Connection", (BoundedConnection,), {"limits": limits, "unsent": unsent})
