"""Storage of vectors, and the search for the best of very many cosines by estimates."""

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.retrieval.vectors import (
    CANDIDATES,
    EXACT_CHUNKS,
    FIRST_SLAB,
    NOWHERE,
    UNIT,
    DenseIndex,
    Pool,
    Vectors,
    best,
)

DIMENSIONS = 384
KINDS_OF_TOOL = 600
QUERIES = 20
PER_ITEM = np.array([1, 1, 1, 2])

# Compares a query with many vectors; prints the processor time of the process for each second of the thread.
BUSY = """
import time
import numpy as np
from mcp_context_proxy.retrieval.vectors import Pool, dots

rng = np.random.default_rng(0)
rows = rng.standard_normal((6_000, 384), np.float32) / 20
pool = Pool()
some = pool.add(rows)[::3]
process, thread = time.process_time(), time.thread_time()
for _ in range(40):
    pool.vectors.cosines(rows[:4])
    pool.vectors.cosines_of(some, rows[:4])
    dots(rows, rows[0])
print((time.process_time() - process) / (time.thread_time() - thread))
"""


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def scattered(count: int, dimensions: int = DIMENSIONS, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((count, dimensions), np.float32))


class Large:
    """A catalog past the size from which on cosines are estimated first: variations of some kinds of tool."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        kinds = scattered(KINDS_OF_TOOL)
        self.sizes = np.resize(PER_ITEM, int(EXACT_CHUNKS * 1.1))
        chunks = int(self.sizes.sum())
        noise = rng.standard_normal((chunks, DIMENSIONS), np.float32)
        noise *= np.float32(0.5 / np.sqrt(DIMENSIONS))
        self.matrix = unit(kinds[rng.integers(KINDS_OF_TOOL, size=chunks)] + noise)
        meant = rng.standard_normal((QUERIES, DIMENSIONS)) / np.sqrt(DIMENSIONS)
        self.queries = unit(kinds[rng.integers(KINDS_OF_TOOL, size=QUERIES)] + 1.5 * meant)
        some = rng.random((QUERIES, self.sizes.size)) < 0.02
        self.words = (0.2 * rng.random(some.shape) * some).astype(np.float32)

    def indexed(self) -> DenseIndex:
        pool = Pool()
        rows = pool.add(self.matrix)
        return DenseIndex(pool.vectors, rows, self.sizes)


@pytest.fixture(scope="module")
def large() -> Large:
    return Large()


@settings(max_examples=30)
@given(
    pieces=st.lists(st.integers(1, FIRST_SLAB), min_size=1, max_size=5),
    dimensions=st.sampled_from([3, 64, 100]),
)
def test_vectors_do_not_depend_on_the_batches_they_came_in(pieces: list[int], dimensions: int) -> None:
    vectors, queries = scattered(sum(pieces), dimensions), scattered(2, dimensions, seed=9)
    whole, pool = Pool(), Pool()
    rows = np.concatenate([pool.add(piece) for piece in np.split(vectors, np.cumsum(pieces)[:-1])])

    assert (whole.add(vectors) == rows).all()
    assert np.array_equal(pool.vectors.stored(rows), whole.vectors.stored(rows))
    assert np.array_equal(pool.vectors.cosines(queries), whole.vectors.cosines(queries))
    assert np.array_equal(pool.vectors.estimates(queries), whole.vectors.estimates(queries))


def test_two_bytes_a_component_leave_a_cosine_equal_to_four_digits() -> None:
    pool, vectors, queries = Pool(), scattered(3_000), scattered(20, seed=9)
    rows = pool.add(vectors)

    assert np.abs(pool.vectors.cosines_of(rows, queries) - queries @ vectors.T).max() < 0.00005
    assert np.abs(pool.vectors.of(rows) - vectors).max() < 0.51 / UNIT


def test_vectors_that_were_stored_once_are_stored_again_as_they_are() -> None:
    pool, moved = Pool(), Pool()
    rows = pool.add(scattered(100))
    stored = pool.vectors.stored(rows)

    again = moved.add(stored)
    assert np.array_equal(moved.vectors.stored(again), stored)


def test_a_cosine_does_not_depend_on_other_rows() -> None:
    pool, queries = Pool(), scattered(3, seed=9)
    rows = pool.add(scattered(5_000))
    every = pool.vectors.cosines(queries)
    some = rows[np.random.default_rng(2).permutation(rows.size)[:777]]

    assert np.array_equal(pool.vectors.cosines_of(some, queries), every[:, some])
    assert np.array_equal(pool.vectors.cosines(queries[1:2])[0], every[1])


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor")
def test_cosines_are_computed_in_the_thread_that_asks_for_them() -> None:
    several = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", BUSY], env=several, capture_output=True, encoding="utf-8", check=True
    )

    assert float(done.stdout) < 1.2


def test_rows_added_later_do_not_change_earlier_snapshots() -> None:
    pool, queries = Pool(), scattered(1, seed=9)
    pool.add(scattered(10))
    before = pool.vectors
    cosines = before.cosines(queries)
    pool.add(scattered(FIRST_SLAB, seed=3))

    assert np.array_equal(before.cosines(queries), cosines)
    assert before.size == 11


def test_a_text_without_a_vector_has_cosine_0() -> None:
    pool = Pool()
    pool.add(scattered(3))

    assert pool.vectors.cosines(scattered(2, seed=9))[:, NOWHERE].tolist() == [0, 0]
    assert pool.vectors.estimates(scattered(2, seed=9))[:, NOWHERE].tolist() == [0, 0]


def test_an_estimate_is_near_the_cosine() -> None:
    pool = Pool()
    pool.add(scattered(4_000))
    queries = np.concatenate([scattered(3, seed=9), scattered(3)])
    errors = pool.vectors.estimates(queries) - pool.vectors.cosines(queries)

    assert abs(errors.mean()) < 0.005
    assert errors.std() < 0.05


def computed(
    index: DenseIndex, queries: np.ndarray, words: np.ndarray, certain: Sequence[int] = ()
) -> np.ndarray:
    """[queries, items]: the cosines that a search has computed, -inf where it has none."""
    found = np.full((len(queries), words.size), -np.inf, np.float32)
    items = index.candidates(queries, words, certain)
    some = index.of(items)
    found[:, items] = some.by_item(some.cosines(queries))
    return found


def test_in_a_large_catalog_the_best_ten_equal_those_of_an_exact_search(large: Large) -> None:
    index, found = large.indexed(), 0
    for query, words in zip(large.queries, large.words, strict=True):
        every = index.by_item(index.cosines(query[None]))[0] + words
        chosen = computed(index, query[None], words)[0] + words
        found += np.intersect1d(np.argsort(-every)[:10], np.argsort(-chosen)[:10]).size

    assert found >= 0.995 * 10 * QUERIES


def test_in_a_large_catalog_every_returned_cosine_is_exact(large: Large) -> None:
    index, query = large.indexed(), large.queries[:2]
    every = index.by_item(index.cosines(query))
    given_ones = computed(index, query, large.words[0])
    known = np.isfinite(given_ones)

    assert np.array_equal(given_ones[known], every[known])
    assert CANDIDATES <= known[0].sum() < large.sizes.size / 2


def test_exact_names_and_lexical_matches_are_never_left_out(large: Large) -> None:
    index, words = large.indexed(), np.zeros(large.sizes.size, np.float32)
    far = np.argsort(computed(index, large.queries[:1], words)[0])[:2]
    words[far[0]] = 0.01
    cosines = computed(index, large.queries[:1], words, certain=[int(far[1])])[0]

    assert np.isfinite(cosines[far]).all()


def test_the_filtered_part_of_a_large_catalog_is_searched_exactly(large: Large) -> None:
    index, words = large.indexed(), np.full(large.sizes.size, -np.inf, np.float32)
    words[1_000:2_000] = 0

    assert np.array_equal(np.isfinite(computed(index, large.queries[:1], words)[0]), np.isfinite(words))


def test_the_estimate_of_an_item_is_the_estimate_of_its_best_chunk(large: Large) -> None:
    index = large.indexed()
    of_chunks = index.vectors.estimates(large.queries[:3])[:, index.rows]

    assert np.array_equal(index.estimates(large.queries[:3]), index.by_item(of_chunks))


@given(st.lists(st.integers(0, 49), max_size=50, unique=True))
def test_cosines_of_a_subset_equal_those_of_the_whole_index(chosen: list[int]) -> None:
    pool, queries = Pool(), scattered(2, seed=9)
    sizes = np.resize([1, 3, 2], 50)
    rows = np.arange(1, sizes.sum() + 1, dtype=np.int32)
    index = DenseIndex(pool_vectors(pool, int(sizes.sum())), rows, sizes)
    items = np.array(sorted(chosen), np.intp)
    some = index.of(items)

    assert np.array_equal(
        some.by_item(some.cosines(queries)), index.by_item(index.cosines(queries))[:, items]
    )


def pool_vectors(pool: Pool, count: int) -> Vectors:
    pool.add(scattered(count))
    return pool.vectors


def test_the_memory_layout_of_vectors_changes_no_result(large: Large) -> None:
    pool, rng = Pool(), np.random.default_rng(4)
    pool.add(scattered(3_000, seed=5))
    order = rng.permutation(len(large.matrix))
    rows = np.empty(len(order), np.int32)
    rows[order] = pool.add(large.matrix[order])
    other = DenseIndex(pool.vectors, rows, large.sizes)

    assert np.array_equal(
        computed(other, large.queries[:2], large.words[0]),
        computed(large.indexed(), large.queries[:2], large.words[0]),
    )


@each("size", [1, 60, 4_095, 4_097, 20_011])
@each("count", [0, 1, 50, 250, 2_000])
@each("kind", ["different", "mostly equal", "mostly excluded"])
def test_the_best_scores_are_those_of_a_sort_and_all_that_equal_the_last(
    size: int, count: int, kind: str
) -> None:
    scores = np.random.default_rng(size + count).standard_normal(size).astype(np.float32)
    if kind == "mostly equal":
        scores = np.round(np.maximum(scores - 1.5, 0), 1)
    elif kind == "mostly excluded":
        scores[np.arange(size) % 7 > 0] = -np.inf
    least = np.sort(scores)[::-1][min(count, size) - 1]

    found = best(scores, count)

    assert found.tolist() == (np.flatnonzero(scores >= least).tolist() if count else [])
