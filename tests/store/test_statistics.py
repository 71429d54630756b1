"""Usage adds up in the store, whoever counts, and becomes coarser with age without being lost."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import forked_program

from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import (
    DAY,
    HOUR,
    DefinitionRow,
    SearchRow,
    SearchUsage,
    ToolUsage,
    UsageSlot,
)

NOON = 20_000 * DAY + 12 * HOUR


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with open_store(path) as opened:
        yield opened


def used(time: float = NOON, tool: str = "find", **more: object) -> tuple[UsageSlot, ToolUsage]:
    values = {
        "calls": 2,
        "errors": 1,
        "timed": 2,
        "ms": 30.0,
        "result_bytes": 100,
        "last": time,
        "latency": {7: 2},
    }
    return UsageSlot.of(time), ToolUsage("s", tool, **(values | more))  # type: ignore[arg-type]


def row(number: int, time: float = NOON, **more: object) -> SearchRow:
    values = {"query": "q", "origin": "search", "results": 3, "top": "s__a", "chosen": None, "rank": None}
    return SearchRow(f"{number}", time, b"key", ms=1.5, reranked=False, **(values | more))  # type: ignore[arg-type]


def test_usage_of_an_hour_is_added_to_what_is_there(store: Store) -> None:
    store.statistics.add(
        [used()], {UsageSlot.of(NOON): SearchUsage(1, 1, ms=5.0, latency={3: 1}, behind=9)}, []
    )
    store.statistics.add([used(NOON + 60)], {UsageSlot.of(NOON): SearchUsage(used=1, top_used=1)}, [])
    (tool,) = store.statistics.tools()

    assert tool == ToolUsage("s", "find", 4, 2, 4, 60.0, 200, NOON + 60, {7: 4})
    assert store.statistics.searched() == {
        UsageSlot(HOUR, NOON): SearchUsage(1, 1, 1, 1, 0, 5.0, 0, 9, {3: 1})
    }


def test_several_processes_add_to_one_store(path: Path) -> None:
    program = f"""
import os
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import UsageSlot, ToolUsage
others = range(2)
first = all(os.fork() for _ in others)
with open_store({str(path)!r}) as store:
    for n in range(40):
        usage = ToolUsage("s", "find", 1, 0, 1, 2.0, 3, {NOON}.0, {{n % 3: 1}})
        store.statistics.add([(UsageSlot.of({NOON}), usage)], {{}}, [])
if first:
    assert all(os.wait()[1] == 0 for _ in others)
"""
    open_store(path).close()
    subprocess.run(forked_program(program), check=True, timeout=60)
    with open_store(path) as store:
        (tool,) = store.statistics.tools()

    assert (tool.calls, tool.ms, tool.latency) == (120, 240.0, {0: 42, 1: 39, 2: 39})


def test_old_hours_become_days_and_nothing_is_lost(store: Store) -> None:
    times = [NOON, NOON + HOUR, NOON + DAY, NOON + 9 * DAY]
    store.statistics.add(
        [used(time) for time in times], {UsageSlot.of(time): SearchUsage(searches=1) for time in times}, []
    )
    store.statistics.roll_up(NOON + 5 * DAY, NOON - 100 * DAY)
    store.statistics.roll_up(NOON + 5 * DAY, NOON - 100 * DAY)
    (tool,) = store.statistics.tools()

    assert (tool.calls, tool.latency) == (8, {7: 8})
    day = NOON - 12 * HOUR
    assert store.statistics.calls() == {
        UsageSlot(DAY, day): (4, 2),
        UsageSlot(DAY, day + DAY): (2, 1),
        UsageSlot(HOUR, NOON + 9 * DAY): (2, 1),
    }
    assert [usage.searches for usage in store.statistics.searched().values()] == [2, 1, 1]


def test_days_beyond_the_retention_are_forgotten(store: Store) -> None:
    store.statistics.add([used(), used(NOON + 5 * DAY, "other")], {UsageSlot.of(NOON): SearchUsage(1)}, [])
    store.statistics.roll_up(NOON + 10 * DAY, NOON + 3 * DAY)

    assert [tool.tool for tool in store.statistics.tools()] == ["other"]
    assert store.statistics.searched() == {}


def test_a_period_begins_with_the_slot_that_contains_its_start(store: Store) -> None:
    store.statistics.add([used(), used(NOON + 2 * HOUR, "later")], {}, [])

    assert [tool.tool for tool in store.statistics.tools(NOON + HOUR - 1)] == ["find", "later"]
    assert [tool.tool for tool in store.statistics.tools(NOON + HOUR)] == ["later"]


def test_the_oldest_rows_are_deleted_first(store: Store) -> None:
    store.statistics.add([used(NOON + n * HOUR, f"t{n}") for n in range(5)], {}, [])
    store.statistics.add([], {}, [row(n, NOON + n) for n in range(5)])
    store.statistics.forget(3, 2, NOON)

    assert sorted(tool.tool for tool in store.statistics.tools()) == ["t2", "t3", "t4"]
    assert [one.id for one in store.statistics.searches(10)] == ["4", "3"]
    store.statistics.forget(3, 2, NOON + 4)
    assert [one.id for one in store.statistics.searches(10)] == ["4"]


def test_a_search_is_updated_when_its_result_is_used(store: Store) -> None:
    store.statistics.add([], {}, [row(1), row(2)])
    store.statistics.add([], {}, [row(1, chosen="s__b", rank=2)])
    found = {one.id: one for one in store.statistics.searches(10)}

    assert (found["1"].chosen, found["1"].rank, found["2"].chosen) == ("s__b", 2, None)
    assert found["1"].reranked is False


def test_definitions_are_the_latest_and_keep_when_they_were_first_seen(store: Store) -> None:
    store.statistics.put_definitions("s", [DefinitionRow("s", name, name, 5, 100.0) for name in "ab"])
    store.statistics.put_definitions("other", [DefinitionRow("other", "c", "c", 5, 100.0)])
    store.statistics.put_definitions("s", [DefinitionRow("s", name, "new", 7, 200.0) for name in "bde"])

    assert sorted(
        (one.server, one.tool, one.tokens, one.first) for one in store.statistics.definitions()
    ) == [
        ("other", "c", 5, 100.0),
        ("s", "b", 7, 100.0),
        ("s", "d", 7, 100.0),  # in the place of "a"
        ("s", "e", 7, 200.0),
    ]


def test_a_damaged_histogram_affects_no_other_row(store: Store, path: Path) -> None:
    store.statistics.add([used()], {}, [])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tool_usage SET latency = ?", (b"\xc1nonsense",))
    connection.close()
    store.statistics.add([used()], {}, [])
    (tool,) = store.statistics.tools()

    assert (tool.calls, tool.latency) == (4, {7: 2})
