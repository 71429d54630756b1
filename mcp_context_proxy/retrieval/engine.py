"""Search: the one way from a query to ranked items. Knows no session and no protocol; blocks.

Several searches may run at once in worker threads. One index is built at a time; who needs the same one waits
for it, and a search keeps the index it began with.
"""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval.index import EmbedTexts, Index, OnProgress, build_index, lexical_only
from mcp_context_proxy.retrieval.ranking import Filters, Ranking, SearchOptions
from mcp_context_proxy.retrieval.scored import Scored
from mcp_context_proxy.retrieval.text import query_texts

INDEXES_KEPT = 2
"""The latest snapshot's, and that of requests still using the one before; they share what did not change."""

_EVERYTHING = Filters()
_DEFAULTS = SearchOptions()


class Engine:
    """Finds items of a snapshot. Owns the indexes, not the embeddings: those belong to the sources."""

    def __init__(self, embedder: EmbedTexts | None, query_embedder: EmbedTexts | None = None) -> None:
        """Prepare an engine.

        Args:
            embedder: For texts of the catalog; None searches by words alone.
            query_embedder: For queries, which should not end up in a store; by default the same.
        """
        self._embedder = embedder
        self._query_embedder = query_embedder or embedder
        self._lock = threading.Lock()
        self._indexes: tuple[Index, ...] = ()

    def index(self, snapshot: Snapshot, on_progress: OnProgress | None = None) -> None:
        """Index a snapshot ahead of its first search."""
        self._index_of(snapshot, on_progress)

    def search(
        self,
        query: str,
        snapshot: Snapshot,
        filters: Filters = _EVERYTHING,
        options: SearchOptions = _DEFAULTS,
        on_progress: OnProgress | None = None,
    ) -> Ranking:
        """Rank what a snapshot holds for a query, indexing the snapshot first where that was not done."""
        started = time.perf_counter()
        index = self._index_of(snapshot, on_progress)
        vectors, note = (None, None) if options.method == "lexical" else self._query_vectors(query, index)
        scored = Scored.of(query, index, vectors, filters, options.method)
        selected = scored.selected(options)
        results = tuple(scored.result(item) for item in selected)
        fits = scored.fits()
        return Ranking(
            query=query,
            results=results if fits else (),
            considered=int(scored.allowed.sum()),
            method="lexical" if vectors is None else options.method,
            note=note,
            fits=fits,
            near_misses=() if fits else results,
            others=tuple(scored.result(item) for item in scored.following(selected, options)),
            best_cosine=scored.whole,
            seconds=time.perf_counter() - started,
        )

    def _index_of(self, snapshot: Snapshot, on_progress: OnProgress | None) -> Index:
        if (index := self._known(snapshot)) is not None:
            return index
        with self._lock:
            if (index := self._known(snapshot)) is not None:
                return index
            latest = self._indexes[0] if self._indexes else None
            index = build_index(snapshot, self._embedder, latest, on_progress)
            newest_first = sorted((index, *self._indexes), key=lambda known: -known.snapshot.generation)
            self._indexes = tuple(newest_first[:INDEXES_KEPT])
            return index

    def _known(self, snapshot: Snapshot) -> Index | None:
        return next((index for index in self._indexes if index.snapshot is snapshot), None)

    def _query_vectors(self, query: str, index: Index) -> tuple[NDArray[np.float32] | None, str | None]:
        if index.dense is None or self._query_embedder is None:
            return None, index.note
        texts = query_texts(query)
        if not texts:
            return None, None
        try:
            return self._query_embedder.embed(texts), None
        except ModelError as error:
            return None, self._give_up(index, error)

    def _give_up(self, index: Index, error: ModelError) -> str | None:
        """A model that failed is not asked again until the catalog changes."""
        lexical = lexical_only(index, error)
        with self._lock:
            self._indexes = tuple(lexical if known is index else known for known in self._indexes)
        return lexical.note
