"""Recording of calls, searches and sessions: an append on the event loop, counted and stored in a thread.

Counts add up, so a store that cannot be written costs little memory, and loses nothing until the proxy stops.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

import anyio
from anyio.from_thread import check_cancelled
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Limits
from mcp_context_proxy.embedding.embeddings import Lookups
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import Document, IncludeMode, Item, Snapshot, Snapshots, Tool, ToolKey
from mcp_context_proxy.statistics import Batch, EndedCall, ToolFigures
from mcp_context_proxy.store.statistics import (
    DAY,
    DOCUMENTS,
    DefinitionRow,
    DocumentUsage,
    SearchRow,
    StatisticsStore,
    ToolUsage,
    count_in,
)
from mcp_context_proxy.store.tables import ToolSession, ToolSessionStore
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import LAST_SECONDS, BatchWriter, in_thread, keep_latest

logger = logging.getLogger(__name__)

BATCH_SECONDS: Final = 0.25
"""Time for which records are gathered. A killed process loses those since the last write began: less than
the last second, also where a write takes long."""

RECORDS: Final = 100_000
"""Records that wait while the store is busy for some seconds."""

REFRESH_SECONDS: Final = 60.0
"""Time between two looks at the counts of other processes on the store: reading a year takes 0.2 s."""

COUNTING_SECONDS: Final = 5.0
"""Time between two counts of the catalog's tokens, so that one that keeps changing costs little."""

MAINTENANCE_SECONDS: Final = 3600.0
"""Time between two times that old hours are turned into days."""

SHOWN_WAITING: Final = 1_000
"""Searches that wait for the tokens of all items to be counted, which can take seconds for a new catalog."""

USED_KEPT: Final = 1_000
"""Searches of which it is remembered that a tool was used, so that each counts once."""

SESSION_SECONDS: Final = 0.5
"""Time for which sessions of tools are gathered."""
SESSIONS_KEPT: Final = 20_000
"""Uses in the store, one per tool and session: a month of 60 sessions a day with ten tools each, 2 MB."""
SESSIONS_WAITING: Final = 10_000
"""Uses that wait for the store; of more, the oldest are dropped."""
SESSIONS_SEEN: Final = 2_000
"""Uses that are remembered, 350 bytes each, so that each is written once, or again when it was forgotten."""

DAY_LOOK_SECONDS: Final = 60.0
"""Time for which a call of the same tool without a session belongs to the same day as the one before."""

WINDOW_DAYS: Final = 30.0
"""Days for which sessions of a tool are kept: as many as a learned pair that is not used."""

PAUSE_SECONDS: Final = 0.004
"""Pause after each definition that is counted, in which others run: so 3,000 definitions take 13 s, the first
time, and calls meanwhile find the interpreter taken for a thirtieth of it."""

TIMING_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the buckets for metrics, in seconds: from a local server's response to the longest usual
call."""

TICK_SECONDS: Final = 0.25
"""Time between two looks at the event loop; a longer stall is always seen, a shorter one only by chance."""

STALL_SECONDS: Final = 0.1
"""Delay from which on a look counts as a stall: a busy machine delays everyone by less."""


class UsageRecorder:
    """Counts calls and searches. Its `run` owns the writing; the other methods do not block."""

    def __init__(
        self,
        store: StatisticsStore,
        limits: Limits,
        inventory: Inventory,
        *,
        clock: Callable[[], float] = time_of_day,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        """Count nothing yet; `refresh_seconds` is the time between two looks at other processes' counts."""
        self._store, self._limits, self.inventory, self._clock = store, limits, inventory, clock
        self._refresh_seconds = refresh_seconds
        self.counters = Counters()
        self.figures: Mapping[ToolKey, ToolFigures] = {}
        """Figures of every tool in the store, for searches; replaced with each change."""
        self._figures_by_owner: dict[str, Mapping[ToolKey, ToolFigures]] = {}
        self._totals: dict[str, dict[ToolKey, ToolUsage]] = {}
        """Usage by each principal with a name of its own, and under the empty one that of everybody."""
        self._version: int | None = None
        self._records = BatchWriter[Callable[[Batch], None]](
            self._write, seconds=BATCH_SECONDS, limit=RECORDS
        )
        self._calls: deque[EndedCall] = deque(maxlen=RECORDS)
        self._called = anyio.Event()
        self._unwritten = Batch()
        self._sent: tuple[int, Batch] | None = None
        """Counts of which is not known whether they are in the store, and the number they were sent under."""
        self._summing = threading.Lock()
        self._shown: deque[tuple[float, int, str]] = deque(maxlen=SHOWN_WAITING)
        self._used: OrderedDict[str, tuple[SearchRow, set[str | None]]] = OrderedDict()
        """Searches of which a tool was used: each as it was then, and all tools of it that were used."""
        self._to_count = anyio.Event()
        self._maintained = 0.0

    @property
    def counting(self) -> bool:
        """True while searches wait for the tokens of all items to be counted."""
        return bool(self._shown)

    def called(
        self, server: str, tool: str, ms: float | None, failed: bool, result_bytes: int, owner: str = ""
    ) -> None:
        """Count a call of an owner that has ended; `ms` is None where it was never sent."""
        if not self._calls:
            self._called.set()
            self._to_count.set()
        self._calls.append(((server, tool), ms, failed, result_bytes, owner))
        self.counters.called(server, ms, failed)

    def searched(self, row: SearchRow, shown: int) -> None:
        self._records.add(lambda batch: batch.add_search(row))
        self.counters.searched(row.origin, row.ms, row.results > 0, row.reranked)
        self._shown.append((row.time, shown, row.owner))
        if self.inventory.outdated:
            self._to_count.set()
        else:
            self._count_tokens()

    def used(self, row: SearchRow) -> None:
        """Count the call of a tool that a search had found; the first one counts as its choice."""
        if row.id in self._used:
            first, tools = self._used[row.id]
            if row.chosen not in tools:
                tools.add(row.chosen)
                further = replace(first, uses=len(tools))
                self._records.add(lambda batch: batch.keep(further))
            return
        row = replace(row, uses=1)
        keep_latest(self._used, row.id, (row, {row.chosen}), USED_KEPT)
        self._records.add(lambda batch: batch.add_use(row))
        self.counters.used += 1
        self.counters.top_used += row.rank == 1

    def documents(self, uses: Collection[DocumentUsage]) -> None:
        if uses:
            self._records.add(lambda batch: batch.add_documents(uses))
            self._to_count.set()

    def read(self, document: Document) -> None:
        self.documents([DocumentUsage(document.kind, document.name, reads=1, last=self._clock())])

    def introduced(self, documents: Iterable[tuple[str, str]]) -> None:
        """Count documents, by kind and name, that a session was given in the instructions at its start."""
        now = self._clock()
        self.documents([DocumentUsage(*key, delivered=1, last=now) for key in documents])

    def looked_at(self) -> None:
        """Count the catalog's tokens soon, since somebody looks at the statistics."""
        self._to_count.set()

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._records.run)
                group.start_soon(self._write_calls)
                await self.refresh()
                group.start_soon(self._count_definitions)
                while True:
                    await anyio.sleep(self._refresh_seconds)
                    await self.flush()
                    await self.refresh()
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self.flush()

    async def flush(self) -> None:
        if self._calls:
            # Those of a quarter of a second: by the hour and the day in which they are counted, it is now.
            calls, now = list(self._calls), self._clock()
            self._calls.clear()
            self._records.add(lambda batch: batch.add_calls(calls, now))
        if self._unwritten or self._sent is not None:
            # The store has refused counts: an empty record makes it try again.
            self._records.add(lambda _: None)
        await self._records.flush()

    async def refresh(self) -> None:
        """Read the counts of other processes on the store, and apply the retention when it is time."""
        with anyio.CancelScope(shield=True):
            await in_thread(self._refresh)

    async def _write_calls(self) -> None:
        """Write the calls of each moment together: a call itself only appends to a list."""
        while True:
            await self._called.wait()
            await anyio.sleep(BATCH_SECONDS)
            self._called = anyio.Event()
            await self.flush()

    def _write(self, records: Sequence[Callable[[Batch], None]]) -> None:
        fresh = Batch()
        for record in records:
            record(fresh)
        with self._summing:
            self._add_to_figures(fresh)
            self._unwritten.take(fresh)
            self._unwritten.drop_oldest(self._limits.store_waiting_rows)
            unsure = self._sent is not None
            with suppress(StoreError):  # logged by the store
                while self._sent is not None or self._unwritten:
                    if self._sent is None:
                        self._sent, self._unwritten = (self._store.next_batch(), self._unwritten), Batch()
                    number, batch = self._sent
                    rows = batch.rows.values()
                    self._store.add(batch.tools, batch.searches, rows, number, batch.documents)
                    self._sent = None
                if unsure:
                    # They may have been read from the store and added to the figures as well.
                    self._version = None
                    self._read_figures()

    def _refresh(self) -> None:
        with self._summing:
            self._attempt(self._read_figures)
        now = self._clock()
        if now - self._maintained >= MAINTENANCE_SECONDS and self._store.does_upkeep():
            self._maintained = now
            self._attempt(lambda: forget_old_counts(self._store, self._limits, now))

    def _read_figures(self) -> None:
        """Read the store, if another process has changed it, and add the calls that are not in it yet."""
        version = self._store.version()
        if version != self._version:
            by_owner = self._store.tools_by_owner()
            everybody = dict(by_owner.pop("", {}))
            for usages in by_owner.values():
                for key, usage in usages.items():
                    count_in(everybody, key, usage)
            self._totals = {**by_owner, "": everybody}
            self._version = version
            self._figures_by_owner = {
                owner: {key: ToolFigures.of(usage) for key, usage in usages.items()}
                for owner, usages in self._totals.items()
            }
            self.figures = self._figures_by_owner[""]
            if self._sent is not None:
                self._add_to_figures(self._sent[1])
            self._add_to_figures(self._unwritten)

    def figures_of(self, owner: str) -> Mapping[ToolKey, ToolFigures]:
        """Return the figures of tools for an owner: of its own calls, or of all for the user."""
        return self._figures_by_owner.get(owner, {}) if owner else self.figures

    def _add_to_figures(self, batch: Batch) -> None:
        changed: dict[str, dict[ToolKey, ToolFigures]] = defaultdict(dict)
        for slot, usage in batch.tools:
            for owner in {"", slot.owner}:
                totals = self._totals.setdefault(owner, {})
                count_in(totals, usage.key, usage)
                changed[owner][usage.key] = ToolFigures.of(totals[usage.key])
        for owner, figures in changed.items():
            self._figures_by_owner[owner] = {**self._figures_by_owner.get(owner, {}), **figures}
        self.figures = self._figures_by_owner.get("", {})

    async def _count_definitions(self) -> None:
        """Count the tokens of the catalog once it is used, and again when it has changed."""
        while True:
            await self._to_count.wait()
            self._to_count = anyio.Event()
            if self.inventory.outdated:
                count = partial(self.inventory.count, check_cancelled)
                await in_thread(self._attempt, count, abandon_on_cancel=True)
                self._count_tokens()
            await anyio.sleep(COUNTING_SECONDS)

    def _count_tokens(self) -> None:
        """Count the tokens of searches that waited for those of all items."""
        behind = self.inventory.behind
        while self._shown:
            time, shown, owner = self._shown.popleft()
            if behind is not None:
                all_tokens = max(behind, shown)
                self._records.add(
                    partial(Batch.add_tokens, time=time, shown=shown, behind=all_tokens, owner=owner)
                )
                self.counters.shown += shown
                self.counters.saved += max(behind - shown, 0)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreError:
            pass  # logged by the store
        except Exception:
            # boundary: counts that cannot be made must not end the proxy, nor be tried for ever
            logger.exception("statistics could not be updated")


class Inventory:
    """Counts the tokens of the catalog: of each definition once, and again when it changes.

    Nobody waits for that, so it pauses after each definition, and calls go on.
    """

    def __init__(
        self,
        store: StatisticsStore,
        catalog: Snapshots,
        *,
        tokens: Callable[[Item], int],
        listed_whole: Callable[[Snapshot], bool],
        known: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        """Count nothing yet.

        `tokens` returns the tokens that an item costs a model. A snapshot that is `listed_whole` saves none.
        `known` gets the tokens counted in earlier runs, by fingerprint, so that nobody counts again.
        """
        self._store, self._catalog, self._tokens, self._known = store, catalog, tokens, known
        self._listed_whole = listed_whole
        self._counted: Snapshot | None = None
        self.behind: int | None = None
        """Tokens of all items, if they are not listed; None if they are, and until they are counted."""

    @property
    def outdated(self) -> bool:
        """True when the catalog has changed since it was counted."""
        return self._counted is not self._catalog.whole.snapshot

    def count(self, check: Callable[[], None]) -> None:
        """Count new definitions. Blocks; `check` is called often, and raises to end it.

        The counts are known even if `StoreError` is raised because they could not be stored.
        """
        snapshot, now = self._catalog.whole.snapshot, time_of_day()
        known, stored = dict[str, int](), defaultdict[str, set[tuple[str, str]]](set)
        for row in self._store.definitions():
            known[row.fingerprint] = row.tokens
            stored[row.server].add((row.tool, row.fingerprint))
        self._known(known)
        tools: dict[str, list[Tool]] = defaultdict(list)
        for tool in snapshot.tools.values():
            tools[tool.server].append(tool)
        everything = 0
        refused: StoreError | None = None

        def put(server: str, rows: list[DefinitionRow]) -> None:
            nonlocal everything, refused
            everything += sum(row.tokens for row in rows)
            if refused is None and stored[server] != {(row.tool, row.fingerprint) for row in rows}:
                try:
                    self._store.put_definitions(server, rows)
                except StoreError as error:
                    refused = error

        for server, of_server in tools.items():
            rows = list[DefinitionRow]()
            for tool in of_server:
                tokens = known.get(tool.fingerprint)
                if tokens is None:
                    check()
                    tokens = self._tokens(tool)
                    time.sleep(PAUSE_SECONDS)
                rows.append(DefinitionRow(server, tool.name, tool.fingerprint, tokens, now))
            # At once: to count a hundred thousand takes longer than many a proxy runs.
            put(server, rows)
        of_documents = list[DefinitionRow]()
        for document in snapshot.documents.values():
            check()
            name, tokens = f"{document.kind}/{document.name}", self._tokens(document)
            if document.include is IncludeMode.MANUAL:  # no request finds it, and nobody can say it is unused
                everything += tokens
            else:
                of_documents.append(DefinitionRow(DOCUMENTS, name, document.fingerprint, tokens, now))
        put(DOCUMENTS, of_documents)
        self.behind = None if self._listed_whole(snapshot) else everything
        self._counted = snapshot
        if refused is not None:
            raise refused


class SessionRecorder:
    """Records the sessions in which tools were used. Its `run` owns the writing."""

    def __init__(self, store: ToolSessionStore, clock: Callable[[], float] = time_of_day) -> None:
        self._store, self._clock = store, clock
        self._uses = BatchWriter(self._write, seconds=SESSION_SECONDS, limit=SESSIONS_WAITING)
        self._seen: OrderedDict[tuple[ToolKey, str], None] = OrderedDict()
        self._looked: dict[ToolKey, float] = {}
        """When it was last looked which day it is, by tool that was called without a session."""

    def used(self, tool: ToolKey, session: str | None) -> None:
        """Record a successful call; without a session, the day counts as one. Does not block."""
        if session is not None and (tool, session) in self._seen:
            return
        passed = time.monotonic()
        if session is None:
            if passed - self._looked.get(tool, -DAY_LOOK_SECONDS) < DAY_LOOK_SECONDS:
                return
            keep_latest(self._looked, tool, passed, SESSIONS_SEEN)
        now = self._clock()
        of_session = session or f"day {datetime.fromtimestamp(now, UTC).date().isoformat()}"
        if (tool, of_session) in self._seen:
            return
        keep_latest(self._seen, (tool, of_session), None, SESSIONS_SEEN)
        self._uses.add(ToolSession(*tool, of_session, now))

    async def run(self) -> None:
        await self._uses.run()

    async def flush(self) -> None:
        await self._uses.flush()

    def _write(self, uses: Sequence[ToolSession]) -> None:
        self._store.add(uses, self._clock() - WINDOW_DAYS * DAY, SESSIONS_KEPT)


def forget_old_counts(store: StatisticsStore, limits: Limits, now: float) -> None:
    """Turn old hours into days, and forget counts and searches that are too old or too many."""
    store.roll_up(now - limits.statistics_hours_seconds, now - limits.statistics_days_seconds)
    store.forget(limits.statistics_rows, limits.searches_kept, now - limits.searches_age_seconds)


class Timings(Struct):
    """Durations, counted by `TIMING_BOUNDS`."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(TIMING_BOUNDS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(TIMING_BOUNDS, seconds)] += 1
        self.sum += seconds


class ServerCounts(Struct):
    """Calls of one server's tools."""

    calls: int = 0
    errors: int = 0
    latency: Timings = field(default_factory=Timings)


class LoopStalls:
    """Stalls of the event loop since `run` began; while it is stalled, nothing is served."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    async def run(self) -> None:
        while True:
            before = time.perf_counter()
            await anyio.sleep(TICK_SECONDS)
            self.late(time.perf_counter() - before - TICK_SECONDS)

    def late(self, seconds: float) -> None:
        """Count the delay of a look, if it is a stall."""
        if seconds >= STALL_SECONDS:
            self.count += 1
            self.seconds += seconds


class Counters(Struct):
    """Counts of this process since it began, for metrics. The event loop writes them.

    They are by server and never by tool: a person configures the number of servers, but strangers decide on
    the number of tools.
    """

    servers: dict[str, ServerCounts] = field(default_factory=lambda: defaultdict(ServerCounts))
    searches: dict[str, Timings] = field(default_factory=lambda: defaultdict(Timings))
    """Searches by origin, of which there are four."""
    found: int = 0
    used: int = 0
    top_used: int = 0
    reranked: int = 0
    shown: int = 0
    """Tokens of selected items."""
    saved: int = 0
    """Tokens of items that were not selected."""
    caches: dict[str, Lookups] = field(default_factory=dict)
    """Hits and misses of each cache, by its name."""
    learned_pairs: Callable[[], int] | None = None
    """Returns the number of learned pairs, and may block; None where nothing is learned."""
    stalls: LoopStalls = field(default_factory=LoopStalls)

    def called(self, server: str, ms: float | None, failed: bool) -> None:
        counts = self.servers[server]
        counts.calls += 1
        counts.errors += failed
        if ms is not None:
            counts.latency.add(ms / 1000)

    def searched(self, origin: str, ms: float, found: bool, reranked: bool) -> None:
        self.searches[origin].add(ms / 1000)
        self.found += found
        self.reranked += reranked
