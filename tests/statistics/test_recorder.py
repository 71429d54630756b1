"""The recorder writes its counts and definitions, even after a long time without calls."""

import itertools
import time
from typing import Any

import anyio
import pytest
from support.ledger import until

from mcp_context_proxy import Catalog, tool
from mcp_context_proxy.config import Limits
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.statistics.recorder import Inventory, UsageRecorder
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import SearchRow, StatisticsStore

SEARCH = SearchRow("r1", 1e9, b"hash", "a query", "mcp", 0, None, None, None, 5.0, reranked=False)


class Unsure(StatisticsStore):
    """A store that writes, and then says that it could not."""

    failing = 0

    def add(self, *counts: Any) -> None:
        super().add(*counts)
        if self.failing > 0:
            self.failing -= 1
            raise StoreError("store", "the connection was cut")


async def test_counts_that_are_sent_twice_count_once() -> None:
    with anyio.fail_after(30), open_store("memory") as store:
        statistics = Unsure(store.database)
        inventory = Inventory(statistics, Catalog(), tokens=lambda _: 0, listed_whole=lambda _: False)
        recorder = UsageRecorder(statistics, Limits(), inventory)
        async with anyio.create_task_group() as group:
            group.start_soon(recorder.run)
            statistics.failing = 2
            for _ in range(4):
                recorder.called("s", "find", 1.0, False, 10)
                await recorder.flush()
            group.cancel_scope.cancel()

        (tool,) = store.statistics.tools()
    assert tool.calls == 4
    assert recorder.figures["s", "find"].calls == 4


async def test_of_too_many_rows_that_wait_for_the_store_the_oldest_are_dropped() -> None:
    with anyio.fail_after(30), open_store("memory") as store:
        statistics = Unsure(store.database)
        inventory = Inventory(statistics, Catalog(), tokens=lambda _: 0, listed_whole=lambda _: False)
        recorder = UsageRecorder(statistics, Limits(store_waiting_rows=3), inventory)
        async with anyio.create_task_group() as group:
            group.start_soon(recorder.run)
            statistics.failing = 1
            recorder.called("s", "first", 1.0, False, 10)
            await recorder.flush()
            statistics.failing = 9
            for number in range(9):
                recorder.called("s", f"waits{number}", 1.0, False, 10)
                await recorder.flush()
            statistics.failing = 0
            await recorder.flush()
            group.cancel_scope.cancel()

        assert len(store.statistics.tools()) == 4


LOOKS = 3
"""At what others have counted, with nothing of its own in between."""


async def test_tokens_are_counted_for_the_first_search_after_a_long_pause() -> None:
    rested, looks = anyio.Event(), itertools.count(1)

    def clock() -> float:
        if next(looks) == LOOKS:
            anyio.from_thread.run_sync(rested.set)
        return time.time()

    catalog = Catalog()
    with anyio.fail_after(30), open_store("memory") as store:
        inventory = Inventory(store.statistics, catalog, tokens=lambda _: 0, listed_whole=lambda _: False)
        recorder = UsageRecorder(store.statistics, Limits(), inventory, clock=clock, refresh_seconds=0.01)
        async with anyio.create_task_group() as group:
            group.start_soon(recorder.run)
            await rested.wait()
            recorder.searched(SEARCH, 10)
            await until(lambda: not inventory.outdated and not recorder.counting)
            group.cancel_scope.cancel()


def test_the_servers_whose_tools_were_counted_are_kept_when_the_proxy_ends() -> None:
    """A hundred thousand tools take longer to count than many a proxy runs."""
    servers = ["first", "second", "third"]
    catalog = Catalog([tool("find", "Finds things", server=server) for server in servers])
    left = iter((True, True))

    def check() -> None:
        if not next(left, False):
            raise KeyboardInterrupt

    with open_store("memory") as store:
        inventory = Inventory(store.statistics, catalog, tokens=lambda _: 7, listed_whole=lambda _: False)
        with pytest.raises(KeyboardInterrupt):
            inventory.count(check)
        kept = [row.server for row in store.statistics.definitions()]
        inventory.count(lambda: None)
        every = [row.server for row in store.statistics.definitions()]

    assert kept == servers[:2]
    assert every == servers
    assert inventory.behind == 21
