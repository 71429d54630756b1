"""The index of one snapshot: immutable, sharing with its predecessor what did not change.

Items are in one canonical order (source, name), so that the order of a catalog changes nothing. An index may
be unfinished: then some of its items have no vectors yet, or some of the snapshot's are not in it at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import Item, Kind, Snapshot, Tool
from mcp_context_proxy.retrieval.dense import DenseIndex
from mcp_context_proxy.retrieval.groups import Flat, Group, grouped
from mcp_context_proxy.retrieval.lexical import ITEMS_A_GROUP, LexicalIndex
from mcp_context_proxy.retrieval.parts import Identity, Part
from mcp_context_proxy.retrieval.reading import Reading
from mcp_context_proxy.retrieval.stuffing import Suspicion, suspected
from mcp_context_proxy.retrieval.vectors import Pool

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
