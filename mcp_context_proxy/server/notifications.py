"""Notifications to clients beside their requests, about changes and from servers.

`OpenSessions` has a queue and a task for each handshake-era session, so that a client that reads nothing
keeps no other from hearing. `ChangeNotifier` announces a changed list or resource: once, soon, and only when
it really has changed; modern clients get events on the subscriptions that they opened.
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

QUEUED = 1024
"""Notifications queued for one session; more are dropped, since nobody reads that fast."""

QUEUED_BYTES = 16 * 1024 * 1024
"""Bytes queued for one session: as many as one message may have."""

LISTS_SETTLE_SECONDS = 0.5
"""Time that a changed list waits for the changes that usually come with it: servers get ready together."""

LISTS_PAUSE_SECONDS = 2.0
"""Least time between two announcements of changed lists: each makes every client list again."""

SETTLE_SECONDS = 0.1
"""The same wait for changes that concern few: an updated resource, the list of one session that searched."""

PAUSE_SECONDS = 0.5
"""Least time between two announcements of those."""

TOOLS_CHANGED = "notifications/tools/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCE_UPDATED = "notifications/resources/updated"
MESSAGE = "notifications/message"
ELICITATION_COMPLETE = "notifications/elicitation/complete"

Send = Callable[[str, Members], Awaitable[None]]
"""Sends a notification: method, params."""


class OpenSessions:
    """The open handshake-era sessions of all fronts, each with its queue of notifications."""

    def __init__(self) -> None:
        self._queues: dict[Session, _Queue] = {}
        self._on_open: list[Callable[[Session], None]] = []
        self._on_end: list[Callable[[Session], None]] = []
        self._without_task: list[_Queue] = []
        self._opened = anyio.Event()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._queues))

    def when_opened(self, callback: Callable[[Session], None]) -> None:
        """Call `callback`, which must not block, for each session that is opened."""
        self._on_open.append(callback)

    def when_ended(self, callback: Callable[[Session], None]) -> None:
        """Call `callback`, which must not block, for each session that ends."""
        self._on_end.append(callback)

    def open(self, session: Session, send: Send) -> None:
        """Add a session; `send` reaches its client beside its requests."""
        queue = self._queues[session] = _Queue(send)
        self._without_task.append(queue)
        self._opened.set()
        for callback in self._on_open:
            callback(session)

    def end(self, session: Session) -> None:
        """Remove a session that has ended."""
        queue = self._queues.pop(session, None)
        if queue is not None:
            queue.end()
            for callback in self._on_end:
                callback(session)

    def notify(self, session: Session, method: str, params: Members) -> None:
        """Notify one session soon; does nothing if it is not open."""
        queue = self._queues.get(session)
        if queue is not None:
            queue.put(method, params)

    def relay(self, method: str, params: Members, parties: frozenset[Party]) -> None:
        """Pass a notification of a server on soon, if it is one for clients.

        It concerns the `parties` whose calls are under way on the connection, or every session if there are
        none. Log messages below a session's level are left out. The modern era has no such notifications.
        """
        if method not in (MESSAGE, ELICITATION_COMPLETE):
            return
        level, passed = envelope.text(params.get("level")), eras.without_subscription(params)
        for session in self:
            concerned = not parties or session.party in parties
            if concerned and (method != MESSAGE or session.wants_level(level)):
                self.notify(session, method, passed)

    async def run(self) -> None:
        """Deliver queued notifications until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                await self._opened.wait()
                self._opened = anyio.Event()
                for queue in self._without_task:
                    group.start_soon(queue.deliver)
                self._without_task.clear()


class _Queue:
    """Notifications that wait to be sent to one session."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[tuple[str, Members]] = deque()
        self._bytes = 0
        self._added = anyio.Event()
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
        self._added.set()

    def end(self) -> None:
        self._ended = True
        if self._delivery is not None:
            self._delivery.cancel()

    async def deliver(self) -> None:
        with anyio.CancelScope() as self._delivery:
            while not self._ended:
                await self._added.wait()
                self._added = anyio.Event()
                while self._waiting:
                    method, params = self._waiting.popleft()
                    self._bytes -= _size(params)
                    try:
                        await self._send(method, params)
                    except Exception:
                        # boundary: one unreachable client must not stop notifications to others
                        logger.debug("%s could not be sent to a session", method, exc_info=True)


def _size(params: Members) -> int:
    return sum(len(memoryview(raw)) for raw in params.values())


class ChangeNotifier:
    """Compares the visible lists with those last announced, and announces the difference."""

    def __init__(self, catalog: Catalog, tools: ToolList, sessions: OpenSessions) -> None:
        self._catalog, self._tools, self._sessions = catalog, tools, sessions
        self._publish: Send | None = None
        self._announced: dict[str, bytes] = {}
        self._grown: set[Session] = set()
        self._updated: dict[str, Members] = {}
        self._catalog_changed, self._other_changed = anyio.Event(), anyio.Event()

    def publish_to(self, publish: Send) -> None:
        """Publish events to modern subscriptions by `publish`."""
        self._publish = publish

    def catalog_changed(self) -> None:
        """Compare the lists with those announced soon: the catalog has a new snapshot."""
        self._catalog_changed.set()

    def resource_updated(self, uri: str, params: Members | None = None) -> None:
        """Announce that the content of a resource has changed, with the `params` of its server if any."""
        self._updated[uri] = params or {"uri": envelope.raw(uri)}
        self._other_changed.set()

    def downstream_event(self, method: str, params: Members) -> None:
        """Take a notification of a downstream server about something other than its lists."""
        uri = envelope.text(params.get("uri"))
        if method == RESOURCE_UPDATED and uri is not None:
            self.resource_updated(uri, eras.without_subscription(params))

    @contextmanager
    def watching(self, session: Session) -> Iterator[None]:
        """Announce the session's tool list if it is changed inside."""
        before = self._tools.visible(session)
        yield
        if self._tools.visible(session) != before:
            self._announce(session)

    def show(self, session: Session, names: Iterable[str]) -> None:
        """Add tools to a session's list, and announce it if that changes it."""
        more = [name for name in names if name not in session.shown]
        if self._tools.grows(session, more):
            self._announce(session)
        session.shown.update(dict.fromkeys(more))

    def _announce(self, session: Session) -> None:
        self._grown.add(session)
        self._other_changed.set()

    async def run(self) -> None:
        """Announce changes until cancelled."""
        self._announced = self._visible(self._catalog.snapshot)
        async with anyio.create_task_group() as group:
            group.start_soon(self._announce_lists)
            group.start_soon(self._announce_others)

    async def _announce_lists(self) -> None:
        while True:
            await self._catalog_changed.wait()
            await anyio.sleep(LISTS_SETTLE_SECONDS)
            self._catalog_changed = anyio.Event()
            visible = self._visible(self._catalog.snapshot)
            changed = [method for method, digest in visible.items() if self._announced.get(method) != digest]
            self._announced = visible
            for method in changed:
                await self._publish_event(method, {})
                for session in self._sessions:
                    self._sessions.notify(session, method, {})
            if changed:
                await anyio.sleep(LISTS_PAUSE_SECONDS)

    async def _announce_others(self) -> None:
        while True:
            await self._other_changed.wait()
            await anyio.sleep(SETTLE_SECONDS)
            self._other_changed = anyio.Event()
            grown, self._grown = self._grown, set()
            updated, self._updated = self._updated, {}
            for params in updated.values():
                await self._publish_event(RESOURCE_UPDATED, params)
            for session in self._sessions:
                if session in grown:
                    self._sessions.notify(session, TOOLS_CHANGED, {})
                for uri, params in updated.items():
                    if session.subscribes(uri):
                        self._sessions.notify(session, RESOURCE_UPDATED, params)
            await anyio.sleep(PAUSE_SECONDS)

    async def _publish_event(self, method: str, params: Members) -> None:
        if self._publish is not None:
            await self._publish(method, params)

    def _visible(self, snapshot: Snapshot) -> dict[str, bytes]:
        """Return a digest of each list, as seen without a query, by the method that announces it."""
        tools = [snapshot.tools[name].fingerprint for name in self._tools.base_names(snapshot)]
        resources = [
            *(item.definition for item in snapshot.resources.values()),
            *(item.definition for item in snapshot.templates),
            *(f"{uri} {item.description}".encode() for uri, item in snapshot.documents.items()),
        ]
        return {
            TOOLS_CHANGED: _digest([*map(bytes, self._tools.meta_tools), *map(str.encode, tools)]),
            RESOURCES_CHANGED: _digest(resources),
            PROMPTS_CHANGED: _digest(item.definition for item in snapshot.prompts.values()),
        }


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
