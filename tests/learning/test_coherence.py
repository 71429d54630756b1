"""Tools that are used for everything are told from those with a purpose."""

import numpy as np
from support.tables import each

from mcp_context_proxy.learning import COHERENT, Topic


def topic(rows: np.ndarray) -> Topic:
    found = Topic.of(rows[0])
    for row in rows[1:]:
        found = found.with_query(row)
    return found


def unit(rows: list[list[float]]) -> np.ndarray:
    found = np.array(rows, np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_similar_queries_of_a_tool_have_a_topic_and_unrelated_ones_do_not():
    assert not topic(unit([[1, 0.1, 0], [1, 0, 0.1]])).general
    assert topic(unit([[1, 0, 0], [0, 1, 0], [0, 0, 1]])).general


def test_a_tool_with_a_single_query_is_not_general():
    assert not topic(unit([[1, 0]])).general


@each("share", [0.3, 0.4, 0.5, 0.6])
def test_coherence_is_the_mean_cosine_of_different_queries(share):
    rows = np.random.default_rng(1).standard_normal((40, 16))
    rows[:, 0] += share * 4
    rows = unit(rows.tolist())
    mean = (rows @ rows.T)[~np.eye(40, dtype=bool)].mean()

    assert topic(rows).general == (mean < COHERENT)
