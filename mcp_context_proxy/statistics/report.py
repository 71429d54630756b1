"""What the statistics say over a period, from the store: the same for the API, the page and the terminal.

A period is told by whole hours, and beyond the hours that are kept by whole days (UTC).

What there is to be used, and what its definitions cost a model: counted once for each version of a tool.

Nobody waits for that, so it is done bit by bit, with pauses in which calls go on.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

from mcp_context_proxy.items import Item, Snapshot
from mcp_context_proxy.statistics.figures import ToolFigures, percentile
from mcp_context_proxy.store import StatisticsStore
from mcp_context_proxy.store.rows import DAY, HOUR, DefinitionRow, SearchRow, SearchUsage, UsageSlot
from mcp_context_proxy.system.clock import time_of_day

HOURLY_AT_MOST: Final = 2 * DAY
"""Longer periods are told by the day: some fifty points are what a person can see."""


@dataclass(frozen=True, slots=True)
class ToolReport:
    """How a tool did."""

    server: str
    tool: str
    """The name the server itself uses."""
    figures: ToolFigures
    tokens: int | None
    """Of its definition; None where it is not there any more."""


@dataclass(frozen=True, slots=True)
class SearchReport:
    """How searches did, together."""

    usage: SearchUsage

    @property
    def acceptance_rate(self) -> float | None:
        """Share after which the first tool that was found was called; None without searches."""
        return self._share(self.usage.top_used)

    @property
    def use_rate(self) -> float | None:
        """Share after which any tool that was found was called; None without searches."""
        return self._share(self.usage.used)

    @property
    def mean_ms(self) -> float | None:
        """Of a search; None without any."""
        return self.usage.ms / self.usage.searches if self.usage.searches else None

    def percentile_ms(self, share: float) -> float | None:
        """What a share of the searches did not exceed; None without any."""
        return percentile(self.usage.latency, share) if self.usage.latency else None

    def _share(self, count: int) -> float | None:
        # A use is counted where its search was, which may have been forgotten since.
        return min(count / self.usage.searches, 1.0) if self.usage.searches else None


@dataclass(frozen=True, slots=True)
class UsageStretch:
    """An hour or a day of a period."""

    slot: UsageSlot
    calls: int
    errors: int
    searches: SearchUsage


class Reports:
    """Reads the statistics of a store. Blocking; every method raises `StoreError` when the store fails."""

    def __init__(self, store: StatisticsStore) -> None:
        self._store = store

    def tools(self, since: float) -> list[ToolReport]:
        """Every tool that was called, the most called first."""
        tokens = {(row.server, row.tool): row.tokens for row in self._store.definitions()}
        reports = [
            ToolReport(one.server, one.tool, ToolFigures.of(one), tokens.get((one.server, one.tool)))
            for one in self._store.tools(since)
        ]
        return sorted(reports, key=lambda one: (-one.figures.calls, one.server, one.tool))

    def searches(self, since: float) -> SearchReport:
        """All searches together."""
        return SearchReport(reduce(SearchUsage.plus, self._store.searched(since).values(), SearchUsage()))

    def latest(self, limit: int) -> list[SearchRow]:
        """The latest searches one by one, newest first."""
        return self._store.searches(limit)

    def timeline(self, since: float, until: float) -> list[UsageStretch]:
        """The whole period, stretch by stretch, also those in which nothing happened."""
        seconds = HOUR if until - since <= HOURLY_AT_MOST else DAY
        calls, searched = self._store.calls(since), self._store.searched(since)
        found: dict[int, UsageStretch] = {}
        for slot in {**calls, **searched}:
            at = UsageSlot.of(slot.start, seconds)
            before = found.get(at.start, UsageStretch(at, 0, 0, SearchUsage()))
            more, errors = calls.get(slot, (0, 0))
            together = before.searches.plus(searched.get(slot, SearchUsage()))
            found[at.start] = UsageStretch(at, before.calls + more, before.errors + errors, together)
        begin = max(since, min(found, default=math.inf))
        if not math.isfinite(begin):
            return []
        starts = range(UsageSlot.of(begin, seconds).start, math.ceil(until), seconds)
        return [found.get(at, UsageStretch(UsageSlot(seconds, at), 0, 0, SearchUsage())) for at in starts]

    def known(self, offered: Callable[[str, str], bool]) -> list[DefinitionRow]:
        """Tools that there were at the last look and are `offered`; that is asked with server and tool."""
        return [row for row in self._store.definitions() if offered(row.server, row.tool)]

    def unused(self, known: Iterable[DefinitionRow]) -> list[DefinitionRow]:
        """Those of which no call is remembered, the dearest first."""
        used = {(one.server, one.tool) for one in self._store.tools()}
        found = (row for row in known if (row.server, row.tool) not in used)
        return sorted(found, key=lambda row: (-row.tokens, row.server, row.tool))


def tokens_of(rows: Iterable[DefinitionRow]) -> int:
    """What definitions cost together."""
    return sum(row.tokens for row in rows)


PAUSE_SECONDS: Final = 0.001
"""After each definition that is counted, in which others can have the interpreter: 3,000 take 4 s so."""


class Inventory:
    """The definitions of a snapshot. Blocking, but for `behind` and `outdated`."""

    def __init__(
        self,
        store: StatisticsStore,
        snapshot: Callable[[], Snapshot],
        tokens: Callable[[Item], int],
        listed_whole: Callable[[Snapshot], bool],
        clock: Callable[[], float] = time_of_day,
        known: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        """Prepare to count.

        Args:
            store: Remembers what was counted.
            snapshot: All there is now.
            tokens: What an item costs a model to read.
            listed_whole: Whether everything is listed, so that nothing is saved.
            clock: Seconds since 1970.
            known: Told what was counted in earlier runs, by fingerprint, so that nobody counts it again.
        """
        self._store, self._snapshot, self._tokens, self._known = store, snapshot, tokens, known
        self._listed_whole, self._clock = listed_whole, clock
        self._counted: Snapshot | None = None
        self.behind: int | None = None
        """What a model would read if everything were listed; None where it is, and until it is counted."""

    @property
    def outdated(self) -> bool:
        """Whether there is something else now than what was counted."""
        return self._counted is not self._snapshot()

    def count(self, check: Callable[[], None]) -> None:
        """Count what is new, and remember it. `check` is called often, and raises when that is to end.

        Raises:
            StoreError: it could not be remembered; it is known all the same.
        """
        snapshot, now = self._snapshot(), self._clock()
        before = self._store.definitions()
        known = {row.fingerprint: row.tokens for row in before}
        self._known(known)
        rows: dict[str, list[DefinitionRow]] = defaultdict(list)
        for tool in snapshot.tools.values():
            tokens = known.get(tool.fingerprint)
            if tokens is None:
                check()
                tokens = self._tokens(tool)
                time.sleep(PAUSE_SECONDS)
            rows[tool.server].append(DefinitionRow(tool.server, tool.name, tool.fingerprint, tokens, now))
        documents = 0
        for document in snapshot.documents.values():
            check()
            documents += self._tokens(document)
        everything = documents + sum(row.tokens for of_server in rows.values() for row in of_server)
        self.behind = None if self._listed_whole(snapshot) else everything
        self._counted = snapshot
        for server, of_server in rows.items():
            if _versions(of_server) != _versions(row for row in before if row.server == server):
                self._store.put_definitions(server, of_server)


def _versions(rows: Iterable[DefinitionRow]) -> set[tuple[str, str]]:
    return {(row.tool, row.fingerprint) for row in rows}
