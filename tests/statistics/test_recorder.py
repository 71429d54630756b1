"""The recorder writes its counts and definitions, even after a long time without calls."""

from __future__ import annotations

import itertools
import time

import anyio
import pytest
from support.ledger import until

from mcp_context_proxy import Catalog
from mcp_context_proxy.config import Limits
from mcp_context_proxy.statistics.recorder import Inventory, UsageRecorder
from mcp_context_proxy.store import SearchRow, open_store

pytestmark = pytest.mark.anyio

SEARCH = SearchRow("r1", 1e9, b"hash", "a query", "mcp", 0, None, None, None, 5.0, reranked=False)

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
