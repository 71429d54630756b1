"""How much an interaction counts after some time. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

DECAY_PER_DAY: Final = 0.95
"""What is left of a score after a day, unless a search says otherwise: 0.21 after 30 days."""

SECONDS_A_DAY: Final = 86_400.0


def days_between(then: float, now: float) -> float:
    """Days since a moment, both in seconds since 1970; none for one that is yet to come."""
    return max(now - then, 0.0) / SECONDS_A_DAY


def aged(cosine: float, days: float, factor: float = DECAY_PER_DAY) -> float:
    """The score of an interaction: ``cosine * factor ** days``.

    A cosine below zero counts as zero: what is unlike a query must not gain by being old.
    """
    return float(max(cosine, 0.0) * factor ** max(days, 0.0))


def all_aged(
    cosines: NDArray[np.float64], times: NDArray[np.float64], now: float, factor: float
) -> NDArray[np.float64]:
    """The same of many, by when they happened in seconds since 1970."""
    days = np.maximum(now - times, 0.0) / SECONDS_A_DAY
    scores: NDArray[np.float64] = np.maximum(cosines, 0.0) * np.power(factor, days)
    return scores
