"""BM25F against a slow, independent computation of the published formula."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from mcp_context_proxy.retrieval.bm25 import FIELDS, TERMS_KEPT, LexicalIndex, count_terms, join_counts
from mcp_context_proxy.retrieval.item_metadata import Fields
from mcp_context_proxy.retrieval.text import terms

REFERENCE_WEIGHTS = {
    "name": 2.0,
    "description": 1.0,
    "parameters": 1.0,
    "parameter_descriptions": 0.5,
    "server": 1.0,
    "text": 0.5,
}

WORDS = st.lists(st.sampled_from(["cat", "dog", "emu", "fox", "gnu", "hen", "yak"]), max_size=9).map(" ".join)
QUERY = {"cat": 1.0, "fox": 0.5}
ITEMS = st.lists(st.builds(Fields, WORDS, WORDS, WORDS, WORDS, WORDS, WORDS), min_size=1, max_size=8)


def reference(items: list[Fields], item: Fields, term: str) -> dict[str, float]:
    """The part of an item's score that a term adds, by field, straight from the definition."""
    texts = [dict(zip(FIELDS, map(terms, astuple(other)), strict=True)) for other in items]
    own = texts[items.index(item)]
    shares = {}
    for field, weight in REFERENCE_WEIGHTS.items():
        lengths = [len(other[field]) for other in texts if other[field]]
        count = own[field].count(term) if field == "text" else min(own[field].count(term), 5)
        if count:
            relative = len(own[field]) / (sum(lengths) / len(lengths))
            shares[field] = weight * count / (1 - 0.75 + 0.75 * relative)
    x = sum(shares.values())
    frequency = sum(any(term in words for words in other.values()) for other in texts)
    idf = math.log(1 + (len(items) - frequency + 0.5) / (frequency + 0.5))
    return {field: idf * 2.2 * share / (x + 1.2) for field, share in shares.items()}


@given(ITEMS, st.lists(st.sampled_from(["cat", "dog", "emu", "unknown"]), unique=True))
def test_every_score_is_that_of_the_formula(items: list[Fields], query: list[str]) -> None:
    scores = LexicalIndex.build([count_terms(items)]).score(dict.fromkeys(query, 1.0)).scores

    expected = [sum(sum(reference(items, item, term).values()) for term in query) for item in items]
    assert scores.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(ITEMS, st.lists(st.lists(st.sampled_from(["cat", "dog", "emu", "unknown"]), unique=True), max_size=6))
def test_scores_do_not_depend_on_the_queries_before(items: list[Fields], queries: list[list[str]]) -> None:
    counts = count_terms(items)
    used = LexicalIndex.build([counts])
    for number, query in enumerate(queries):
        used.score(dict.fromkeys((f"word {number} {other}" for other in range(TERMS_KEPT // 2)), 1.0))
        weights = {term: 1.0 + at for at, term in enumerate(query)}
        expected, again = LexicalIndex.build([counts]).score(weights), used.score(weights)
        assert (again.scores.tolist(), again.idf) == (expected.scores.tolist(), expected.idf)
        assert all(map(np.array_equal, again.occurrences, expected.occurrences))


@given(ITEMS, st.sampled_from(["cat", "dog", "emu"]))
def test_every_part_of_a_score_is_that_of_the_formula(items: list[Fields], term: str) -> None:
    index = LexicalIndex.build([count_terms(items)])

    for position, item in enumerate(items):
        parts = {field: value for field, _, value in index.parts([position], index.score({term: 1.0}).idf)[0]}
        assert parts == pytest.approx(reference(items, item, term), rel=1e-4)


@given(ITEMS)
def test_the_parts_of_a_score_add_up_to_it(items: list[Fields]) -> None:
    index = LexicalIndex.build([count_terms(items)])
    query = {"cat": 1.0, "dog": 0.5, "emu": 0.2}

    weighed = index.score(query)
    sums = [sum(value for *_, value in own) for own in index.parts(range(len(items)), weighed.idf)]
    assert sums == pytest.approx(weighed.scores.tolist(), rel=1e-4)


@given(ITEMS, ITEMS)
def test_counts_of_two_groups_make_the_index_of_both(first: list[Fields], second: list[Fields]) -> None:
    joined = LexicalIndex.build([count_terms(first), count_terms(second)])
    whole = LexicalIndex.build([count_terms(first + second)])

    assert joined.score(QUERY).scores.tolist() == whole.score(QUERY).scores.tolist()
    together = LexicalIndex.build([join_counts(joined.counts)])
    assert together.score(QUERY).scores.tolist() == whole.score(QUERY).scores.tolist()
    taken = LexicalIndex.build([one.take(np.arange(one.size)[::-1]) for one in reversed(joined.counts)])
    assert taken.score(QUERY).scores.tolist() == whole.score(QUERY).scores.tolist()[::-1]


def test_an_empty_catalog_has_no_scores() -> None:
    assert LexicalIndex.build([]).score({"cat": 1.0}).scores.tolist() == []


def test_items_without_a_matching_word_score_0() -> None:
    index = LexicalIndex.build([count_terms([Fields("", "", "", "", "", "")])])

    assert index.score({"cat": 1.0}).scores.tolist() == [0.0]


@given(ITEMS, st.sampled_from(["cat", "dog", "unknown"]))
def test_the_index_has_the_terms_of_its_items_and_no_others(items: list[Fields], term: str) -> None:
    index = LexicalIndex.build([count_terms(items)])

    assert index.has(term) == any(term in terms(text) for item in items for text in astuple(item))


@given(ITEMS, st.floats(0.1, 1.0))
def test_a_term_counts_by_its_weight(items: list[Fields], weight: float) -> None:
    index = LexicalIndex.build([count_terms(items)])

    whole, part = index.score({"cat": 1.0}).scores, index.score({"cat": weight}).scores

    assert part.tolist() == pytest.approx((weight * whole).tolist(), rel=1e-4, abs=1e-6)
