"""How often each term occurs in which field of which item: by item as it is read, by term as it is searched.

Arrays and no scores: what a count is worth is the business of `lexical`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.terms import terms
from mcp_context_proxy.retrieval.text import Fields

Small: TypeAlias = NDArray[np.integer[Any]]
"""Numbers of which there are very many: of the shortest type that has room for them."""

FIELDS = tuple(field.name for field in fields(Fields))

MOST_COUNTED = np.array([5, 5, 5, 5, 5, 65_535])
"""Of one term, by field. A description that says the names of others a thousand times would otherwise come
before them: its repetitions count for more than its length counts against it. Six public sets have the same
recall@5 with 5 as without a bound, with 3 one has .4 points less. A document may say a word often."""


@dataclass(frozen=True, slots=True, eq=False)
class TermCounts:
    """How often each term occurs in each field of some items: compressed rows, one per item.

    Terms are kept as their hash in this process, so that the counts of different sources need no common
    vocabulary.
    """

    offsets: NDArray[np.int64]
    """Row of item i: ``offsets[i]:offsets[i + 1]``."""
    vocabulary: NDArray[np.int64]
    """Hashes of all terms that occur, ascending."""
    terms: Small
    """As positions in the vocabulary."""
    fields: NDArray[np.uint8]
    counts: Small
    lengths: NDArray[np.float32]
    """[items, fields], in terms."""

    def take(self, rows: NDArray[np.int64]) -> TermCounts:
        """The counts of some of the items, in this order."""
        sizes = np.diff(self.offsets)[rows]
        offsets = np.append(0, np.cumsum(sizes))
        at = np.repeat(self.offsets[rows] - offsets[:-1], sizes) + np.arange(offsets[-1])
        used, terms = np.unique(self.terms[at], return_inverse=True)
        return TermCounts(
            offsets,
            self.vocabulary[used],
            _small(terms, used.size),
            self.fields[at],
            self.counts[at],
            self.lengths[rows],
        )


def count_terms(items: Iterable[Fields]) -> TermCounts:
    """Tokenise some items."""
    occurring, lengths = list[int](), list[int]()
    for item in items:
        for field in FIELDS:
            found = terms(getattr(item, field))
            occurring += map(hash, found)
            lengths.append(len(found))
    by_field = np.array(lengths, np.int64).reshape(-1, len(FIELDS))
    vocabulary, numbered = np.unique(np.array(occurring, np.int64), return_inverse=True)
    # One number for field and term, so that counting is one sort.
    places = np.repeat(np.arange(by_field.size) * max(vocabulary.size, 1), by_field.ravel())
    both, counts = np.unique(places + numbered, return_counts=True)
    places, numbered = np.divmod(both, max(vocabulary.size, 1))
    counts = np.minimum(counts, MOST_COUNTED[places % len(FIELDS)])
    return TermCounts(
        np.searchsorted(places, np.arange(len(by_field) + 1) * len(FIELDS)),
        vocabulary,
        _small(numbered, vocabulary.size),
        (places % len(FIELDS)).astype(np.uint8),
        _small(counts, int(counts.max(initial=0))),
        by_field.astype(np.float32),
    )


def join_counts(parts: Sequence[TermCounts]) -> TermCounts:
    """The counts of several groups of items as those of one."""
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
        np.concatenate([of_part[part.terms] for part, of_part in zip(parts, numbered, strict=True)]),
        np.concatenate([part.fields for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """The counts of a group of items, by term."""

    vocabulary: NDArray[np.int64]
    """Hashes of all terms, ascending."""
    offsets: NDArray[np.int64]
    """Term t has ``cells[offsets[t]:offsets[t + 1]]``."""
    cells: Small
    """Where a term occurs, ascending: ``item * len(FIELDS) + field``."""
    counts: Small
    lengths: NDArray[np.float32]
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
        order = _stable_order(joined.terms)
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

    def spans(self, hashes: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
        """Which of some terms occur, and where their cells are."""
        if not self.vocabulary.size:
            return
        places = np.minimum(np.searchsorted(self.vocabulary, hashes), self.vocabulary.size - 1)
        (found,) = (self.vocabulary[places] == hashes).nonzero()
        starts, ends = self.offsets[places], self.offsets[places + 1]
        yield from ((int(at), slice(int(starts[at]), int(ends[at]))) for at in found)


def _small(numbers: Small, most: int) -> Small:
    """Numbers up to a bound in as little memory as they need: there are some fifty for each tool."""
    for kind in (np.uint8, np.uint16):
        if most <= np.iinfo(kind).max:
            return numbers.astype(kind)
    return numbers.astype(np.int32)


def _stable_order(numbers: Small) -> NDArray[np.int64]:
    """As `argsort`, several times as fast: numbers and places are sorted as one number."""
    together = np.sort(numbers.astype(np.int64) << 32 | np.arange(numbers.size))
    return together & 0xFFFF_FFFF
