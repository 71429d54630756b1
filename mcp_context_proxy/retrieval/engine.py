"""The search engine: the one way from a query to ranked items, and copies among them. Blocks.

Several searches may run at once in worker threads, each with the index it began with. One index is built at a
time: a caller that needs all of it waits, and one that has no time searches the finished part and says so.

Whoever comes later must not take the calls of another server's tools by a few words more.
A search puts such a tool after its original, and ``check`` names both to a person.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.embedding import Embedder
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Kind, Snapshot, Tool, ToolKey
from mcp_context_proxy.retrieval import Learned, Ranking, Result, SearchOptions, Support
from mcp_context_proxy.retrieval.index import Filters, Index, QueryWords, Sketch, lexical_only
from mcp_context_proxy.retrieval.indexing import (
    Ahead,
    Calls,
    Cancelled,
    OnProgress,
    embedded,
    likely_items,
    progress_note,
    read,
    with_likely,
)
from mcp_context_proxy.retrieval.query_scores import (
    COPY_COSINE,
    YOUNGER_SECONDS,
    PreparedQuery,
    QueryScores,
    ages_of,
    younger,
)
from mcp_context_proxy.retrieval.scoring import (
    DOUBT_OF_TOLD,
    WORTH_OTHER_WORDS,
    Background,
    Calibration,
    count_selected,
    rivals_of,
    spare_evidence,
)
from mcp_context_proxy.retrieval.text import in_other_words, name_key
from mcp_context_proxy.retrieval.vectors import query_vectors
from mcp_context_proxy.system.later import NDArray, np

if TYPE_CHECKING:
    from mcp_context_proxy.retrieval.queries import ReadQuery


PLACES_BEFORE_SUSPECTS = 5
"""Places of other tools before suspected ones, even where fewer would have been selected: they must not
displace any. Also the lowest number of places where suspected tools are ranked among others."""

HALF_AS_NEAR = 0.5
"""Share of the score of the best suspected tool from which on another tool, beside the best, comes before it:
what is less near than that only fills places."""

SHARE_OF_SUSPECTS = 0.5
"""Share of the places of a selection that suspected tools may have where no others fit."""

NEARER_WITHOUT = 0.03
"""Cosine by which a request without its story must be nearer to a tool to be read without it."""

INDEXES_KEPT = 2
"""The latest snapshot's, and that of requests still using the one before; they share what did not change."""
Novel = Callable[[], Mapping[ToolKey, float]]
"""Returns the additions for new tools, by server and own name."""

NO_SYNONYMS: Mapping[str, str] = {}

T = TypeVar("T")

ANY_QUERY = "find the open issues about it"

QUERIES_KEPT = 4
"""Latest queries that are not read again: one request searches tools and documents and asks for more."""

_EVERYTHING = Filters()
_DEFAULTS = SearchOptions()


class _Understood(Struct, frozen=True, eq=False):
    """A query as it was read against one index."""

    index: Index
    question: tuple[str, frozenset[tuple[Kind, str]], Mapping[str, str]]
    """The query, the hidden items and the configured words that it was read with."""
    query: ReadQuery
    words: QueryWords


class Engine:
    """Finds items of a snapshot. Owns the indexes."""

    def __init__(
        self,
        embedder: Embedder | None,
        query_embedder: Embedder | None = None,
        *,
        calibration: Calibration = "anything",
        calls: Calls = lambda _key: 0,
        learned: Learned | None = None,
        novel: Novel | None = None,
        stands_for: Mapping[str, str] = NO_SYNONYMS,
        sketch: Sketch = lambda _texts: None,
    ) -> None:
        """Prepare an engine.

        The query embedder (by default the same) embeds queries, which should not end up in a store; without a
        model words alone are searched. The calibration decides how near an item must be to be meant, which
        depends on the model. Sketches tell which tools of an unfinished index are embedded first.
        """
        self._embedder, self._query_embedder = embedder, query_embedder or embedder
        self._calibration, self._calls, self._sketch = calibration, calls, sketch
        self._learned, self._novel = learned, novel
        self.stands_for = stands_for
        """Configured words of queries, in lower case, each with the words that it stands for."""
        self._building, self._reading = threading.Lock(), threading.Lock()
        self._changing = threading.Lock()
        self._indexes: tuple[Index, ...] = ()
        self._ahead = Ahead()
        self._latest: tuple[_Understood, ...] = ()

    def search(
        self,
        query: str,
        snapshot: Snapshot,
        filters: Filters = _EVERYTHING,
        options: SearchOptions = _DEFAULTS,
        on_progress: OnProgress | None = None,
        wait: bool = True,
        history: Sequence[str] = (),
        ahead: float = 0.0,
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
            ahead: Seconds for which a search that does not wait may embed what it is likely to find, where
                that has no vectors yet.
        """
        started = time.perf_counter()
        if snapshot.hidden:
            filters = replace(filters, without=filters.without | snapshot.hidden)
        index = self.index(snapshot, on_progress) if wait else self.index_of(snapshot)
        allowed = index.allowed(filters)
        understood, words = self._read_query(query, index, snapshot)
        written, vectors, note = understood.written, None, None
        if options.method != "lexical":
            read = [self._read_query(one, index, snapshot) for one in (query, *understood.cores)]
            (vectors, *others), note = self._query_vectors([q for q, _ in read], index, history, ahead > 0)
            for (core, of_core), rows in zip(read[1:], others, strict=True):
                if vectors is None or rows is None:
                    continue
                gain = index.nearness(rows[0], allowed) - index.nearness(vectors[0], allowed)
                if gain > NEARER_WITHOUT:
                    understood, words, vectors = core, of_core, rows
        supports, novel = dict[int, Support](), dict[int, float]()
        with_learned = options.learned and options.method == "hybrid"
        if self._learned is not None and vectors is not None and with_learned:
            supports = _by_item(index, partial(self._learned.supported, vectors[0], understood.unlike(query)))
        if self._novel is not None and vectors is not None and options.explore:
            novel = _by_item(index, self._novel)
        begun, likely = index, 0
        if ahead and vectors is not None and not index.complete and not index.note:
            certain = {*supports, *words.named}
            index, likely = self._with_likely(index, understood, words, vectors, allowed, certain, ahead)
        rivals = None
        if vectors is not None and isinstance(self._calibration, Background):
            rivals = rivals_of(vectors[0], self._calibration)
        prepared = PreparedQuery(understood, index, words, vectors, rivals, options.method, supports, novel)
        found = _rank(prepared, allowed, self._calibration, options)
        considered = int(np.count_nonzero(allowed))
        spare = spare_evidence(found.evidence, considered)
        retold = [understood.alone] if spare < DOUBT_OF_TOLD else []
        if not found.fits and (found.evidence or 0.0) >= WORTH_OTHER_WORDS:
            retold.append(in_other_words(written, self._has(index, snapshot)))
        for other in filter(None, retold):
            again = self.search(other, snapshot, filters, options, on_progress, wait, history, ahead)
            if again.fits and not found.fits:
                again = replace(again, query=query, read_as=again.read_as or other)
                return replace(again, seconds=time.perf_counter() - started)
            if spare >= 0 and not words.named and not supports:
                found = replace(found, fits=again.fits)
        indexed = None
        if not begun.complete and not begun.note:
            indexed = int((allowed & begun.ready).sum()), considered
            kind = "tools" if filters.kinds == frozenset({Kind.TOOL}) else "items"
            note = progress_note(index.unread, likely, *indexed, kind)
        return Ranking(
            query=query,
            results=tuple(found.selected) if found.fits else (),
            considered=considered,
            likely=likely,
            method="lexical" if vectors is None else options.method,
            note=note,
            fits=found.fits,
            near_misses=() if found.fits else tuple(found.selected),
            others=tuple(found.others),
            best_cosine=found.best_cosine,
            evidence=found.evidence,
            unaided=found.unaided,
            seconds=time.perf_counter() - started,
            suspected=index.suspected,
            indexed=indexed,
            read_as=understood.read_as or (None if understood.written == written else understood.written),
        )

    def index(
        self,
        snapshot: Snapshot,
        on_progress: OnProgress | None = None,
        cancelled: Cancelled = lambda: False,
    ) -> Index:
        """Index all of a snapshot; searches that do not wait use the finished part meanwhile.

        Raises:
            EmbeddingCancelledError: ``cancelled()`` returned true; the next indexing goes on from there.
        """
        snapshot = snapshot.part_of or snapshot
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

            def ended() -> bool:
                self._ahead.let_pass()
                return cancelled()

            rows = self._ahead.rows(index.pool)
            steps = embedded(index, self._embedder, on_progress, ended, calls=self._calls, ahead=rows)
            for further in steps:
                index = further
                self._keep(index)
            # A first search would wait for the patterns with which queries are read.
            self._read_query(ANY_QUERY, index, snapshot)
            return index

    def index_of(self, snapshot: Snapshot) -> Index:
        """Return a snapshot's index, as far as it is ready."""
        return self._known(snapshot) or self._read(snapshot.part_of or snapshot)

    def indexed(self, snapshot: Snapshot) -> bool:
        index = self._known(snapshot)
        return index is not None and index.complete

    def progress(self, snapshot: Snapshot) -> tuple[int, int]:
        """Return how many of a snapshot's items are indexed, and of how many."""
        index = self.index_of(snapshot)
        return int(index.ready.sum()), index.ready.size + index.unread

    def forget(self) -> None:
        """Index everything anew at the next search."""
        with self._changing:
            self._indexes = self._latest = ()

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
        return index, learned, novel, self.stands_for

    def confidence(self, query: str, snapshot: Snapshot) -> float | None:
        """Return how much is learned of requests like this one, 0 to 1; None where that cannot be told."""
        if self._learned is None:
            return None
        index = self.index_of(snapshot)
        understood, _ = self._read_query(query, index, snapshot)
        (vectors,), _ = self._query_vectors([understood], index)
        try:
            return None if vectors is None else self._learned.confidence(vectors[0], understood.unlike(query))
        except ModelError:
            return None

    def passages(self, snapshot: Snapshot) -> int:
        """Return the number of chunks of all rules and references."""
        return self.index_of(snapshot).passages()

    def elsewhere(self, query: str, snapshot: Snapshot) -> float | None:
        """Return the cosine of a query with tools of other catalogs; None without a background."""
        if not isinstance(self._calibration, Background):
            return None
        index = self.index_of(snapshot)
        (vectors,), _ = self._query_vectors([self._read_query(query, index, snapshot)[0]], index, ahead=True)
        return None if vectors is None else float(rivals_of(vectors[0], self._calibration).cosines[0])

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
            # Otherwise these would keep the indexes of earlier snapshots: 9 MB each for 100,000 tools.
            self._latest = tuple(known for known in self._latest if known.index in self._indexes)

    def _known(self, snapshot: Snapshot) -> Index | None:
        whole = snapshot.part_of or snapshot
        return next((index for index in self._indexes if index.snapshot is whole), None)

    def _read_query(self, query: str, index: Index, snapshot: Snapshot) -> tuple[ReadQuery, QueryWords]:
        """Return a query as it is understood, and what its words tell."""
        question = query, snapshot.hidden, self.stands_for
        for known in self._latest:
            if known.index is index and known.question == question:
                return known.query, known.words
        # Most of what it takes to read a query is not needed before the first one.
        from mcp_context_proxy.retrieval.needs import address_of  # noqa: PLC0415
        from mcp_context_proxy.retrieval.queries import read_query  # noqa: PLC0415

        # A model of one's own may know other languages.
        translates = self._query_embedder is None or isinstance(self._calibration, Background)
        has, catalog = self._has(index, snapshot), index.words
        if snapshot.hidden:  # no word is corrected to one that only hidden items have, and none left for one
            catalog = cache(partial(index.words_of, index.allowed(Filters(without=snapshot.hidden))))
        calls = index.calls(snapshot.hidden)
        address = address_of(query, calls)
        wanted = query if address is None else address.wanted
        understood = read_query(wanted, has, catalog, self.stands_for, translates)
        if address is not None:
            understood = understood.addressing(address.name, query)
        read = _Understood(index, question, understood, QueryWords.of(understood, index, calls, address))
        # Assigned at once: another thread may read meanwhile, and at worst one of two readings is lost.
        self._latest = (read, *self._latest[: QUERIES_KEPT - 1])
        return read.query, read.words

    def _has(self, index: Index, snapshot: Snapshot) -> Callable[[str], bool]:
        """Return what tells whether items of a snapshot, but no hidden ones, have an index term."""
        seen = index.allowed(Filters(without=snapshot.hidden)) if snapshot.hidden else None
        return index.lexical.has if seen is None else partial(index.lexical.has_among, items=seen)

    def _with_likely(
        self,
        index: Index,
        query: ReadQuery,
        words: QueryWords,
        vectors: NDArray[np.float32],
        allowed: NDArray[np.bool_],
        certain: Collection[int],
        seconds: float,
    ) -> tuple[Index, int]:
        """Return an unfinished index with the vectors of the items that a query is likely to mean.

        Returns their number as well: 0 if it cannot be done, or not in so many seconds.
        """
        if self._embedder is None:
            return index, 0
        try:
            with self._ahead.turn():
                sketches = index.sketched(self._sketch)
                likely = likely_items(index, query, words.lexical, vectors, sketches, allowed, certain)
                found = with_likely(index, likely, self._ahead, self._embedder, seconds) if likely else index
        except ModelError:
            return index, 0
        return found, len(likely) if found.complete else 0

    def _query_vectors(
        self, queries: Sequence[ReadQuery], index: Index, history: Sequence[str] = (), ahead: bool = False
    ) -> tuple[list[NDArray[np.float32] | None], str | None]:
        """Return the vectors of queries, which are embedded together, or a None for each with the reason."""
        nothing_embedded = index.dense is None and (index.complete or bool(index.note) or not ahead)
        if nothing_embedded or self._query_embedder is None:
            return [None for _ in queries], index.note
        try:
            texts = [(one.texts, one.beside) for one in queries]
            return query_vectors(texts, self._query_embedder.embed, history), None
        except ModelError as error:
            lexical = lexical_only(index, error)
            if not error.passing:  # the model is not asked again until the catalog changes
                with self._changing:
                    self._indexes = tuple(lexical if known is index else known for known in self._indexes)
            return [None for _ in queries], lexical.note


def _by_item(index: Index, values: Callable[[], Mapping[ToolKey, T]]) -> dict[int, T]:
    """Return values of tools by position in the index; none where the model that they come from fails."""
    try:
        by_tool = values()
    except ModelError:
        return {}
    found = {}
    for item in index.named([name_key(name) for _, name in by_tool]) if by_tool else ():
        tool = index.items[item]
        if isinstance(tool, Tool) and (tool.server, tool.name) in by_tool:
            found[item] = by_tool[tool.server, tool.name]
    return found


class _Ranked(Struct, frozen=True):
    """The ranking of tools of trusted and of suspected servers together."""

    selected: Sequence[Result]
    others: Sequence[Result]
    fits: bool
    evidence: float | None
    best_cosine: float | None
    unaided: float


def _rank(
    query: PreparedQuery, allowed: NDArray[np.bool_], calibration: Calibration, options: SearchOptions
) -> _Ranked:
    """Rank the allowed items, and demote tools of servers that are suspected of keyword stuffing.

    Suspected tools are scored apart from the others and not left out, for the suspicion may be wrong:

    - Where others fit, those that would have been selected come last: the best one of each suspected server,
      and more if there are few others. ``top_n`` and ``include_score`` hold for all of them together. Only
      what is less than `HALF_AS_NEAR` comes after them.
    - Where none of the others fits, suspected ones are ranked among them, in at most half of the places.
    - Where there are no others, or the query names a tool or past use speaks for it, it is ranked as usual.
    """
    trusted = allowed
    if query.index.unsuspected is not None:
        trusted = query.index.unsuspected & allowed
        if not trusted.any():
            # Neither past use nor a name may raise one tool so that the suspicion counts against the others.
            trusted = allowed
        else:
            spoken_for = np.zeros_like(allowed)
            spoken_for[[*query.supports, *query.words.named]] = True
            trusted |= spoken_for & allowed
    scores = QueryScores(query, trusted)
    evidence, unaided = scores.evidence(calibration)
    fits = scores.fits(calibration, evidence)
    suspected = allowed & ~trusted
    if not suspected.any():
        selected, others = scores.ranked(options)
        ranked = _Ranked(selected, others, fits, evidence, scores.whole, unaided)
        return _with_serving(ranked, scores, options)
    suspects = QueryScores(query, suspected)
    cosines = [one.whole for one in (scores, suspects) if one.whole is not None]
    results, others = scores.ranked(replace(options, at_least=max(options.at_least, PLACES_BEFORE_SUSPECTS)))
    demoted, more = suspects.ranked(options)
    if fits:
        wanted = _selected_unless_suspected(results, demoted, options)
        best = {one.item.server: one for one in reversed(wanted) if isinstance(one.item, Tool)}
        first = [*best.values()]
        if options.share_of_best is None:
            selected = _first_by_number(results, demoted, first, options)
        else:
            kept = min(len(results), max(options.most - len(first), PLACES_BEFORE_SUSPECTS))
            room = min(options.most - kept, max(len(first), PLACES_BEFORE_SUSPECTS - kept))
            wanted.sort(key=lambda one: one not in first)
            taken = sorted(wanted[: max(0, room)], key=lambda one: -one.score)
            near = _number_near(results[:kept], taken)
            selected = [*results[:near], *taken, *results[near:kept]]
    else:
        evidence, unaided = suspects.evidence(calibration)
        fits = suspects.fits(calibration, evidence)
        places = max(len(results), min(len(demoted), PLACES_BEFORE_SUSPECTS))
        taken = demoted[: max(1, int(SHARE_OF_SUSPECTS * places), places - len(results))]
        selected = sorted([*results[: places - len(taken)], *taken], key=lambda one: -one.score)
    left = [one for one in (*results, *others, *demoted, *more) if one not in selected]
    others = left[: max(0, options.depth - len(selected))]
    ranked = _Ranked(selected, others, fits, evidence, max(cosines, default=None), unaided)
    return _with_serving(ranked, scores, options)


def _with_serving(ranked: _Ranked, scores: QueryScores, options: SearchOptions) -> _Ranked:
    """Return the tools that serve the general purpose of a request that nothing fits, such as a web search.

    Where it is in doubt whether anything fits, the best of them is added, unless the number is set.
    """
    if scores.is_certain(ranked.evidence) or not (serving := scores.serving()):
        return ranked
    if not ranked.fits:
        return replace(ranked, selected=serving[: options.most], others=(), fits=True)
    if options.share_of_best is None or serving[0].item in [one.item for one in ranked.selected]:
        return ranked
    others = [one for one in ranked.others if one.item is not serving[0].item]
    return replace(ranked, selected=[*ranked.selected, serving[0]], others=others)


def _first_by_number(
    results: Sequence[Result], demoted: Sequence[Result], first: Sequence[Result], options: SearchOptions
) -> list[Result]:
    """Return ``top_n`` results, and those beyond that are selected for their cosine.

    Results that are far from what is meant give way to ``first``, the best tool of each suspected server.
    """
    near = _number_near(results, demoted)
    ordered = [*results[:near], *first, *results[near:], *(one for one in demoted if one not in first)]
    return [one for place, one in enumerate(ordered) if place < options.top_n or _is_near(one, options)]


def _number_near(results: Sequence[Result], suspects: Sequence[Result]) -> int:
    """Return how many results come before suspected tools: the best, and those that are not far from it.

    A request that is copied into a description is nearer than anything honest. So where the best result is
    not far from the suspected tools itself, the others are compared with it.
    """
    nearest = max((one.score for one in suspects), default=0.0)
    if results and results[0].score >= HALF_AS_NEAR * nearest:
        nearest = min(nearest, results[0].score)
    return len(results[:1]) + sum(one.score >= HALF_AS_NEAR * nearest for one in results[1:])


def _is_near(result: Result, options: SearchOptions) -> bool:
    """Return whether a result is selected for its cosine, whatever the number of results."""
    return result.cosine is not None and result.cosine >= options.include_score


def _selected_unless_suspected(
    results: Sequence[Result], demoted: Sequence[Result], options: SearchOptions
) -> list[Result]:
    """Return the suspected tools that would have been selected among all others, best first."""
    together = sorted([*results, *demoted], key=lambda one: -one.score)
    best = max((one.proven for one in together), default=0.0)
    count = count_selected(np.array([one.score for one in together], np.float32), options, best)
    ranked = together[:count]
    return [one for one in demoted if one in ranked or _is_near(one, options)]


BLOCK: Final = 256
"""Tools that are compared with all others at a time."""

COMPARED: Final = 20_000
"""Tools of a catalog that are compared with each other: some seconds."""


class Copy(Struct, frozen=True):
    """A tool, and the one of an older server that it says the same as."""

    tool: Tool
    original: Tool


def copies(index: Index) -> Iterator[Copy]:
    """Yield each tool that says nearly the same as one of an older server, with the nearest such.

    Equal definitions are two accounts of one service; an answer tells them as one, and names both. Without
    vectors nothing can be told.
    """
    ready = np.flatnonzero(index.ready).tolist()
    places = [at for at in ready if isinstance(index.items[at], Tool)][:COMPARED]
    ages = ages_of([index.items[at] for at in places], index)
    if index.dense is None or not younger_servers(index.snapshot):
        return
    tools = [one for at in places if isinstance(one := index.items[at], Tool)]
    vectors = index.dense.first_of(np.array(places))
    for start in range(0, len(tools), BLOCK):
        block = slice(start, start + BLOCK)
        cosines = vectors[block] @ vectors.T
        cosines[~younger(ages[block], ages)] = 0
        for tool, row in zip(tools[block], cosines, strict=True):
            original = tools[int(row.argmax())]
            if row.max() >= COPY_COSINE and original.written != tool.written:
                yield Copy(tool, original)


def younger_servers(snapshot: Snapshot) -> bool:
    """Return whether a server of some tools is younger than that of others."""
    servers = {tool.server for tool in snapshot.tools.values()}
    ages = [snapshot.first_seen.get((server, ""), 0.0) for server in servers]
    return bool(ages) and max(ages) - min(ages) >= YOUNGER_SECONDS
