"""Chooses a few rows of a cross product in which every two values of different columns still meet.

Most faults show with one value or with two together, so these rows find nearly all of what the whole cross
product finds (Kuhn, Wallace and Gallo, "Software fault interactions", 2004), with a fraction of the tests.

As a plugin of pytest it runs tests marked `pairwise` with these rows. All others get the mark `full_cross`,
and what has that mark is left out unless a person's own ``-m`` speaks of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `full_cross`, if nobody asks for it."""
    crosses = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairwise"):
            crosses[item.nodeid.partition("[")[0]].append(item)
    for cross in crosses.values():
        chosen = pairwise([_parameters(item) for item in cross])
        for at, item in enumerate(cross):
            if at not in chosen:
                item.add_marker("full_cross")
    others = {item for item in items if item.get_closest_marker("full_cross")}
    if others and "full_cross" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = [item for item in items if item not in others]


def _parameters(item: pytest.Function) -> list[Hashable]:
    """The parameters of a test; a tuple, such as a front and an era, stands for several."""
    values: list[Hashable] = []
    for value in item.callspec.params.values():
        values += value if isinstance(value, tuple) else [id(value)]  # not all can be hashed
    return values
