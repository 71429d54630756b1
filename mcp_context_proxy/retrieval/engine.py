"""The search engine: the one way from a query to ranked items. Knows no session and no protocol; blocks.

Several searches may run at once in worker threads, each with the index it began with. One index is built at a
time: a caller that needs all of it waits, and one that has no time searches the finished part and says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Kind, Snapshot, Tool, ToolKey
from mcp_context_proxy.retrieval.index import Filters, Index, lexical_only
from mcp_context_proxy.retrieval.indexing import Calls, Cancelled, OnProgress, embedded, read
from mcp_context_proxy.retrieval.query_scores import PreparedQuery, QueryScores
from mcp_context_proxy.retrieval.relevance import Calibration
from mcp_context_proxy.retrieval.results import Learned, Ranking, Result, SearchOptions, Support
from mcp_context_proxy.retrieval.text import content_words, name_key, query_texts

SUSPECTS_LAST = 1
"""Suspected tools that come after others that fit, where a selection has room: one is enough to be seen."""

PLACES_BEFORE_SUSPECTS = 5
"""Places of other tools before it, even where fewer would have been selected: it must not displace any. Also
the lowest number of places where suspected tools are ranked among others."""

SHARE_OF_SUSPECTS = 0.5
"""Share of the places of a selection that suspected tools may have where no others fit."""

HISTORY_DECAY = 0.5
"""Factor of the weight of an earlier query with each step back."""

INDEXES_KEPT = 2
"""The latest snapshot's, and that of requests still using the one before; they share what did not change."""

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
Novel = Callable[[], Mapping[ToolKey, float]]
"""Returns the additions for new tools, by server and own name."""

T = TypeVar("T")

_EVERYTHING = Filters()
_DEFAULTS = SearchOptions()


class Engine:
    """Finds items of a snapshot. Owns the indexes, not the embeddings: those belong to the sources."""

    def __init__(
        self,
        embedder: Embedder | None,
        query_embedder: Embedder | None = None,
        *,
        calibration: Calibration = "anything",
        calls: Calls = lambda _key: 0,
        learned: Learned | None = None,
        novel: Novel | None = None,
    ) -> None:
        """Prepare an engine.

        Args:
            embedder: Embeds texts of the catalog; None searches by words alone.
            query_embedder: Embeds queries, which should not end up in a store; by default the same.
            calibration: Decides how near an item must be to be meant, which depends on the model.
            calls: Returns how often a source was used; the most used are indexed first.
            learned: Tools used for earlier queries; None for nothing.
            novel: Returns additions for new tools; None where novelty does not matter.
        """
        self._embedder, self._query_embedder = embedder, query_embedder or embedder
        self._calibration, self._calls = calibration, calls
        self._learned, self._novel = learned, novel
        self._building, self._reading = threading.Lock(), threading.Lock()
        self._changing = threading.Lock()
        self._indexes: tuple[Index, ...] = ()

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
        """Rank the items of a snapshot for a query.

        Args:
            query: A need in anybody's words, or the name of a tool.
            snapshot: The catalog.
            filters: Constraints on the items that are considered.
            options: Method and number of results.
            on_progress: Called with the progress of indexing, where the search does it.
            wait: Whether to index everything first, or to use the part that is ready.
            history: Earlier queries, the latest first: they pull the query as a whole towards them.
        """
        started = time.perf_counter()
        index = self._complete(snapshot, on_progress, lambda: False) if wait else self._read(snapshot)
        vectors, note = None, None
        if options.method != "lexical":
            vectors, note = self._query_vectors(query, index, history)
        prepared = PreparedQuery.of(
            query,
            index,
            vectors=vectors,
            method=options.method,
            supports=self._supports(index, vectors) if options.method == "hybrid" else {},
            novel=self._novel_items(index) if options.explore and vectors is not None else {},
        )
        allowed = index.allowed(filters)
        found = _rank(prepared, allowed, self._calibration, options)
        considered = int(allowed.sum())
        indexed = None
        if not index.complete and not index.note:
            indexed = int((allowed & index.ready).sum()), considered
            note = _progress_note(indexed, index.unread, filters)
        return Ranking(
            query=query,
            results=tuple(found.selected) if found.fits else (),
            considered=considered,
            method="lexical" if vectors is None else options.method,
            note=note,
            fits=found.fits,
            near_misses=() if found.fits else tuple(found.selected),
            others=tuple(found.others),
            best_cosine=found.best_cosine,
            evidence=found.evidence,
            seconds=time.perf_counter() - started,
            suspected=index.suspected,
            indexed=indexed,
        )

    def index(
        self,
        snapshot: Snapshot,
        on_progress: OnProgress | None = None,
        cancelled: Cancelled = lambda: False,
    ) -> None:
        """Index all of a snapshot; searches that do not wait use the finished part meanwhile.

        Raises:
            EmbeddingCancelledError: ``cancelled()`` returned true; the next indexing goes on from there.
        """
        self._complete(snapshot, on_progress, cancelled)

    def index_of(self, snapshot: Snapshot) -> Index:
        """Return a snapshot's index, as far as it is ready."""
        return self._known(snapshot) or self._read(snapshot)

    def indexed(self, snapshot: Snapshot) -> bool:
        """Return whether all of a snapshot is indexed."""
        index = self._known(snapshot)
        return index is not None and index.complete

    def progress(self, snapshot: Snapshot) -> tuple[int, int]:
        """Return how many of a snapshot's items are indexed, and of how many."""
        index = self.index_of(snapshot)
        return int(index.ready.sum()), index.ready.size + index.unread

    def forget(self) -> None:
        """Index everything anew at the next search; embeddings that its sources keep are used again."""
        with self._changing:
            self._indexes = ()

    def state(self, snapshot: Snapshot) -> object | None:
        """Return a value that is equal as long as a search gives the same; None while indexing goes on."""
        index = self._known(snapshot)
        if index is None or not index.complete:
            return None
        try:
            learned = None if self._learned is None else self._learned.generation()
            # The set of new tools, not their additions: these change a score by 0.0002 in an hour.
            novel = None if self._novel is None else frozenset(self._novel())
        except ModelError:
            return None
        return index, learned, novel

    def confidence(self, query: str, snapshot: Snapshot) -> float | None:
        """Return how much is learned of requests like this one, 0 to 1; None where that cannot be told."""
        if self._learned is None:
            return None
        vectors, _ = self._query_vectors(query, self.index_of(snapshot), ())
        try:
            return None if vectors is None else self._learned.confidence(vectors[0])
        except ModelError:
            return None

    def _complete(self, snapshot: Snapshot, on_progress: OnProgress | None, cancelled: Cancelled) -> Index:
        """Return the whole index, built here where no other thread did."""
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
        """Return a known index, or a new one of the snapshot's words; of more words than ``before``."""
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
        """Return the vectors of a query, or None with the reason."""
        if index.dense is None or self._query_embedder is None:
            return None, index.note
        try:
            return query_vectors(query, self._query_embedder.embed, history), None
        except ModelError as error:
            lexical = lexical_only(index, error)
            if not error.passing:  # the model is not asked again until the catalog changes
                with self._changing:
                    self._indexes = tuple(lexical if known is index else known for known in self._indexes)
            return None, lexical.note

    def _supports(self, index: Index, vectors: NDArray[np.float32] | None) -> Mapping[int, Support]:
        """Return the learned support of items, by position."""
        if self._learned is None or vectors is None:
            return {}
        try:
            return dict(_by_item(index, self._learned.supported(vectors[0])))
        except ModelError:
            return {}

    def _novel_items(self, index: Index) -> Mapping[int, float]:
        """Return the additions for new items, by position."""
        try:
            return {} if self._novel is None else dict(_by_item(index, self._novel()))
        except ModelError:
            return {}


def query_vectors(query: str, embed: Embed, history: Sequence[str] = ()) -> NDArray[np.float32] | None:
    """Return one row of norm 1 for each of `text.query_texts`; None for a query without a letter.

    The row of the whole query is the mean of two: of the text, and of its words without stop words. So
    phrases that all queries share ("could you please help me") count half, and the grammar still counts.

    Earlier queries pull it towards them. Their words are not added to those of the query: an old one that is
    rare would outweigh the words of the new query.
    """
    texts = query_texts(query)
    if not texts:
        return None
    words = content_words(texts[0])
    content = [] if words in ("", texts[0]) else [words]
    vectors = embed([*texts, *content, *history])
    rows = vectors[: len(texts)].copy()
    if content:
        rows[0] = _normalised(rows[0] + vectors[len(texts)], rows[0])
    if history:
        weights = HISTORY_DECAY ** np.arange(1, len(history) + 1, dtype=np.float32)
        rows[0] = _normalised(rows[0] + weights @ vectors[-len(history) :], rows[0])
    return rows


def _normalised(vector: NDArray[np.float32], otherwise: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else otherwise


def _by_item(index: Index, by_tool: Mapping[ToolKey, T]) -> Iterator[tuple[int, T]]:
    """Yield values by server and own name of a tool, by its position."""
    if not by_tool:
        return
    for item in index.named([name_key(name) for _, name in by_tool]):
        tool = index.items[item]
        if isinstance(tool, Tool) and (tool.server, tool.name) in by_tool:
            yield item, by_tool[tool.server, tool.name]


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The ranking of tools of trusted and of suspected servers together."""

    selected: Sequence[Result]
    others: Sequence[Result]
    fits: bool
    evidence: float | None
    best_cosine: float | None


def _rank(
    query: PreparedQuery, allowed: NDArray[np.bool_], calibration: Calibration, options: SearchOptions
) -> _Ranked:
    """Rank the allowed items, and demote tools of servers that are suspected of keyword stuffing.

    Suspected tools are scored apart from the others and not left out, for the suspicion may be wrong:

    - Where others fit, the best suspected one comes last, if its score is higher than all of theirs.
    - Where none of the others fits, suspected ones are ranked among them, in at most half of the places.
    - Where there are no others, or the query names a tool or past use speaks for it, it is ranked as usual.
    """
    trusted = allowed
    if query.index.unsuspected is not None:
        trusted = query.index.unsuspected.copy()
        trusted[[*query.supports, *query.named]] = True
        trusted &= allowed
        if not trusted.any():
            trusted = allowed
    scores = QueryScores.of(query, trusted)
    evidence = scores.evidence(calibration)
    fits = scores.fits(calibration, evidence)
    suspected = allowed & ~trusted
    if not suspected.any():
        selected, others = scores.ranked(options)
        return _Ranked(selected, others, fits, evidence, scores.whole)
    suspects = QueryScores.of(query, suspected)
    cosines = [one.whole for one in (scores, suspects) if one.whole is not None]
    results, others = scores.ranked(replace(options, at_least=max(options.at_least, PLACES_BEFORE_SUSPECTS)))
    demoted, more = suspects.ranked(options)
    if fits:
        kept = min(len(results), max(options.most - SUSPECTS_LAST, PLACES_BEFORE_SUSPECTS))
        room = max(0, min(SUSPECTS_LAST, options.most - kept))
        best = max((result.score for result in results), default=0.0)
        taken = [one for one in demoted[:room] if one.score > best]
        kept = kept if taken else len(results)
        selected = [*results[:kept], *taken]
        any_fits = True
    else:
        evidence = suspects.evidence(calibration)
        any_fits = suspects.fits(calibration, evidence)
        places = max(len(results), min(len(demoted), PLACES_BEFORE_SUSPECTS))
        taken = demoted[: max(1, int(SHARE_OF_SUSPECTS * places), places - len(results))]
        kept = places - len(taken)
        selected = sorted([*results[:kept], *taken], key=lambda one: -one.score)
    others = [*results[kept:], *others, *demoted[len(taken) :], *more][
        : max(0, options.depth - len(selected))
    ]
    return _Ranked(selected, others, any_fits, evidence, max(cosines, default=None))


def _progress_note(indexed: tuple[int, int], unread: int, filters: Filters) -> str | None:
    """Return how far indexing is, for a reader of the results."""
    (done, total), kind = indexed, "tools" if filters.kinds == frozenset({Kind.TOOL}) else "items"
    if unread:
        return f"indexing has begun: {unread:,} {kind} could not be searched yet"
    return (
        None if done == total else f"{done:,} of {total:,} {kind} are indexed; the rest was searched by words"
    )
