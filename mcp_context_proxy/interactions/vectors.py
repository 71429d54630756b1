"""The embeddings of interactions in memory, where searches compare them; ten thousand take 15 MB.

They follow the store: a search reads the changes since the search before, whichever process made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.items import Vector
from mcp_context_proxy.retrieval.vectors import dots
from mcp_context_proxy.store import DAY, InteractionScope, InteractionStore, InteractionVector

READ_AT_ONCE: Final = 1_000
"""Embeddings that are read at once, 1.5 MB: others who use the store wait some milliseconds at most."""

FORGOTTEN_SHARE: Final = 0.25
"""Share of forgotten rows from which on they are removed, which copies all others."""

_FACTS = np.dtype(
    [("seq", "i8"), ("id", "i8"), ("time", "f8"), ("agent", "i4"), ("type", "i4"), ("there", "?")]
)


@dataclass(frozen=True, slots=True)
class Near:
    """An interaction that is like a query."""

    id: int
    score: float
    cosine: float


class InteractionVectors:
    """The embeddings of one model. Not thread-safe."""

    def __init__(self, store: InteractionStore) -> None:
        self._store = store
        self._names: dict[str, int] = {}
        self._begin("", 0)

    def _begin(self, model_id: str, dimensions: int) -> None:
        self._model_id, self._latest, self._count = model_id, 0, 0
        self._facts = np.zeros(0, _FACTS)
        self._matrix = np.zeros((0, dimensions), np.float32)

    def follow(self, model_id: str, dimensions: int) -> None:
        """Read the changes of the store, for one model; raises `StoreError`."""
        if (model_id, dimensions) != (self._model_id, self._matrix.shape[1]):
            self._begin(model_id, dimensions)
        # Every embedding that is written gets the next `seq`, so reading goes on after the last one. A
        # deletion changes only the number of rows; if that differs, the rows that are left are looked up.
        while fresh := self._store.vectors(model_id, self._latest, READ_AT_ONCE):
            self._append(fresh)
        if self._store.vector_count(model_id) != np.count_nonzero(self._known["there"]):
            self._known["there"] = np.isin(self._known["seq"], self._store.vector_seqs(model_id))
            there = self._known["there"]
            if np.count_nonzero(there) < (1 - FORGOTTEN_SHARE) * self._count:
                self._facts, self._matrix = self._known[there], self._matrix[: self._count][there]
                self._count = len(self._facts)

    def nearest(
        self, query: Vector, scope: InteractionScope, top_k: int, factor: float, now: float
    ) -> tuple[list[Near], int]:
        """Return those with the best scores, the best first, and the number that was compared.

        Of equal scores, the latest comes first.
        """
        facts = self._known
        within: NDArray[np.bool_] = facts["there"].copy()
        if scope.agent_name is not None:
            within &= facts["agent"] == self._names.get(scope.agent_name, -1)
        if scope.interaction_type is not None:
            within &= facts["type"] == self._names.get(scope.interaction_type, -1)
        if scope.before is not None:
            within &= facts["time"] < scope.before
        (at,) = np.nonzero(within)
        cosines = dots(self._matrix[: self._count], query)[at].astype(np.float64)
        scores = aged(cosines, facts["time"][at], now, factor)
        best = np.lexsort((-facts["id"][at], -facts["time"][at], -scores))[:top_k]
        near = [
            Near(int(facts["id"][at[each]]), float(scores[each]), float(cosines[each]))
            for each in best
            if scores[each] > 0
        ]
        return near, len(at)

    @property
    def _known(self) -> NDArray[np.void]:
        return self._facts[: self._count]

    def _append(self, fresh: list[InteractionVector]) -> None:
        count, dimensions = self._count + len(fresh), self._matrix.shape[1]
        if count > len(self._facts):
            # Twice the size: then rows are copied a few times in all, not with each change.
            facts, matrix = np.zeros(2 * count, _FACTS), np.empty((2 * count, dimensions), np.float32)
            facts[: self._count], matrix[: self._count] = self._known, self._matrix[: self._count]
            self._facts, self._matrix = facts, matrix
        for at, one in enumerate(fresh, self._count):
            agent, kind = self._number(one.agent_name), self._number(one.interaction_type)
            self._facts[at] = (one.seq, one.interaction, one.time, agent, kind, True)
            # A damaged vector becomes zero, which is like no query.
            self._matrix[at] = one.vector if is_unit(one.vector, dimensions) else 0
        self._count, self._latest = count, fresh[-1].seq

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


def aged(
    cosines: NDArray[np.float64], times: NDArray[np.float64], now: float, factor: float
) -> NDArray[np.float64]:
    """Return the scores of interactions: ``cosine * factor ** days``.

    A cosine below zero counts as zero, so that an interaction unlike the query gains nothing by being old.
    `times` and `now` are seconds since 1970; a time after `now`, by another clock, counts as now.
    """
    days = np.maximum(now - times, 0.0) / DAY
    scores: NDArray[np.float64] = np.maximum(cosines, 0.0) * np.power(factor, days)
    return scores
