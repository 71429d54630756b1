"""A store that fails is told of once in ten minutes, and that it is over once."""

import logging
from pathlib import Path

import pytest

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.database import CONSEQUENCE, WARN_AGAIN_SECONDS, FailureLog

FULL = StoreError(Path("store.sqlite3"), "database or disk is full")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_lasting_failure_is_logged_every_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = FailureLog(clock)
    for clock.now in (0.0, 1.0, WARN_AGAIN_SECONDS - 1, WARN_AGAIN_SECONDS, WARN_AGAIN_SECONDS + 1):
        log.failed(FULL)

    assert WARN_AGAIN_SECONDS == 600
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"store store.sqlite3: database or disk is full. {CONSEQUENCE}."
    ] * 2


def test_a_recurring_failure_is_logged_no_more_often(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = FailureLog(clock)
    with caplog.at_level(logging.INFO):
        log.recovered()
        for clock.now in range(5):
            log.failed(FULL)
            log.recovered()
            log.recovered()

    levels = [record.levelname for record in caplog.records]
    assert (levels.count("WARNING"), levels.count("INFO")) == (1, 5)
