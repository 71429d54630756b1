"""Dense search: stored vectors, exact cosines of every chunk, and estimates for large catalogs.

Each vector is stored once, in a pool, with two bytes for each component: that is half the memory, and moves
a cosine by some 0.00002. Rows are added, never changed, and read without a lock: an index knows
the rows of its chunks and how many rows there were when it was built. So a changed tool costs only its own
rows; those it had before are dropped when more rows are unused than used (`indexing`).

In a large catalog every cosine is estimated first, from one bit per dimension, and computed for the items
that are best by estimate and words together. Of the ten best this loses one in some hundreds; no score is
ever an estimate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct

from mcp_context_proxy.system.later import NDArray, np

DECIMALS = 6
"""Cosines are rounded to it: lower digits are noise and must not break ties."""

UNIT = 32_000
"""Number that stands for 1 in a stored vector. The rest of 16 bits is for norms that are a little off."""

NOWHERE = 0
"""The row of a text that has no vector yet: it is zero, so its cosine with everything is."""

EXACT_CHUNKS = 15_000
"""Up to so many chunks nothing is estimated: above it, estimates are faster, by a fifth for 10,000 tools. Of
338 requests to those, one is answered otherwise than without estimates."""

CANDIDATES = 2_000
"""Items whose cosines are computed where others are only estimated. An item is lost only if 2,000 others have
a better estimate with their words, which are exact. Of the ten best of 100,000 tools, all of them copies of
1,000, they keep 100 % for queries that mean one of them, and 99.8 % for those of public sets, which mean
nothing there; twice as many keep as much, and half as many 99.4 %."""

CANDIDATES_OF_A_TEXT = 250
"""Items that are best for one text of the query by estimate: a sentence may ask for something else than the
whole query."""

CANDIDATES_OF_WORDS = 250
"""Items that are best by words alone, whatever the estimate says."""

FIRST_SLAB, FURTHER_SLABS = 2_048, 16_384
"""Rows that memory is reserved for at a time (multiples of `ROWS_A_TURN`); the system gives it only where
rows are. Few slabs make searches of large catalogs faster, and a small one is enough for most catalogs."""

ROWS_A_TURN = 256
"""Rows that meet all texts of a query in turn, while they are in the processor's cache. NumPy's library
multiplies so many in the calling thread. Of 512 it would give half to another one, which then waits for rows
that the calling thread has just written, and spins for milliseconds after that."""

QUERIES_A_TURN = 4
"""Texts of a query that meet these rows together."""

WORD_BITS = 64

QUERY_BITS = 3
"""Bits of each component of a query: among 144,000 chunks two lose 3 of 100 that three keep, four gain
nothing."""

WORDS_A_SUM = 3
"""Words whose counts of at most 64 are added up in one byte, which is several times as fast as in more."""

ESTIMATED_TOGETHER = 16_384
"""Vectors whose estimates stay in the processor's cache while they are computed."""

MANY_SCORES = 4_096
"""Scores from which on `best` looks at blocks of them first."""

BLOCK, LEAST_BLOCK = 64, 8
"""Scores of a block whose highest `best` looks at: the more are wanted, the fewer."""

BLOCKS_A_SCORE = 2
"""Least number of blocks for each score that is wanted; with fewer, most blocks have one of them."""

Number = TypeVar("Number", bound="np.generic")


class DenseIndex(Struct, frozen=True, eq=False, dict=True):
    """The vectors of the chunks of some items, in the order of the items."""

    vectors: Vectors
    rows: NDArray[np.int32]
    """Row of the vector of each chunk."""
    sizes: NDArray[np.int64]
    """Number of chunks of each item: at least one."""

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First chunk of each item."""
        starts: NDArray[np.int64] = np.cumsum(self.sizes) - self.sizes
        return starts

    def of(self, items: NDArray[np.intp]) -> DenseIndex:
        """Return the index of some of the items, in this order."""
        if items.size == self.sizes.size:
            return self
        sizes = self.sizes[items]
        return DenseIndex(self.vectors, spans(self.rows, self.starts[items], sizes)[0], sizes)

    def vectors_of(self, item: int) -> NDArray[np.float32]:
        """Return the vectors of an item's chunks, one below the other."""
        start = self.starts[item]
        return self.vectors.of(self.rows[start : start + self.sizes[item]])

    def first_of(self, items: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors of the first chunks of some items, which have their descriptions."""
        return self.vectors.of(self.rows[self.starts[items]])

    def cosines(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [queries, chunks]: the cosine of each query ([queries, dimensions]) with each chunk."""
        if 2 * self.rows.size > self.vectors.size:
            # Several times as fast as an index of columns.
            return self.vectors.cosines(queries).take(self.rows, axis=1)
        return self.vectors.cosines_of(self.rows, queries)

    def by_item(self, cosines: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the highest cosine of each item's chunks, of [queries, chunks] or [chunks]."""
        if self.rows.size == self.sizes.size:  # each has one
            return cosines
        found: NDArray[np.float32] = np.maximum.reduceat(cosines, self.starts, axis=-1)
        return found

    def candidates(
        self, queries: NDArray[np.float32], words: NDArray[np.float32], certain: Collection[int] = ()
    ) -> NDArray[np.intp]:
        """Return the items whose cosines are needed, ascending: all, or in a large catalog the likely best.

        Args:
            queries: The vectors of the texts of one query.
            words: Lexical part of the score of each item; -inf where a filter excludes it.
            certain: Items that must be included unless a filter excludes them.
        """
        allowed = np.isfinite(words)
        if self.rows.size <= EXACT_CHUNKS or np.count_nonzero(allowed) <= CANDIDATES:
            return np.flatnonzero(allowed)
        chosen = np.zeros(words.size, bool)
        chosen[list(certain)] = True
        best_by_words = best(words, CANDIDATES_OF_WORDS)
        chosen[best_by_words] |= words[best_by_words] > 0
        estimates = self.estimates(queries)
        chosen[best(words + estimates.max(axis=0), CANDIDATES)] = True
        for of_text in estimates if len(estimates) > 1 else ():
            chosen[best(np.where(allowed, of_text, -np.inf), CANDIDATES_OF_A_TEXT)] = True
        return np.flatnonzero(chosen & allowed)

    def estimates(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [queries, items]: about the cosine of each query with the best chunk of each item."""
        by_row = self.vectors.estimates(queries)
        # Most items have one chunk: to look for the best of each takes twice as long.
        found: NDArray[np.float32] = by_row.take(self._first_rows, axis=-1)
        items, rows, starts = self._further_rows
        if items.size:
            best_other = np.maximum.reduceat(by_row.take(rows, axis=-1), starts, axis=-1)
            found[:, items] = np.maximum(found.take(items, axis=-1), best_other)
        return found

    @cached_property
    def _first_rows(self) -> NDArray[np.intp]:
        return self.rows[self.starts].astype(np.intp)

    @cached_property
    def _further_rows(self) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.int64]]:
        """Items with several chunks, the rows of all but their first, and where those of each begin."""
        items = np.flatnonzero(self.sizes > 1)
        return items, *spans(self.rows, self.starts[items] + 1, self.sizes[items] - 1)


def small_numbers(numbers: NDArray[np.integer[Any]], highest: int) -> NDArray[np.integer[Any]]:
    """Return numbers in as little memory as they need: there are some fifty for each tool."""
    for kind in (np.uint8, np.uint16):
        if highest <= np.iinfo(kind).max:
            return numbers.astype(kind)
    return numbers.astype(np.int32)


def spans(
    rows: NDArray[Number], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[Number], NDArray[np.int64]]:
    """Return some pieces of an array, one after the other, and where each of them begins then."""
    begins = np.cumsum(sizes) - sizes
    return rows[np.repeat(starts - begins, sizes) + np.arange(int(sizes.sum()))], begins


def best(scores: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the places of the ``count`` highest scores, ascending, and of ties with the last of them.

    Very many scores are divided into n blocks (the scores i, i + n, i + 2n and so on). The highest
    scores of the ``count`` best blocks are ``count`` scores, so the lowest of them is a lower bound of the
    result, and only the few scores that reach it need be sorted.
    """
    if count <= 0:
        return np.zeros(0, np.intp)
    if scores.size <= count:
        return np.arange(scores.size)
    if scores.size >= MANY_SCORES:
        block = BLOCK
        while block > LEAST_BLOCK and scores.size < BLOCKS_A_SCORE * count * block:
            block //= 2
        # Scores left over at the end are in no block, which only lowers the bound.
        highest = scores[: scores.size - scores.size % block].reshape(block, -1).max(axis=0)
        if highest.size > count:
            bound = np.partition(highest, highest.size - count)[highest.size - count]
            (places,) = (scores >= bound).nonzero()
            if places.size < scores.size // 2:
                return np.take(places, best(scores[places], count))
    threshold = np.partition(scores, scores.size - count)[scores.size - count]
    return np.flatnonzero(scores >= threshold)


class Slab(Struct, frozen=True, eq=False):
    """Rows in one array."""

    first: int
    rows: NDArray[np.int16]
    """The vectors in units of 1 / `UNIT`."""
    quantized: BinaryQuantization


class Vectors(Struct, frozen=True, eq=False):
    """The rows of a pool at one moment, of norm 1 but for `NOWHERE`."""

    slabs: tuple[Slab, ...] = ()
    size: int = 0

    def of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return some of the vectors, one below the other."""
        found = self.stored(rows).astype(np.float32)
        found /= UNIT
        return found

    def stored(self, rows: NDArray[np.int32]) -> NDArray[np.int16]:
        """Return some of the vectors as they are stored, one below the other."""
        found = np.zeros((rows.size, self.slabs[0].rows.shape[1] if self.slabs else 0), np.int16)
        for slab, places in self._slabs_of(rows):
            found[places] = slab.rows.take(rows[places] - slab.first, axis=0)
        return found

    def cosines(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [queries, rows]: the cosine of each query with each row."""
        found = np.empty((len(queries), self.size), np.float32)
        scaled = _scaled(queries)
        turn = np.empty((ROWS_A_TURN, queries.shape[1]), np.float32)
        for slab, count in self._used():
            for start in range(0, count, ROWS_A_TURN):
                place = slice(slab.first + start, slab.first + min(start + ROWS_A_TURN, count))
                turn[...] = slab.rows[start : start + ROWS_A_TURN]
                _multiply(turn, scaled, found[:, place])
        return np.round(found, DECIMALS, out=found)

    def cosines_of(self, rows: NDArray[np.int32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [queries, rows] for some of the rows; the same numbers as among all of them."""
        found = np.empty((len(queries), rows.size), np.float32)
        scaled = _scaled(queries)
        turn = np.zeros((ROWS_A_TURN, queries.shape[1]), np.float32)
        products = np.empty((len(queries), ROWS_A_TURN), np.float32)
        for slab, places in self._slabs_of(rows):
            inside = rows[places] - slab.first
            for start in range(0, places.size, ROWS_A_TURN):
                of_turn = slice(start, start + ROWS_A_TURN)
                some = slab.rows.take(inside[of_turn], axis=0)
                turn[: len(some)] = some
                _multiply(turn, scaled, products)
                found[:, places[of_turn]] = products[:, : len(some)]
        return np.round(found, DECIMALS, out=found)

    def estimates(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return about the same as `cosines`, in a fraction of the time."""
        found = np.empty((len(queries), self.size), np.float32)
        for at, query in enumerate(map(QuantizedQuery, queries)):
            for slab, count in self._used():
                found[at, slab.first : slab.first + count] = slab.quantized.estimates(query, count)
        return found

    def _used(self) -> Iterator[tuple[Slab, int]]:
        """Yield each slab with the number of its rows that are in use."""
        return ((slab, min(len(slab.rows), self.size - slab.first)) for slab in self.slabs)

    def _slabs_of(self, rows: NDArray[np.int32]) -> Iterator[tuple[Slab, NDArray[np.intp]]]:
        """Yield each slab that has any of some rows, with the places of those."""
        slabs = np.searchsorted([slab.first for slab in self.slabs], rows, side="right") - 1
        for at, slab in enumerate(self.slabs):
            if (places := np.flatnonzero(slabs == at)).size:
                yield slab, places


class Pool:
    """Stores vectors. One for all indexes that follow each other; any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.vectors = Vectors()
        """The vectors stored now; later ones do not show in it."""

    def add(self, vectors: NDArray[np.float32] | NDArray[np.int16]) -> NDArray[np.int32]:
        """Store some vectors, which may have been stored before (`Vectors.stored`), and return their rows."""
        scaled = vectors if vectors.dtype == np.int16 else np.rint(vectors * UNIT)
        stored: NDArray[np.int16] = scaled.astype(np.int16, copy=False)
        with self._lock:
            if not self.vectors.slabs and len(stored):
                self._append(np.zeros((1, stored.shape[1]), np.int16))
            first = self.vectors.size
            self._append(stored)
            return np.arange(first, self.vectors.size, dtype=np.int32)

    def _append(self, vectors: NDArray[np.int16]) -> None:
        while len(vectors):
            slabs, size = self.vectors.slabs, self.vectors.size
            if not slabs or size == slabs[-1].first + len(slabs[-1].rows):
                rows, dimensions = FURTHER_SLABS if slabs else FIRST_SLAB, vectors.shape[1]
                empty = np.zeros((rows, dimensions), np.int16)
                slabs = (*slabs, Slab(size, empty, BinaryQuantization(rows, dimensions)))
            start = size - slabs[-1].first
            taken = vectors[: len(slabs[-1].rows) - start]
            place = slice(start, start + len(taken))
            slabs[-1].rows[place] = taken
            slabs[-1].quantized.put(place, taken)
            # Assigned last: a reader that has the previous value sees none of the new rows.
            self.vectors = Vectors(slabs, size + len(taken))
            vectors = vectors[len(taken) :]


HISTORY_DECAY = 0.5
"""Factor of the weight of an earlier query with each step back."""


def query_vectors(
    queries: Sequence[tuple[Sequence[str], Sequence[str]]],
    embed: Callable[[Sequence[str]], NDArray[np.float32]],
    history: Sequence[str] = (),
) -> list[NDArray[np.float32] | None]:
    """Return for each query one row of norm 1 for each of its texts (`ReadQuery.texts`); None without any.

    The row of the whole query, the first, is the mean of that of the text and of those ``beside`` it, which
    come second. So phrases that all queries share ("could you please help me") count half, and the grammar
    still counts.

    Earlier queries pull it towards them. Their words are not added to those of the query: an old one that is
    rare would outweigh the words of the new query.

    All texts are embedded at once: an endpoint that takes a while is asked only once.
    """
    wanted = [*dict.fromkeys(text for texts, beside in queries for text in (*texts, *beside))]
    if not wanted:
        return [None for _ in queries]
    vectors = dict(zip([*wanted, *history], embed([*wanted, *history]), strict=True))

    def rows_of(texts: Sequence[str], beside: Sequence[str]) -> NDArray[np.float32]:
        rows = np.array([vectors[text] for text in texts])
        if beside:
            rows[0] = _normalised(rows[0] + sum(vectors[text] for text in beside), rows[0])
        if history:
            weights = HISTORY_DECAY ** np.arange(1, len(history) + 1, dtype=np.float32)
            rows[0] = _normalised(rows[0] + weights @ np.array([vectors[one] for one in history]), rows[0])
        return rows

    return [rows_of(texts, beside) if texts else None for texts, beside in queries]


def _normalised(vector: NDArray[np.float32], otherwise: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else otherwise


def dots(rows: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [rows]: the product of each row with one vector, in this thread alone (see `ROWS_A_TURN`)."""
    products: NDArray[np.float32] = np.vecdot(rows, vector)
    return products


def _scaled(queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return queries for vectors as they are stored, in whole turns: filled up with zeros."""
    scaled = np.zeros((-(-len(queries) // QUERIES_A_TURN) * QUERIES_A_TURN, queries.shape[1]), np.float32)
    scaled[: len(queries)] = queries / UNIT
    return scaled


def _multiply(turn: NDArray[np.float32], scaled: NDArray[np.float32], into: NDArray[np.float32]) -> None:
    """Write [queries, rows]: the product of each query with each row, as far as there is room.

    Always 256 rows by 4 queries at a time, filled up with zeros or unused rows: the last digits of a matrix
    product depend on its shape, so a tool's cosine would otherwise depend on how many other tools there are.
    """
    for at in range(0, len(scaled), QUERIES_A_TURN):
        place = into[at : at + QUERIES_A_TURN]
        products = scaled[at : at + QUERIES_A_TURN] @ turn.T
        place[...] = products[: place.shape[0], : place.shape[1]]


class BinaryQuantization:
    """The signs of some vectors, and their scales: enough to estimate cosines.

    A vector is kept as the signs of its components, a query as three bits of each component (``low + step *
    number``). With P the set of the vector's positive components, the product of the query with the signs (+1
    or -1) is ``2 * sum over P of query - sum of query``, and the sum over P is ``low * |P| + step * sum over
    bits of 2**bit * popcount(signs & bit)``: only ands and bit counts of whole words. The estimate is off by
    both roundings, about 0.04; with one bit of the query it would be twice that, with four hardly
    less. It is that of Gao and Long, "RaBitQ" (SIGMOD 2024), without their rotation, which these vectors do
    not need.
    """

    def __init__(self, vectors: int, dimensions: int) -> None:
        """Reserve room for some vectors; the estimate of each is 0 until it is put."""
        self.words = np.zeros((-(-dimensions // WORD_BITS), vectors), np.uint64)
        """[words, vectors]: one bit per component, set where it is positive; word by word, so that the same
        word of all vectors is in one piece of memory."""
        self.positive = np.zeros(vectors, np.uint16)
        """Number of positive components of each vector."""
        self.scales = np.zeros(vectors, np.float32)
        """1 over the sum of the absolute components, which makes the estimate of a vector with itself 1."""

    def put(self, at: slice, vectors: NDArray[np.int16]) -> None:
        """Quantize stored vectors into places that nobody reads yet."""
        signs = vectors > 0
        sums = np.abs(vectors).sum(axis=1, dtype=np.float32) / UNIT
        self.words[:, at] = _packed(signs).T
        self.positive[at] = signs.sum(axis=1)
        self.scales[at] = np.divide(1, sums, out=np.zeros_like(sums), where=sums > 0)

    def estimates(self, query: QuantizedQuery, count: int) -> NDArray[np.float32]:
        """Return about the cosines of a query with the first ``count`` vectors."""
        found = np.empty(count, np.float32)
        for start in range(0, count, ESTIMATED_TOGETHER):
            block = slice(start, min(start + ESTIMATED_TOGETHER, count))
            products = query.low * self.positive[block] + query.step * self._weighted(query.bits, block)
            found[block] = (2 * products - query.total) * self.scales[block]
        return found

    def _weighted(self, bits: NDArray[np.uint64], block: slice) -> NDArray[np.float32]:
        """Return for each vector the sum of the query's numbers over its positive components."""
        total = np.zeros(block.stop - block.start, np.uint16)
        for of_query in bits:
            total <<= 1
            counts = np.bitwise_count(self.words[:, block] & of_query[:, None])
            for first in range(0, len(counts), WORDS_A_SUM):
                total += counts[first : first + WORDS_A_SUM].sum(axis=0, dtype=np.uint8)
        return total.astype(np.float32)


class QuantizedQuery:
    """A query's vector, each component rounded to ``low + step * number``."""

    def __init__(self, query: NDArray[np.float32]) -> None:
        highest = 2**QUERY_BITS - 1
        self.total: np.float32 = query.sum()
        """Sum of the components before rounding."""
        self.low: np.float32 = query.min()
        self.step = np.float32((query.max() - self.low) / highest or 1)
        numbers = np.round((query - self.low) / self.step).astype(np.uint8)
        self.bits = _packed(np.array([numbers >> bit & 1 for bit in reversed(range(QUERY_BITS))]))
        """[bits, words]: the numbers bit by bit, the highest first."""


def _packed(bits: NDArray[np.bool_] | NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return [rows, words] of [rows, bits]."""
    padded = np.pad(bits.astype(np.bool_), ((0, 0), (0, -bits.shape[1] % WORD_BITS)))
    return np.packbits(padded, axis=1).view(np.uint64)
