"""The choice of rows in which every two values meet."""

import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from support.pairwise import pairwise

ROOT = Path(__file__).parents[2]

CROSSES = [
    pytest.param([("a", "b"), (1, 2)], 4, id="two columns are a cross product already"),
    pytest.param([("a", "b", "c"), (1, 2), (True, False)], 6, id="three columns"),
    pytest.param([range(100), ("stdio", "http"), ("old", "new")], 200, id="one long column"),
    pytest.param([range(3)] * 4, 15, id="four columns of three values"),
]


def pairs(rows: list[tuple[object, ...]]) -> set[object]:
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}


@pytest.mark.parametrize(("columns", "most"), CROSSES)
def test_every_two_values_meet_in_few_rows(columns: list[list[object]], most: int) -> None:
    rows = list(product(*columns))

    chosen = pairwise(rows)

    assert pairs([rows[at] for at in chosen]) == pairs(rows)
    assert len(chosen) <= most


def test_rows_that_are_not_in_the_cross_product_are_not_asked_for() -> None:
    rows = [("modern", "http"), ("modern", "stdio"), ("handshake", "sse"), ("handshake", "stdio")]

    assert pairwise(rows) == {0, 1, 2, 3}


def test_the_same_rows_are_chosen_each_time() -> None:
    rows = list(product("abcde", "12345", "xyz"))

    assert pairwise(rows) == pairwise(rows)


def test_every_value_of_a_single_column_is_chosen_once() -> None:
    assert pairwise([("a",), ("b",), ("a",)]) == {0, 1}


def collected(*options: str) -> list[str]:
    """The tests of a module marked `pairwise` that pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", *options]
    file = "tests/every_front/test_invalid_requests.py"
    done = subprocess.run([*command, file], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_the_other_combinations_run_only_if_they_are_asked_for() -> None:
    usual, others = collected("-m", "not slow"), collected("-m", "full_cross")

    assert len(usual) == len(set(usual) - set(others)) == 3 * 18 + 4 * 6
    assert len(others) == 3 * 18
