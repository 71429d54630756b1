"""The composition root: builds everything from a `Config` and owns the root task group."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentFolder
from mcp_context_proxy.catalog.library import Changes as DocumentChanges
from mcp_context_proxy.catalog.library import DocumentLibrary
from mcp_context_proxy.catalog.watch import watch
from mcp_context_proxy.config import Config, DocumentsConfig, EmbeddingConfig
from mcp_context_proxy.config.reload import Load, Reloader, Standing
from mcp_context_proxy.config.secrets import RedactingFilter, secrets_of
from mcp_context_proxy.context.companions import Companions
from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.handles import Handles
from mcp_context_proxy.context.options import configured
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.search import Searcher
from mcp_context_proxy.context.session import Sessions
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.downstream.memory import Memory
from mcp_context_proxy.embedding.cache import CachedEmbedder
from mcp_context_proxy.embedding.lazy import LazyModel
from mcp_context_proxy.embedding.opening import open_model
from mcp_context_proxy.embedding.queries import QueryEmbedder
from mcp_context_proxy.embedding.remembered import RememberedQueries
from mcp_context_proxy.embedding.tokens import TokenCounter
from mcp_context_proxy.front.process import listen_for_signals, raise_file_limit
from mcp_context_proxy.items import Kind
from mcp_context_proxy.learning.recorder import Recorder
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.fitting import Fitting
from mcp_context_proxy.sdk import load_sdk
from mcp_context_proxy.server import context_prompt, meta_tools
from mcp_context_proxy.server.attribution import Attribution
from mcp_context_proxy.server.broadcast import Broadcast
from mcp_context_proxy.server.changes import Changes
from mcp_context_proxy.server.context_prompt import ContextPrompt
from mcp_context_proxy.server.context_resources import ContextResources
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.open_sessions import OpenSessions
from mcp_context_proxy.server.own_tools import OwnTools
from mcp_context_proxy.server.parked import ParkedCalls
from mcp_context_proxy.server.prompts import Prompts
from mcp_context_proxy.server.resources import Resources
from mcp_context_proxy.server.tools import ToolCalls, ToolList
from mcp_context_proxy.store import open_store
from mcp_context_proxy.wire.envelope import Members

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from mcp_context_proxy.server.sdk import SdkServer
    from mcp_context_proxy.store import Store

logger = logging.getLogger(__name__)

Front = Callable[["Proxy", "SdkServer"], Awaitable[None]]
"""Serves hosts until it is cancelled or its host is gone."""


class Proxy:
    """All parts, connected. Nothing runs until `running`."""

    def __init__(self, config: Config, store: Store) -> None:
        """Build the parts.

        Args:
            config: Of everything.
            store: Open; whoever opened it closes it.
        """
        self.config, self.store = config, store
        self.model = LazyModel(partial(open_model, config))
        answered: Counter[str] = Counter()
        embedder, learns = QueryEmbedder(self.model), config.learning.enabled
        queries = RememberedQueries(embedder)
        self.learned = LearnedTier(embedder, store.learned, config.learning.store_queries) if learns else None
        self.recorder = Recorder(self.learned) if self.learned is not None else None
        self.engine = Engine(
            CachedEmbedder(self.model, store.vectors),
            queries,
            fitting(config.embedding),
            answered.__getitem__,
            self.learned,
        )
        self.expander = Expander(self.engine.index_of, queries)
        self.searcher = Searcher(self.engine, config, self.caught_up, self.model.get)
        self.library = DocumentLibrary(_folders(config.documents), config.limits)
        self._warm, self._stale, self._other_folders = False, anyio.Event(), anyio.Event()
        self.fleet = Fleet(
            config.servers.values(), config.limits, self._mark_stale, self._on_event, Memory(store.listings)
        )
        self.catalog = Catalog(config.expose, config.limits, self.fleet.serving, self.library)
        self.catalog.reserved = meta_tools.RESERVED | {context_prompt.NAME}
        self.setup = _setup(config)
        self.reloader: Reloader | None = None
        """Follows the configuration file while a front is served."""
        sessions, kept = Sessions(), store.requests if config.context.keep_requests else None
        self.handles = Handles(config.limits.sessions, config.limits.session_idle_seconds, sessions)
        self.records = RequestRecords(config.limits, kept)
        self.companions = Companions(self.expander, config.context.expansion_rules)
        self.contexts = ContextEngine(
            self.catalog,
            self.searcher,
            sessions,
            self.records,
            configured(config),
            Costs(TokenCounter()),
            self.companions,
        )
        self.tool_list = ToolList(
            config.expose,
            self.catalog,
            self.fleet,
            self.contexts,
            self.handles,
            meta_tools.definitions(self.setup),
        )
        self.open_sessions = OpenSessions()
        self.broadcast = Broadcast(self.open_sessions)
        self.changes = Changes(self.catalog, self.tool_list, self.open_sessions)
        self.parked = ParkedCalls(config.limits.parked_calls, config.limits.ask_seconds)
        forwarder = Forwarder(self.parked)
        shown = ContextResources(self.catalog, self.contexts, self.handles)
        resources = Resources(self.catalog, self.fleet, forwarder, shown)
        prompt = ContextPrompt(self.contexts, self.handles)
        prompts = Prompts(self.catalog, self.fleet, forwarder, resources, prompt)
        self.open_sessions.when_ended(resources.end)
        self.open_sessions.when_ended(lambda session: self.fleet.end(session.party))
        called = None
        if self.recorder is not None:
            called = Attribution(self.recorder, self.records, self.handles, self.catalog).called
        calls = ToolCalls(
            self.catalog, self.fleet, forwarder, self.contexts, self.handles, self.caught_up, answered, called
        )
        own_tools = OwnTools(
            self.fleet, self.contexts, calls, self.handles, self.changes, lambda: self.setup.manage
        )
        self.gateway = Gateway(
            self.fleet,
            self.contexts,
            self.open_sessions,
            self.tool_list,
            calls,
            own_tools,
            resources,
            prompts,
            config.expose.page_size,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the servers without waiting for any; keep the catalog current; stop all on the way out."""
        await anyio.to_thread.run_sync(self.library.reload)
        await self.fleet.recall()
        self.catalog.refresh()
        async with anyio.create_task_group() as group, self.fleet:
            group.start_soon(self._keep_catalog)
            group.start_soon(self.changes.run)
            group.start_soon(self.broadcast.run)
            group.start_soon(self.parked.run)
            group.start_soon(self.searcher.run)
            group.start_soon(self.records.run)
            if self.recorder is not None:
                group.start_soon(self.recorder.run)
            group.start_soon(self._watch_documents)
            if self.config.search.warm_up:
                group.start_soon(self._warm_up)
            try:
                yield
            finally:
                # First: a thread that waits for an embedding service would hold up everything else.
                self.model.close()
                group.cancel_scope.cancel()

    async def apply(self, config: Config) -> None:
        """Follow a changed configuration; what is the same in it is not touched.

        What is read only at start stays as it was: see `config.difference`.
        """
        before, self.config = self.config, config
        _redact_logs(config)
        difference = self.fleet.apply(config.servers.values(), config.limits)
        self.setup = _setup(config)
        self.catalog.configure(config.expose, config.limits)
        self.tool_list.configure(config.expose, meta_tools.definitions(self.setup))
        self.searcher.configure(config)
        self.contexts.configure(configured(config))
        self.companions.configure(config.context.expansion_rules)
        if (config.documents, config.limits) != (before.documents, before.limits):
            self.library.configure(_folders(config.documents), config.limits)
            await anyio.to_thread.run_sync(self.library.reload)
            self._other_folders.set()
        self._warm = self._warm or config.search.warm_up
        self._mark_stale()
        logger.info("the changed configuration is in use: %s", difference)

    async def settled(self) -> None:
        """Wait until every server is ready or has failed once, and the catalog knows it."""
        await self.fleet.settled()
        await self._refresh()

    async def caught_up(self, seconds: float) -> None:
        """Wait, no longer than `seconds`, for servers still starting; those that came are in the catalog."""
        if not self.fleet.starting:
            return
        with anyio.move_on_after(seconds):
            await self.fleet.settled()
        await self._refresh()
        self.changes.catalog_changed()

    def health(self) -> dict[str, Any]:
        """That it serves, and how what is written in the configuration differs from what is in use."""
        standing = Standing() if self.reloader is None else self.reloader.standing
        told = {"problems": standing.problems, "needs_restart": standing.needs_restart}
        return {"status": "ok"} | {key: list(values) for key, values in told.items() if values}

    def _mark_stale(self) -> None:
        self._stale.set()

    async def _keep_catalog(self) -> None:
        while True:
            await self._stale.wait()
            self._stale = anyio.Event()
            await self._refresh()
            self.changes.catalog_changed()

    async def _watch_documents(self) -> None:
        """Watch the folders that are configured now, until others are."""
        while True:
            self._other_folders = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(watch, self.library, self._documents_changed)
                await self._other_folders.wait()
                group.cancel_scope.cancel()

    async def _documents_changed(self, changes: DocumentChanges) -> None:
        for uri in changes.changed:
            self.changes.resource_updated(uri)
        self._mark_stale()

    def _on_event(self, method: str, params: Members, parties: frozenset[Party]) -> None:
        self.changes.downstream_event(method, params)
        self.broadcast.take(method, params, parties)

    async def _warm_up(self) -> None:
        await self.settled()
        self._warm = True
        self.searcher.prepare(self.catalog.snapshot)

    async def _refresh(self) -> None:
        await anyio.to_thread.run_sync(self.catalog.refresh)
        if self._warm:
            self.searcher.prepare(self.catalog.snapshot)


def fitting(embedding: EmbeddingConfig) -> Fitting:
    """What counts as near enough to be meant; anything, for a model of which nobody said it."""
    if embedding.fitting_cosine is not None:
        return embedding.fitting_cosine
    return "background" if embedding.packaged else "anything"


def store_location(config: Config) -> Path | Literal["memory"] | None:
    """Where vectors are kept; None is the user's data folder."""
    path = config.store.path
    if path is None:
        return None
    return "memory" if path == "memory" else Path(path)


@asynccontextmanager
async def open_proxy(config: Config) -> AsyncIterator[Proxy]:
    """A running proxy, without a front."""
    _redact_logs(config)
    store = await anyio.to_thread.run_sync(open_store, store_location(config))
    try:
        proxy = Proxy(config, store)
        async with proxy.running():
            yield proxy
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(store.close)


def _redact_logs(config: Config) -> None:
    secrets = [secret for server in config.servers.values() for secret in secrets_of(server)]
    if config.embedding.api_key is not None:
        secrets.append(("embedding.api_key", config.embedding.api_key))
    for handler in logging.getLogger().handlers:
        known = [filtered for filtered in handler.filters if isinstance(filtered, RedactingFilter)]
        if not known:
            known = [RedactingFilter()]
            handler.addFilter(known[0])
        known[0].learn(secrets)


def _folders(entries: Iterable[DocumentsConfig]) -> list[DocumentFolder]:
    return [
        DocumentFolder(Kind(entry.kind) if entry.kind else None, entry.path, entry.include)
        for entry in entries
    ]


def _setup(config: Config) -> meta_tools.Setup:
    servers = tuple(name for name, server in config.servers.items() if server.enabled)
    return meta_tools.Setup(servers, bool(config.documents), config.context.manage_tool)


async def serve(config: Config, front: Front, load_again: Load) -> None:
    """Serve a front until it ends or the process is asked to stop; follow the configuration meanwhile."""
    raise_file_limit()
    # Listened for before any server is started: none may outlive a proxy that is stopped at once.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as listening:
            asked = anyio.Event()
            listening.start_soon(listen_for_signals, signals, asked)
            async with open_proxy(config) as proxy:
                # Half a second of imports, in which the servers start.
                await load_sdk()
                from mcp_context_proxy.server.sdk import SdkServer  # noqa: PLC0415

                server = SdkServer(
                    proxy.gateway,
                    proxy.changes,
                    meta_tools.instructions(proxy.setup),
                    proxy.tool_list.header_schema,
                )

                async def apply(changed: Config) -> None:
                    await proxy.apply(changed)
                    server.instructions = meta_tools.instructions(proxy.setup)

                proxy.reloader = Reloader(config, load_again, apply)
                async with anyio.create_task_group() as group:
                    group.start_soon(_stop_when_asked, asked, proxy, group.cancel_scope)
                    group.start_soon(proxy.reloader.run)
                    group.start_soon(_reload_on_hangup, proxy.reloader, group.cancel_scope)
                    await front(proxy, server)
                    group.cancel_scope.cancel()
            listening.cancel_scope.cancel()


async def _stop_when_asked(asked: anyio.Event, proxy: Proxy, scope: anyio.CancelScope) -> None:
    await asked.wait()
    await proxy.gateway.drain.finish(proxy.config.limits.drain_seconds)
    # The servers begin to stop while the front still closes its connections.
    proxy.fleet.stop()
    scope.cancel()


async def _reload_on_hangup(reloader: Reloader, scope: anyio.CancelScope) -> None:
    """Read the configuration again on SIGHUP, except where that tells of a terminal that was closed."""
    if sys.platform == "win32":
        return
    in_terminal = os.isatty(sys.stderr.fileno())
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            if in_terminal and not os.isatty(sys.stderr.fileno()):
                scope.cancel()
                return
            reloader.ask()


async def stdio_front(proxy: Proxy, server: SdkServer) -> None:
    """Serve the host at the other end of the standard streams, and the API where it is wanted."""
    async with anyio.create_task_group() as group:
        group.start_soon(_api_beside, proxy)
        await _serve_streams(proxy, server)
        group.cancel_scope.cancel()


async def _api_beside(proxy: Proxy) -> None:
    settings, limits = proxy.config.http, proxy.config.limits
    if settings.api_port is not None:
        from mcp_context_proxy.web import beside  # noqa: PLC0415 - a stdio front alone needs none of it

        await beside.serve(_web_routes(proxy), settings, settings.api_port, limits, proxy.health)


async def _serve_streams(proxy: Proxy, server: SdkServer) -> None:
    if sys.platform == "win32":
        from mcp.server.stdio import stdio_server  # noqa: PLC0415 - POSIX has its own front

        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
        return
    from mcp_context_proxy.front.stdio import StdioFront  # noqa: PLC0415 - POSIX only

    await StdioFront(proxy.gateway, proxy.config.limits).serve(server)


async def http_front(proxy: Proxy, server: SdkServer) -> None:
    """Serve hosts over HTTP.

    Raises:
        ConfigError: the front would be open to others than this machine, without a token.
        OSError: the address cannot be had.
    """
    from mcp_context_proxy.front import guard, http  # noqa: PLC0415 - a stdio front needs none of it
    from mcp_context_proxy.front.token import credentials_for  # noqa: PLC0415

    settings, limits = proxy.config.http, proxy.config.limits
    credentials = credentials_for(settings)
    bound = http.listen(settings.host, settings.port)
    port = bound.getsockname()[1]
    policy = guard.policy(settings.host, port, settings.allowed_hosts, credentials.token)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    logger.warning("serving http://%s:%d/mcp, /api/v1 and /ui%s", host, port, credentials.whereabouts)
    app = http.application(server, limits, policy, proxy.health, _web_routes(proxy))
    await http.serve(app, bound, limits, on_stop=server.listen.close)


def _web_routes(proxy: Proxy) -> list[BaseRoute]:
    from mcp_context_proxy.web.api import Api  # noqa: PLC0415 - a stdio front alone does not need it
    from mcp_context_proxy.web.routes import routes  # noqa: PLC0415

    api = Api(proxy.contexts, proxy.catalog, lambda: proxy.fleet.clients, proxy.changes)
    return routes(api, proxy.config.limits.http_body_bytes)
