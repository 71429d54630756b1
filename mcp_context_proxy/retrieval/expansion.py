"""Context expansion: what is near to what was selected, or to what a call answered, may be needed with it.

Blocks. Without vectors nothing is near to anything, and nothing is added.

Which items of an index are near to which: their best chunks compared with all others, by the same vectors.

A graph that is computed where it is first asked for, item by item, and lasts as long as its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import IndexedChunk, Item, Kind, Snapshot, Tool
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.text import chunks

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


GRAPHS_KEPT = 2
"""As many as there are indexes: the latest snapshot's, and that of requests still using the one before."""


@dataclass(frozen=True, slots=True)
class ExpansionOptions:
    """How far to go."""

    depth: int = 0
    """Steps from what was selected; 0 for none."""
    threshold: float = 0.75
    """Cosine from which an item is near."""
    top_n: int = 3
    """Items of each step, the nearest."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """An item that something brought."""

    item: Item
    cosine: float
    via: Item | None
    """What brought it; None where that was a text."""


class Expander:
    """Finds what is near to items and to texts."""

    def __init__(self, index_of: Callable[[Snapshot], Index], embedder: Embedder | None) -> None:
        """Prepare.

        Args:
            index_of: What is indexed of a snapshot by now.
            embedder: For queries and answers of calls; None where there is no model.
        """
        self._index_of, self._embedder = index_of, embedder
        self._graphs: tuple[Relations, ...] = ()

    def related(self, item: Item, snapshot: Snapshot, threshold: float, limit: int) -> list[Expanded]:
        """The items nearest to one, nearest first."""
        graph = self._graph(snapshot)
        at = graph.position(item)
        neighbours = () if at is None else graph.of([at])[0]
        found = [(near, cosine) for near, cosine in neighbours if cosine >= threshold]
        return [Expanded(graph.index.items[near], cosine, item) for near, cosine in found[:limit]]

    def expand(
        self,
        selected: Sequence[Item],
        query: str,
        snapshot: Snapshot,
        options: ExpansionOptions,
        allowed: Callable[[Item], bool],
    ) -> list[Expanded]:
        """What is near to the items selected, step by step.

        Args:
            selected: Where to begin; never part of what is found.
            query: Chooses the chunks that stand for a long item.
            snapshot: What there is.
            options: How far to go.
            allowed: Whether an item may be brought.
        """
        graph = self._graph(snapshot)
        positions = [at for item in selected if (at := graph.position(item)) is not None]
        seen, frontier, found = set(positions), positions, list[Expanded]()
        vector = self._vectors([query]) if options.depth and frontier else None
        for _ in range(options.depth):
            step = self._step(graph, frontier, None if vector is None else vector[0], options, seen, allowed)
            found += [
                Expanded(graph.index.items[at], cosine, graph.index.items[via]) for at, cosine, via in step
            ]
            frontier = [at for at, _, _ in step]
            seen |= set(frontier)
        return found

    def suggested(
        self, text: str, snapshot: Snapshot, options: ExpansionOptions, allowed: Callable[[Item], bool]
    ) -> list[Expanded]:
        """What is near to a text, such as the answer of a call."""
        graph = self._graph(snapshot)
        vectors = self._vectors(chunks(text))
        if vectors is None:
            return []
        near = [
            Expanded(graph.index.items[at], cosine, None)
            for at, cosine in graph.nearest(vectors)
            if cosine >= options.threshold
        ]
        return [one for one in near if allowed(one.item)][: options.top_n]

    def _step(
        self,
        graph: Relations,
        frontier: Sequence[int],
        query: NDArray[np.float32] | None,
        options: ExpansionOptions,
        seen: set[int],
        allowed: Callable[[Item], bool],
    ) -> list[tuple[int, float, int]]:
        """Item, cosine and what brought it, nearest first."""
        best: dict[int, tuple[float, int]] = {}
        for via, neighbours in zip(frontier, graph.of(frontier, query), strict=True):
            for at, cosine in neighbours:
                if cosine < options.threshold:
                    break
                if at not in seen and cosine > best.get(at, (0.0, 0))[0]:
                    best[at] = (cosine, via)
        ordered = sorted(best.items(), key=lambda pair: (-pair[1][0], pair[0]))
        usable = ((at, cosine, via) for at, (cosine, via) in ordered if allowed(graph.index.items[at]))
        return [step for step, _ in zip(usable, range(options.top_n), strict=False)]

    def _vectors(self, texts: Iterable[str]) -> NDArray[np.float32] | None:
        wanted = [text for text in texts if text.strip()]
        if self._embedder is None or not wanted:
            return None
        try:
            return self._embedder.embed(wanted)
        except ModelError:
            return None

    def _graph(self, snapshot: Snapshot) -> Relations:
        index = self._index_of(snapshot)
        graph = next((known for known in self._graphs if known.index is index), None)
        if graph is None:
            graph = Relations(index)
            self._graphs = (graph, *self._graphs)[:GRAPHS_KEPT]
        return graph
