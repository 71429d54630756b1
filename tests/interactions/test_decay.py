"""The weight of an interaction after some days."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.interactions.index import left_share

from .conftest import DAY, NOW

cosines = st.floats(-1, 1)
days = st.floats(0, 3650)
factors = st.floats(0.01, 1)


def score(cosine: float, age: float, factor: float = 0.95, *, linear: bool = False) -> float:
    """The weight of one interaction that is `age` days old."""
    share = left_share(np.array([NOW - age * DAY]), NOW, factor, linear=linear)
    return max(cosine, 0) * float(share[0])


@each(("cosine", "after", "wanted"), [(0.9, 30, 0.193), (0.7, 1, 0.665), (0.8, 0, 0.8)])
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


@each(("after", "wanted"), [(0, 1.0), (1, 0.95), (10, 0.5), (20, 0.0), (400, 0.0)])
def test_linear_decay_takes_the_same_amount_each_day_until_nothing_is_left(
    after: float, wanted: float
) -> None:
    assert score(1.0, after, linear=True) == pytest.approx(wanted)
