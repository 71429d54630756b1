"""Dense search: the cosine of every chunk, exact; in a large catalog only of those that may matter.

There every cosine is estimated first (`signs`), and the exact one computed for the items that are best by
estimate and words together. Of the ten best this loses one in some hundreds; no score is ever an estimate.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.fusion import best
from mcp_context_proxy.retrieval.vectors import Vectors

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
