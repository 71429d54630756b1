"""Lexical search: BM25F over arrays, with every weight computed when the index is built.

The score is that of Robertson, Zaragoza and Taylor, "Simple BM25 extension to multiple weighted fields"
(CIKM 2004), with length normalisation per field: for a query term,
``x = sum over fields of weight * count / (1 - b + b * length / average length)`` and the term adds
``idf * x * (k1 + 1) / (k1 + x)``, with ``idf = ln(1 + (N - df + 0.5) / (df + 0.5))``. The factor k1 + 1 is
that of Okapi BM25: it changes no order, but the fusion with the cosine counts on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.terms import terms
from mcp_context_proxy.retrieval.text import Fields

K1 = 1.2
"""How fast repetitions stop counting; 0.6 to 2 moved recall by less than a point."""

B = 0.75
"""How much a long field is held against its terms; 0.4 to 0.9 moved recall by less than a point."""

FIELDS = tuple(field.name for field in fields(Fields))

WEIGHTS = np.array([2.0, 1.0, 1.0, 0.5, 1.0, 0.5], dtype=np.float32)
"""By field: name, description, parameter names, parameter descriptions, server; the body of a document."""


@dataclass(frozen=True, slots=True, eq=False)
class TermCounts:
    """How often each term occurs in each field of some items: compressed rows, one per item.

    Terms are kept as their hash in this process, so that the counts of different sources need no common
    vocabulary and can be put together as they are.
    """

    offsets: NDArray[np.int64]
    """Row of item i: ``offsets[i]:offsets[i + 1]``."""
    terms: NDArray[np.int64]
    fields: NDArray[np.uint8]
    counts: NDArray[np.float32]
    lengths: NDArray[np.float32]
    """[items, fields], in terms."""


def count_terms(items: Iterable[Fields]) -> TermCounts:
    """Tokenise some items."""
    offsets, hashes, places, counts, lengths = [0], [], [], [], []
    for item in items:
        found = [terms(text) for text in astuple(item)]
        for place, occurring in enumerate(found):
            for term, count in Counter(occurring).items():
                hashes.append(hash(term))
                places.append(place)
                counts.append(count)
        offsets.append(len(hashes))
        lengths.append([len(occurring) for occurring in found])
    return TermCounts(
        np.array(offsets, np.int64),
        np.array(hashes, np.int64),
        np.array(places, np.uint8),
        np.array(counts, np.float32),
        np.array(lengths, np.float32).reshape(-1, len(FIELDS)),
    )


def join_counts(parts: Sequence[TermCounts]) -> TermCounts:
    """The counts of several groups of items as those of one."""
    if not parts:
        return count_terms(())
    shifts = np.cumsum([0, *(part.terms.size for part in parts)])
    offsets = [part.offsets[1:] + shift for part, shift in zip(parts, shifts, strict=False)]
    return TermCounts(
        np.concatenate([np.zeros(1, np.int64), *offsets]),
        np.concatenate([part.terms for part in parts]),
        np.concatenate([part.fields for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class LexicalIndex:
    """BM25F of every term in every item, by term."""

    counts: TermCounts
    norms: NDArray[np.float32]
    """[items, fields]: field weight over length normalisation."""
    vocabulary: NDArray[np.int64]
    """Hashes of all terms, ascending."""
    idf: NDArray[np.float32]
    """By term."""
    postings: NDArray[np.int64]
    """Term t occurs in ``items[postings[t]:postings[t + 1]]``."""
    items: NDArray[np.int32]
    weights: NDArray[np.float32]
    """What the term adds to the score of the item."""

    @classmethod
    def build(cls, counts: TermCounts) -> LexicalIndex:
        """Weigh the counts of a whole catalog."""
        norms = _norms(counts.lengths)
        item_of = np.repeat(np.arange(len(norms), dtype=np.int32), np.diff(counts.offsets))
        order = np.argsort(counts.terms, kind="stable")
        hashes, items = counts.terms[order], item_of[order]
        summed = counts.counts[order] * norms[items, counts.fields[order]]
        firsts = _firsts(hashes, items)
        hashes, items = hashes[firsts], items[firsts]
        x = np.add.reduceat(summed, firsts) if firsts.size else summed
        starts = _firsts(hashes)
        frequency = np.diff(np.append(starts, hashes.size))
        idf = np.log1p((len(norms) - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)
        return cls(
            counts=counts,
            norms=norms,
            vocabulary=hashes[starts],
            idf=idf,
            postings=np.append(starts, hashes.size),
            items=items,
            weights=(np.repeat(idf, frequency) * _saturated(x)).astype(np.float32),
        )

    def scores(self, query: Iterable[str]) -> NDArray[np.float32]:
        """BM25F of every item for some terms, each of which counts once."""
        scores = np.zeros(len(self.norms), np.float32)
        for term in query:
            if (place := self._place(term)) is not None:
                span = slice(self.postings[place], self.postings[place + 1])
                scores[self.items[span]] += self.weights[span]
        return scores

    def parts(self, item: int, query: Iterable[str]) -> list[tuple[str, str, float]]:
        """The score of one item divided by field and term, in the order of the query."""
        row = slice(self.counts.offsets[item], self.counts.offsets[item + 1])
        hashes, places, counts = self.counts.terms[row], self.counts.fields[row], self.counts.counts[row]
        found = []
        for term in query:
            at = np.flatnonzero(hashes == hash(term))
            if at.size and (place := self._place(term)) is not None:
                shares = counts[at] * self.norms[item, places[at]]
                total = shares.sum()
                added = self.idf[place] * _saturated(total) * shares / total
                found += [(FIELDS[f], term, float(a)) for f, a in zip(places[at], added, strict=True)]
        return found

    def idf_of(self, term: str) -> float:
        """How rare a term is in the catalog; one that does not occur is the rarest."""
        if (place := self._place(term)) is not None:
            return float(self.idf[place])
        return float(np.log1p((len(self.norms) + 0.5) / 0.5))

    def _place(self, term: str) -> int | None:
        hashed = hash(term)
        place = int(np.searchsorted(self.vocabulary, hashed))
        known = place < self.vocabulary.size and int(self.vocabulary[place]) == hashed
        return place if known else None


def _norms(lengths: NDArray[np.float32]) -> NDArray[np.float32]:
    """Averages are over the items that have the field: a few documents must not look endless among tools."""
    having = np.maximum((lengths > 0).sum(axis=0), 1)
    average = np.maximum(lengths.sum(axis=0) / having, 1.0)
    norms: NDArray[np.float32] = (WEIGHTS / (1 - B + B * lengths / average)).astype(np.float32)
    return norms


def _saturated(x: NDArray[np.float32]) -> NDArray[np.float32]:
    saturated: NDArray[np.float32] = x * np.float32(K1 + 1) / (x + np.float32(K1))
    return saturated


def _firsts(*keys: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.int64]:
    """Where a new combination begins in sorted keys."""
    if not keys[0].size:
        return np.zeros(0, np.int64)
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.append(0, np.flatnonzero(changes) + 1)
