"""The handshake-era sessions that are open, how each is told something, and what has to end with it.

Each session has a queue and a task of its own: a client that reads nothing keeps no other from hearing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import anyio

from mcp_context_proxy.context.session import Session
from mcp_context_proxy.wire.envelope import Members

logger = logging.getLogger(__name__)

Send = Callable[[str, Members], Awaitable[None]]
"""Sends a notification to one session: method, params."""

QUEUED = 1024
"""Notifications that wait for one session; more are dropped, since nobody reads that fast."""

QUEUED_BYTES = 16 * 1024 * 1024
"""Of all that wait for one session: as much as one message may have."""


class OpenSessions:
    """All open sessions, of every front."""

    def __init__(self) -> None:
        self._queues: dict[Session, _Queue] = {}
        self._on_end: list[Callable[[Session], None]] = []
        self._unattended: list[_Queue] = []
        self._opened = anyio.Event()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._queues))

    async def run(self) -> None:
        """Deliver what sessions are told, until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                await self._opened.wait()
                self._opened = anyio.Event()
                for queue in self._unattended:
                    group.start_soon(queue.deliver)
                self._unattended.clear()

    def open(self, session: Session, send: Send) -> None:
        """A session has begun; `send` reaches it beside its requests."""
        queue = self._queues[session] = _Queue(send)
        self._unattended.append(queue)
        self._opened.set()

    def end(self, session: Session) -> None:
        """A session has ended."""
        queue = self._queues.pop(session, None)
        if queue is not None:
            queue.end()
            for ended in self._on_end:
                ended(session)

    def when_ended(self, ended: Callable[[Session], None]) -> None:
        """Call `ended`, which must not block, for each session that ends."""
        self._on_end.append(ended)

    def tell(self, session: Session, method: str, params: Members) -> None:
        """Notify one session soon; nothing happens when it cannot be reached."""
        queue = self._queues.get(session)
        if queue is not None:
            queue.put(method, params)


class _Queue:
    """What one session is still to be told."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[tuple[str, Members]] = deque()
        self._bytes = 0
        self._news = anyio.Event()
        self._delivery: anyio.CancelScope | None = None
        self._ended = False

    def put(self, method: str, params: Members) -> None:
        if not params and (method, params) in self._waiting:
            return
        size = _size(params)
        if len(self._waiting) >= QUEUED or self._bytes + size > QUEUED_BYTES:
            logger.debug("dropped %s: the client does not read", method)
            return
        self._waiting.append((method, params))
        self._bytes += size
        self._news.set()

    def end(self) -> None:
        self._ended = True
        if self._delivery is not None:
            self._delivery.cancel()

    async def deliver(self) -> None:
        with anyio.CancelScope() as self._delivery:
            while not self._ended:
                await self._news.wait()
                self._news = anyio.Event()
                while self._waiting:
                    method, params = self._waiting.popleft()
                    self._bytes -= _size(params)
                    try:
                        await self._send(method, params)
                    except Exception:
                        # boundary: one client that cannot be reached is not another's problem
                        logger.debug("a session could not be told of %s", method, exc_info=True)


def _size(params: Members) -> int:
    return sum(len(memoryview(raw)) for raw in params.values())
