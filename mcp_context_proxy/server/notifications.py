"""Tells clients that a list or a resource has changed: once, soon, and only when it really has.

Handshake-era sessions get notifications; modern clients get events on the subscriptions they opened.

Passes on what servers say of their own accord: to the sessions that it concerns, or to all.

While calls are under way on a connection, what comes over it concerns those whose calls they are; else it
concerns every session. Log messages below a session's level are left out. The modern era has no such channel.

The handshake-era sessions that are open, how each is told something, and what has to end with it.

Each session has a queue and a task of its own: a client that reads nothing keeps no other from hearing.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

import anyio

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.server.tools_list import ToolList

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


LISTS_SETTLE_SECONDS = 0.5
"""How long a changed list waits for the changes that usually come with it: servers get ready together."""

LISTS_PAUSE_SECONDS = 2.0
"""Least time between two announcements of changed lists: each has every client list anew."""

SETTLE_SECONDS = 0.1
"""The same for what concerns few: an updated resource, the list of one session that has searched."""

PAUSE_SECONDS = 0.5
"""Least time between two announcements of those."""

Publish = Callable[[str, Members], Awaitable[None]]
"""Gives an event to the modern subscriptions: method of its notification, params."""

TOOLS_CHANGED = "notifications/tools/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCE_UPDATED = "notifications/resources/updated"


class ChangeNotifier:
    """Compares what is visible with what was announced, and announces the difference."""

    def __init__(self, catalog: Catalog, tools: ToolList, sessions: OpenSessions) -> None:
        self._catalog, self._tools, self._sessions = catalog, tools, sessions
        self._publish: Publish | None = None
        self._announced: dict[str, bytes] = {}
        self._grown: set[Session] = set()
        self._updated: dict[str, Members] = {}
        self._lists_suspect, self._wake = anyio.Event(), anyio.Event()

    def publish_to(self, publish: Publish) -> None:
        """Give events to the modern subscriptions."""
        self._publish = publish

    def catalog_changed(self) -> None:
        """The catalog has a new snapshot; what of it is visible is found out soon."""
        self._lists_suspect.set()

    def resource_updated(self, uri: str, params: Members | None = None) -> None:
        """The content of a resource has changed; `params` is how its server said so."""
        self._updated[uri] = params or {"uri": envelope.raw(uri)}
        self._wake.set()

    def downstream_event(self, method: str, params: Members) -> None:
        """A downstream server announced something beside its lists."""
        uri = envelope.text(params.get("uri"))
        if method == RESOURCE_UPDATED and uri is not None:
            self.resource_updated(uri, eras.without_subscription(params))

    @contextmanager
    def watching(self, session: Session) -> Iterator[None]:
        """Announce the session's list if what is done inside changes it."""
        before = self._tools.visible(session)
        yield
        if self._tools.visible(session) != before:
            self._announce(session)

    def show(self, session: Session, names: Iterable[str]) -> None:
        """Have a session's list show some tools from now on, and announce it if that changes it."""
        more = [name for name in names if name not in session.shown]
        if self._tools.grows(session, more):
            self._announce(session)
        session.shown.update(dict.fromkeys(more))

    def _announce(self, session: Session) -> None:
        self._grown.add(session)
        self._wake.set()

    async def run(self) -> None:
        """Announce changes until cancelled."""
        self._announced = self._visible(self._catalog.snapshot)
        async with anyio.create_task_group() as group:
            group.start_soon(self._announce_lists)
            group.start_soon(self._announce_others)

    async def _announce_lists(self) -> None:
        while True:
            await self._lists_suspect.wait()
            await anyio.sleep(LISTS_SETTLE_SECONDS)
            self._lists_suspect = anyio.Event()
            visible = self._visible(self._catalog.snapshot)
            changed = [method for method, digest in visible.items() if self._announced.get(method) != digest]
            self._announced = visible
            for method in changed:
                await self._publish_event(method, {})
                for session in self._sessions:
                    self._sessions.tell(session, method, {})
            if changed:
                await anyio.sleep(LISTS_PAUSE_SECONDS)

    async def _announce_others(self) -> None:
        while True:
            await self._wake.wait()
            await anyio.sleep(SETTLE_SECONDS)
            self._wake = anyio.Event()
            grown, self._grown = self._grown, set()
            updated, self._updated = self._updated, {}
            for params in updated.values():
                await self._publish_event(RESOURCE_UPDATED, params)
            for session in self._sessions:
                if session in grown:
                    self._sessions.tell(session, TOOLS_CHANGED, {})
                for uri, params in updated.items():
                    if session.subscribes(uri):
                        self._sessions.tell(session, RESOURCE_UPDATED, params)
            await anyio.sleep(PAUSE_SECONDS)

    async def _publish_event(self, method: str, params: Members) -> None:
        if self._publish is not None:
            await self._publish(method, params)

    def _visible(self, snapshot: Snapshot) -> dict[str, bytes]:
        """A digest of each list as a client without a query sees it."""
        tools = [snapshot.tools[name].fingerprint for name in self._tools.base_names(snapshot)]
        resources = [
            *(item.definition for item in snapshot.resources.values()),
            *(item.definition for item in snapshot.templates),
            *(f"{uri} {item.description}".encode() for uri, item in snapshot.documents.items()),
        ]
        return {
            TOOLS_CHANGED: _digest([*map(bytes, self._tools.own), *map(str.encode, tools)]),
            RESOURCES_CHANGED: _digest(resources),
            PROMPTS_CHANGED: _digest(item.definition for item in snapshot.prompts.values()),
        }


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


MESSAGE = "notifications/message"

ELICITED = "notifications/elicitation/complete"
"""What was asked by a URL has been done there."""

PASSED_ON = frozenset({MESSAGE, ELICITED})


class SessionNotifications:
    """Decides who hears of what a server says."""

    def __init__(self, sessions: OpenSessions) -> None:
        self._sessions = sessions

    def take(self, method: str, params: Members, parties: frozenset[Party]) -> None:
        """Pass a notification on soon, if it is one that clients are told of."""
        if method not in PASSED_ON:
            return
        level, told = envelope.text(params.get("level")), eras.without_subscription(params)
        for session in self._sessions:
            concerned = not parties or session.party in parties
            if concerned and (method != MESSAGE or session.wants_level(level)):
                self._sessions.tell(session, method, told)
