"""Search: results, their order and number, and the explanations."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.catalogs import WordVectors, rule, snapshot, tool
from support.general_requests import GENERAL_REQUESTS
from support.tables import each

from mcp_context_proxy.items import IncludeMode, Kind, Snapshot, Tool
from mcp_context_proxy.retrieval import FITTING, Ranking, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.scoring import Background, count_selected

NAMES = st.lists(
    st.sampled_from(["read_file", "write_file", "send_mail", "list_mail", "get_weather", "play_song", "sum"]),
    unique=True,
    min_size=1,
)
EVERYTHING = SearchOptions(top_k=100, top_n=100)


def background(vectors: Any) -> Background:
    requests = vectors.embed(GENERAL_REQUESTS)
    return Background(requests, requests, np.zeros_like(requests))


def found(ranking: Ranking) -> list[str]:
    return [result.item.name for result in ranking.results or ranking.near_misses]


@pytest.fixture
def engine() -> Engine:
    vectors = WordVectors()
    return Engine(vectors, calibration=background(vectors))


@pytest.fixture
def office() -> Snapshot:
    return snapshot(
        tool("create_issue", "Opens a ticket in a repository.", server="github"),
        tool("list_issues", "Lists the tickets of a repository.", server="github"),
        tool("send_mail", "Sends a message to a person.", server="mail"),
        tool("search", "Finds messages.", server="mail"),
        tool("get_weather", "Tells rain and sun for a city.", server="weather"),
        rule("mail-style", "How a message is written.", "Be brief. Greet the person."),
    )


def test_the_matching_tool_comes_first(engine: Engine, office: Snapshot) -> None:
    ranking = engine.search("send a message to a person", office)

    assert found(ranking)[0] == "send_mail"
    assert ranking.method == "hybrid"
    assert ranking.note is None
    assert ranking.fits
    assert ranking.considered == 6
    assert ranking.near_misses == ()


def test_the_score_is_the_cosine_a_fortieth_of_bm25f_and_the_action(engine: Engine, office: Snapshot) -> None:
    results = engine.search("create a ticket", office, options=EVERYTHING).results
    assert results
    for result in results:
        assert result.cosine is not None
        assert result.score == pytest.approx(result.cosine + 0.02 * result.lexical + result.action, abs=1e-5)
        assert result.lexical == pytest.approx(sum(value for *_, value in result.terms), rel=1e-4)


def test_a_result_says_why_it_was_found(engine: Engine, office: Snapshot) -> None:
    best = engine.search("create issue for a repository", office).results[0]

    assert best.why.startswith(
        "name matches 'create issue'; description mentions 'repository' and synonyms 'open ticket'; "
    )
    assert ("description", "repository") in {(field, word) for field, word, _ in best.terms}
    assert best.chunk == "github create issue: Opens a ticket in a repository."


def test_a_match_through_a_synonym_is_explained_as_one(engine: Engine, office: Snapshot) -> None:
    best = engine.search("create a ticket", office).results[0]

    assert "name matches 'create' and synonym 'issue'" in best.why


@pytest.mark.parametrize("name", ["search", "mail__search", "mail search", "Mail Search", "SEARCH"])
def test_a_query_that_is_an_exact_name_finds_it_first(engine: Engine, office: Snapshot, name: str) -> None:
    best = engine.search(name, office).results[0]

    assert best.item.name == "search"
    assert best.why.startswith("exact name")


def test_an_exact_name_ranks_first_even_if_others_repeat_it_more_often(engine: Engine) -> None:
    talkative = [tool(f"search_{kind}", "search search search", server="search") for kind in "abcdef"]
    catalog = snapshot(*talkative, tool("search", "Something else altogether, told at length.", server="z"))

    assert found(engine.search("search", catalog, options=SearchOptions(top_n=1)))[0] == "search"


def test_an_exact_name_is_found_without_any_similarity(engine: Engine) -> None:
    """Stop words are no terms, and the model reads ``whoami`` as one strange word."""
    catalog = snapshot(tool("whoami"), *[tool(f"t{i}", "who am i") for i in range(30)])

    assert found(engine.search("who am I", catalog, options=SearchOptions(top_k=1)))[0] == "whoami"


@pytest.mark.parametrize(
    ("query", "description"),
    [
        pytest.param("天气预报", "查询城市的天气预报", id="Chinese"),
        pytest.param("天気を調べる", "都市の天気を調べます", id="Japanese"),
        pytest.param("날씨", "도시의 날씨를 알려줍니다", id="Korean"),
        pytest.param("Wetterbericht für München", "Zeigt den Wetterbericht für München", id="German"),
        pytest.param("МОСКВА погода", "Погода в городе Москва", id="Russian"),
        pytest.param("الطقس", "يعرض الطَّقس في المدينة", id="Arabic"),
        pytest.param("मौसम", "शहर का मौसम बताता है", id="Hindi"),
        pytest.param("อากาศ", "แสดงสภาพอากาศในเมือง", id="Thai"),
    ],
)
def test_words_of_any_script_are_found(query: str, description: str) -> None:
    catalog = snapshot(tool("t1", description), tool("t2", "Something in English."), tool("t3", "別の道具"))

    assert found(Engine(None).search(query, catalog)) == ["t1"]


def test_filters_apply_before_the_cut_off(engine: Engine, office: Snapshot) -> None:
    only_weather = Filters(servers=frozenset({"weather"}))
    ranking = engine.search("send mail message", office, only_weather, SearchOptions(top_k=1, top_n=1))

    assert found(ranking) == ["get_weather"]
    assert ranking.considered == 1


def test_a_kind_can_be_asked_for(engine: Engine, office: Snapshot) -> None:
    assert found(engine.search("send message", office, Filters(kinds=frozenset({Kind.RULE})))) == [
        "mail-style"
    ]
    tools = engine.search("send message", office, Filters(kinds=frozenset({Kind.TOOL})), EVERYTHING)
    assert {result.item.kind for result in tools.results} == {Kind.TOOL}


def test_filters_that_nothing_meets_find_nothing(engine: Engine, office: Snapshot) -> None:
    ranking = engine.search("search", office, Filters(servers=frozenset({"nobody"})))

    assert (ranking.results, ranking.near_misses, ranking.considered, ranking.fits) == ((), (), 0, False)


def test_an_item_included_by_hand_only_is_never_found(engine: Engine) -> None:
    by_hand = tool("drop_database", "Drops a database.", include=IncludeMode.MANUAL)
    catalog = snapshot(by_hand, tool("other", include=IncludeMode.ALWAYS))

    assert found(engine.search("drop_database", catalog, options=EVERYTHING)) == ["other"]


def test_top_n_items_are_selected(engine: Engine, office: Snapshot) -> None:
    many = engine.search("message", office, options=SearchOptions(top_n=3, include_score=9))

    assert len(found(many)) == 3


def test_include_score_selects_near_items_beyond_top_n(engine: Engine, office: Snapshot) -> None:
    everything = engine.search("mail message", office, options=EVERYTHING).results
    near = sorted((result.cosine or 0 for result in everything), reverse=True)[2]
    ranking = engine.search("mail message", office, options=SearchOptions(top_n=1, include_score=near))

    expected = [r.score for i, r in enumerate(everything) if i == 0 or (r.cosine or 0) >= near]
    assert len(expected) > 1
    assert [result.score for result in ranking.results] == expected


def test_no_more_than_top_k_are_selected_for_their_score(engine: Engine) -> None:
    """A server with a thousand copies of one tool must not fill a context."""
    flood = snapshot(*[tool(f"copy_{i:03}", "Sends a message.") for i in range(300)])

    assert len(found(engine.search("sends a message", flood, options=SearchOptions(include_score=0)))) == 20


def test_a_strong_lexical_match_is_not_hidden_by_near_meanings(engine: Engine) -> None:
    """The chunk of the only tool that says xlsx is far down the list of cosines."""
    near = [tool(f"near_{i}", "convert the report file" + " again" * i) for i in range(30)]
    other = tool("other", "lengthy words about entirely different matters " * 8 + "xlsx")
    options = SearchOptions(top_k=5, top_n=100, include_score=9)
    selected = found(engine.search("convert the report xlsx", snapshot(*near, other), options=options))

    assert "other" in selected
    assert len(selected) <= 10


def test_the_number_selected_can_follow_the_scores(engine: Engine, office: Snapshot) -> None:
    options = SearchOptions(top_n=1, include_score=9, share_of_best=0.65, at_least=2, at_most=4)
    everything = engine.search("create issue", office, options=EVERYTHING).results
    near = sum(result.score >= 0.65 * everything[0].score for result in everything)

    assert len(found(engine.search("create issue", office, options=options))) == min(max(near, 2), 4)


@each(
    ("scores", "shown"),
    [
        ([], 0),
        ([0.9], 1),
        ([0.9, 0.3, 0.3, 0.3, 0.3], 1),
        ([0.9, 0.8, 0.3, 0.3, 0.3], 2),
        ([0.6, 0.55, 0.5, 0.45, 0.3, 0.3, 0.3], 4),
        ([0.5] * 20, 10),
    ],
)
def test_as_many_tools_are_shown_as_fit(scores: list[float], shown: int) -> None:
    assert count_selected(np.array(scores, np.float32), FITTING) == shown


@settings(max_examples=200)
@given(st.lists(st.floats(0.125, 2, width=32), min_size=1, max_size=30))
def test_nothing_is_shown_that_scores_far_below_the_best(values: list[float]) -> None:
    scores = np.sort(np.array(values, np.float32))[::-1]
    shown = count_selected(scores, FITTING)

    assert shown >= 1
    assert all(score >= 0.6 * scores[0] - 0.03 for score in scores[1:shown])


def test_how_many_are_shown_changes_neither_order_nor_scores(engine: Engine, office: Snapshot) -> None:
    rankings = [
        engine.search("create a ticket and send a message", office, options=replace(options, depth=6))
        for options in (FITTING, SearchOptions(top_n=5), SearchOptions(top_n=1))
    ]

    ordered = [[(each.item, each.score) for each in (*one.results, *one.others)] for one in rankings]
    assert ordered[0] == ordered[1] == ordered[2]
    assert len(ordered[0]) == 6


def test_by_words_alone_the_best_five_are_shown(office: Snapshot) -> None:
    ranking = Engine(None).search("message person ticket city rain repository", office, options=FITTING)

    assert ranking.method == "lexical"
    assert len(found(ranking)) == 5


def test_each_sentence_keeps_its_tool_where_few_are_shown(engine: Engine, office: Snapshot) -> None:
    query = "Open a ticket in a repository. Tell the rain for a city. Send a message to a person."

    assert {"create_issue", "get_weather", "send_mail"} <= set(
        found(engine.search(query, office, options=FITTING))
    )


def test_a_query_that_nothing_fits_says_so_and_names_the_nearest(engine: Engine, office: Snapshot) -> None:
    ranking = engine.search("zxqv wvut", office)

    assert not ranking.fits
    assert ranking.results == ()
    assert len(ranking.near_misses) == 5


def test_a_query_fits_if_most_of_its_words_match() -> None:
    padding = " ".join(f"word{i}" for i in range(60))
    catalog = snapshot(tool("one", f"quarkonium {padding}"), tool("two", padding), tool("three", padding))
    vectors = WordVectors()
    ranking = Engine(vectors, calibration=background(vectors)).search("quarkonium", catalog)

    assert ranking.fits
    assert found(ranking)[0] == "one"


@pytest.mark.parametrize("query", ["", "   ", "?!", "\ud83d", "a" * 100_000, "the of and"])
def test_a_query_without_content_is_answered(engine: Engine, office: Snapshot, query: str) -> None:
    assert engine.search(query, office).query == query


def test_an_empty_catalog_is_searched(engine: Engine) -> None:
    assert engine.search("anything", snapshot()).considered == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=NAMES, query=st.sampled_from(["read mail", "the weather", "sum of a file"]), seed=st.integers())
def test_the_order_of_the_catalog_changes_nothing(names: list[str], query: str, seed: int) -> None:
    items = [tool(name, f"Can {name} it.", server=server) for name in names for server in ("a", "b")]
    first = Engine(WordVectors()).search(query, snapshot(*items), options=EVERYTHING)
    Random(seed).shuffle(items)
    second = Engine(WordVectors()).search(query, snapshot(*items), options=EVERYTHING)

    assert first.results == second.results
    assert first.near_misses == second.near_misses


def test_equal_scores_are_ordered_by_server_and_name(engine: Engine) -> None:
    twins = [tool("same", "Does it.", server=server) for server in ("s3", "s1", "s2")]
    ranking = engine.search("unrelated", snapshot(*twins), options=EVERYTHING)
    twice = engine.search("unrelated", snapshot(*reversed(twins)), options=EVERYTHING)

    assert found(ranking) == ["same"] * 3
    assert ranking.near_misses == twice.near_misses


def test_equal_scores_of_one_server_are_ordered_by_name(engine: Engine) -> None:
    spellings = ["do.it", "do-it", "doIt", "do_it"]
    ranking = engine.search("something else", snapshot(*map(tool, spellings)), options=EVERYTHING)

    assert found(ranking) == sorted(spellings)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=NAMES)
def test_another_tool_changes_no_cosine(names: list[str]) -> None:
    items = [tool(name, f"Can {name} it.") for name in names]
    engine = Engine(WordVectors())
    before = engine.search("read my mail", snapshot(*items), options=EVERYTHING)
    after = engine.search("read my mail", snapshot(*items, tool("added", "read mail")), options=EVERYTHING)

    def cosines(ranking: Ranking) -> dict[str, float | None]:
        return {result.item.name: result.cosine for result in ranking.results or ranking.near_misses}

    assert cosines(before) == pytest.approx(
        {n: c for n, c in cosines(after).items() if n != "added"}, abs=2e-6
    )


def test_of_the_same_tool_at_two_servers_one_is_shown_and_names_the_other(engine: Engine) -> None:
    said = "Opens a ticket in a repository."
    catalog = snapshot(
        tool("create_issue", said, server="github", marked=False),
        tool("create_issue", said, server="work", marked=False),
        tool("list_issues", "Lists the tickets of a repository.", server="github"),
        tool("create_label", "Makes a label for a ticket in a repository.", server="work"),
    )

    ranking = engine.search(
        "opens a ticket in a repository", catalog, options=SearchOptions(top_n=3, depth=4)
    )

    assert found(ranking)[0] == "create_issue"
    assert len(set(found(ranking))) == 3
    assert [twin.exposed_name for twin in ranking.results[0].twins] == ["work__create_issue"]
    assert ranking.results[0].why.endswith("also at work")
    assert [result.item.exposed_name for result in ranking.others] == ["work__create_issue"]


def test_another_search_of_the_catalog_names_only_the_twins_that_its_filters_leave(engine: Engine) -> None:
    same = [tool("create_issue", "Opens a ticket.", server=server, marked=False) for server in "abc"]
    catalog, query = snapshot(*same, tool("list_labels", "Lists labels.", server="a")), "opens a ticket"

    def twins(*servers: str) -> list[str]:
        results = engine.search(query, catalog, Filters(servers=frozenset(servers))).results
        return [twin.server for twin in results[0].twins]

    assert [twins(*"abc"), twins(*"ac"), twins("b"), twins(*"abc")] == [["b", "c"], ["c"], [], ["b", "c"]]


def test_what_one_task_needs_of_two_like_servers_is_of_one_and_always_names_the_other(engine: Engine) -> None:
    said = {
        "list_parcels": "List parcels by weight.",
        "move_parcel": "Move a parcel.",
        "drop": "Drop a parcel.",
    }
    catalog = snapshot(
        *(tool(name, text, server="north", marked=False) for name, text in said.items()),
        tool("sort_mail", "Sorts the mail.", server="north"),
        *(tool(name, text, server="south", marked=False) for name, text in reversed(said.items())),
    )

    for query in (
        "list parcels of the south, then move a parcel and drop it",
        "move a parcel",
        "drop a parcel",
    ):
        results = engine.search(query, catalog, options=SearchOptions(top_k=2, top_n=4)).results
        told = [one for one in results if one.item.name in said]
        assert told
        assert len({one.item.server for one in told if isinstance(one.item, Tool)}) == 1
        assert all(len(one.twins) == 1 for one in told)


def test_tools_of_one_name_that_say_different_things_are_shown_both(engine: Engine) -> None:
    """Else a server could hide another one's tool by repeating it with a word more."""
    catalog = snapshot(
        tool("create_issue", "Opens a ticket in a repository.", server="github"),
        tool("create_issue", "Opens a ticket in a repository. Ticket!", server="stranger"),
    )

    ranking = engine.search("open a ticket in a repository", catalog, options=SearchOptions(top_n=3))

    assert sorted(found(ranking)) == ["create_issue", "create_issue"]
    assert [result.twins for result in ranking.results] == [(), ()]
