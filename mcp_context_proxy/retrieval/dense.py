"""Dense search: exact cosine of every chunk, by brute force over float32 matrices.

Below about 70,000 chunks no vector library is faster, and nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.retrieval.groups import Group, grouped

DECIMALS = 6
"""Cosines are rounded to it: what is below depends on the order of summation and must not break ties."""


CHUNKS_A_GROUP = 2_048
"""Chunks whose vectors are one matrix: small ones cost more in calls than in arithmetic, and a changed source
copies 3 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseIndex:
    """The vectors of all chunks, in the order of their items."""

    groups: tuple[tuple[int, Group[NDArray[np.float32], NDArray[np.float32]]], ...]
    """First chunk, and matrices [chunks, dimensions] from there on, rows of norm 1 or 0. A chunk that is in
    none of them is near to nothing."""
    starts: NDArray[np.int64]
    """First chunk of each item; every item has at least one."""
    item_of: NDArray[np.int32]
    """Item of each chunk."""

    @classmethod
    def build(
        cls,
        matrices: Sequence[NDArray[np.float32] | None],
        sizes: Sequence[NDArray[np.int64]],
        before: DenseIndex | None = None,
    ) -> DenseIndex:
        """Put together the vectors of groups of items of ``sizes`` chunks each; None for no vectors."""
        joined = np.concatenate([np.zeros(0, np.int64), *sizes])
        known = [group for _, group in before.groups] if before is not None else []
        counted = [int(of_group.sum()) for of_group in sizes]
        first, groups = 0, []
        for has, run in groupby(zip(matrices, counted, strict=True), lambda pair: pair[0] is not None):
            members = [(matrix, size) for matrix, size in run if size]
            wanted = [(matrix, size) for matrix, size in members if matrix is not None] if has else []
            at = first
            for group in grouped(wanted, CHUNKS_A_GROUP, _join, known):
                groups.append((at, group))
                at += group.size
            first += sum(size for _, size in members)
        item_of = np.repeat(np.arange(joined.size, dtype=np.int32), joined)
        return cls(tuple(groups), np.cumsum(joined) - joined, item_of)

    def similarities(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """[queries, chunks]: the cosine of each query ([queries, dimensions]) with each chunk."""
        columns = np.ascontiguousarray(queries.T)
        found = np.zeros((len(queries), self.item_of.size), np.float32)
        for first, group in self.groups:
            found[:, first : first + group.size] = (group.whole @ columns).T
        return np.round(found, DECIMALS, out=found)

    def by_item(self, similarities: NDArray[np.float32]) -> NDArray[np.float32]:
        """For each item the cosine of its best chunk; of similarities with several queries, with each."""
        return np.maximum.reduceat(similarities, self.starts, axis=-1) if self.starts.size else similarities

    def best_chunk(self, item: int, similarities: NDArray[np.float32]) -> int:
        """Position of an item's best chunk among its own."""
        start = int(self.starts[item])
        end = int(self.starts[item + 1]) if item + 1 < self.starts.size else similarities.size
        return int(similarities[start:end].argmax())


def _join(matrices: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
