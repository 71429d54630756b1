"""Search: the one way from a query to ranked items. Knows no session and no protocol; blocks.

Several searches may run at once in worker threads, each with the index it began with. One index is built at a
time: who needs all of it waits, and who has no time searches as much as there is and says so.

Whose tools come first: those of servers that are not suspected of stuffing, where any of them fits.

What is suspected (`stuffing`) is not left out, for the suspicion may be wrong. Where others fit, the best of
it comes last, if it seems to be better than all of them; where they do not, it is ranked among them and has
half of the places; where there is nothing else, all.

The vectors of a query: of the whole of it, then of its sentences.

That of the whole is the mean of two: of the text, and of its words without stop words. What a query shares
with every other ("could you please help me") thereby counts half, and the grammar still counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Kind, Snapshot, Tool
from mcp_context_proxy.retrieval.filters import Filters, allowed
from mcp_context_proxy.retrieval.index import Calls, Index, lexical_only
from mcp_context_proxy.retrieval.indexing import Cancelled, OnProgress, embedded, read
from mcp_context_proxy.retrieval.query_scores import QueryScores
from mcp_context_proxy.retrieval.relevance import Fitting
from mcp_context_proxy.retrieval.results import (
    NO_SUPPORT,
    NOTHING_NEW,
    Learned,
    Method,
    Ranking,
    Result,
    SearchOptions,
    Support,
)
from mcp_context_proxy.retrieval.terms import name_key, telling_words
from mcp_context_proxy.retrieval.text import query_texts

LAST = 1
"""Suspected tools that come after others that fit, where a selection has room: one is enough to be seen."""

AHEAD = 5
"""Others that are before it, also where fewer would have been selected: it should take the place of none. And
places that there are at least where it is ranked among others."""

SHARE = 0.5
"""Of the places of a selection that suspected tools may have where no others fit."""


@dataclass(frozen=True, slots=True, eq=False)
class DemotedRanking:
    """What was scored for a query."""

    first: QueryScores
    """What is not suspected, or where nothing else may be found, all."""
    behind: QueryScores | None
    """What is suspected, where there is something else."""
    evidence: float | None
    """How much says that any of it is meant (`fitting`)."""
    fits: bool
    first_fits: bool
    """Whether something is meant of what is not suspected."""

    @property
    def best_cosine(self) -> float | None:
        """The highest of the whole query with anything."""
        cosines = [
            one.whole for one in (self.first, self.behind) if one is not None and one.whole is not None
        ]
        return max(cosines, default=None)

    def ranked(self, options: SearchOptions) -> tuple[list[Result], list[Result]]:
        """Those selected, and what follows them down to the depth asked for; best first."""
        if self.behind is None:
            return _ranked(self.first, options)
        results, others = _ranked(self.first, replace(options, at_least=max(options.at_least, AHEAD)))
        suspects, more = _ranked(self.behind, options)
        kept, taken = (_last if self.first_fits else _among)(results, suspects, options)
        found = [*results[:kept], *taken]
        if not self.first_fits:
            found.sort(key=lambda one: -one.score)
        others = [*results[kept:], *others, *suspects[len(taken) :], *more]
        return found, others[: max(0, options.depth - len(found))]


def answer(
    score: Callable[[NDArray[np.bool_]], QueryScores],
    index: Index,
    met: NDArray[np.bool_],
    known: Callable[[], Collection[int]],
    fitting: Fitting,
) -> DemotedRanking:
    """Score what meets the filters.

    Args:
        score: Scores those items of the index that are marked.
        index: What there is.
        met: Which of its items meet the filters.
        known: Finds items that no suspicion holds back: the query is their name, or they were used for such
            a one. Only asked where there is a suspicion.
        fitting: What counts as near enough to be meant.
    """
    first = met
    if index.unsuspected is not None:
        first = index.unsuspected.copy()
        first[list(known())] = True
        first &= met
    if not first.any():
        first = met
    scored, behind = score(first), met & ~first
    evidence = scored.evidence(fitting)
    fits = scored.fits(fitting, evidence)
    if not behind.any():
        return DemotedRanking(scored, None, evidence, fits, fits)
    suspects = score(behind)
    if fits:
        return DemotedRanking(scored, suspects, evidence, fits, fits)
    evidence = suspects.evidence(fitting)
    return DemotedRanking(scored, suspects, evidence, suspects.fits(fitting, evidence), fits)


def _last(
    results: Sequence[Result], suspects: Sequence[Result], options: SearchOptions
) -> tuple[int, Sequence[Result]]:
    """How many of the results stay, and the suspects that come after them."""
    best = max((result.score for result in results), default=0.0)
    kept = min(len(results), max(_most(options) - LAST, AHEAD))
    room = max(0, min(LAST, _most(options) - kept))
    taken = [one for one in suspects[:room] if one.score > best]
    return (kept if taken else len(results)), taken


def _among(
    results: Sequence[Result], suspects: Sequence[Result], _options: SearchOptions
) -> tuple[int, Sequence[Result]]:
    """How many of the results stay, and the suspects that are ranked among them."""
    places = max(len(results), min(len(suspects), AHEAD))
    taken = suspects[: max(1, int(SHARE * places), places - len(results))]
    return places - len(taken), taken


def _most(options: SearchOptions) -> int:
    """How many items may be selected."""
    if options.share_of_best is not None:
        return options.at_most
    return options.top_n if isinf(options.include_score) else options.top_k


def _ranked(scored: QueryScores, options: SearchOptions) -> tuple[list[Result], list[Result]]:
    selected = scored.selected(options)
    results = [scored.result(place) for place in selected]
    return results, [scored.result(place) for place in scored.following(selected, options)]


Embed = Callable[[Sequence[str]], NDArray[np.float32]]


HISTORY_DECAY = 0.5
"""Of the weight of what was asked before, with each step back."""


def query_vectors(query: str, embed: Embed, history: Sequence[str] = ()) -> NDArray[np.float32] | None:
    """One row of norm 1 for each of `query_texts`; None for a query without a letter.

    What was asked before, the latest first, pulls the whole towards it. Its words do not join those of the
    query: an old one that is rare would outweigh what is asked now.
    """
    texts = query_texts(query)
    if not texts:
        return None
    words = telling_words(texts[0])
    telling = [] if words in ("", texts[0]) else [words]
    vectors = embed([*texts, *telling, *history])
    rows = vectors[: len(texts)].copy()
    if telling:
        rows[0] = _normal(rows[0] + vectors[len(texts)], rows[0])
    if history:
        weights = HISTORY_DECAY ** np.arange(1, len(history) + 1, dtype=np.float32)
        rows[0] = _normal(rows[0] + weights @ vectors[-len(history) :], rows[0])
    return rows


def _normal(vector: NDArray[np.float32], otherwise: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else otherwise


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
        embedder: Embedder | None,
        query_embedder: Embedder | None = None,
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
            lambda places: QueryScores.of(query, index, vectors, places, options.method, supports, novel),
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
