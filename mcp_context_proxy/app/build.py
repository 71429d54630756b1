"""Builds a proxy from its configuration: all parts, in the order of their dependencies."""

from __future__ import annotations

import asyncio

from mcp_context_proxy.app import InteractionParts, SearchParts, StatisticsParts
from mcp_context_proxy.app.proxy import CatalogRefresh, Proxy, tools_setup
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of
from mcp_context_proxy.context import RequestRecords, configured
from mcp_context_proxy.context.engine import ContextEngine, Recollector
from mcp_context_proxy.context.presets import FILE_NAME, PresetBook
from mcp_context_proxy.context.search_filters import Figures
from mcp_context_proxy.context.selection import ContextExpander
from mcp_context_proxy.context.session import Handles, NotedClients, ResultReading, Sessions
from mcp_context_proxy.downstream import Party
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.embedding.embeddings import Costs, TokenCounter
from mcp_context_proxy.oauth import Logins
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.results import ResourceLinks
from mcp_context_proxy.results.result_store import KeptResults
from mcp_context_proxy.results.shortening import LargeResults
from mcp_context_proxy.server import Profiles, meta_definitions
from mcp_context_proxy.server.consent import Consent, PendingInput
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.meta_tools import MetaTools
from mcp_context_proxy.server.notifications import ChangeNotifier, OpenSessions, Watches
from mcp_context_proxy.server.resources import Prompts, Resources
from mcp_context_proxy.server.skills import Skills
from mcp_context_proxy.server.tasks import Tasks
from mcp_context_proxy.server.tools_call import EndedCalls, ToolCalls
from mcp_context_proxy.server.tools_list import ToolList
from mcp_context_proxy.store.credentials import shared_credentials
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.trust.approval import Approvals
from mcp_context_proxy.trust.audit import AuditLog, KeptLogs, audit_file, state_folder
from mcp_context_proxy.trust.guard import KnownSecrets


def build(config: Config, store: Store, logs: KeptLogs | None = None) -> Proxy:
    """Build a proxy; `store` is open, and its owner closes it. `logs` take the lines of servers on stderr.

    The two inner functions are called only once the proxy runs, so they may use parts that are created
    later.
    """

    def on_server_event(server: str, method: str, params: Members, parties: frozenset[Party]) -> None:
        changes.downstream_event(server, method, params)
        open_sessions.relay(server, method, params, parties)

    def figures() -> Figures:
        return statistics.figures

    file, redact = audit_file(config), Redactor(all_secrets_of(config))
    audit = AuditLog(file, redact)

    # The catalog: servers, documents, and the task that keeps it current.
    stale = asyncio.Event()
    servers = config.servers.values()
    fleet = Fleet(
        configs=servers,
        limits=config.limits,
        on_change=stale.set,
        on_event=on_server_event,
        store=store.listings,
        off=config.off,
        known=KnownSecrets(config),
        logins=Logins(shared_credentials(config, store)),
        keep_line=None if logs is None else logs.note,
    )
    library = DocumentLibrary(config.documents, config.limits)
    reserved = meta_definitions.RESERVED | {meta_definitions.CONTEXT_PROMPT}
    approvals = Approvals(store.approvals, config.approval.mode)
    approvals.observers.append(audit.observer())
    catalog = Catalog(
        config.expose,
        config.limits,
        fleet.serving,
        library,
        configured=fleet.configured,
        reserved=reserved,
        approvals=approvals,
    )
    refresh = CatalogRefresh(
        catalog, fleet, library, stale, first_list_seconds=config.limits.first_list_seconds
    )
    fleet.known.redactors.append(redact)
    fleet.shared.catch_up = refresh.catch_up
    fleet.shared.read_ahead = catalog.read_ahead

    # Search and contexts.
    search = SearchParts(config, store, refresh.wait_for_starting_servers, figures)

    sessions, kept = Sessions(), store.requests if config.context.keep_requests else None
    handles = Handles(config.limits.sessions, config.limits.session_idle_seconds, sessions)
    records = RequestRecords(config.limits, kept)
    costs = Costs(TokenCounter(), tool_definition)
    expander = ContextExpander(search.expander, config.context.expansion_rules)
    remembers = config.interactions.enabled
    interactions = InteractionParts(config, store, search.model, redact) if remembers else None
    contexts = ContextEngine(
        catalog=catalog,
        searcher=search.searcher,
        sessions=sessions,
        records=records,
        options=configured(config),
        ab_share=config.learning.ab_share if config.learning.enabled else 0.0,
        reading=ResultReading.of(config),
        costs=costs,
        expander=expander,
        reranker=search.reranker,
        working_set=search.working_set,
        presets=PresetBook(None if (folder := state_folder(config)) is None else folder / FILE_NAME),
        recollector=None if interactions is None else Recollector(interactions.memory, costs.count),
        redact=redact,
    )
    setup = tools_setup(config)
    recall_recorder = interactions.recorder if interactions is not None and setup.recall else None

    # Large results of calls, shortened; the whole is kept beside the store.
    kept_folder = None if store.place is None else state_folder(config)
    results = LargeResults(config.results, KeptResults(kept_folder, config.limits.session_idle_seconds))

    profiles = Profiles(config)

    # The lists that hosts see, and the statistics that need to know them.
    tool_list = ToolList(
        expose=config.expose,
        catalog=catalog,
        fleet=fleet,
        contexts=contexts,
        handles=handles,
        setup=setup,
        working_set=search.working_set,
        results=results.kept,
        wait_for_first_lists=refresh.wait_for_first_lists,
    )
    statistics = StatisticsParts(
        config=config, store=store, catalog=catalog, costs=costs, listed_whole=tool_list.lists_all
    )
    if statistics.searches is not None:
        records.when_added(statistics.searches.served)
    was_read = None if statistics.usage is None else statistics.usage.read
    if statistics.usage is not None:
        statistics.usage.counters.caches.update(search.lookups)

    # The server: notifications, forwarding, and the methods that hosts call.
    open_sessions = OpenSessions()
    watches = Watches(catalog, fleet)
    changes = ChangeNotifier(catalog, tool_list, open_sessions, watches)
    pending_input = PendingInput(config.limits.parked_calls, config.limits.ask_seconds)
    forwarder = Forwarder(pending_input, audit)
    skills = Skills(catalog=catalog, library=library, fleet=fleet, forwarder=forwarder)
    links = ResourceLinks()
    resources = Resources(
        catalog=catalog,
        watches=watches,
        forwarder=forwarder,
        contexts=contexts,
        handles=handles,
        skills=skills,
        fleet=fleet,
        links=links,
        was_read=was_read,
    )
    tasks = Tasks(fleet, forwarder)
    log = None if interactions is None else interactions.log
    calls = ToolCalls(
        catalog=catalog,
        fleet=fleet,
        forwarder=forwarder,
        contexts=contexts,
        handles=handles,
        wait_for_server=refresh.wait_for_server,
        answered=search.answered,
        consent=Consent(
            pending=pending_input,
            changes=changes,
            redact=redact,
            seconds=config.limits.ask_seconds,
            most=config.limits.parked_calls,
        ),
        ended=EndedCalls(
            records=records,
            catalog=catalog,
            usage=statistics.usage,
            log=log,
            audit=None if file is None else audit,
            learn=None if search.use_recorder is None else search.use_recorder.learn,
            used=None if statistics.searches is None else statistics.searches.used,
            in_session=None if search.session_recorder is None else search.session_recorder.used,
            working_set=search.working_set,
        ),
        tasks=tasks,
        results=results,
        links=links,
        when_kept=lambda caller: changes.tools_grew(caller.session),
    )
    gateway = Gateway(
        fleet=fleet,
        contexts=contexts,
        open_sessions=open_sessions,
        tool_list=tool_list,
        tool_calls=calls,
        meta_tools=MetaTools(
            fleet=fleet,
            contexts=contexts,
            calls=calls,
            handles=handles,
            tools=tool_list,
            changes=changes,
            pending_input=pending_input,
            resources=resources,
            asks_clients=search.reranker.asks_clients,
            manage=lambda: proxy.setup.manage,
            document_bytes=lambda: proxy.config.limits.document_bytes,
            redact=redact,
            noted=NotedClients(),
            recorder=recall_recorder,
            log=log,
            figures=figures,
            was_read=was_read,
        ),
        resources=resources,
        skills=skills,
        prompts=Prompts(
            catalog=catalog,
            fleet=fleet,
            forwarder=forwarder,
            resources=resources,
            contexts=contexts,
            handles=handles,
            catch_up=refresh.catch_up,
        ),
        tasks=tasks,
        profiles=profiles,
        wait_for_first_lists=refresh.wait_for_first_lists,
        page_size=config.expose.page_size,
        calls_per_second=config.limits.calls_per_second,
    )
    refresh.on_rewritten = changes.resource_updated

    proxy = Proxy(
        config=config,
        store=store,
        library=library,
        fleet=fleet,
        catalog=catalog,
        approvals=approvals,
        refresh=refresh,
        search=search,
        statistics=statistics,
        interactions=interactions,
        handles=handles,
        records=records,
        expander=expander,
        contexts=contexts,
        setup=setup,
        tool_list=tool_list,
        open_sessions=open_sessions,
        changes=changes,
        pending_input=pending_input,
        forwarder=forwarder,
        gateway=gateway,
        results=results,
        redact=redact,
        audit=audit,
        logs=logs or KeptLogs(None),
    )
    approvals.observers.append(proxy.begin_anew)
    return proxy
