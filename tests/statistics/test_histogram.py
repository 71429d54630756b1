"""Percentiles from counts by bucket are within the error that is told, and adding counts loses nothing."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mcp_context_proxy.statistics import ERROR, FASTEST_MS, SLOWEST_MS, bucket_of, percentile
from mcp_context_proxy.store.statistics import added

DURATIONS = st.lists(st.floats(FASTEST_MS, SLOWEST_MS), min_size=1, max_size=200)
SHARES = st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.99, 1.0])
ROUNDING = 1e-9


def counted(durations: list[float]) -> dict[int, int]:
    return dict(Counter(map(bucket_of, durations)))


def exactly(durations: list[float], share: float) -> float:
    """The smallest value that the share does not exceed, by sorting."""
    ordered = sorted(durations)
    return next(value for at, value in enumerate(ordered, 1) if at >= share * len(ordered))


@given(DURATIONS, SHARES)
def test_a_percentile_is_within_the_error_of_the_exact_one(durations: list[float], share: float) -> None:
    exact = exactly(durations, share)

    assert abs(percentile(counted(durations), share) - exact) <= (ERROR + ROUNDING) * exact


@given(DURATIONS, DURATIONS)
def test_histograms_of_two_proxies_add_up_to_that_of_one(one: list[float], other: list[float]) -> None:
    assert added(counted(one), counted(other)) == counted([*one, *other])


def test_the_number_of_buckets_is_bounded() -> None:
    every = {bucket_of(FASTEST_MS * 1.001**n) for n in range(30_000)}

    assert FASTEST_MS * 1.001**30_000 > SLOWEST_MS
    assert len(every) < 670


def test_durations_out_of_range_are_counted_at_the_bound() -> None:
    assert bucket_of(0.0) == bucket_of(FASTEST_MS)
    assert bucket_of(1e12) == bucket_of(SLOWEST_MS)


def test_an_empty_histogram_has_no_percentile() -> None:
    assert percentile({}, 0.5) == 0.0
