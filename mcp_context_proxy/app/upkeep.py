"""Keeps the catalog up to date with servers and folders, and tells whoever serves from it of changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.library import Changes as DocumentChanges
from mcp_context_proxy.catalog.library import DocumentLibrary
from mcp_context_proxy.catalog.watch import watch
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.threads import in_thread

READING_SECONDS: Final = 0.25
"""For the documents to be read before hosts are served: some hundreds. More are served once all are read."""


class Upkeep:
    """The catalog follows its servers and folders from `run` on."""

    def __init__(self, catalog: Catalog, fleet: Fleet, library: DocumentLibrary) -> None:
        """Prepare to follow.

        Args:
            catalog: Is kept current.
            fleet: The downstream servers.
            library: The folders of documents.
        """
        self._catalog, self._fleet, self._library = catalog, fleet, library
        self._stale, self._other_folders = anyio.Event(), anyio.Event()
        self._documents_read = anyio.Event()
        self._waited = False
        self._refreshed: list[Callable[[Snapshot], None]] = []
        self._changed: list[Callable[[], None]] = []
        self._rewritten: list[Callable[[str], None]] = []

    def when_refreshed(self, callback: Callable[[Snapshot], None]) -> None:
        """Call with every new snapshot; it must not block."""
        self._refreshed.append(callback)

    def when_changed(self, callback: Callable[[], None]) -> None:
        """Call when hosts may have to be told that the catalog is another."""
        self._changed.append(callback)

    def when_rewritten(self, callback: Callable[[str], None]) -> None:
        """Call with the URI of every document whose text has changed."""
        self._rewritten.append(callback)

    def mark_stale(self) -> None:
        """Have the catalog made anew soon."""
        self._stale.set()

    async def recall(self) -> None:
        """Know what servers listed the last time."""
        await self._fleet.recall()

    async def begun(self) -> None:
        """Wait until `run` knows the documents, unless there are very many."""
        with anyio.move_on_after(READING_SECONDS):
            await self._documents_read.wait()
        self._waited = True
        self._catalog.refresh()

    async def run(self) -> None:
        """Know the documents; keep the catalog current until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_documents)
            while True:
                await self._stale.wait()
                self._stale = anyio.Event()
                await self._refresh()
                self._tell()

    async def reread(self) -> None:
        """Read the documents again, whatever was noticed of them, and know all there is now."""
        await in_thread(self._library.reload)
        await self._refresh()
        self._tell()

    async def other_folders(self) -> None:
        """Read the folders of documents that are configured from now on, and watch those."""
        await in_thread(self._library.reload)
        self._other_folders.set()

    async def settled(self) -> None:
        """Wait until all is read and every server is ready or has failed once, and the catalog knows it."""
        await self._documents_read.wait()
        await self._fleet.settled()
        await self._refresh()

    async def caught_up(self, seconds: float) -> None:
        """Wait, no longer than `seconds`, for servers still starting; those that came are in the catalog."""
        if not self._fleet.starting and self._documents_read.is_set():
            return
        with anyio.move_on_after(seconds):
            await self._documents_read.wait()
            await self._fleet.settled()
        await self._refresh()
        self._tell()

    async def _refresh(self) -> None:
        await in_thread(self._catalog.refresh)
        for refreshed in self._refreshed:
            refreshed(self._catalog.snapshot)

    def _tell(self) -> None:
        for changed in self._changed:
            changed()

    async def _watch_documents(self) -> None:
        """Read the folders that are configured, and watch them, until others are."""
        await in_thread(self._library.reload)
        self._documents_read.set()
        if self._waited:
            self.mark_stale()
        while True:
            self._other_folders = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(watch, self._library, self._documents_changed)
                await self._other_folders.wait()
                group.cancel_scope.cancel()

    async def _documents_changed(self, changes: DocumentChanges) -> None:
        for uri in changes.changed:
            for rewritten in self._rewritten:
                rewritten(uri)
        self.mark_stale()
