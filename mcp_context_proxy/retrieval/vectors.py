"""The vectors of a catalog, each once: rows are added, never changed, and read without a lock.

An index knows its chunks' rows and how many rows there were when it was made. So a changed tool costs its own
rows; those it had before are given up when they are more than those in use.

Estimates of cosines from one bit per dimension, in a fraction of the time of the cosines themselves.

A vector is kept as the signs of its components, a query as three bits of each of its own. Their product is
``sum over bits of 2**bit * popcount(signs & bit)``, which is exact but for what both roundings take: an error
of about 0.04. With one bit of the query it would be twice that, with four hardly less. The estimate is that
of Gao and Long, "RaBitQ" (SIGMOD 2024), without their rotation, which these vectors do not need.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.items import Vector

WORD_BITS = 64

QUERY_BITS = 3
"""Of each component of a query; among 144,000 chunks two lose 3 of 100 that three keep, four win nothing."""

WORDS_A_SUM = 3
"""Whose counts of at most 64 are added up in one byte, which is several times as fast as in more."""

BLOCK = 16_384
"""Vectors that are estimated together: what is read and written of them stays in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class BinaryQuantization:
    """The signs of some vectors and what is needed to estimate with them."""

    words: NDArray[np.uint64]
    """[words, vectors]: bit by bit whether a component is positive, a word of all vectors in one piece."""
    positive: NDArray[np.uint16]
    """How many components are."""
    scales: NDArray[np.float32]
    """1 over the sum of the absolute components: what makes the estimate of a vector with itself 1."""

    @classmethod
    def empty(cls, vectors: int, dimensions: int) -> BinaryQuantization:
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
    signs: BinaryQuantization


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
    return Slab(first, np.zeros((rows, dimensions), np.float32), BinaryQuantization.empty(rows, dimensions))


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
