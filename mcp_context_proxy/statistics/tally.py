"""Counts of one tool or server that grow in place: what a call costs is a few additions, and no lock."""

from __future__ import annotations

from mcp_context_proxy.statistics.histogram import bucket_of
from mcp_context_proxy.store.usage import ToolUsage


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
