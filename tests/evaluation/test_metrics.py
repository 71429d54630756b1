"""Every measure, computed by hand for small rankings and by a slow second implementation for random ones."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.evaluation import complete, measure, ndcg, precision, recall, reciprocal_rank

Key = tuple[str, str]


def keys(names: str) -> list[Key]:
    """One tool of server s per letter."""
    return [("s", name) for name in names]


def needs(*groups: str) -> list[frozenset[Key]]:
    return [frozenset(keys(group)) for group in groups]


@each(
    ("wanted", "found", "expected"),
    [
        pytest.param(needs("a"), "a", 1, id="the one needed is there"),
        pytest.param(needs("a"), "b", 0, id="it is not there"),
        pytest.param(needs("a", "b"), "xa", 1 / 2, id="one of two"),
        pytest.param(needs("ab"), "b", 1, id="any one of a group is enough"),
        pytest.param(needs("ab"), "ab", 1, id="the second of a group adds nothing"),
        pytest.param(needs("a", "bc", "d"), "ca", 2 / 3, id="needs and groups weigh the same"),
        pytest.param(needs("ab", "bc"), "b", 1, id="a tool of two groups meets both"),
        pytest.param(needs("a"), "", 0, id="nothing was found"),
    ],
)
def test_recall_is_the_share_of_needs_met(wanted, found, expected):
    assert recall(wanted, keys(found)) == pytest.approx(expected)
    assert complete(wanted, keys(found)) == (expected == 1)


@each(
    ("wanted", "ranking", "expected"),
    [
        pytest.param(needs("a"), "abc", 1, id="first"),
        pytest.param(needs("c"), "abc", 1 / 3, id="third"),
        pytest.param(needs("c", "b"), "abc", 1 / 2, id="the first of several that is met"),
        pytest.param(needs("xc"), "abc", 1 / 3, id="by a member of a group"),
        pytest.param(needs("x"), "abc", 0, id="never"),
    ],
)
def test_the_reciprocal_rank_is_that_of_the_first_need_met(wanted, ranking, expected):
    assert reciprocal_rank(wanted, keys(ranking)) == pytest.approx(expected)


@each(
    ("wanted", "ranking", "depth", "expected"),
    [
        pytest.param(needs("a"), "a", 5, 1, id="best"),
        pytest.param(needs("a"), "xa", 5, 1 / math.log2(3), id="second place"),
        pytest.param(needs("a", "b"), "axb", 5, 1.5 / (1 + 1 / math.log2(3)), id="first and third of two"),
        pytest.param(needs("a", "b", "c"), "ab", 2, 1, id="no more can be met than there is room"),
        pytest.param(needs("ab"), "ab", 5, 1, id="a group gains once"),
        pytest.param(needs("a", "b"), "axxxxb", 5, 1 / (1 + 1 / math.log2(3)), id="what is below counts not"),
        pytest.param(needs("a"), "", 5, 0, id="nothing"),
    ],
)
def test_ndcg_discounts_by_rank_and_is_one_at_best(wanted, ranking, depth, expected):
    assert ndcg(wanted, keys(ranking), depth) == pytest.approx(expected)


def test_measures_deeper_than_the_ranking_are_left_out():
    measured = measure(needs("a"), keys("xxxa"), 3, 2, fits=True, answerable=True)

    assert measured == {
        "recall@1": 0,
        "recall@3": 0,
        "mrr": 0,
        "selected": 2,
        "selected_recall": 0,
        "selected_precision": 0,
        "kept": 1,
    }


def test_an_unanswerable_query_is_measured_by_its_refusal_alone():
    assert measure([], keys("abc"), 10, 3, fits=False, answerable=False) == {"refused": 1}
    assert measure([], keys("abc"), 10, 3, fits=True, answerable=False) == {"refused": 0}


LETTERS = "abcdefghijkl"
RANKINGS = st.permutations(LETTERS).flatmap(lambda order: st.integers(0, 12).map(lambda end: order[:end]))
DISJOINT_NEEDS = st.permutations(LETTERS).flatmap(
    lambda order: st.lists(st.integers(1, 3), min_size=1, max_size=4).map(
        lambda sizes: ["".join(itertools.islice(iter_, size)) for iter_ in [iter(order)] for size in sizes]
    )
)


def slow(groups: list[str], ranking: list[str], depth: int) -> tuple[float, float, float]:
    """Recall, reciprocal rank and nDCG, walked rank by rank; ideal gain found by trying every ranking."""

    def gains(order) -> list[int]:
        met: set[int] = set()
        found = []
        for name in order:
            fresh = {i for i, group in enumerate(groups) if name in group} - met
            found.append(1 if fresh else 0)
            met |= fresh
        return found

    def discounted(order) -> float:
        return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains(order)) if place < depth)

    needed = sorted(set("".join(groups)))
    ideal = max(discounted(order) for order in itertools.permutations(needed, min(len(groups), len(needed))))
    first = next((1 / (place + 1) for place, gain in enumerate(gains(ranking)) if gain), 0.0)
    return sum(gains(ranking[:depth])) / len(groups), first, discounted(ranking) / ideal


@given(DISJOINT_NEEDS, RANKINGS, st.sampled_from([1, 3, 5, 10]))
def test_the_measures_are_those_of_a_slow_second_implementation(groups, ranking, depth):
    wanted = needs(*groups)
    found = keys("".join(ranking))

    measured = (
        recall(wanted, found[:depth]),
        reciprocal_rank(wanted, found),
        ndcg(wanted, found, depth),
    )

    assert measured == pytest.approx(slow(groups, list(ranking), depth))


def test_precision_is_the_share_of_results_that_meet_a_need():
    assert precision(needs("a", "bc"), keys("abcx")) == 0.75
    assert precision(needs("a"), keys("x")) == 0
