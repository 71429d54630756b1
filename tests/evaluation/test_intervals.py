"""Means and their intervals."""

from random import Random

import pytest

from mcp_context_proxy.evaluation import estimate, estimates, macro_estimate


def test_the_interval_agrees_with_the_normal_approximation():
    """For a share of one half over 400 queries, 1.96 standard errors are 0.049."""
    half = estimate([0.0, 1.0] * 200)

    assert half.mean == 0.5
    assert half.low == pytest.approx(0.451, abs=0.006)
    assert half.high == pytest.approx(0.549, abs=0.006)


def test_the_interval_of_equal_values_has_no_width():
    constant = estimate([0.25] * 7)

    assert (constant.mean, constant.low, constant.high, constant.queries) == (0.25, 0.25, 0.25, 7)


def test_the_interval_is_reproducible_and_independent_of_the_order():
    values = [Random(i).random() for i in range(50)]
    shuffled = Random(1).sample(values, len(values))

    assert estimate(values) == estimate(values) == estimate(shuffled)


def test_a_measure_is_averaged_over_the_queries_that_have_one():
    found = estimates([{"a": 1.0}, {"a": 0.0, "b": 3.0}])

    assert found["a"].mean == 0.5
    assert (found["b"].mean, found["b"].queries) == (3.0, 1)


def test_all_query_sets_have_the_same_weight():
    small, large = [0.0, 1.0] * 20, [1.0] * 1000

    macro = macro_estimate([small, large])

    assert macro.mean == 0.75
    assert macro.high - macro.low == pytest.approx((estimate(small).high - estimate(small).low) / 2, abs=0.02)
    assert macro.queries == 1040
