"""How cosine and BM25F become one score, and which items are selected by it. Pure functions over arrays.

``score = cosine + 0.025 * BM25F``: of rank fusion, min-max, z-scores and weighted sums this was the best on
twelve public sets of tools, and leaving any one of them out gives the same factor.

Dense search: the cosine of every chunk, exact; in a large catalog only of those that may matter.

There every cosine is estimated first (`signs`), and the exact one computed for the items that are best by
estimate and words together. Of the ten best this loses one in some hundreds; no score is ever an estimate.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.results import Method, SearchOptions
from mcp_context_proxy.retrieval.vectors import DECIMALS, Vectors

LEXICAL_FACTOR = np.float32(0.025)
"""What one point of BM25F is worth in cosine; 0.015 to 0.04 changes recall by less than 0.6 points."""

RRF_K = 60
"""Of reciprocal rank fusion, as its authors set it."""


def fuse(
    cosine: NDArray[np.float32] | None, lexical: NDArray[np.float32], method: Method = "hybrid"
) -> NDArray[np.float32]:
    """One score per item; without a model the lexical part alone, on the same scale."""
    if cosine is not None and method == "dense":
        return cosine
    if cosine is not None and method == "rrf":
        return _rank_fusion(cosine, lexical)
    weighted = LEXICAL_FACTOR * lexical
    return np.round(weighted if cosine is None else cosine + weighted, DECIMALS)


def expected(
    cosine: NDArray[np.float32], lexical: NDArray[np.float32], ready: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """The cosines, and for items that have no vectors yet the best one's share that their words earn them.

    What is not indexed yet is thereby neither buried under what is nor put above what has its words.
    """
    if ready.all() or not ready.any() or not lexical.any():
        return cosine
    share = max(np.float32(0), cosine[ready].max()) * lexical / lexical.max()
    return np.where(ready, cosine, share).astype(np.float32)


def reciprocal_ranks(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """``1 / (60 + rank)`` by item; equal scores have one rank.

    Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning
    methods" (SIGIR 2009).
    """
    ranks = np.searchsorted(np.sort(-scores), -scores) + 1
    reciprocal: NDArray[np.float32] = (1 / (RRF_K + ranks)).astype(np.float32)
    return reciprocal


def _rank_fusion(cosine: NDArray[np.float32], lexical: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum of both reciprocal ranks; an item without any of the words has only the one."""
    fused = reciprocal_ranks(cosine)
    fused[lexical > 0] += reciprocal_ranks(lexical)[lexical > 0]
    return fused


BLOCK = 64
"""Scores, far from each other, whose highest is looked at first where a few of very many are wanted."""


def best(scores: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Where the ``count`` highest scores are; ties at the end are included, so that order decides nothing."""
    if count <= 0:
        return np.zeros(0, np.intp)
    if scores.size <= count:
        return np.arange(scores.size)
    # What is left over at the end is in no block, which only makes the least of the highest lower.
    highest = scores[: scores.size - scores.size % BLOCK].reshape(BLOCK, -1).max(axis=0)
    if highest.size > count:
        # As many blocks as are wanted have at least that much; only what has, too, need be sorted.
        least = np.partition(highest, highest.size - count)[highest.size - count]
        (places,) = (scores >= least).nonzero()
        return places[best(scores[places], count)] if places.size < scores.size // 2 else _best(scores, count)
    return _best(scores, count)


def _best(scores: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    threshold = np.partition(scores, scores.size - count)[scores.size - count]
    return np.flatnonzero(scores >= threshold)


def count_selected(scores: NDArray[np.float32], options: SearchOptions) -> int:
    """How many of the candidates, given their scores in order, are selected for their rank."""
    if not scores.size:
        return 0
    if options.share_of_best is None:
        return min(options.top_n, scores.size)
    best_ones = np.sort(scores)[::-1][: options.best]
    near = int((scores >= options.share_of_best * best_ones.mean()).sum())
    return min(max(near, options.at_least), options.at_most, scores.size)


EXACT_CHUNKS = 20_000
"""Up to so many chunks nothing is estimated: from about there on it is faster."""

CANDIDATES = 4_000
"""Items whose cosines are computed where others are only estimated. An item is lost only if 4,000 others have
a better estimate with their words, which are exact. Of the ten best of 107,000 tools, all of them copies of
1,000, they keep 100 % for queries that mean one of them, and 99.5 % for those that mean nothing there."""

CANDIDATES_OF_A_TEXT = 250
"""Items that are best for one text of the query by estimate; what a sentence asks for need not be what the
whole query does."""

CANDIDATES_OF_WORDS = 250
"""Items that are best by words alone, whatever the estimate says."""


@dataclass(frozen=True, eq=False)
class DenseIndex:
    """The vectors of the chunks of some items, in the order of the items."""

    vectors: Vectors
    rows: NDArray[np.int32]
    """Where the vector of each chunk is."""
    sizes: NDArray[np.int64]
    """How many chunks each item has: at least one."""

    @classmethod
    def build(
        cls, vectors: Vectors, rows: Sequence[NDArray[np.int32]], sizes: Sequence[NDArray[np.int64]]
    ) -> DenseIndex:
        """Put together the rows of groups of chunks, and the numbers of chunks of groups of items."""
        return cls(
            vectors,
            np.concatenate([np.zeros(0, np.int32), *rows]),
            np.concatenate([np.zeros(0, np.int64), *sizes]),
        )

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First chunk of each item."""
        starts: NDArray[np.int64] = np.cumsum(self.sizes) - self.sizes
        return starts

    @cached_property
    def firsts(self) -> NDArray[np.intp]:
        """Row of the first chunk of each item."""
        return self.rows[self.starts].astype(np.intp)

    @cached_property
    def several(self) -> _Several:
        """The items that have more than one chunk."""
        items = np.flatnonzero(self.sizes > 1)
        return _Several(items, *_spans(self.rows, self.starts[items] + 1, self.sizes[items] - 1))

    def of(self, items: NDArray[np.intp]) -> DenseIndex:
        """Some of the items, in this order."""
        if items.size == self.sizes.size:
            return self
        sizes = self.sizes[items]
        return DenseIndex(self.vectors, _spans(self.rows, self.starts[items], sizes)[0], sizes)

    def cosines(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """[queries, chunks]: of each query ([queries, dimensions]) with each chunk."""
        if 2 * self.rows.size > self.vectors.size:
            return self.vectors.cosines(queries)[:, self.rows]
        return self.vectors.cosines_of(self.rows, queries)

    def by_item(self, cosines: NDArray[np.float32]) -> NDArray[np.float32]:
        """For each item that of its best chunk; of cosines with several queries, with each."""
        if not self.sizes.size:
            return cosines
        found: NDArray[np.float32] = np.maximum.reduceat(cosines, self.starts, axis=-1)
        return found

    def candidates(
        self, queries: NDArray[np.float32], words: NDArray[np.float32], certain: Collection[int] = ()
    ) -> NDArray[np.intp]:
        """The items whose cosines are needed, ascending; in a large catalog those that may be among the best.

        Args:
            queries: The texts of one query.
            words: What the words add to the score of each item; -inf where a filter forbids it.
            certain: Items that must not be left out, unless they are forbidden.
        """
        allowed = np.isfinite(words)
        if self.rows.size <= EXACT_CHUNKS or int(allowed.sum()) <= CANDIDATES:
            return np.flatnonzero(allowed)
        chosen = np.zeros(words.size, bool)
        chosen[list(certain)] = True
        of_words = best(words, CANDIDATES_OF_WORDS)
        chosen[of_words] |= words[of_words] > 0
        estimates = self.estimates(queries)
        chosen[best(words + estimates.max(axis=0), CANDIDATES)] = True
        for of_text in estimates if len(estimates) > 1 else ():
            chosen[best(np.where(allowed, of_text, -np.inf), CANDIDATES_OF_A_TEXT)] = True
        return np.flatnonzero(chosen & allowed)

    def estimates(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """[queries, items]: about the cosine of each query with the best chunk of each item."""
        of_rows, several = self.vectors.estimates(queries), self.several
        # Most items have one chunk: to look for the best of each takes twice as long.
        found: NDArray[np.float32] = of_rows.take(self.firsts, axis=-1)
        if several.items.size:
            best_other = np.maximum.reduceat(of_rows.take(several.rows, axis=-1), several.starts, axis=-1)
            found[:, several.items] = np.maximum(found.take(several.items, axis=-1), best_other)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Several:
    """Items with more than one chunk."""

    items: NDArray[np.intp]
    rows: NDArray[np.int32]
    """Of their chunks but the first of each."""
    starts: NDArray[np.int64]
    """Where the rows of each begin."""


def _spans(
    rows: NDArray[np.int32], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Pieces of an array, one after the other, and where each of them begins then."""
    begins = np.cumsum(sizes) - sizes
    return rows[np.repeat(starts - begins, sizes) + np.arange(int(sizes.sum()))], begins
