"""Builds the index of a snapshot: first the words, then the vectors, both a few items at a time.

The sources take turns, so that none waits long for a larger one: each gets a first batch, small ones before
large ones and the most used ones first, and then the rest follows, that of the shortest first. A server with
ten thousand long descriptions is read last, however much it is used.

Every step returns an index that can be searched, and whoever runs it may stop between two steps. Nothing here
knows threads. Vectors whose texts are still wanted are taken from the index before, the others are embedded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from mcp_context_proxy.embedding import Embedder, Matrix
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import (
    IncludeMode,
    Item,
    Kind,
    Snapshot,
    Source,
    Tool,
)
from mcp_context_proxy.retrieval.bm25 import (
    LexicalScores,
    TermCounts,
    count_terms,
    join_counts,
)
from mcp_context_proxy.retrieval.index import (
    KINDS,
    Identity,
    Index,
    Part,
    Reading,
    Sketches,
    assemble,
    lexical_only,
    with_vectors,
)
from mcp_context_proxy.retrieval.item_metadata import Fields, effect_of, item_text, metadata_of
from mcp_context_proxy.retrieval.keyword_stuffing import Evidence, is_trusted
from mcp_context_proxy.retrieval.text import encodable, identifier_words, name_key, terms, words
from mcp_context_proxy.retrieval.vectors import NOWHERE, DenseIndex, Pool, best, dots, small_numbers
from mcp_context_proxy.system.later import NDArray, np
from mcp_context_proxy.system.process import trim_now

if TYPE_CHECKING:
    from mcp_context_proxy.retrieval.queries import ReadQuery

READING_SECONDS = 0.7
"""Time for which words are read before they can be searched: some 5,000 tools."""

BATCH_ITEMS = 64
"""Items whose words are read in one go: some 10 ms."""

TEXTS_KEPT = 10_000
"""Items of a catalog up to which the texts of tools are kept until they are embedded: 5 MB, most of which
Python would keep after them. In a larger one they are made again, in 0.05 ms each."""

WORDS_OF_BATCH = 5_000
"""Words of the names of a batch with which queries are corrected; real ones have some 300."""

BATCH_BYTES = 65_536
"""Length of their definitions or texts, after which no more is taken: some 20 ms, however they are made."""

FIRST_ITEMS = 256
"""Items of a source that are embedded before the rest of any other source. A source with no more is small."""

TEXTS_A_STEP = 256
"""Texts embedded at a time: a third of a second on two cores, or a few milliseconds where their vectors are
stored. Cancellation is checked each time that progress is reported."""

SECONDS_BETWEEN = 1.0
"""Shortest time between two unfinished indexes: newer vectors are of no use to a search that began before."""

SHARE_ASSEMBLING = 0.1
"""Share of the time of embedding that unfinished indexes may cost."""

ROWS_TO_SPARE = 4_096
"""Unused vectors that are always tolerated: 6 MB."""

TEXTS_TO_TRIM_FOR = 10_000
"""Texts to embed from which on memory is trimmed first: reading as many tools left some 10 MB free."""

NOTHING_AHEAD: Mapping[str, int] = {}

NO_MODEL = "No embedding model is configured; searched by words only."

INSTRUCTION_CHARACTERS = 500
"""Characters of a server's instructions that are searched: the first sentences say what it is for."""

INSTRUCTION_TERMS = 60
"""Terms of them that are kept."""

LIKELY = 20
"""Tools that are embedded for one search while indexing goes on: the best by words, and as many by sketches.
Put to the 33 recorded lists as unknown ones, people's requests are then answered as when all is embedded
(``benchmarks/people.py --unembedded``). Half as many are hardly worse, twice as many no better."""

LIKELY_OF_A_NEED = 8
"""The same for each of several needs."""

MANY_CHUNKS = 12
"""Texts of a tool above which it is embedded after the others: it may be made to take their time."""

TEXTS_AHEAD = 32
"""Texts embedded for a search between two looks at the clock: a tenth of a second."""

LONGEST_BATCH = 3.0
"""Seconds for which a search waits for such texts. A service may answer queries at once and take a minute for
many texts, or never answer."""

LONGEST_TURN = 1.0
"""Seconds for which indexing waits for searches that embed something, before it goes on beside them."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with how many texts are embedded, and of how many."""

Cancelled: TypeAlias = Callable[[], bool]
"""Returns whether to stop; called between two steps."""

Calls: TypeAlias = Callable[[str], int]
"""Returns how often the items of a source, given by its key, were used: the most used are indexed first."""


def read(
    snapshot: Snapshot,
    with_model: bool,
    previous: Index | None,
    seconds: float = READING_SECONDS,
    calls: Calls = lambda _key: 0,
) -> Index:
    """Index the words of a snapshot, and the vectors that its sources have.

    Stops after ``seconds`` and the batch it is at, but not before one batch is read; the next call goes on
    from there.
    """
    # The kind as plain text: an enumeration is hashed in Python, and there may be thousands of sources.
    sources = {(one.key, str(one.items[0].kind) if one.items else ""): one for one in snapshot.sources}
    several = sum(kind == Kind.TOOL for _, kind in sources) > 1
    keeps_texts = with_model and sum(len(one.items) for one in snapshot.sources) <= TEXTS_KEPT
    pool = Pool() if previous is None else previous.pool
    before = {} if previous is None else previous.parts
    found: dict[Identity, Part] = {}
    for identity, source in sources.items():
        known = before.get(identity)
        if known is not None and known.source is source and known.several_servers == several:
            found[identity] = known
    until, began, opened = time.perf_counter() + seconds, False, dict[Identity, _Opened]()
    fresh = [(_turn(len(sources[one].items), calls(one[0])), one) for one in sources.keys() - found.keys()]
    for _, identity in sorted(fresh):
        if began and time.perf_counter() >= until:
            break
        opened[identity] = one = _Opened(sources[identity], several, before.get(identity), keeps_texts)
        one.read_batch()
        began = True
    left = {identity: part.unread for identity, part in found.items() if part.unread}
    left |= {identity: len(one.left) for identity, one in opened.items() if one.left}
    for identity in sorted(left, key=lambda one: (left[one], one)):
        if began and time.perf_counter() >= until:
            break
        if identity not in opened:
            opened[identity] = _Opened(sources[identity], several, found[identity], keeps_texts)
        while opened[identity].left and not (began and time.perf_counter() >= until):
            opened[identity].read_batch()
            began = True
    found |= {identity: one.part(pool) for identity, one in opened.items()}
    unread = sum(part.unread for part in found.values())
    unread += sum(len(sources[identity].items) for identity in sources.keys() - found.keys())
    return assemble(
        snapshot,
        {identity: found[identity] for identity in sorted(found)},
        pool,
        unread=unread,
        note=None if with_model else NO_MODEL,
        complete=not with_model and not unread,
        previous=previous,
    )


def _turn(items: int, calls: int) -> tuple[bool, int, int]:
    """Return the turn of a source for its first batch, lowest first, by its number of items and its uses."""
    return items > FIRST_ITEMS, -calls, items


class _Opened:
    """A source that is being read; what the part before has of unchanged items is used again."""

    def __init__(self, source: Source, several: bool, before: Part | None, keeps_texts: bool) -> None:
        self._source, self._several, self._keeps_texts = source, several, keeps_texts
        self._before = before if before is not None and before.several_servers == several else None
        searchable = (item for item in source.items if item.include is not IncludeMode.MANUAL)
        self._items = sorted(searchable, key=lambda item: (item.name, item.fingerprint))
        old = () if self._before is None else self._before.reading.items
        places = {(item.name, item.fingerprint): at for at, item in enumerate(old)}
        self._known: dict[int, int] = {}
        """Places in the part before, by position of the item."""
        for position, item in enumerate(self._items):
            at = places.get((item.name, item.fingerprint))
            if at is not None and old[at] == item:
                self._known[position] = at
        self.left = deque(position for position in range(len(self._items)) if position not in self._known)
        """Positions of the items that are left to read."""
        self._read: list[int] = []
        self._batches: list[tuple[Reading, TermCounts]] = []
        self._texts: list[tuple[str, ...]] = []
        """The texts of the items that were read."""

    def read_batch(self) -> None:
        """Read some of the items that are left, at least one."""
        batch, size = list[Item](), 0
        while self.left and len(batch) < BATCH_ITEMS and size < BATCH_BYTES:
            self._read.append(self.left.popleft())
            item = self._items[self._read[-1]]
            batch.append(item)
            size += len(item.written if isinstance(item, Tool) else item.text)
        if batch:
            reading, counts, texts = read_items(batch, self._several)
            self._batches.append((reading, counts))
            kept = self._keeps_texts
            self._texts += (
                own if kept or not isinstance(item, Tool) else ()
                for item, own in zip(batch, texts, strict=True)
            )

    def part(self, pool: Pool) -> Part:
        """Return what is read by now, with the vectors that the part before or the source has of it."""
        source, before = self._source, self._before
        old = [] if before is None else [(before.reading, before.counts)]
        first = 0 if before is None else len(before.reading.items)
        places = self._known | {position: first + at for at, position in enumerate(self._read)}
        taken = np.array([places[position] for position in sorted(places)], np.int64)
        reading = Reading.joined([one for one, _ in (*old, *self._batches)])
        texts = [*(() if before is None else before.texts), *self._texts]
        counts = join_counts([one for _, one in (*old, *self._batches)])
        if not np.array_equal(taken, np.arange(len(reading.items))):
            reading, counts = reading.take(taken), counts.take(taken)
            texts = [texts[place] for place in taken.tolist()]
        known: dict[int, int] = {}
        if before is not None:
            rows = zip(before.reading.texts.tolist(), before.rows.tolist(), strict=True)
            known = {text: row for text, row in rows if row != NOWHERE}
        part = Part(
            source=source,
            several_servers=self._several,
            suspicion=None if is_trusted(reading.items) else reading.evidence.suspicion(),
            reading=reading,
            texts=tuple(texts),
            counts=counts,
            rows=np.full(int(reading.sizes.sum()), NOWHERE, np.int32),
            ready=np.zeros(len(reading.items), bool),
            instructions=instruction_terms(source.about),
            unread=len(self.left),
        )
        return _with_rows(part, known)


def instruction_terms(about: str) -> frozenset[str]:
    """Return the index terms of the beginning of a server's instructions, each once."""
    return frozenset(islice(terms(encodable(about[:INSTRUCTION_CHARACTERS])), INSTRUCTION_TERMS))


def read_items(
    items: Sequence[Item], several_servers: bool
) -> tuple[Reading, TermCounts, list[tuple[str, ...]]]:
    """Read items for a catalog of one or of several servers; return their texts, too."""
    texts = [item_text(item, several_servers) for item in items]
    chunks = [own for _, own in texts]
    labels = [[hash(label) for label in metadata_of(item).labels()] for item in items]
    exposed = [item.exposed_name if isinstance(item, Tool) else item.name for item in items]
    names = [
        (hash(name_key(item.name)), hash(name_key(name))) for item, name in zip(items, exposed, strict=True)
    ]
    hashes = np.fromiter(chain.from_iterable(labels), np.int64)
    known_labels, numbered = np.unique(hashes, return_inverse=True)
    reading = Reading(
        items=tuple(items),
        texts=np.fromiter(map(hash, chain.from_iterable(chunks)), np.int64),
        sizes=np.array([len(own) for own in chunks], np.int64),
        kinds=np.array([KINDS.index(item.kind) for item in items], np.uint8),
        names=np.array(names, np.int64).reshape(-1, 2),
        known_labels=known_labels,
        labels=small_numbers(numbered, known_labels.size),
        label_counts=np.array([len(own) for own in labels], np.int64),
        evidence=Evidence.of(items, [fields.title for fields, _ in texts]),
        actions=np.array([effect_of(item.name) if isinstance(item, Tool) else 0 for item in items], np.uint8),
        words=" ".join(dict.fromkeys(islice(_name_words(fields for fields, _ in texts), WORDS_OF_BATCH))),
    )
    return reading, count_terms(fields for fields, _ in texts), chunks


def _name_words(items: Iterable[Fields]) -> Iterator[str]:
    for item in items:
        yield from identifier_words(item.name).split()
        yield from words(item.parameters)


def embedded(
    index: Index,
    embedder: Embedder,
    on_progress: OnProgress | None,
    cancelled: Cancelled,
    pace: float = 1.0,
    calls: Calls = lambda _key: 0,
    ahead: Mapping[str, int] = NOTHING_AHEAD,
) -> Iterator[Index]:
    """Yield the index, which has every item of its snapshot, with more and more vectors until it is complete.

    ``pace`` is a factor of the time between two unfinished indexes. ``ahead`` has rows of the index's pool
    that searches fill meanwhile (`with_likely`), by text. Raises `EmbeddingCancelledError` if ``cancelled()``
    returned true.
    """
    waiting = [part for part in index.parts.values() if not part.complete]
    missing, start = _missing_texts(waiting, calls), 0
    total = len({key for part in waiting for key in part.unready().tolist()})
    known: dict[int, int] = {}
    if total > TEXTS_TO_TRIM_FOR:
        trim_now()

    def report(done: int, _of: int) -> None:
        if cancelled():
            raise EmbeddingCancelledError(start + done, total)
        # The beginning counts: with the first batch it tells how long the others will take.
        if on_progress is not None and (done or not start):
            on_progress(start + done, total)

    due, pool = time.perf_counter() + pace * SECONDS_BETWEEN, index.pool
    try:
        for start in range(0, total, TEXTS_A_STEP):
            if start:
                report(0, 0)
            texts = dict(islice(missing, TEXTS_A_STEP))
            known |= {key: ahead[text] for key, text in texts.items() if text in ahead}
            if fresh := {key: text for key, text in texts.items() if key not in known}:
                vectors = embedder.embed(list(fresh.values()), report)
                known |= zip(fresh, pool.add(vectors).tolist(), strict=True)
            began = time.perf_counter()
            if began >= due and start + len(texts) < total:
                index = with_vectors(index, _all_with_rows(index.parts, known), pool)
                now = time.perf_counter()
                due = now + pace * max(SECONDS_BETWEEN, (now - began) / SHARE_ASSEMBLING)
                yield index
    except ModelError as error:
        yield lexical_only(index, error)
        return
    parts = _all_with_rows(index.parts, known)
    if pool.vectors.size > 2 * sum(part.rows.size for part in parts.values()) + ROWS_TO_SPARE:
        parts, pool = _compacted(parts, pool)
    yield with_vectors(index, parts, pool, complete=True)
    if total > TEXTS_A_STEP:
        trim_now()  # words that were read, and what the model needed for long texts: 5 MB of 1,000 tools


def likely_items(
    index: Index,
    query: ReadQuery,
    words: LexicalScores,
    vectors: NDArray[np.float32],
    sketches: Sketches,
    allowed: NDArray[np.bool_],
    certain: Collection[int],
) -> list[int]:
    """Return the items that may be among the best for a query, as far as is known without their vectors.

    These are the best by words and by sketches, of several needs those of each, likeliest first, and the
    ``certain`` ones. Tools of suspected servers have places of their own, so that they take none from others.
    """
    needs = query.needs if query.has_several_needs else ()
    ranked = [(words.scores, LIKELY), *((words.of(need), LIKELY_OF_A_NEED) for need in needs)]
    if sketches is not None:
        places, guesses = sketches
        for similar, count in zip(vectors, [LIKELY, *(LIKELY_OF_A_NEED for _ in needs)], strict=False):
            scores = np.zeros(len(index.items), np.float32)
            scores[places] = dots(guesses, similar)
            ranked.append((scores, count))
    unsuspected = np.ones_like(allowed) if index.unsuspected is None else index.unsuspected
    found = dict.fromkeys(item for item in certain if allowed[item])
    for among in (allowed & unsuspected, allowed & ~unsuspected):
        orders = [_best_first(np.where(among, scores, 0), count) for scores, count in ranked]
        found |= dict.fromkeys(item for turn in zip_longest(*orders) for item in turn if item is not None)
    return list(found)


def _best_first(scores: NDArray[np.float32], count: int) -> list[int]:
    places = best(scores, count)
    ordered = places[np.argsort(-scores[places], kind="stable")]
    first: list[int] = ordered[scores[ordered] > 0][:count].tolist()
    return first


def with_likely(
    index: Index, likely: Sequence[int], ahead: Ahead, embedder: Embedder, seconds: float
) -> Index:
    """Return the index with the vectors of some items, embedded at once, ahead of their turn.

    It counts as complete if that took no longer than ``seconds``: what is unlikely has no vectors, as if it
    meant nothing. Raises `ModelError` if the model failed.
    """
    rows = ahead.rows(index.pool)
    until = time.perf_counter() + seconds
    waiting = sorted(
        (item for item in likely if not index.ready[item]), key=lambda item: index.sizes[item] > MANY_CHUNKS
    )
    own_texts = {item: index.texts_of(item) for item in waiting}
    texts = dict.fromkeys(chain.from_iterable(own_texts.values()))
    fresh = [text for text in texts if text not in rows]
    for start in range(0, len(fresh), TEXTS_AHEAD):
        if start and time.perf_counter() >= until:
            break
        some = fresh[start : start + TEXTS_AHEAD]
        if (vectors := ahead.embed(embedder, some)) is None:
            break
        rows |= zip(some, index.pool.add(vectors).tolist(), strict=True)
    if not index.pool.vectors.size:
        return index
    placed = np.concatenate([np.zeros(0, np.int32), *(part.rows for part in index.parts.values())])
    starts, ready = np.cumsum(index.sizes) - index.sizes, index.ready.copy()
    for item, own in own_texts.items():
        if all(text in rows for text in own):
            placed[starts[item] : starts[item] + len(own)] = [rows[text] for text in own]
            ready[item] = True
    dense = DenseIndex(index.pool.vectors, placed, index.sizes)
    complete = bool(ready[waiting].all()) and not index.unread
    return replace(index, ready=ready, dense=dense, complete=complete)


class Ahead:
    """Texts that searches embed ahead of their turn, while whoever indexes the whole waits. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._rows: dict[str, int] = {}
        self._searches = 0
        self._nobody = threading.Event()
        self._nobody.set()
        self._late: Future[Matrix] | None = None
        """The batch that a search has not waited for to its end."""

    def embed(self, embedder: Embedder, texts: Sequence[str]) -> Matrix | None:
        """Embed texts; None where that takes too long, or where an earlier batch still does.

        Raises `ModelError` if the model failed.
        """
        if self._late is not None and not self._late.done():
            return None
        batch = Future[Matrix]()

        def work() -> None:
            try:
                batch.set_result(embedder.embed(texts))
            except Exception as error:  # boundary: the search that waits gets it
                batch.set_exception(error)

        # A daemon: a service that never answers must not keep the process from ending.
        threading.Thread(target=work, daemon=True).start()
        try:
            return batch.result(LONGEST_BATCH)
        except TimeoutError:
            self._late = batch
            return None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Embed something inside for a search, while indexing waits."""
        with self._lock:
            self._searches += 1
            self._nobody.clear()
        try:
            yield
        finally:
            with self._lock:
                self._searches -= 1
                if not self._searches:
                    self._nobody.set()

    def let_pass(self) -> None:
        """Wait for the searches that embed something, but not for ever."""
        self._nobody.wait(LONGEST_TURN)

    def rows(self, pool: Pool) -> dict[str, int]:
        """Return the rows of a pool with such texts, to be filled."""
        with self._lock:
            if self._pool is not pool:
                self._pool, self._rows = pool, {}
            return self._rows


def progress_note(unread: int, likely: int, done: int, considered: int, kind: str) -> str | None:
    """Return the note of a search during indexing: which of the items considered it could not compare."""
    if unread:
        return f"Indexing has begun: {unread:,} items could not be searched yet."
    if likely and likely < considered:
        return f"Indexing goes on: of {considered:,} {kind}, the {likely} likeliest were compared by meaning."
    if not likely and done < considered:
        left = considered - done
        return f"Indexing goes on: {left:,} of {considered:,} {kind} were searched by words alone."
    return None


def _missing_texts(parts: Iterable[Part], calls: Calls) -> Iterator[tuple[int, str]]:
    """Yield the texts without a vector, each once, with their hashes, in the order of embedding."""
    waiting = [(part, np.flatnonzero(~part.ready), calls(part.source.key)) for part in parts]
    by_turn = sorted(waiting, key=lambda one: _turn(one[1].size, one[2]))
    by_size = sorted(by_turn, key=lambda one: one[1].size)
    first = ((part, item) for part, items, _ in by_turn for item in items[:FIRST_ITEMS].tolist())
    rest = ((part, item) for part, items, _ in by_size for item in items[FIRST_ITEMS:].tolist())
    seen = set[int]()
    for part, item in chain(first, rest):
        for text in part.texts_of(item):
            if (key := hash(text)) not in seen:
                seen.add(key)
                yield key, text


def _all_with_rows(parts: Mapping[Identity, Part], known: Mapping[int, int]) -> dict[Identity, Part]:
    return {identity: part if part.complete else _with_rows(part, known) for identity, part in parts.items()}


def _with_rows(part: Part, known: Mapping[int, int]) -> Part:
    """Return the part with the rows of those texts whose vectors are known by now."""
    rows, ready = part.rows.copy(), part.ready.copy()
    starts = np.cumsum(part.reading.sizes) - part.reading.sizes
    for item in np.flatnonzero(~part.ready):
        span = slice(starts[item], starts[item] + part.reading.sizes[item])
        keys = part.reading.texts[span].tolist()
        if all(key in known for key in keys):
            rows[span] = [known[key] for key in keys]
            ready[item] = True
    texts = tuple(
        () if is_ready and isinstance(item, Tool) else own
        for item, is_ready, own in zip(part.reading.items, ready.tolist(), part.texts, strict=True)
    )
    complete = bool(ready.all()) and not part.unread
    return replace(part, rows=rows, ready=ready, texts=texts, complete=complete)


def _compacted(parts: Mapping[Identity, Part], pool: Pool) -> tuple[dict[Identity, Part], Pool]:
    """Return the parts with a new pool of only those vectors that they use."""
    is_used, fresh = np.zeros(pool.vectors.size, bool), Pool()
    for part in parts.values():
        is_used[part.rows] = True
    is_used[NOWHERE] = False
    used = np.flatnonzero(is_used).astype(np.int32)
    moved = np.full(pool.vectors.size, NOWHERE, np.int32)
    moved[used] = fresh.add(pool.vectors.stored(used))
    return {identity: replace(part, rows=moved[part.rows]) for identity, part in parts.items()}, fresh
