"""Search: the one way from a query to ranked items. Knows no session and no protocol; blocks.

Several searches may run at once in worker threads, each with the index it began with. One index is built at a
time: who needs all of it waits, and who has no time searches as much as there is and says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Kind, Snapshot, Tool
from mcp_context_proxy.retrieval.filters import Filters, allowed
from mcp_context_proxy.retrieval.fitting import Fitting
from mcp_context_proxy.retrieval.index import Index, lexical_only
from mcp_context_proxy.retrieval.indexing import Cancelled, EmbedTexts, OnProgress, embedded, read
from mcp_context_proxy.retrieval.learned import NO_SUPPORT, NOTHING_NEW, Learned, Support
from mcp_context_proxy.retrieval.parts import Calls
from mcp_context_proxy.retrieval.precedence import answer
from mcp_context_proxy.retrieval.query_vectors import query_vectors
from mcp_context_proxy.retrieval.ranking import Method, Ranking, SearchOptions
from mcp_context_proxy.retrieval.scored import Scored
from mcp_context_proxy.retrieval.terms import name_key

INDEXES_KEPT = 2
"""The latest snapshot's, and that of requests still using the one before; they share what did not change."""

T = TypeVar("T")

Novel = Callable[[], Mapping[tuple[str, str], float]]
"""What is added for tools that are new, by server and own name."""

_EVERYTHING = Filters()
_DEFAULTS = SearchOptions()


class Engine:
    """Finds items of a snapshot. Owns the indexes, not the embeddings: those belong to the sources."""

    def __init__(
        self,
        embedder: EmbedTexts | None,
        query_embedder: EmbedTexts | None = None,
        fitting: Fitting = "anything",
        calls: Calls = lambda _key: 0,
        learned: Learned | None = None,
        novel: Novel | None = None,
    ) -> None:
        """Prepare an engine.

        Args:
            embedder: For texts of the catalog; None searches by words alone.
            query_embedder: For queries, which should not end up in a store; by default the same.
            fitting: What counts as near enough to be meant, which depends on the model.
            calls: How often each source was used; the most used are indexed first.
            learned: What use has taught; None for nothing.
            novel: Which tools are new; None where that does not matter.
        """
        self._novel = novel
        self._learned = learned
        self._fitting = fitting
        self._embedder = embedder
        self._query_embedder = query_embedder or embedder
        self._calls = calls
        self._building, self._reading = threading.Lock(), threading.Lock()
        self._changing = threading.Lock()
        self._indexes: tuple[Index, ...] = ()

    def index(
        self,
        snapshot: Snapshot,
        on_progress: OnProgress | None = None,
        cancelled: Cancelled = lambda: False,
    ) -> None:
        """Index a snapshot to the end; searches that do not wait use what is there meanwhile.

        Raises:
            EmbeddingCancelledError: ``cancelled()`` became true; the next indexing goes on from there.
        """
        self._complete(snapshot, on_progress, cancelled)

    def index_of(self, snapshot: Snapshot) -> Index:
        """As much of a snapshot's index as is ready."""
        return self._known(snapshot) or self._read(snapshot)

    def indexed(self, snapshot: Snapshot) -> bool:
        """Whether all of a snapshot is indexed."""
        index = self._known(snapshot)
        return index is not None and index.complete

    def progress(self, snapshot: Snapshot) -> tuple[int, int]:
        """How many of a snapshot's items that can be found are indexed, and of how many."""
        index = self.index_of(snapshot)
        return int(index.ready.sum()), index.ready.size + index.unread

    def forget(self) -> None:
        """Index everything anew when it is searched next; what its sources keep is used again."""
        with self._changing:
            self._indexes = ()

    def state(self, snapshot: Snapshot) -> object | None:
        """Equal to that of another time as long as a search gives the same; None while indexing goes on."""
        index = self._known(snapshot)
        if index is None or not index.complete:
            return None
        try:
            learned = None if self._learned is None else self._learned.generation()
            # Which tools are new, not how much that counts now: it changes a score by 0.0002 in an hour.
            novel = None if self._novel is None else frozenset(self._novel())
        except ModelError:
            return None
        return index, learned, novel

    def search(
        self,
        query: str,
        snapshot: Snapshot,
        filters: Filters = _EVERYTHING,
        options: SearchOptions = _DEFAULTS,
        on_progress: OnProgress | None = None,
        wait: bool = True,
        history: Sequence[str] = (),
    ) -> Ranking:
        """Rank what a snapshot holds for a query.

        Args:
            query: In anybody's words.
            snapshot: What there is.
            filters: What of it is considered.
            options: How much is returned.
            on_progress: Told how far indexing is, where the search does it.
            wait: Whether to index everything first, or to make do with what is ready.
            history: What was asked before, the latest first: it pulls the query as a whole towards it.
        """
        started = time.perf_counter()
        index = self._complete(snapshot, on_progress, lambda: False) if wait else self._read(snapshot)
        vectors, note = (
            (None, None) if options.method == "lexical" else self._query_vectors(query, index, history)
        )
        supports = self._supports(index, vectors, options.method)
        novel = self._novel_in(index) if options.explore and vectors is not None else NOTHING_NEW
        met = allowed(index, filters)
        found = answer(
            lambda places: Scored.of(query, index, vectors, places, options.method, supports, novel),
            index,
            met,
            lambda: {*supports, *index.named(name_key(query))},
            self._fitting,
        )
        results, others = found.ranked(options)
        fits, considered = found.fits, int(met.sum())
        indexed = None if index.complete or index.note else (int((met & index.ready).sum()), considered)
        return Ranking(
            query=query,
            results=tuple(results) if fits else (),
            considered=considered,
            method="lexical" if vectors is None else options.method,
            note=note if indexed is None else _unfinished(indexed, index.unread, filters),
            fits=fits,
            near_misses=() if fits else tuple(results),
            others=tuple(others),
            best_cosine=found.best_cosine,
            evidence=found.evidence,
            seconds=time.perf_counter() - started,
            suspected=index.suspected,
            indexed=indexed,
        )

    def confidence(self, query: str, snapshot: Snapshot) -> float | None:
        """How much use has taught of requests like this one; None where that cannot be told."""
        if self._learned is None:
            return None
        vectors, _ = self._query_vectors(query, self.index_of(snapshot), ())
        try:
            return None if vectors is None else self._learned.confidence(vectors[0])
        except ModelError:
            return None

    def _complete(self, snapshot: Snapshot, on_progress: OnProgress | None, cancelled: Cancelled) -> Index:
        """The whole index, built here where nobody else did."""
        if (index := self._known(snapshot)) is not None and index.complete:
            return index
        with self._building:
            index = self._read(snapshot)
            while index.unread:
                if cancelled():
                    raise EmbeddingCancelledError(0, index.unread)
                index = self._read(snapshot, index)
            if index.complete or self._embedder is None:
                return index
            newest = all(known.snapshot.generation <= snapshot.generation for known in self._indexes)
            steps = embedded(index, self._embedder, newest, on_progress, cancelled, calls=self._calls)
            for further in steps:
                index = further
                self._keep(index)
            return index

    def _read(self, snapshot: Snapshot, before: Index | None = None) -> Index:
        """An index of the snapshot's words, or a better one that is there; of more words than ``before``."""
        with self._reading:
            known = self._known(snapshot)
            if known is not None and known is not before:
                return known
            latest = before or (self._indexes[0] if self._indexes else None)
            index = read(snapshot, self._embedder is not None, latest, calls=self._calls)
            self._keep(index)
            return index

    def _keep(self, index: Index) -> None:
        with self._changing:
            others = [known for known in self._indexes if known.snapshot is not index.snapshot]
            newest_first = sorted((index, *others), key=lambda known: -known.snapshot.generation)
            self._indexes = tuple(newest_first[:INDEXES_KEPT])

    def _known(self, snapshot: Snapshot) -> Index | None:
        return next((index for index in self._indexes if index.snapshot is snapshot), None)

    def _query_vectors(
        self, query: str, index: Index, history: Sequence[str]
    ) -> tuple[NDArray[np.float32] | None, str | None]:
        if index.dense is None or self._query_embedder is None:
            return None, index.note
        try:
            return query_vectors(query, self._query_embedder.embed, history), None
        except ModelError as error:
            return None, self._give_up(index, error)

    def _supports(
        self, index: Index, vectors: NDArray[np.float32] | None, method: Method
    ) -> Mapping[int, Support]:
        """What use says for items of an index, by position."""
        if self._learned is None or vectors is None or method != "hybrid":
            return NO_SUPPORT
        try:
            found = self._learned.supported(vectors[0])
        except ModelError:
            return NO_SUPPORT
        return dict(_by_item(index, found))

    def _novel_in(self, index: Index) -> Mapping[int, float]:
        """What new tools of an index have more, by position."""
        if self._novel is None:
            return NOTHING_NEW
        try:
            return dict(_by_item(index, self._novel()))
        except ModelError:
            return NOTHING_NEW

    def _give_up(self, index: Index, error: ModelError) -> str | None:
        """A model that failed for good is not asked again until the catalog changes."""
        lexical = lexical_only(index, error)
        if error.passing:
            return lexical.note
        with self._changing:
            self._indexes = tuple(lexical if known is index else known for known in self._indexes)
        return lexical.note


def _by_item(index: Index, by_tool: Mapping[tuple[str, str], T]) -> Iterator[tuple[int, T]]:
    """Values by server and own name of a tool, by its position."""
    for item in index.named_any(name_key(name) for _, name in by_tool):
        tool = index.items[item]
        if isinstance(tool, Tool) and (tool.server, tool.name) in by_tool:
            yield item, by_tool[tool.server, tool.name]


def _unfinished(indexed: tuple[int, int], unread: int, filters: Filters) -> str | None:
    """How far indexing is, for who reads the results."""
    (done, total), what = indexed, "tools" if filters.kinds == frozenset({Kind.TOOL}) else "items"
    if unread:
        return f"indexing has begun: {unread:,} {what} could not be searched yet"
    return (
        None if done == total else f"{done:,} of {total:,} {what} are indexed; the rest was searched by words"
    )
