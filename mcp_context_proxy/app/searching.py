"""What searches are made of, built in one place: the model, the index, what was learned, the searcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from mcp_context_proxy.config import Config
from mcp_context_proxy.context.constraints import Figures
from mcp_context_proxy.context.search import Searcher
from mcp_context_proxy.embedding.cache import CachedEmbedder
from mcp_context_proxy.embedding.lazy import LazyModel
from mcp_context_proxy.embedding.opening import look_at_model, open_model
from mcp_context_proxy.embedding.queries import QueryEmbedder
from mcp_context_proxy.embedding.remembered import RememberedQueries
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.learning.novelty import Novelty
from mcp_context_proxy.learning.recorder import Recorder
from mcp_context_proxy.learning.session_recorder import SessionRecorder
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.learning.working_set import WorkingSet
from mcp_context_proxy.rerank.reranker import reranker_for
from mcp_context_proxy.retrieval.background import fitting_for
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander

if TYPE_CHECKING:
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
        self.recorder = Recorder(self.learned) if self.learned is not None else None
        self.engine = Engine(
            CachedEmbedder(self.model, store.vectors),
            queries,
            fitting_for(config.embedding),
            self.answered.__getitem__,
            self.learned,
            None if self.learned is None else Novelty(store.statistics, self.learned.tools).additions,
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
