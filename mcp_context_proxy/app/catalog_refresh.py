"""Keeps the catalog up to date with servers and documents, and notifies those who serve from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import anyio

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.document_library import DocumentChanges, DocumentLibrary, watch
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.system.threads import in_thread

READING_SECONDS: Final = 0.25
"""Time for reading the documents before hosts are served: enough for some hundreds. More follow later."""

RESTORING_SECONDS: Final = 1.0
"""Time for the listings of the last time, after that: enough for ten thousand tools. More follow later."""


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
                await in_thread(self._catalog.refresh)
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

    async def wait_for_starting_servers(self, seconds: float) -> None:
        """Wait up to `seconds` for servers that are still starting, and for the catalog to have them."""
        if not self._fleet.starting and self._documents_read.is_set():
            return
        with anyio.move_on_after(seconds):
            await self._documents_read.wait()
            await self._fleet.wait_first_connect()
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
