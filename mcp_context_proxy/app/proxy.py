"""All parts of a proxy, connected, and the one task group that owns what runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mcp_context_proxy.app.answering import gateway
from mcp_context_proxy.app.measuring import Measuring
from mcp_context_proxy.app.remembering import Remembering
from mcp_context_proxy.app.searching import Searching
from mcp_context_proxy.app.upkeep import Upkeep
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentFolder
from mcp_context_proxy.catalog.library import DocumentLibrary
from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.config import Config, DocumentsConfig
from mcp_context_proxy.config.redaction import redact_logs
from mcp_context_proxy.config.reload import Reloader, Standing
from mcp_context_proxy.config.secrets import all_secrets_of
from mcp_context_proxy.context.background import Indexed
from mcp_context_proxy.context.companions import Companions
from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.handles import Handles
from mcp_context_proxy.context.options import configured
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.session import Sessions
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.downstream.memory import Memory
from mcp_context_proxy.embedding.remembered import Lookups
from mcp_context_proxy.embedding.tokens import TokenCounter
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.items import Kind, Snapshot
from mcp_context_proxy.server import context_prompt, meta_tools
from mcp_context_proxy.server.broadcast import Broadcast
from mcp_context_proxy.server.changes import Changes
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.open_sessions import OpenSessions
from mcp_context_proxy.server.parked import ParkedCalls
from mcp_context_proxy.server.tools import ToolList
from mcp_context_proxy.statistics.counters import CacheCounts
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.wire.envelope import Members

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing
    from mcp_context_proxy.store import Store

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
            config.servers.values(), config.limits, self._on_stale, self._on_event, Memory(store.listings)
        )
        self.catalog = Catalog(config.expose, config.limits, self.fleet.serving, self.library)
        self.catalog.reserved = meta_tools.RESERVED | {context_prompt.NAME}
        self.upkeep = Upkeep(self.catalog, self.fleet, self.library)
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
        self.companions = Companions(self.searching.expander, config.context.expansion_rules)
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
            config.expose,
            self.catalog,
            self.fleet,
            self.contexts,
            self.handles,
            meta_tools.definitions(self.setup),
            self.searching.working_set,
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
        self.broadcast = Broadcast(self.open_sessions)
        self.changes = Changes(self.catalog, self.tool_list, self.open_sessions)
        self.upkeep.when_refreshed(self._index)
        self.upkeep.when_changed(self.changes.catalog_changed)
        self.upkeep.when_rewritten(self.changes.resource_updated)
        self.parked = ParkedCalls(config.limits.parked_calls, config.limits.ask_seconds)
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
        self.tool_list.configure(config.expose, meta_tools.definitions(self.setup))
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
        self.broadcast.take(method, params, parties)

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


def _setup(config: Config, recall: bool) -> meta_tools.Setup:
    servers = tuple(name for name, server in config.servers.items() if server.enabled)
    return meta_tools.Setup(servers, bool(config.documents), config.context.manage_tool, recall)
