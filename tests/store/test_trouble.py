"""A store that fails is told of once in ten minutes, and that it is over once."""

import logging
from collections import Counter
from pathlib import Path

import pytest
from support.clocks import Clock

from mcp_context_proxy.errors import NOTICE, StoreError
from mcp_context_proxy.store.database import CONSEQUENCE, WARN_AGAIN_SECONDS, FailureLog

FULL = StoreError(Path("store.sqlite3"), "database or disk is full")


def test_a_lasting_failure_is_logged_every_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = FailureLog(clock)
    for clock.now in (0.0, 1.0, WARN_AGAIN_SECONDS - 1, WARN_AGAIN_SECONDS, WARN_AGAIN_SECONDS + 1):
        log.failed(FULL)

    assert WARN_AGAIN_SECONDS == 600
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"store store.sqlite3: database or disk is full. {CONSEQUENCE}."
    ] * 2


def test_another_failure_is_logged_also_soon_after_one(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(Clock())
    for reason in ("it did not answer", "password authentication failed") * 2:
        log.failed(StoreError(Path("store.sqlite3"), reason))
        log.recovered()

    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [" ".join(one.split()[2:5]) for one in told] == ["it did not", "password authentication failed."]


def test_a_failure_that_was_told_is_told_to_be_over_and_a_recurring_one_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = FailureLog(clock)
    with caplog.at_level(logging.INFO):
        log.recovered()
        for clock.now in range(5):
            log.failed(FULL)
            log.recovered()
            log.recovered()

    levels = Counter(record.levelno for record in caplog.records)
    assert levels == {logging.WARNING: 1, NOTICE: 1, logging.INFO: 4}
