"""Misspelled words are corrected, and right ones never changed."""

from functools import cache
from itertools import chain
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.catalogs import WordVectors, snapshot, tool
from support.servers import real_lists
from support.tables import each

from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.forms import SHORT, SHORTEST, TWO_ERRORS_FROM, WORDS, WordList, errors
from mcp_context_proxy.retrieval.index import Index
from mcp_context_proxy.retrieval.queries import CORRECTED_SHARE, MOST_CORRECTED, read_query
from mcp_context_proxy.retrieval.text import is_known, translated, words

RIGHT: Final = sorted(
    {
        word
        for tool in chain.from_iterable(real_lists().values())
        for word in words(f"{tool['name']} {tool.get('description', '')}")
        if is_known(word) or translated(word, is_first=True) is None
    }
)
"""Words of names and descriptions of real tools, but for those of other languages."""

FREQUENT: Final = [word for word in WORDS.read_text(encoding="ascii").split() if len(word) >= SHORTEST]
"""Packaged words."""

CATALOG = WordList(["kanban", "webhook"])


def read_as(query: str, *catalog: str) -> str | None:
    """Return how a query is read where a catalog has some words."""
    return read_query(query, lambda term: term in catalog, lambda: WordList(catalog), {}).read_as


@cache
def real_index() -> Index:
    """The index of all real lists."""
    tools = [
        tool(one["name"], one.get("description", ""), server=server)
        for server, listed in real_lists().items()
        for one in listed
    ]
    return Engine(None).index(snapshot(*tools))


@each(
    ("written", "meant"),
    [
        pytest.param("serch", "search", id="insertion"),
        pytest.param("messsage", "message", id="deletion"),
        pytest.param("isseu", "issue", id="swap"),
        pytest.param("branxh", "branch", id="substitution"),
        pytest.param("rpeositry", "repository", id="two errors in a long word"),
        pytest.param("pulll", "pull", id="doubled letter"),
        pytest.param("remane", "rename", id="swap around a letter"),
        pytest.param("histroy", "history", id="swap in what looks like two words"),
        pytest.param("invioce", "invoice", id="word of offices"),
        pytest.param("recipie", "recipe", id="word of households"),
    ],
)
def test_a_typing_error_is_corrected(written: str, meant: str) -> None:
    assert read_as(f"{written} for me") == f"{meant} for me"


def test_a_sentence_of_errors_is_read_as_it_was_meant() -> None:
    assert read_as("serch for isues") == "search for issues"
    assert read_as("Comit my chnages, plese") == "commit my changes, please"


def test_a_short_word_may_have_one_error_only() -> None:
    assert TWO_ERRORS_FROM == 7
    assert read_as("the isxxe") is None
    assert read_as("the repxxitory") == "the repository"


def test_a_word_of_the_catalog_goes_before_others_that_are_as_near() -> None:
    assert read_as("the wether in Berlin", "weather") == "the weather in Berlin"
    assert read_as("show the kanbn", "kanban") == "show the kanban"


@given(st.lists(st.sampled_from(RIGHT), min_size=1, max_size=6))
@example(["a11y", "article"])
def test_no_word_of_the_catalog_is_ever_changed(chosen: list[str]) -> None:
    index = real_index()
    query = read_query(" ".join(chosen), index.lexical.has, index.words, {})

    assert CORRECTED_SHARE not in query.weights.values()


@given(st.lists(st.sampled_from(FREQUENT), min_size=1, max_size=6))
def test_no_known_word_is_ever_changed(chosen: list[str]) -> None:
    query = read_query(" ".join(chosen), lambda _term: False, lambda: CATALOG, {})

    assert CORRECTED_SHARE not in query.weights.values()


def test_every_packaged_word_is_known() -> None:
    assert len(FREQUENT) > 5_000
    assert [word for word in FREQUENT if not is_known(word)] == []


@each(
    "query",
    [
        "open the Serch dashboard",
        "ask KUBECTLX about it",
        "call getIsuue now",
        "write to O'Serch",
        "run serch2",
    ],
)
def test_names_and_identifiers_stay(query: str) -> None:
    assert read_as(query) is None


def test_a_capital_letter_at_the_beginning_is_no_name() -> None:
    assert read_as("Serch for issues") == "search for issues"


def test_words_that_are_like_none_stay() -> None:
    assert read_as("the qxzvkjw of wtf") is None


@each("joined", ["backend", "rootkit", "preprint"])
def test_two_words_written_as_one_are_a_new_word(joined: str) -> None:
    assert read_as(f"show me the {joined}") is None


@each("derived", ["scalable", "footer", "dialling", "relatable", "foundational"])
def test_a_word_that_is_derived_from_a_known_one_is_right(derived: str) -> None:
    assert read_as(f"show me the {derived} one") is None


@each(
    "rare", ["locum", "matinee", "forex", "reais", "paleo", "federative", "sommelier", "ringgit", "kubelet"]
)
def test_a_rare_word_and_one_of_another_trade_is_right(rare: str) -> None:
    assert read_as(f"show me the {rare} one") is None


@pytest.mark.parametrize("new", ["brashi", "locusta"])
def test_an_unknown_word_that_is_only_near_to_a_rare_one_is_new(new: str) -> None:
    assert read_as(f"show me the {new} one") is None


@each("short", ["proj", "incl", "coll", "smth", "ppid"])
def test_a_word_that_is_short_for_something_is_left(short: str) -> None:
    assert read_as(f"show me the {short} one") is None


def test_a_short_word_with_a_swap_or_a_missing_letter_is_corrected() -> None:
    assert read_as("lsit the bgus") == "list the bugs"


def test_a_wrong_word_of_the_catalog_is_corrected_though_it_looks_like_two() -> None:
    assert read_as("show me the histroy", "history") == "show me the history"


def test_at_most_four_words_of_a_query_are_corrected() -> None:
    written = "serch isues comit chnages messsage delte"
    query = read_query(written, lambda _term: False, lambda: CATALOG, {})

    assert MOST_CORRECTED == 4
    assert query.read_as == "search issues commit changes messsage delte"


def test_a_corrected_word_counts_less_than_one_that_is_written_right() -> None:
    query = read_query("serch issues", lambda _term: False, lambda: CATALOG, {})

    assert query.weights["search"] == CORRECTED_SHARE == 0.8
    assert query.weights["issu"] == 1
    assert query.asked["search"] == "search"


def test_a_misspelled_query_finds_the_tool() -> None:
    catalog = snapshot(tool("search_issues", "Search issues."), tool("wipe_disk", "Wipe."))
    engine = Engine(WordVectors())

    ranking = engine.search("serch for isues", catalog)

    assert ranking.results[0].item.name == "search_issues"
    assert ranking.read_as == "search for issues"
    assert engine.search("search for issues", catalog).read_as is None


def test_words_of_parameters_and_of_added_tools_correct_queries() -> None:
    schema = {"properties": {"zorbimexName": {"type": "string"}}}
    before = snapshot(tool("wipe", "Wipe."))
    after = snapshot(tool("wipe", "Wipe."), tool("make", "Make.", schema=schema), generation=2)
    engine = Engine(WordVectors())

    assert engine.search("show the zorbimx", before).read_as is None
    assert engine.search("show the zorbimx", after).read_as == "show the zorbimex"


WORD = st.text(alphabet="abcd", max_size=6)


def reference(first: str, second: str) -> int:
    """The least number of errors, straight from the definition."""
    if not first or not second:
        return len(first) + len(second)
    least = min(
        reference(first[1:], second) + 1,
        reference(first, second[1:]) + 1,
        reference(first[1:], second[1:]) + (first[0] != second[0]),
    )
    if len(first) > 1 and len(second) > 1 and first[:2] == second[1::-1]:
        least = min(least, reference(first[2:], second[2:]) + 1)
    if len(first) > 2 and len(second) > 2 and first[:3] == second[2::-1]:
        least = min(least, reference(first[3:], second[3:]) + 1)
    return least


@given(WORD, WORD)
def test_errors_are_counted_as_defined(first: str, second: str) -> None:
    assert errors(first, second) == reference(first, second)


@given(
    st.lists(st.text(alphabet="abc", min_size=4, max_size=8), max_size=20),
    st.text("abc", min_size=4, max_size=8),
)
def test_the_nearest_word_is_that_of_a_comparison_with_all(known: list[str], word: str) -> None:
    """Leaving out words by their letters leaves out none that is near."""
    allowed = 2 if len(word) >= TWO_ERRORS_FROM else 1
    near = [
        (errors(word, one), at) for at, one in enumerate(known)
        if errors(word, one) <= allowed and (one[0] == word[0] or word[:2] == one[1::-1] or word == one[1:])
        and (len(word) > SHORT or len(one) > len(word) or sorted(one) == sorted(word))
    ]  # fmt: skip

    expected = (known[min(near)[1]], min(near)[0]) if near else None
    assert WordList(known).nearest(word) == expected


def test_an_empty_list_has_no_nearest_word() -> None:
    assert WordList([]).nearest("serch") is None
