"""Lexical search: BM25F over arrays of counts, which are weighed for each query.

The score is that of Robertson, Zaragoza and Taylor, "Simple BM25 extension to multiple weighted fields"
(CIKM 2004), with length normalisation per field: for a query term,
``x = sum over fields of weight * count / (1 - b + b * length / average length)`` and the term adds
``idf * x * (k1 + 1) / (k1 + x)``, with ``idf = ln(1 + (N - df + 0.5) / (df + 0.5))``. The factor k1 + 1 is
that of Okapi BM25: it changes no order, but the fusion with the cosine counts on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.groups import Group, grouped
from mcp_context_proxy.retrieval.term_counts import FIELDS, Postings, Small, TermCounts

K1 = 1.2
"""How fast repetitions stop counting; 0.6 to 2 moved recall by less than a point."""

B = 0.75
"""How much a long field is held against its terms; 0.4 to 0.9 moved recall by less than a point."""

ITEMS_A_GROUP = 4_096
"""Items whose counts are sorted together: a changed item costs 10 ms, a query 25 groups in 100,000 items."""

WEIGHTS = np.array([2.0, 1.0, 1.0, 0.5, 1.0, 0.5], dtype=np.float32)
"""By field: name, description, parameter names, parameter descriptions, server; the body of a document."""


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """What the words of a query are worth."""

    scores: NDArray[np.float32]
    """BM25F of every item."""
    idf: Mapping[str, float]
    """How rare each term is in the catalog, by what it counts; one that does not occur is the rarest."""


@dataclass(frozen=True, eq=False)
class LexicalIndex:
    """BM25F of every term in every item.

    Weights depend on the whole catalog and are made for each query: a changed item costs only its group.
    """

    counts: tuple[TermCounts, ...]
    firsts: NDArray[np.int64]
    """First item of each of these counts, and the number of all items."""
    groups: tuple[Group[TermCounts, Postings], ...]
    usual: NDArray[np.bool_] | None
    """Which items tell how rare a term and how long a field is; None for all."""

    @classmethod
    def build(
        cls,
        counts: Sequence[TermCounts],
        before: LexicalIndex | None = None,
        usual: NDArray[np.bool_] | None = None,
    ) -> LexicalIndex:
        """Index the counts of a whole catalog, group by group; those that were there before are shared."""
        unchanged = before is not None and list(map(id, counts)) == list(map(id, before.counts))
        if before is not None and unchanged and before.usual is usual is None:
            return before
        sizes = [len(of_part.lengths) for of_part in counts]
        known = before.groups if before is not None else ()
        groups = grouped(list(zip(counts, sizes, strict=True)), ITEMS_A_GROUP, Postings.of, known)
        return cls(tuple(counts), np.cumsum([0, *sizes]), tuple(groups), usual)

    @cached_property
    def norms(self) -> NDArray[np.float32]:
        """[items * fields]: field weight over length normalisation.

        Averages are over the items that have the field: a few documents must not look endless among tools.
        """
        wholes = [group.whole for group in self.groups]
        having = sum((whole.having for whole in wholes), np.zeros(len(FIELDS), np.int64))
        totals = sum((whole.totals for whole in wholes), np.zeros(len(FIELDS)))
        if self.usual is not None:
            unusual = np.concatenate([whole.lengths for whole in wholes])[~self.usual]
            having, totals = (
                having - (unusual > 0).sum(axis=0),
                totals - unusual.sum(axis=0, dtype=np.float64),
            )
        average = np.maximum(totals / np.maximum(having, 1), 1.0)
        norms = np.empty((int(self.firsts[-1]), len(FIELDS)), np.float32)
        for whole, place in zip(wholes, self._places(), strict=True):
            norms[place] = WEIGHTS / (1 - B + B * whole.lengths / average)
        return norms.ravel()

    def _places(self) -> Iterator[slice]:
        """Where the items of each group are."""
        first = 0
        for group in self.groups:
            yield slice(first, first + group.size)
            first += group.size

    def weigh(self, query: Iterable[str], alike: Iterable[str] = (), share: float = 1.0) -> Weighed:
        """Score every item for some terms, each of which counts once; those ``alike`` count a ``share``."""
        asked = list(query)
        terms = [*asked, *alike]
        items, scores = int(self.firsts[-1]), np.zeros(int(self.firsts[-1]), np.float32)
        which, having, x = self._by_item(terms)
        counted = which
        if self.usual is not None:
            items, counted = int(self.usual.sum()), which[self.usual[having]]
        frequencies = np.bincount(counted, minlength=len(terms))
        rarity = np.log1p((items - frequencies + 0.5) / (frequencies + 0.5))
        rarity[len(asked) :] *= share
        added = rarity.astype(np.float32).take(which)
        added *= _saturated(x)
        np.add.at(scores, having, added)
        # What does not occur is in no score, and its idf keeps all its digits.
        exact = np.where(frequencies > 0, rarity.astype(np.float32), rarity)
        return Weighed(scores, dict(zip(terms, exact.tolist(), strict=True)))

    def parts(self, item: int, idf: Mapping[str, float]) -> list[tuple[str, str, float]]:
        """The score of one item divided by field and term, in the order of the query's terms."""
        part = int(np.searchsorted(self.firsts, item, side="right")) - 1
        counted, local = self.counts[part], item - int(self.firsts[part])
        row = slice(counted.offsets[local], counted.offsets[local + 1])
        hashes = counted.vocabulary[counted.terms[row]]
        places, counts = counted.fields[row], counted.counts[row]
        own, found = self.norms.reshape(-1, len(FIELDS))[item], []
        asked, occurring = set(map(hash, idf)), dict[int, list[int]]()
        for place, number in enumerate(hashes.tolist()):
            if number in asked:
                occurring.setdefault(number, []).append(place)
        for term, rarity in idf.items():
            if at := occurring.get(hash(term)):
                shares = counts[at] * own[places[at]]
                total = shares.sum()
                added = np.float32(rarity) * _saturated(total) * shares / total
                found += [(FIELDS[f], term, float(a)) for f, a in zip(places[at], added, strict=True)]
        return found

    def _by_item(
        self, terms: Sequence[str]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Each term with each item that has it, and its weighted count there over all fields.

        In the order of the terms, and of the items that have each.
        """
        cells, counts, sizes = self._occurrences(terms)
        which = np.repeat(np.arange(len(terms), dtype=np.int32), sizes)
        items = cells // np.int32(len(FIELDS))
        is_first = np.ones(items.size, bool)
        np.not_equal(items[1:], items[:-1], out=is_first[1:])
        ends = np.cumsum(sizes, dtype=np.intp)
        is_first[ends[ends < items.size]] = True
        (firsts,) = is_first.nonzero()
        weighted = self.norms.take(cells)
        weighted *= counts
        added = np.add.reduceat(weighted, firsts) if firsts.size else weighted
        return which.take(firsts), items.take(firsts), added

    def _occurrences(self, terms: Sequence[str]) -> tuple[NDArray[np.int32], Small, list[int]]:
        """The cells of the whole catalog that terms are in, term by term, their counts, how many of each."""
        hashes = np.array([hash(term) for term in terms], np.int64)
        found: list[list[tuple[NDArray[np.int32], Small]]] = [[] for _ in terms]
        for group, place in zip(self.groups, self._places(), strict=True):
            shift = np.int32(place.start * len(FIELDS))
            for at, span in group.whole.spans(hashes):
                found[at].append((group.whole.cells[span] + shift, group.whole.counts[span]))
        pairs = list(chain.from_iterable(found))
        return (
            np.concatenate([np.zeros(0, np.int32), *(cells for cells, _ in pairs)]),
            np.concatenate([np.zeros(0, np.uint8), *(counts for _, counts in pairs)]),
            [sum(cells.size for cells, _ in of_term) for of_term in found],
        )


def _saturated(x: NDArray[np.float32]) -> NDArray[np.float32]:
    saturated: NDArray[np.float32] = x * np.float32(K1 + 1) / (x + np.float32(K1))
    return saturated
