"""Whether anything in a catalog seems to be meant by a query. Pure functions.

The best cosine of the whole query is compared with its cosines with general requests (`background`), as the
scores of speakers are normalised before they are accepted (z-norm), and the share of the query's words that
the best item has is added. Both were chosen on queries put to catalogs that cannot answer them, and what they
catch is in benchmarks/retrieval.md.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Fitting: TypeAlias = float | NDArray[np.float32] | Literal["anything"]
"""What counts as near in meaning: a cosine, what stands out from general requests (their vectors), or, for a
model of which nothing is known, anything."""

COVERAGE_WEIGHT = 3.5
"""What all words of a query in one item are worth, in standard deviations of the background. From 2.5 to 5 as
many impossible queries are caught within 2 %."""

LEAST_EVIDENCE = 3.05
"""Below it nothing is meant. Of the queries over six public sets 97 % reach it in their own catalog; without
any one of the catalogs the same share is reached from 3.0 to 3.5."""

STRONG_COVERAGE = 0.6
"""Share of a query's idf the best item must have for its words alone to say that something is meant."""


def evidence(
    cosine: float, vector: NDArray[np.float32], background: NDArray[np.float32], coverage: float
) -> float:
    """How much says that something is meant.

    Args:
        cosine: The best of any item with the query as a whole.
        vector: Of the query as a whole.
        background: Vectors of general requests, one a row.
        coverage: The share of the highest possible BM25F that the best item has, 0 to 1.
    """
    near = np.round((background @ vector).astype(np.float64), 6)
    return (cosine - float(near.mean())) / (float(near.std()) or 1.0) + COVERAGE_WEIGHT * coverage
