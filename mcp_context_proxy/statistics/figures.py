"""What is known of a tool from its calls, as values; where they come from is not told here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mcp_context_proxy.statistics.histogram import percentile
from mcp_context_proxy.store.usage import ToolUsage


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
