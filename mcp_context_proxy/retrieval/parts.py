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

from mcp_context_proxy.items import IncludeMode, IndexedChunk, Item, Kind, Source, Tool, Vector
from mcp_context_proxy.retrieval.lexical import TermCounts, count_terms, join_counts
from mcp_context_proxy.retrieval.terms import name_key
from mcp_context_proxy.retrieval.text import item_text
from mcp_context_proxy.retrieval.traits import traits_of
from mcp_context_proxy.retrieval.vectors import NOWHERE, Pool, Vectors

Identity: TypeAlias = tuple[str, Kind | None]
"""Key of a source and kind of its items: a server, too, may be called ``rules``."""

Calls: TypeAlias = Callable[[str], int]
"""How often the items of a source, given by its key, were used: the most used are indexed first."""

KINDS = tuple(Kind)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one source brings to the index."""

    source: Source
    several_servers: bool
    """Whether the texts were made for a catalog of several servers."""
    items: tuple[Item, ...]
    """Those that can be found, by name."""
    counts: TermCounts
    chunks: tuple[tuple[str, ...], ...]
    """The texts of each item."""
    sizes: NDArray[np.int64]
    """How many texts each item has."""
    kinds: NDArray[np.uint8]
    """Kind of each item, as a position in `KINDS`."""
    names: NDArray[np.int64]
    """[items, 2]: hashes of what the spellings of its name have in common, and of its exposed name."""
    labels: NDArray[np.int64]
    """Hashes of the labels of its items (`traits`), item by item."""
    label_counts: NDArray[np.int64]
    """How many labels each item has."""
    rows: NDArray[np.int32]
    """Where the vector of each text is, in order; `NOWHERE` while its item is not ready."""
    ready: NDArray[np.bool_]
    """Which items have their vectors."""
    complete: bool = False
    """Whether every item has."""


def identity_of(source: Source) -> Identity:
    """What a source is recognised by in another snapshot."""
    return source.key, source.items[0].kind if source.items else None


def read_part(source: Source, several_servers: bool, pool: Pool, before: Part | None = None) -> Part:
    """Read a source; what has not changed since the part before, and vectors its owner keeps, are used."""
    if before is not None and before.several_servers != several_servers:
        before = None
    searchable = (item for item in source.items if item.include is not IncludeMode.MANUAL)
    items = tuple(sorted(searchable, key=lambda item: (item.name, item.fingerprint)))
    counts, chunks = _read(items, several_servers, before)
    labels = [[hash(label) for label in traits_of(item).labels()] for item in items]
    sizes = np.array([len(texts) for texts in chunks], np.int64)
    part = Part(
        source=source,
        several_servers=several_servers,
        items=items,
        counts=counts,
        chunks=chunks,
        sizes=sizes,
        kinds=np.array([KINDS.index(item.kind) for item in items], np.uint8),
        names=np.array([_names(item) for item in items], np.int64).reshape(-1, 2),
        labels=np.fromiter(chain.from_iterable(labels), np.int64),
        label_counts=np.array([len(own) for own in labels], np.int64),
        rows=np.full(int(sizes.sum()), NOWHERE, np.int32),
        ready=np.zeros(len(items), bool),
    )
    known = {} if before is None else _located(before)
    return locate(part, known | _kept(part, known, pool))


def _read(
    items: Sequence[Item], several_servers: bool, before: Part | None
) -> tuple[TermCounts, tuple[tuple[str, ...], ...]]:
    """Term counts and texts of items; only those that are not in the part before are read."""
    if before is None:
        texts = [item_text(item, several_servers) for item in items]
        return count_terms(text.fields for text in texts), tuple(text.chunks for text in texts)
    known = {(item.name, item.fingerprint): at for at, item in enumerate(before.items)}
    new = [item for item in items if (item.name, item.fingerprint) not in known]
    known |= {(item.name, item.fingerprint): len(before.items) + at for at, item in enumerate(new)}
    counts, chunks = _read(new, several_servers, None)
    rows = [known[item.name, item.fingerprint] for item in items]
    all_chunks = (*before.chunks, *chunks)
    joined = join_counts([before.counts, counts])
    return joined.take(np.array(rows, np.int64)), tuple(all_chunks[row] for row in rows)


def locate(part: Part, known: Mapping[str, int]) -> Part:
    """The part with the rows of those texts whose vectors are known by now."""
    rows, ready = part.rows.copy(), part.ready.copy()
    for item, start in _waiting(part):
        texts = part.chunks[item]
        if all(text in known for text in texts):
            rows[start : start + len(texts)] = [known[text] for text in texts]
            ready[item] = True
    return replace(part, rows=rows, ready=ready, complete=bool(ready.all()))


def _waiting(part: Part) -> list[tuple[int, int]]:
    """Each item that is not ready, and its first text."""
    starts = np.cumsum(part.sizes) - part.sizes
    return [(int(item), int(starts[item])) for item in np.flatnonzero(~part.ready)]


def _located(part: Part) -> dict[str, int]:
    """The rows of texts."""
    texts = zip(chain.from_iterable(part.chunks), part.rows.tolist(), strict=True)
    return {text: row for text, row in texts if row != NOWHERE}


def _kept(part: Part, known: Mapping[str, int], pool: Pool) -> dict[str, int]:
    """The rows of further texts whose vectors the source has."""
    kept: dict[str, Vector] = {}
    for item, texts in zip(part.items, part.chunks, strict=True):
        own = part.source.embeddings.get(item.name, ())
        if texts[0] not in known and texts == tuple(chunk.text for chunk in own):
            kept |= {chunk.text: chunk.embedding for chunk in own}
    if not kept:
        return {}
    return dict(zip(kept, pool.add(np.array(list(kept.values()), np.float32)).tolist(), strict=True))


def missing_texts(parts: Iterable[Part], calls: Calls) -> list[str]:
    """Every text that has no vector yet, once; those of the most used sources first."""
    waiting = sorted((part for part in parts if not part.complete), key=lambda part: -calls(part.source.key))
    texts = (part.chunks[item] for part in waiting for item, _ in _waiting(part))
    return list(dict.fromkeys(chain.from_iterable(texts)))


def publish(part: Part, vectors: Vectors) -> None:
    """Give the source its embeddings (rows of the pool, not copies) and forget those of items that went."""
    embeddings = part.source.embeddings
    rows = iter(vectors.views(part.rows))
    for item, texts in zip(part.items, part.chunks, strict=True):
        embeddings[item.name] = [IndexedChunk(text, next(rows), i) for i, text in enumerate(texts)]
    for name in embeddings.keys() - {item.name for item in part.items}:
        embeddings.pop(name, None)


def compacted(parts: Mapping[Identity, Part], pool: Pool) -> tuple[dict[Identity, Part], Pool]:
    """The parts with a pool of those vectors only that they use."""
    used = np.unique(np.concatenate([np.zeros(0, np.int32), *(part.rows for part in parts.values())]))
    used, fresh = used[used != NOWHERE], Pool()
    moved = np.full(pool.vectors.size, NOWHERE, np.int32)
    moved[used] = fresh.add(pool.vectors.copied(used))
    return {identity: replace(part, rows=moved[part.rows]) for identity, part in parts.items()}, fresh


def _names(item: Item) -> tuple[int, int]:
    exposed = item.exposed_name if isinstance(item, Tool) else item.name
    return hash(name_key(item.name)), hash(name_key(exposed))
