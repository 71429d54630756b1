"""Whether the queries a tool was used for have something in common. Pure.

A tool that is used for everything, or is said to be, tells nothing about one more query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mcp_context_proxy.learning.pairs import ToolKey

COHERENT: Final = 0.2
"""Mean cosine of a tool's queries with each other. On public logs 90 of 100 tools have more; queries for
all sorts of tools together have 0.08 to 0.17."""


def general_tools(tools: Sequence[ToolKey], vectors: NDArray[np.float32]) -> frozenset[ToolKey]:
    """Of tools, one for each row of ``vectors``, those whose rows have too little in common."""
    known = {tool: at for at, tool in enumerate(dict.fromkeys(tools))}
    if not known:
        return frozenset()
    which = np.array([known[tool] for tool in tools])
    order = np.argsort(which, kind="stable")
    counts = np.bincount(which)
    sums = np.add.reduceat(vectors[order].astype(np.float64), np.cumsum(counts) - counts)
    # Of unit vectors, the square of the sum has each cosine twice, and each vector with itself once.
    several = counts > 1
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = np.where(several, ((sums**2).sum(axis=1) - counts) / (counts * (counts - 1)), 1.0)
    return frozenset(tool for tool, at in known.items() if alike[at] < COHERENT)
