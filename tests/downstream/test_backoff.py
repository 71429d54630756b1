"""The time until a server is connected again: arithmetic, without a clock."""

import itertools

import pytest
from support.tables import each

from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.lifecycle import Backoff
from mcp_context_proxy.system.process import Bucket


def most(low: float, high: float) -> float:
    return high


def least(low: float, high: float) -> float:
    return low


def test_a_server_that_worked_and_died_is_restarted_at_once() -> None:
    assert Backoff(Limits(), most).seconds(lasted=3.0) == 0.0


def test_the_wait_doubles_for_a_server_that_never_starts() -> None:
    backoff = Backoff(Limits(breaker_failures=100), most)

    assert [backoff.seconds(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_never_shortens_the_backoff_to_nothing() -> None:
    assert Backoff(Limits(), least).seconds(0.0) == pytest.approx(0.1)


def test_after_five_failures_a_server_is_tried_once_a_minute() -> None:
    backoff = Backoff(Limits(), least)
    waits = [backoff.seconds(lasted=0.5) for _ in range(7)]

    assert waits[0] == 0.0
    assert all(wait < 1 for wait in waits[:4])
    assert waits[4:] == [60, 60, 60]
    assert backoff.is_open


def test_a_server_that_has_answered_is_restarted_at_once_however_often_it_is_killed() -> None:
    backoff = Backoff(Limits(), most)

    assert [backoff.seconds(0.01, useful=True) for _ in range(50)] == [0.0] * 50
    assert not backoff.is_open


@each("useful", [True, False])
@each("life", [0.1, 1.0, 4.9, 5.1, 20.0])
def test_a_server_that_exits_by_itself_is_started_at_most_twelve_times_a_minute(
    life: float, useful: bool
) -> None:
    backoff = Backoff(Limits(), least)
    now, starts = 0.0, 0
    while now < 60:
        starts, now = starts + 1, now + life
        now += backoff.seconds(lasted=life, useful=useful, left=True)

    assert 3 <= starts <= 12


def test_a_useful_server_that_exits_by_itself_after_a_while_is_restarted_at_once() -> None:
    backoff = Backoff(Limits(), most)

    assert [backoff.seconds(10.0, useful=True, left=True) for _ in range(50)] == [0.0] * 50
    assert [backoff.seconds(1.0, useful=True, left=True) for _ in range(3)] == [0.0, 2.0, 4.0]


def test_a_healthy_minute_resets_the_backoff() -> None:
    backoff = Backoff(Limits(), most)
    for _ in range(6):
        backoff.seconds(0.0)

    assert backoff.seconds(lasted=60.0) == 0.0
    assert not backoff.is_open
    assert backoff.seconds(0.0) == 1


def test_a_token_bucket_lets_a_burst_pass_and_then_its_rate() -> None:
    now = 0.0
    bucket = Bucket(rate=10, burst=5, clock=lambda: now)
    assert [bucket.take() for _ in range(7)] == [True] * 5 + [False] * 2
    now = 0.25

    assert list(itertools.takewhile(bool, (bucket.take() for _ in range(9)))) == [True] * 2
    assert bucket.refused == 3
