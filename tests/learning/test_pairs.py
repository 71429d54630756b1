"""The arithmetic of learned pairs."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace
from support.words import Words

from mcp_context_proxy.learning import (
    FORGET_BELOW,
    MOST_OF_A_TOOL,
    MOST_PAIRS,
    WEIGHTS,
    PairLine,
    Signal,
    first_confidence,
    imported,
    is_doubtful,
    moved,
    passed_over,
    pruned,
    query_key,
    used_again,
)
from mcp_context_proxy.store.memory import Pair
from mcp_context_proxy.store.statistics import DAY

VECTOR = np.array([1, 0], np.float32)


def build_pair(number: int = 0, confidence: float = 0.9, last: float = 0.0, tool: str = "tool") -> Pair:
    query = f"query {number}"
    return Pair(query_key(query), ("s", tool), query, VECTOR, "model", confidence, 1, 0.0, last)


def test_an_old_high_confidence_counts_less_than_a_fresh_low_one():
    """An example of confidences: 0.9 thirty days ago, 0.7 yesterday."""
    old, fresh = (
        build_pair(confidence=0.9).confidence_at(30 * DAY),
        build_pair(confidence=0.7).confidence_at(DAY),
    )

    assert round(old, 3) == 0.193
    assert round(fresh, 3) == 0.665
    assert fresh > old


def test_signals_have_the_documented_weights():
    assert WEIGHTS == {
        Signal.FOUND: 1.5,
        Signal.LISTED: 1.0,
        Signal.STATED: 1.0,
        Signal.UNLISTED: 0.5,
        Signal.PASSED_OVER: -0.2,
    }
    firsts = [first_confidence(signal) for signal in (Signal.FOUND, Signal.LISTED, Signal.UNLISTED)]
    assert firsts == pytest.approx([0.75, 0.5, 0.25])


def test_a_clock_that_goes_back_does_not_raise_a_confidence():
    pair = build_pair(confidence=0.5, last=3 * DAY)

    assert pair.confidence_at(0.0) == 0.5
    assert used_again(pair, Signal.FOUND, 0.0).last == 3 * DAY


@given(st.floats(0, 1), st.lists(st.sampled_from(list(Signal))))
def test_a_confidence_stays_between_0_and_1_after_any_signals(confidence, signals):
    for signal in signals:
        confidence = moved(confidence, signal)
        assert 0 <= confidence <= 1


def test_one_call_that_nothing_had_shown_is_doubtful_until_it_is_repeated():
    pair = build_pair(confidence=first_confidence(Signal.UNLISTED))

    assert is_doubtful(pair)
    assert not is_doubtful(replace(pair, uses=2))
    assert not is_doubtful(build_pair(confidence=first_confidence(Signal.STATED)))


def test_an_imported_pair_is_trusted_no_more_than_the_surest_one(words: Words):
    lines = [PairLine("s", "t", confidence, 1, 0.0, 0.0, "query") for confidence in (-1.0, 0.4, 7.0)]

    assert [pair.confidence for pair in imported(lines, words)] == [0.0, 0.4, 1.0]


def test_another_use_renews_a_pair():
    pair = used_again(build_pair(confidence=0.5), Signal.FOUND, 10 * DAY)

    left = 0.5 * 0.95**10
    assert pair.confidence == pytest.approx(left + 0.3 * (1 - left))
    assert (pair.uses, pair.last) == (2, 10 * DAY)


def test_a_passed_over_pair_loses_confidence_and_is_not_renewed():
    now = 5 * DAY
    before = build_pair(confidence=0.8)
    pair = passed_over(before, now)

    left = before.confidence_at(now)
    assert pair.confidence_at(now) == pytest.approx(left + 0.1 * (-0.2 / 1.5 - left))
    assert (pair.uses, pair.last) == (1, 0.0)


def test_repeatedly_passed_over_pairs_end_at_zero_confidence():
    pair = build_pair()
    for _ in range(200):
        pair = passed_over(pair, 0.0)

    assert pair.confidence == 0.0


def test_uncertain_or_long_unused_pairs_are_forgotten():
    day = DAY
    kept = build_pair(1, confidence=0.9, last=20 * day)
    unsure = build_pair(2, confidence=FORGET_BELOW - 0.01, last=40 * day)
    unused = build_pair(3, confidence=1.0, last=9.9 * day)

    assert pruned([kept, unsure, unused], 40 * day) == [kept]


def test_over_the_limit_the_best_nine_tenths_of_the_pairs_are_kept():
    pairs = [build_pair(n, 0.2 + 0.7 * n / MOST_PAIRS, tool=f"tool {n % 100}") for n in range(MOST_PAIRS + 1)]

    assert pruned(pairs[1:], 0.0) == pairs[1:], "so many are allowed"
    assert pruned(pairs, 0.0) == pairs[-4_500:]


def test_the_pairs_of_one_tool_are_limited():
    others = [build_pair(n, 0.2, tool=f"other {n}") for n in range(1_000)]
    loud = [build_pair(n, 1.0, tool="loud") for n in range(10_000)]
    kept = pruned([*loud, *others], 0.0)

    assert [pair for pair in kept if pair.tool[1] != "loud"] == others
    assert len(kept) == len(others) + MOST_OF_A_TOOL


def test_case_and_spaces_do_not_make_another_query():
    assert query_key("Send  a Mail ") == query_key("send a mail")
    assert query_key("send a mail") != query_key("send mail")
