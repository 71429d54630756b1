"""What is known of a tool from its calls, as values; where they come from is not told here.

Latencies as counts by bucket: bounded memory, added up by adding counts, percentiles within a known error.

The buckets grow by a constant factor (as in DDSketch, Masson, Rim and Lee, VLDB 2019), so that the error of
every percentile is relative: the same for a microsecond and for a minute.

How far back somebody looks: ``24h``, ``30d``.

What this process has counted since it began, by server and never by tool: for those who collect figures.

The number of servers is what somebody configured; the number of tools is what strangers decide.

Notices when the event loop does not get its turn: whatever keeps it busy then keeps everyone waiting.
"""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

import anyio

from mcp_context_proxy.store.rows import DAY, HOUR, Counts, ToolUsage

ERROR: Final = 0.02
"""Of a percentile, relative and at most: nobody decides by less."""

FASTEST_MS: Final = 0.01
SLOWEST_MS: Final = 3_600_000.0
"""What is faster or slower is counted as if it were not: under it a clock tells nothing, and no call may take
longer. That makes at most some 670 buckets, and a few tens for a real tool."""

_GROWTH: Final = (1 + ERROR) / (1 - ERROR)
_PER_BUCKET: Final = math.log(_GROWTH)


def bucket_of(ms: float) -> int:
    """The bucket that a duration is counted in."""
    return math.ceil(math.log(min(max(ms, FASTEST_MS), SLOWEST_MS)) / _PER_BUCKET)


def percentile(counts: Counts, share: float) -> float:
    """The duration that a share of all does not exceed, in milliseconds; 0 where nothing was counted."""
    rank = math.ceil(share * sum(counts.values()))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            # The value whose relative distance to both ends of the bucket is the same.
            return 2 * _GROWTH**bucket / (_GROWTH + 1)
    return 0.0


@dataclass(frozen=True, slots=True)
class ToolFigures:
    """How a tool has done: all its calls that are remembered, of every proxy that shares the store."""

    calls: int
    """Answered or failed; at least one."""
    errors: int
    """Of the calls: answered as an error by the tool, or not answered at all."""
    mean_ms: float
    p50_ms: float
    p95_ms: float
    last_used: float
    """Seconds since 1970."""
    result_bytes: float
    """Of a result, on average."""

    @classmethod
    def of(cls, usage: ToolUsage) -> Self:
        """The figures of what was counted; percentiles within `histogram.ERROR`."""
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


PATTERN: Final = "^[1-9][0-9]{0,3}[hd]$"
DEFAULT: Final = "30d"


def seconds_of(period: str) -> int:
    """How long a period is.

    Raises:
        ValueError: it is none.
    """
    if re.fullmatch(PATTERN, period) is None:
        raise ValueError(f"{period!r} is no period; write hours or days, such as 24h or 30d")
    return int(period[:-1]) * (HOUR if period.endswith("h") else DAY)


TICK_SECONDS: Final = 0.25
"""Between two looks; a stall is seen for certain from this length on, a shorter one only by chance."""

STALL_SECONDS: Final = 0.1
"""Of lateness that counts: less is what a busy machine does to everyone."""


class LoopStalls:
    """Stalls since `run` began."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            before = time.perf_counter()
            await anyio.sleep(TICK_SECONDS)
            self.late(time.perf_counter() - before - TICK_SECONDS)

    def late(self, seconds: float) -> None:
        """Take how late a look was."""
        if seconds >= STALL_SECONDS:
            self.count += 1
            self.seconds += seconds


SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of what latencies are counted in: from a local server's answer to the longest usual call."""


class Timings:
    """Durations, counted by `SECONDS`."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(SECONDS) + 1), 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds


class ServerCounts:
    """Calls of one server's tools."""

    __slots__ = ("calls", "errors", "latency")

    def __init__(self) -> None:
        self.calls = self.errors = 0
        self.latency = Timings()


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """How often a cache had what it was asked for."""

    hits: int
    misses: int


@dataclass(slots=True)
class Counters:
    """All that is counted. Written on the event loop alone; who reads it may see a moment that never was."""

    servers: dict[str, ServerCounts] = field(default_factory=dict)
    searches: dict[str, Timings] = field(default_factory=dict)
    """By what asked: there are four."""
    found: int = 0
    used: int = 0
    top_used: int = 0
    reranked: int = 0
    shown: int = 0
    """Tokens of what was selected."""
    saved: int = 0
    """Tokens of what was not."""
    caches: dict[str, Callable[[], CacheCounts]] = field(default_factory=dict)
    """By name, each with what tells how it does."""
    learned_pairs: Callable[[], int] | None = None
    """How many there are now. May block; None where nothing is learned."""
    stalls: LoopStalls = field(default_factory=LoopStalls)

    def called(self, server: str, ms: float | None, failed: bool) -> None:
        """Count a call."""
        counts = self.servers.get(server)
        if counts is None:
            counts = self.servers[server] = ServerCounts()
        counts.calls += 1
        counts.errors += failed
        if ms is not None:
            counts.latency.add(ms / 1000)

    def searched(self, origin: str, ms: float, found: bool, reranked: bool) -> None:
        """Count a search."""
        self.searches.setdefault(origin, Timings()).add(ms / 1000)
        self.found += found
        self.reranked += reranked
