"""The index of one snapshot: immutable, sharing with its predecessor what did not change.

Items are in one canonical order (source, name), so that the order of a catalog changes nothing. An index may
be unfinished: then some of its items have no vectors yet, or some of the snapshot's are not in it at all.

What one source brings to an index: its items as texts, term counts and vectors, read once and then shared.

Embeddings belong to their source: those whose texts are still wanted are used, the rest is embedded.

What is read of items before there is any vector: texts, names and labels, in arrays over all of them.

Terms are counted beside it (`term_counts`): they are put together in a way of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import IncludeMode, IndexedChunk, Item, Kind, Snapshot, Source, Tool, Vector
from mcp_context_proxy.retrieval.bm25 import (
    ITEMS_A_GROUP,
    Flat,
    Group,
    LexicalIndex,
    TermCounts,
    count_terms,
    grouped,
    join_counts,
)
from mcp_context_proxy.retrieval.item_metadata import metadata_of
from mcp_context_proxy.retrieval.keyword_stuffing import Suspicion, suspected, suspicion
from mcp_context_proxy.retrieval.scoring import DenseIndex
from mcp_context_proxy.retrieval.terms import name_key
from mcp_context_proxy.retrieval.text import item_text
from mcp_context_proxy.retrieval.vectors import NOWHERE, Pool, Vectors

KINDS = tuple(Kind)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was read of some items, in their order."""

    items: tuple[Item, ...]
    chunks: tuple[tuple[str, ...], ...]
    """The texts of each item."""
    sizes: NDArray[np.int64]
    """How many texts each item has."""
    kinds: NDArray[np.uint8]
    """Kind of each item, as a position in `KINDS`."""
    names: NDArray[np.int64]
    """[items, 2]: hashes of what the spellings of its name have in common, and of its exposed name."""
    labels: NDArray[np.int64]
    """Hashes of the labels of the items (`traits`), item by item."""
    label_counts: NDArray[np.int64]
    """How many labels each item has."""

    @classmethod
    def joined(cls, readings: Sequence[Reading]) -> Reading:
        """Several as one."""
        return cls(
            tuple(chain.from_iterable(one.items for one in readings)),
            tuple(chain.from_iterable(one.chunks for one in readings)),
            np.concatenate([np.zeros(0, np.int64), *(one.sizes for one in readings)]),
            np.concatenate([np.zeros(0, np.uint8), *(one.kinds for one in readings)]),
            np.concatenate([np.zeros((0, 2), np.int64), *(one.names for one in readings)]),
            np.concatenate([np.zeros(0, np.int64), *(one.labels for one in readings)]),
            np.concatenate([np.zeros(0, np.int64), *(one.label_counts for one in readings)]),
        )

    def take(self, places: NDArray[np.int64]) -> Reading:
        """What was read of some of the items, in this order."""
        of_item = np.split(self.labels, np.cumsum(self.label_counts)[:-1])
        return Reading(
            tuple(self.items[place] for place in places),
            tuple(self.chunks[place] for place in places),
            self.sizes[places],
            self.kinds[places],
            self.names[places],
            np.concatenate([np.zeros(0, np.int64), *(of_item[place] for place in places)]),
            self.label_counts[places],
        )

    def labelled(self, label: int) -> NDArray[np.intp]:
        """Places of the items that have a label, given by its hash."""
        found = np.flatnonzero(self.labels == label)
        return np.searchsorted(np.cumsum(self.label_counts), found, side="right")


def read_items(items: Sequence[Item], several_servers: bool) -> tuple[Reading, TermCounts]:
    """Read items for a catalog of one or of several servers."""
    texts = [item_text(item, several_servers) for item in items]
    labels = [[hash(label) for label in metadata_of(item).labels()] for item in items]
    reading = Reading(
        items=tuple(items),
        chunks=tuple(text.chunks for text in texts),
        sizes=np.array([len(text.chunks) for text in texts], np.int64),
        kinds=np.array([KINDS.index(item.kind) for item in items], np.uint8),
        names=np.array([_names(item) for item in items], np.int64).reshape(-1, 2),
        labels=np.fromiter(chain.from_iterable(labels), np.int64),
        label_counts=np.array([len(own) for own in labels], np.int64),
    )
    return reading, count_terms(text.fields for text in texts)


def _names(item: Item) -> tuple[int, int]:
    exposed = item.exposed_name if isinstance(item, Tool) else item.name
    return hash(name_key(item.name)), hash(name_key(exposed))


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


MASKS_KEPT = 64
"""Labels whose items are remembered: a byte for each item."""

NO_MODEL = "no embedding model is configured; searched by words only"


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Everything a search needs of one snapshot."""

    snapshot: Snapshot
    parts: Mapping[Identity, Part]
    readings: tuple[Group[Reading, Reading], ...]
    """What was read of the parts, in order."""
    items: Flat[Item]
    chunks: Flat[tuple[str, ...]]
    """The texts of each item."""
    sources: NDArray[np.int32]
    """Source of each item, as a position in ``keys``."""
    keys: tuple[str, ...]
    suspected: Mapping[str, Suspicion]
    """Servers whose descriptions are suspected of stuffing, and why."""
    unsuspected: NDArray[np.bool_] | None
    """Which items are of other servers; None where all are."""
    kinds: NDArray[np.uint8]
    """Kind of each item, as a position in `KINDS`."""
    ready: NDArray[np.bool_]
    """Which items have their vectors."""
    names: NDArray[np.int64]
    """[items, 2]: hashes of the two names of each."""
    pool: Pool
    """Where the vectors are, and those of the indexes that follow will be."""
    unread: int
    """Items of the snapshot that are not in it yet."""
    lexical: LexicalIndex
    dense: DenseIndex | None
    """None while there is no vector at all, and without a model."""
    note: str | None
    """Why there will be no vectors."""
    complete: bool
    """Whether nothing is to be added to it; after a failure that may pass, there is."""
    masks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Which items have a label, for labels that were asked for."""

    def named(self, key: str) -> list[int]:
        """Items that have a name, given as `name_key` has it."""
        return self.having(np.array([hash(key)], np.int64))

    def named_any(self, keys: Iterable[str]) -> list[int]:
        """Items that have one of some names."""
        return self.having(np.array([hash(key) for key in keys], np.int64))

    def having(self, hashes: NDArray[np.int64]) -> list[int]:
        """Items that have a name with one of some hashes."""
        # Both names of all items as one row: to look at them in pairs takes thirty times as long.
        names = self.names.ravel()
        places = np.flatnonzero(names == hashes[0] if hashes.size == 1 else np.isin(names, hashes))
        return sorted(set((places // self.names.shape[1]).tolist()))

    def suspicion(self, item: int) -> Suspicion | None:
        """What an item's server is suspected of."""
        of = self.items[item]
        return self.suspected.get(of.server) if isinstance(of, Tool) else None

    def labelled(self, label: str) -> NDArray[np.bool_]:
        """Which items have a label (`traits`); not to be changed."""
        found = self.masks.get(label)
        if found is None:
            found, first = np.zeros(len(self.items), bool), 0
            for group in self.readings:
                found[first + group.whole.labelled(hash(label))] = True
                first += group.size
            if len(self.masks) < MASKS_KEPT:
                self.masks[label] = found
        return found

    def has_label(self, label: str) -> bool:
        """Whether any item has a label."""
        return any(hash(label) in group.whole.labels for group in self.readings)


def assemble(
    snapshot: Snapshot,
    parts: Mapping[Identity, Part],
    pool: Pool,
    unread: int = 0,
    note: str | None = None,
    complete: bool = False,
    previous: Index | None = None,
) -> Index:
    """Put the parts together; what they have in common with the previous index is shared."""
    counted = [len(part.reading.items) for part in parts.values()]
    readings = grouped(
        list(zip((part.reading for part in parts.values()), counted, strict=True)),
        ITEMS_A_GROUP,
        Reading.joined,
        () if previous is None else previous.readings,
    )
    wholes = [group.whole for group in readings]
    ready = _ready(parts)
    servers = {key: part.suspicion for (key, kind), part in parts.items() if kind == Kind.TOOL}
    behind = suspected(servers)
    is_usual = [kind != Kind.TOOL or key not in behind for key, kind in parts]
    usual = np.repeat(is_usual, counted) if behind else None
    return Index(
        snapshot=snapshot,
        parts=parts,
        readings=tuple(readings),
        items=Flat(whole.items for whole in wholes),
        chunks=Flat(whole.chunks for whole in wholes),
        sources=np.repeat(np.arange(len(parts), dtype=np.int32), counted),
        keys=tuple(part.source.key for part in parts.values()),
        suspected=behind,
        unsuspected=usual,
        kinds=np.concatenate([np.zeros(0, np.uint8), *(whole.kinds for whole in wholes)]),
        ready=ready,
        names=np.concatenate([np.zeros((0, 2), np.int64), *(whole.names for whole in wholes)]),
        pool=pool,
        unread=unread,
        lexical=LexicalIndex.build(
            [part.counts for part in parts.values()],
            None if previous is None else previous.lexical,
            usual,
        ),
        dense=_dense(parts, wholes, pool) if note is None and ready.any() else None,
        note=note,
        complete=complete,
    )


def with_vectors(index: Index, parts: Mapping[Identity, Part], pool: Pool, complete: bool = False) -> Index:
    """The same index with the vectors that its parts have by now."""
    ready = _ready(parts)
    dense = _dense(parts, [group.whole for group in index.readings], pool) if ready.any() else None
    return replace(index, parts=parts, pool=pool, ready=ready, dense=dense, complete=complete)


def _ready(parts: Mapping[Identity, Part]) -> NDArray[np.bool_]:
    return np.concatenate([np.zeros(0, np.bool_), *(part.ready for part in parts.values())])


def _dense(parts: Mapping[Identity, Part], readings: Sequence[Reading], pool: Pool) -> DenseIndex:
    return DenseIndex.build(
        pool.vectors, [part.rows for part in parts.values()], [one.sizes for one in readings]
    )


def lexical_only(index: Index, error: ModelError) -> Index:
    """The same index for a model that fails; the vectors stay in its parts for the next one."""
    return replace(index, dense=None, note=f"searched by words only: {error}", complete=not error.passing)
