"""The vectors of a catalog, each once: rows are added, never changed, and read without a lock.

An index knows its chunks' rows and how many rows there were when it was made. So a changed tool costs its own
rows; those it had before are given up when they are more than those in use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import Vector
from mcp_context_proxy.retrieval.signs import Signs, SlicedQuery

NOWHERE = 0
"""The row of a text that has no vector yet: it is zero, so its cosine with everything is."""

FIRST_SLAB, LARGEST_SLAB = 2_048, 16_384
"""Rows that memory is reserved for at a time, doubling in between: it is used only where rows are."""

ROWS_A_TURN = 512
"""Rows that meet all texts of a query in turn, while they are in the processor's cache."""

QUERIES_A_TURN = 4
"""Texts of a query that meet these rows together."""

DECIMALS = 6
"""Cosines are rounded to it: what is below is noise and must not break ties."""


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """Rows in one piece."""

    first: int
    rows: NDArray[np.float32]
    signs: Signs


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """The rows there are at one moment, of norm 1 but for `NOWHERE`."""

    slabs: tuple[Slab, ...] = ()
    size: int = 0

    def views(self, rows: NDArray[np.int32]) -> list[Vector]:
        """Some of the vectors, not copied and read-only."""
        found = []
        for slab, at in zip(self._slabs(rows).tolist(), rows.tolist(), strict=True):
            row = self.slabs[slab].rows[at - self.slabs[slab].first]
            row.flags.writeable = False
            found.append(row)
        return found

    def copied(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Some of the vectors, one below the other."""
        return np.array(self.views(rows), np.float32)

    def cosines(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """[queries, rows]: of each query with each row."""
        found = np.empty((len(queries), self.size), np.float32)
        for slab, count in self._used():
            found[:, slab.first : slab.first + count] = _products(queries, slab.rows[:count])
        return np.round(found, DECIMALS, out=found)

    def cosines_of(self, rows: NDArray[np.int32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """[queries, rows]: of each query with some of the rows; the same numbers as among all of them."""
        found = np.empty((len(queries), rows.size), np.float32)
        columns = _columns(queries)
        turn = np.zeros((ROWS_A_TURN, queries.shape[1]), np.float32)
        for start in range(0, rows.size, ROWS_A_TURN):
            count = self._take(rows[start : start + ROWS_A_TURN], turn)
            _multiply(turn, columns, found[:, start : start + count])
        return np.round(found, DECIMALS, out=found)

    def _take(self, rows: NDArray[np.int32], into: NDArray[np.float32]) -> int:
        """Copy some rows to the beginning of an array; how many they are."""
        slabs = self._slabs(rows)
        for at in range(int(slabs.min()), int(slabs.max()) + 1):
            slab, here = self.slabs[at], np.flatnonzero(slabs == at)
            if here.size and here[-1] - here[0] + 1 == here.size:
                place = into[here[0] : here[-1] + 1]
                slab.rows.take(rows[here] - slab.first, axis=0, out=place, mode="clip")
            else:
                into[here] = slab.rows[rows[here] - slab.first]
        return rows.size

    def estimates(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """[queries, rows]: about `cosines`, in a fraction of the time."""
        found = np.empty((len(queries), self.size), np.float32)
        for at, query in enumerate(map(SlicedQuery.of, queries)):
            for slab, count in self._used():
                found[at, slab.first : slab.first + count] = slab.signs.estimates(query, count)
        return found

    def _used(self) -> Iterator[tuple[Slab, int]]:
        """Each slab, and how many of its rows are there."""
        return ((slab, min(len(slab.rows), self.size - slab.first)) for slab in self.slabs)

    def _slabs(self, rows: NDArray[np.int32]) -> NDArray[np.intp]:
        """Which slab each row is in."""
        return np.searchsorted([slab.first for slab in self.slabs], rows, side="right") - 1


class Pool:
    """Takes vectors in. One for all indexes that follow each other; any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vectors = Vectors()

    @property
    def vectors(self) -> Vectors:
        """Those there are now."""
        return self._vectors

    def add(self, vectors: NDArray[np.float32]) -> NDArray[np.int32]:
        """The rows in which some vectors are from now on."""
        with self._lock:
            if not self._vectors.slabs and len(vectors):
                self._append(np.zeros((1, vectors.shape[1]), np.float32))
            first = self._vectors.size
            self._append(vectors)
            return np.arange(first, self._vectors.size, dtype=np.int32)

    def _append(self, vectors: NDArray[np.float32]) -> None:
        while len(vectors):
            slabs, size = self._vectors.slabs, self._vectors.size
            if not slabs or size == slabs[-1].first + len(slabs[-1].rows):
                slabs = (*slabs, _slab(size, vectors.shape[1]))
            start = size - slabs[-1].first
            taken = vectors[: len(slabs[-1].rows) - start]
            place = slice(start, start + len(taken))
            slabs[-1].rows[place] = taken
            slabs[-1].signs.put(place, taken)
            # Last, and in one go: who has the vectors of before sees none of this.
            self._vectors = Vectors(slabs, size + len(taken))
            vectors = vectors[len(taken) :]


def _slab(first: int, dimensions: int) -> Slab:
    rows = min(max(FIRST_SLAB, first), LARGEST_SLAB)
    return Slab(first, np.zeros((rows, dimensions), np.float32), Signs.empty(rows, dimensions))


def dots(rows: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """[rows]: of each row with one vector, in this thread alone; see `_products` for why not by ``@``."""
    products: NDArray[np.float32] = np.einsum("rd,d->r", rows, vector)
    return products


def _products(queries: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """[queries, rows]: of each query with each row.

    Always so many rows by so many queries at a time, filled up with zeros: what a matrix product makes of a
    row would otherwise depend on how many others there are, and a large one has threads that wait for each
    other on a busy machine.
    """
    products = np.empty((len(queries), len(rows)), np.float32)
    columns = _columns(queries)
    for start in range(0, len(rows), ROWS_A_TURN):
        turn = rows[start : start + ROWS_A_TURN]
        if len(turn) < ROWS_A_TURN:
            turn = np.concatenate([turn, np.zeros((ROWS_A_TURN - len(turn), rows.shape[1]), np.float32)])
        _multiply(turn, columns, products[:, start : start + ROWS_A_TURN])
    return products


def _columns(queries: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """[dimensions, `QUERIES_A_TURN`] of each turn of queries."""
    found = []
    for first in range(0, len(queries), QUERIES_A_TURN):
        some = queries[first : first + QUERIES_A_TURN]
        found.append(np.zeros((queries.shape[1], QUERIES_A_TURN), np.float32))
        found[-1][:, : len(some)] = some.T
    return found


def _multiply(
    turn: NDArray[np.float32], columns: Sequence[NDArray[np.float32]], into: NDArray[np.float32]
) -> None:
    """Write [queries, rows] of a turn of rows with each turn of queries, as much as there is room for."""
    for at, of_turn in enumerate(columns):
        place = into[at * QUERIES_A_TURN : (at + 1) * QUERIES_A_TURN]
        place[...] = (turn @ of_turn).T[: place.shape[0], : place.shape[1]]
