"""Reports on a period, from the statistics of a store."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tables import each

from mcp_context_proxy.config import Limits
from mcp_context_proxy.statistics import count_call, seconds_of
from mcp_context_proxy.statistics.recorder import forget_old_counts
from mcp_context_proxy.statistics.report import NOT_TIMED, Reports
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import DAY, HOUR, DefinitionRow, SearchUsage, ToolUsage, UsageSlot

NOON = 20_000 * DAY + 12 * HOUR


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.sqlite3") as opened:
        yield opened


def usage(tool: str, calls: int, errors: int = 0) -> ToolUsage:
    counted = ToolUsage("s", tool)
    for number in range(calls):
        count_call(counted, 10.0, number < errors, 100, NOON)
    return counted


def test_a_call_that_was_never_sent_is_counted_without_latency_and_size(store: Store) -> None:
    counted = ToolUsage("s", "t")
    count_call(counted, 10.0, False, 100, NOON)
    count_call(counted, None, True, 0, NOON)
    store.statistics.add([(UsageSlot.of(NOON), counted)], {}, [])
    (report,) = Reports(store.statistics).tools(0.0)

    assert (report.calls, report.errors) == (2, 1)
    assert (report.latency.mean_ms, report.result_bytes) == (10.0, 100.0)
    assert report.tokens is None


def test_the_most_called_tool_comes_first(store: Store) -> None:
    store.statistics.add(
        [(UsageSlot.of(NOON), usage(name, calls)) for name, calls in (("a", 1), ("b", 3))], {}, []
    )

    assert [one.name for one in Reports(store.statistics).tools(0.0)] == ["b", "a"]


def test_rates_are_shares_of_all_searches_or_none_without_searches(store: Store) -> None:
    reports = Reports(store.statistics)
    before = reports.searches(0.0)
    store.statistics.add([], {UsageSlot.of(NOON): SearchUsage(4, 4, 3, 1, 0, 100.0, latency={58: 4})}, [])
    after = reports.searches(0.0)

    assert (before.acceptance_rate, before.use_rate, before.latency) == (None, None, NOT_TIMED)
    assert (after.acceptance_rate, after.use_rate, after.latency.mean_ms) == (0.25, 0.75, 25.0)


def test_a_use_of_a_search_before_the_period_makes_no_rate_above_1(store: Store) -> None:
    store.statistics.add([], {UsageSlot.of(NOON): SearchUsage(searches=1, used=2, top_used=2)}, [])

    assert Reports(store.statistics).searches(0.0).use_rate == 1.0


def test_the_timeline_has_every_interval_from_the_first_use_to_now(store: Store) -> None:
    reports, slots = Reports(store.statistics), (UsageSlot.of(NOON), UsageSlot.of(NOON + 3 * HOUR))
    assert reports.timeline(NOON - 30 * DAY, NOON) == (DAY, [])
    store.statistics.add(
        [(slot, usage("a", 2, 1)) for slot in slots], {slots[0]: SearchUsage(1, shown=3, behind=9)}, []
    )
    _, hours = reports.timeline(NOON - DAY, NOON + 3 * HOUR + 60)
    seconds, days = reports.timeline(NOON - 30 * DAY, NOON + 3 * HOUR)

    assert [(one.start, one.calls, one.errors) for one in hours] == [
        (NOON, 2, 1),
        (NOON + HOUR, 0, 0),
        (NOON + 2 * HOUR, 0, 0),
        (NOON + 3 * HOUR, 2, 1),
    ]
    assert (hours[0].shown, hours[0].behind) == (3, 9)
    assert (seconds, [(one.start, one.calls) for one in days]) == (DAY, [(NOON - 12 * HOUR, 4)])


def test_tools_without_a_call_in_30_days_are_listed_by_cost(store: Store) -> None:
    rows = [DefinitionRow("s", name, name, tokens, NOON) for name, tokens in (("a", 1), ("b", 5), ("c", 9))]
    rows.append(DefinitionRow("s", "new", "new", 7, NOON + DAY))
    store.statistics.put_definitions("s", [*rows, DefinitionRow("s", "hidden", "hidden", 99, NOON)])
    store.statistics.add([(UsageSlot.of(NOON), usage("c", 1))], {}, [])
    reports = Reports(store.statistics)
    exposed = {"a": "s__a", "b": "s__b", "c": "s__c", "new": "s__new"}
    days = (29.9, 30, 31)
    never = [reports.unused(lambda _, tool: exposed.get(tool), NOON + day * DAY) for day in days]

    assert [each.known for each in never] == [4, 4, 4]
    assert [[one.name for one in each.tools] for each in never] == [[], ["b", "a"], ["c", "new", "b", "a"]]
    assert [(each.count, each.tokens, each.newer) for each in never] == [(0, 0, 3), (2, 6, 1), (4, 22, 0)]
    assert never[1].tools[0].exposed_name == "s__b"


def test_retention_merges_old_hours_into_days_and_deletes_older_days(store: Store) -> None:
    now = time.time()
    for days in (1, 10, 400):
        store.statistics.add([(UsageSlot.of(now - days * DAY), usage(f"{days}", 1))], {}, [])
    limits = Limits(statistics_hours_seconds=7 * DAY, statistics_days_seconds=365 * DAY)
    forget_old_counts(store.statistics, limits, now)

    assert [slot.seconds for slot in store.statistics.calls()] == [DAY, HOUR]
    assert {one.tool for one in store.statistics.tools()} == {"1", "10"}


@each(("period", "seconds"), [("1h", HOUR), ("24h", DAY), ("30d", 30 * DAY)])
def test_a_period_is_hours_or_days(period: str, seconds: int) -> None:
    assert seconds_of(period) == seconds


@each("period", ["", "0h", "1w", "h", "10000d", "1 d", "1d\n", "٣d"])
def test_anything_else_is_no_period(period: str) -> None:
    with pytest.raises(ValueError, match="is no period"):
        seconds_of(period)
