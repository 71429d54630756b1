"""A proxy: all its parts, the task group that owns everything that runs, and the upkeep of its catalog."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import anyio
from anyio.from_thread import check_cancelled
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.app import InteractionParts, SearchParts, StatisticsParts
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentChanges, DocumentLibrary, watch
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.host_profiles import INSTRUCTIONS_BYTES
from mcp_context_proxy.config.reload import Reloader, Standing, without_restart
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of, own_secrets_of, redact_logs
from mcp_context_proxy.context import RequestRecords, configured
from mcp_context_proxy.context.delivery import SessionIntroduction, introduction
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.indexing import Indexed
from mcp_context_proxy.context.search import Enough, OnWait, Searcher
from mcp_context_proxy.context.selection import ContextExpander
from mcp_context_proxy.context.session import Handles, ResultReading
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.items import IncludeMode, Snapshot
from mcp_context_proxy.learning import WorkingSet
from mcp_context_proxy.results.shortening import LargeResults
from mcp_context_proxy.server import ConnectedHost, meta_definitions
from mcp_context_proxy.server.consent import PendingInput
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.notifications import ChangeNotifier, OpenSessions
from mcp_context_proxy.server.rendering import PastRequests
from mcp_context_proxy.server.tools_list import ToolList
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.store.credentials import SharedCredentials
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import Repeating, alongside, in_thread
from mcp_context_proxy.trust import ACTING, reaches
from mcp_context_proxy.trust.approval import ApprovalEvent, Approvals
from mcp_context_proxy.trust.audit import AuditLog, KeptLogs

if TYPE_CHECKING:
    from mcp_context_proxy.server.tracing import Tracing

logger = logging.getLogger(__name__)

READING_SECONDS: Final = 2.0
"""Time for reading the documents before hosts are served: enough for thousands, or for hundreds on a busy
machine. Without them the instructions, which a client gets once, lack the ``always`` rules."""

RESTORING_SECONDS: Final = 1.0
"""Time for the listings of the last time, after that: enough for ten thousand tools. More follow later."""

APPROVALS_SECONDS: Final = 1.0
"""Time between two looks at what a person has approved by a command; each is one indexed query."""

CAUGHT_UP_SECONDS: Final = 5.0
"""Time for which a request waits for a refresh that is due; the largest takes a second or two."""

ANSWERED_SECONDS: Final = 0.005
"""Time for the answer of a list, after the refresh that it waited for."""

TOLD: Final = 4
"""Servers that a client is told of while its request waits for them."""

TOLD_SECONDS: Final = 1.0
"""Time between two such messages."""


class CatalogRefresh:
    """Keeps the catalog current with its servers and folders, and calls back when it has changed."""

    def __init__(
        self,
        catalog: Catalog,
        fleet: Fleet,
        library: DocumentLibrary,
        stale: asyncio.Event,
        *,
        first_list_seconds: float,
    ) -> None:
        """Prepare; `stale` requests a refresh once it is set, and first lists wait so long for documents."""
        self._catalog, self._fleet, self._library, self._stale = catalog, fleet, library, stale
        self._folders_changed = anyio.Event()
        self._documents_read = anyio.Event()
        self._has_documents = False
        """Whether they are in the catalog."""
        self._first_list_seconds = first_list_seconds
        self._listed_documents: float | None = None
        """Time until which lists wait for the documents; None before the first list."""
        self._next = anyio.Event()
        """Set when the refresh that begins next has ended."""
        self._running: anyio.Event | None = None
        """Set when the refresh that has begun has ended; None while there is none."""
        self._awaited = WeakKeyDictionary[DownstreamClient, float]()
        """Time until which searches wait for a server that is starting."""
        self._listed_by = WeakKeyDictionary[DownstreamClient, float]()
        """Time until which lists wait for one."""
        self.on_refreshed: Callable[[Snapshot], None] = lambda _snapshot: None
        """Called with every new snapshot; must not block."""
        self.on_rewritten: Callable[[str], None] = lambda _uri: None
        """Called with the URI of every document whose text has changed."""

    def mark_stale(self) -> None:
        self._stale.set()

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
                self._running, self._next = self._next, anyio.Event()
                has_documents = self._documents_read.is_set()
                # A list of the largest size takes seconds: a stop does not wait for its end.
                await in_thread(self._catalog.refresh, check_cancelled)
                self._has_documents = has_documents
                self.on_refreshed(self._catalog.snapshot)
                for changed in self._catalog.changed:
                    changed()
                self._running.set()
                self._running = None

    async def reread(self) -> None:
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

    async def wait_for_starting_servers(
        self, seconds: float, on_wait: OnWait | None = None, enough: Enough | None = None
    ) -> None:
        """Wait up to `seconds` for documents and for servers that start and of which nothing is known.

        The wait ends when nothing has come for a moment and what has come is `enough`.

        Afterwards the catalog has them, if there was time for that. All searches together wait for a server
        no longer than `seconds`: one that hangs or is downloaded delays the first, and not the rest, nor the
        first of the next proxy.
        """
        now = anyio.current_time()
        starting = (
            client for client in self._fleet.awaited() if client in self._awaited or not client.was_late
        )
        until = {client: self._awaited.setdefault(client, now + seconds) for client in starting}
        until = {client: end for client, end in until.items() if end > now}
        if not until and self._documents_read.is_set():
            # A server that has just become ready is not awaited, but its list may not be in the catalog yet.
            await self.catch_up()
            return
        late = True

        async def look(enough: Enough) -> None:
            nonlocal late
            await self._fleet.wait_until_enough(enough)
            late = False
            group.cancel_scope.cancel()

        with anyio.move_on_after(seconds):
            await self._documents_read.wait()
            async with anyio.create_task_group() as group:
                if enough is not None:
                    group.start_soon(look, enough)
                await self._wait_for(until, on_wait)
                group.cancel_scope.cancel()
        for client in until if late else ():
            await client.note_late()

    async def wait_for_first_lists(self, hides_tools: Callable[[], bool] | None = None) -> None:
        """Wait for servers of which nothing is known, up to ``first_list_seconds`` for all lists together.

        The wait ends when each has listed or failed, and then the catalog has them. As soon as `hides_tools`
        returns True, which may follow from servers that have listed meanwhile, only servers that may have
        ``always`` tools are waited for: the tools of the others are found by search alone. Lists of other
        things, without `hides_tools`, wait for the documents as well.
        """
        if hides_tools is None and not self._has_documents:
            if self._listed_documents is None:
                self._listed_documents = anyio.current_time() + self._first_list_seconds
            with anyio.CancelScope(deadline=self._listed_documents):
                await self._documents_read.wait()
                await self._refreshed()

        def needless(client: DownstreamClient) -> bool:
            if hides_tools is None or not hides_tools():
                return False
            server = client.config
            return IncludeMode.ALWAYS not in (server.include, *(one.include for one in server.tools.values()))

        now = anyio.current_time()
        unlisted = filter(None, map(self._fleet.clients.get, self._catalog.snapshot.unlisted))
        until = {
            client: end
            for client in unlisted
            if not client.failures and not needless(client)
            if (end := self._listed_by.setdefault(client, now + client.limits.first_list_seconds)) > now
        }
        if until:
            with anyio.CancelScope(deadline=max(until.values())):
                await self._wait_for(until, None, needless if hides_tools is not None else None)

    async def wait_for_server(self, name: str | None, on_wait: OnWait | None = None) -> None:
        """Wait for a server that is starting, and for the catalog, up to its ``connect_timeout``.

        Without a name, all servers are waited for of which nothing is known. A server that has just become
        ready is in the catalog afterwards, too.
        """
        now = anyio.current_time()
        until = {client: now + client.config.connect_timeout for client in self._fleet.awaited(name)}
        self._fleet.hurry(name)
        if until:
            with anyio.CancelScope(deadline=max(until.values())):
                await self._wait_for(until, on_wait)
        else:
            await self.catch_up()

    @property
    def is_behind(self) -> bool:
        """True while a change of a server or a folder is not in the catalog yet."""
        return self._stale.is_set() or self._running is not None

    async def catch_up(self) -> None:
        """Wait for a moment until the catalog has all changes so far; returns at once if it has them."""
        due = self._next if self._stale.is_set() else self._running
        if due is not None:
            with anyio.move_on_after(CAUGHT_UP_SECONDS):
                await due.wait()

    async def settled(self) -> None:
        """Wait until the catalog has all changes so far, and lists that waited for them are answered."""
        await self.catch_up()
        await anyio.sleep(ANSWERED_SECONDS)

    async def _wait_for(
        self,
        until: Mapping[DownstreamClient, float],
        on_wait: OnWait | None,
        needless: Callable[[DownstreamClient], bool] | None = None,
    ) -> None:
        """Wait for first attempts to connect, for each server until its time, then for the catalog.

        With `needless`, the catalog is waited for after each server, since it decides about the others.
        """
        began, waiting = anyio.current_time(), dict.fromkeys(until)
        decided = False

        async def wait(client: DownstreamClient, end: float) -> None:
            nonlocal decided
            with anyio.CancelScope(deadline=end):
                await client.wait_first_connect()
                if needless is not None:
                    await self.catch_up()
            del waiting[client]
            decided = bool(waiting) and needless is not None and all(map(needless, waiting))
            if decided or not waiting:
                group.cancel_scope.cancel()

        def tell() -> None:
            if waiting and on_wait is not None:
                standing = ", ".join(f"{client.name}: {client.standing}" for client in [*waiting][:TOLD])
                on_wait(anyio.current_time() - began, standing)

        with Repeating(TOLD_SECONDS, tell):
            async with anyio.create_task_group() as group:
                for client, end in until.items():
                    group.start_soon(wait, client, end)
        if not decided:
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
            async with alongside(partial(watch, self._library, self._documents_changed)):
                await self._folders_changed.wait()

    async def _documents_changed(self, changes: DocumentChanges) -> None:
        for uri in changes.changed:
            self.on_rewritten(uri)
        self.mark_stale()


class Proxy(Struct, kw_only=True, eq=False):
    """The parts of a proxy; `app.build.build` makes one. Nothing runs before `running`."""

    config: Config
    store: Store
    library: DocumentLibrary
    fleet: Fleet
    catalog: Catalog
    approvals: Approvals
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
    """Removes the secrets of all configurations so far from texts that people are shown."""
    audit: AuditLog
    logs: KeptLogs
    reloader: Reloader | None = None
    """Follows the configuration file while a front is served."""
    hosts: Callable[[], list[ConnectedHost]] = list
    """Returns the hosts that share the proxy."""
    started: float = field(default_factory=time_of_day)
    """Seconds since 1970."""
    shared: bool = False
    """True if hosts share it over a socket."""
    stop: Callable[[], None] | None = None
    """Stops the proxy, where it is a program of its own."""
    grace_seconds: float = 0.0
    """Time for which everything is still served after it was told to stop."""
    _warm: bool = False
    """Whether each new snapshot is indexed at once."""

    @property
    def usage(self) -> UsageRecorder | None:
        return self.statistics.usage

    @property
    def working_set(self) -> WorkingSet:
        return self.search.working_set

    @property
    def past_requests(self) -> PastRequests:
        """Return the renderer of recorded requests, which replays them as well."""
        profiles = self.gateway.profiles
        return PastRequests(self.contexts, lambda: self.catalog.snapshot, self.store.approvals, profiles)

    @property
    def credentials(self) -> SharedCredentials | None:
        """Return the credentials that replicas share; None where each proxy has files of its own."""
        return self.fleet.logins.shared

    @property
    def searcher(self) -> Searcher:
        return self.search.searcher

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the proxy: start the servers without waiting for any, and stop everything on exit."""
        self.refresh.on_refreshed = self._index
        await in_thread(self._choose_working_set)
        await in_thread(self.contexts.presets.load)
        await self.fleet.load_listings()
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
                self.audit,
                self.logs,
                None if self.interactions is None else self.interactions.recorder,
            ):
                if part is not None:
                    group.start_soon(part.run)
            group.start_soon(self._follow_store)
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

        Settings that need a restart keep their old values: see `config.source.Reload`.
        """
        # Those of settings that wait for the restart are secrets as well.
        secrets, before = [*all_secrets_of(config)], self.config
        redact_logs(secrets)
        self.redact.know(secrets)
        for secret in own_secrets_of(config):
            self.fleet.known.know_own(secret)
        config = self.config = without_restart(before, config)
        changed = {
            table for table in config.__struct_fields__ if getattr(config, table) != getattr(before, table)
        }
        self.fleet.known.config = config
        if config.store.url is not None:
            self.store.database.lead_to(config.store.url, config.store.listen_url)
        difference = self.fleet.apply(config.servers.values(), config.limits, config.off)
        self.searcher.config = config
        self.search.engine.stands_for = config.search.synonyms
        self.results.config = config.results
        self.approvals.mode = config.approval.mode
        if changed & {"clients", "documents"}:
            self.gateway.profiles.configure(config)
        if "clients" in changed:
            for session in self.open_sessions:
                rights = self.gateway.profiles.of_client(session.rights, None)
                if rights != session.rights:
                    session.rights = rights
                    self.changes.tools_grew(session)
        # Each of the other parts is reached only if a table that it reads has changed.
        if changed & {"expose", "limits"}:
            self.catalog.configure(config.expose, config.limits)
        setup = tools_setup(config)
        if "expose" in changed or setup != self.setup:
            self.setup = setup
            self.tool_list.configure(config.expose, setup)
        if changed & {"expose", "search", "context"}:
            self.contexts.configure(configured(config), ResultReading.of(config))
            self.expander.rules = config.context.expansion_rules
        if changed & {"documents", "limits"}:
            self.library.configure(config.documents, config.limits)
            await self.refresh.reconfigure_documents()
        self._warm = self._warm or config.search.warm_up
        self.refresh.mark_stale()
        logger.info("the changed configuration is in use: %s", difference)
        self.audit.note("configuration", changed=sorted(changed), servers=str(difference))

    def begin_anew(self, events: Sequence[ApprovalEvent]) -> None:
        """Forget the uses of tools whose definition has been approved anew."""
        if approved := frozenset(tool for event in events if (tool := event.approved_tool) is not None):
            self.search.forget_uses(approved)

    async def wait_first_connect(self) -> None:
        """Wait until every server is ready or has failed once, and the catalog is up to date."""
        await self.refresh.wait_first_connect()

    async def reindex(self, rebuild: bool) -> Indexed:
        """Read the documents again and index new items in the background; return the progress.

        To `rebuild`, all vectors are forgotten first. Raises `StoreError` if they cannot be.
        """
        if rebuild:
            await in_thread(self.search.forget_vectors)
        await self.refresh.reread()
        return await self.searcher.indexed(self.catalog)

    def trace(self, tracing: Tracing | None) -> None:
        """Make spans of requests from now on, or none."""
        self.gateway.tracing = self.forwarder.tracing = tracing

    def instructions(self) -> str:
        return self.introduction().text

    def introduce(self, shown: bool = True) -> SessionIntroduction:
        """Return the introduction of a session that begins; the rules in it count as given if it is shown."""
        introduced = self.introduction()
        if not shown:
            return replace(introduced, given={}, servers=frozenset())
        if self.usage is not None:
            self.usage.introduced(introduced.given)
        return introduced

    def introduction(self) -> SessionIntroduction:
        """Return that text with the rules in it that are in force and fit into the length that hosts keep.

        The user's rules come before the servers' own instructions, which get the room that is left.
        """
        snapshot = self.catalog.snapshot
        instructions = partial(
            meta_definitions.instructions,
            self.tool_list.setup_of(snapshot),
            words_only=self.search.model.error is not None,
            whole=self.tool_list.hides_nothing(snapshot, self.tool_list.base_names(snapshot)),
        )
        removed = self.contexts.presets.view(ACTING.get().all_presets).removed
        rules = introduction(snapshot, INSTRUCTIONS_BYTES - len(instructions().encode()), removed)
        room = meta_definitions.INSTRUCTIONS_BYTES - len(rules.text.encode())
        seen = (client for client in self.fleet.serving() if reaches(client.name))
        said = meta_definitions.instructions_by_server(seen, self.redact)
        text = instructions(said=said, most=room)
        lines = {name: meta_definitions.server_line(name, words) for name, words in said.items()}
        servers = frozenset(name for name, line in lines.items() if line in text)
        return replace(rules, text=text + rules.text, servers=servers)

    def health(self) -> dict[str, Any]:
        """Return the body of ``/healthz``: the status, and problems that a person should know."""
        standing = Standing(tuple(self.config.complaints()))
        if self.reloader is not None:
            standing = self.reloader.standing
        if not ACTING.get().sees_all:  # mistakes of the configuration name servers and files
            standing = Standing(())
        problems = [*standing.problems]
        for client in self.fleet.clients.values():
            if client.cause and reaches(client.name):
                problems.append(f"server {client.name}: not connected: {client.cause}")
        if (model := self.search.model.error) is not None:
            problems.append(f"{model}. Search uses words alone")
        of_credentials = None if self.credentials is None else self.credentials.problem
        problems += filter(None, (self.audit.warning, self.store.warning, of_credentials))
        facts = {"problems": problems, "needs_restart": standing.needs_restart}
        return {"status": "ok"} | {key: list(values) for key, values in facts.items() if values}

    def _choose_working_set(self) -> bool:
        learning = self.config.learning
        budget = learning.working_set_tokens
        return learning.enabled and self.working_set.choose(self.store, budget, time_of_day)

    async def _follow_store(self) -> None:
        """Take the approvals of other processes, and each day's working set, until cancelled."""
        while True:
            await anyio.sleep(APPROVALS_SECONDS)
            judged, chosen = await in_thread(self._look_at_store)
            if judged:
                self.refresh.mark_stale()
            if chosen:
                self.changes.catalog_changed()

    def _look_at_store(self) -> tuple[bool, bool]:
        """Return whether a list may be judged otherwise now, and whether the working set is another one."""
        if self.credentials is not None:
            self.credentials.look()
        return self.approvals.refresh(), self._choose_working_set()

    async def _warm_up(self) -> None:
        await self.wait_first_connect()
        self._warm = True
        self._index(self.catalog.snapshot)

    def _index(self, snapshot: Snapshot) -> None:
        if self._warm:
            self.searcher.indexing.prepare(snapshot)


def tools_setup(config: Config) -> meta_definitions.Setup:
    """Return the facts that the definitions of the meta tools depend on."""
    servers = tuple(name for name, server in config.servers.items() if server.enabled)
    return meta_definitions.Setup(
        servers,
        has_documents=bool(config.documents),
        off=tuple(config.off),
        set_context=config.context.set_context_tool,
        manage=config.context.manage_tool,
        recall=config.interactions.enabled and config.interactions.recall_tool,
        reranks=config.rerank.mode != "never" or bool(config.rerank.endpoint or config.rerank.model),
    )
