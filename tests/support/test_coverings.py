"""The choice of rows that have every value, or in which every two values meet."""

import os
import subprocess
import sys
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest

from support.coverings import ASKED_FOR, STRENGTHS, covering
from support.tables import each

TESTS = Path(__file__).parents[1]

CROSSES = [
    pytest.param([("a", "b"), (1, 2)], 4, id="two columns are a cross product already"),
    pytest.param([("a", "b", "c"), (1, 2), (True, False)], 6, id="three columns"),
    pytest.param([range(100), ("stdio", "http"), ("old", "new")], 200, id="one long column"),
    pytest.param([range(3)] * 4, 15, id="four columns of three values"),
]


def pairs(rows: list[tuple[object, ...]]) -> set[object]:
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}


@each(("columns", "most"), CROSSES)
def test_every_two_values_meet_in_few_rows(columns: list[list[object]], most: int) -> None:
    rows = list(product(*columns))

    chosen = covering(rows, 2)

    assert pairs([rows[at] for at in chosen]) == pairs(rows)
    assert len(chosen) <= most


def test_rows_that_are_not_in_the_cross_product_are_not_asked_for() -> None:
    rows = [("modern", "http"), ("modern", "stdio"), ("handshake", "sse"), ("handshake", "stdio")]

    assert covering(rows, 2) == {0, 1, 2, 3}


def test_the_same_rows_are_chosen_each_time() -> None:
    rows = list(product("abcde", "12345", "xyz"))

    assert covering(rows, 2) == covering(rows, 2)


def test_every_value_of_a_single_column_is_chosen_once() -> None:
    assert covering([("a",), ("b",), ("a",)], 2) == {0, 1}


@each(("columns", "most"), CROSSES)
def test_every_value_is_in_as_many_rows_as_the_longest_column_has(
    columns: list[list[object]], most: int
) -> None:
    del most
    rows = list(product(*columns))

    chosen = covering(rows, 1)

    assert [set(column) for column in zip(*(rows[at] for at in chosen), strict=True)] == [*map(set, columns)]
    assert len(chosen) == max(map(len, columns))


def test_values_that_must_be_repeated_take_turns() -> None:
    rows = list(product(("stdio", "http"), range(100)))

    chosen = [rows[at] for at in covering(rows, 1)]

    assert Counter(front for front, _ in chosen) == {"stdio": 50, "http": 50}


MODULE = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", "xyz")
@pytest.mark.parametrize("c", "xy")
def test_cross(a, b, c):
    pass

@pytest.mark.each_value
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", "xy")
def test_each(a, b):
    pass

@pytest.mark.each_value(cross=2)
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", "xy")
@pytest.mark.parametrize("c", "xy")
def test_never_whole(a, b, c):
    pass

@pytest.mark.each_value(cross=1)
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", "xy")
def test_never_more(a, b):
    pass

@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.either("era")) for each in ("old", "new")])
def era(request):
    pass

@pytest.mark.parametrize("row", range(4))
def test_turns(row, era):
    pass

@pytest.mark.parametrize("size", [
    1, pytest.param(9, marks=pytest.mark.full_cross), pytest.param(99, marks=pytest.mark.nightly)
])
def test_size(size):
    pass
"""


def collected(folder: Path, *options: str) -> list[str]:
    """Return the tests of a module that pytest would run."""
    (folder / "test_some.py").write_text(MODULE)
    marks = "".join(f"  {mark}\n" for mark in (*STRENGTHS, *ASKED_FOR, "either"))
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{marks}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.coverings", "--collect-only", *options]
    # Other plugins take seconds to import.
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The tests that run without an option, and those of the full cross."""
    folder = tmp_path_factory.mktemp("coverings")
    return collected(folder), collected(folder, "-m", "full_cross")


def test_the_other_combinations_run_only_if_they_are_asked_for(
    both: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    usual, others = both

    assert not set(usual) & set(others)
    crossed = [name for name in (*usual, *others) if "never" not in name and "turns" not in name]
    assert len([name for name in usual if name in crossed]) == 3 * 3 + 3 + 1
    assert len([name for name in others if name in crossed]) == 3 * 3 + 3 + 1
    assert [name for name in usual if "size" in name] == ["test_size[1]"]
    assert [name for name in others if "size" in name] == ["test_size[9]"]
    assert collected(tmp_path, "-m", "nightly") == ["test_size[99]"]


def test_rows_that_a_mark_leaves_out_of_the_cross_never_run(both: tuple[list[str], list[str]]) -> None:
    usual, others = both

    assert sum("never_more" in name for name in usual) == 3
    assert not [name for name in others if "never_more" in name]
    whole = [name for name in (*usual, *others) if "never_whole" in name]
    assert len(whole) < 3 * 2 * 2
    rows = [tuple(name.partition("[")[2].rstrip("]").split("-")) for name in whole]
    assert pairs(rows) == pairs(list(product("xy", "xy", "xyz")))


def test_values_that_hardly_matter_take_turns(both: tuple[list[str], list[str]]) -> None:
    rows = {f"test_turns[{era}-{row}]" for era in ("old", "new") for row in range(4)}
    usual, others = ({name for name in one if "turns" in name} for one in both)

    assert usual in (
        {name for name in rows if ("old" in name) == (name[-2] in turn)} for turn in ("02", "13")
    )
    assert others == rows - usual
