"""Tells clients that a list or a resource has changed: once, soon, and only when it really has.

Handshake-era sessions get notifications; modern clients get events on the subscriptions they opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

import anyio

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.server.open_sessions import OpenSessions
from mcp_context_proxy.server.tools import ToolList
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members

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


class Changes:
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
            self.resource_updated(uri, era.without_subscription(params))

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
