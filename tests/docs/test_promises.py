"""The promises of SECURITY.md, those of `promises.py` and the tests that prove them are the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from promises import PROMISES, Promise

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
_PROMISE = re.compile(r"^\d+\. (.*)$", re.MULTILINE)


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_the_page_makes_these_promises_and_no_others() -> None:
    section = TEXT.split("## Promises")[1].split("\n## ")[0]

    assert _PROMISE.findall(section) == [promise.sentence for promise in PROMISES]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.sentence[:40])
def test_each_promise_has_tests_that_are_there(promise: Promise) -> None:
    assert promise.proofs
    for proof in promise.proofs:
        file, _, name = proof.partition("::")
        assert name in names_in(ROOT / "tests" / file), proof


@pytest.mark.parametrize("folder", ["faults"])
def test_each_test_of_faults_proves_a_promise_or_stands_for_a_mode(folder: str) -> None:
    proofs = {proof.partition("::")[0] for promise in PROMISES for proof in promise.proofs}
    files = {f"{folder}/{file.name}" for file in (ROOT / "tests" / folder).glob("test_*.py")}

    assert files <= proofs


def test_every_figure_is_measured() -> None:
    for program in re.findall(r"`((?:benchmarks|tests)/\S+\.py)`", TEXT):
        assert (ROOT / program).exists(), program
