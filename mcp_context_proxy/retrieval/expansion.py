"""Context expansion: what is near to what was selected, or to what a call answered, may be needed with it.

Blocks. Without vectors nothing is near to anything, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import Item, Snapshot
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.indexing import EmbedTexts
from mcp_context_proxy.retrieval.relations import Relations
from mcp_context_proxy.retrieval.text import chunks

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

    def __init__(self, index_of: Callable[[Snapshot], Index], embedder: EmbedTexts | None) -> None:
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
