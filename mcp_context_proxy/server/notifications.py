"""Notifications to clients beside their requests, about changes and from servers.

`OpenSessions` has a queue and a task for each handshake-era session, so that a client that reads nothing
keeps no other from hearing. `ChangeNotifier` announces a changed list or resource: once, soon, and only when
it really has changed; modern clients get events on the subscriptions that they opened. `Watches` has the
resources that clients subscribed to.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import anyio
import anyio.lowlevel
from msgspec import Raw

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.uri_owners import part_for
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.downstream import Party
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.inbound import ELICITATION_COMPLETE, RESOURCE_UPDATED
from mcp_context_proxy.downstream.inbound import LOG_MESSAGE as MESSAGE
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import containing
from mcp_context_proxy.server.meta_definitions import LIVE
from mcp_context_proxy.server.tools_list import ToolList
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import assigned, in_thread
from mcp_context_proxy.trust import ACTING, THE_USER, Principal, Role, person_in

logger = logging.getLogger(__name__)

QUEUED = 1024
"""Notifications queued for one session; more are dropped, since nobody reads that fast."""

QUEUED_BYTES = 16 * 1024 * 1024
"""Bytes queued for one session: as many as one message may have."""

QUEUED_BYTES_TOGETHER = 32 * 1024 * 1024
"""Bytes queued for all sessions; a notification to several counts for each."""

UPDATES_WAITING = 1000
"""Updated resources of one server that wait to be announced; more are dropped."""

UPDATES_WAITING_BYTES = 1024 * 1024
"""Bytes of these updates."""

UPDATES_PER_SECOND, UPDATES_AT_ONCE = 100, 500
"""Updates of one server that are announced; the others wait for their turn."""

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

Send = Callable[[str, Members], Awaitable[None]]
"""Sends a notification: method, params."""

Publish = Callable[[str, Members, Callable[[Principal], bool]], Awaitable[None]]
"""Publishes an event to the subscriptions of those principals that it concerns: method, params, who."""


class OpenSessions:
    """The open handshake-era sessions of all fronts, each with its queue of notifications."""

    def __init__(self) -> None:
        self._queues: dict[Session, _Queue] = {}
        self._room = _Room()
        self._without_task: list[_Queue] = []
        self._opened = anyio.Event()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._queues))

    def open(self, session: Session, send: Send) -> None:
        """Add a session; `send` reaches its client beside its requests."""
        queue = self._queues[session] = _Queue(send, self._room)
        self._without_task.append(queue)
        self._opened.set()

    def end(self, session: Session) -> bool:
        """Remove a session that has ended; return whether it was open."""
        queue = self._queues.pop(session, None)
        if queue is not None:
            queue.end()
        return queue is not None

    def notify(self, session: Session, method: str, params: Members) -> None:
        """Notify one session soon; does nothing if it is not open."""
        queue = self._queues.get(session)
        if queue is not None:
            queue.put(method, params)

    def relay(self, server: str, method: str, params: Members, parties: frozenset[Party]) -> None:
        """Pass a notification of a server on soon, if it is one for clients that may reach the server.

        It concerns the `parties` whose calls are under way on the connection, or every session if there are
        none. A log message may repeat what somebody has asked: a named person gets it if it is known to be
        about their own calls, or with the role `view`. Log messages below a session's level are left out.
        The modern era has no such notifications.
        """
        if method not in (MESSAGE, ELICITATION_COMPLETE):
            return
        level, is_log = envelope.text(params.get("level")), method == MESSAGE
        asking = {session.party: session.rights.person for session in self._queues}
        persons = {asking.get(party, person_in(party.principal)) for party in parties}
        for session in self:
            rights = session.rights
            concerned = (not parties or session.party in parties) and rights.reaches(server)
            own = persons == {rights.person} or rights.person is None or rights.may(Role.VIEW)
            if concerned and (not is_log or (own and session.wants_level(level))):
                self.notify(session, method, params)

    async def run(self) -> None:
        """Deliver queued notifications until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                await self._opened.wait()
                self._opened = anyio.Event()
                for queue in self._without_task:
                    group.start_soon(queue.deliver)
                self._without_task.clear()


class _Room:
    """Room for the notifications of all sessions."""

    taken = 0


class _Queue:
    """Notifications that wait to be sent to one session."""

    def __init__(self, send: Send, room: _Room) -> None:
        self._send, self._room = send, room
        self._waiting: deque[tuple[str, Members]] = deque()
        self._bytes = 0
        self._added = anyio.Event()
        self._delivery: anyio.CancelScope | None = None
        self._ended = False

    def put(self, method: str, params: Members) -> None:
        if not params and (method, params) in self._waiting:
            return
        size = _size(params)
        full = len(self._waiting) >= QUEUED or self._bytes + size > QUEUED_BYTES
        if self._ended or full or self._room.taken + size > QUEUED_BYTES_TOGETHER:
            logger.debug("dropped %s: the client does not read", method)
            return
        self._waiting.append((method, params))
        self._count(size)
        self._added.set()

    def _count(self, more: int) -> None:
        self._bytes += more
        self._room.taken += more

    def end(self) -> None:
        self._ended = True
        self._waiting.clear()
        self._count(-self._bytes)
        if self._delivery is not None:
            self._delivery.cancel()

    async def deliver(self) -> None:
        with anyio.CancelScope() as self._delivery:
            while not self._ended:
                await self._added.wait()
                self._added = anyio.Event()
                while self._waiting:
                    method, params = self._waiting.popleft()
                    self._count(-_size(params))
                    try:
                        await self._send(method, params)
                    except Exception:
                        # boundary: one unreachable client must not stop notifications to others
                        logger.debug("%s could not be sent to a session", method, exc_info=True)


def _size(params: Members) -> int:
    return sum(len(memoryview(raw)) for raw in params.values())


class _Updates:
    """Updated resources of one server that wait to be announced, each once."""

    def __init__(self) -> None:
        self._waiting: dict[str, Members] = {}
        self._bytes = 0
        self._rate = Bucket(UPDATES_PER_SECOND, UPDATES_AT_ONCE)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, uri: str, params: Members) -> None:
        """Add an update, which replaces an earlier one of the same resource."""
        size = _size(params) - _size(self._waiting.get(uri, {}))
        too_many = uri not in self._waiting and len(self._waiting) >= UPDATES_WAITING
        if too_many or self._bytes + size > UPDATES_WAITING_BYTES:
            logger.debug("dropped an update of %s: too many wait", uri)
            return
        self._waiting[uri] = params
        self._bytes += size

    def take(self) -> list[tuple[str, Members]]:
        """Remove and return as many updates as the rate allows, oldest first."""
        taken = []
        while self._waiting and self._rate.take():
            uri = next(iter(self._waiting))
            params = self._waiting.pop(uri)
            self._bytes -= _size(params)
            taken.append((uri, params))
        return taken


class Watches:
    """Subscriptions of clients to resources, each at the one server that a reading of its URI would reach.

    If a URI passes to another server, the subscription follows it, and the former server's announcements of
    it are no longer passed on. A URI that no server has stays subscribed to at its last one.
    """

    def __init__(self, catalog: Catalog, fleet: Fleet) -> None:
        """Start without any; `run` has them follow the changes of the catalog."""
        self._catalog, self._fleet = catalog, fleet
        self._servers: dict[str, dict[object, str | None]] = {}
        """Name of the server by URI and watcher; None while no server has had the URI yet."""
        self._moved = anyio.Event()
        catalog.changed.append(self._note_change)

    async def run(self) -> None:
        """Follow the changes of the catalog until cancelled, one URI at a time: others go on meanwhile."""
        while True:
            await self._moved.wait()
            self._moved = anyio.Event()
            for _ in self.follow():
                await anyio.lowlevel.checkpoint()

    def follow(self) -> Iterator[str]:
        """Have each resource watched at the server that has it now; yields its URI then."""
        for uri in list(self._servers):
            if uri in self._servers:
                self._update(uri)
                yield uri

    def owner(self, uri: str) -> DownstreamClient | None:
        resource = self._catalog.snapshot.owner_of(uri)
        if resource is None or resource.withheld:
            return None
        return self._fleet.clients.get(resource.server)

    def add(self, watcher: object, uri: str, watched_at: str | None = None) -> DownstreamClient | None:
        """Note that somebody watches a resource, and return the client of its server, if any has it.

        `watched_at` is the server that has been told already.
        """
        self._servers.setdefault(uri, {}).setdefault(watcher, watched_at)
        return self._update(uri)

    def remove(self, watcher: object, uri: str) -> None:
        """End the subscription that `add` began."""
        watchers = self._servers.get(uri)
        if watchers is None:
            return
        self._unwatch(uri, watchers.pop(watcher, None))
        if not watchers:
            del self._servers[uri]

    def accepts(self, server: str, uri: str) -> bool:
        """Return whether a server may announce that a resource was updated.

        Somebody watches at this server the resource, or one that contains it, and no other server has it.
        """
        watched = {each: self._servers[each] for each in containing(uri) if each in self._servers}
        if not any(server in servers.values() for servers in watched.values()):
            return False
        if server in watched.get(uri, {}).values():
            return True
        resource = self._catalog.snapshot.owner_of(uri)
        return resource is None or resource.server == server

    def _note_change(self) -> None:
        self._moved.set()

    def _update(self, uri: str) -> DownstreamClient | None:
        """Have a resource watched at the server that has it now, and return its client."""
        owner, watchers = self.owner(uri), self._servers[uri]
        for watcher, server in watchers.items():
            if owner is not None and server != owner.name and owner.can_watch(uri):
                self._unwatch(uri, server)
                owner.subscriptions.watch(uri)
                watchers[watcher] = owner.name
            elif server is not None and server not in self._fleet.clients:
                # Should it be configured again, it knows nothing of this.
                watchers[watcher] = None
        return owner

    def _unwatch(self, uri: str, server: str | None) -> None:
        # A server that was configured anew has taken over the subscriptions of its predecessor.
        client = None if server is None else self._fleet.clients.get(server)
        if client is not None:
            client.subscriptions.unwatch(uri)


class ChangeNotifier:
    """Compares the visible lists with those last announced, and announces the difference."""

    def __init__(self, catalog: Catalog, tools: ToolList, sessions: OpenSessions, watches: Watches) -> None:
        self._catalog, self._tools, self._sessions, self._watches = catalog, tools, sessions, watches
        self.publish: Publish | None = None
        """Publishes events to subscriptions of modern clients; None before the first of them."""
        self.subscribers: Callable[[], Iterable[Principal]] = tuple
        """Returns the principals that have such subscriptions."""
        self.elsewhere: Callable[[str, str, str | None], None] | None = None
        """Tells other replicas of an announcement: its server, method, and URI if there is one."""
        self._announced: dict[Principal, dict[str, bytes]] = {}
        """Digest of each list as announced last, by principal; those without limits see the same."""
        self._whole = catalog.whole.snapshot
        """The catalog as announced last."""
        self._grown: set[Session] = set()
        self._asked: set[Session] = set()
        """Sessions whose own resources have changed, and that subscribed to some resource."""
        self._modern_grown = False
        self._rewritten: dict[str, Members] = {}
        """Our own documents that have changed, by URI."""
        self._updated: dict[str, _Updates] = {}
        """Updated resources, by server."""
        self._catalog_changed, self._other_changed = anyio.Event(), anyio.Event()
        catalog.changed.append(self.catalog_changed)

    def catalog_changed(self) -> None:
        """Compare the lists with those announced soon: the catalog has a new snapshot."""
        self._catalog_changed.set()

    def resource_updated(self, uri: str) -> None:
        """Announce that the content of a resource of the proxy itself has changed."""
        self._rewritten[uri] = {"uri": envelope.raw(uri)}
        self._other_changed.set()

    def downstream_event(self, server: str, method: str, params: Members) -> None:
        """Take a notification of a downstream server about something other than its lists."""
        uri = envelope.text(params.get("uri")) if method == RESOURCE_UPDATED else None
        if self.elsewhere is not None:
            self.elsewhere(server, method, uri)
        if uri is not None:
            self._take_update(server, uri, params)

    def updated_elsewhere(self, server: str, uri: str) -> None:
        """Take the word of another replica that a server has announced an updated resource."""
        self._take_update(server, uri, {"uri": envelope.raw(uri)})

    def _take_update(self, server: str, uri: str, params: Members) -> None:
        if self._watches.accepts(server, uri):
            self._updated.setdefault(server, _Updates()).put(uri, params)
            self._other_changed.set()

    @contextmanager
    def watching(self, session: Session) -> Iterator[None]:
        """Announce the session's tool list if it is changed inside, and its context."""
        before = self._tools.visible(session)
        yield
        self.context_changed(session)
        if self._tools.visible(session) != before:
            self._announce(session)

    def context_changed(self, session: Session) -> None:
        """Announce that the context of a session is another one now, if its client subscribed to that."""
        if session.subscriptions:
            self._asked.add(session)
            self._other_changed.set()

    def show(self, session: Session, names: Iterable[str]) -> None:
        """Add tools to a session's list, and announce it if that changes it."""
        self.context_changed(session)
        if self._tools.show(session, names):
            self._announce(session)

    def tools_grew(self, session: Session | None) -> None:
        """Announce that the list of a session has a further tool; None for that of modern clients."""
        if session is not None:
            self._announce(session)
        else:
            self._modern_grown = True
            self._other_changed.set()

    def _announce(self, session: Session) -> None:
        self._grown.add(session)
        self._other_changed.set()

    async def run(self) -> None:
        self._whole = self._catalog.whole.snapshot
        self._announced = {THE_USER: await self._visible(self._whole)}
        async with anyio.create_task_group() as group:
            group.start_soon(self._watches.run)
            group.start_soon(self._announce_lists)
            group.start_soon(self._announce_others)

    async def _announce_lists(self) -> None:
        while True:
            await self._catalog_changed.wait()
            await anyio.sleep(LISTS_SETTLE_SECONDS)
            self._catalog_changed = anyio.Event()
            if await self._announce_changed():
                await anyio.sleep(LISTS_PAUSE_SECONDS)

    async def _announce_changed(self) -> bool:
        """Announce each list to those who see it changed; return whether there was anything to announce."""
        before, self._announced = self._announced, {}
        whole_before, self._whole = self._whole, self._catalog.whole.snapshot
        limited = {_seen_by(each) for each in (*(one.rights for one in self._sessions), *self.subscribers())}
        concerned: dict[str, set[Principal]] = {}
        for rights in {THE_USER, *limited}:
            with assigned(ACTING, rights):
                visible = self._announced[rights] = await self._visible(self._catalog.snapshot)
                known = before.get(rights) or await self._visible(part_for(rights, whole_before))
            for method, digest in visible.items():
                if known.get(method) != digest:
                    concerned.setdefault(method, set()).add(rights)
        for method, seen_changed in concerned.items():
            await self._publish_event(method, {}, partial(_is_among, seen_changed))
            for session in self._sessions:
                if _seen_by(session.rights) in seen_changed:
                    self._sessions.notify(session, method, {})
        return bool(concerned)

    async def _announce_others(self) -> None:
        while True:
            await self._other_changed.wait()
            await anyio.sleep(SETTLE_SECONDS)
            self._other_changed = anyio.Event()
            grown, self._grown = self._grown, set()
            asked, self._asked = self._asked, set()
            updated, self._rewritten = list(self._rewritten.items()), {}
            for waiting in self._updated.values():
                updated += waiting.take()
            if self._modern_grown:
                self._modern_grown = False
                await self._publish_event(TOOLS_CHANGED, {})
            for uri, params in updated:
                await self._publish_event(RESOURCE_UPDATED, params, partial(self._may_know, uri=uri))
            for session in self._sessions:
                if session in grown:
                    self._sessions.notify(session, TOOLS_CHANGED, {})
                if not session.subscriptions:
                    continue
                for uri in LIVE if session in asked else ():
                    if session.subscribes(uri):
                        self._sessions.notify(session, RESOURCE_UPDATED, {"uri": envelope.raw(uri)})
                for uri, params in updated:
                    if session.subscribes(uri) and self._may_know(session.rights, uri):
                        self._sessions.notify(session, RESOURCE_UPDATED, params)
                # Many sessions with many subscriptions take their time; others go on meanwhile.
                await anyio.lowlevel.checkpoint()
            if any(self._updated.values()):
                self._other_changed.set()
            await anyio.sleep(PAUSE_SECONDS)

    def _may_know(self, rights: Principal, uri: str) -> bool:
        """Return whether a principal may know of a resource: one that contains it may be another server's."""
        if not rights.limited:
            return True
        whole = self._catalog.whole.snapshot
        document, owner = whole.document(uri), whole.owner_of(uri)
        if document is not None and not rights.sees(document):
            return False
        return owner is None or rights.reaches(owner.server)

    async def _publish_event(
        self, method: str, params: Members, concerns: Callable[[Principal], bool] = lambda _: True
    ) -> None:
        if self.publish is not None:
            await self.publish(method, params, concerns)

    async def _visible(self, snapshot: Snapshot) -> dict[str, bytes]:
        """Return a digest of each list, as seen without a query, by the method that announces it."""
        base = self._tools.base_of(snapshot)
        own = self._tools.meta_tools(snapshot, base.names)
        return await in_thread(self._digests, snapshot, own, (*base.names, *base.pages, *base.of_pages))

    def _digests(self, snapshot: Snapshot, own: Sequence[Raw], names: Iterable[str]) -> dict[str, bytes]:
        tools = [snapshot.tools[name].fingerprint for name in names]
        resources = [
            *(f"{item.server} ".encode() + item.definition for item in snapshot.resources.values()),
            *(f"{item.server} ".encode() + item.definition for item in snapshot.templates.values()),
            *(f"{uri} {item.description}".encode() for uri, item in snapshot.documents.items()),
        ]
        return {
            TOOLS_CHANGED: _digest([*map(bytes, own), *map(str.encode, tools)]),
            RESOURCES_CHANGED: _digest(resources),
            PROMPTS_CHANGED: _digest(item.definition for item in snapshot.prompts.values()),
        }


def _seen_by(rights: Principal) -> Principal:
    """Return a principal that stands for all who see the same lists."""
    return rights if rights.limited else THE_USER


def _is_among(principals: Collection[Principal], rights: Principal) -> bool:
    return _seen_by(rights) in principals


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
