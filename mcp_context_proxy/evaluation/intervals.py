"""Means with bootstrap intervals: seeded, and the same whatever the order of the queries.

Percentile bootstrap (Efron and Tibshirani, "An introduction to the bootstrap", 1993, chapter 13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2_000
"""Of them fifty lie beyond each end of a 95 % interval, which fixes it to about a tenth of its width."""

SEED = 20260728
"""Any number would do, as long as it stays."""

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over queries, and where it might as well have been with other queries of their kind."""

    mean: float
    low: float
    high: float
    queries: int
    """Those that have the measure."""


def estimates(rows: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    """Each measure over the queries that have it, in the order in which measures first appear."""
    return {name: estimate([row[name] for row in rows if name in row]) for name in _names(rows)}


def estimate(values: Iterable[float]) -> Estimate:
    """The mean of one value per query, with its interval; there must be a value."""
    return macro_estimate([np.fromiter(values, np.float64)])


def macro_estimate(groups: Sequence[Iterable[float]]) -> Estimate:
    """The mean of the means of several sets of queries, each of which is resampled by itself."""
    random = np.random.default_rng(SEED)
    # Sorted, so that the order of the queries decides nothing.
    ordered = [np.sort(np.fromiter(group, np.float64)) for group in groups]
    resampled = np.mean([_resampled_means(values, random) for values in ordered], axis=0)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    mean = float(np.mean([values.mean() for values in ordered]))
    return Estimate(mean, float(low), float(high), sum(values.size for values in ordered))


def _resampled_means(values: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    return np.array([values[random.integers(values.size, size=values.size)].mean() for _ in range(RESAMPLES)])


def _names(rows: Sequence[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))
