"""What is known of a tool from its calls, as values; where they come from is not told here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


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

    @property
    def success_rate(self) -> float:
        """Share of the calls that did not fail, 0 to 1."""
        return 1.0 - self.errors / self.calls if self.calls else 1.0


FiguresOf: TypeAlias = Callable[[str, str], ToolFigures | None]
"""The figures of a tool, by server and the name that the server itself uses; None before its first call."""
