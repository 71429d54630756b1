"""How much an interaction counts after some time. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

DECAY_PER_DAY: Final = 0.95
"""What is left of a score after a day, unless a search says otherwise: 0.21 after 30 days."""

SECONDS_A_DAY: Final = 86_400.0


def aged(
    cosines: NDArray[np.float64], times: NDArray[np.float64], now: float, factor: float
) -> NDArray[np.float64]:
    """The scores of interactions: ``cosine * factor ** days``.

    A cosine below zero counts as zero, so that what is unlike a query gains nothing by being old. `times` and
    `now` are seconds since 1970; what lies ahead of `now`, by another clock, counts as new.
    """
    days = np.maximum(now - times, 0.0) / SECONDS_A_DAY
    scores: NDArray[np.float64] = np.maximum(cosines, 0.0) * np.power(factor, days)
    return scores
