"""The quick measuring of coverage finds what coverage.py finds."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support import measuring

PROGRAM = '''"""A module with each kind of branch."""

from __future__ import annotations

import functools
import os


class Shelf:
    """A class with a field without a value."""

    books: int
    """A text that documents a field."""
    rows: int = 3
    """Another."""

    @property
    def full(self) -> bool:
        return self.rows > 2


@functools.cache
def price(
    amount: int,
    discount: int,
) -> int:
    if amount > 10:
        return 1
    elif (
        amount > 5
        and discount
    ):
        return 2
    else:
        total = amount
    if discount:
        total -= discount
    return total


def loops(count: int) -> int:
    for number in range(count):
        if number == 5:
            break
    else:
        return 0
    while True:
        count += 1
        if count > 10:
            break
    for never in ():
        print(never)
    while count:
        count -= 1
        if count > 3:
            continue
    return count


def matches(value: object) -> object:
    match value:
        case 1:
            return "one"
        case [first, *_] if first:
            return "list"
        case str():
            value = 2
        case {"x": 1}:
            value = 3
    match value:
        case 2:
            value = 4
        case _:
            value = 5
    return value


def tries(value: object) -> object:
    try:
        with open(os.devnull) as file:
            if value:
                raise ValueError(file)
    except ValueError:
        return 2
    finally:
        value = 3
    return value


def never(value: object) -> object:
    return [
        part
        for part in range(2)
        if part
    ]


'''


@pytest.mark.parametrize(
    "calls",
    [
        "price(20, 0); loops(3); matches(1); tries(1)",
        "price(7, 1); price(1, 1); loops(7); matches([1]); matches(''); tries(0)",
        "price(7, 0); matches({'x': 1}); matches(7); Shelf().full",
    ],
)
def test_lines_and_branches_are_those_that_coverage_finds(tmp_path: Path, calls: str) -> None:
    coverage = pytest.importorskip("coverage")
    path = tmp_path / "program.py"
    path.write_text(f"{PROGRAM}{calls}\n", encoding="utf-8")

    def missing(data: Path) -> tuple[list[int], list[list[int]]]:
        measured = coverage.Coverage(data_file=data, config_file=False)
        measured.load()
        measured.json_report(outfile=str(data.with_suffix(".json")))
        (file,) = json.loads(data.with_suffix(".json").read_text(encoding="utf-8"))["files"].values()
        return file["missing_lines"], file["missing_branches"]

    command = [sys.executable, "-m", "coverage", "run", "--branch", f"--data-file={tmp_path / 'traced'}"]
    subprocess.run([*command, path], check=True, cwd=tmp_path)

    module = ModuleType("program")
    measuring.Loader("program", str(path)).exec_module(module)
    marked = coverage.CoverageData(tmp_path / "marked")
    marked.add_arcs({str(path): measuring.arcs(path, bytes(vars(module)[measuring.MARKS]))})
    marked.write()

    assert missing(tmp_path / "marked") == missing(tmp_path / "traced")
