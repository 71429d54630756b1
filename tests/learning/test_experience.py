"""The amount of experience with similar requests, from learned pairs."""

import numpy as np
import pytest
from support.tables import each

from mcp_context_proxy.learning import query_key
from mcp_context_proxy.learning.tier import ENOUGH, confidence
from mcp_context_proxy.store.memory import Pair


def build_pairs(*uses: int, tools: int = 1) -> list[Pair]:
    """Queries that were used so often, and others to make them enough."""
    counts = [*uses, *[1] * ENOUGH]
    vector = np.array([1], np.float32)
    return [
        Pair(query_key(f"query {at}"), ("s", f"t{tool}"), None, vector, "m", 1.0, count, 0.0, 0.0)
        for at, count in enumerate(counts)
        for tool in range(tools)
    ]


def cosines(pairs: list[Pair], *near: float) -> np.ndarray:
    return np.array([*near, *[0.0] * (len(pairs) - len(near))], np.float32)


def test_with_too_few_pairs_there_is_no_confidence():
    pairs = build_pairs()

    assert confidence(pairs[:-1], cosines(pairs[:-1], 1.0)) is None
    assert confidence(pairs, cosines(pairs, 1.0)) is not None
    assert confidence([], np.zeros(0, np.float32)) is None


def test_several_tools_of_one_query_count_once():
    pairs = build_pairs(tools=2)[:ENOUGH]

    assert confidence(pairs, cosines(pairs)) is None


@each(
    ("near", "uses", "expected"),
    [
        pytest.param((0.9, 0.9, 0.9), (9, 9, 9), 0.9 * 0.9, id="near and often served"),
        pytest.param((0.9, 0.9, 0.9), (1, 1, 1), 0.9 * 0.5, id="near and served once"),
        pytest.param((0.9, 0.0, 0.0), (3, 3, 3), 0.3 * 0.75, id="one that is near"),
        pytest.param((-0.5, -0.5, -0.5), (9, 9, 9), 0.0, id="nothing is near"),
    ],
)
def test_confidence_is_similarity_times_use(near, uses, expected):
    pairs = build_pairs(*uses)

    assert confidence(pairs, cosines(pairs, *near)) == pytest.approx(expected, abs=1e-6)
