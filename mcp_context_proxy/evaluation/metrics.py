"""Measures how well one ranking meets the needs of one query, and estimates means over many queries.

A need is met at a depth if any of its tools is among that many first results. A tool that belongs to several
needs meets all of them. ``relevant`` makes a need of each of its tools, ``any_of`` one of each group; a
second member of a met group neither helps nor counts. The measures follow the field's definitions.

Intervals of means come from the percentile bootstrap (Efron and Tibshirani, "An introduction to the
bootstrap", 1993, chapter 13): seeded, and the same whatever the order of the queries. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.evaluation.data import Need
from mcp_context_proxy.items import ToolKey

RECALL_DEPTHS = (1, 3, 5, 10)
COMPLETE_DEPTHS = (5, 10)
NDCG_DEPTHS = (5, 10)
DEEPEST = max(*RECALL_DEPTHS, *COMPLETE_DEPTHS, *NDCG_DEPTHS)

SELECTED = "selected"
SELECTED_RECALL = "selected_recall"
SELECTED_PRECISION = "selected_precision"
KEPT = "kept"
REFUSED = "refused"

RESAMPLES = 2_000
"""Fifty of them lie beyond each end of a 95 % interval, which fixes it to about a tenth of its width."""

SEED = 20260728
"""Any number would do, as long as it stays."""

CONFIDENCE = 0.95


def measure(
    needs: Sequence[Need], ranking: Sequence[ToolKey], depth: int, selected: int, fits: bool, answerable: bool
) -> dict[str, float]:
    """Return each measure that a ranking of ``depth`` results allows, by name.

    Without needs nothing can be found: only the answer that something fits, or nothing, is measured.
    """
    found: dict[str, float] = {}
    if needs:
        top = ranking[:depth]
        found |= {f"recall@{at}": recall(needs, top[:at]) for at in RECALL_DEPTHS if at <= depth}
        found |= {f"complete@{at}": float(complete(needs, top[:at])) for at in COMPLETE_DEPTHS if at <= depth}
        found["mrr"] = reciprocal_rank(needs, top)
        found |= {f"ndcg@{at}": ndcg(needs, top, at) for at in NDCG_DEPTHS if at <= depth}
        shown = ranking[:selected]
        found |= {SELECTED: float(selected), SELECTED_RECALL: recall(needs, shown)}
        if shown:
            found[SELECTED_PRECISION] = precision(needs, shown)
    return found | ({KEPT: float(fits)} if answerable else {REFUSED: float(not fits)})


def recall(needs: Sequence[Need], found: Sequence[ToolKey]) -> float:
    """Return the share of needs that are met."""
    return sum(not need.isdisjoint(found) for need in needs) / len(needs)


def precision(needs: Sequence[Need], found: Sequence[ToolKey]) -> float:
    """Return the share of results that meet a need; there must be one."""
    wanted: Need = frozenset().union(*needs)
    return sum(key in wanted for key in found) / len(found)


def complete(needs: Sequence[Need], found: Sequence[ToolKey]) -> bool:
    """Return whether every need is met."""
    return all(not need.isdisjoint(found) for need in needs)


def reciprocal_rank(needs: Sequence[Need], ranking: Sequence[ToolKey]) -> float:
    """Return one over the rank of the first result that meets a need; 0 if none does."""
    wanted: Need = frozenset().union(*needs)
    return next((1 / rank for rank, key in enumerate(ranking, 1) if key in wanted), 0.0)


def ndcg(needs: Sequence[Need], ranking: Sequence[ToolKey], depth: int) -> float:
    """Return the discounted gain, as a share of that of a ranking with one met need at each first rank.

    A result gains 1 when it meets a need that no result above it meets (Järvelin and Kekäläinen, "Cumulated
    gain-based evaluation of IR techniques", TOIS 2002; binary gains, discount log2(rank + 1)).
    """
    unmet, gain = list(needs), 0.0
    for rank, key in enumerate(ranking[:depth], 1):
        left = [need for need in unmet if key not in need]
        if len(left) < len(unmet):
            gain += _discount(rank)
        unmet = left
    return gain / sum(_discount(rank) for rank in range(1, min(len(needs), depth) + 1))


def _discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over queries, with the interval that other queries of their kind would give."""

    mean: float
    low: float
    high: float
    queries: int
    """Queries that have the measure."""


def estimates(rows: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    """Estimate each measure over the queries that have it, in the order of first appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: estimate([row[name] for row in rows if name in row]) for name in names}


def estimate(values: Iterable[float]) -> Estimate:
    """Estimate the mean of one value per query; there must be a value."""
    return macro_estimate([np.fromiter(values, np.float64)])


def macro_estimate(groups: Sequence[Iterable[float]]) -> Estimate:
    """Estimate the mean of the means of several sets of queries, each of which is resampled by itself."""
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
