"""Builds the index of a snapshot: first the words, in one go, then the vectors, a few texts at a time.

Every step returns an index that can be searched, and whoever runs it may stop between two steps. Nothing here
knows threads. Embeddings belong to their source: those whose texts are still wanted are used, the others are
embedded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeAlias, TypeVar

import numpy as np

from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import IncludeMode, IndexedChunk, Item, Kind, Snapshot, Source, Tool, Vector
from mcp_context_proxy.retrieval.bm25 import TermCounts, count_terms, join_counts
from mcp_context_proxy.retrieval.index import (
    KINDS,
    Identity,
    Index,
    Part,
    Reading,
    assemble,
    lexical_only,
    with_vectors,
)
from mcp_context_proxy.retrieval.item_metadata import item_text, metadata_of
from mcp_context_proxy.retrieval.keyword_stuffing import suspicion
from mcp_context_proxy.retrieval.text import name_key
from mcp_context_proxy.retrieval.vectors import NOWHERE, Pool, Vectors
from mcp_context_proxy.system.process import trim_now

READING_SECONDS = 0.7
"""Time for which the words of sources are read before they can be searched: some 5,000 tools."""

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

NO_MODEL = "no embedding model is configured; searched by words only"

TURN_SECONDS = 0.005
"""Longest time for which other threads wait, as with the interpreter's switch interval."""

PAUSE_SECONDS = 0.0001
"""Long enough for a waiting thread to wake up."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with how many texts are embedded, and of how many."""

Cancelled: TypeAlias = Callable[[], bool]
"""Returns whether to stop; called between two steps."""

Calls: TypeAlias = Callable[[str], int]
"""Returns how often the items of a source, given by its key, were used: the most used are indexed first."""

T = TypeVar("T")


def read(
    snapshot: Snapshot,
    with_model: bool,
    previous: Index | None,
    seconds: float = READING_SECONDS,
    calls: Calls = lambda _key: 0,
) -> Index:
    """Index the words of a snapshot, and the vectors that its sources have.

    Stops after ``seconds`` and the source it is at, but not before one source is read; the other sources are
    left out. The most used come first.
    """
    # The kind as plain text: an enumeration is hashed in Python, and there may be thousands of sources.
    sources = {(one.key, str(one.items[0].kind) if one.items else ""): one for one in snapshot.sources}
    several = sum(kind == Kind.TOOL for _, kind in sources) > 1
    pool = Pool() if previous is None else previous.pool
    before = {} if previous is None else previous.parts
    found: dict[Identity, Part] = {}
    until, unread, began = time.perf_counter() + seconds, 0, False
    for identity in sorted(sources, key=lambda identity: -calls(identity[0])):
        source, known = sources[identity], before.get(identity)
        if known is not None and known.source is source and known.several_servers == several:
            found[identity] = known
        elif not began or time.perf_counter() < until:
            found[identity], began = _read_part(source, several, pool, known), True
        else:
            unread += len(source.items)
    return assemble(
        snapshot,
        {identity: found[identity] for identity in sorted(found)},
        pool,
        unread=unread,
        note=None if with_model else NO_MODEL,
        complete=not with_model and not unread,
        previous=previous,
    )


def _read_part(source: Source, several_servers: bool, pool: Pool, before: Part | None) -> Part:
    """Read a source; unchanged items of the part before and vectors that the source keeps are used again."""
    searchable = (item for item in source.items if item.include is not IncludeMode.MANUAL)
    items = sorted(searchable, key=lambda item: (item.name, item.fingerprint))
    if before is not None and before.several_servers != several_servers:
        before = None
    reading, counts = _read_changed(items, several_servers, before)
    part = Part(
        source=source,
        several_servers=several_servers,
        suspicion=suspicion(items),
        reading=reading,
        counts=counts,
        rows=np.full(int(reading.sizes.sum()), NOWHERE, np.int32),
        ready=np.zeros(len(items), bool),
    )
    known: dict[str, int] = {}
    if before is not None:
        texts = zip(chain.from_iterable(before.reading.chunks), before.rows.tolist(), strict=True)
        known = {text: row for text, row in texts if row != NOWHERE}
    kept: dict[str, Vector] = {}
    for item, own_texts in zip(reading.items, reading.chunks, strict=True):
        own = source.embeddings.get(item.name, ())
        if own_texts[0] not in known and own_texts == tuple(chunk.text for chunk in own):
            kept |= {chunk.text: chunk.embedding for chunk in own}
    if kept:
        rows = pool.add(np.array(list(kept.values()), np.float32))
        known |= zip(kept, rows.tolist(), strict=True)
    return _with_rows(part, known)


def _read_changed(
    items: Sequence[Item], several_servers: bool, before: Part | None
) -> tuple[Reading, TermCounts]:
    """Read the items that are not in the part before, and put them together with those that are."""
    if before is None:
        return read_items(items, several_servers)
    old = before.reading.items
    known = {(item.name, item.fingerprint): at for at, item in enumerate(old)}
    places, new = [], list[Item]()
    for item in items:
        at = known.get((item.name, item.fingerprint))
        if at is None or old[at] != item:
            at = len(old) + len(new)
            new.append(item)
        places.append(at)
    taken = np.array(places, np.int64)
    reading, counts = read_items(new, several_servers)
    return (
        Reading.joined([before.reading, reading]).take(taken),
        join_counts([before.counts, counts]).take(taken),
    )


def read_items(items: Sequence[Item], several_servers: bool) -> tuple[Reading, TermCounts]:
    """Read items for a catalog of one or of several servers."""
    texts = [item_text(item, several_servers) for item in items]
    chunks = tuple(own for _, own in texts)
    labels = [[hash(label) for label in metadata_of(item).labels()] for item in items]
    exposed = [item.exposed_name if isinstance(item, Tool) else item.name for item in items]
    names = [
        (hash(name_key(item.name)), hash(name_key(name))) for item, name in zip(items, exposed, strict=True)
    ]
    reading = Reading(
        items=tuple(items),
        chunks=chunks,
        sizes=np.array([len(own) for own in chunks], np.int64),
        kinds=np.array([KINDS.index(item.kind) for item in items], np.uint8),
        names=np.array(names, np.int64).reshape(-1, 2),
        labels=np.fromiter(chain.from_iterable(labels), np.int64),
        label_counts=np.array([len(own) for own in labels], np.int64),
    )
    return reading, count_terms(fields for fields, _ in texts)


def embedded(
    index: Index,
    embedder: Embedder,
    may_publish: bool,
    on_progress: OnProgress | None,
    cancelled: Cancelled,
    pace: float = 1.0,
    calls: Calls = lambda _key: 0,
) -> Iterator[Index]:
    """Yield the index, which has every item of its snapshot, with more and more vectors until it is complete.

    The sources get the embeddings if this ``may_publish``: those of an old snapshot would replace newer ones.
    ``pace`` is a factor of the time between two unfinished indexes.

    Raises:
        EmbeddingCancelledError: ``cancelled()`` returned true.
    """
    waiting = [part for part in index.parts.values() if not part.complete]
    waiting.sort(key=lambda part: -calls(part.source.key))
    texts_of_items = (part.reading.chunks[item] for part in waiting for item in np.flatnonzero(~part.ready))
    missing = list(dict.fromkeys(chain.from_iterable(texts_of_items)))
    if len(missing) > TEXTS_TO_TRIM_FOR:
        trim_now()
    start = 0

    def report(done: int, _of: int) -> None:
        if cancelled():
            raise EmbeddingCancelledError(start + done, len(missing))
        if on_progress is not None and done:
            on_progress(start + done, len(missing))

    known: dict[str, int] = {}
    due, before, pool = time.perf_counter() + pace * SECONDS_BETWEEN, index.parts, index.pool
    try:
        for start in range(0, len(missing), TEXTS_A_STEP):
            report(0, 0)
            texts = missing[start : start + TEXTS_A_STEP]
            vectors = embedder.embed(texts, report)
            known |= zip(texts, pool.add(vectors).tolist(), strict=True)
            began = time.perf_counter()
            if began >= due and start + len(texts) < len(missing):
                index = with_vectors(index, _all_with_rows(index.parts, known), pool)
                now = time.perf_counter()
                due = now + pace * max(SECONDS_BETWEEN, (now - began) / SHARE_ASSEMBLING)
                yield index
    except ModelError as error:
        yield lexical_only(index, error)
        return
    parts = _all_with_rows(index.parts, known)
    # Publishing takes as much memory again; in a large catalog this is the highest use there ever is.
    known.clear()
    missing.clear()
    if pool.vectors.size > 2 * sum(part.rows.size for part in parts.values()) + ROWS_TO_SPARE:
        parts, pool = _compacted(parts, pool)
    if may_publish:
        changed = (
            part
            for identity, part in parts.items()
            if part is not before[identity] or len(part.source.embeddings) != len(part.reading.items)
        )
        for part in yielding_gil(changed):
            _publish(part, pool.vectors)
    yield with_vectors(index, parts, pool, complete=True)


def _all_with_rows(parts: Mapping[Identity, Part], known: Mapping[str, int]) -> dict[Identity, Part]:
    return {identity: part if part.complete else _with_rows(part, known) for identity, part in parts.items()}


def _with_rows(part: Part, known: Mapping[str, int]) -> Part:
    """Return the part with the rows of those texts whose vectors are known by now."""
    rows, ready = part.rows.copy(), part.ready.copy()
    starts = np.cumsum(part.reading.sizes) - part.reading.sizes
    for item in np.flatnonzero(~part.ready):
        texts, start = part.reading.chunks[item], int(starts[item])
        if all(text in known for text in texts):
            rows[start : start + len(texts)] = [known[text] for text in texts]
            ready[item] = True
    return replace(part, rows=rows, ready=ready, complete=bool(ready.all()))


def _compacted(parts: Mapping[Identity, Part], pool: Pool) -> tuple[dict[Identity, Part], Pool]:
    """Return the parts with a new pool of only those vectors that they use."""
    used = np.unique(np.concatenate([np.zeros(0, np.int32), *(part.rows for part in parts.values())]))
    used, fresh = used[used != NOWHERE], Pool()
    moved = np.full(pool.vectors.size, NOWHERE, np.int32)
    moved[used] = fresh.add(np.array(pool.vectors.views(used), np.float32))
    return {identity: replace(part, rows=moved[part.rows]) for identity, part in parts.items()}, fresh


def _publish(part: Part, vectors: Vectors) -> None:
    """Give the source its embeddings (rows of the pool, not copies), and drop those of removed items."""
    embeddings = part.source.embeddings
    rows = iter(vectors.views(part.rows))
    for item, texts in zip(part.reading.items, part.reading.chunks, strict=True):
        embeddings[item.name] = [IndexedChunk(text, next(rows), i) for i, text in enumerate(texts)]
    for name in embeddings.keys() - {item.name for item in part.reading.items}:
        embeddings.pop(name, None)


def yielding_gil(values: Iterable[T]) -> Iterator[T]:
    """Yield the values, and let other threads run after every `TURN_SECONDS`.

    Where each step calls numpy, the interpreter's own switching fails: each call releases the lock and takes
    it back before a waiting thread wakes, and every such release begins that thread's wait anew. An event
    loop got no turn for 360 ms beside the embeddings of 100,000 tools.
    """
    end = time.perf_counter() + TURN_SECONDS
    for value in values:
        yield value
        if time.perf_counter() >= end:
            time.sleep(PAUSE_SECONDS)
            end = time.perf_counter() + TURN_SECONDS
