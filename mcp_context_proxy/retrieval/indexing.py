"""How an index comes to be: first the words, in one go; then the vectors, a few texts at a time.

Every step leaves an index that can be searched. Nothing here knows threads; whoever runs it may stop between
two steps.

A long loop in a worker thread lets the event loop in now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.items import Kind, Snapshot
from mcp_context_proxy.retrieval.index import (
    NO_MODEL,
    Calls,
    Identity,
    Index,
    Part,
    assemble,
    compacted,
    identity_of,
    lexical_only,
    locate,
    missing_texts,
    publish,
    read_part,
    with_vectors,
)
from mcp_context_proxy.retrieval.vectors import Pool
from mcp_context_proxy.system.process import trim_now

TURN_SECONDS = 0.005
"""How long others wait at most: what the interpreter's switch interval promises."""

PAUSE_SECONDS = 0.0001
"""Long enough for a thread that waits to wake up."""

T = TypeVar("T")


def yielding_gil(values: Iterable[T]) -> Iterator[T]:
    """The values, with a pause whenever a turn is over.

    Where each step calls numpy, the interpreter's own switching fails: each call gives the lock up and has it
    back before a thread that waits for it wakes, and every such release begins that thread's waiting anew. An
    event loop got no turn for 360 ms beside the embeddings of 100,000 tools.
    """
    end = time.perf_counter() + TURN_SECONDS
    for value in values:
        yield value
        if time.perf_counter() >= end:
            time.sleep(PAUSE_SECONDS)
            end = time.perf_counter() + TURN_SECONDS


OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with how many texts are embedded, and of how many."""

Cancelled: TypeAlias = Callable[[], bool]
"""Whether to stop; asked between two steps."""

READING_SECONDS = 0.7
"""How long the words of sources are read before what was read so far can be searched: some 5,000 tools."""

TEXTS_A_STEP = 256
"""Texts asked for at a time: a third of a second of embedding on two cores, or a few milliseconds where their
vectors are kept. Whether to stop is looked at each time that progress is told."""

SECONDS_BETWEEN = 1.0
"""At least, between two unfinished indexes: newer vectors are of no use to a search that began before."""

SHARE_ASSEMBLING = 0.1
"""Of the time of embedding that unfinished indexes may cost."""

ROWS_TO_SPARE = 4_096
"""Vectors out of use that are always put up with: 6 MB."""

TEXTS_TO_TIDY_FOR = 10_000
"""To embed, before which memory is tidied up: about as many tools were read, which left some 10 MB free."""


class EmbedTexts(Protocol):
    """What search needs of the embedding side: one model, whose vectors never meet those of another."""

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
    ) -> NDArray[np.float32]:
        """One row of norm 1 per text; blocks. Raises `ModelError` when there is no model."""


def read(
    snapshot: Snapshot,
    with_model: bool,
    previous: Index | None,
    seconds: float = READING_SECONDS,
    calls: Calls = lambda _key: 0,
) -> Index:
    """Index the words of a snapshot, and the vectors its sources have.

    Takes no longer than ``seconds`` and the source it is at; the sources it did not get to are left out. The
    most used come first.
    """
    sources = {identity_of(source): source for source in snapshot.sources}
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
            found[identity], began = read_part(source, several, pool, known), True
        else:
            unread += len(source.items)
    parts = {identity: found[identity] for identity in sorted(found)}
    note = None if with_model else NO_MODEL
    return assemble(snapshot, parts, pool, unread, note, not with_model and not unread, previous)


def embedded(
    index: Index,
    embedder: EmbedTexts,
    may_publish: bool,
    on_progress: OnProgress | None,
    cancelled: Cancelled,
    pace: float = 1.0,
    calls: Calls = lambda _key: 0,
) -> Iterator[Index]:
    """The index with more and more vectors, until it is complete.

    Args:
        index: With every item of its snapshot.
        embedder: Of the catalog's texts.
        may_publish: Whether the sources get the embeddings; those of an old snapshot would take the place
            of newer ones.
        on_progress: Told how many texts are embedded, of those that were missing.
        cancelled: Whether to stop.
        pace: Factor of the time between two unfinished indexes.
        calls: How often each source was used; the texts of the most used are embedded first.

    Raises:
        EmbeddingCancelledError: ``cancelled()`` became true.
    """
    missing = missing_texts(index.parts.values(), calls)
    if len(missing) > TEXTS_TO_TIDY_FOR:
        trim_now()
    known: dict[str, int] = {}
    due, before, pool = time.perf_counter() + pace * SECONDS_BETWEEN, index.parts, index.pool
    try:
        for start in range(0, len(missing), TEXTS_A_STEP):
            progress = partial(_progressed, start, len(missing), on_progress, cancelled)
            progress(0, 0)
            texts = missing[start : start + TEXTS_A_STEP]
            vectors = embedder.embed(texts, progress)
            known |= zip(texts, pool.add(vectors).tolist(), strict=True)
            began = time.perf_counter()
            if began >= due and start + len(texts) < len(missing):
                index = with_vectors(index, _with(index.parts, known), pool)
                now = time.perf_counter()
                due = now + pace * max(SECONDS_BETWEEN, (now - began) / SHARE_ASSEMBLING)
                yield index
    except ModelError as error:
        yield lexical_only(index, error)
        return
    parts = _with(index.parts, known)
    # What is published takes as much memory; in a large catalog this is the most there ever is.
    known.clear()
    missing.clear()
    if _wasteful(parts, pool):
        parts, pool = compacted(parts, pool)
    if may_publish:
        changed = (part for identity, part in parts.items() if part is not before[identity] or _differs(part))
        for part in yielding_gil(changed):
            publish(part, pool.vectors)
    yield with_vectors(index, parts, pool, complete=True)


def _with(parts: Mapping[Identity, Part], known: Mapping[str, int]) -> dict[Identity, Part]:
    return {identity: part if part.complete else locate(part, known) for identity, part in parts.items()}


def _wasteful(parts: Mapping[Identity, Part], pool: Pool) -> bool:
    """Whether more vectors are out of use than in it."""
    return pool.vectors.size > 2 * sum(part.rows.size for part in parts.values()) + ROWS_TO_SPARE


def _differs(part: Part) -> bool:
    """Whether the source keeps embeddings of items that are no more."""
    return len(part.source.embeddings) != len(part.reading.items)


def _progressed(
    start: int, total: int, on_progress: OnProgress | None, cancelled: Cancelled, done: int, _of: int
) -> None:
    if cancelled():
        raise EmbeddingCancelledError(start + done, total)
    if on_progress is not None and done:
        on_progress(start + done, total)
