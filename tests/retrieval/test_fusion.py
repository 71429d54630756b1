"""Fusion of scores by the baselines, beside the proxy's own sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_context_proxy.retrieval.scoring import fuse, reciprocal_ranks
from mcp_context_proxy.retrieval.vectors import best

COSINE = np.array([0.5, 0.9, 0.5, 0.1], np.float32)
LEXICAL = np.array([3.0, 0.0, 4.0, 0.0], np.float32)


def test_equal_scores_share_a_rank():
    assert reciprocal_ranks(COSINE) == pytest.approx([1 / 62, 1 / 61, 1 / 62, 1 / 64])


def test_rank_fusion_adds_reciprocal_ranks_only_for_items_with_matching_words():
    fused = fuse(COSINE, LEXICAL, "rrf")

    assert fused == pytest.approx([1 / 62 + 1 / 62, 1 / 61, 1 / 62 + 1 / 61, 1 / 64])


def test_hybrid_scores_are_the_cosine_plus_a_fortieth_of_the_lexical_score():
    assert fuse(COSINE, LEXICAL, "dense") == pytest.approx(COSINE)
    assert fuse(COSINE, LEXICAL) == pytest.approx(COSINE + 0.02 * LEXICAL)
    assert fuse(None, LEXICAL, "dense") == pytest.approx(0.02 * LEXICAL)


@given(
    scores=st.lists(st.sampled_from([-np.inf, 0.0, 0.1, 0.5, 0.7, 1.0]), min_size=1, max_size=40),
    repeated=st.integers(1, 40),
    count=st.integers(0, 30),
)
def test_ties_with_the_last_selected_score_are_all_kept(
    scores: list[float], repeated: int, count: int
) -> None:
    many = np.array(scores * repeated, np.float32)
    least = np.sort(many)[::-1][min(count, many.size) - 1]
    expected = np.flatnonzero(many >= least) if count else []

    assert best(many, count).tolist() == list(expected)
