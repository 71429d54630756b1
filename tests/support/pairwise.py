"""Chooses a few rows of a cross product in which every two values of different columns still meet.

Most faults show with one value or with two together, so these rows find nearly all of what the whole cross
product finds (Kuhn, Wallace and Gallo, "Software fault interactions", 2004), with a fraction of the tests.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations


def pairwise(rows: Sequence[Sequence[Hashable]]) -> set[int]:
    """Return the positions of rows that together have every value and pair of values that any row has.

    Greedy: each step takes the first of the rows with the most that no row before it had. So the
    answer for the same rows is always the same, and rows need not be a whole cross product.
    """
    parts = [{*combinations(enumerate(row), 1), *combinations(enumerate(row), 2)} for row in rows]
    missing = set[object]().union(*parts)
    chosen = set()
    while missing:
        best = max(range(len(rows)), key=lambda at: len(parts[at] & missing))
        chosen.add(best)
        missing -= parts[best]
    return chosen
