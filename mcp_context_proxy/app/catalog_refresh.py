"""Keeps the catalog up to date with servers and documents, and notifies those who serve from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakKeyDictionary

import anyio
from anyio.from_thread import check_cancelled

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.document_library import DocumentChanges, DocumentLibrary, watch
from mcp_context_proxy.context.background_indexing import OnWait
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.system.threads import in_thread

READING_SECONDS: Final = 0.25
"""Time for reading the documents before hosts are served: enough for some hundreds. More follow later."""

RESTORING_SECONDS: Final = 1.0
"""Time for the listings of the last time, after that: enough for ten thousand tools. More follow later."""

TOLD: Final = 4
"""Servers that a client is told of while its request waits for them."""

TOLD_SECONDS: Final = 1.0
"""Time between two such messages."""


class CatalogRefresh:
    """Keeps the catalog current with its servers and folders, and calls back when it has changed."""

    def __init__(
        self, catalog: Catalog, fleet: Fleet, library: DocumentLibrary, stale: asyncio.Event
    ) -> None:
        """Prepare; `stale` requests a refresh once it is set."""
        self._catalog, self._fleet, self._library, self._stale = catalog, fleet, library, stale
        self._folders_changed = anyio.Event()
        self._documents_read = anyio.Event()
        self._next = anyio.Event()
        """Set when the refresh that begins next has ended."""
        self._awaited = WeakKeyDictionary[DownstreamClient, float]()
        """Time until which searches wait for a server that is starting."""
        self._on_refreshed: list[Callable[[Snapshot], None]] = []
        self._rewritten: list[Callable[[str], None]] = []

    def when_refreshed(self, callback: Callable[[Snapshot], None]) -> None:
        """Call `callback` with every new snapshot; it must not block."""
        self._on_refreshed.append(callback)

    def when_rewritten(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the URI of every document whose text has changed."""
        self._rewritten.append(callback)

    def mark_stale(self) -> None:
        """Request a refresh of the catalog."""
        self._stale.set()

    async def load_listings(self) -> None:
        """Restore the last listings of servers from the store."""
        await self._fleet.load_listings()

    async def wait_until_begun(self) -> None:
        """Wait until `run` has read the documents and filled the catalog, for a moment at most."""
        with anyio.move_on_after(READING_SECONDS):
            await self._documents_read.wait()
        with anyio.move_on_after(RESTORING_SECONDS):
            await self._refreshed()

    async def run(self) -> None:
        """Read the documents, then keep the catalog current until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_documents)
            while True:
                await self._stale.wait()
                self._stale.clear()
                ended, self._next = self._next, anyio.Event()
                # A list of the largest size takes seconds: a stop does not wait for its end.
                await in_thread(self._catalog.refresh, check_cancelled)
                for refreshed in self._on_refreshed:
                    refreshed(self._catalog.snapshot)
                for changed in self._catalog.changed:
                    changed()
                ended.set()

    async def reread(self) -> None:
        """Read all documents again and refresh the catalog."""
        await in_thread(self._library.reload)
        await self._refreshed()

    async def reconfigure_documents(self) -> None:
        """Read and watch the folders of documents of a changed configuration."""
        await in_thread(self._library.reload)
        self._folders_changed.set()

    async def wait_first_connect(self) -> None:
        """Wait until all documents are read and every server is ready or has failed once, then refresh."""
        await self._documents_read.wait()
        await self._fleet.wait_first_connect()
        await self._refreshed()

    async def wait_for_starting_servers(self, seconds: float, on_wait: OnWait | None = None) -> None:
        """Wait up to `seconds` for documents and for servers that start and of which nothing is known.

        Afterwards the catalog has them, if there was time for that. All searches together wait for a server
        no longer than `seconds`: one that hangs or is downloaded delays the first, and not the rest.
        """
        now = anyio.current_time()
        starting = self._fleet.awaited()
        until = {client: self._awaited.setdefault(client, now + seconds) for client in starting}
        until = {client: end for client, end in until.items() if end > now}
        if not until and self._documents_read.is_set():
            return
        with anyio.move_on_after(seconds):
            await self._documents_read.wait()
            await self._wait_for(until, on_wait)

    async def wait_for_server(self, name: str | None, on_wait: OnWait | None = None) -> None:
        """Wait for a server that is starting, and for the catalog, up to its ``connect_timeout``.

        Without a name, all servers are waited for of which nothing is known.
        """
        now = anyio.current_time()
        until = {client: now + client.config.connect_timeout for client in self._fleet.awaited(name)}
        if until:
            with anyio.move_on_at(max(until.values())):
                await self._wait_for(until, on_wait)

    async def _wait_for(self, until: Mapping[DownstreamClient, float], on_wait: OnWait | None) -> None:
        """Wait for first attempts to connect, for each server until its time, then for the catalog."""
        began, waiting = anyio.current_time(), dict.fromkeys(until)

        async def wait(client: DownstreamClient, end: float) -> None:
            with anyio.move_on_at(end):
                await client.wait_first_connect()
            del waiting[client]
            if not waiting:
                group.cancel_scope.cancel()

        async def tell(on_wait: OnWait) -> None:
            while True:
                standing = ", ".join(f"{client.name}: {client.standing}" for client in [*waiting][:TOLD])
                on_wait(anyio.current_time() - began, standing)
                await anyio.sleep(TOLD_SECONDS)

        async with anyio.create_task_group() as group:
            for client, end in until.items():
                group.start_soon(wait, client, end)
            if waiting and on_wait is not None:
                group.start_soon(tell, on_wait)
        await self._refreshed()

    async def _refreshed(self) -> None:
        """Wait for a refresh that begins from now on; all who wait at a time have the same."""
        ended = self._next
        self._stale.set()
        await ended.wait()

    async def _watch_documents(self) -> None:
        """Read and watch the configured folders, and start over when they change."""
        await in_thread(self._library.reload)
        self._documents_read.set()
        self.mark_stale()
        while True:
            self._folders_changed = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(watch, self._library, self._documents_changed)
                await self._folders_changed.wait()
                group.cancel_scope.cancel()

    async def _documents_changed(self, changes: DocumentChanges) -> None:
        for uri in changes.changed:
            for rewritten in self._rewritten:
                rewritten(uri)
        self.mark_stale()
