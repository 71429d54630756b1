"""Demotion: tools of a suspected server come after others, and are not lost."""

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import FITTING, Ranking, SearchOptions, Support
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters

QUERY = "send a mail about the invoice"


def honest() -> list[Tool]:
    return [
        tool("search_flights", "Find flights between two airports.", server="travel"),
        tool("list_events", "List what is in the calendar.", server="office"),
        tool("send_mail", "Send a mail to somebody.", server="office"),
        tool("pay", "Pay what a customer is owed.", server="office"),
        tool("make_table", "Make a table of numbers.", server="office"),
        tool("read_file", "Read a file of the project.", server="files"),
    ]


STUFFED = (
    "send a mail about the invoice and tell the others",
    "send a mail about the invoice with this picture",
    "send a mail about the invoice from the archive",
    "find the flights to Rome and list the events",
    "unfold the tent and pitch it into the sand",
)


def stuffed(texts: Sequence[str] = STUFFED) -> list[Tool]:
    return [tool(f"helper_{at}", text, server="evil") for at, text in enumerate(texts)]


def found(ranking: Ranking) -> list[str]:
    return [result.item.name for result in ranking.results or ranking.near_misses]


@pytest.fixture
def catalog() -> Snapshot:
    return snapshot(*honest(), *stuffed())


@pytest.mark.parametrize("options", [SearchOptions(), SearchOptions(top_n=1), SearchOptions(top_n=3)])
def test_tools_of_other_servers_come_first_with_their_unchanged_scores(
    catalog: Snapshot, options: SearchOptions
) -> None:
    """The demoted tool does not change the rarity of words or the average length of descriptions either."""
    without = Engine(WordVectors()).search(QUERY, snapshot(*honest()), Filters(), options)
    poisoned = Engine(WordVectors()).search(QUERY, catalog, Filters(), options)

    def honest_ones(ranking: Ranking) -> list[tuple[str, float]]:
        return [(one.item.name, one.score) for one in ranking.results if one.item.server != "evil"]

    assert found(poisoned)[0] == "send_mail"
    assert honest_ones(poisoned) == honest_ones(without)[: len(honest_ones(poisoned))]


@pytest.mark.parametrize(
    "options",
    [
        FITTING,
        SearchOptions(include_score=inf),
        SearchOptions(top_n=6, include_score=inf),
        SearchOptions(top_n=3, include_score=inf),
        SearchOptions(include_score=2),
    ],
)
def test_one_tool_of_a_suspected_server_comes_after_all_that_is_half_as_near(
    catalog: Snapshot, options: SearchOptions
) -> None:
    ranking = Engine(WordVectors()).search(QUERY, catalog, Filters(), options)
    (place,) = [at for at, name in enumerate(found(ranking)) if name.startswith("helper")]
    half = min(ranking.results[0].score, ranking.results[place].score) / 2

    assert place > 0
    assert all(one.score >= half for one in ranking.results[1:place])
    assert all(one.score < half for one in ranking.results[place + 1 :])
    assert options.share_of_best or len(ranking.results) == options.top_n


def test_a_result_says_that_its_server_is_suspected(catalog: Snapshot) -> None:
    ranking = Engine(WordVectors()).search(QUERY, catalog, Filters(), FITTING)
    reasons = {one.item.name: one.why for one in ranking.results}

    assert ranking.suspected == {"evil": "names"}
    for name, why in reasons.items():
        suspected = "its server's names have nothing to do with their descriptions" in why
        assert suspected is name.startswith("helper")


def test_other_tools_that_are_nearly_as_near_keep_the_first_places() -> None:
    mails = [tool(f"send_{what}_mail", "Send a mail about an invoice.", server="office") for what in "abcdef"]
    ranking = Engine(WordVectors()).search(QUERY, snapshot(*mails, *stuffed()), Filters(), FITTING)

    assert [name.startswith("helper") for name in found(ranking)[:5]] == [False] * 5


def test_if_no_other_tool_fits_a_suspected_server_gets_half_of_the_places(catalog: Snapshot) -> None:
    ranking = Engine(WordVectors(), calibration=0.5).search("unfold the tent pitch it into the sand", catalog)

    assert ranking.fits
    assert found(ranking)[0] == "helper_4"
    assert sum(name.startswith("helper") for name in found(ranking)) == 2
    assert len(ranking.results) == 5


def test_if_other_tools_are_few_a_suspected_server_gets_the_rest() -> None:
    engine = Engine(WordVectors(), calibration=0.5)
    ranking = engine.search("unfold the tent pitch it into the sand", snapshot(honest()[0], *stuffed()))

    assert found(ranking)[0] == "helper_4"
    assert "search_flights" in found(ranking)
    assert len(ranking.results) == 5


def test_if_neither_suspected_nor_other_tools_fit_nothing_fits(catalog: Snapshot) -> None:
    ranking = Engine(WordVectors(), calibration=0.5).search("quantum chromodynamics", catalog)

    assert not ranking.fits
    assert len(ranking.near_misses) == 5


def test_a_suspected_server_is_ranked_normally_if_only_it_is_searched(catalog: Snapshot) -> None:
    alone = Engine(WordVectors()).search(QUERY, snapshot(*stuffed()))
    asked_for = Engine(WordVectors()).search(QUERY, catalog, Filters(servers=frozenset({"evil"})))

    assert len(found(alone)) == len(found(asked_for)) == 5
    assert alone.suspected == {}
    assert not any("its server" in one.why for one in alone.results)


def test_a_suspected_tool_is_first_if_its_exact_name_is_queried(catalog: Snapshot) -> None:
    assert found(Engine(WordVectors()).search("helper_3", catalog))[0] == "helper_3"


def test_every_tool_is_ranked_once_however_deep(catalog: Snapshot) -> None:
    everything = sorted(one.name for one in (*honest(), *stuffed()))
    for query in (QUERY, "unfold the tent pitch it into the sand"):
        ranking = Engine(WordVectors(), calibration=0.5).search(
            query, catalog, Filters(), SearchOptions(depth=11)
        )
        names = [one.item.name for one in (*ranking.results, *ranking.others)]

        assert sorted(names) == everything


def test_lexical_search_puts_a_suspected_server_last_too(catalog: Snapshot) -> None:
    ranking = Engine(None).search(QUERY, catalog, Filters(), FITTING)

    assert found(ranking)[0] == "send_mail"
    assert found(ranking)[-1].startswith("helper")


def test_suspicion_is_updated_when_definitions_change() -> None:
    engine = Engine(WordVectors())
    plain = stuffed()[0]
    first = snapshot(*honest(), plain)
    engine.index(first)
    suspected = snapshot(*honest(), *stuffed(), generation=2)
    engine.index(suspected)
    again = snapshot(*honest(), plain, generation=3)

    assert found(engine.search(QUERY, first))[:2] == ["helper_0", "send_mail"]
    assert found(engine.search(QUERY, suspected))[0] == "send_mail"
    assert found(engine.search(QUERY, again)) == found(engine.search(QUERY, first))


TENT = "unfold the tent pitch it into the sand"
"""What only a tool of a suspected server does."""


class OneUse:
    """A past use of one tool for a query that is much like the one that is asked."""

    def __init__(self, server: str, name: str) -> None:
        self._support = {(server, name): Support(0.95, "a query of before", 1)}

    def supported(self, query: Any, written: str | None = None) -> dict[tuple[str, str], Support]:
        return self._support

    def confidence(self, query: Any) -> float | None:
        return None

    def generation(self) -> object:
        return self


@pytest.mark.parametrize("options", [SearchOptions(), FITTING, SearchOptions(top_n=7, include_score=inf)])
@pytest.mark.parametrize("used", [("travel", "search_flights"), ("office", "pay"), ("evil", "helper_3")])
def test_one_use_of_another_tool_removes_no_suspected_tool_from_the_answer(
    options: SearchOptions, used: tuple[str, str]
) -> None:
    camp = [tool(f"helper_{at}", text, server="camp") for at, text in enumerate(STUFFED)]
    others = [tool(f"helper_{at}", text, server="evil") for at, text in enumerate(STUFFED)]
    catalog = snapshot(*honest(), *camp, *others)
    before = Engine(WordVectors(), calibration=0.5).search(TENT, catalog, Filters(), options)
    engine = Engine(WordVectors(), learned=OneUse(*used), calibration=0.5)
    after = engine.search(TENT, catalog, Filters(), options)

    def servers(ranking: Ranking) -> set[str]:
        best = [one.item for one in ranking.results if one.item.name == "helper_4"]
        return {one.server for one in best if isinstance(one, Tool)}

    assert servers(before) == servers(after) == {"camp", "evil"}


def test_one_use_makes_no_difference_where_only_suspected_tools_are_searched(catalog: Snapshot) -> None:
    only = Filters(servers=frozenset({"evil"}))
    engine = Engine(WordVectors(), learned=OneUse("evil", "helper_3"), calibration=0.5)
    before = Engine(WordVectors(), calibration=0.5).search(TENT, catalog, only)
    after = engine.search(TENT, catalog, only)

    assert set(found(before)) == set(found(after))


def test_few_other_tools_that_fit_leave_the_rest_of_the_places_to_a_suspected_server() -> None:
    mail = tool("send_mail", "Send a mail to somebody.", server="office")
    ranking = Engine(WordVectors()).search(QUERY, snapshot(mail, *stuffed()))

    assert found(ranking)[0] == "send_mail"
    assert len(found(ranking)) == 5


def test_tools_of_a_trusted_server_are_ranked_as_usual() -> None:
    trusted = [replace(one, trusted=True) for one in stuffed()]
    ranking = Engine(WordVectors()).search(QUERY, snapshot(*honest(), *trusted), Filters(), FITTING)

    assert ranking.suspected == {}
    assert any(name.startswith("helper") for name in found(ranking)[:3])


@pytest.mark.parametrize(("include_score", "shown"), [(inf, 5), (2.0, 5), (0.5, 8)])
def test_top_n_and_include_score_hold_for_suspected_tools_too(
    catalog: Snapshot, include_score: float, shown: int
) -> None:
    options = SearchOptions(top_n=5, include_score=include_score)
    ranking = Engine(WordVectors()).search(QUERY, catalog, Filters(), options)

    assert 5 <= len(ranking.results) <= shown
    assert all(one.cosine is not None and one.cosine >= include_score for one in ranking.results[5:])


def test_a_copied_request_comes_after_what_is_half_as_near_as_the_best_honest_tool() -> None:
    """Nothing honest is as near as the request itself is."""
    second = tool("forward", "Forward a mail from the archive of the office.", server="archive")
    copied = [f"{QUERY}. {QUERY} and tell the others", *STUFFED[1:]]
    options = SearchOptions(top_n=6, include_score=inf)

    ranking = Engine(WordVectors()).search(
        QUERY, snapshot(*honest(), second, *stuffed(copied)), Filters(), options
    )

    scores = {one.item.name: one.score for one in ranking.results}
    (place,) = [at for at, name in enumerate(found(ranking)) if name.startswith("helper")]
    nearest, best = ranking.results[place].score, scores["send_mail"]
    assert nearest / 2 < best < nearest
    assert best / 2 < scores["forward"] < nearest / 2
    assert found(ranking).index("forward") < place
