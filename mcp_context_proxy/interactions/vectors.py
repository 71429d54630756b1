"""The embeddings of interactions in memory, as searches compare them: the store's, followed change by change.

A search reads only what has come since the one before it, from whichever process; ten thousand take 15 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embedder import is_unit
from mcp_context_proxy.interactions.decay import aged
from mcp_context_proxy.items import Vector
from mcp_context_proxy.retrieval.vectors import dots
from mcp_context_proxy.store import InteractionScope, InteractionStore, InteractionVector

READ_AT_ONCE = 1_000
"""Embeddings of one reading, 1.5 MB: others who use the store wait a few milliseconds at most."""

FORGOTTEN_SHARE = 0.25
"""Of all rows, from which on those that were forgotten are taken out: that copies all others."""

_FACTS = np.dtype(
    [("seq", "i8"), ("id", "i8"), ("time", "f8"), ("agent", "i4"), ("type", "i4"), ("there", "?")]
)


@dataclass(frozen=True, slots=True)
class Near:
    """An interaction that is near to a query."""

    id: int
    score: float
    cosine: float


class InteractionVectors:
    """Embeddings of one model. Not thread-safe."""

    def __init__(self, store: InteractionStore) -> None:
        self._store = store
        self._names: dict[str, int] = {}
        self._begin("", 0)

    def follow(self, model_id: str, dimensions: int) -> None:
        """Have what the store has, of one model.

        Raises:
            StoreError: the store cannot be read.
        """
        if (model_id, dimensions) != (self._model_id, self._matrix.shape[1]):
            self._begin(model_id, dimensions)
        while fresh := self._store.vectors(model_id, self._latest, READ_AT_ONCE):
            self._append(fresh)
        if self._store.vector_count(model_id) != np.count_nonzero(self._known["there"]):
            self._known["there"] = np.isin(self._known["seq"], self._store.vector_seqs(model_id))
            self._take_out()

    def nearest(
        self, query: Vector, scope: InteractionScope, top_k: int, factor: float, now: float
    ) -> tuple[list[Near], int]:
        """Those with the best scores, the best first and of equals the latest, and how many were compared."""
        facts = self._known
        (at,) = np.nonzero(self._within(scope))
        cosines = dots(self._matrix[: self._count], query)[at].astype(np.float64)
        scores = aged(cosines, facts["time"][at], now, factor)
        best = np.lexsort((-facts["id"][at], -facts["time"][at], -scores))[:top_k]
        near = [
            Near(int(facts["id"][at[each]]), float(scores[each]), float(cosines[each]))
            for each in best
            if scores[each] > 0
        ]
        return near, len(at)

    def _within(self, scope: InteractionScope) -> NDArray[np.bool_]:
        facts = self._known
        within: NDArray[np.bool_] = facts["there"].copy()
        if scope.agent_name is not None:
            within &= facts["agent"] == self._names.get(scope.agent_name, -1)
        if scope.interaction_type is not None:
            within &= facts["type"] == self._names.get(scope.interaction_type, -1)
        if scope.before is not None:
            within &= facts["time"] < scope.before
        return within

    @property
    def _known(self) -> NDArray[np.void]:
        return self._facts[: self._count]

    def _begin(self, model_id: str, dimensions: int) -> None:
        self._model_id, self._latest, self._count = model_id, 0, 0
        self._facts = np.zeros(0, _FACTS)
        self._matrix = np.zeros((0, dimensions), np.float32)

    def _append(self, fresh: list[InteractionVector]) -> None:
        count, dimensions = self._count + len(fresh), self._matrix.shape[1]
        if count > len(self._facts):
            # Twice the room: rows are copied a few times in all, not with each change.
            facts, matrix = np.zeros(2 * count, _FACTS), np.empty((2 * count, dimensions), np.float32)
            facts[: self._count], matrix[: self._count] = self._known, self._matrix[: self._count]
            self._facts, self._matrix = facts, matrix
        for at, one in enumerate(fresh, self._count):
            agent, kind = self._number(one.agent_name), self._number(one.interaction_type)
            self._facts[at] = (one.seq, one.interaction, one.time, agent, kind, True)
            # A damaged one is near to nothing.
            self._matrix[at] = one.vector if is_unit(one.vector, dimensions) else 0
        self._count, self._latest = count, fresh[-1].seq

    def _take_out(self) -> None:
        there = self._known["there"]
        if np.count_nonzero(there) < (1 - FORGOTTEN_SHARE) * self._count:
            self._facts, self._matrix = self._known[there], self._matrix[: self._count][there]
            self._count = len(self._facts)

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))
