"""Words and index terms of identifiers, prose and queries, in any script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.retrieval.text import (
    LONGEST_KEPT,
    RUNS_KEPT,
    identifier_words,
    name_key,
    stem,
    terms,
    words,
)


@each(
    ("identifier", "spoken"),
    [
        ("createIssue", "create issue"),
        ("create_issue_v2", "create issue v 2"),
        ("HTTPServerError", "http server error"),
        ("listURLs", "list urls"),
        ("get-weather.byCity", "get weather by city"),
        ("获取天气", "获取天气"),
        ("größeBerechnen", "größe berechnen"),
        ("---", "---"),
    ],
)
def test_an_identifier_is_split_into_words(identifier: str, spoken: str) -> None:
    assert identifier_words(identifier) == spoken


@each("spelling", ["createIssue", "create_issue", "CREATE-ISSUE", "Create issue"])
def test_different_spellings_of_a_name_have_the_same_key(spelling: str) -> None:
    assert name_key(spelling) == "createissue"


def test_a_compound_is_found_by_its_parts_and_as_a_whole() -> None:
    """People write GitHub, github and git hub."""
    assert list(words("GitHub")) == ["git", "hub", "github"]


@each(
    ("text", "expected"),
    [
        pytest.param("天気予報", ["天気", "気予", "予報"], id="Japanese in pairs"),
        pytest.param("雨", ["雨"], id="a single character"),
        pytest.param("PDF文件转换", ["pdf", "文件", "件转", "转换"], id="mixed scripts"),
        pytest.param("날씨 예보", ["날씨", "예보"], id="Korean"),
        pytest.param("Überweisung für Müller", ["uberweisung", "fur", "muller"], id="German"),
        pytest.param("Straße", ["strasse"], id="sharp s"),
        pytest.param("прогноз погоды", ["прогноз", "погоды"], id="Russian"),
        pytest.param("ПОГОДА", ["погода"], id="upper case Cyrillic"),
        pytest.param("طَقْس الغد", ["طقس", "الغد"], id="Arabic without vowel points"),
        pytest.param("मौसम की जानकारी", ["मौसम", "की", "जानकारी"], id="Hindi keeps its vowel signs"),
        pytest.param("K\u00f8benhavn", ["københavn"], id="letters that do not decompose"),
    ],
)
def test_every_script_has_words(text: str, expected: list[str]) -> None:
    assert list(words(text)) == expected


@each(
    "family",
    [
        ["create", "creates", "created", "creating", "creation"],
        ["search", "searches", "searched", "searching"],
        ["query", "queries"],
        ["run", "runs", "running"],
        ["translate", "translation", "translated"],
        ["file", "files"],
    ],
)
def test_inflected_forms_of_an_english_word_match(family: list[str]) -> None:
    assert len({stem(word) for word in family}) == 1


@each("word", ["bus", "status", "access", "sing", "red", "größe", "погоды"])
def test_words_that_only_look_inflected_are_not_stemmed(word: str) -> None:
    assert stem(word) == word


def test_stop_words_are_no_terms() -> None:
    assert terms("What is the weather in my city?") == ["weather", "city"]


@given(st.text())
def test_any_text_has_lower_case_words_without_white_space(text: str) -> None:
    for word in words(text):
        assert word
        assert not any(character.isspace() for character in word)


@given(st.text())
def test_stemming_never_empties_a_word(word: str) -> None:
    assert bool(stem(word)) == bool(word)


@given(st.text(), st.integers(1, 3))
def test_a_word_has_the_same_terms_wherever_and_however_often_it_is_read(text: str, times: int) -> None:
    long = "ab" * LONGEST_KEPT

    assert terms(" ".join([text] * times)) == terms(text) * times
    assert terms(f"{text} {long}") == [*terms(text), long]


def test_a_word_has_the_same_terms_after_more_words_than_are_remembered() -> None:
    before = terms("createIssue repositories")

    terms(" ".join(f"word{number}" for number in range(RUNS_KEPT + 1)))

    assert terms("createIssue repositories") == before
