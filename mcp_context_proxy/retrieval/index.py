"""The index of one snapshot: immutable, built just in time, sharing with its predecessor what did not change.

Items are in one canonical order (source, name), so that the order of a catalog changes nothing. Embeddings
belong to their source: those that are still current are used, the rest is embedded in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import IncludeMode, IndexedChunk, Item, Kind, Snapshot, Source, Tool
from mcp_context_proxy.retrieval.dense import DenseIndex
from mcp_context_proxy.retrieval.lexical import LexicalIndex, TermCounts, count_terms, join_counts
from mcp_context_proxy.retrieval.terms import name_key
from mcp_context_proxy.retrieval.text import item_text

Identity: TypeAlias = tuple[str, Kind | None]
"""Key of a source and kind of its items: a server, too, may be called ``rules``."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with how many texts are embedded, and of how many."""

NO_MODEL = "no embedding model is configured; searched by words only"


class EmbedTexts(Protocol):
    """What search needs of the embedding side: one model, whose vectors never meet those of another."""

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
    ) -> NDArray[np.float32]:
        """One row of norm 1 per text; blocks. Raises `ModelError` when there is no model."""


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
    matrix: NDArray[np.float32] | None = None
    """Their vectors, in order; None without a model."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Everything a search needs of one snapshot."""

    snapshot: Snapshot
    parts: Mapping[Identity, Part]
    items: tuple[Item, ...]
    chunks: tuple[tuple[str, ...], ...]
    """The texts of each item."""
    sources: NDArray[np.int32]
    """Source of each item, as a position in ``keys``."""
    keys: tuple[str, ...]
    kinds: NDArray[np.uint8]
    """Kind of each item, as a position in `KINDS`."""
    names: Mapping[str, Sequence[int]]
    """Items by what spellings of their name have in common."""
    lexical: LexicalIndex
    dense: DenseIndex | None
    note: str | None
    """Why there are no vectors."""


KINDS = tuple(Kind)


def build_index(
    snapshot: Snapshot,
    embedder: EmbedTexts | None,
    previous: Index | None = None,
    on_progress: OnProgress | None = None,
) -> Index:
    """Index a snapshot and bring the embeddings of its sources up to date.

    The sources keep the embeddings of a newer predecessor: those of an old request are not published.
    """
    several = len({s.key for s in snapshot.sources if any(isinstance(i, Tool) for i in s.items)}) > 1
    parts = {
        _identity(source): _reused(previous, source, several) or _read(source, several)
        for source in sorted(snapshot.sources, key=lambda s: _order(_identity(s)))
    }
    note: str | None = NO_MODEL
    if embedder is not None:
        publish = previous is None or previous.snapshot.generation <= snapshot.generation
        try:
            parts, note = _embedded(parts, embedder, publish, on_progress), None
        except ModelError as error:
            note = _spoken(error)
    return _assemble(snapshot, parts, note)


def lexical_only(index: Index, error: ModelError) -> Index:
    """The same index for a model that fails; the vectors stay in its parts for the next one."""
    return replace(index, dense=None, note=_spoken(error))


def _spoken(error: ModelError) -> str:
    return f"searched by words only: {error}"


def _identity(source: Source) -> Identity:
    return source.key, source.items[0].kind if source.items else None


def _order(identity: Identity) -> tuple[str, str]:
    return identity[0], identity[1] or ""


def _reused(previous: Index | None, source: Source, several: bool) -> Part | None:
    part = previous.parts.get(_identity(source)) if previous is not None else None
    return part if part is not None and part.source is source and part.several_servers == several else None


def _read(source: Source, several: bool) -> Part:
    searchable = (item for item in source.items if item.include is not IncludeMode.MANUAL)
    items = tuple(sorted(searchable, key=lambda item: (item.name, item.fingerprint)))
    texts = [item_text(item, several) for item in items]
    counts = count_terms(text.fields for text in texts)
    return Part(source, several, items, counts, tuple(text.chunks for text in texts))


def _embedded(
    parts: Mapping[Identity, Part],
    embedder: EmbedTexts,
    publish: bool,
    on_progress: OnProgress | None,
) -> dict[Identity, Part]:
    """The parts with vectors; everything missing in any of them is embedded in one pass."""
    pending = {identity: part for identity, part in parts.items() if part.matrix is None}
    known = {identity: _current(part) for identity, part in pending.items()}
    missing = _missing(pending, known)
    fresh = dict(zip(missing, embedder.embed(missing, on_progress), strict=True)) if missing else {}
    done = dict(parts)
    for identity, part in pending.items():
        done[identity] = _with_matrix(part, known[identity], fresh)
        if publish:
            _publish(done[identity])
    return done


def _missing(
    parts: Mapping[Identity, Part],
    known: Mapping[Identity, Sequence[Sequence[IndexedChunk] | None]],
) -> list[str]:
    """Every text that has no vector yet, once."""
    of_parts = (zip(part.chunks, known[identity], strict=True) for identity, part in parts.items())
    wanted = (texts for texts, chunks in chain.from_iterable(of_parts) if chunks is None)
    return list(dict.fromkeys(chain.from_iterable(wanted)))


def _current(part: Part) -> list[list[IndexedChunk] | None]:
    """For each item its embeddings, where their texts are those now wanted."""
    found = (part.source.embeddings.get(item.name, []) for item in part.items)
    return [
        chunks if tuple(chunk.text for chunk in chunks) == texts else None
        for chunks, texts in zip(found, part.chunks, strict=True)
    ]


def _with_matrix(
    part: Part,
    known: Sequence[Sequence[IndexedChunk] | None],
    fresh: Mapping[str, NDArray[np.float32]],
) -> Part:
    vectors: list[NDArray[np.float32]] = []
    for texts, chunks in zip(part.chunks, known, strict=True):
        vectors += [chunk.embedding for chunk in chunks] if chunks else [fresh[text] for text in texts]
    matrix = np.array(vectors, np.float32).reshape(len(vectors), -1 if vectors else 0)
    matrix.flags.writeable = False
    return replace(part, matrix=matrix)


def _publish(part: Part) -> None:
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


def _assemble(snapshot: Snapshot, parts: Mapping[Identity, Part], note: str | None) -> Index:
    items = tuple(chain.from_iterable(part.items for part in parts.values()))
    chunks = tuple(chain.from_iterable(part.chunks for part in parts.values()))
    matrices = [part.matrix for part in parts.values() if part.matrix is not None and part.items]
    sizes = np.array([len(texts) for texts in chunks], np.int64)
    counted = [len(part.items) for part in parts.values()]
    return Index(
        snapshot=snapshot,
        parts=parts,
        items=items,
        chunks=chunks,
        sources=np.repeat(np.arange(len(parts), dtype=np.int32), counted),
        keys=tuple(part.source.key for part in parts.values()),
        kinds=np.array([KINDS.index(item.kind) for item in items], np.uint8),
        names=_by_name(items),
        lexical=LexicalIndex.build(join_counts([part.counts for part in parts.values()])),
        dense=DenseIndex.build(matrices, sizes) if note is None else None,
        note=note,
    )


def _by_name(items: Sequence[Item]) -> dict[str, list[int]]:
    names: dict[str, list[int]] = {}
    for position, item in enumerate(items):
        exposed = {item.exposed_name} if isinstance(item, Tool) else set()
        for key in {name_key(name) for name in {item.name} | exposed}:
            names.setdefault(key, []).append(position)
    return names
