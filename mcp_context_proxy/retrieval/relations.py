"""Which items of an index are near to which: their best chunks compared with all others, by the same vectors.

A graph that is computed where it is first asked for, item by item, and lasts as long as its index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import IndexedChunk, Item, Kind, Tool
from mcp_context_proxy.retrieval.index import Index

ItemKey: TypeAlias = tuple[Kind, str]
"""Kind, and exposed name of a tool or name of a document."""

CHUNKS_COMPARED = 5
"""Chunks of an item that stand for it; nearly every tool has fewer, a long document has some of anything."""

NEIGHBOURS = 64
"""Neighbours of an item that are kept, the nearest."""

Neighbours: TypeAlias = tuple[tuple[int, float], ...]
"""Items with their cosine, nearest first."""


def key_of(item: Item) -> ItemKey:
    """What an item is known by."""
    return item.kind, item.exposed_name if isinstance(item, Tool) else item.name


class Relations:
    """The neighbours of items. Threads may share it: what two compute at once is the same."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._positions: Mapping[ItemKey, int] | None = None
        self._known: dict[int, Neighbours] = {}

    def position(self, item: Item) -> int | None:
        """Where an item is; None where it cannot be found, as ``manual`` items cannot."""
        if self._positions is None:
            self._positions = {key_of(one): at for at, one in enumerate(self.index.items)}
        return self._positions.get(key_of(item))

    def of(self, items: Sequence[int], query: NDArray[np.float32] | None = None) -> list[Neighbours]:
        """The neighbours of items.

        Args:
            items: Positions in the index.
            query: A vector that chooses the chunks of an item that has too many; without one its first ones.
        """
        chunks = {item: self._chunks(item) for item in items if item not in self._known}
        found = self._computed({item: _chosen(of_item, query) for item, of_item in chunks.items()})
        # Whoever has few chunks has the same neighbours whatever is asked.
        self._known |= {item: found[item] for item in found if len(chunks[item]) <= CHUNKS_COMPARED}
        return [found[item] if item in found else self._known[item] for item in items]

    def nearest(self, vectors: NDArray[np.float32], without: Iterable[int] = ()) -> Neighbours:
        """The items nearest to any of some vectors."""
        if self.index.dense is None or not len(vectors):
            return ()
        items, cosines = self._cosines(vectors)
        return _nearest(items, cosines.max(axis=0), without)

    def _computed(self, chosen: Mapping[int, NDArray[np.float32]]) -> dict[int, Neighbours]:
        compared = {item: vectors for item, vectors in chosen.items() if len(vectors)}
        found: dict[int, Neighbours] = dict.fromkeys(chosen, ())
        if self.index.dense is None or not compared:
            return found
        items, cosines = self._cosines(np.concatenate(list(compared.values())))
        row = 0
        for item, vectors in compared.items():
            found[item] = _nearest(items, cosines[row : row + len(vectors)].max(axis=0), (item,))
            row += len(vectors)
        return found

    def _cosines(self, vectors: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Items near to any of some vectors, and [vectors, items]: the cosine with the best chunk of each."""
        dense = self.index.dense
        assert dense is not None
        items = dense.candidates(vectors, np.zeros(len(self.index.items), np.float32))
        compared = dense.of(items)
        return items, compared.by_item(compared.cosines(vectors))

    def _chunks(self, item: int) -> Sequence[IndexedChunk]:
        """An item's chunks; none while it has no vectors."""
        part = list(self.index.parts.values())[self.index.sources[item]]
        chunks: Sequence[IndexedChunk] = part.source.embeddings.get(self.index.items[item].name, ())
        return chunks


def _chosen(chunks: Sequence[IndexedChunk], query: NDArray[np.float32] | None) -> NDArray[np.float32]:
    vectors = np.array([chunk.embedding for chunk in chunks], np.float32)
    if len(chunks) > CHUNKS_COMPARED and query is not None:
        return np.array(vectors[np.argsort(-(vectors @ query), kind="stable")[:CHUNKS_COMPARED]])
    return vectors[:CHUNKS_COMPARED]


def _nearest(items: NDArray[np.intp], cosines: NDArray[np.float32], without: Iterable[int]) -> Neighbours:
    cosines = np.where(np.isin(items, list(without)), np.float32(-np.inf), cosines)
    count = min(NEIGHBOURS, cosines.size)
    best = np.argpartition(-cosines, count - 1)[:count] if count else np.zeros(0, np.intp)
    ordered = best[np.lexsort((best, -cosines[best]))]
    return tuple((int(items[at]), float(cosines[at])) for at in ordered if cosines[at] > 0)
