"""Subscriptions of clients to resources, each kept at the one server that a reading of its URI would reach.

If a URI passes to another server, the subscription follows it, and what the former server announces about it
is no longer passed on. A URI that no server has stays subscribed to at its last one.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import anyio.lowlevel

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.protocol.validation import containing


class Watches:
    """The resources of servers that clients are subscribed to."""

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
        """Return the client of the server that has a resource."""
        resource = self._catalog.snapshot.owner_of(uri)
        return None if resource is None else self._fleet.clients.get(resource.server)

    def add(self, watcher: object, uri: str, watched_at: str | None = None) -> DownstreamClient | None:
        """Note that somebody watches a resource, and return the client of its server, if any has it.

        `watched_at` is the server that has been told already.
        """
        self._servers.setdefault(uri, {}).setdefault(watcher, watched_at)
        return self._update(uri)

    def remove(self, watcher: object, uri: str) -> None:
        """End what `add` began."""
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
            if owner is not None and server != owner.name and owner.subscriptions.has_room_for(uri):
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
