"""The composition root: builds everything from a `Config`, and owns the root task group.

Here are groups of parts of a proxy: those of search, of statistics, and of the memory of interactions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.context import SearchStatistics
from mcp_context_proxy.context.search import Searcher, WaitForServers
from mcp_context_proxy.context.search_filters import Figures
from mcp_context_proxy.embedding.embeddings import (
    CachedEmbedder,
    Costs,
    LazyModel,
    QueryEmbedder,
    check_model_files,
    open_model,
)
from mcp_context_proxy.interactions import InteractionMemory, InteractionRecorder
from mcp_context_proxy.items import Snapshot, Snapshots, ToolKey
from mcp_context_proxy.learning import WorkingSet
from mcp_context_proxy.learning.tier import LearnedTier, Novelty, UseRecorder
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.reranker import reranker_for
from mcp_context_proxy.retrieval.scoring import Background, calibration_for
from mcp_context_proxy.server.tools_call import InteractionLog
from mcp_context_proxy.statistics.recorder import Inventory, SessionRecorder, UsageRecorder
from mcp_context_proxy.statistics.report import Reports
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.trust import ACTING


class SearchParts:
    """The parts of search: the model, the index, the learned pairs, the searcher."""

    def __init__(
        self,
        config: Config,
        store: Store,
        wait_for_starting_servers: WaitForServers,
        figures: Callable[[], Figures],
    ) -> None:
        """Build the parts; `figures` returns the present figures of tools, from their calls."""
        self._vectors = store.vectors
        self.model = LazyModel(partial(open_model, config), check=partial(check_model_files, config))
        self.answered: Counter[str] = Counter()
        """Answered calls by server: the most used servers are indexed first."""
        queries = QueryEmbedder(self.model)
        learns, learned = config.learning, store.learned
        self.learned = LearnedTier(queries, learned, learns.store_queries) if learns.enabled else None
        self.session_recorder = SessionRecorder(store.tool_sessions) if learns.enabled else None
        self.working_set = WorkingSet()
        self.use_recorder = UseRecorder(self.learned) if self.learned is not None else None
        embedder, calibration = CachedEmbedder(self.model, store.vectors), calibration_for(config.embedding)
        self.engine = Engine(
            embedder,
            queries,
            calibration=calibration,
            calls=self.answered.__getitem__,
            learned=self.learned,
            novel=None if self.learned is None else Novelty(store.statistics, self.learned.tools).additions,
            stands_for=config.search.synonyms,
            sketch=embedder.sketches,
        )
        background = calibration if isinstance(calibration, Background) else None
        self.expander = Expander(self.engine.index_of, queries, catalog=embedder, background=background)
        self.reranker = reranker_for(config)
        self.searcher = Searcher(
            engine=self.engine,
            config=config,
            wait_for_starting_servers=wait_for_starting_servers,
            open_model=self.model.get,
            figures=figures,
            expander=self.expander,
        )
        self.lookups = {
            "query_embeddings": queries.lookups,
            "search_results": self.searcher.remembered.lookups,
        }
        """Hits and misses of each cache, by its name."""

    def forget_uses(self, tools: Collection[ToolKey]) -> None:
        if self.learned is not None:
            self.learned.forget(lambda pair: pair.tool in tools)

    def forget_vectors(self) -> None:
        """Forget all vectors, so that everything is embedded again. Blocks.

        Raises `StoreError` if the store cannot be written; nothing is forgotten.
        """
        self._vectors.clear()
        self.engine.forget()


class StatisticsParts:
    """The parts of statistics; the recorders are None if statistics are off."""

    def __init__(
        self,
        *,
        config: Config,
        store: Store,
        catalog: Snapshots,
        costs: Costs,
        listed_whole: Callable[[Snapshot], bool],
    ) -> None:
        """Build the parts; `listed_whole` tells whether ``tools/list`` shows a snapshot whole."""
        self.reports = Reports(store.statistics)
        self.usage: UsageRecorder | None = None
        self.searches: SearchStatistics | None = None
        if config.statistics.enabled:
            inventory = Inventory(
                store.statistics, catalog, tokens=costs.of, listed_whole=listed_whole, known=costs.know
            )
            self.usage = UsageRecorder(store.statistics, config.limits, inventory)
            keep = config.learning.store_queries and config.context.keep_requests
            self.searches = SearchStatistics(self.usage, keep)
            if config.learning.enabled:
                self.usage.counters.learned_pairs = store.learned.count

    @property
    def figures(self) -> Figures:
        """Return the figures of tools from the calls that count for whom something is done."""
        return {} if self.usage is None else self.usage.figures_of(ACTING.get().owner)


class InteractionParts:
    """The parts of the memory of interactions: the memory, its recorder, the log of hosts."""

    def __init__(self, config: Config, store: Store, model: LazyModel, redact: Redactor) -> None:
        self.memory = InteractionMemory(model, store.interactions, config, redact=redact)
        self.recorder = InteractionRecorder(self.memory)
        self.log = InteractionLog(self.recorder)
