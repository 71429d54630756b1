"""What one source brings to an index: its items as texts, term counts and vectors, read once and then shared.

Embeddings belong to their source: those whose texts are still wanted are used, the rest is embedded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import IncludeMode, IndexedChunk, Item, Kind, Source, Tool, Vector
from mcp_context_proxy.retrieval.lexical import TermCounts, count_terms, join_counts
from mcp_context_proxy.retrieval.terms import name_key
from mcp_context_proxy.retrieval.text import item_text

Identity: TypeAlias = tuple[str, Kind | None]
"""Key of a source and kind of its items: a server, too, may be called ``rules``."""

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
    names: Mapping[str, Sequence[int]]
    """Items by what spellings of their name have in common."""
    ready: NDArray[np.bool_]
    """Which items have their vectors."""
    matrix: NDArray[np.float32] | None = None
    """The vectors of all texts, in order, 0 where they are not ready; None while no item is."""

    @property
    def complete(self) -> bool:
        """Whether every item has its vectors."""
        return self.matrix is not None and bool(self.ready.all())


def identity_of(source: Source) -> Identity:
    """What a source is recognised by in another snapshot."""
    return source.key, source.items[0].kind if source.items else None


def order_of(source: Source) -> tuple[str, str]:
    """The canonical order of sources."""
    key, kind = identity_of(source)
    return key, kind or ""


def read_part(source: Source, several_servers: bool, before: Part | None = None) -> Part:
    """Read a source; what has not changed since the part before, and vectors its owner keeps, are used."""
    searchable = (item for item in source.items if item.include is not IncludeMode.MANUAL)
    items = tuple(sorted(searchable, key=lambda item: (item.name, item.fingerprint)))
    counts, chunks = _read(items, several_servers, before)
    part = Part(
        source=source,
        several_servers=several_servers,
        items=items,
        counts=counts,
        chunks=chunks,
        sizes=np.array([len(texts) for texts in chunks], np.int64),
        kinds=np.array([KINDS.index(item.kind) for item in items], np.uint8),
        names=_by_name(items),
        ready=np.zeros(len(items), bool),
    )
    return with_vectors(part, {})


def _read(
    items: Sequence[Item], several_servers: bool, before: Part | None
) -> tuple[TermCounts, tuple[tuple[str, ...], ...]]:
    """Term counts and texts of items; only those that are not in the part before are read."""
    if before is None or before.several_servers != several_servers:
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


def with_vectors(part: Part, fresh: Mapping[str, Vector]) -> Part:
    """The part with the vectors there are of its texts: those it has, those its source has, and ``fresh``."""
    starts = np.cumsum(part.sizes) - part.sizes
    found = [_vectors(part, item, int(start), fresh) for item, start in enumerate(starts)]
    ready = np.array([vectors is not None for vectors in found], bool)
    dimensions = next((len(vectors[0]) for vectors in found if vectors), 0)
    if part.items and not dimensions:
        return part
    nothing = np.zeros(dimensions, np.float32)
    rows = chain.from_iterable(
        vectors or [nothing] * len(texts) for vectors, texts in zip(found, part.chunks, strict=True)
    )
    matrix = np.array(list(rows), np.float32).reshape(int(part.sizes.sum()), dimensions)
    matrix.flags.writeable = False
    return replace(part, matrix=matrix, ready=ready)


def missing_texts(parts: Iterable[Part]) -> list[str]:
    """Every text that has no vector yet, once."""
    open_parts = (zip(part.chunks, part.ready, strict=True) for part in parts if not part.complete)
    waiting = (texts for texts, ready in chain.from_iterable(open_parts) if not ready)
    return list(dict.fromkeys(chain.from_iterable(waiting)))


def publish(part: Part) -> None:
    """Give the source its embeddings (rows of the matrix, not copies) and forget those of items that went."""
    assert part.matrix is not None
    embeddings = part.source.embeddings
    row = 0
    for item, texts in zip(part.items, part.chunks, strict=True):
        rows = part.matrix[row : row + len(texts)]
        embeddings[item.name] = [IndexedChunk(*of, i) for i, of in enumerate(zip(texts, rows, strict=True))]
        row += len(texts)
    for name in embeddings.keys() - {item.name for item in part.items}:
        embeddings.pop(name, None)


def _vectors(part: Part, item: int, start: int, fresh: Mapping[str, Vector]) -> list[Vector] | None:
    """All vectors of an item; None while one is missing."""
    texts = part.chunks[item]
    if part.matrix is not None and part.ready[item]:
        return list(part.matrix[start : start + len(texts)])
    kept = part.source.embeddings.get(part.items[item].name, [])
    if texts == tuple(chunk.text for chunk in kept):
        return [chunk.embedding for chunk in kept]
    return [fresh[text] for text in texts] if all(text in fresh for text in texts) else None


def _by_name(items: Sequence[Item]) -> dict[str, list[int]]:
    names: dict[str, list[int]] = {}
    for position, item in enumerate(items):
        for name in _names(item):
            names.setdefault(name, []).append(position)
    return names


def _names(item: Item) -> Iterator[str]:
    exposed = {item.exposed_name} if isinstance(item, Tool) else set()
    yield from {name_key(name) for name in {item.name} | exposed}
