"""The pairs there are, in memory and in the store.

Readers take an immutable state; one thread at a time writes. A pair is in the store before it counts; where
the store fails, it is kept in memory and written when that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.learning import pairs as arithmetic
from mcp_context_proxy.learning.pairs import SECONDS_A_DAY, Pair, ToolKey
from mcp_context_proxy.learning.state import State
from mcp_context_proxy.store import LearnedRow, LearnedStore


class QueryModel(Protocol):
    """Makes a query's vector."""

    def vectors(self, texts: Sequence[str]) -> tuple[str, NDArray[np.float32]]:
        """The model's id, and one vector of norm 1 per text; raises `ModelError`."""


class KeptPairs:
    """All pairs. Whoever writes holds a lock of its own."""

    def __init__(self, model: QueryModel, store: LearnedStore, clock: Callable[[], float]) -> None:
        """Read nothing until they are asked for.

        Args:
            model: Makes vectors of queries, as search does.
            store: Keeps them.
            clock: Seconds since 1970.
        """
        self._model, self._store, self._clock = model, store, clock
        self._state: State | None = None
        self._pruned = 0.0
        self._version: int | None = None
        self._outdated: list[Pair] = []
        self._unsaved: dict[tuple[bytes, ToolKey], Pair] = {}

    @property
    def state(self) -> State:
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

    def _read(self) -> State:
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
        return State.of(kept)

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
