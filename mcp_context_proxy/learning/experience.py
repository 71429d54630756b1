"""How much is known of requests like one: near in meaning, and often served. Pure.

Nothing is said before enough was learned in all: that a new installation knows little tells nothing of a
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.learning.pairs import Pair

ENOUGH: Final = 50
"""Learned queries, before which nothing is said: a few weeks of one person's use."""

NEAREST: Final = 3
"""Learned queries that are looked at: one may be near by chance."""


def confidence(pairs: Sequence[Pair], cosines: NDArray[np.float32]) -> float | None:
    """From 0, nothing like it was asked before, to 1; None where too little was learned to tell.

    The mean cosine of the nearest learned queries, times ``n / (n + 1)`` for the mean number ``n`` of uses.

    Args:
        pairs: All there are.
        cosines: Of their queries with the one that is asked about.
    """
    if len(pairs) < ENOUGH or len({pair.key for pair in pairs}) < ENOUGH:
        return None
    nearest: dict[bytes, tuple[float, int]] = {}
    for at in np.argsort(-cosines, kind="stable"):
        if len(nearest) == NEAREST:
            break
        pair = pairs[at]
        cosine, uses = nearest.get(pair.key, (float(cosines[at]), 0))
        nearest[pair.key] = cosine, uses + pair.uses
    likeness = sum(max(cosine, 0.0) for cosine, _ in nearest.values()) / len(nearest)
    used = sum(uses for _, uses in nearest.values()) / len(nearest)
    return likeness * used / (used + 1)
