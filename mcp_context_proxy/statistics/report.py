"""What the statistics say over a period, from the store: the same for the API, the page and the terminal.

A period is told by whole hours, and beyond the hours that are kept by whole days (UTC).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from mcp_context_proxy.statistics.figures import ToolFigures
from mcp_context_proxy.statistics.histogram import percentile
from mcp_context_proxy.store import StatisticsStore
from mcp_context_proxy.store.usage import DAY, HOUR, DefinitionRow, SearchRow, SearchUsage, Slot

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
class Stretch:
    """An hour or a day of a period."""

    slot: Slot
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

    def timeline(self, since: float, until: float) -> list[Stretch]:
        """The whole period, stretch by stretch, also those in which nothing happened."""
        seconds = HOUR if until - since <= HOURLY_AT_MOST else DAY
        calls, searched = self._store.calls(since), self._store.searched(since)
        found: dict[int, Stretch] = {}
        for slot in {**calls, **searched}:
            at = Slot.of(slot.start, seconds)
            before = found.get(at.start, Stretch(at, 0, 0, SearchUsage()))
            more, errors = calls.get(slot, (0, 0))
            together = before.searches.plus(searched.get(slot, SearchUsage()))
            found[at.start] = Stretch(at, before.calls + more, before.errors + errors, together)
        begin = max(since, min(found, default=math.inf))
        if not math.isfinite(begin):
            return []
        starts = range(Slot.of(begin, seconds).start, math.ceil(until), seconds)
        return [found.get(at, Stretch(Slot(seconds, at), 0, 0, SearchUsage())) for at in starts]

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
