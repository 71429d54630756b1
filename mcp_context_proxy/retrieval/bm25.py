"""Lexical search: BM25F over arrays of term counts, which are weighted for each query.

The score is that of Robertson, Zaragoza and Taylor, "Simple BM25 extension to multiple weighted fields"
(CIKM 2004), with length normalisation per field. For a query term
``x = sum over fields of weight * count / (1 - b + b * length / average length)``, and the term adds
``idf * x * (k1 + 1) / (k1 + x)`` with ``idf = ln(1 + (N - df + 0.5) / (df + 0.5))``. The factor k1 + 1 is
that of Okapi BM25: it changes no order, but the fusion with the cosine depends on it.

Counts are kept by term (`Postings`), first those of each source as it is read, then those of groups of about
4,096 items alone. A change of the catalog sorts only the groups anew in which something changed, and a search
looks at tens of arrays instead of one for each of thousands of servers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct

from mcp_context_proxy.retrieval.item_metadata import Fields
from mcp_context_proxy.retrieval.text import terms
from mcp_context_proxy.retrieval.vectors import small_numbers
from mcp_context_proxy.system.later import NDArray, np

K1 = 1.2
"""Saturation: the lower, the sooner repetitions stop counting. 0.6 to 2 moved recall by less than a point."""

B = 0.75
"""Length normalisation: the higher, the more long fields count against their terms. 0.4 to 0.9 are alike."""

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
description that repeats the names of other tools a thousand times would otherwise come before them. Six
public sets have the same recall@5 with 5 as without a bound; with 3 one has 0.4 points less."""

ITEMS_A_GROUP = 4_096
"""Items whose counts are sorted together: a changed item costs 10 ms, a query of 100,000 items 25 looks."""

TERMS_KEPT, PAIRS_KEPT = 1_000, 1_000_000
"""Terms whose weighted counts are kept, and pairs of a term and an item among them, in some 8 MB."""

Occurrences: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]"
"""Pairs of a term and an item that has it, with the weighted count over all fields."""

_OfTerm: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.float32]]"
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
        sizes = [part.size for part in counts]
        known = before.groups if before is not None else ()
        groups = grouped(list(zip(counts, sizes, strict=True)), ITEMS_A_GROUP, TermCounts.grouped, known)
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
        number = hash(term)
        for group in self.groups:
            known = group.whole.vocabulary
            at = int(known.searchsorted(number))
            if at < known.size and int(known[at]) == number:
                return True
        return False

    def has_among(self, term: str, items: NDArray[np.bool_]) -> bool:
        """Return whether any of some items, given as a mask, has a term."""
        _, having, _ = self._weighted_counts([term])
        return bool(items[having].any())

    def parts(self, items: Sequence[int], idf: Mapping[str, float]) -> list[list[tuple[str, str, float]]]:
        """Return the score of each of some items by field and term, in the order of the query's terms."""
        if not items:
            return []
        hashes, found = np.array([hash(term) for term in idf], np.int64), [list[Any]() for _ in items]
        placed, by_group = list(self._placed_groups()), dict[int, list[int]]()
        for at, number in enumerate(np.searchsorted([first for _, first in placed], items, "right").tolist()):
            by_group.setdefault(number - 1, []).append(at)
        for number, among in by_group.items():
            whole, shift = placed[number][0].whole, placed[number][1] * len(FIELDS)
            begins = np.array([items[at] for at in among]) * len(FIELDS) - shift
            ends = np.stack([begins, begins + len(FIELDS)], axis=1).astype(whole.cells.dtype)
            having, at_cells = list[tuple[int, str, float, int]](), list[int]()
            for (term, rarity), (start, end) in zip(idf.items(), whole.spans(hashes), strict=True):
                if start < end:
                    for at, (low, high) in zip(
                        among, whole.cells[start:end].searchsorted(ends).tolist(), strict=True
                    ):
                        if low < high:
                            having.append((at, term, rarity, high - low))
                            at_cells += range(start + low, start + high)
            cells = whole.cells[at_cells].astype(np.int64)
            added = zip(
                (cells % len(FIELDS)).tolist(),
                (whole.counts[at_cells] * self.norms.take(cells + shift)).tolist(),
                strict=True,
            )
            for at, term, rarity, size in having:
                own = list(islice(added, size))
                factor = rarity * (K1 + 1) / (math.fsum(share for _, share in own) + K1)
                found[at] += [(FIELDS[field], term, factor * share) for field, share in own]
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

        The pairs are in the order of the terms, then of the items. Those of the latest queries are kept.
        """
        known = self._known_counts
        found = {term: known.get(term) for term in terms}
        if missing := [term for term in terms if found[term] is None]:
            which, *pairs = self._counted(missing)
            ends = np.searchsorted(which, np.arange(1, len(missing)))
            of_missing = zip(*(np.split(one, ends) for one in pairs), strict=True)
            known.keep(fresh := dict(zip(missing, of_missing, strict=True)))
            found |= fresh
        none = np.zeros(0, np.int32), np.zeros(0, np.float32)
        items, added = zip(none, *(pairs for pairs in found.values() if pairs is not None), strict=True)
        which = np.repeat(np.arange(len(terms), dtype=np.int32), [own.size for own in items[1:]])
        return which, np.concatenate(items), np.concatenate(added)

    @cached_property
    def _known_counts(self) -> _KnownCounts:
        return _KnownCounts()

    def _counted(self, terms: Sequence[str]) -> Occurrences:
        """Return the weighted counts of some terms."""
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


class _KnownCounts(dict[str, "_OfTerm"]):
    """The items that have a term, and the weighted count of each, for terms of the latest queries."""

    pairs = 0

    def keep(self, fresh: Mapping[str, _OfTerm]) -> None:
        """Keep those of further terms; if that is too much, instead of the others."""
        pairs = sum(items.size for items, _ in fresh.values())
        if self.pairs + pairs > PAIRS_KEPT or len(self) + len(fresh) > TERMS_KEPT:
            self.clear()
            self.pairs = 0
        self.update(fresh)
        self.pairs += pairs


def _rarity(items: int, frequencies: NDArray[Any]) -> NDArray[np.float64]:
    rarity: NDArray[np.float64] = np.log1p((items - frequencies + 0.5) / (frequencies + 0.5))
    return rarity


def _saturated(x: NDArray[np.float32]) -> NDArray[np.float32]:
    saturated: NDArray[np.float32] = x * np.float32(K1 + 1) / (x + np.float32(K1))
    return saturated


class Postings(Struct, frozen=True, eq=False, dict=True):
    """Counts of each term in each field of some items, by term.

    Terms are kept as their hash in this process, so that sources need no common vocabulary.
    """

    vocabulary: NDArray[np.int64]
    """Hashes of all terms that occur, ascending."""
    offsets: NDArray[np.int64]
    """Term t has ``cells[offsets[t]:offsets[t + 1]]``."""
    cells: Small
    """Places where a term occurs, ascending: ``item * len(FIELDS) + field``."""
    counts: Small
    lengths: Small
    """[items, fields], in terms."""

    @classmethod
    def of(
        cls, vocabulary: NDArray[np.int64], terms: NDArray[Any], cells: Small, counts: Small, lengths: Small
    ) -> Postings:
        """Sort counts by term, given as a position in the vocabulary; the cells of each ascend already."""
        # A stable argsort, several times as fast as numpy's: terms and places are sorted as one number.
        order = np.sort(terms.astype(np.int64) << 32 | np.arange(terms.size)) & 0xFFFF_FFFF
        sizes = np.bincount(terms, minlength=vocabulary.size)
        (used,) = sizes.nonzero()
        offsets = np.append(0, np.cumsum(sizes[used]))
        return cls(
            vocabulary[used], offsets, small_numbers(cells[order], lengths.size), counts[order], lengths
        )

    @classmethod
    def joined(cls, parts: Sequence[Postings]) -> Postings:
        """Join those of several groups of items, at least one."""
        if len(parts) == 1:
            return parts[0]
        known = [part.vocabulary for part in parts]
        vocabulary, numbers = np.unique(np.concatenate(known), return_inverse=True)
        numbered = np.split(numbers.astype(np.int32), np.cumsum([own.size for own in known])[:-1])
        firsts = np.cumsum([0, *(part.lengths.size for part in parts)]).tolist()
        return cls.of(
            vocabulary,
            np.concatenate([own[part.terms] for part, own in zip(parts, numbered, strict=True)]),
            np.concatenate([part.cells + np.int32(at) for part, at in zip(parts, firsts, strict=False)]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    @property
    def terms(self) -> NDArray[np.intp]:
        """Position in the vocabulary of the term of each cell."""
        # As np.repeat does, which would hold all other threads for 12 ms at a million cells.
        return np.cumsum(np.bincount(self.offsets[1:-1], minlength=self.cells.size))

    def take(self, rows: NDArray[np.int64]) -> Postings:
        """Return the counts of some of the items, in this order."""
        places = np.full(len(self.lengths), -1, np.int32)
        places[rows] = np.arange(rows.size)
        items, fields = np.divmod(self.cells, len(FIELDS))
        moved = places[items]
        (at,) = (moved >= 0).nonzero()
        cells = moved[at] * np.int32(len(FIELDS)) + fields[at]
        if (np.diff(rows) < 0).any():
            order = np.argsort(cells, kind="stable")
            at, cells = at[order], cells[order]
        return Postings.of(self.vocabulary, self.terms[at], cells, self.counts[at], self.lengths[rows])

    def spans(self, hashes: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return where the cells of each of some terms are."""
        if not self.vocabulary.size:
            return [(0, 0)] * hashes.size
        places = np.minimum(self.vocabulary.searchsorted(hashes), self.vocabulary.size - 1)
        ends = np.where(self.vocabulary[places] == hashes, self.offsets[places + 1], self.offsets[places])
        return list(zip(self.offsets[places].tolist(), ends.tolist(), strict=True))

    @cached_property
    def totals(self) -> NDArray[np.float64]:
        """[fields]: the sum of the lengths."""
        totals: NDArray[np.float64] = self.lengths.sum(axis=0, dtype=np.float64)
        return totals

    @cached_property
    def having(self) -> NDArray[np.intp]:
        """[fields]: how many items have the field."""
        having: NDArray[np.intp] = (self.lengths > 0).sum(axis=0)
        return having


class TermCounts:
    """Counts of the terms of some items, which are kept once: with those of the group that they are in."""

    __slots__ = ("_among", "size")

    def __init__(self, own: Postings) -> None:
        """Keep counts by themselves, until they are in a group."""
        self.size = len(own.lengths)
        self._among = own, 0
        """Counts that these are among, and the place of the first item there."""

    def take(self, rows: NDArray[np.int64]) -> TermCounts:
        """Return the counts of some of the items, in this order."""
        among, first = self._among
        return TermCounts(among.take(first + rows))

    @staticmethod
    def grouped(members: Sequence[TermCounts]) -> Postings:
        """Join the counts of several sources, and keep each of them there from now on."""
        whole, first = _together(members), 0
        for member in members:
            member._among = whole, first
            first += member.size
        return whole


def _together(members: Sequence[TermCounts]) -> Postings:
    """Return the counts of all members; those that are side by side already are taken together."""
    runs: list[tuple[Postings, int, int]] = []
    for member in members:
        among, first = member._among
        if runs and runs[-1][0] is among and runs[-1][2] == first:
            runs[-1] = among, runs[-1][1], first + member.size
        else:
            runs.append((among, first, first + member.size))
    return Postings.joined(
        [
            among if (first, end) == (0, len(among.lengths)) else among.take(np.arange(first, end))
            for among, first, end in runs
        ]
    )


def count_terms(items: Iterable[Fields]) -> TermCounts:
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
    small = [small_numbers(one, int(one.max(initial=0))) for one in (counts, by_field)]
    return TermCounts(Postings.of(vocabulary, numbered, cells, *small))


def join_counts(parts: Sequence[TermCounts]) -> TermCounts:
    """Return the counts of several groups of items as those of one."""
    if len(parts) == 1:
        return parts[0]
    return TermCounts(_together(parts)) if parts else count_terms(())


Member = TypeVar("Member")
Whole = TypeVar("Whole")


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
    parts: Sequence[tuple[str, str, float]], asked: Mapping[str, str], added: Mapping[str, str]
) -> list[str]:
    """Return reasons for a person by the score of an item by field and term.

    Args:
        parts: The score, as field, index term and amount.
        asked: Terms of the query itself, each with its word.
        added: Terms that stand for others of it, likewise.
    """
    by_field: dict[str, float] = {}
    for at, _, amount in parts:
        by_field[at] = by_field.get(at, 0.0) + amount
    reasons = []
    for name in sorted(by_field, key=lambda name: -by_field[name])[:FIELDS_NAMED]:
        terms = [term for at, term, _ in parts if at == name]
        named = sorted(terms, key=lambda term: term not in asked)[:WORDS_NAMED]
        own = " ".join(asked[term] for term in named if term in asked)
        alike = [added[term] for term in named if term not in asked]
        matched = [f"'{own}'"] if own else []
        if alike:
            matched.append(f"synonym{'s' if len(alike) > 1 else ''} '{' '.join(alike)}'")
        reasons.append(f"{FIELD_REASONS[name]} {' and '.join(matched)}")
    return reasons
