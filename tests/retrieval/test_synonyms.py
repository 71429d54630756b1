"""Synonyms are found, count less than the word itself, and are named in the reasons."""

import pytest
from support.tables import each

from mcp_context_proxy.retrieval.bm25 import LexicalIndex, count_terms
from mcp_context_proxy.retrieval.item_metadata import Fields
from mcp_context_proxy.retrieval.text import SYNONYM_SHARE, SYNONYMS, stem, synonyms, terms


def named(*names: str) -> LexicalIndex:
    return LexicalIndex.build([count_terms([Fields(name, "", "", "", "", "") for name in names])])


@each(
    ("query", "synonym"),
    [
        ("open an issue", "create"),
        ("file a ticket", "issue"),
        ("removing folders", "delete"),
        ("my repo", "repository"),
    ],
)
def test_everyday_words_find_tools_through_synonyms(query: str, synonym: str) -> None:
    assert stem(synonym) in synonyms(terms(query))


def test_a_word_of_the_query_is_not_its_own_synonym() -> None:
    asked = set(terms("create, add and open"))

    assert not synonyms(asked).keys() & asked


def test_a_word_without_synonyms_brings_none() -> None:
    assert synonyms(terms("kubernetes")) == {}


def test_no_word_is_in_two_groups() -> None:
    words = [word for group in SYNONYMS for word in group.split()]

    assert sorted(words) == sorted(set(words))


def test_a_synonym_counts_less_than_the_word_itself() -> None:
    index = named("create", "weather", "clock")

    said, meant = index.score({"creat": 1.0}).scores, index.score({"creat": SYNONYM_SHARE}).scores

    assert meant.tolist() == pytest.approx((SYNONYM_SHARE * said).tolist())


def test_the_word_itself_ranks_above_its_synonym() -> None:
    scores = (
        named("open issue", "create issue", "weather")
        .score({"open": 1.0, "creat": SYNONYM_SHARE})
        .scores.tolist()
    )

    assert scores[0] > scores[1] > scores[2] == 0
