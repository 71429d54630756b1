"""The seam to what use has taught: search knows tools that were used for queries like this one, not how.

``M(query, tool) = cosine(query, past query) - discount``, and a tool counts as near as it is, or as that,
whatever is more. So nothing is ever lowered. Where a tool was used for queries that have nothing in common,
what may be added is bounded: nobody can carry it to the top of everything, however often it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MOST_ADDED = 0.5
"""Of a tool's own cosine, where its support is general. One that was not among the first fifteen then comes
into the first five in 1 of 100 cases; without a bound, in nearly all."""


FITTING = 0.5
"""What a tool must count as, by use, for that alone to say that something fits: a past query was near to this
one, with a cosine of 0.6 to 0.7."""


@dataclass(frozen=True, slots=True)
class Support:
    """What speaks for a tool."""

    cosine: float
    """What the tool counts as, if its own is not more."""
    query: str | None
    """The past query that is nearest; None where queries are not kept."""
    uses: int
    general: bool = False
    """Whether the tool was used for all sorts of queries: then this one says little."""


class Learned(Protocol):
    """What use has taught. Blocking and thread-safe."""

    def supported(self, query: NDArray[np.float32]) -> Mapping[tuple[str, str], Support]:
        """What speaks for tools, by server and own name, for a query ([dimensions], norm 1)."""

    def confidence(self, query: NDArray[np.float32]) -> float | None:
        """How much is known of requests like this, 0 to 1; None where too little was learned to tell."""

    def generation(self) -> object:
        """Equal to that of another time as long as what is known is the same."""


NO_SUPPORT: Mapping[int, Support] = MappingProxyType({})
"""Where use has taught nothing about a query."""


NOTHING_NEW: Mapping[int, float] = MappingProxyType({})
"""Where no item is new, or that does not matter."""


def favoured(scores: NDArray[np.float32], novel: Mapping[int, float]) -> NDArray[np.float32]:
    """Scores by item, with what those have that are new."""
    if not novel:
        return scores
    raised = scores.copy()
    raised[list(novel)] += np.array(list(novel.values()), np.float32)
    return raised


def added(cosine: float, support: Support) -> float:
    """What use adds to the cosine of one item."""
    if isinf(cosine):  # a filter forbids it
        return 0.0
    missing = support.cosine - cosine
    return max(min(missing, MOST_ADDED * cosine) if support.general else missing, 0.0)


def lifted(cosine: NDArray[np.float32], supports: Mapping[int, Support]) -> NDArray[np.float32]:
    """Cosines by item, with what use has taught."""
    if not supports:
        return cosine
    raised = cosine.copy()
    for item, support in supports.items():
        raised[item] += np.float32(added(float(cosine[item]), support))
    return raised
