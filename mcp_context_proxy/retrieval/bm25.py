"""Lexical search: BM25F over arrays of term counts, which are weighted for each query.

The score is that of Robertson, Zaragoza and Taylor, "Simple BM25 extension to multiple weighted fields"
(CIKM 2004), with length normalisation per field. For a query term
``x = sum over fields of weight * count / (1 - b + b * length / average length)``, and the term adds
``idf * x * (k1 + 1) / (k1 + x)`` with ``idf = ln(1 + (N - df + 0.5) / (df + 0.5))``. The factor k1 + 1 is
that of Okapi BM25: it changes no order, but the fusion with the cosine depends on it.

Counts are kept per source as they are read (`TermCounts`, by item) and sorted by term for groups of about
4,096 items (`Postings`). A change of the catalog sorts only the groups anew in which something changed, and a
search looks at tens of arrays instead of one for each of thousands of servers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct

from mcp_context_proxy.retrieval.item_metadata import Fields
from mcp_context_proxy.retrieval.text import terms
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

K1 = 1.2
"""Saturation: the lower, the sooner repetitions stop counting. 0.6 to 2 moved recall by less than a point."""

B = 0.75
"""Length normalisation: the higher, the more a long field counts against its terms. 0.4 to 0.9 moved recall
by less than a point."""

FIELDS = Fields.__struct_fields__

WEIGHTS: Final[Mapping[str, float]] = {
    "name": 2.0,
    "description": 1.0,
    "parameters": 1.0,
    "parameter_descriptions": 0.5,
    "server": 1.0,
    "text": 0.5,
    "title": 1.0,
    "values": 0.5,
    "labels": 0.5,
    "use_cases": 1.0,
}
"""By field. On 428 requests for 33 real lists, titles change nothing beyond chance, with 1 or 2; values gain
0.2 points of recall@5 with 0.5, and take half a point of recall@1 with 1."""

MAX_COUNT, MAX_COUNT_OF_TEXT = 5, 65_535
"""Highest count of one term in a field, and in the text of a document, which may repeat a word often. A
description that repeats the names of other tools a thousand times would otherwise come before them: its
repetitions count for more than its length counts against it. Six public sets have the same recall@5 with 5 as
without a bound; with 3 one has 0.4 points less."""

ITEMS_A_GROUP = 4_096
"""Items whose counts are sorted together: a changed item costs 10 ms, and a query of 100,000 items looks at
25 groups."""

Occurrences: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]"
"""Pairs of a term and an item that has it, with the weighted count over all fields."""

Small: TypeAlias = "NDArray[np.integer[Any]]"
"""Numbers of which there are very many, in the shortest type that has room for them."""


class LexicalScores(Struct, frozen=True, eq=False):
    """The scores of all items for the words of a query."""

    scores: NDArray[np.float32]
    """BM25F of every item."""
    idf: Mapping[str, float]
    """Inverse document frequency of each term times its weight; highest for one that does not occur."""
    weights: Mapping[str, float]
    """Weight of each term."""
    frequencies: NDArray[np.intp]
    """Number of items that have each term, of those that count."""
    items: int
    """Number of items that count in the frequencies."""
    occurrences: Occurrences
    """Pairs of a term, by its place among the weights, and an item that has it, with what the item has of it:
    the share of the term's idf that it adds to the score."""

    def of(self, terms: Collection[str]) -> NDArray[np.float32]:
        """Return the scores of all items for some of the terms alone."""
        rarity = np.array([self.idf[term] if term in terms else 0.0 for term in self.weights])
        return self._summed(rarity).astype(np.float32)

    def among(self, more: int, shares: Mapping[str, float]) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Return scores and idf as they were in a catalog with more items, each term in a share of these.

        In a small catalog every word is rare. There "get" and "name" would say as much as "invoice".
        """
        further = more * np.array([shares.get(term, 0.0) for term in self.weights])
        rarity = _rarity(self.items + more, self.frequencies + further)
        rarity *= np.fromiter(self.weights.values(), np.float64, len(self.weights))
        return self._summed(rarity), dict(zip(self.weights, rarity.tolist(), strict=True))

    def _summed(self, rarity: NDArray[np.float64]) -> NDArray[np.float64]:
        which, having, share = self.occurrences
        summed: NDArray[Any] = np.bincount(having, rarity.take(which) * share, self.scores.size)
        return summed


class LexicalIndex(Struct, frozen=True, eq=False, dict=True):
    """BM25F of every term in every item.

    Weights depend on the whole catalog and are computed for each query, so that a changed item costs only its
    group.
    """

    counts: tuple[TermCounts, ...]
    firsts: NDArray[np.int64]
    """First item of each of these counts, then the number of all items."""
    groups: tuple[Group[TermCounts, Postings], ...]
    unsuspected: NDArray[np.bool_] | None
    """Items that count in document frequencies and average lengths; None for all."""

    @classmethod
    def build(
        cls,
        counts: Sequence[TermCounts],
        before: LexicalIndex | None = None,
        unsuspected: NDArray[np.bool_] | None = None,
    ) -> LexicalIndex:
        """Index the counts of a whole catalog; unchanged groups of the index before are shared."""
        unchanged = before is not None and list(map(id, counts)) == list(map(id, before.counts))
        if before is not None and unchanged and before.unsuspected is unsuspected is None:
            return before
        sizes = [len(part.lengths) for part in counts]
        known = before.groups if before is not None else ()
        groups = grouped(list(zip(counts, sizes, strict=True)), ITEMS_A_GROUP, Postings.of, known)
        return cls(tuple(counts), np.cumsum([0, *sizes]), tuple(groups), unsuspected)

    def score(self, weights: Mapping[str, float]) -> LexicalScores:
        """Score every item for some terms, each of which counts once, by its weight."""
        return self._scored(weights, self._weighted_counts(list(weights)))

    def score_with_shares(self, weights: Mapping[str, float]) -> tuple[LexicalScores, NDArray[np.float64]]:
        """Score every item, and return with it the share of the terms' idf that each has; see `shares`."""
        occurrences = self._weighted_counts(list(weights))
        scored = self._scored(weights, occurrences)
        return scored, self._shared(scored.idf, occurrences)

    def _scored(self, weights: Mapping[str, float], occurrences: Occurrences) -> LexicalScores:
        terms = list(weights)
        items, scores = int(self.firsts[-1]), np.zeros(int(self.firsts[-1]), np.float32)
        which, having, x = occurrences
        shares = _saturated(x)
        counted = which
        if self.unsuspected is not None:
            items, counted = int(self.unsuspected.sum()), which[self.unsuspected[having]]
        frequencies = np.bincount(counted, minlength=len(terms))
        rarity = _rarity(items, frequencies)
        rarity *= np.fromiter(weights.values(), np.float64, len(terms))
        added = rarity.astype(np.float32).take(which)
        added *= shares
        np.add.at(scores, having, added)
        # A term that does not occur is in no score, and its idf keeps all its digits.
        exact = np.where(frequencies > 0, rarity.astype(np.float32), rarity)
        return LexicalScores(
            scores=scores,
            idf=dict(zip(terms, exact.tolist(), strict=True)),
            weights=weights,
            frequencies=frequencies,
            items=items,
            occurrences=(which, having, shares),
        )

    def shares(self, idf: Mapping[str, float]) -> NDArray[np.float64]:
        """Return the share by item of the idf of some terms that it has, 0 to 1."""
        return self._shared(idf, self._weighted_counts(list(idf)))

    def _shared(self, idf: Mapping[str, float], occurrences: Occurrences) -> NDArray[np.float64]:
        which, having, _ = occurrences
        rarity = np.fromiter(idf.values(), np.float64, len(idf))
        total = rarity.sum() or 1.0
        found = np.bincount(having, rarity[which], int(self.firsts[-1])) / total
        # Sums in another order may exceed the whole by a rounding.
        return np.minimum(np.round(found, 9), 1.0)

    def has(self, term: str) -> bool:
        """Return whether any item has a term."""
        number = hash(term)
        for group in self.groups:
            known = group.whole.vocabulary
            at = int(np.searchsorted(known, number))
            if at < known.size and int(known[at]) == number:
                return True
        return False

    def has_among(self, term: str, items: NDArray[np.bool_]) -> bool:
        """Return whether any of some items, given as a mask, has a term."""
        _, having, _ = self._weighted_counts([term])
        return bool(items[having].any())

    def parts(self, items: Sequence[int], idf: Mapping[str, float]) -> list[list[tuple[str, str, float]]]:
        """Return the score of each of some items by field and term, in the order of the query's terms."""
        terms, hashes = list(idf.items()), np.array([hash(term) for term in idf], np.int64)
        norms, by_source = self.norms.reshape(-1, len(FIELDS)), dict[int, dict[int, int]]()
        sources = (self.firsts.searchsorted(items, side="right") - 1).tolist()
        found = []
        for item, source in zip(items, sources, strict=True):
            counted, local = self.counts[source], item - int(self.firsts[source])
            if (asked := by_source.get(source)) is None:
                asked = by_source[source] = counted.places_of(hashes)
            row = slice(counted.offsets[local], counted.offsets[local + 1])
            # Few numbers are left: plain integers and floats are faster than arrays of one or two.
            at = [place for place, number in enumerate(counted.terms[row].tolist()) if number in asked]
            fields = counted.fields[row].take(at)
            shares = (counted.counts[row].take(at) * norms[item].take(fields)).tolist()
            by_term = dict[int, list[tuple[str, float]]]()
            for number, field, share in zip(
                counted.terms[row].take(at).tolist(), fields.tolist(), shares, strict=True
            ):
                by_term.setdefault(asked[number], []).append((FIELDS[field], share))
            own = list[tuple[str, str, float]]()
            for term, having in sorted(by_term.items()):
                factor = terms[term][1] * (K1 + 1) / (math.fsum(share for _, share in having) + K1)
                own += [(field, terms[term][0], factor * share) for field, share in having]
            found.append(own)
        return found

    @cached_property
    def norms(self) -> NDArray[np.float32]:
        """[items * fields]: field weight over length normalisation.

        Averages are over the items that have the field: a few documents must not make tools look short.
        """
        wholes = [group.whole for group in self.groups]
        having = sum((whole.having for whole in wholes), np.zeros(len(FIELDS), np.int64))
        totals = sum((whole.totals for whole in wholes), np.zeros(len(FIELDS)))
        if self.unsuspected is not None:
            suspected = np.concatenate([whole.lengths for whole in wholes])[~self.unsuspected]
            having = having - (suspected > 0).sum(axis=0)
            totals = totals - suspected.sum(axis=0, dtype=np.float64)
        average = np.maximum(totals / np.maximum(having, 1), 1.0)
        norms = np.empty((int(self.firsts[-1]), len(FIELDS)), np.float32)
        weights = np.array([WEIGHTS[field] for field in FIELDS], np.float32)
        for group, first in self._placed_groups():
            norms[first : first + group.size] = weights / (1 - B + B * group.whole.lengths / average)
        return norms.ravel()

    def _weighted_counts(self, terms: Sequence[str]) -> Occurrences:
        """Return each pair of a term and an item that has it, with x: its weighted count over all fields.

        The pairs are in the order of the terms, then of the items.
        """
        hashes = np.array([hash(term) for term in terms], np.int64)
        by_term: list[list[tuple[NDArray[np.int32], Small]]] = [[] for _ in terms]
        for group, first in self._placed_groups():
            whole, shift = group.whole, np.int32(first * len(FIELDS))
            if not whole.vocabulary.size:
                continue
            places = np.minimum(np.searchsorted(whole.vocabulary, hashes), whole.vocabulary.size - 1)
            starts, ends = whole.offsets[places], whole.offsets[places + 1]
            for at in np.flatnonzero(whole.vocabulary[places] == hashes).tolist():
                span = slice(starts[at], ends[at])
                by_term[at].append((whole.cells[span] + shift, whole.counts[span]))
        pairs = list(chain.from_iterable(by_term))
        cells = np.concatenate([np.zeros(0, np.int32), *(own for own, _ in pairs)])
        counts = np.concatenate([np.zeros(0, np.uint8), *(own for _, own in pairs)])
        sizes = [sum(own.size for own, _ in pieces) for pieces in by_term]
        # The cells of one term in one item (its fields) lie side by side; `is_first` marks where a new pair
        # of term and item begins, and the weighted counts from one mark to the next are added up.
        items = cells // np.int32(len(FIELDS))
        is_first = np.ones(items.size, bool)
        np.not_equal(items[1:], items[:-1], out=is_first[1:])
        ends = np.cumsum(sizes, dtype=np.intp)
        is_first[ends[ends < items.size]] = True
        (firsts,) = is_first.nonzero()
        weighted = self.norms.take(cells)
        weighted *= counts
        added = np.add.reduceat(weighted, firsts) if firsts.size else weighted
        which = np.repeat(np.arange(len(terms), dtype=np.int32), sizes)
        return which.take(firsts), items.take(firsts), added

    def _placed_groups(self) -> Iterator[tuple[Group[TermCounts, Postings], int]]:
        """Yield each group with the position of its first item."""
        return zip(self.groups, accumulate((group.size for group in self.groups), initial=0), strict=False)


def _rarity(items: int, frequencies: NDArray[Any]) -> NDArray[np.float64]:
    rarity: NDArray[np.float64] = np.log1p((items - frequencies + 0.5) / (frequencies + 0.5))
    return rarity


def _saturated(x: NDArray[np.float32]) -> NDArray[np.float32]:
    saturated: NDArray[np.float32] = x * np.float32(K1 + 1) / (x + np.float32(K1))
    return saturated


class TermCounts(Struct, frozen=True, eq=False):
    """Counts of each term in each field of some items: compressed rows, one per item.

    Terms are kept as their hash in this process, so that the counts of different sources need no common
    vocabulary.
    """

    offsets: NDArray[np.int64]
    """Row of item i: ``offsets[i]:offsets[i + 1]``."""
    vocabulary: NDArray[np.int64]
    """Hashes of all terms that occur, ascending."""
    terms: Small
    """Positions in the vocabulary."""
    fields: NDArray[np.uint8]
    counts: Small
    lengths: Small
    """[items, fields], in terms."""

    def places_of(self, hashes: NDArray[np.int64]) -> dict[int, int]:
        """Return terms that occur, by position in the vocabulary, each with its place among the hashes."""
        if not self.vocabulary.size:
            return {}
        positions = np.minimum(self.vocabulary.searchsorted(hashes), self.vocabulary.size - 1)
        (known,) = (self.vocabulary[positions] == hashes).nonzero()
        return dict(zip(positions[known].tolist(), known.tolist(), strict=True))

    def take(self, rows: NDArray[np.int64]) -> TermCounts:
        """Return the counts of some of the items, in this order."""
        sizes = np.diff(self.offsets)[rows]
        offsets = np.append(0, np.cumsum(sizes))
        at = np.repeat(self.offsets[rows] - offsets[:-1], sizes) + np.arange(offsets[-1])
        occurring = self.terms[at]
        is_used = np.zeros(self.vocabulary.size, bool)
        is_used[occurring] = True
        (used,) = is_used.nonzero()
        terms = (np.cumsum(is_used) - 1)[occurring]
        return TermCounts(
            offsets,
            self.vocabulary[used],
            _small(terms, used.size),
            self.fields[at],
            self.counts[at],
            self.lengths[rows],
        )


def count_terms(items: Iterable[Fields]) -> TermCounts:
    """Tokenise and count some items."""
    occurring, lengths = list[int](), list[int]()
    for item in items:
        for field in FIELDS:
            text = getattr(item, field)
            found = terms(text) if text else []
            occurring += map(hash, found)
            lengths.append(len(found))
    by_field = np.array(lengths, np.int64).reshape(-1, len(FIELDS))
    vocabulary, numbered = np.unique(np.array(occurring, np.int64), return_inverse=True)
    # One number for item, field and term, so that counting is one sort.
    cells = np.repeat(np.arange(by_field.size) * max(vocabulary.size, 1), by_field.ravel())
    both, counts = np.unique(cells + numbered, return_counts=True)
    cells, numbered = np.divmod(both, max(vocabulary.size, 1))
    most = np.array([MAX_COUNT_OF_TEXT if field == "text" else MAX_COUNT for field in FIELDS])
    counts = np.minimum(counts, most[cells % len(FIELDS)])
    return TermCounts(
        np.searchsorted(cells, np.arange(len(by_field) + 1) * len(FIELDS)),
        vocabulary,
        _small(numbered, vocabulary.size),
        (cells % len(FIELDS)).astype(np.uint8),
        _small(counts, int(counts.max(initial=0))),
        _small(by_field, int(by_field.max(initial=0))),
    )


def join_counts(parts: Sequence[TermCounts]) -> TermCounts:
    """Return the counts of several groups of items as those of one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return count_terms(())
    vocabulary, numbers = np.unique(np.concatenate([part.vocabulary for part in parts]), return_inverse=True)
    numbered = np.split(numbers.astype(np.int32), np.cumsum([part.vocabulary.size for part in parts])[:-1])
    shifts = np.cumsum([0, *(part.terms.size for part in parts)])
    offsets = [part.offsets[1:] + shift for part, shift in zip(parts, shifts, strict=False)]
    return TermCounts(
        np.concatenate([np.zeros(1, np.int64), *offsets]),
        vocabulary,
        _small(
            np.concatenate([own[part.terms] for part, own in zip(parts, numbered, strict=True)]),
            vocabulary.size,
        ),
        np.concatenate([part.fields for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


class Postings(Struct, frozen=True, eq=False):
    """The counts of a group of items, by term."""

    vocabulary: NDArray[np.int64]
    """Hashes of all terms, ascending."""
    offsets: NDArray[np.int64]
    """Term t has ``cells[offsets[t]:offsets[t + 1]]``."""
    cells: Small
    """Places where a term occurs, ascending: ``item * len(FIELDS) + field``."""
    counts: Small
    lengths: Small
    """[items, fields], in terms."""
    totals: NDArray[np.float64]
    """[fields]: the sum of the lengths."""
    having: NDArray[np.int64]
    """[fields]: how many items have the field."""

    @classmethod
    def of(cls, members: Sequence[TermCounts]) -> Postings:
        """Sort the counts of some items by term."""
        joined = join_counts(members)
        item_of = np.repeat(np.arange(len(joined.lengths), dtype=np.int32), np.diff(joined.offsets))
        cells = item_of * np.int32(len(FIELDS)) + joined.fields
        # A stable argsort, several times as fast as numpy's: terms and places are sorted as one number.
        together = np.sort(joined.terms.astype(np.int64) << 32 | np.arange(joined.terms.size))
        order = together & 0xFFFF_FFFF
        sizes = np.bincount(joined.terms, minlength=joined.vocabulary.size)
        return cls(
            joined.vocabulary,
            np.append(0, np.cumsum(sizes)),
            _small(cells[order], joined.lengths.size),
            joined.counts[order],
            joined.lengths,
            joined.lengths.sum(axis=0, dtype=np.float64),
            (joined.lengths > 0).sum(axis=0),
        )


def _small(numbers: Small, highest: int) -> Small:
    """Return numbers in as little memory as they need: there are some fifty for each tool."""
    for kind in (np.uint8, np.uint16):
        if highest <= np.iinfo(kind).max:
            return numbers.astype(kind)
    return numbers.astype(np.int32)


Member = TypeVar("Member")
Whole = TypeVar("Whole")
Element = TypeVar("Element")


class Group(Struct, Generic[Member, Whole], frozen=True, eq=False):
    """Consecutive members and the array that was made of them."""

    members: tuple[Member, ...]
    size: int
    whole: Whole


def grouped(
    members: Sequence[tuple[Member, int]],
    enough: int,
    join: Callable[[Sequence[Member]], Whole],
    before: Iterable[Group[Member, Whole]] = (),
) -> list[Group[Member, Whole]]:
    """Divide members into groups of about ``enough``, in order, and reuse groups that did not change.

    Where a group of ``before`` begins with the next member and all its members follow in the same order, it
    is taken over as it is. All other members are collected, and joined as soon as they are ``enough``. A
    small group that follows collected members is joined with them, or changes would leave more and more small
    groups.

    Args:
        members: Each with its size.
        enough: Size from which on a group takes no more members.
        join: Makes one of several.
        before: Groups of an earlier call, recognised by the identity of their members.
    """
    known = {id(group.members[0]): group for group in before}
    made: list[Group[Member, Whole]] = []
    collected: list[tuple[Member, int]] = []

    def flush() -> None:
        if collected:
            own = tuple(member for member, _ in collected)
            made.append(Group(own, sum(size for _, size in collected), join(own)))
            collected.clear()

    at = collected_size = 0
    while at < len(members):
        group = known.get(id(members[at][0]))
        following = members[at : at + (len(group.members) if group else 1)]
        if group is not None and list(map(id, group.members)) != [id(member) for member, _ in following]:
            group, following = None, members[at : at + 1]
        if group is not None and not (collected and group.size < enough):
            flush()
            made.append(group)
        else:
            collected += following
        collected_size = collected_size + sum(size for _, size in following) if collected else 0
        if collected_size >= enough:
            flush()
            collected_size = 0
        at += len(following)
    flush()
    return made


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


FIELDS_NAMED = 2
"""Fields that a result's reasons name: those that added most."""

WORDS_NAMED = 4
"""Words of a field that the reasons repeat."""

FIELD_REASONS = {
    "name": "name matches",
    "description": "description mentions",
    "parameters": "parameters match",
    "parameter_descriptions": "parameters mention",
    "server": "server matches",
    "text": "text mentions",
    "title": "title matches",
    "values": "values of parameters match",
    "labels": "tags match",
    "use_cases": "use cases mention",
}


def lexical_reasons(
    parts: Sequence[tuple[str, str, float]], words: Mapping[str, str], asked: Collection[str]
) -> list[str]:
    """Return reasons for a person by the score of an item by field and term.

    Args:
        parts: The score, as field, index term and amount.
        words: The word of each term.
        asked: Terms of the query itself.
    """
    by_field: dict[str, float] = {}
    for at, _, added in parts:
        by_field[at] = by_field.get(at, 0.0) + added
    reasons = []
    for name in sorted(by_field, key=lambda name: -by_field[name])[:FIELDS_NAMED]:
        terms = [term for at, term, _ in parts if at == name]
        named = sorted(terms, key=lambda term: term not in asked)[:WORDS_NAMED]
        own = " ".join(words[term] for term in named if term in asked)
        alike = [words[term] for term in named if term not in asked]
        matched = [f"'{own}'"] if own else []
        if alike:
            matched.append(f"synonym{'s' if len(alike) > 1 else ''} '{' '.join(alike)}'")
        reasons.append(f"{FIELD_REASONS[name]} {' and '.join(matched)}")
    return reasons
