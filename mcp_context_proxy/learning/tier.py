"""The learned tier: the pairs there are, compared with a query, and taught by uses.

Blocking and thread-safe: searches read an immutable state, one thread at a time writes. A pair is in the
store before it counts; where the store fails, it is kept in memory alone.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.learning import pairs as arithmetic
from mcp_context_proxy.learning.experience import confidence
from mcp_context_proxy.learning.pairs import SECONDS_A_DAY, Pair, ToolKey, key_of
from mcp_context_proxy.learning.signals import Use
from mcp_context_proxy.learning.state import State
from mcp_context_proxy.retrieval.learned import Support
from mcp_context_proxy.store import LearnedRow, LearnedStore
from mcp_context_proxy.store.trouble import Trouble

logger = logging.getLogger(__name__)

SAME: Final = 0.95
"""Cosine from which on two queries are one: they differ in a word or in punctuation."""
GATE: Final = 0.5
"""Cosine from which on a past query says something about another one."""
DISCOUNT: Final = 0.10
"""From the cosine with a past query that is beyond doubt; a tool's own text is worth more than a memory."""
DOUBT: Final = 0.10
"""Further discount, all of it at no confidence: 0.15 in all after one use."""
NEW_IN_A_SESSION: Final = 20
"""Pairs of one tool that one session can begin: a loop teaches no more than a person does."""
SESSIONS_KEPT: Final = 1_000
"""Whose uses are remembered, so that a repetition counts once."""
QUERY_CHARACTERS: Final = 1_000
"""Kept of a query."""


class QueryModel(Protocol):
    """Makes a query's vector."""

    def vectors(self, texts: Sequence[str]) -> tuple[str, NDArray[np.float32]]:
        """The model's id, and one vector of norm 1 per text; raises `ModelError`."""


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
        self._model, self._store, self._store_queries, self._clock = model, store, store_queries, clock
        self._writing = threading.Lock()
        self._state: State | None = None
        self._seen: OrderedDict[str, dict[ToolKey, set[bytes]]] = OrderedDict()
        self._taught: dict[tuple[bytes, ToolKey], str] = {}
        self._pruned = 0.0
        self._version: int | None = None
        self._outdated: list[Pair] = []
        self._trouble = Trouble("What is learned is kept in memory until that is over.")
        self._unsaved: dict[tuple[bytes, ToolKey], Pair] = {}

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All there are."""
        return self._loaded().pairs

    def tools(self) -> Collection[ToolKey]:
        """Server and own name of those that something was learned of."""
        return self._loaded().topics.keys()

    def supported(self, query: NDArray[np.float32]) -> Mapping[ToolKey, Support]:
        """What speaks for tools, for a query."""
        state = self._loaded()
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
        state = self._loaded()
        if state.matrix.shape[-1] != query.shape[-1] or not state.pairs:
            return None
        return confidence(state.pairs, state.cosines(query))

    def generation(self) -> object:
        """Equal to that of another time as long as the pairs are the same."""
        return self._loaded()

    def learn(self, use: Use) -> None:
        """Take in a use; what it changes is in the store when this returns.

        Raises:
            ModelError: the query has no vector; nothing is learned.
        """
        model_id, (vector,) = self._model.vectors([use.query])
        with self._writing:
            state, now = self._loaded(), self._clock()
            near = self._near(state, vector)
            if (at := state.at.get((key_of(use.query), use.tool))) is not None:
                near[use.tool] = state.pairs[at]
            changed = [*self._used(use, near, model_id, vector, now), *self._passed_over(use, near, now)]
            if changed:
                self._apply(state, changed)
            if len(self._loaded().pairs) > arithmetic.MOST_PAIRS:
                self._prune(now)

    def forget(self, unwanted: Callable[[Pair], bool]) -> int:
        """Forget pairs; how many."""
        with self._writing:
            state = self._loaded()
            gone = [pair for pair in state.pairs if unwanted(pair)]
            self._remove(state, gone)
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
            state, now = self._loaded(), self._clock()
            known = {(pair.key, pair.tool): pair for pair in state.pairs}
            dimensions = self._model.vectors([])[1].shape[1]
            better = [
                pair
                for pair in pairs
                if is_unit(pair.vector, dimensions)
                and _is_better(pair, known.get((pair.key, pair.tool)), now)
            ]
            self._apply(state, better)
            self._prune(now)

    def refresh(self) -> None:
        """See what another process has learned or forgotten, and prune once a day."""
        with self._writing:
            self._save()
            if self._state is not None and self._changed_elsewhere():
                self._state = self._read().with_pairs([*self._unsaved.values()])
            outdated, self._outdated = self._outdated, []
            if self._state is not None:
                self._remove(self._state, outdated)
                if self._clock() - self._pruned >= SECONDS_A_DAY:
                    self._prune(self._clock())

    def _changed_elsewhere(self) -> bool:
        try:
            version = self._store.version()
        except StoreError as error:
            self._trouble.tell(error)
            return False
        before, self._version = self._version, version
        return before not in (None, version)

    def _near(self, state: State, vector: Vector) -> dict[ToolKey, Pair]:
        """The pair of each tool whose query is the same as this one."""
        if state.matrix.shape[-1] != vector.shape[-1]:
            return {}
        cosines = state.cosines(vector)
        same = sorted(np.flatnonzero(cosines >= SAME), key=lambda at: cosines[at])
        return {state.pairs[at].tool: state.pairs[at] for at in same}

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

    def _apply(self, state: State, changed: Sequence[Pair]) -> None:
        self._unsaved |= {(pair.key, pair.tool): pair for pair in changed}
        self._save()
        self._state = state.with_pairs(changed)

    def _save(self) -> None:
        """Write what is not in the store yet, also of times when that was refused."""
        unsaved = self._unsaved
        if unsaved and self._kept(lambda: self._store.put([row_of(pair) for pair in unsaved.values()])):
            self._unsaved = {}

    def _prune(self, now: float) -> None:
        state = self._loaded()
        kept = {id(pair) for pair in arithmetic.pruned(state.pairs, now)}
        self._remove(state, [pair for pair in state.pairs if id(pair) not in kept])
        self._pruned = now

    def _remove(self, state: State, gone: Sequence[Pair]) -> None:
        if gone:
            for pair in gone:
                self._unsaved.pop((pair.key, pair.tool), None)
            self._kept(lambda: self._store.remove([(pair.key, *pair.tool) for pair in gone]))
            self._state = state.without(gone)

    def _loaded(self) -> State:
        state = self._state
        if state is None:
            state = self._state = self._read()
        return state

    def _read(self) -> State:
        """What the store has; pairs of another model are embedded anew where their text is known."""
        try:
            found = [pair_of(row) for row in self._store.all()]
        except StoreError as error:
            self._trouble.tell(error)
            found = []
        model_id, none = self._model.vectors([])
        usable = [pair for pair in found if pair.model_id == model_id and is_unit(pair.vector, none.shape[1])]
        texts = [pair for pair in found if pair.model_id != model_id and pair.query is not None]
        if texts:
            _, vectors = self._model.vectors([pair.query or "" for pair in texts])
            pairs = zip(texts, vectors, strict=True)
            usable += [replace(pair, vector=vector, model_id=model_id) for pair, vector in pairs]
        kept = arithmetic.pruned(usable, self._clock())
        ids = {id(pair) for pair in kept}
        # Not now: a search may be waiting for this, and a write can wait for another process.
        self._outdated = [pair for pair in usable if id(pair) not in ids]
        return State.of(kept)

    def _kept(self, write: Callable[[], None]) -> bool:
        try:
            write()
            self._trouble.over()
        except StoreError as error:
            self._trouble.tell(error)
            return False
        return True


def _is_better(pair: Pair, known: Pair | None, now: float) -> bool:
    return known is None or known.confidence_at(now) < pair.confidence_at(now)


def row_of(pair: Pair) -> LearnedRow:
    """As the store has it."""
    server, tool = pair.tool
    return LearnedRow(
        pair.key, server, tool, pair.query, pair.model_id, pair.vector,
        pair.confidence, pair.uses, pair.first, pair.last,
    )  # fmt: skip


def pair_of(row: LearnedRow) -> Pair:
    """From the store."""
    return Pair(
        row.key, (row.server, row.tool), row.query, row.vector, row.model_id,
        row.confidence, row.uses, row.first, row.last,
    )  # fmt: skip
