"""Takes in what happens, on the event loop, and writes it to the store in batches, in a thread.

Whoever is served pays for a few additions. A store that fails costs nothing but what would have been kept.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Final

import anyio
from anyio.from_thread import check_cancelled

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.statistics.batch import Batch, ToolKey
from mcp_context_proxy.statistics.counters import Counters
from mcp_context_proxy.statistics.histogram import bucket_of
from mcp_context_proxy.statistics.inventory import Inventory
from mcp_context_proxy.statistics.retention import Retention
from mcp_context_proxy.statistics.summed import Summed
from mcp_context_proxy.statistics.tally import Tally
from mcp_context_proxy.store import StatisticsStore
from mcp_context_proxy.store.usage import SearchRow, SearchUsage, Slot
from mcp_context_proxy.threads import in_thread

logger = logging.getLogger(__name__)

BATCH_SECONDS: Final = 0.25
"""For what happens meanwhile to be written together. When the process is killed, what happened since the last
writing began is lost: less than the last second, also where a write takes long."""

REFRESH_SECONDS: Final = 60.0
"""Between two looks at what other processes that share the store have counted: reading a year takes 0.2 s."""

COUNTING_SECONDS: Final = 5.0
"""Between two looks at what there is to be used: a catalog that keeps changing costs little so."""

MAINTENANCE_SECONDS: Final = 3600.0
"""Between two times that old hours are made into days."""

LAST_SECONDS: Final = 2.0
"""For what is unwritten when the proxy stops."""

SHOWN_WAITING: Final = 1_000
"""Searches that wait until it is known what everything costs, which for a large new catalog takes seconds."""

USED_KEPT: Final = 1_000
"""Searches of which it is remembered that a tool was used, so that each counts once."""


class UsageRecorder:
    """Counts calls and searches. Its `run` owns the writing; the other methods do not block."""

    def __init__(
        self,
        store: StatisticsStore,
        retention: Retention,
        inventory: Inventory,
        clock: Callable[[], float] = time_of_day,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        """Prepare to count.

        Args:
            store: Keeps what is counted.
            retention: For how long.
            inventory: Knows what there is, and what it costs.
            clock: Seconds since 1970.
            refresh_seconds: Between two looks at what other processes have counted.
        """
        self._store, self._retention, self.inventory, self._clock = store, retention, inventory, clock
        self._refresh_seconds = refresh_seconds
        self.counters = Counters()
        self.summed = Summed(store)
        """All that is remembered of each tool."""
        self._tallies: dict[ToolKey, Tally] = {}
        self._fresh, self._unwritten = Batch(), Batch()
        self._shown: deque[tuple[Slot, int]] = deque(maxlen=SHOWN_WAITING)
        self._used: OrderedDict[str, None] = OrderedDict()
        self._to_write, self._to_count, self._writing = anyio.Event(), anyio.Event(), anyio.Lock()
        self._maintained = 0.0

    @property
    def counting(self) -> bool:
        """Whether there are searches of which it is not known yet what they showed and what was behind."""
        return bool(self._shown)

    def called(self, server: str, tool: str, ms: float | None, failed: bool, result_bytes: int) -> None:
        """A call has ended; `ms` is None where it was never sent."""
        tally = self._tallies.get((server, tool))
        if tally is None:
            tally = self._tallies[server, tool] = Tally()
            self._wake()
        tally.add(ms, failed, result_bytes, self._clock())
        self.counters.called(server, ms, failed)

    def searched(self, row: SearchRow, shown: int) -> None:
        """A search was answered with what costs so many tokens."""
        slot, found = Slot.of(row.time), row.results > 0
        counted = SearchUsage(1, int(found), 0, 0, int(row.reranked), row.ms, {bucket_of(row.ms): 1})
        self._fresh.add_search(slot, counted)
        self._fresh.add_row(row)
        self.counters.searched(row.origin, row.ms, found, row.reranked)
        self._shown.append((slot, shown))
        if not self.inventory.outdated:
            self._count_tokens()
        self._wake()

    def used(self, row: SearchRow) -> None:
        """A tool that a search had found was called for it; only the first one is counted."""
        if row.id in self._used:
            return
        self._used[row.id] = None
        if len(self._used) > USED_KEPT:
            self._used.popitem(last=False)
        top = row.rank == 1
        self._fresh.add_search(Slot.of(row.time), SearchUsage(used=1, top_used=int(top)))
        self._fresh.add_row(row)
        self.counters.used += 1
        self.counters.top_used += top
        self._wake()

    def _wake(self) -> None:
        self._to_write.set()
        self._to_count.set()

    def _count_tokens(self) -> None:
        """Count what searches have shown, now that it is known what there is."""
        behind = self.inventory.behind
        while self._shown:
            slot, shown = self._shown.popleft()
            if behind is not None:
                self._fresh.add_search(slot, SearchUsage(shown=shown, behind=max(behind, shown)))
                self.counters.shown += shown
                self.counters.saved += max(behind - shown, 0)

    def looked_at(self) -> None:
        """Somebody looks at the statistics: what there is to be used is counted soon. Does not block."""
        self._wake()

    async def run(self) -> None:
        """Write what is counted, until cancelled; then once more."""
        try:
            await self.caught_up()
            async with anyio.create_task_group() as group:
                group.start_soon(self._write_batches)
                group.start_soon(self._count_definitions)
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self.flush()

    async def flush(self) -> None:
        """Write what was counted so far."""
        async with self._writing:
            tallies, self._tallies = self._tallies, {}
            fresh, self._fresh = self._fresh, Batch()
            for key, tally in tallies.items():
                fresh.add_tally(key, tally)
            if fresh or self._unwritten:
                with anyio.CancelScope(shield=True):
                    await in_thread(self._write, fresh)

    async def caught_up(self) -> None:
        """Know what other processes that share the store have counted, and make room where it is time."""
        async with self._writing:
            with anyio.CancelScope(shield=True):
                await in_thread(self._refresh)

    async def _write_batches(self) -> None:
        refresh_at = anyio.current_time() + self._refresh_seconds
        while True:
            with anyio.move_on_at(refresh_at):
                await self._to_write.wait()
                await anyio.sleep(BATCH_SECONDS)
            self._to_write = anyio.Event()
            await self.flush()
            if anyio.current_time() >= refresh_at:
                await self.caught_up()
                refresh_at = anyio.current_time() + self._refresh_seconds

    async def _count_definitions(self) -> None:
        """Know what there is once it is used, and again when it is something else."""
        while True:
            await self._to_count.wait()
            self._to_count = anyio.Event()
            if self.inventory.outdated:
                count = partial(self.inventory.count, check_cancelled)
                await in_thread(self._attempt, count, abandon_on_cancel=True)
                self._count_tokens()
            await anyio.sleep(COUNTING_SECONDS)

    def _write(self, fresh: Batch) -> None:
        self._attempt(lambda: self.summed.add(usage for _, usage in fresh.tools))
        batch = self._unwritten
        batch.take(fresh)
        if self._attempt(lambda: self._store.add(batch.tools, batch.searches, batch.rows.values())):
            self._unwritten = Batch()

    def _refresh(self) -> None:
        self._attempt(lambda: self.summed.refresh([usage for _, usage in self._unwritten.tools]))
        now = self._clock()
        if now - self._maintained >= MAINTENANCE_SECONDS:
            self._maintained = now
            self._attempt(lambda: self._retention.apply(self._store, now))

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Do something with the store; whether it need not be done again."""
        try:
            work()
        except StoreError:
            return False
        except Exception:
            # boundary: what cannot be counted must not end the proxy, nor be tried for ever
            logger.exception("statistics could not be kept")
        return True
