"""A clock that leaps by a year makes nothing fade, be forgotten, or count for more than it did."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.stores import MODEL, vector
from support.tables import each

from mcp_context_proxy.config import Limits
from mcp_context_proxy.interactions.index import left_share
from mcp_context_proxy.learning import Signal, Use
from mcp_context_proxy.learning import tier as learned
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.statistics.recorder import SessionRecorder, forget_old_counts
from mcp_context_proxy.store.memory import DECAY_PER_DAY, Pair
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import DAY, HOUR, SearchRow, SearchUsage, ToolUsage, UsageSlot
from mcp_context_proxy.system.process import LEAP_SECONDS, PLAUSIBLE, TimeOfDay, time_of_day

YEAR = 365.0 * DAY
NOW = PLAUSIBLE + YEAR

leaps = pytest.mark.parametrize("leap", [YEAR, -YEAR, LEAP_SECONDS * 1.01])


class Machine:
    """A clock that can be set, and one that cannot."""

    def __init__(self, wall: float = NOW) -> None:
        self.wall, self.passed = wall, 50.0
        self.time_of_day = TimeOfDay(lambda: self.wall, lambda: self.passed)

    def wait(self, seconds: float) -> None:
        self.wall, self.passed = self.wall + seconds, self.passed + seconds


class OneVector:
    """A model that knows one text."""

    def vectors(self, texts: list[str]) -> tuple[str, np.ndarray]:
        return MODEL, np.array([vector(1) for _ in texts], np.float32).reshape(len(texts), len(vector(1)))


@leaps
def test_a_jump_of_the_system_clock_is_ignored(leap: float) -> None:
    machine = Machine()
    machine.wait(10)
    machine.wall += leap
    machine.wait(5)

    assert machine.time_of_day() == NOW + 15
    machine.wall -= leap
    assert machine.time_of_day() == NOW + 15


@each("correction", [3600.0, -3600.0, LEAP_SECONDS])
def test_a_corrected_system_clock_is_followed(correction: float) -> None:
    machine = Machine()
    machine.wall += correction

    assert machine.time_of_day() == NOW + correction


def test_the_clock_of_a_machine_that_slept_for_a_month_is_followed() -> None:
    machine = Machine()
    machine.wait(30 * DAY)

    assert machine.time_of_day() == NOW + 30 * DAY


def test_a_machine_that_boots_without_a_clock_takes_over_the_first_valid_time() -> None:
    machine = Machine(wall=0.0)
    machine.wait(60)
    assert machine.time_of_day() == 60
    machine.wall = NOW
    assert machine.time_of_day() == NOW
    machine.wall += YEAR
    machine.wait(1)

    assert machine.time_of_day() == NOW + 1


def test_the_clock_of_this_process_tells_the_time() -> None:
    before = time.time()

    assert before - 1 <= time_of_day() <= time.time() + 1


def counts(path: Path) -> dict[str, int]:
    tables = ("learned", "tool_usage", "search_usage", "searches", "tool_sessions")
    with closing(sqlite3.connect(path)) as connection:
        return {table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables}


def learned_and_counted(store: Store, machine: Machine, now: float = NOW) -> None:
    tier = LearnedTier(OneVector(), store.learned, clock=machine.time_of_day)  # type: ignore[arg-type]
    tier.learn(Use("query", ("s", "t"), Signal.FOUND, "session"))
    slot = UsageSlot.of(now)
    row = SearchRow("r", now, b"k", "q", "search", 1, "s__t", None, None, 1.0, False)
    day = UsageSlot.of(now - 300 * DAY, DAY)
    usage = ToolUsage("s", "t", 1, 0, 1, 1.0, 1, now)
    store.statistics.add([(slot, usage), (day, usage)], {slot: SearchUsage(1)}, [row])


@leaps
async def test_a_clock_jump_deletes_nothing_and_changes_no_confidence(path: Path, leap: float) -> None:
    machine = Machine()
    with open_store(path) as store:
        learned_and_counted(store, machine)
        sessions = SessionRecorder(store.tool_sessions, machine.time_of_day)
        sessions.used(("s", "t"), "one")
        await sessions.flush()
        before = counts(path)
        assert min(before.values()) == 1
        machine.wall += leap
        machine.wait(2 * HOUR)

        forget_old_counts(store.statistics, Limits(), machine.time_of_day())
        sessions.used(("s", "t"), "two")
        await sessions.flush()
        tier = LearnedTier(OneVector(), store.learned, clock=machine.time_of_day)  # type: ignore[arg-type]
        tier.refresh()
        ((support),) = tier.supported(vector(1)).values()
        tier.refresh()

    assert counts(path) == before | {"tool_sessions": 2}
    assert 0 < support.cosine <= 1


def last_used(path: Path, days_ago: int, aged: int | None = None) -> None:
    """Have the store believe that it was used some days ago for the last time."""
    today = int(time.time() // DAY)
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = {"used": days_ago} | ({} if aged is None else {"aged": aged})
        for name, ago in rows.items():
            connection.execute("UPDATE areas SET revision = ? WHERE area = ?", (today - ago, name))


async def upkeep(path: Path) -> dict[str, int]:
    """Start a proxy's upkeep; return the rows that are left."""
    with open_store(path) as store:
        tier = LearnedTier(OneVector(), store.learned)  # type: ignore[arg-type]
        tier.supported(vector(1))
        tier.refresh()
        sessions = SessionRecorder(store.tool_sessions)
        sessions.used(("s", "t"), "of today")
        await sessions.flush()
        forget_old_counts(store.statistics, Limits(), time.time())
    return counts(path)


async def test_a_start_with_a_clock_that_is_years_ahead_deletes_nothing_of_the_time_before(
    path: Path,
) -> None:
    with open_store(path) as store:
        machine = Machine(time.time() - YEAR)
        learned_and_counted(store, machine, machine.wall)
        sessions = SessionRecorder(store.tool_sessions, machine.time_of_day)
        sessions.used(("s", "t"), "a year ago")
        await sessions.flush()
        store.learned.lag()
    before = counts(path)
    last_used(path, 365, aged=365)

    assert await upkeep(path) == before | {"tool_sessions": 2}
    assert await upkeep(path) == before | {"tool_sessions": 2}
    # It is the clock that is right after all: with each day of use, entries age by a week.
    for _ in range(60):
        last_used(path, 1)
        with open_store(path) as store:
            store.learned.lag()
    after = await upkeep(path)
    assert (after["learned"], after["searches"], after["tool_sessions"]) == (0, 0, 1)


async def test_a_clock_that_was_ahead_for_a_day_and_is_corrected_leaves_nothing_of_it(path: Path) -> None:
    with open_store(path) as store:
        learned_and_counted(store, Machine(time.time()), time.time())
        store.learned.lag()
    before = counts(path)
    last_used(path, -3650, aged=-7)

    assert await upkeep(path) == before | {"tool_sessions": 1}
    with open_store(path) as store:
        assert store.learned.lag() == 0.0


@each("days", [-365.0, -1e9, 1e9])
def test_entries_in_the_future_count_as_entries_of_now(days: float) -> None:
    pair = Pair(b"k", ("s", "t"), "q", vector(1), MODEL, 0.75, 1, NOW, NOW)

    assert 0 <= pair.confidence_at(NOW + days * DAY) <= 0.75
    assert 0 <= learned.addition(days) <= learned.addition(0.0)
    (share,) = left_share(np.array([NOW - days * DAY]), NOW, DECAY_PER_DAY)
    assert 0 <= share <= 1
