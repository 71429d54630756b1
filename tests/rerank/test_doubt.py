"""Another model is asked where the order is in doubt, and about nothing that is not."""

import pytest
from msgspec.structs import replace
from support.tables import each

from mcp_context_proxy.retrieval.reranker import CANDIDATES, candidates, reason_to_skip, reordered

from .conftest import build_ranking, build_result, names


def scored(*scores: float):
    return build_ranking(*(build_result(f"t{at}", score) for at, score in enumerate(scores)))


def skipped(ranking, mode):
    return reason_to_skip(ranking, candidates(ranking), mode)


@each(
    ("scores", "reason"),
    [
        pytest.param((0.60, 0.58, 0.51), None, id="close"),
        pytest.param((0.90, 0.85, 0.80), None, id="on both bounds"),
        pytest.param((0.91, 0.90, 0.89), "the best tool scores 0.91", id="certain"),
        pytest.param((0.70, 0.69, 0.59), "the best tool leads by 0.11", id="ahead of the third"),
        pytest.param((0.70, 0.59), "the best tool leads by 0.11", id="ahead of the only other"),
        pytest.param((0.70,), "there is nothing to put in order", id="one"),
        pytest.param((), "there is nothing to put in order", id="none"),
    ],
)
def test_auto_asks_only_if_the_scores_are_close(scores, reason):
    assert skipped(scored(*scores), "auto") == reason


def test_always_asks_if_there_are_two_tools():
    assert skipped(scored(0.99, 0.2), "always") is None
    assert skipped(scored(0.99), "always") is not None


def test_no_model_is_asked_if_nothing_fits():
    ranking = replace(scored(0.6, 0.6, 0.6), fits=False)

    assert skipped(ranking, "always") == "nothing fits the query"


def test_a_tool_named_in_the_query_stays_first():
    exact = build_result("exact", 0.3, exact=True)
    ranking = build_ranking(exact, *(build_result(name, 0.6) for name in "ab"))

    assert skipped(ranking, "auto") == "the query is the name of a tool"
    assert names(candidates(ranking)) == ["a", "b"]
    assert names(reordered(ranking, candidates(ranking), [1, 0]).results) == ["exact", "b", "a"]


def test_the_next_best_tools_are_candidates_and_the_number_of_results_stays(close):
    assert names(candidates(close)) == list("abcde")
    assert len(candidates(close)) == CANDIDATES

    after = reordered(close, candidates(close), [4, 0, 1, 2, 3])
    assert names(after.results) == ["e", "a", "b"]
    assert names(after.others) == ["c", "d", "f"]


def test_with_several_needs_only_selected_tools_are_reordered():
    first, second = build_result("a", 0.6), build_result("b", 0.6, serves="and then b")
    ranking = build_ranking(first, second, build_result("c", 0.6), selected=2)

    assert names(candidates(ranking)) == ["a", "b"]


def test_a_first_tool_that_was_used_for_such_requests_keeps_its_place():
    learned, others = build_result("learned", 0.61, learned=0.1), [build_result(n, 0.6) for n in "ab"]
    ranking = build_ranking(learned, *others)

    assert skipped(ranking, "auto") == "the best tool was used for requests like this"
    assert skipped(ranking, "always") is None
    assert names(candidates(ranking)) == ["a", "b"]
    # Further down, use is one reason among others.
    assert names(candidates(build_ranking(others[0], learned))) == ["a", "learned"]
