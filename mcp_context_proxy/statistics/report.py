"""Reports on a period from the store, for the API, the page and the terminal.

A period is reported by whole hours, and beyond the hours that are kept by whole days (UTC).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from mcp_context_proxy.statistics.figures import ToolFigures, percentile
from mcp_context_proxy.store import (
    DAY,
    HOUR,
    DefinitionRow,
    SearchRow,
    SearchUsage,
    StatisticsStore,
    UsageSlot,
)

HOURLY_AT_MOST: Final = 2 * DAY
"""Longer periods are reported by the day: a person can see some fifty points."""


@dataclass(frozen=True, slots=True)
class ToolReport:
    """The figures of a tool in a period."""

    server: str
    tool: str
    """The name the server itself uses."""
    figures: ToolFigures
    tokens: int | None
    """Tokens of its definition; None where it is not in the catalog any more."""


@dataclass(frozen=True, slots=True)
class SearchReport:
    """The figures of all searches in a period."""

    usage: SearchUsage

    @property
    def acceptance_rate(self) -> float | None:
        """Share of searches after which the first tool found was called; None without searches."""
        return self._share(self.usage.top_used)

    @property
    def use_rate(self) -> float | None:
        """Share of searches after which any tool found was called; None without searches."""
        return self._share(self.usage.used)

    @property
    def mean_ms(self) -> float | None:
        """Mean duration of a search; None without searches."""
        return self.usage.ms / self.usage.searches if self.usage.searches else None

    def percentile_ms(self, share: float) -> float | None:
        """Return the duration that a share of the searches did not exceed; None without searches."""
        return percentile(self.usage.latency, share) if self.usage.latency else None

    def _share(self, count: int) -> float | None:
        # A use counts in the slot of its search, whose own count may have been forgotten since.
        return min(count / self.usage.searches, 1.0) if self.usage.searches else None


@dataclass(frozen=True, slots=True)
class UsageStretch:
    """An hour or a day of a timeline."""

    slot: UsageSlot
    calls: int
    errors: int
    searches: SearchUsage


class Reports:
    """Reads the statistics of a store. Blocking; every method raises `StoreError` when the store fails."""

    def __init__(self, store: StatisticsStore) -> None:
        self._store = store

    def tools(self, since: float) -> list[ToolReport]:
        """Return every tool that was called, the most called first."""
        tokens = {row.key: row.tokens for row in self._store.definitions()}
        reports = [
            ToolReport(one.server, one.tool, ToolFigures.of(one), tokens.get(one.key))
            for one in self._store.tools(since)
        ]
        return sorted(reports, key=lambda one: (-one.figures.calls, one.server, one.tool))

    def searches(self, since: float) -> SearchReport:
        """Return the figures of all searches."""
        return SearchReport(reduce(SearchUsage.plus, self._store.searched(since).values(), SearchUsage()))

    def latest(self, limit: int) -> list[SearchRow]:
        """Return the latest searches one by one, newest first."""
        return self._store.searches(limit)

    def timeline(self, since: float, until: float) -> list[UsageStretch]:
        """Return the period by the hour or day, including stretches without calls and searches."""
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
        """Return the tools of the last count for which `offered(server, tool)` is true."""
        return [row for row in self._store.definitions() if offered(row.server, row.tool)]

    def unused(self, known: Iterable[DefinitionRow]) -> list[DefinitionRow]:
        """Return the tools without a call in the store, those with most tokens first."""
        used = {one.key for one in self._store.tools()}
        found = (row for row in known if row.key not in used)
        return sorted(found, key=lambda row: (-row.tokens, row.server, row.tool))


def tokens_of(rows: Iterable[DefinitionRow]) -> int:
    """Return the tokens of definitions together."""
    return sum(row.tokens for row in rows)
