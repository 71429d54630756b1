"""Takes in what happens, on the event loop, and writes it to the store in batches, in a thread.

Whoever is served pays for a few additions. A store that fails costs nothing but what would have been kept.

What was counted and not yet in the store: it adds up, so a store that cannot be written costs little.

Counts of one tool or server that grow in place: what a call costs is a few additions, and no lock.

All that is remembered of each tool, ready to be asked during a search: of every proxy on the store.

Written by one thread at a time; reading takes no lock, and sees values that do not change.

For how long statistics are kept: by the hour at first, then by the day, then not at all.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import anyio
from anyio.from_thread import check_cancelled

from mcp_context_proxy.config import Limits
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.statistics.figures import Counters, ToolFigures, bucket_of
from mcp_context_proxy.statistics.report import Inventory
from mcp_context_proxy.store import StatisticsStore
from mcp_context_proxy.store.rows import SearchRow, SearchUsage, ToolUsage, UsageSlot
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.threads import in_thread


class Tally:
    """Calls of one tool since it was begun. Of one thread."""

    __slots__ = ("calls", "errors", "last", "latency", "ms", "result_bytes", "timed")

    def __init__(self) -> None:
        self.calls = self.errors = self.timed = self.result_bytes = 0
        self.ms = self.last = 0.0
        self.latency: dict[int, int] = {}

    def add(self, ms: float | None, failed: bool, result_bytes: int, now: float) -> None:
        """Count a call; one that was never sent took no time, and says nothing of how fast the tool is."""
        self.calls += 1
        self.errors += failed
        self.last = now
        if ms is not None:
            self.timed += 1
            self.ms += ms
            self.result_bytes += result_bytes
            bucket = bucket_of(ms)
            self.latency[bucket] = self.latency.get(bucket, 0) + 1

    def usage(self, server: str, tool: str) -> ToolUsage:
        """As a value."""
        return ToolUsage(
            server,
            tool,
            self.calls,
            self.errors,
            self.timed,
            self.ms,
            self.result_bytes,
            self.last,
            dict(self.latency),
        )


ToolKey = tuple[str, str]
"""Server, and the name that the server itself uses."""

ROWS: Final = 1_000
"""Searches that wait to be kept one by one; of more, the oldest are only counted."""


class Batch:
    """Counts since the last write. Of one thread at a time."""

    def __init__(self) -> None:
        self._tools: dict[tuple[UsageSlot, ToolKey], ToolUsage] = {}
        self.searches: dict[UsageSlot, SearchUsage] = {}
        self.rows: dict[str, SearchRow] = {}

    def __bool__(self) -> bool:
        return bool(self._tools or self.searches or self.rows)

    @property
    def tools(self) -> Iterator[tuple[UsageSlot, ToolUsage]]:
        """Usage of tools by slot."""
        return ((slot, usage) for (slot, _), usage in self._tools.items())

    def add_tally(self, key: ToolKey, tally: Tally) -> ToolUsage:
        """Count what a tally has; it as a value."""
        usage = tally.usage(*key)
        self._add_tool((UsageSlot.of(usage.last), key), usage)
        return usage

    def add_search(self, slot: UsageSlot, usage: SearchUsage) -> None:
        """Count what came of searches."""
        known = self.searches.get(slot)
        self.searches[slot] = usage if known is None else known.plus(usage)

    def add_row(self, row: SearchRow) -> None:
        """Keep a search, in the place of what was known of it."""
        self.rows.pop(row.id, None)
        self.rows[row.id] = row
        if len(self.rows) > ROWS:
            del self.rows[next(iter(self.rows))]

    def take(self, later: Batch) -> None:
        """Add all that another one has."""
        for key, usage in later._tools.items():
            self._add_tool(key, usage)
        for slot, searched in later.searches.items():
            self.add_search(slot, searched)
        for row in later.rows.values():
            self.add_row(row)

    def _add_tool(self, key: tuple[UsageSlot, ToolKey], usage: ToolUsage) -> None:
        known = self._tools.get(key)
        self._tools[key] = usage if known is None else known.plus(usage)


class Summed:
    """The usage of each tool, summed up, and what follows from it."""

    def __init__(self, store: StatisticsStore) -> None:
        self._store = store
        self._usage: dict[ToolKey, ToolUsage] = {}
        self._figures: dict[ToolKey, ToolFigures] = {}
        self._version: int | None = None

    def all_figures(self) -> Mapping[ToolKey, ToolFigures]:
        """Those of every tool that was called, as they are now; they stay so. Does not block."""
        return self._figures

    def add(self, usages: Iterable[ToolUsage]) -> None:
        """Add what was just counted."""
        changed = {}
        for usage in usages:
            key = usage.server, usage.tool
            known = self._usage.get(key)
            self._usage[key] = usage if known is None else known.plus(usage)
            changed[key] = ToolFigures.of(self._usage[key])
        self._figures = {**self._figures, **changed}

    def refresh(self, besides: Iterable[ToolUsage]) -> None:
        """Read what is in the store, if another process has changed it; add what is not in it yet.

        Raises:
            StoreError: it cannot be read; what was known stays.
        """
        version = self._store.version()
        if version == self._version:
            return
        usage = {(one.server, one.tool): one for one in self._store.tools()}
        self._version, self._usage = version, usage
        self._figures = {key: ToolFigures.of(one) for key, one in usage.items()}
        self.add(besides)


@dataclass(frozen=True, slots=True)
class StatisticsRetention:
    """Bounds of what is kept; each has its reason in `config.limits`."""

    hours_seconds: float
    days_seconds: float
    usage_rows: int
    searches: int
    searches_seconds: float

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """As it is configured."""
        return cls(
            limits.statistics_hours_seconds,
            limits.statistics_days_seconds,
            limits.statistics_rows,
            limits.searches_kept,
            limits.searches_age_seconds,
        )

    def apply(self, store: StatisticsStore, now: float) -> None:
        """Make days of old hours, and forget what is too old or too much.

        Raises:
            StoreError: the store failed.
        """
        store.roll_up(now - self.hours_seconds, now - self.days_seconds)
        store.forget(self.usage_rows, self.searches, now - self.searches_seconds)


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
        retention: StatisticsRetention,
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
        self._shown: deque[tuple[UsageSlot, int]] = deque(maxlen=SHOWN_WAITING)
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
        slot, found = UsageSlot.of(row.time), row.results > 0
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
        self._fresh.add_search(UsageSlot.of(row.time), SearchUsage(used=1, top_used=int(top)))
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
