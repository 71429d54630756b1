"""Figures of tools from their calls, and the histogram of latencies on which percentiles are based.

The buckets of the histogram grow by a constant factor (as in DDSketch: Masson, Rim and Lee, VLDB 2019), so
that the relative error of a percentile is the same for a microsecond and for a minute. Histograms take
bounded memory, and are summed by adding counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from mcp_context_proxy.items import ToolKey
from mcp_context_proxy.store import DAY, HOUR, Counts, StatisticsStore, ToolUsage

ERROR: Final = 0.02
"""Largest relative error of a percentile: nobody decides by less."""

FASTEST_MS: Final = 0.01
SLOWEST_MS: Final = 3_600_000.0
"""Durations beyond these are counted as these: below, a clock says nothing, and no call may take longer. That
makes at most some 670 buckets, and a few tens for a real tool."""

_GROWTH: Final = (1 + ERROR) / (1 - ERROR)
_PER_BUCKET: Final = math.log(_GROWTH)

PATTERN: Final = "^[1-9][0-9]{0,3}[hd]$"
"""Syntax of a period."""
DEFAULT: Final = "30d"


def bucket_of(ms: float) -> int:
    """Return the bucket of a duration: bucket b is from ``growth ** (b - 1)`` to ``growth ** b``."""
    return math.ceil(math.log(min(max(ms, FASTEST_MS), SLOWEST_MS)) / _PER_BUCKET)


def percentile(counts: Counts, share: float) -> float:
    """Return the duration in milliseconds that a share of all does not exceed; 0 if nothing was counted."""
    rank = math.ceil(share * sum(counts.values()))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            # The value whose relative distance to both ends of the bucket is the same.
            return 2 * _GROWTH**bucket / (_GROWTH + 1)
    return 0.0


@dataclass(frozen=True, slots=True)
class ToolFigures:
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
        """Share of the calls that did not fail, 0 to 1."""
        return 1.0 - self.errors / self.calls if self.calls else 1.0


class Summed:
    """The figures of every tool in memory, for searches.

    One thread at a time writes. Readers take no lock, and get values that do not change.
    """

    def __init__(self, store: StatisticsStore) -> None:
        self._store = store
        self._usage: dict[ToolKey, ToolUsage] = {}
        self._figures: dict[ToolKey, ToolFigures] = {}
        self._version: int | None = None

    def all_figures(self) -> Mapping[ToolKey, ToolFigures]:
        """Return the figures of every tool that was called, as they are now. Does not block."""
        return self._figures

    def add(self, usages: Iterable[ToolUsage]) -> None:
        """Add calls that were just counted."""
        changed = {}
        for usage in usages:
            known = self._usage.get(usage.key)
            total = self._usage[usage.key] = usage if known is None else known.plus(usage)
            changed[usage.key] = ToolFigures.of(total)
        self._figures = {**self._figures, **changed}

    def refresh(self, unwritten: Iterable[ToolUsage]) -> None:
        """Read the store, if another process has changed it, and add the calls that are not in it yet.

        Raises:
            StoreError: it cannot be read; the former figures stay.
        """
        version = self._store.version()
        if version == self._version:
            return
        usage = {one.key: one for one in self._store.tools()}
        self._version, self._usage = version, usage
        self._figures = {key: ToolFigures.of(one) for key, one in usage.items()}
        self.add(unwritten)


def seconds_of(period: str) -> int:
    """Return the length of a period such as ``24h`` or ``30d``.

    Raises:
        ValueError: it is not a period.
    """
    if re.fullmatch(PATTERN, period) is None:
        raise ValueError(f"{period!r} is no period; write hours or days, such as 24h or 30d")
    return int(period[:-1]) * (HOUR if period.endswith("h") else DAY)
