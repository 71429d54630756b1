"""Dense search: the cosine of every chunk, exact; in a large catalog only of those that may matter.

There every cosine is estimated first (`signs`), and the exact one computed for the items that are best by
estimate and words together. Of the ten best this loses one in some hundreds; no score is ever an estimate.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, eq=False)
class DenseIndex:
    """The vectors of all chunks, in the order of their items."""

    vectors: Vectors
    rows: NDArray[np.int32]
    """Where the vector of each chunk is."""
    starts: NDArray[np.int64]
    """First chunk of each item; every item has at least one."""
    item_of: NDArray[np.int32]
    """Item of each chunk."""
    more: NDArray[np.int64]
    """Chunks that are not the first of their item."""
    more_starts: NDArray[np.int64]
    """Where in ``more`` those of another item begin."""

    @classmethod
    def build(
        cls, vectors: Vectors, rows: Sequence[NDArray[np.int32]], sizes: Sequence[NDArray[np.int64]]
    ) -> DenseIndex:
        """Put together groups of items of ``sizes`` chunks each, whose vectors are in ``rows``."""
        joined = np.concatenate([np.zeros(0, np.int64), *sizes])
        item_of = np.repeat(np.arange(joined.size, dtype=np.int32), joined)
        starts = np.cumsum(joined) - joined
        is_first = np.zeros(item_of.size, bool)
        is_first[starts] = True
        more = np.flatnonzero(~is_first)
        return cls(
            vectors,
            np.concatenate([np.zeros(0, np.int32), *rows]),
            starts,
            item_of,
            more,
            np.flatnonzero(np.diff(item_of[more], prepend=-1)),
        )

    def similarities(
        self, queries: NDArray[np.float32], words: NDArray[np.float32], certain: Collection[int] = ()
    ) -> NDArray[np.float32]:
        """[queries, chunks]: the cosine of each query ([queries, dimensions]) with each chunk.

        In a large catalog it is -inf for chunks of items that cannot be among the best.

        Args:
            queries: The texts of one query.
            words: What the words add to the score of each item; -inf where a filter forbids it.
            certain: Items that must not be left out.
        """
        if self.rows.size <= EXACT_CHUNKS:
            return self.vectors.cosines(queries)[:, self.rows]
        chosen = self._chosen(queries, words)
        chosen[list(certain)] = True
        chunks = np.flatnonzero(chosen[self.item_of])
        found = np.full((len(queries), self.rows.size), -np.inf, np.float32)
        found[:, chunks] = self.vectors.cosines_of(self.rows[chunks], queries)
        return found

    def _chosen(self, queries: NDArray[np.float32], words: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Items whose cosines are needed."""
        allowed = np.isfinite(words)
        if int(allowed.sum()) <= CANDIDATES:
            return allowed
        chosen = np.zeros(words.size, bool)
        estimates = self.by_item(self.vectors.estimates(queries)[:, self.rows])
        chosen[best(words + estimates.max(axis=0), CANDIDATES)] = True
        chosen[best(words, CANDIDATES_OF_WORDS)] |= words[best(words, CANDIDATES_OF_WORDS)] > 0
        for of_text in estimates if len(estimates) > 1 else ():
            chosen[best(np.where(allowed, of_text, -np.inf), CANDIDATES_OF_A_TEXT)] = True
        return chosen & allowed

    def by_item(self, similarities: NDArray[np.float32]) -> NDArray[np.float32]:
        """For each item the cosine of its best chunk; of similarities with several queries, with each."""
        # Most items have one chunk: to look for the best of each takes twice as long.
        found: NDArray[np.float32] = similarities.take(self.starts, axis=-1)
        if self.more.size:
            several = self.item_of[self.more[self.more_starts]]
            best_other = np.maximum.reduceat(similarities.take(self.more, axis=-1), self.more_starts, axis=-1)
            found[..., several] = np.maximum(found.take(several, axis=-1), best_other)
        return found

    def best_chunk(self, item: int, similarities: NDArray[np.float32]) -> int:
        """Position of an item's best chunk among its own."""
        start = int(self.starts[item])
        end = int(self.starts[item + 1]) if item + 1 < self.starts.size else similarities.size
        return int(similarities[start:end].argmax())
