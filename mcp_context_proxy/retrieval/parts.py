"""What one source brings to an index: its items as texts, term counts and vectors, read once and then shared.

Embeddings belong to their source: those whose texts are still wanted are used, the rest is embedded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import IncludeMode, IndexedChunk, Item, Source, Vector
from mcp_context_proxy.retrieval.reading import Reading, read_items
from mcp_context_proxy.retrieval.stuffing import Suspicion, suspicion
from mcp_context_proxy.retrieval.term_counts import TermCounts, join_counts
from mcp_context_proxy.retrieval.vectors import NOWHERE, Pool, Vectors

Identity: TypeAlias = tuple[str, str]
"""Key of a source and kind of its items: a server, too, may be called ``rules``."""

Calls: TypeAlias = Callable[[str], int]
"""How often the items of a source, given by its key, were used: the most used are indexed first."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one source brings to the index."""

    source: Source
    several_servers: bool
    """Whether the texts were made for a catalog of several servers."""
    suspicion: Suspicion | None
    """Why the descriptions are suspected of stuffing; None where they are not."""
    reading: Reading
    """Of those items that can be found, by name."""
    counts: TermCounts
    rows: NDArray[np.int32]
    """Where the vector of each text is, in order; `NOWHERE` while its item is not ready."""
    ready: NDArray[np.bool_]
    """Which items have their vectors."""
    complete: bool = False
    """Whether every item has."""


def identity_of(source: Source) -> Identity:
    """What a source is recognised by in another snapshot."""
    # Plain text, because an enumeration is hashed in Python, and there may be thousands of sources.
    return source.key, str(source.items[0].kind) if source.items else ""


def read_part(source: Source, several_servers: bool, pool: Pool, before: Part | None = None) -> Part:
    """Read a source; what has not changed since the part before, and vectors its owner keeps, are used."""
    searchable = (item for item in source.items if item.include is not IncludeMode.MANUAL)
    items = sorted(searchable, key=lambda item: (item.name, item.fingerprint))
    if before is not None and before.several_servers != several_servers:
        before = None
    reading, counts = _read(items, several_servers, before)
    part = Part(
        source=source,
        several_servers=several_servers,
        suspicion=suspicion(items),
        reading=reading,
        counts=counts,
        rows=np.full(int(reading.sizes.sum()), NOWHERE, np.int32),
        ready=np.zeros(len(items), bool),
    )
    known = {} if before is None else _located(before)
    return locate(part, known | _kept(part, known, pool))


def _read(items: Sequence[Item], several_servers: bool, before: Part | None) -> tuple[Reading, TermCounts]:
    """Read items; what is known of those that are in the part before is used again."""
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


def locate(part: Part, known: Mapping[str, int]) -> Part:
    """The part with the rows of those texts whose vectors are known by now."""
    rows, ready = part.rows.copy(), part.ready.copy()
    for item, start in _waiting(part):
        texts = part.reading.chunks[item]
        if all(text in known for text in texts):
            rows[start : start + len(texts)] = [known[text] for text in texts]
            ready[item] = True
    return replace(part, rows=rows, ready=ready, complete=bool(ready.all()))


def _waiting(part: Part) -> list[tuple[int, int]]:
    """Each item that is not ready, and its first text."""
    starts = np.cumsum(part.reading.sizes) - part.reading.sizes
    return [(int(item), int(starts[item])) for item in np.flatnonzero(~part.ready)]


def _located(part: Part) -> dict[str, int]:
    """The rows of texts."""
    texts = zip(chain.from_iterable(part.reading.chunks), part.rows.tolist(), strict=True)
    return {text: row for text, row in texts if row != NOWHERE}


def _kept(part: Part, known: Mapping[str, int], pool: Pool) -> dict[str, int]:
    """The rows of further texts whose vectors the source has."""
    kept: dict[str, Vector] = {}
    for item, texts in zip(part.reading.items, part.reading.chunks, strict=True):
        own = part.source.embeddings.get(item.name, ())
        if texts[0] not in known and texts == tuple(chunk.text for chunk in own):
            kept |= {chunk.text: chunk.embedding for chunk in own}
    if not kept:
        return {}
    return dict(zip(kept, pool.add(np.array(list(kept.values()), np.float32)).tolist(), strict=True))


def missing_texts(parts: Iterable[Part], calls: Calls) -> list[str]:
    """Every text that has no vector yet, once; those of the most used sources first."""
    waiting = sorted((part for part in parts if not part.complete), key=lambda part: -calls(part.source.key))
    texts = (part.reading.chunks[item] for part in waiting for item, _ in _waiting(part))
    return list(dict.fromkeys(chain.from_iterable(texts)))


def publish(part: Part, vectors: Vectors) -> None:
    """Give the source its embeddings (rows of the pool, not copies) and forget those of items that went."""
    embeddings = part.source.embeddings
    rows = iter(vectors.views(part.rows))
    for item, texts in zip(part.reading.items, part.reading.chunks, strict=True):
        embeddings[item.name] = [IndexedChunk(text, next(rows), i) for i, text in enumerate(texts)]
    for name in embeddings.keys() - {item.name for item in part.reading.items}:
        embeddings.pop(name, None)


def compacted(parts: Mapping[Identity, Part], pool: Pool) -> tuple[dict[Identity, Part], Pool]:
    """The parts with a pool of those vectors only that they use."""
    used = np.unique(np.concatenate([np.zeros(0, np.int32), *(part.rows for part in parts.values())]))
    used, fresh = used[used != NOWHERE], Pool()
    moved = np.full(pool.vectors.size, NOWHERE, np.int32)
    moved[used] = fresh.add(pool.vectors.copied(used))
    return {identity: replace(part, rows=moved[part.rows]) for identity, part in parts.items()}, fresh
