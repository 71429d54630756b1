"""Dense search: exact cosine of every chunk, by brute force over float32 matrices, one per source.

Below about 70,000 chunks no vector library is faster, and nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DECIMALS = 6
"""Cosines are rounded to it: what is below depends on the order of summation and must not break ties."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseIndex:
    """The vectors of all chunks, in the order of their items."""

    matrices: tuple[tuple[int, NDArray[np.float32]], ...]
    """First chunk, and [chunks, dimensions] from there on, rows of norm 1 or 0; kept apart so that a changed
    source copies only its own. A chunk that is in none of them is near to nothing."""
    starts: NDArray[np.int64]
    """First chunk of each item; every item has at least one."""
    item_of: NDArray[np.int32]
    """Item of each chunk."""

    @classmethod
    def build(
        cls, matrices: Sequence[NDArray[np.float32] | None], sizes: Sequence[NDArray[np.int64]]
    ) -> DenseIndex:
        """Put together the vectors of groups of items of ``sizes`` chunks each; None for no vectors."""
        joined = np.concatenate([np.zeros(0, np.int64), *sizes])
        firsts = np.cumsum([0, *(int(of_group.sum()) for of_group in sizes)])
        having = tuple(
            (int(first), matrix)
            for first, matrix in zip(firsts, matrices, strict=False)
            if matrix is not None and matrix.size
        )
        item_of = np.repeat(np.arange(joined.size, dtype=np.int32), joined)
        return cls(having, np.cumsum(joined) - joined, item_of)

    def similarities(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """[queries, chunks]: the cosine of each query ([queries, dimensions]) with each chunk."""
        columns = np.ascontiguousarray(queries.T)
        found = np.zeros((len(queries), self.item_of.size), np.float32)
        for first, matrix in self.matrices:
            found[:, first : first + len(matrix)] = (matrix @ columns).T
        return np.round(found, DECIMALS, out=found)

    def by_item(self, similarities: NDArray[np.float32]) -> NDArray[np.float32]:
        """For each item the cosine of its best chunk; of similarities with several queries, with each."""
        return np.maximum.reduceat(similarities, self.starts, axis=-1) if self.starts.size else similarities

    def best_chunk(self, item: int, similarities: NDArray[np.float32]) -> int:
        """Position of an item's best chunk among its own."""
        start = int(self.starts[item])
        end = int(self.starts[item + 1]) if item + 1 < self.starts.size else similarities.size
        return int(similarities[start:end].argmax())
