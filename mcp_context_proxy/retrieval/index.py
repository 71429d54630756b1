"""The index of one snapshot: immutable, sharing with its predecessor everything that did not change.

Items are in one canonical order (source, name), so that the order of a catalog changes nothing. An index may
be unfinished: some of its items have no vectors yet, or some items of the snapshot are not in it at all.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import Item, Kind, Snapshot, Source, Tool, ToolKey, key_of
from mcp_context_proxy.retrieval.bm25 import (
    ITEMS_A_GROUP,
    Group,
    LexicalIndex,
    LexicalScores,
    Small,
    TermCounts,
    grouped,
)
from mcp_context_proxy.retrieval.forms import WordList
from mcp_context_proxy.retrieval.item_metadata import item_text, metadata_of
from mcp_context_proxy.retrieval.keyword_stuffing import Evidence, Suspicion, suspected
from mcp_context_proxy.retrieval.scoring import ADDRESSED, ADDRESSED_ALONE, ADDRESSED_OTHERWISE
from mcp_context_proxy.retrieval.text import identifier_words, name_key
from mcp_context_proxy.retrieval.vectors import DenseIndex, Pool, best, small_numbers, spans
from mcp_context_proxy.system.later import NDArray, np

if TYPE_CHECKING:
    from mcp_context_proxy.retrieval.needs import Address, Called
    from mcp_context_proxy.retrieval.purposes import Purpose
    from mcp_context_proxy.retrieval.queries import ReadQuery

KINDS = tuple(Kind)

SERVING_LOOKED_FOR = 12
"""Tools among which those are looked for that serve a general purpose."""

SERVING_KEPT = 64
"""Purposes for which they are cached, each for one choice of items."""

MASKS_KEPT = 64
"""Labels whose items are cached: a byte for each item."""

NAMES_KEPT = 8_192
"""Hashed names of tools that are cached, for filters have much the same ones from search to search."""

Identity: TypeAlias = tuple[str, str]
"""Key of a source and kind of its items: a server, too, may be called ``rules``."""

Sketch: TypeAlias = "Callable[[Sequence[str]], NDArray[np.float32] | None]"
"""Returns guesses of the vectors of texts, made without the model; None where it has none."""

Sketches: TypeAlias = "tuple[NDArray[np.intp], NDArray[np.float32]] | None"
"""Positions of items, and the sketch of each; None where there are none."""

MOST_SKETCHED = 5_000
"""Items that are sketched for the first search: a tenth of a millisecond each."""

SKETCHED_TOGETHER = 64
"""Texts after which other threads get their turn."""

SKETCHING_SECONDS = 0.5
"""Time after which the remaining items are not sketched: texts of hostile servers are long to make."""


class Filters(Struct, frozen=True):
    """Hard constraints: an item that does not meet them is not considered at all."""

    servers: frozenset[str] | None = None
    """Keys of sources, ``rules`` and ``references`` among them; None for all."""
    kinds: frozenset[Kind] | None = None
    """None for all."""
    without: frozenset[tuple[Kind, str]] = frozenset()
    """Items that are left out: kind, and exposed name of a tool or name of a document."""
    labels: frozenset[str] = frozenset()
    """Labels (`item_metadata`) that an item must have, all of them."""
    any_labels: frozenset[str] = frozenset()
    """Labels of which an item must have one; empty for no such constraint."""
    no_labels: frozenset[str] = frozenset()
    """Labels that an item must not have."""
    unfit: frozenset[ToolKey] = frozenset()
    """Tools that are left out, by server and own name."""
    proven: frozenset[ToolKey] | None = None
    """The only tools that are considered, by server and own name; None for all."""

    def allow(self, item: Item) -> bool:
        tool = item if isinstance(item, Tool) else None
        source = item.server or f"{item.kind}s"
        if self.servers is not None and source not in self.servers:
            return False
        if (self.kinds is not None and item.kind not in self.kinds) or key_of(item) in self.without:
            return False
        if tool is not None and (tool.server, tool.name) in self.unfit:
            return False
        if self.proven is not None and (tool is None or (tool.server, tool.name) not in self.proven):
            return False
        if not (self.labels or self.any_labels or self.no_labels):
            return True
        own = frozenset(metadata_of(item).labels())
        met = self.labels <= own and not self.no_labels & own
        return met and (not self.any_labels or bool(self.any_labels & own))


class Reading(Struct, frozen=True, eq=False):
    """Everything but terms and vectors that was read of some items, in their order."""

    items: tuple[Item, ...]
    texts: NDArray[np.int64]
    """Hashes of the texts of the items, item by item."""
    sizes: NDArray[np.int64]
    """Number of texts of each item."""
    kinds: NDArray[np.uint8]
    """Kind of each item, as a position in `KINDS`."""
    names: NDArray[np.int64]
    """[items, 2]: hashes of the keys of its own and its exposed name (`text.name_key`)."""
    known_labels: NDArray[np.int64]
    """Hashes of the labels that occur (`item_metadata`), ascending."""
    labels: Small
    """Positions of the labels of the items among these, item by item."""
    label_counts: NDArray[np.int64]
    """Number of labels of each item."""
    evidence: Evidence
    """Evidence of keyword stuffing."""
    actions: NDArray[np.uint8]
    """Action of each item, as `item_metadata.effect_of` returns it."""
    words: str
    """Words of the names of items and their parameters, with which misspelled words are corrected.

    One text with spaces: as objects of their own they would take ten times as much memory.
    """

    @classmethod
    def joined(cls, readings: Sequence[Reading]) -> Reading:
        known = np.concatenate([np.zeros(0, np.int64), *(one.known_labels for one in readings)])
        known, numbers = np.unique(known, return_inverse=True)
        numbered = np.split(numbers, np.cumsum([one.known_labels.size for one in readings]))
        labels = [own[one.labels] for one, own in zip(readings, numbered, strict=False)]
        return cls(
            tuple(chain.from_iterable(one.items for one in readings)),
            np.concatenate([np.zeros(0, np.int64), *(one.texts for one in readings)]),
            np.concatenate([np.zeros(0, np.int64), *(one.sizes for one in readings)]),
            np.concatenate([np.zeros(0, np.uint8), *(one.kinds for one in readings)]),
            np.concatenate([np.zeros((0, 2), np.int64), *(one.names for one in readings)]),
            known,
            small_numbers(np.concatenate([np.zeros(0, np.int64), *labels]), known.size),
            np.concatenate([np.zeros(0, np.int64), *(one.label_counts for one in readings)]),
            Evidence.joined([one.evidence for one in readings]),
            np.concatenate([np.zeros(0, np.uint8), *(one.actions for one in readings)]),
            " ".join(sorted({word for one in readings for word in one.words.split()})),
        )

    @classmethod
    def grouped(cls, readings: Sequence[Reading]) -> Reading:
        """Join several without what is asked of single sources alone: 60 bytes of each item."""
        none, nothing = np.zeros(0, np.int64), Evidence.joined([])
        return cls.joined([replace(one, texts=none, evidence=nothing) for one in readings])

    def take(self, places: NDArray[np.int64]) -> Reading:
        """Return the same of some of the items, in this order."""
        sizes, label_counts = self.sizes[places], self.label_counts[places]
        return Reading(
            tuple(self.items[place] for place in places),
            spans(self.texts, np.cumsum(self.sizes)[places] - sizes, sizes)[0],
            sizes,
            self.kinds[places],
            self.names[places],
            self.known_labels,
            spans(self.labels, np.cumsum(self.label_counts)[places] - label_counts, label_counts)[0],
            label_counts,
            self.evidence.take(places),
            self.actions[places],
            self.words,
        )

    def labelled(self, label: int) -> NDArray[np.intp]:
        """Return the places of the items that have a label, given by its hash."""
        at = int(self.known_labels.searchsorted(label))
        if at == self.known_labels.size or int(self.known_labels[at]) != label:
            return np.zeros(0, np.intp)
        found = np.flatnonzero(self.labels == at)
        return np.searchsorted(np.cumsum(self.label_counts), found, side="right")


class Part(Struct, frozen=True, eq=False):
    """One source in the index: its items as texts, term counts and vectors, read once and then shared.

    A part may be unfinished: then it has the first of its items, in their order.
    """

    source: Source
    several_servers: bool
    """True if the texts were made for a catalog of several servers."""
    suspicion: Suspicion | None
    """Reason why the descriptions are suspected of stuffing."""
    reading: Reading
    """The items that can be found, by name."""
    texts: tuple[tuple[str, ...], ...]
    """The texts of each item; none of a tool with vectors, or of one of many tools: they are made again."""
    counts: TermCounts
    rows: NDArray[np.int32]
    """Row of the vector of each text, in order; `NOWHERE` while its item is not ready."""
    ready: NDArray[np.bool_]
    """Items that have their vectors."""
    instructions: frozenset[str]
    """Index terms of the instructions of the server."""
    unread: int = 0
    """Number of items of the source that are left to read."""
    complete: bool = False
    """True if every item of the source has."""

    def unready(self) -> NDArray[np.int64]:
        """Return the hashes of the texts of the items that have no vectors yet."""
        return self.reading.texts[np.repeat(~self.ready, self.reading.sizes)]

    def texts_of(self, place: int) -> tuple[str, ...]:
        return self.texts[place] or item_text(self.reading.items[place], self.several_servers)[1]


Element = TypeVar("Element")


class Flat(Generic[Element]):
    """A sequence of the elements of several tuples.

    They are not copied: to count the references of 100,000 objects, which lie all over memory, takes 10 ms in
    which no other thread runs, and as much again when they are dropped.
    """

    __slots__ = ("_firsts", "_pieces")

    def __init__(self, pieces: Iterable[tuple[Element, ...]]) -> None:
        self._pieces = tuple(pieces)
        self._firsts = tuple(accumulate(map(len, self._pieces), initial=0))

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, at: int) -> Element:
        piece = bisect_right(self._firsts, at) - 1
        return self._pieces[piece][at - self._firsts[piece]]

    def __iter__(self) -> Iterator[Element]:
        return chain.from_iterable(self._pieces)


class Index(Struct, frozen=True, eq=False, dict=True):
    """Everything that a search needs of one snapshot."""

    snapshot: Snapshot
    parts: Mapping[Identity, Part]
    readings: tuple[Group[Reading, Reading], ...]
    """Readings of the parts, in order."""
    items: Flat[Item]
    several_servers: bool
    """True if the texts were made for a catalog of several servers."""
    sizes: NDArray[np.int64]
    """Number of texts of each item."""
    sources: NDArray[np.int32]
    """Source of each item, as a position in ``keys``."""
    keys: tuple[str, ...]
    suspected: Mapping[str, Suspicion]
    """Servers whose descriptions are suspected of stuffing, with the reason."""
    unsuspected: NDArray[np.bool_] | None
    """Items of other servers; None where no server is suspected."""
    kinds: NDArray[np.uint8]
    """Kind of each item, as a position in `KINDS`."""
    actions: NDArray[np.uint8]
    """Action of each item, as `item_metadata.effect_of` returns it."""
    ready: NDArray[np.bool_]
    """Items that have their vectors."""
    names: NDArray[np.int64]
    """[items, 2]: hashes of the two names of each."""
    pool: Pool
    """The vectors of this index and of those that follow it."""
    unread: int
    """Number of items of the snapshot that are not in it yet."""
    lexical: LexicalIndex
    dense: DenseIndex | None
    """None while there is no vector at all, and without a model."""
    note: str | None
    """Reason why there will be no vectors."""
    complete: bool
    """True if it is final; False after a model failure that may pass."""
    masks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Cached results of `labelled`."""
    served: dict[tuple[Purpose, bytes], list[int]] = field(default_factory=dict)
    """Cached results of `serving`."""
    instructions: list[dict[str, list[int]]] = field(default_factory=list)
    """Cached for `instructed`: by term, the sources whose instructions have it."""
    called: list[Called] = field(default_factory=list)
    """The cached result of `calls`."""
    twins: dict[int, dict[int, Tool]] = field(default_factory=dict)
    """Cached for tools with shared names: those with an equal definition, by position."""
    word_lists: list[WordList] = field(default_factory=list)
    """The cached result of `words`."""
    sketches: list[Sketches] = field(default_factory=list)
    """The cached result of `sketched`."""

    def passages(self) -> int:
        """Return the number of texts of all rules and references."""
        of_documents = (part for (_, kind), part in self.parts.items() if kind != Kind.TOOL)
        return sum(int(part.reading.sizes.sum()) for part in of_documents)

    def texts_of(self, item: int) -> tuple[str, ...]:
        source = int(self.sources[item])
        part = next(islice(self.parts.values(), source, None))
        return part.texts_of(item - int(self.lexical.firsts[source]))

    def words(self) -> WordList:
        """Return the words with which misspelled words of a query are corrected."""
        if not self.word_lists:
            names = chain.from_iterable(identifier_words(key).split() for key in self.keys)
            known = {*names, *(word for group in self.readings for word in group.whole.words.split())}
            self.word_lists.append(WordList(sorted(known)))
        return self.word_lists[0]

    def words_of(self, items: NDArray[np.bool_]) -> WordList:
        """Return the same of some items alone, given as a mask: the words of their names."""
        names = (self.items[at].name for at in np.flatnonzero(items).tolist())
        return WordList(sorted({word for name in names for word in identifier_words(name).split()}))

    def instructed(self, idf: Mapping[str, float]) -> NDArray[np.float32] | None:
        """Return, by source, the share of the idf of some terms that its instructions have; None without any.

        Those of a server that is suspected of stuffing count for nothing.
        """
        if not self.instructions:
            collected: dict[str, list[int]] = {}
            for at, part in enumerate(self.parts.values()):
                for term in part.instructions if part.source.key not in self.suspected else ():
                    collected.setdefault(term, []).append(at)
            self.instructions.append(collected)
        by_term = self.instructions[0]
        found = [(rarity, by_term[term]) for term, rarity in idf.items() if term in by_term]
        if not found:
            return None
        shares = np.zeros(len(self.keys), np.float32)
        for rarity, sources in found:
            shares[sources] += rarity
        return shares / np.float32(sum(idf.values()))

    def calls(self, hidden: frozenset[tuple[Kind, str]]) -> Called:
        """Return the words by which the sources are called, but for those with hidden items alone."""
        from mcp_context_proxy.retrieval.needs import called  # noqa: PLC0415 - for searches only

        if self.called and not hidden:
            return self.called[0]
        names = list(self.keys)
        if hidden:
            seen = np.unique(self.sources[self.allowed(Filters(without=hidden))])
            names = [key if at in seen else "" for at, key in enumerate(names)]
        words = called(names, [kind == Kind.TOOL for _, kind in self.parts])
        if not hidden:
            self.called.append(words)
        return words

    def sketched(self, sketch: Sketch) -> Sketches:
        """Return the sketches of items, in turn of every source, as the first searches need them."""
        if not self.sketches:
            own = np.arange(len(self.items)) - np.searchsorted(self.sources, self.sources)
            places = np.argsort(own, kind="stable")[:MOST_SKETCHED]
            found: list[NDArray[np.float32]] = []
            until = time.perf_counter() + SKETCHING_SECONDS
            for start in range(0, places.size, SKETCHED_TOGETHER):
                if time.perf_counter() >= until:
                    break
                block = places[start : start + SKETCHED_TOGETHER].tolist()
                if (some := sketch([self.texts_of(item)[0] for item in block])) is None:
                    break
                found.append(some)
            guesses = np.concatenate(found) if found else None
            self.sketches.append(None if guesses is None else (places[: len(guesses)], guesses))
        return self.sketches[0]

    @cached_property
    def shared_names(self) -> dict[int, list[int]]:
        """The items of each own name, as its hash, that several have."""
        own = self.names[:, 0]
        order = np.argsort(own, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(own[order])) + 1)
        return {int(own[one[0]]): one.tolist() for one in parts if one.size > 1}

    def named(self, keys: Iterable[str]) -> list[int]:
        """Return the items that have one of some names, given as `text.name_key` returns them."""
        return self._having(np.array([hash(key) for key in keys], np.int64))

    def meant(self, key: str) -> list[int]:
        """Return the items that a name means: where it is the full name of one, no other's own name."""
        found = self.named([key])
        return [at for at in found if self.names[at, 1] == hash(key)] or found

    def serving(self, purpose: Purpose, allowed: NDArray[np.bool_]) -> list[int]:
        """Return the allowed items, ascending, that serve a general purpose, or else the one instead of it.

        They are the same for all requests, so they are looked for once.
        """
        key = purpose, np.packbits(allowed).tobytes()
        if (known := self.served.get(key)) is not None:
            return known
        words = np.where(allowed, self.lexical.score(purpose.words).scores, np.float32(0))
        worded = np.flatnonzero(words)
        looked_for = worded[best(words[worded], SERVING_LOOKED_FOR)].tolist()
        tools = ((item, self.items[item]) for item in looked_for)
        found = [item for item, tool in tools if isinstance(tool, Tool) and purpose.is_served_by(tool)]
        if not found and purpose.otherwise is not None:
            found = self.serving(purpose.otherwise, allowed)
        if len(self.served) < SERVING_KEPT:
            self.served[key] = found
        return found

    def suspicion(self, item: int) -> Suspicion | None:
        """Return the suspicion against an item's server."""
        of = self.items[item]
        return self.suspected.get(of.server) if isinstance(of, Tool) else None

    def has_label(self, label: str) -> bool:
        return any(hash(label) in group.whole.known_labels for group in self.readings)

    def nearness(self, vector: NDArray[np.float32], allowed: NDArray[np.bool_]) -> float:
        """Return the highest cosine of a text with any item that may be found."""
        if self.dense is None or not allowed.any():
            return 0.0
        words, text = np.where(allowed, np.float32(0), np.float32(-np.inf)), vector[None]
        near = self.dense.of(self.dense.candidates(text, words, ()))
        return float(near.cosines(text).max(initial=0))

    def allowed(self, filters: Filters) -> NDArray[np.bool_]:
        """Return a mask of the items that meet the filters, as `Filters.allow` would for each of them."""
        met = np.ones(len(self.items), bool)
        if filters.servers is not None:
            met &= np.array([key in filters.servers for key in self.keys], bool)[self.sources]
        if filters.kinds is not None:
            met &= np.array([kind in filters.kinds for kind in KINDS], bool)[self.kinds]
        for label in filters.labels:
            met &= self._labelled(label)
        if filters.any_labels:
            met &= np.logical_or.reduce([self._labelled(label) for label in filters.any_labels])
        for label in filters.no_labels:
            met &= ~self._labelled(label)
        if filters.proven is not None:
            proven = np.zeros(met.size, bool)
            proven[self._tools(filters.proven)] = True
            met &= proven
        met[self._tools(filters.unfit)] = False
        if filters.without:
            named = self._having(np.array([_hashed(name) for _, name in filters.without], np.int64))
            met[[at for at in named if key_of(self.items[at]) in filters.without]] = False
        return met

    def _having(self, hashes: NDArray[np.int64]) -> list[int]:
        # Both names of all items as one row: to look at them in pairs takes thirty times as long.
        names = self.names.ravel()
        places = np.flatnonzero(names == hashes[0] if hashes.size == 1 else np.isin(names, hashes))
        return sorted(set((places // self.names.shape[1]).tolist()))

    def _labelled(self, label: str) -> NDArray[np.bool_]:
        """Return a mask of the items that have a label; shared, not to be changed."""
        found = self.masks.get(label)
        if found is None:
            found, first = np.zeros(len(self.items), bool), 0
            for group in self.readings:
                found[first + group.whole.labelled(hash(label))] = True
                first += group.size
            if len(self.masks) < MASKS_KEPT:
                self.masks[label] = found
        return found

    def _tools(self, keys: frozenset[ToolKey]) -> list[int]:
        """Return the positions of tools that are given by server and own name."""
        if not keys:
            return []
        # One number for server and name: many servers have a tool of the same name.
        own = np.array([hash(key) for key in self.keys], np.int64)[self.sources] ^ self.names[:, 0]
        wanted = np.array([hash(server) ^ _hashed(name) for server, name in keys], np.int64)
        return [
            at
            for at in np.flatnonzero(np.isin(own, wanted)).tolist()
            if isinstance(tool := self.items[at], Tool) and (tool.server, tool.name) in keys
        ]


class QueryWords(Struct, frozen=True, eq=False):
    """Everything that the words of a query tell about an index."""

    lexical: LexicalScores
    instructed: NDArray[np.float32] | None
    """By source, the share of the query that the instructions of the server have."""
    addressed: Mapping[int, float]
    """Sources that the query names, each with the amount by which the items of others count less."""
    named: list[int]
    """Items whose name the query is."""

    @classmethod
    def of(cls, query: ReadQuery, index: Index, calls: Called, address: Address | None) -> QueryWords:
        from mcp_context_proxy.retrieval.needs import addressed  # noqa: PLC0415 - for searches only

        lexical = index.lexical.score(query.counted)
        if address is None:
            named = addressed("".join(query.texts[:1]), calls)
            preferred = {at: ADDRESSED if own else ADDRESSED_OTHERWISE for at, own in named.items()}
        else:
            preferred = dict.fromkeys(address.servers, ADDRESSED_ALONE)
        return cls(
            lexical,
            index.instructed({t: lexical.idf[t] for t in query.asked if t in lexical.idf}),
            preferred,
            index.meant(name_key(query.written)),
        )


@lru_cache(maxsize=NAMES_KEPT)
def _hashed(name: str) -> int:
    return hash(name_key(name))


def assemble(
    snapshot: Snapshot,
    parts: Mapping[Identity, Part],
    pool: Pool,
    *,
    unread: int = 0,
    note: str | None = None,
    complete: bool = False,
    previous: Index | None = None,
) -> Index:
    """Build an index of some parts; groups that did not change since the previous index are shared."""
    sizes = [len(part.reading.items) for part in parts.values()]
    readings = grouped(
        list(zip((part.reading for part in parts.values()), sizes, strict=True)),
        ITEMS_A_GROUP,
        Reading.grouped,
        () if previous is None else previous.readings,
    )
    wholes = [group.whole for group in readings]
    found = suspected({key: part.suspicion for (key, kind), part in parts.items() if kind == Kind.TOOL})
    is_unsuspected = [kind != Kind.TOOL or key not in found for key, kind in parts]
    unsuspected = np.repeat(is_unsuspected, sizes) if found else None
    index = Index(
        snapshot=snapshot,
        parts=parts,
        readings=tuple(readings),
        items=Flat(whole.items for whole in wholes),
        several_servers=any(part.several_servers for part in parts.values()),
        sizes=np.concatenate([np.zeros(0, np.int64), *(whole.sizes for whole in wholes)]),
        sources=np.repeat(np.arange(len(parts), dtype=np.int32), sizes),
        keys=tuple(part.source.key for part in parts.values()),
        suspected=found,
        unsuspected=unsuspected,
        kinds=np.concatenate([np.zeros(0, np.uint8), *(whole.kinds for whole in wholes)]),
        actions=np.concatenate([np.zeros(0, np.uint8), *(whole.actions for whole in wholes)]),
        ready=np.zeros(0, bool),
        names=np.concatenate([np.zeros((0, 2), np.int64), *(whole.names for whole in wholes)]),
        pool=pool,
        unread=unread,
        lexical=LexicalIndex.build(
            [part.counts for part in parts.values()],
            None if previous is None else previous.lexical,
            unsuspected,
        ),
        dense=None,
        note=note,
        complete=complete,
    )
    index = with_vectors(index, parts, pool, complete)
    return index if note is None else replace(index, dense=None)


def with_vectors(index: Index, parts: Mapping[Identity, Part], pool: Pool, complete: bool = False) -> Index:
    """Return the same index with the vectors that its parts have by now."""
    ready = np.concatenate([np.zeros(0, np.bool_), *(part.ready for part in parts.values())])
    dense = None
    if ready.any():
        rows = np.concatenate([part.rows for part in parts.values()])
        dense = DenseIndex(pool.vectors, rows, index.sizes)
    index = replace(index, parts=parts, pool=pool, ready=ready, dense=dense, complete=complete)
    return replace(index, sketches=[]) if complete else index


def lexical_only(index: Index, error: ModelError) -> Index:
    """Return the same index for a model that fails; the vectors stay in its parts for the next one."""
    return replace(index, dense=None, note=f"Searched by words only: {error}.", complete=not error.passing)
