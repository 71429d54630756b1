"""Comparison of requests with and without learned pairs: the arms, and their intervals."""

import random

import pytest

from mcp_context_proxy.statistics.report import Trial, arm_of, compared
from mcp_context_proxy.store.statistics import DAY, SearchRow

NOW = 1_700_000_000.0
ACCEPTED = {"learned": 0.6, "plain": 0.45}
"""Chance that the first tool is called, by arm: the effect that the simulated sessions have."""
SHOWN = 4


def request(session: str | None, arm: str, rank: int | None, number: int, time: float = NOW) -> SearchRow:
    key = f"query {number}".encode()
    chosen = None if rank is None else f"tool_{rank}"
    uses = int(rank is not None)
    return SearchRow(
        f"{session}-{number}",
        time,
        key,
        None,
        "search",
        SHOWN,
        "tool_1",
        chosen,
        rank,
        1.0,
        False,
        arm,
        session,
        uses,
    )


def simulated(seed: int, sessions: int = 120, accepted: dict[str, float] = ACCEPTED) -> Trial:
    """Sessions that differ among themselves: in some, nearly every request succeeds, in others few do."""
    chance, rows = random.Random(seed), []
    for number in range(sessions):
        arm = arm_of(0.5, f"session {seed} {number}", "", NOW)
        assert arm is not None
        mean = accepted[arm]
        likely = chance.betavariate(4 * mean, 4 * (1 - mean))
        for request_number in range(chance.randint(1, 12)):
            rank = 1 if chance.random() < likely else chance.choice([2, 3, None])
            rows.append(request(f"{number}", arm, rank, request_number))
    return compared(rows, DAY)


def test_all_requests_of_a_session_are_in_one_arm() -> None:
    arms = {arm_of(0.5, "one session", f"query {number}", NOW + number * 3600) for number in range(50)}

    assert len(arms) == 1


def test_a_request_without_a_session_is_in_one_arm_for_a_day_and_not_for_ever() -> None:
    of_day = {arm_of(0.5, None, "send a mail", NOW + seconds) for seconds in range(0, 3600, 60)}
    of_month = {arm_of(0.5, None, "send a mail", NOW + day * DAY) for day in range(30)}

    assert len(of_day) == 1
    assert of_month == {"learned", "plain"}


def test_the_share_is_that_of_the_sessions_without_learned_pairs() -> None:
    arms = [arm_of(0.2, f"session {number}", "", NOW) for number in range(2_000)]

    assert arms.count("plain") / len(arms) == pytest.approx(0.2, abs=0.03)
    assert arm_of(0.0, "session", "", NOW) is None


def test_the_interval_covers_the_effect_that_the_sessions_have() -> None:
    """At least 18 of 20 times for an interval of 95 %, over 100 simulations of 120 sessions each."""
    effect = ACCEPTED["learned"] - ACCEPTED["plain"]
    covered = excluded = 0
    for seed in range(100):
        found = simulated(seed).difference.acceptance
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= effect <= found.high
        excluded += found.low > 0

    assert covered >= 90
    assert excluded >= 40, "the intervals are so wide that they never tell an effect of 15 points"


def test_without_an_effect_the_interval_nearly_always_contains_nothing() -> None:
    covered = 0
    for seed in range(60):
        found = simulated(1_000 + seed, accepted={"learned": 0.5, "plain": 0.5}).difference
        covered += all(
            one is not None and one.low is not None and one.high is not None and one.low <= 0 <= one.high
            for one in (found.acceptance, found.precision, found.rank)
        )

    assert covered >= 48


def test_precision_acceptance_and_rank_are_those_of_the_requests() -> None:
    rows = [
        request("a", "learned", 1, 0),
        request("a", "learned", 3, 1),
        request("b", "learned", None, 2),
        request("c", "plain", 2, 3),
    ]
    trial = compared(rows, DAY)

    assert (trial.learned.requests, trial.learned.units) == (3, 2)
    assert trial.learned.precision is not None
    assert trial.learned.precision.value == pytest.approx(2 / 12)
    assert trial.learned.acceptance is not None
    assert trial.learned.acceptance.value == pytest.approx(1 / 3)
    assert trial.learned.rank is not None
    assert trial.learned.rank.value == pytest.approx(2.0)
    assert trial.difference.rank is not None
    assert trial.difference.rank.value == pytest.approx(0.0)
    assert trial.difference.rank.low is None, "two sessions are too few for an interval"


def test_arms_without_any_difference_between_sessions_still_have_intervals_of_some_width() -> None:
    rows = [request(f"{arm} {number}", arm, 1, 0) for arm in ("learned", "plain") for number in range(30)]
    found = compared(rows, DAY).difference.acceptance

    assert found is not None
    assert found.value == 0
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0 < found.high


def test_a_long_period_is_told_by_the_week_and_a_short_one_by_the_day() -> None:
    rows = [request(f"{day}", "plain", 1, day, NOW + day * DAY) for day in range(14)]

    assert [len(one.stretches) for one in (compared(rows, 30 * DAY), compared(rows, 14 * DAY))] == [3, 14]


def test_nothing_was_compared_where_no_request_is_in_an_arm() -> None:
    trial = compared([], DAY)

    assert (trial.learned.requests, trial.learned.precision, trial.difference.rank) == (0, None, None)
