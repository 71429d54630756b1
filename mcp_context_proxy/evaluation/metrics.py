"""How good one ranking is for the needs of one query. Pure functions, after the field's definitions.

A need is met at a depth when any of its tools is among that many first results. A tool that belongs to
several needs meets all of them. ``relevant`` makes a need of each of its tools, ``any_of`` one of each group;
a second member of a met group neither helps nor counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mcp_context_proxy.evaluation.queries import Need, ToolKey

RECALL_DEPTHS = (1, 3, 5, 10)
COMPLETE_DEPTHS = (5, 10)
NDCG_DEPTHS = (5, 10)
DEEPEST = max(*RECALL_DEPTHS, *COMPLETE_DEPTHS, *NDCG_DEPTHS)

SELECTED = "selected"
SELECTED_RECALL = "selected_recall"
KEPT = "kept"
REFUSED = "refused"


def measure(
    needs: Sequence[Need], ranking: Sequence[ToolKey], depth: int, selected: int, fits: bool, answerable: bool
) -> dict[str, float]:
    """Every measure that a ranking of ``depth`` results allows, by name.

    Without needs nothing can be found, and only what was answered about fitting is measured.
    """
    found: dict[str, float] = {}
    if needs:
        found |= _ranking_measures(needs, ranking, depth)
        found |= {SELECTED: float(selected), SELECTED_RECALL: recall(needs, ranking[:selected])}
    return found | ({KEPT: float(fits)} if answerable else {REFUSED: float(not fits)})


def recall(needs: Sequence[Need], found: Sequence[ToolKey]) -> float:
    """The share of needs that are met."""
    return sum(not need.isdisjoint(found) for need in needs) / len(needs)


def complete(needs: Sequence[Need], found: Sequence[ToolKey]) -> bool:
    """Whether every need is met."""
    return all(not need.isdisjoint(found) for need in needs)


def reciprocal_rank(needs: Sequence[Need], ranking: Sequence[ToolKey]) -> float:
    """One over the rank of the first result that meets a need; 0 when none does."""
    wanted: Need = frozenset().union(*needs)
    return next((1 / rank for rank, key in enumerate(ranking, 1) if key in wanted), 0.0)


def ndcg(needs: Sequence[Need], ranking: Sequence[ToolKey], depth: int) -> float:
    """Discounted gain over that of one need met at each rank from the first on, down to ``depth``.

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


def _ranking_measures(needs: Sequence[Need], ranking: Sequence[ToolKey], depth: int) -> dict[str, float]:
    ranking = ranking[:depth]
    found = {f"recall@{at}": recall(needs, ranking[:at]) for at in RECALL_DEPTHS if at <= depth}
    found |= {f"complete@{at}": float(complete(needs, ranking[:at])) for at in COMPLETE_DEPTHS if at <= depth}
    found["mrr"] = reciprocal_rank(needs, ranking)
    return found | {f"ndcg@{at}": ndcg(needs, ranking, at) for at in NDCG_DEPTHS if at <= depth}
