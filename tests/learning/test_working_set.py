"""The tools that are listed from the start: those used in several sessions, within a budget."""

from pathlib import Path

import anyio
from support.clocks import Clock

from mcp_context_proxy.learning import SEVERAL, WorkingSet, chosen
from mcp_context_proxy.statistics.recorder import SessionRecorder
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import DAY, DefinitionRow
from mcp_context_proxy.store.tables import ToolSession, ToolSessions

LATE = 20_000 * DAY


def used(**sessions: int) -> list[ToolSessions]:
    return [ToolSessions("s", tool, count, LATE) for tool, count in sessions.items()]


def costs(**tokens: int) -> dict[tuple[str, str], int]:
    return {("s", tool): cost for tool, cost in tokens.items()}


def names(found: dict[tuple[str, str], str]) -> list[str]:
    return [tool for _, tool in found]


def test_tools_used_in_most_sessions_come_first_with_the_reason():
    found = chosen(used(a=3, b=7), costs(a=10, b=10), 100)

    assert names(found) == ["b", "a"]
    assert found["s", "b"] == "used in 7 sessions of the last 30 days, last on 2024-10-04"


def test_of_tools_used_in_as_many_sessions_the_one_used_later_comes_first():
    found = [ToolSessions("s", "before", 5, LATE - DAY), ToolSessions("s", "lately", 5, LATE)]

    assert names(chosen(found, costs(before=10, lately=10), 100)) == ["lately", "before"]


def test_tools_used_in_too_few_sessions_are_not_listed():
    assert names(chosen(used(a=SEVERAL - 1, b=SEVERAL), costs(a=1, b=1), 100)) == ["b"]


def test_the_token_budget_is_kept_by_skipping_expensive_tools():
    found = chosen(used(dear=9, best=8, next=7, small=6), costs(dear=500, best=60, next=50, small=40), 100)

    assert names(found) == ["best", "small"]


def test_a_tool_of_unknown_cost_is_not_listed():
    assert names(chosen(used(a=9, b=8), costs(b=1), 100)) == ["b"]


def choose(path: Path, clock: Clock, budget: int = 100) -> list[str]:
    working_set = WorkingSet()
    with open_store(path) as store:
        store.statistics.put_definitions("s", [DefinitionRow("s", "a", "f", 10, 0.0)])
        working_set.choose(store, budget, clock)
    return names(dict(working_set.reasons))


async def record(path: Path, clock: Clock, *sessions: str | None) -> None:
    with open_store(path) as store:
        recorder = SessionRecorder(store.tool_sessions, clock)
        for session in sessions:
            recorder.used(("s", "a"), session)
        await recorder.flush()


async def test_each_session_is_counted_once_across_restarts(tmp_path):
    path, clock = tmp_path / "store.sqlite3", Clock(1_000 * DAY)
    await record(path, clock, "one", "one", "two", "two")
    assert choose(path, clock) == []

    await record(path, clock, "two", "three")
    clock.now += DAY
    assert choose(path, clock) == ["a"]
    assert choose(path, clock, budget=0) == []


async def test_what_is_chosen_once_a_day_is_the_same_for_all_who_share_the_store(tmp_path):
    path, clock = tmp_path / "store.sqlite3", Clock(1_000 * DAY)
    await record(path, clock, "one", "two", "three")
    running = WorkingSet()
    with open_store(path) as store:
        store.statistics.put_definitions("s", [DefinitionRow("s", "a", "f", 10, 0.0)])
        assert running.choose(store, 100, clock)
        store.tool_sessions.add([], 0.0, 0)
        assert not running.choose(store, 100, clock)

        clock.now += DAY / 4
        started_later = WorkingSet()
        assert started_later.choose(store, 100, clock)
        assert started_later.reasons == running.reasons
        assert names(dict(running.reasons)) == ["a"]

        clock.now += DAY
        assert running.choose(store, 100, clock)
        assert running.reasons == {}


async def test_calls_without_a_session_are_counted_by_day(tmp_path):
    path, clock = tmp_path / "store.sqlite3", Clock(1_000 * DAY)
    await record(path, clock, *[None] * 50)
    assert choose(path, clock) == []

    for _ in range(2):
        clock.now += DAY
        await record(path, clock, None)
    clock.now += DAY
    assert choose(path, clock) == ["a"]


async def test_tools_not_used_for_a_month_are_forgotten(tmp_path):
    path, clock = tmp_path / "store.sqlite3", Clock(1_000 * DAY)
    await record(path, clock, "one", "two", "three")
    clock.now += 29 * DAY
    assert choose(path, clock) == ["a"]

    clock.now += 2 * DAY
    assert choose(path, clock) == []
    with open_store(path) as store:
        store.tool_sessions.add([ToolSession("s", "b", "x", clock.now)], clock.now - DAY, 10)
        assert store.tool_sessions.tools() == [("s", "b")]


async def test_pending_sessions_are_written_at_the_end(tmp_path):
    path, clock = tmp_path / "store.sqlite3", Clock(1_000 * DAY)
    with open_store(path) as store:
        recorder = SessionRecorder(store.tool_sessions, clock)
        async with anyio.create_task_group() as group:
            group.start_soon(recorder.run)
            await anyio.wait_all_tasks_blocked()
            recorder.used(("s", "a"), "one")
            group.cancel_scope.cancel()

        assert store.tool_sessions.tools() == [("s", "a")]


def test_the_number_of_stored_sessions_is_limited(tmp_path):
    with open_store(tmp_path / "store.sqlite3") as store:
        rows = [ToolSession("s", "a", f"session {number}", float(number)) for number in range(10)]
        store.tool_sessions.add(rows, 0.0, 4)

        (counted,) = store.tool_sessions.counted(0.0)
    assert (counted.sessions, counted.last) == (4, 9.0)
