"""The pairs there are, in memory and in the store.

Readers take an immutable state; one thread at a time writes. A pair is in the store before it counts; where
the store fails, it is kept in memory and written when that is over.

The learned pairs at one moment, as searches read them: immutable, and cheap to follow by the next.

A pair that is used again keeps its vector, so nothing large is made anew but for a pair that is new.

Whether the queries a tool was used for have something in common. Pure.

A tool that is used for everything, or is said to be, tells nothing about one more query.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.embedding.embeddings import QueryEmbedder
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.learning import pairs as arithmetic
from mcp_context_proxy.learning.pairs import SECONDS_A_DAY, Pair, ToolKey
from mcp_context_proxy.retrieval.vectors import dots
from mcp_context_proxy.store import LearnedRow, LearnedStore

COHERENT: Final = 0.2
"""Mean cosine of a tool's queries with each other. On public logs 90 of 100 tools have more; queries for all
sorts of tools together have 0.08 to 0.17."""


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """What the queries of one tool are about, as far as that is needed."""

    count: int
    total: NDArray[np.float64]
    """Sum of their vectors, each of norm 1."""

    @classmethod
    def of(cls, vector: Vector) -> Self:
        """Of one query."""
        return cls(1, vector.astype(np.float64))

    def and_of(self, vector: Vector) -> Topic:
        """With one more query."""
        return Topic(self.count + 1, self.total + vector)

    @property
    def general(self) -> bool:
        """Whether they have less in common than those of a tool with one purpose."""
        if self.count < 2:
            return False
        # The square of the sum has each cosine twice, and each vector with itself once.
        twice = float(self.total @ self.total) - self.count
        return twice / (self.count * (self.count - 1)) < COHERENT


PairKey: TypeAlias = tuple[bytes, ToolKey]


@dataclass(frozen=True, slots=True, eq=False)
class PairIndex:
    """The pairs, and their vectors as one matrix."""

    pairs: tuple[Pair, ...]
    at: Mapping[PairKey, int]
    """Where each pair is."""
    matrix: NDArray[np.float32]
    topics: Mapping[ToolKey, Topic]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Self:
        """Of pairs, each key once."""
        known = tuple({(pair.key, pair.tool): pair for pair in pairs}.values())
        topics: dict[ToolKey, Topic] = {}
        for pair in known:
            _add(topics, pair)
        return cls(
            pairs=known,
            at={(pair.key, pair.tool): at for at, pair in enumerate(known)},
            matrix=np.stack([pair.vector for pair in known]) if known else np.zeros((0, 0), np.float32),
            topics=topics,
        )

    def with_pairs(self, changed: Collection[Pair]) -> PairIndex:
        """With pairs that are new, or take the place of their former selves."""
        pairs, fresh = list(self.pairs), []
        for pair in changed:
            at = self.at.get((pair.key, pair.tool))
            if at is None:
                fresh.append(pair)
            elif pair.vector is not self.pairs[at].vector:
                return PairIndex.of([*self.pairs, *changed])
            else:
                pairs[at] = pair
        if not fresh:
            return replace(self, pairs=tuple(pairs))
        if not self.pairs:
            return PairIndex.of(fresh)
        topics = dict(self.topics)
        for pair in fresh:
            _add(topics, pair)
        keys = ((pair.key, pair.tool) for pair in fresh)
        return PairIndex(
            pairs=(*pairs, *fresh),
            at={**self.at, **{key: len(pairs) + number for number, key in enumerate(keys)}},
            matrix=np.concatenate([self.matrix, np.stack([pair.vector for pair in fresh])]),
            topics=topics,
        )

    def without(self, gone: Iterable[Pair]) -> PairIndex:
        """Without some of its pairs."""
        ids = {id(pair) for pair in gone}
        return PairIndex.of(pair for pair in self.pairs if id(pair) not in ids)

    def cosines(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of each pair's query with this one."""
        return dots(self.matrix, query)

    def is_general(self, tool: ToolKey) -> bool:
        """Whether the queries a tool was used for have nothing in common."""
        return self.topics[tool].general


def _add(topics: dict[ToolKey, Topic], pair: Pair) -> None:
    known = topics.get(pair.tool)
    topics[pair.tool] = Topic.of(pair.vector) if known is None else known.and_of(pair.vector)


class PairStore:
    """All pairs. Whoever writes holds a lock of its own."""

    def __init__(self, model: QueryEmbedder, store: LearnedStore, clock: Callable[[], float]) -> None:
        """Read nothing until they are asked for.

        Args:
            model: Makes vectors of queries, as search does.
            store: Keeps them.
            clock: Seconds since 1970.
        """
        self._model, self._store, self._clock = model, store, clock
        self._state: PairIndex | None = None
        self._pruned = 0.0
        self._version: int | None = None
        self._outdated: list[Pair] = []
        self._unsaved: dict[tuple[bytes, ToolKey], Pair] = {}

    @property
    def state(self) -> PairIndex:
        """They, read from the store at first."""
        state = self._state
        if state is None:
            state = self._state = self._read()
        return state

    def put(self, changed: Sequence[Pair]) -> None:
        """Add pairs, or replace them."""
        state = self.state
        self._unsaved |= {(pair.key, pair.tool): pair for pair in changed}
        self._save()
        self._state = state.with_pairs(changed)

    def remove(self, gone: Sequence[Pair]) -> None:
        """Forget pairs."""
        if gone:
            state = self.state
            for pair in gone:
                self._unsaved.pop((pair.key, pair.tool), None)
            self._kept(lambda: self._store.remove([(pair.key, *pair.tool) for pair in gone]))
            self._state = state.without(gone)

    def prune(self) -> None:
        """Forget those that count for nothing any more, and those that are too many."""
        state, now = self.state, self._clock()
        kept = {id(pair) for pair in arithmetic.pruned(state.pairs, now)}
        self.remove([pair for pair in state.pairs if id(pair) not in kept])
        self._pruned = now

    def refresh(self) -> None:
        """See what another process has learned or forgotten, and prune once a day."""
        self._save()
        if self._state is not None and self._changed_elsewhere():
            self._state = self._read().with_pairs([*self._unsaved.values()])
        outdated, self._outdated = self._outdated, []
        if self._state is not None:
            self.remove(outdated)
            if self._clock() - self._pruned >= SECONDS_A_DAY:
                self.prune()

    def _changed_elsewhere(self) -> bool:
        try:
            version = self._store.version()
        except StoreError:
            return False
        before, self._version = self._version, version
        return before not in (None, version)

    def _save(self) -> None:
        """Write what is not in the store yet, also of times when that was refused."""
        unsaved = self._unsaved
        if unsaved and self._kept(lambda: self._store.put([row_of(pair) for pair in unsaved.values()])):
            self._unsaved = {}

    def _read(self) -> PairIndex:
        """What the store has; pairs of another model are embedded anew where their text is known."""
        try:
            found = [pair_of(row) for row in self._store.all()]
        except StoreError:
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
        return PairIndex.of(kept)

    def _kept(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except StoreError:
            return False
        return True


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
