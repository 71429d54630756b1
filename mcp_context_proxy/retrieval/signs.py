"""Estimates of cosines from one bit per dimension, in a fraction of the time of the cosines themselves.

A vector is kept as the signs of its components, a query as three bits of each of its own. Their product is
``sum over bits of 2**bit * popcount(signs & bit)``, which is exact but for what both roundings take: an error
of about 0.04. With one bit of the query it would be twice that, with four hardly less. The estimate is that
of Gao and Long, "RaBitQ" (SIGMOD 2024), without their rotation, which these vectors do not need.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 64

QUERY_BITS = 3
"""Of each component of a query; among 144,000 chunks two lose 3 of 100 that three keep, four win nothing."""

WORDS_A_SUM = 3
"""Whose counts of at most 64 are added up in one byte, which is several times as fast as in more."""

BLOCK = 16_384
"""Vectors that are estimated together: what is read and written of them stays in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Signs:
    """The signs of some vectors and what is needed to estimate with them."""

    words: NDArray[np.uint64]
    """[words, vectors]: bit by bit whether a component is positive, a word of all vectors in one piece."""
    positive: NDArray[np.uint16]
    """How many components are."""
    scales: NDArray[np.float32]
    """1 over the sum of the absolute components: what makes the estimate of a vector with itself 1."""

    @classmethod
    def empty(cls, vectors: int, dimensions: int) -> Signs:
        """Room for some vectors, of which each is estimated as 0."""
        words = -(-dimensions // WORD_BITS)
        return cls(
            np.zeros((words, vectors), np.uint64), np.zeros(vectors, np.uint16), np.zeros(vectors, np.float32)
        )

    def put(self, at: slice, vectors: NDArray[np.float32]) -> None:
        """Take in vectors at some places that nobody reads yet."""
        signs = vectors > 0
        sums = np.abs(vectors).sum(axis=1)
        self.words[:, at] = _packed(signs).T
        self.positive[at] = signs.sum(axis=1)
        self.scales[at] = np.divide(1, sums, out=np.zeros_like(sums), where=sums > 0)

    def estimates(self, query: SlicedQuery, count: int) -> NDArray[np.float32]:
        """About the cosines of a query with the first ``count`` vectors."""
        found = np.empty(count, np.float32)
        for start in range(0, count, BLOCK):
            block = slice(start, min(start + BLOCK, count))
            products = query.low * self.positive[block] + query.step * self._weighted(query.bits, block)
            found[block] = (2 * products - query.total) * self.scales[block]
        return found

    def _weighted(self, bits: NDArray[np.uint64], block: slice) -> NDArray[np.float32]:
        """For each vector the sum of the query's numbers where it is positive."""
        size = block.stop - block.start
        total, both = np.zeros(size, np.uint32), np.empty(size, np.uint64)
        counts, sums = np.empty(size, np.uint8), np.empty(size, np.uint8)
        for of_query in bits:
            total <<= 1
            for first in range(0, len(self.words), WORDS_A_SUM):
                sums.fill(0)
                for word in range(first, min(first + WORDS_A_SUM, len(self.words))):
                    np.bitwise_and(self.words[word, block], of_query[word], out=both)
                    np.bitwise_count(both, out=counts)
                    sums += counts
                total += sums
        return total.astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SlicedQuery:
    """A query's vector, each component rounded to ``low + step * number``."""

    low: np.float32
    step: np.float32
    bits: NDArray[np.uint64]
    """[bits, words]: the numbers bit by bit, the highest first."""
    total: np.float32
    """The sum of the components, which are not rounded."""

    @classmethod
    def of(cls, query: NDArray[np.float32]) -> SlicedQuery:
        """Round a vector."""
        most = 2**QUERY_BITS - 1
        low = query.min()
        step = np.float32((query.max() - low) / most or 1)
        numbers = np.round((query - low) / step).astype(np.uint8)
        bits = _packed(np.array([numbers >> bit & 1 for bit in reversed(range(QUERY_BITS))]))
        return cls(low, step, bits, query.sum())


def _packed(bits: NDArray[np.bool_] | NDArray[np.uint8]) -> NDArray[np.uint64]:
    """[rows, words] of [rows, bits]."""
    padded = np.pad(bits.astype(np.bool_), ((0, 0), (0, -bits.shape[1] % WORD_BITS)))
    return np.packbits(padded, axis=1).view(np.uint64)
