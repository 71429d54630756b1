"""What this process has counted since it began, by server and never by tool: for those who collect figures.

The number of servers is what somebody configured; the number of tools is what strangers decide.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mcp_context_proxy.statistics.stalls import Stalls

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
    stalls: Stalls = field(default_factory=Stalls)

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
