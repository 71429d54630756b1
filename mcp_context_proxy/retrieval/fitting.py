"""Whether anything in a catalog seems to be meant by a query. Pure functions.

Two witnesses speak for the best item: how far its cosine stands out from the query's cosines with general
requests (`background`), as the scores of speakers are normalised before they are accepted (z-norm), and the
share of the query's words that an item has. Either is enough, so they are put together as a noisy or. What
they must reach grows with the number of items, because the best of many draws is high by chance. All of it
was chosen on queries put to catalogs that cannot answer them; benchmarks/retrieval.md has what it catches.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Fitting: TypeAlias = float | NDArray[np.float32] | Literal["anything"]
"""What counts as near in meaning: a cosine, what stands out from general requests (their vectors), or, for a
model of which nothing is known, anything."""

CERTAIN_DEVIATIONS = 8.0
"""Standard deviations above general requests from which on meaning alone is proof. From 6 to 10 as many
impossible queries are caught within 4 %."""

EVIDENCE_BY_SPREAD = 0.13
"""What more is needed for each standard deviation that the best of so many random draws is expected to have.
From 0.10 to 0.17 as many are caught within 4 %, in catalogs from 20 to 4,000 tools."""

EVIDENCE_SPARED = 0.02
"""By which less will do: of the queries over six public sets 98 % fit their own catalog with it."""

FEWEST_ITEMS = 20
"""A smaller catalog needs as much evidence as one of so many: of a single item any would be enough."""

STRONG_COVERAGE = 0.6
"""Share of a query's idf the best item must have for its words alone to say that something is meant."""


def evidence(
    cosine: float, vector: NDArray[np.float32], background: NDArray[np.float32], coverage: float
) -> float:
    """How much says that something is meant, 0 to 1.

    Args:
        cosine: The best of any item with the query as a whole.
        vector: Of the query as a whole.
        background: Vectors of general requests, one a row.
        coverage: The share of the highest possible BM25F that the best item has, 0 to 1.
    """
    near = np.round((background @ vector).astype(np.float64), 6)
    deviations = (cosine - float(near.mean())) / (float(near.std()) or 1.0)
    meaning = min(max(deviations / CERTAIN_DEVIATIONS, 0.0), 1.0)
    return 1 - (1 - meaning) * (1 - coverage)


def needed(items: int) -> float:
    """The evidence from which on something is meant in a catalog of so many items.

    The highest of n draws from a normal distribution is expected at about sqrt(2 ln n) standard deviations
    (the leading term of its asymptotic expansion).
    """
    return EVIDENCE_BY_SPREAD * float(np.sqrt(2 * np.log(max(items, FEWEST_ITEMS)))) - EVIDENCE_SPARED
