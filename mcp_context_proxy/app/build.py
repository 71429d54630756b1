"""What searches are made of, built in one place: the model, the index, what was learned, the searcher.

What counts calls and searches, built in one place: the recorder, what it counts against, the reports.

What the memory of interactions is made of, in one place: the memory, its writer, the log of hosts.

What answers hosts, built in one place from the parts of a proxy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of
from mcp_context_proxy.context.records import SearchStatistics
from mcp_context_proxy.context.search import Searcher
from mcp_context_proxy.context.search_filters import Figures
from mcp_context_proxy.context.selection import Costs
from mcp_context_proxy.embedding.embeddings import (
    CachedEmbedder,
    LazyModel,
    QueryEmbedder,
    RememberedQueries,
    look_at_model,
    open_model,
)
from mcp_context_proxy.interactions.memory import InteractionMemory, InteractionRetention, Model
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.learning.tier import LearnedTier, UseRecorder
from mcp_context_proxy.learning.working_set import Novelty, WorkingSet
from mcp_context_proxy.rerank.reranker import reranker_for
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.relevance import calibration_for
from mcp_context_proxy.server.after_call import EndedCalls, InteractionLog
from mcp_context_proxy.server.gateway import Gateway
from mcp_context_proxy.server.meta_tools import MetaTools
from mcp_context_proxy.server.prompts import Prompts
from mcp_context_proxy.server.resources import Resources
from mcp_context_proxy.server.tools_call import ToolCalls
from mcp_context_proxy.statistics.recorder import SessionRecorder, StatisticsRetention, UsageRecorder
from mcp_context_proxy.statistics.report import Inventory, Reports

if TYPE_CHECKING:
    from mcp_context_proxy.app.proxy import Proxy
    from mcp_context_proxy.store import Store


class Searching:
    """The parts of search, connected."""

    def __init__(
        self,
        config: Config,
        store: Store,
        caught_up: Callable[[float], Awaitable[None]],
        figures: Callable[[], Figures],
    ) -> None:
        """Build the parts.

        Args:
            config: Of everything.
            store: Where vectors and learned pairs are kept.
            caught_up: Waits, no longer than it is told, for servers that are still starting.
            figures: What is known of tools from their calls, now.
        """
        self._vectors = store.vectors
        self.model = LazyModel(partial(open_model, config), look=partial(look_at_model, config))
        self.answered: Counter[str] = Counter()
        """Calls that each server has answered: the most used ones are indexed first."""
        embedder = QueryEmbedder(self.model)
        queries = RememberedQueries(embedder)
        learns, learned = config.learning, store.learned
        self.learned = LearnedTier(embedder, learned, learns.store_queries) if learns.enabled else None
        self.session_recorder = SessionRecorder(store.tool_sessions) if learns.enabled else None
        self.working_set = WorkingSet()
        self.recorder = UseRecorder(self.learned) if self.learned is not None else None
        self.engine = Engine(
            CachedEmbedder(self.model, store.vectors),
            queries,
            calibration=calibration_for(config.embedding),
            calls=self.answered.__getitem__,
            learned=self.learned,
            novel=None if self.learned is None else Novelty(store.statistics, self.learned.tools).additions,
        )
        self.expander = Expander(self.engine.index_of, queries)
        self.reranker = reranker_for(config)
        self.searcher = Searcher(self.engine, config, caught_up, self.model.get, figures)
        self.lookups = {
            "query_embeddings": queries.lookups,
            "search_results": self.searcher.remembered.lookups,
        }
        """How often each memory had what was asked of it, by its name."""

    def forget_vectors(self, snapshot: Snapshot) -> None:
        """Have everything embedded again that is searched from now on. Blocks.

        Raises:
            StoreError: the store keeps them; nothing is forgotten.
        """
        self._vectors.clear()
        for source in snapshot.sources:
            source.embeddings.clear()
        self.engine.forget()


class Measuring:
    """The parts of statistics, connected; where they are switched off there are none."""

    def __init__(
        self,
        config: Config,
        store: Store,
        snapshot: Callable[[], Snapshot],
        costs: Costs,
        listed_whole: Callable[[Snapshot], bool],
    ) -> None:
        """Build the parts.

        Args:
            config: Of everything.
            store: Keeps what is counted.
            snapshot: All there is now.
            costs: Of items, in tokens.
            listed_whole: Whether everything is listed.
        """
        retention = StatisticsRetention.of(config.limits)
        self.reports = Reports(store.statistics)
        self.usage: UsageRecorder | None = None
        self.searches: SearchStatistics | None = None
        if config.statistics.enabled:
            inventory = Inventory(store.statistics, snapshot, costs.of, listed_whole, known=costs.know)
            self.usage = UsageRecorder(store.statistics, retention, inventory)
            keep = config.learning.store_queries and config.context.keep_requests
            self.searches = SearchStatistics(self.usage, keep)
            if config.learning.enabled:
                self.usage.counters.learned_pairs = store.learned.count

    @property
    def figures(self) -> Figures:
        """What is known of tools from their calls."""
        return {} if self.usage is None else self.usage.summed.all_figures()


class Remembering:
    """The parts of the memory of interactions, connected."""

    def __init__(self, config: Config, store: Store, model: Model) -> None:
        self._secrets = set(all_secrets_of(config))
        self.memory = memory_of(config, store, model)
        self.recorder = InteractionRecorder(self.memory)
        self.log = InteractionLog(self.recorder)
        self.recall_tool = config.interactions.recall_tool
        """Whether models may search it; as it was at start."""

    def configure(self, config: Config) -> None:
        """Know the secrets of a changed configuration, too; none is ever forgotten."""
        self._secrets.update(all_secrets_of(config))
        self.memory.redact_with(Redactor(self._secrets))


def memory_of(config: Config, store: Store, model: Model) -> InteractionMemory:
    """The memory of interactions of a store, as configured."""
    redact = Redactor(all_secrets_of(config))
    return InteractionMemory(model, store.interactions, InteractionRetention.of(config), redact)


def gateway(proxy: Proxy) -> Gateway:
    """What answers hosts."""
    forwarder, contexts, handles = proxy.forwarder, proxy.contexts, proxy.handles
    resources = Resources(
        catalog=proxy.catalog, fleet=proxy.fleet, forwarder=forwarder, contexts=contexts, handles=handles
    )
    prompts = Prompts(
        catalog=proxy.catalog,
        fleet=proxy.fleet,
        forwarder=forwarder,
        resources=resources,
        contexts=contexts,
        handles=handles,
    )
    proxy.open_sessions.when_ended(resources.end)
    proxy.upkeep.when_changed(resources.catalog_changed)
    proxy.open_sessions.when_ended(lambda session: proxy.fleet.end(session.party))
    log = None if proxy.remembering is None else proxy.remembering.log
    calls = ToolCalls(
        catalog=proxy.catalog,
        fleet=proxy.fleet,
        forwarder=forwarder,
        contexts=contexts,
        handles=handles,
        wait_for_starting_servers=proxy.caught_up,
        answered=proxy.searching.answered,
        ended=_ended_calls(proxy, log),
    )
    meta_tools = MetaTools(
        fleet=proxy.fleet,
        contexts=contexts,
        calls=calls,
        handles=handles,
        changes=proxy.changes,
        pending_input=proxy.parked,
        asks_clients=proxy.searching.reranker.asks_clients,
        manage=lambda: proxy.setup.manage,
        recorder=proxy.recallable,
        log=log,
    )
    return Gateway(
        fleet=proxy.fleet,
        contexts=contexts,
        open_sessions=proxy.open_sessions,
        tool_list=proxy.tool_list,
        tool_calls=calls,
        meta_tools=meta_tools,
        resources=resources,
        prompts=prompts,
        page_size=proxy.config.expose.page_size,
    )


def _ended_calls(proxy: Proxy, log: InteractionLog | None) -> EndedCalls:
    learning, searches = proxy.searching.recorder, proxy.measuring.searches
    session_recorder = proxy.searching.session_recorder
    return EndedCalls(
        records=proxy.records,
        catalog=proxy.catalog,
        usage=proxy.measuring.usage,
        log=log,
        learn=None if learning is None else learning.learn,
        used=None if searches is None else searches.used,
        in_session=None if session_recorder is None else session_recorder.used,
        working_set=proxy.searching.working_set,
    )
