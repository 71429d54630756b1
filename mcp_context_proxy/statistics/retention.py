"""For how long statistics are kept: by the hour at first, then by the day, then not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mcp_context_proxy.config import Limits
from mcp_context_proxy.store import StatisticsStore


@dataclass(frozen=True, slots=True)
class Retention:
    """Bounds of what is kept; each has its reason in `config.limits`."""

    hours_seconds: float
    days_seconds: float
    usage_rows: int
    searches: int
    searches_seconds: float

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """As it is configured."""
        return cls(
            limits.statistics_hours_seconds,
            limits.statistics_days_seconds,
            limits.statistics_rows,
            limits.searches_kept,
            limits.searches_age_seconds,
        )

    def apply(self, store: StatisticsStore, now: float) -> None:
        """Make days of old hours, and forget what is too old or too much.

        Raises:
            StoreError: the store failed.
        """
        store.roll_up(now - self.hours_seconds, now - self.days_seconds)
        store.forget(self.usage_rows, self.searches, now - self.searches_seconds)
