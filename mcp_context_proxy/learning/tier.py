"""The learned tier: the pairs there are, compared with a query, and taught by uses.

Blocking and thread-safe: searches read an immutable state, one thread at a time writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.items import Vector
from mcp_context_proxy.learning import pairs as arithmetic
from mcp_context_proxy.learning.experience import confidence
from mcp_context_proxy.learning.kept_pairs import KeptPairs, QueryModel
from mcp_context_proxy.learning.lessons import Lessons
from mcp_context_proxy.learning.pairs import Pair, ToolKey, key_of
from mcp_context_proxy.learning.signals import Use
from mcp_context_proxy.learning.state import State
from mcp_context_proxy.retrieval.learned import Support
from mcp_context_proxy.store import LearnedStore

SAME: Final = 0.95
"""Cosine from which on two queries are one: they differ in a word or in punctuation."""
GATE: Final = 0.5
"""Cosine from which on a past query says something about another one."""
DISCOUNT: Final = 0.10
"""From the cosine with a past query that is beyond doubt; a tool's own text is worth more than a memory."""
DOUBT: Final = 0.10
"""Further discount, all of it at no confidence: 0.15 in all after one use."""


class LearnedTier:
    """What use has taught."""

    def __init__(
        self,
        model: QueryModel,
        store: LearnedStore,
        store_queries: bool = True,
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Begin with what the store has, once it is first asked.

        Args:
            model: Makes vectors of queries, as search does.
            store: Keeps the pairs.
            store_queries: Whether their text is kept, or its hash and vector only.
            clock: Seconds since 1970.
        """
        self._model, self._clock = model, clock
        self._writing = threading.Lock()
        self._kept, self._lessons = KeptPairs(model, store, clock), Lessons(store_queries)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All there are."""
        return self._kept.state.pairs

    def tools(self) -> Collection[ToolKey]:
        """Server and own name of those that something was learned of."""
        return self._kept.state.topics.keys()

    def supported(self, query: NDArray[np.float32]) -> Mapping[ToolKey, Support]:
        """What speaks for tools, for a query."""
        state = self._kept.state
        if state.matrix.shape[-1] != query.shape[-1] or not state.pairs:
            return {}
        cosines = state.cosines(query)
        near = np.flatnonzero(cosines >= GATE)
        nearest_first = near[np.argsort(-cosines[near], kind="stable")]
        best: dict[ToolKey, tuple[float, Pair]] = {}
        now = self._clock()
        for at, cosine in zip(nearest_first.tolist(), cosines[nearest_first].tolist(), strict=True):
            pair = state.pairs[at]
            known = best.get(pair.tool)
            # Most are ruled out by their cosine alone; thousands of pairs can be near to one query.
            if known is None or cosine - DISCOUNT > known[0]:
                counted = cosine - DISCOUNT - DOUBT * (1 - pair.confidence_at(now))
                if known is None or counted > known[0]:
                    best[pair.tool] = counted, pair
        return {
            tool: Support(counted, pair.query, pair.uses, state.is_general(tool))
            for tool, (counted, pair) in best.items()
        }

    def confidence(self, query: NDArray[np.float32]) -> float | None:
        """How much is known of requests like this; None where too little was learned to tell."""
        state = self._kept.state
        if state.matrix.shape[-1] != query.shape[-1] or not state.pairs:
            return None
        return confidence(state.pairs, state.cosines(query))

    def generation(self) -> object:
        """Equal to that of another time as long as the pairs are the same."""
        return self._kept.state

    def learn(self, use: Use) -> None:
        """Take in a use; what it changes is in the store when this returns.

        Raises:
            ModelError: the query has no vector; nothing is learned.
        """
        model_id, (vector,) = self._model.vectors([use.query])
        with self._writing:
            state, now = self._kept.state, self._clock()
            near = self._near(state, vector)
            if (at := state.at.get((key_of(use.query), use.tool))) is not None:
                near[use.tool] = state.pairs[at]
            if changed := self._lessons.of(use, near, model_id, vector, now):
                self._kept.put(changed)
            if len(self._kept.state.pairs) > arithmetic.MOST_PAIRS:
                self._kept.prune()

    def forget(self, unwanted: Callable[[Pair], bool]) -> int:
        """Forget pairs; how many."""
        with self._writing:
            state = self._kept.state
            gone = [pair for pair in state.pairs if unwanted(pair)]
            self._kept.remove(gone)
            return len(gone)

    def forget_query(self, vector: Vector, query: str) -> int:
        """Forget what was learned of a query, and of those that mean the same; how many pairs."""
        key = key_of(query)

        def same(pair: Pair) -> bool:
            near = pair.vector.shape == vector.shape and float(pair.vector @ vector) >= SAME
            return pair.key == key or near

        return self.forget(same)

    def take(self, pairs: Sequence[Pair]) -> None:
        """Take in pairs from elsewhere; one that is known keeps the higher confidence of both."""
        with self._writing:
            state, now = self._kept.state, self._clock()
            known = {(pair.key, pair.tool): pair for pair in state.pairs}
            dimensions = self._model.vectors([])[1].shape[1]
            better = [
                pair
                for pair in pairs
                if is_unit(pair.vector, dimensions)
                and _is_better(pair, known.get((pair.key, pair.tool)), now)
            ]
            self._kept.put(better)
            self._kept.prune()

    def refresh(self) -> None:
        """See what another process has learned or forgotten, and prune once a day."""
        with self._writing:
            self._kept.refresh()

    def _near(self, state: State, vector: Vector) -> dict[ToolKey, Pair]:
        """The pair of each tool whose query is the same as this one."""
        if state.matrix.shape[-1] != vector.shape[-1]:
            return {}
        cosines = state.cosines(vector)
        same = sorted(np.flatnonzero(cosines >= SAME), key=lambda at: cosines[at])
        return {state.pairs[at].tool: state.pairs[at] for at in same}


def _is_better(pair: Pair, known: Pair | None, now: float) -> bool:
    return known is None or known.confidence_at(now) < pair.confidence_at(now)
