"""Whatever a model answers, an order of the candidates comes out, and only from text meant as one."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.tables import each

from mcp_context_proxy.retrieval.reranker import complete_order, numbers_in


@each(
    ("answer", "numbers"),
    [
        pytest.param("3, 1, 2", [3, 1, 2], id="as asked"),
        pytest.param("3 1 2", [3, 1, 2], id="spaces"),
        pytest.param("[3, 1, 2]", [3, 1, 2], id="JSON"),
        pytest.param("3 > 1 > 2", [3, 1, 2], id="greater"),
        pytest.param("#3, #1", [3, 1], id="hashes"),
        pytest.param("3\n1\n2", [3, 1, 2], id="lines"),
        pytest.param("**3, 1, 2**.", [3, 1, 2], id="markdown"),
        pytest.param("Ranking: 3, 1, 2", [3, 1, 2], id="label"),
        pytest.param("2", [2], id="only the best"),
        pytest.param("```json\n[3, 1, 2]\n```", [3, 1, 2], id="fenced"),
        pytest.param("<think>1, 2, 3? No: 5 tools.</think>\n3, 1, 2", [3, 1, 2], id="thoughts"),
        pytest.param("Of the 5 tools the second fits.\n\n2, 5, 1", [2, 5, 1], id="prose before"),
        pytest.param("First I thought:\n1, 2, 3\nbut better is\n3, 2, 1", [3, 2, 1], id="the last counts"),
        pytest.param("I found 3 tools that fit your 2 needs.", [], id="prose"),
        pytest.param("There are\n5\nof them", [], id="a number among prose"),
        pytest.param("<think>3, 1, 2", [], id="cut off while thinking"),
        pytest.param("", [], id="nothing"),
        pytest.param("1234567890123", [], id="not a number of a tool"),
    ],
)
def test_numbers_count_only_on_lines_without_prose(answer, numbers):
    assert numbers_in(answer) == numbers


@each(
    ("said", "order"),
    [
        pytest.param([2, 0, 1], [2, 0, 1], id="all"),
        pytest.param([2], [2, 0, 1], id="those left out keep their order"),
        pytest.param([1, 1, 1, 0], [1, 0, 2], id="twice counts once"),
        pytest.param([7, -1, 2], [2, 0, 1], id="out of range"),
        pytest.param([], [0, 1, 2], id="nothing changes nothing"),
    ],
)
def test_each_candidate_is_ranked_once(said, order):
    assert complete_order(said, 3) == order


@given(st.text(st.sampled_from("0123456789 ,;>#*_`.()[]:\nab<think>"), max_size=300))
def test_any_answer_gives_a_complete_order(answer):
    assert sorted(complete_order([number - 1 for number in numbers_in(answer)], 5)) == [0, 1, 2, 3, 4]
