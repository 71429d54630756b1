"""New tools get a little more in an exploring search, and never displace an exact name."""

import pytest
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters

EXPLORING = SearchOptions(explore=True, top_n=5)
TWINS = snapshot(
    tool("a_mail", "send mail"),
    tool("b_mail", "send mail"),
    tool("chat", "send a chat"),
)


def ranked(query: str, options: SearchOptions, **new: float) -> list[tuple[str, float]]:
    novel = {("srv", name): value for name, value in new.items()}
    engine = Engine(WordVectors(), novel=lambda: novel)
    results = engine.search(query, TWINS, Filters(), options).results
    return [(result.item.name, result.novelty) for result in results]  # type: ignore[union-attr]


def test_of_two_equal_tools_the_new_one_ranks_first_in_searches_only():
    assert ranked("send mail", SearchOptions(), b_mail=0.02)[0] == ("a_mail", 0.0)
    assert ranked("send mail", EXPLORING, b_mail=0.02)[0] == ("b_mail", 0.02)


def test_a_name_that_is_asked_for_exactly_stays_first():
    assert ranked("a_mail", EXPLORING, b_mail=10.0)[0] == ("a_mail", 0.0)


def test_the_novelty_bonus_is_part_of_the_score_and_the_reason():
    engine = Engine(WordVectors(), novel=lambda: {("srv", "b_mail"): 0.02})
    plain = {r.item.name: r for r in engine.search("send mail", TWINS).results}
    exploring = {r.item.name: r for r in engine.search("send mail", TWINS, options=EXPLORING).results}

    assert exploring["b_mail"].score - plain["b_mail"].score == pytest.approx(0.02, abs=1e-6)
    assert exploring["b_mail"].need == 0
    assert exploring["b_mail"].why.endswith("; new here")
    assert exploring["a_mail"].why == plain["a_mail"].why
