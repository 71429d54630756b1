"""Chooses a few rows of a cross product that have every value, or in which every two values meet.

Most faults show with one value or with two together, so rows in which every two meet find nearly all of what
the whole cross product finds (Kuhn, Wallace and Gallo, "Software fault interactions", 2004), with a fraction
of the tests.

As a plugin of pytest it runs tests marked `pairwise` with these rows, and slow ones marked `each_value`
with those that have every value. Values of a parameter that are marked `either`, because they hardly ever
matter to a test, take turns: each row of its other parameters has one of them. All other rows get the mark
`full_cross`, and what has that mark is left out unless a person's own ``-m`` speaks of it. Where a whole
cross product would enter the same branches again and again, ``cross`` in the first two modes says how many
values meet even then: other rows are never run.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence
from itertools import combinations
from zlib import crc32

import pytest

STRENGTHS = {"pairwise": 2, "each_value": 1}
"""Number of values that meet, by the mark that asks for it."""

ASKED_FOR = ("full_cross", "nightly")
"""Marks of tests that are left out unless ``-m`` speaks of the mark."""


def covering(
    rows: Sequence[Sequence[Hashable]], strength: int, begun: Collection[int] = frozenset()
) -> set[int]:
    """Return the positions of rows that together have every combination of so many values that any row has.

    Those that were ``begun`` with are among them.
    Greedy: each step takes the first of the rows with the most that no row before it had. So the
    answer for the same rows is always the same, and rows need not be a whole cross product. Where values
    need not meet others, those that have to be repeated take turns.
    """
    sizes = range(1, strength + 1)
    parts = [{part for size in sizes for part in combinations(enumerate(row), size)} for row in rows]
    missing = set[object]().union(*parts).difference(*(parts[at] for at in begun))
    chosen = set(begun)
    taken = Counter[object]()
    while missing:
        found = [len(part & missing) for part in parts]
        most = max(found)
        best = found.index(most)
        if strength == 1:
            equal = [at for at, new in enumerate(found) if new == most]
            best = min(equal, key=lambda at: sum(taken[value] for value in enumerate(rows[at])))
        chosen.add(best)
        taken.update(enumerate(rows[best]))
        missing -= parts[best]
    return chosen


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests with a mark that nobody asks for, and the rows that are never run."""
    crosses = defaultdict[tuple[str, int, int | None], list[pytest.Function]](list)
    for item in items:
        for mark, strength in STRENGTHS.items():
            if isinstance(item, pytest.Function) and (marker := item.get_closest_marker(mark)):
                most = marker.kwargs.get("cross")
                crosses[item.nodeid.partition("[")[0], strength, most].append(item)
    others = set[pytest.Item]()
    _take_turns(items)
    for (_, strength, most), cross in crosses.items():
        rows = [_parameters(item) for item in cross]
        chosen = covering(rows, strength)
        crossed = set(range(len(rows))) if most is None else covering(rows, most, chosen)
        others |= {item for at, item in enumerate(cross) if at not in crossed}
        for at in crossed - chosen:
            cross[at].add_marker("full_cross")
    for mark in ASKED_FOR:
        if mark not in config.option.markexpr:
            others |= {item for item in items if item.get_closest_marker(mark)}
    if others:
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = [item for item in items if item not in others]


def _take_turns(items: list[pytest.Item]) -> None:
    """Leave one value to each row of a parameter whose values are marked `either`, by its name."""
    rows = defaultdict[str, defaultdict[tuple[int, ...], list[pytest.Function]]](lambda: defaultdict(list))
    for item in items:
        either = item.get_closest_marker("either")
        if either and isinstance(item, pytest.Function) and not {*STRENGTHS} & {*item.keywords}:
            rest = tuple(id(value) for name, value in item.callspec.params.items() if name != either.args[0])
            rows[item.nodeid.partition("[")[0]][rest].append(item)
    for name, values in rows.items():
        for turn, same in enumerate(values.values(), crc32(name.encode())):
            for item in same:
                if item is not same[turn % len(same)]:
                    item.add_marker("full_cross")


def _parameters(item: pytest.Function) -> list[Hashable]:
    """The parameters of a test; a tuple, such as a front and an era, stands for several."""
    values: list[Hashable] = []
    for value in item.callspec.params.values():
        values += value if isinstance(value, tuple) else [id(value)]  # not all can be hashed
    return values
