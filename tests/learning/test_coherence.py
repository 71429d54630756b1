"""Tools that are used for everything are told from those with a purpose."""

import numpy as np

from mcp_context_proxy.learning.coherence import COHERENT, general_tools

ONE, OTHER = ("s", "one"), ("s", "other")


def unit(*numbers: float) -> list[float]:
    return list(np.array(numbers) / np.linalg.norm(numbers))


def test_a_tool_whose_queries_are_alike_is_not_general_and_one_whose_are_not_is():
    rows = [unit(1, 0.1, 0), unit(1, 0, 0.1), unit(1, 0, 0), unit(0, 1, 0), unit(0, 0, 1)]
    tools = [ONE, ONE, OTHER, OTHER, OTHER]

    assert general_tools(tools, np.array(rows, np.float32)) == {OTHER}


def test_one_query_is_no_sign_of_generality():
    assert general_tools([ONE], np.array([unit(1, 0)], np.float32)) == frozenset()
    assert general_tools([], np.zeros((0, 0), np.float32)) == frozenset()


def test_it_is_the_mean_cosine_of_different_queries_that_counts():
    random = np.random.default_rng(1)
    for share in (0.3, 0.4, 0.5, 0.6):
        rows = random.standard_normal((40, 16))
        rows[:, 0] += share * 4
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        mean = (rows @ rows.T)[~np.eye(40, dtype=bool)].mean()

        assert (ONE in general_tools([ONE] * 40, rows.astype(np.float32))) == (mean < COHERENT)
