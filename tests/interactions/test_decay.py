"""The weight of an interaction after some days."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_context_proxy.interactions.memory import aged
from mcp_context_proxy.store import DECAY_PER_DAY

from .conftest import DAY, NOW

cosines = st.floats(-1, 1)
days = st.floats(0, 3650)
factors = st.floats(0.01, 1)


def score(cosine: float, age: float, factor: float = DECAY_PER_DAY) -> float:
    """The weight of one interaction that is `age` days old."""
    return float(aged(np.array([cosine]), np.array([NOW - age * DAY]), NOW, factor)[0])


@pytest.mark.parametrize(("cosine", "after", "wanted"), [(0.9, 30, 0.193), (0.7, 1, 0.665), (0.8, 0, 0.8)])
def test_the_score_is_the_cosine_times_the_decay_of_its_age(
    cosine: float, after: float, wanted: float
) -> None:
    assert score(cosine, after) == pytest.approx(wanted, abs=5e-4)


@given(cosines, days, days, factors)
def test_nothing_gains_by_being_older(cosine: float, one: float, other: float, factor: float) -> None:
    younger, older = sorted((one, other))

    assert score(cosine, older, factor) <= score(cosine, younger, factor)


@given(cosines, cosines, days, factors)
def test_at_the_same_age_a_higher_cosine_never_scores_less(
    one: float, other: float, age: float, factor: float
) -> None:
    farther, nearer = sorted((one, other))

    assert score(farther, age, factor) <= score(nearer, age, factor)


@given(cosines, days, factors)
def test_a_score_is_between_0_and_the_cosine(cosine: float, age: float, factor: float) -> None:
    assert 0 <= score(cosine, age, factor) <= max(cosine, 0)


@given(cosines, days)
def test_without_decay_age_has_no_effect(cosine: float, age: float) -> None:
    assert score(cosine, age, 1.0) == max(cosine, 0)


@given(cosines, days)
def test_interactions_in_the_future_count_as_new(cosine: float, ahead: float) -> None:
    assert score(cosine, -ahead) == max(cosine, 0)


@given(st.lists(st.tuples(cosines, st.floats(-30, 3650)), min_size=1, max_size=20), factors)
def test_many_interactions_are_scored_as_each_alone(items: list[tuple[float, float]], factor: float) -> None:
    times = np.array([NOW - age * DAY for _, age in items])
    scores = aged(np.array([cosine for cosine, _ in items]), times, NOW, factor)

    assert scores == pytest.approx([score(cosine, age, factor) for cosine, age in items])
