"""Tools that came lately have a little more in searches, until they are used or no longer new."""

from pathlib import Path

import pytest
from support.clocks import Clock

from mcp_context_proxy.learning.tier import LOOK_SECONDS, NEW_FOR_DAYS, NEWEST, Novelty, addition
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import DAY, DefinitionRow


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "store.sqlite3") as opened:
        yield opened


def see(store: Store, clock: Clock, *tools: str, server: str = "srv") -> None:
    """These are the tools of a server now."""
    rows = [DefinitionRow(server, tool, tool, 10, clock.now) for tool in tools]
    store.statistics.put_definitions(server, rows)


def test_the_novelty_bonus_is_small_and_halves_every_three_days():
    assert addition(0) == NEWEST == 0.02
    assert addition(3) == pytest.approx(NEWEST / 2)
    assert addition(NEW_FOR_DAYS) < 0.001
    assert addition(-1) == NEWEST, "a clock that goes back does not add"


def test_tools_of_the_first_day_are_not_new(store, clock):
    see(store, clock, "a", "b")
    clock.now += DAY / 2
    see(store, clock, "c", server="set up later that day")

    assert Novelty(store.statistics, set, clock).additions() == {}


def test_a_later_tool_is_new_until_its_first_use_or_for_two_weeks(store, clock):
    used: set[tuple[str, str]] = set()
    novelty = Novelty(store.statistics, lambda: used, clock)
    see(store, clock, "a")
    assert novelty.additions() == {}

    clock.now += 5 * DAY
    see(store, clock, "a", "b", "c")
    assert novelty.additions() == {("srv", "b"): NEWEST, ("srv", "c"): NEWEST}

    used.add(("srv", "b"))
    clock.now += 3 * DAY
    assert novelty.additions() == {("srv", "c"): pytest.approx(NEWEST / 2)}

    clock.now += 12 * DAY
    assert novelty.additions() == {}


def new_tools(store: Store, clock: Clock) -> set[str]:
    return {tool for _, tool in Novelty(store.statistics, set, clock).additions()}


@pytest.mark.parametrize("in_steps", [False, True])
def test_a_server_that_renames_its_tools_every_day_has_no_new_ones(store, clock, in_steps):
    see(store, clock, "a", "b", "c", server="other")
    see(store, clock, "a0", "b0")
    for day in range(1, 40):
        clock.now += DAY
        if in_steps:
            see(store, clock, f"b{day - 1}")
        see(store, clock, f"a{day}", f"b{day}")

        assert new_tools(store, clock) == set()


def test_a_server_with_more_tools_than_ever_has_as_many_new_ones(store, clock):
    see(store, clock, "a", "b")
    clock.now += 5 * DAY
    see(store, clock, "a")
    see(store, clock, "a", "c", "d")

    assert len(new_tools(store, clock)) == 1
    assert {row.tool for row in store.statistics.definitions()} == {"a", "c", "d"}


def test_a_tool_that_is_away_for_a_while_is_not_new_when_it_returns(store, clock):
    see(store, clock, "a", "b")
    clock.now += 5 * DAY
    see(store, clock, "a")
    assert [row.tool for row in store.statistics.definitions()] == ["a"]
    clock.now += DAY
    see(store, clock, "a", "b")

    assert new_tools(store, clock) == set()


def test_novelty_reads_the_store_once_a_minute(store, clock):
    novelty = Novelty(store.statistics, set, clock)
    see(store, clock, "a")
    clock.now += 5 * DAY
    assert novelty.additions() == {}
    see(store, clock, "a", "b")
    assert novelty.additions() == {}

    clock.now += LOOK_SECONDS
    assert list(novelty.additions()) == [("srv", "b")]
