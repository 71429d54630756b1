"""A proxy: all its parts, and the task group that owns everything that runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mcp_context_proxy.app.catalog_refresh import CatalogRefresh
from mcp_context_proxy.app.parts import InteractionParts, SearchParts, StatisticsParts
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.document_library import DocumentLibrary
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.host_profiles import INSTRUCTIONS_BYTES
from mcp_context_proxy.config.load import complaints
from mcp_context_proxy.config.reload import Reloader, Standing
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of, redact_logs
from mcp_context_proxy.context.background_indexing import Indexed, OnWait
from mcp_context_proxy.context.delivery import Introduction, introduction
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import configured
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.search import Searcher
from mcp_context_proxy.context.selection import ContextExpander
from mcp_context_proxy.context.session import Handles
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.results import LargeResults
from mcp_context_proxy.server import meta_definitions
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.notifications import ChangeNotifier, OpenSessions
from mcp_context_proxy.server.pending_input import PendingInput
from mcp_context_proxy.server.tools_list import ToolList
from mcp_context_proxy.store import Store
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.threads import in_thread

if TYPE_CHECKING:
    from mcp_context_proxy.server.sdk import SdkServer
    from mcp_context_proxy.server.tracing import Tracing

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Proxy:
    """The parts of a proxy; `app.build.build` makes one. Nothing runs before `running`."""

    config: Config
    store: Store
    library: DocumentLibrary
    fleet: Fleet
    catalog: Catalog
    refresh: CatalogRefresh
    search: SearchParts
    statistics: StatisticsParts
    interactions: InteractionParts | None
    """None if interactions are not remembered."""
    handles: Handles
    records: RequestRecords
    expander: ContextExpander
    contexts: ContextEngine
    setup: meta_definitions.Setup
    tool_list: ToolList
    open_sessions: OpenSessions
    changes: ChangeNotifier
    pending_input: PendingInput
    forwarder: Forwarder
    gateway: Gateway
    results: LargeResults
    redact: Redactor
    """Removes the secrets of all configurations so far from what people are shown."""
    reloader: Reloader | None = None
    """Follows the configuration file while a front is served."""
    server: SdkServer | None = None
    """Serves hosts; None without a front."""
    _warm: bool = False
    """Whether each new snapshot is indexed at once."""

    @property
    def searcher(self) -> Searcher:
        """Return the searcher."""
        return self.search.searcher

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the proxy: start the servers without waiting for any, and stop everything on exit."""
        self.refresh.when_refreshed(self._index)
        self.refresh.when_refreshed(self._introduce)
        await in_thread(self._choose_working_set)
        await self.refresh.load_listings()
        async with anyio.create_task_group() as group, self.search.reranker, self.fleet:
            group.start_soon(self.refresh.run)
            await self.refresh.wait_until_begun()
            for part in (
                self.changes,
                self.open_sessions,
                self.pending_input,
                self.searcher.indexing,
                self.records,
                self.search.use_recorder,
                self.search.session_recorder,
                self.statistics.usage,
                None if self.interactions is None else self.interactions.recorder,
            ):
                if part is not None:
                    group.start_soon(part.run)
            if self.config.search.warm_up:
                group.start_soon(self._warm_up)
            try:
                yield
            finally:
                # First, because a thread that waits for an embedding service would delay everything else.
                self.search.model.close()
                self.results.kept.close()
                group.cancel_scope.cancel()

    async def apply(self, config: Config) -> None:
        """Apply a changed configuration; unchanged servers and folders are not touched.

        Settings that need a restart keep their old values: see `config.settings.Reload`.
        """
        before, self.config = self.config, config
        changed = {table for table in Config.model_fields if getattr(config, table) != getattr(before, table)}
        redact_logs(all_secrets_of(config))
        self.redact.know(all_secrets_of(config))
        difference = self.fleet.apply(config.servers.values(), config.limits, config.off)
        self.searcher.config = config
        self.results.config = config.results
        recalls = self.interactions is not None and self.interactions.recall_tool
        self.setup = tools_setup(config, recalls=recalls)
        if self.server is not None:
            self.server.introduce(self.introduction())
        if self.interactions is not None:
            self.interactions.configure(config)
        # Each of the other parts is reached only if a table that it reads has changed.
        if changed & {"expose", "limits"}:
            self.catalog.configure(config.expose, config.limits)
        if changed & {"expose", "servers", "documents", "context"}:
            self.tool_list.configure(config.expose, self.setup)
        if changed & {"expose", "search", "context"}:
            self.contexts.configure(configured(config))
            self.expander.rules = config.context.expansion_rules
        if changed & {"documents", "limits"}:
            self.library.configure(config.documents, config.limits)
            await self.refresh.reconfigure_documents()
        self._warm = self._warm or config.search.warm_up
        self.refresh.mark_stale()
        logger.info("the changed configuration is in use: %s", difference)

    async def wait_first_connect(self) -> None:
        """Wait until every server is ready or has failed once, and the catalog is up to date."""
        await self.refresh.wait_first_connect()

    async def wait_for_starting_servers(self, seconds: float, on_wait: OnWait | None = None) -> None:
        """Wait for servers that start and were never connected, up to `seconds`; refresh the catalog."""
        await self.refresh.wait_for_starting_servers(seconds, on_wait)

    async def reindex(self, rebuild: bool) -> Indexed:
        """Read the documents again and index new items in the background; return the progress.

        Args:
            rebuild: Whether all vectors are forgotten first.

        Raises:
            StoreError: the vectors cannot be forgotten.
        """
        if rebuild:
            await in_thread(self.search.forget_vectors, self.catalog.snapshot)
        await self.refresh.reread()
        return await self.searcher.indexed(self.catalog)

    def trace(self, tracing: Tracing | None) -> None:
        """Make spans of requests from now on, or none."""
        self.gateway.tracing = self.forwarder.tracing = tracing

    def instructions(self) -> str:
        """Return the text about this proxy that hosts give to their models."""
        return self.introduction().text

    def introduction(self) -> Introduction:
        """Return that text with the rules in it: those that are in force and fit into what hosts keep.

        The user's rules come before what servers say about themselves, which gets the room that is left.
        """
        snapshot = self.catalog.snapshot
        instructions = partial(
            meta_definitions.instructions,
            self.setup,
            words_only=self.search.model.error is not None,
            whole=self.tool_list.hides_nothing(snapshot, self.tool_list.base_names(snapshot)),
        )
        rules = introduction(snapshot, INSTRUCTIONS_BYTES - len(instructions().encode()))
        room = meta_definitions.INSTRUCTIONS_BYTES - len(rules.text.encode())
        said = meta_definitions.said_by(self.fleet.serving(), self.redact)
        text = instructions(said=said, most=room)
        lines = {name: meta_definitions.server_line(name, words) for name, words in said.items()}
        servers = frozenset(name for name, line in lines.items() if line in text)
        return replace(rules, text=text + rules.text, servers=servers)

    def health(self) -> dict[str, Any]:
        """Return the body of ``/healthz``: the status, and problems that a person should know."""
        standing = Standing(tuple(complaints(self.config)))
        if self.reloader is not None:
            standing = self.reloader.standing
        problems = [*standing.problems]
        for client in self.fleet.clients.values():
            if client.cause:
                problems.append(f"server {client.name}: not connected: {client.cause}")
        if (model := self.search.model.error) is not None:
            problems.append(f"{model}. Search uses words alone")
        if self.store.warning is not None:
            problems.append(self.store.warning)
        facts = {"problems": problems, "needs_restart": standing.needs_restart}
        return {"status": "ok"} | {key: list(values) for key, values in facts.items() if values}

    def _choose_working_set(self) -> None:
        store, learning = self.store, self.config.learning
        if learning.enabled:
            chosen_from = store.tool_sessions, store.statistics
            self.search.working_set.choose(*chosen_from, learning.working_set_tokens, time_of_day)

    async def _warm_up(self) -> None:
        await self.wait_first_connect()
        self._warm = True
        self._index(self.catalog.snapshot)

    def _introduce(self, snapshot: Snapshot) -> None:
        del snapshot
        if self.server is not None:
            self.server.introduce(self.introduction())

    def _index(self, snapshot: Snapshot) -> None:
        if self._warm:
            self.searcher.indexing.prepare(snapshot)


def tools_setup(config: Config, *, recalls: bool) -> meta_definitions.Setup:
    """Return the facts that the definitions of the meta tools depend on."""
    servers = tuple(name for name, server in config.servers.items() if server.enabled)
    return meta_definitions.Setup(
        servers,
        has_documents=bool(config.documents),
        set_context=config.context.set_context_tool,
        manage=config.context.manage_tool,
        recall=recalls,
    )
