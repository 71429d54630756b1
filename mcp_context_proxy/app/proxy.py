"""All parts of a proxy, connected, and the one task group that owns what runs.

Keeps the catalog up to date with servers and folders, and tells whoever serves from it of changes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from mcp_context_proxy.app.build import Measuring, Remembering, Searching, gateway
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.document_library import DocumentChanges, DocumentLibrary, watch
from mcp_context_proxy.catalog.documents import DocumentFolder
from mcp_context_proxy.config import Config, DocumentsConfig
from mcp_context_proxy.config.reload import Reloader, Standing
from mcp_context_proxy.config.secrets import all_secrets_of, redact_logs
from mcp_context_proxy.context.background_indexing import Indexed
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import configured
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.selection import ContextExpander, Costs
from mcp_context_proxy.context.session import Handles, Sessions
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.embedding.embeddings import Lookups
from mcp_context_proxy.embedding.tokens import TokenCounter
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.items import Kind, Snapshot
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.server import meta_definitions, prompts
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.notifications import ChangeNotifier, OpenSessions
from mcp_context_proxy.server.pending_input import PendingInput
from mcp_context_proxy.server.tools_list import ToolList
from mcp_context_proxy.statistics.recorder import CacheCounts
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.threads import in_thread

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing
    from mcp_context_proxy.store import Store


READING_SECONDS: Final = 0.25
"""For the documents to be read before hosts are served: some hundreds. More are served once all are read."""


class CatalogRefresh:
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
        await self._fleet.load_listings()

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
        await self._fleet.wait_first_connect()
        await self._refresh()

    async def caught_up(self, seconds: float) -> None:
        """Wait, no longer than `seconds`, for servers still starting; those that came are in the catalog."""
        if not self._fleet.starting and self._documents_read.is_set():
            return
        with anyio.move_on_after(seconds):
            await self._documents_read.wait()
            await self._fleet.wait_first_connect()
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


logger = logging.getLogger(__name__)


class Proxy:
    """All parts, connected. Nothing runs until `running`."""

    def __init__(self, config: Config, store: Store) -> None:
        """Build the parts.

        Args:
            config: Of everything.
            store: Open; whoever opened it closes it.
        """
        self.config, self.store = config, store
        self.searching = Searching(config, store, self.caught_up, lambda: self.measuring.figures)
        self.searcher = self.searching.searcher
        self.library = DocumentLibrary(_folders(config.documents), config.limits)
        self.fleet = Fleet(
            config.servers.values(),
            config.limits,
            self._on_stale,
            self._on_event,
            store.listings,
        )
        reserved = meta_definitions.RESERVED | {prompts.NAME}
        self.catalog = Catalog(config.expose, config.limits, self.fleet.serving, self.library, reserved)
        self.upkeep = CatalogRefresh(self.catalog, self.fleet, self.library)
        self._warm = False
        remembers = config.interactions.enabled
        self.remembering = Remembering(config, store, self.searching.model) if remembers else None
        self.setup = _setup(config, self.recallable is not None)
        self.reloader: Reloader | None = None
        """Follows the configuration file while a front is served."""
        sessions, kept = Sessions(), store.requests if config.context.keep_requests else None
        self.handles = Handles(config.limits.sessions, config.limits.session_idle_seconds, sessions)
        self.records = RequestRecords(config.limits, kept)
        costs = Costs(TokenCounter())
        self.companions = ContextExpander(self.searching.expander, config.context.expansion_rules)
        self.contexts = ContextEngine(
            self.catalog,
            self.searcher,
            sessions,
            self.records,
            configured(config),
            costs,
            self.companions,
            self.searching.reranker,
            self.searching.working_set,
        )
        self.tool_list = ToolList(
            expose=config.expose,
            catalog=self.catalog,
            fleet=self.fleet,
            contexts=self.contexts,
            handles=self.handles,
            meta_tools=meta_definitions.definitions(self.setup),
            working_set=self.searching.working_set,
        )
        self.measuring = Measuring(
            config, store, lambda: self.catalog.snapshot, costs, self.tool_list.lists_all
        )
        if self.measuring.searches is not None:
            self.records.when_added(self.measuring.searches.served)
        if self.measuring.usage is not None:
            for name, lookups in self.searching.lookups.items():
                self.measuring.usage.counters.caches[name] = partial(_counts, lookups)
        self.open_sessions = OpenSessions()
        self.changes = ChangeNotifier(self.catalog, self.tool_list, self.open_sessions)
        self.upkeep.when_refreshed(self._index)
        self.upkeep.when_changed(self.changes.catalog_changed)
        self.upkeep.when_rewritten(self.changes.resource_updated)
        self.parked = PendingInput(config.limits.parked_calls, config.limits.ask_seconds)
        self.forwarder = Forwarder(self.parked)
        self.gateway = gateway(self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the servers without waiting for any; keep the catalog current; stop all on the way out."""
        await in_thread(self._choose_working_set)
        await self.upkeep.recall()
        async with anyio.create_task_group() as group, self.searching.reranker, self.fleet:
            group.start_soon(self.upkeep.run)
            await self.upkeep.begun()
            group.start_soon(self.changes.run)
            group.start_soon(self.open_sessions.run)
            group.start_soon(self.parked.run)
            group.start_soon(self.searcher.run)
            group.start_soon(self.records.run)
            if self.searching.recorder is not None:
                group.start_soon(self.searching.recorder.run)
            if self.searching.session_recorder is not None:
                group.start_soon(self.searching.session_recorder.run)
            if self.measuring.usage is not None:
                group.start_soon(self.measuring.usage.run)
            if self.remembering is not None:
                group.start_soon(self.remembering.recorder.run)
            if self.config.search.warm_up:
                group.start_soon(self._warm_up)
            try:
                yield
            finally:
                # First: a thread that waits for an embedding service would hold up everything else.
                self.searching.model.close()
                group.cancel_scope.cancel()

    async def apply(self, config: Config) -> None:
        """Follow a changed configuration; what is the same in it is not touched.

        What is read only at start stays as it was: see `config.difference`.
        """
        before, self.config = self.config, config
        redact_logs(all_secrets_of(config))
        difference = self.fleet.apply(config.servers.values(), config.limits)
        self.setup = _setup(config, self.recallable is not None)
        if self.remembering is not None:
            self.remembering.configure(config)
        self.catalog.configure(config.expose, config.limits)
        self.tool_list.configure(config.expose, meta_definitions.definitions(self.setup))
        self.searcher.configure(config)
        self.contexts.configure(configured(config))
        self.companions.configure(config.context.expansion_rules)
        if (config.documents, config.limits) != (before.documents, before.limits):
            self.library.configure(_folders(config.documents), config.limits)
            await self.upkeep.other_folders()
        self._warm = self._warm or config.search.warm_up
        self.upkeep.mark_stale()
        logger.info("the changed configuration is in use: %s", difference)

    async def settled(self) -> None:
        """Wait until every server is ready or has failed once, and the catalog knows it."""
        await self.upkeep.settled()

    async def caught_up(self, seconds: float) -> None:
        """Wait, no longer than `seconds`, for servers still starting; those that came are in the catalog."""
        await self.upkeep.caught_up(seconds)

    async def reindex(self, rebuild: bool) -> Indexed:
        """Read the documents again and index what is new, in the background; say how far that is.

        Args:
            rebuild: Whether all vectors are forgotten first.

        Raises:
            StoreError: they cannot be.
        """
        if rebuild:
            await in_thread(self.searching.forget_vectors, self.catalog.snapshot)
        await self.upkeep.reread()
        return await self.searcher.indexed(self.catalog)

    def trace(self, tracing: Tracing | None) -> None:
        """Make spans of requests from now on, or none."""
        self.gateway.tracing = self.forwarder.tracing = tracing

    def health(self) -> dict[str, Any]:
        """What ``/healthz`` answers: that it serves, and how the configuration file differs from it."""
        standing = Standing() if self.reloader is None else self.reloader.standing
        found = [*standing.problems]
        if (model := self.searching.model.error) is not None:
            found.append(f"{model}. Search goes by words alone")
        if self.store.warning is not None:
            found.append(self.store.warning)
        told = {"problems": found, "needs_restart": standing.needs_restart}
        return {"status": "ok"} | {key: list(values) for key, values in told.items() if values}

    def _choose_working_set(self) -> None:
        store, learning = self.store, self.config.learning
        if learning.enabled:
            chosen_from = store.tool_sessions, store.statistics
            self.searching.working_set.choose(*chosen_from, learning.working_set_tokens, time_of_day)

    @property
    def recallable(self) -> InteractionRecorder | None:
        """Has what models may recall; None where they may not."""
        parts = self.remembering
        return parts.recorder if parts is not None and parts.recall_tool else None

    def _on_stale(self) -> None:
        self.upkeep.mark_stale()

    def _on_event(self, method: str, params: Members, parties: frozenset[Party]) -> None:
        self.changes.downstream_event(method, params)
        self.open_sessions.relay(method, params, parties)

    async def _warm_up(self) -> None:
        await self.upkeep.settled()
        self._warm = True
        self._index(self.catalog.snapshot)

    def _index(self, snapshot: Snapshot) -> None:
        if self._warm:
            self.searcher.prepare(snapshot)


def _counts(lookups: Lookups) -> CacheCounts:
    return CacheCounts(lookups.hits, lookups.misses)


def _folders(entries: Iterable[DocumentsConfig]) -> list[DocumentFolder]:
    return [
        DocumentFolder(Kind(entry.kind) if entry.kind else None, entry.path, entry.include)
        for entry in entries
    ]


def _setup(config: Config, recall: bool) -> meta_definitions.Setup:
    servers = tuple(name for name, server in config.servers.items() if server.enabled)
    return meta_definitions.Setup(servers, bool(config.documents), config.context.manage_tool, recall)
