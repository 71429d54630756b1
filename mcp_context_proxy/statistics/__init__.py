"""Statistics: the calls of each tool, the searches, and the tokens that they saved.

Here are the counts, the figures of tools, and the histogram of latencies behind their percentiles. Its
buckets grow by a constant factor (as in DDSketch: Masson, Rim and Lee, VLDB 2019), so that the relative error
of a percentile is the same for a microsecond and for a minute. Histograms take bounded memory, and are summed
by adding counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self, TypeAlias

from msgspec import Struct

from mcp_context_proxy.items import ToolKey
from mcp_context_proxy.store.statistics import (
    DAY,
    HOUR,
    Counts,
    DocumentKey,
    DocumentUsage,
    SearchRow,
    SearchUsage,
    ToolUsage,
    UsageSlot,
    count_in,
)
from mcp_context_proxy.system.threads import keep_latest

ERROR: Final = 0.02
"""Largest relative error of a percentile: nobody decides by less."""

FASTEST_MS: Final = 0.01
SLOWEST_MS: Final = 3_600_000.0
"""Durations beyond these are counted as these: below, a clock says nothing, and no call may take longer. That
makes at most some 670 buckets, and a few tens for a real tool."""

_GROWTH: Final = (1 + ERROR) / (1 - ERROR)
_PER_BUCKET: Final = math.log(_GROWTH)

ROWS: Final = 1_000
"""Searches that wait for the store one by one; of more, the oldest are only counted."""

PERIOD_PATTERN: Final = "^[1-9][0-9]{0,3}[hd]$"
"""Syntax of a period."""
DEFAULT_PERIOD: Final = "30d"


def bucket_of(ms: float) -> int:
    """Return the bucket of a duration: bucket b is from ``growth ** (b - 1)`` to ``growth ** b``."""
    # By comparisons, which take a third of the time of `min` and `max`: every call is counted.
    ms = FASTEST_MS if ms < FASTEST_MS else SLOWEST_MS if ms > SLOWEST_MS else ms
    return math.ceil(math.log(ms) / _PER_BUCKET)


def percentile(counts: Counts, share: float) -> float:
    """Return the duration in milliseconds that a share of all does not exceed; 0 if nothing was counted."""
    rank = math.ceil(share * sum(counts.values()))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            # The value whose relative distance to both ends of the bucket is the same.
            return 2 * _GROWTH**bucket / (_GROWTH + 1)
    return 0.0


class ToolFigures(Struct, frozen=True):
    """Figures of a tool over all its calls in the store, of every proxy that shares it."""

    calls: int
    """Calls that were answered or failed; at least one."""
    errors: int
    """Calls that the tool answered with an error, or that were not answered at all."""
    mean_ms: float
    p50_ms: float
    p95_ms: float
    last_used: float
    """Seconds since 1970."""
    result_bytes: float
    """Mean size of a result."""

    @classmethod
    def of(cls, usage: ToolUsage) -> Self:
        """Return the figures of counted calls; percentiles are within `ERROR`."""
        return cls(
            calls=usage.calls,
            errors=usage.errors,
            mean_ms=usage.ms / usage.timed if usage.timed else 0.0,
            p50_ms=percentile(usage.latency, 0.50),
            p95_ms=percentile(usage.latency, 0.95),
            last_used=usage.last,
            result_bytes=usage.result_bytes / usage.timed if usage.timed else 0.0,
        )

    @property
    def success_rate(self) -> float:
        return 1.0 - self.errors / self.calls if self.calls else 1.0

    def as_data(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "success_rate": round(self.success_rate, 4),
            "avg_latency_ms": round(self.mean_ms, 3),
            "p95_latency_ms": round(self.p95_ms, 3),
        }


EndedCall: TypeAlias = tuple[ToolKey, float | None, bool, int, str]
"""Tool of a call, milliseconds or None where it was never sent, failure, bytes of the result, owner."""


class Batch:
    """Counts that are not in the store yet. For one thread at a time."""

    def __init__(self) -> None:
        self._calls: dict[tuple[UsageSlot, ToolKey], ToolUsage] = {}
        self._documents: dict[tuple[UsageSlot, DocumentKey], DocumentUsage] = {}
        self.searches: dict[UsageSlot, SearchUsage] = {}
        self.rows: dict[str, SearchRow] = {}

    @property
    def _counts(self) -> tuple[dict[Any, Any], ...]:
        return self._calls, self._documents, self.searches

    @property
    def tools(self) -> Iterator[tuple[UsageSlot, ToolUsage]]:
        return ((slot, usage) for (slot, _), usage in self._calls.items())

    def __len__(self) -> int:
        return len(self.rows) + sum(map(len, self._counts))

    @property
    def documents(self) -> Iterator[tuple[UsageSlot, DocumentUsage]]:
        return ((slot, usage) for (slot, _), usage in self._documents.items())

    def add_documents(self, documents: Iterable[DocumentUsage]) -> None:
        for usage in documents:
            count_in(self._documents, (UsageSlot.of(usage.last), usage.key), usage)

    def add_calls(self, calls: Iterable[EndedCall], time: float) -> None:
        """Count calls that ended at about the same time."""
        usages: dict[tuple[ToolKey, str], ToolUsage] = {}
        for tool, ms, failed, result_bytes, owner in calls:
            usage = usages.get((tool, owner))
            if usage is None:
                key = UsageSlot.of(time, owner=owner), tool
                usage = usages[tool, owner] = self._calls.setdefault(key, ToolUsage(*tool))
            count_call(usage, ms, failed, result_bytes, time)

    def add_search(self, row: SearchRow) -> None:
        found, latency = int(row.results > 0), {bucket_of(row.ms): 1}
        usage = SearchUsage(1, found, reranked=int(row.reranked), ms=row.ms, latency=latency)
        count_in(self.searches, UsageSlot.of(row.time, owner=row.owner), usage)
        self.keep(row)

    def add_use(self, row: SearchRow) -> None:
        """Count the use of a tool that a search had found, and keep the search as it is now."""
        usage = SearchUsage(used=1, top_used=int(row.rank == 1))
        count_in(self.searches, UsageSlot.of(row.time, owner=row.owner), usage)
        self.keep(row)

    def add_tokens(self, time: float, shown: int, behind: int, owner: str = "") -> None:
        """Count the tokens of the items that a search has selected, and of all items."""
        usage = SearchUsage(shown=shown, behind=behind)
        count_in(self.searches, UsageSlot.of(time, owner=owner), usage)

    def take(self, later: Batch) -> None:
        for counts, added in zip(self._counts, later._counts, strict=True):
            for key, usage in added.items():
                count_in(counts, key, usage)
        for row in later.rows.values():
            self.keep(row)

    def drop_oldest(self, most: int) -> None:
        """Drop searches one by one, then the oldest slots of calls and documents, down to so many rows."""
        while len(self) > most and self.rows:
            del self.rows[next(iter(self.rows))]
        for counts in (self._calls, self._documents):
            for key in sorted(counts, key=lambda key: key[0].start)[: max(len(self) - most, 0)]:
                del counts[key]

    def keep(self, row: SearchRow) -> None:
        """Keep a search as it is now, without counting it."""
        keep_latest(self.rows, row.id, row, ROWS)


def count_call(usage: ToolUsage, ms: float | None, failed: bool, result_bytes: int, now: float) -> None:
    """Count a call; one that was never sent took no time, and says nothing about the tool's speed."""
    usage.calls += 1
    usage.errors += failed
    usage.last = max(usage.last, now)
    if ms is not None:
        usage.timed += 1
        usage.ms += ms
        usage.result_bytes += result_bytes
        bucket = bucket_of(ms)
        usage.latency[bucket] = usage.latency.get(bucket, 0) + 1


def seconds_of(period: str) -> int:
    """Return the seconds of a period such as ``24h`` or ``30d``; raises `ValueError` if it is none."""
    if re.fullmatch(PERIOD_PATTERN, period) is None:
        raise ValueError(f"{period!r} is no period; write hours or days, such as 24h or 30d")
    return int(period[:-1]) * (HOUR if period.endswith("h") else DAY)
