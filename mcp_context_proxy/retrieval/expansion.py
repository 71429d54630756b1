"""Context expansion: items that are near to the selected ones, or to the result of a call.

Items are near where their best chunks are, by the same vectors as in search. The neighbours of an item are
computed when they are first asked for, and kept as long as its index. Blocks. Without vectors nothing is near
to anything, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import Item, Kind, Snapshot
from mcp_context_proxy.retrieval.index import Index, item_key
from mcp_context_proxy.retrieval.text import chunks
from mcp_context_proxy.retrieval.vectors import DenseIndex
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNKS_COMPARED = 5
"""Chunks of an item that are compared; nearly every tool has fewer, a long document has some of anything."""

NEIGHBOURS = 64
"""Neighbours of an item that are kept, the nearest."""

GRAPHS_KEPT = 2
"""As many as there are indexes: the latest snapshot's, and that of requests still using the one before."""

Neighbours: TypeAlias = tuple[tuple[int, float], ...]
"""Items with their cosine, nearest first."""


@dataclass(frozen=True, slots=True)
class ExpansionOptions:
    """Distance and number of the items to add."""

    depth: int = 0
    """Steps from the selected items; 0 for none."""
    threshold: float = 0.75
    """Cosine from which an item is near."""
    top_n: int = 3
    """Items of each step, the nearest."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """An item that was added."""

    item: Item
    cosine: float
    via: Item | None
    """The item that it is near to; None where that was a text."""


class Expander:
    """Finds items that are near to items and to texts."""

    def __init__(self, index_of: Callable[[Snapshot], Index], embedder: Embedder | None) -> None:
        """Find neighbours in the indexes of snapshots; without an embedder, only those of items."""
        self._index_of, self._embedder = index_of, embedder
        self._graphs: tuple[NeighbourGraph, ...] = ()

    def related(self, item: Item, snapshot: Snapshot, threshold: float, limit: int) -> list[Expanded]:
        """Return the items nearest to one, nearest first."""
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
        """Return items near to the selected ones, then items near to these, and so on.

        The selected items are never part of the result. The query chooses the chunks that stand for a long
        item.
        """
        graph = self._graph(snapshot)
        frontier = [at for item in selected if (at := graph.position(item)) is not None]
        seen, found = set(frontier), list[Expanded]()
        vectors = self._vectors([query]) if options.depth and frontier else None
        vector = None if vectors is None else vectors[0]
        for _ in range(options.depth):
            # The best cosine of each new item with any item of the step before, and that item.
            best: dict[int, tuple[float, int]] = {}
            for via, neighbours in zip(frontier, graph.of(frontier, vector), strict=True):
                for at, cosine in neighbours:
                    if cosine < options.threshold:
                        break
                    if at not in seen and cosine > best.get(at, (0.0, 0))[0]:
                        best[at] = (cosine, via)
            frontier = []
            for at, (cosine, via) in sorted(best.items(), key=lambda pair: (-pair[1][0], pair[0])):
                if len(frontier) == options.top_n:
                    break
                if allowed(graph.index.items[at]):
                    found.append(Expanded(graph.index.items[at], cosine, graph.index.items[via]))
                    frontier.append(at)
            seen |= set(frontier)
        return found

    def suggested(
        self, text: str, snapshot: Snapshot, options: ExpansionOptions, allowed: Callable[[Item], bool]
    ) -> list[Expanded]:
        """Return items near to a text, such as the result of a call."""
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

    def _vectors(self, texts: Iterable[str]) -> NDArray[np.float32] | None:
        wanted = [text for text in texts if text.strip()]
        if self._embedder is None or not wanted:
            return None
        try:
            return self._embedder.embed(wanted)
        except ModelError:
            return None

    def _graph(self, snapshot: Snapshot) -> NeighbourGraph:
        index = self._index_of(snapshot)
        graph = next((known for known in self._graphs if known.index is index), None)
        if graph is None:
            graph = NeighbourGraph(index)
            self._graphs = (graph, *self._graphs)[:GRAPHS_KEPT]
        return graph


class NeighbourGraph:
    """The neighbours of the items of an index. Threads may share it: two that compute the same agree."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._positions: Mapping[tuple[Kind, str], int] | None = None
        self._known: dict[int, Neighbours] = {}

    def position(self, item: Item) -> int | None:
        """Return the position of an item; None where it is not indexed, as ``manual`` items are not."""
        if self._positions is None:
            self._positions = {item_key(one): at for at, one in enumerate(self.index.items)}
        return self._positions.get(item_key(item))

    def of(self, items: Sequence[int], query: NDArray[np.float32] | None = None) -> list[Neighbours]:
        """Return the neighbours of items.

        Args:
            items: Positions in the index.
            query: A vector that chooses the chunks of an item that has too many; without one its first ones.
        """
        dense, found = self.index.dense, dict[int, Neighbours]()
        new = [item for item in items if item not in self._known and self.index.ready[item]]
        if dense is not None and new:
            chosen = [_chosen(dense.vectors_of(item), query) for item in new]
            near, cosines = self._cosines(dense, np.concatenate(chosen))
            row = 0
            for item, vectors in zip(new, chosen, strict=True):
                found[item] = _nearest(near, cosines[row : row + len(vectors)].max(axis=0), item)
                row += len(vectors)
                # An item with few chunks has the same neighbours for every query.
                if dense.sizes[item] <= CHUNKS_COMPARED:
                    self._known[item] = found[item]
        return [found[item] if item in found else self._known.get(item, ()) for item in items]

    def nearest(self, vectors: NDArray[np.float32]) -> Neighbours:
        """Return the items nearest to any of some vectors."""
        if self.index.dense is None or not len(vectors):
            return ()
        items, cosines = self._cosines(self.index.dense, vectors)
        return _nearest(items, cosines.max(axis=0))

    def _cosines(
        self, dense: DenseIndex, vectors: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return items near to any of some vectors, and [vectors, items]: cosines with their best chunks."""
        items = dense.candidates(vectors, np.zeros(len(self.index.items), np.float32))
        compared = dense.of(items)
        return items, compared.by_item(compared.cosines(vectors))


def _chosen(vectors: NDArray[np.float32], query: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Return the vectors of those chunks that stand for an item."""
    if len(vectors) > CHUNKS_COMPARED and query is not None:
        vectors = vectors[np.argsort(-(vectors @ query), kind="stable")]
    return vectors[:CHUNKS_COMPARED]


def _nearest(items: NDArray[np.intp], cosines: NDArray[np.float32], without: int = -1) -> Neighbours:
    cosines = np.where(items == without, np.float32(-np.inf), cosines)
    count = min(NEIGHBOURS, cosines.size)
    best = np.argpartition(-cosines, count - 1)[:count] if count else np.zeros(0, np.intp)
    ordered = best[np.lexsort((best, -cosines[best]))]
    return tuple((int(items[at]), float(cosines[at])) for at in ordered if cosines[at] > 0)
