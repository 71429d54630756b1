"""The learned tier: the pairs there are, compared with a query, and taught by uses.

Blocking and thread-safe: searches read an immutable state, one thread at a time writes.

What one use of a tool says of pairs; a repetition says nothing new.

How much is known of requests like one: near in meaning, and often served. Pure.

Nothing is said before enough was learned in all: that a new installation knows little tells nothing of a
request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.embedding.embeddings import QueryEmbedder
from mcp_context_proxy.items import Vector
from mcp_context_proxy.learning import pairs as arithmetic
from mcp_context_proxy.learning.pair_store import PairIndex, PairStore
from mcp_context_proxy.learning.pairs import Pair, ToolKey, Use, key_of
from mcp_context_proxy.retrieval.results import Support
from mcp_context_proxy.store import LearnedStore
from mcp_context_proxy.system.clock import time_of_day

NEW_IN_A_SESSION: Final = 20
"""Pairs of one tool that one session can begin: a loop teaches no more than a person does."""
SESSIONS_KEPT: Final = 1_000
"""Whose uses are remembered, so that a repetition counts once."""
QUERY_CHARACTERS: Final = 1_000
"""Kept of a query."""


class PairUpdates:
    """Pairs as uses change them."""

    def __init__(self, store_queries: bool) -> None:
        """Remember no session yet; `store_queries` says whether pairs keep the text of their query."""
        self._store_queries = store_queries
        self._seen: OrderedDict[str, dict[ToolKey, set[bytes]]] = OrderedDict()
        self._taught: dict[tuple[bytes, ToolKey], str] = {}

    def of(
        self, use: Use, near: Mapping[ToolKey, Pair], model_id: str, vector: Vector, now: float
    ) -> list[Pair]:
        """The pairs that a use changes, or begins.

        Args:
            use: Of a tool.
            near: The pair of each tool whose query is the same.
            model_id: Of the model that made the vector.
            vector: Of the query.
            now: Seconds since 1970.
        """
        return [*self._used(use, near, model_id, vector, now), *self._passed_over(use, near, now)]

    def _used(
        self, use: Use, near: Mapping[ToolKey, Pair], model_id: str, vector: Vector, now: float
    ) -> list[Pair]:
        """The pair that the use is about, if it says anything new."""
        known = near.get(use.tool)
        key = key_of(use.query) if known is None else known.key
        of_session = self._of_session(use.session).setdefault(use.tool, set())
        if key in of_session or (known is None and len(of_session) >= NEW_IN_A_SESSION):
            return []
        of_session.add(key)
        self._taught[key, use.tool] = use.session
        if known is not None:
            return [arithmetic.used_again(known, use.signal, now)]
        query = use.query[:QUERY_CHARACTERS] if self._store_queries else None
        confidence = arithmetic.first_confidence(use.signal)
        return [Pair(key, use.tool, query, vector, model_id, confidence, 1, now, now)]

    def _passed_over(self, use: Use, near: Mapping[ToolKey, Pair], now: float) -> list[Pair]:
        """Pairs of tools that were shown and not used, by another session than the one that taught them."""
        return [
            arithmetic.passed_over(pair, now)
            for tool, pair in near.items()
            if tool in use.shown and tool != use.tool and self._taught.get((pair.key, tool)) != use.session
        ]

    def _of_session(self, session: str) -> dict[ToolKey, set[bytes]]:
        seen = self._seen.setdefault(session, {})
        self._seen.move_to_end(session)
        if len(self._seen) > SESSIONS_KEPT:
            forgotten, _ = self._seen.popitem(last=False)
            self._taught = {pair: by for pair, by in self._taught.items() if by != forgotten}
        return seen


ENOUGH: Final = 50
"""Learned queries, before which nothing is said: a few weeks of one person's use."""

NEAREST: Final = 3
"""Learned queries that are looked at: one may be near by chance."""


def confidence(pairs: Sequence[Pair], cosines: NDArray[np.float32]) -> float | None:
    """From 0, nothing like it was asked before, to 1; None where too little was learned to tell.

    The mean cosine of the nearest learned queries, times ``n / (n + 1)`` for the mean number ``n`` of uses.

    Args:
        pairs: All there are.
        cosines: Of their queries with the one that is asked about.
    """
    if len(pairs) < ENOUGH or len({pair.key for pair in pairs}) < ENOUGH:
        return None
    nearest: dict[bytes, tuple[float, int]] = {}
    for at in np.argsort(-cosines, kind="stable"):
        if len(nearest) == NEAREST:
            break
        pair = pairs[at]
        cosine, uses = nearest.get(pair.key, (float(cosines[at]), 0))
        nearest[pair.key] = cosine, uses + pair.uses
    likeness = sum(max(cosine, 0.0) for cosine, _ in nearest.values()) / len(nearest)
    used = sum(uses for _, uses in nearest.values()) / len(nearest)
    return likeness * used / (used + 1)


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
        model: QueryEmbedder,
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
        self._kept, self._lessons = PairStore(model, store, clock), PairUpdates(store_queries)

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

    def _near(self, state: PairIndex, vector: Vector) -> dict[ToolKey, Pair]:
        """The pair of each tool whose query is the same as this one."""
        if state.matrix.shape[-1] != vector.shape[-1]:
            return {}
        cosines = state.cosines(vector)
        same = sorted(np.flatnonzero(cosines >= SAME), key=lambda at: cosines[at])
        return {state.pairs[at].tool: state.pairs[at] for at in same}


def _is_better(pair: Pair, known: Pair | None, now: float) -> bool:
    return known is None or known.confidence_at(now) < pair.confidence_at(now)
