"""The promises of SECURITY.md and README.md are those of `promises`, and each has tests."""

import ast
import re
from functools import cache
from pathlib import Path

from promises import README, README_REMARKS, README_SECTIONS, SECURITY
from support.tables import each

ROOT = Path(__file__).parents[2]
PAGE_OF_SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PAGE_OF_README = "\n".join(
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/contexts.md", "docs/api.md")
)
"""With the pages that have sections of it."""
_NUMBERED = re.compile(r"^\d+\. (.*)$", re.MULTILINE)
_NO_PROSE = re.compile(r"^```.*?^```$|^\|.*?$|^(?:\d+\.|-) ", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@cache
def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def prose(markdown: str) -> str:
    """Sentences on one line, without code blocks, tables, list signs, emphasis and targets of links."""
    return " ".join(_LINK.sub(r"\1", _NO_PROSE.sub("", markdown)).replace("**", "").split())


def section(heading: str) -> str:
    _, found, rest = PAGE_OF_README.partition(f"# {heading}\n")
    assert found, heading
    return prose(re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0])


def test_security_md_makes_these_promises_and_no_others() -> None:
    promises = PAGE_OF_SECURITY.split("## Promises")[1].split("\n## ")[0]

    assert _NUMBERED.findall(promises) == [promise.sentence for promise in SECURITY]


def test_the_promises_of_the_readme_are_in_the_readme_once() -> None:
    text = prose(PAGE_OF_README)

    assert [promise.sentence for promise in README if text.count(promise.sentence) != 1] == []


@each("heading", README_SECTIONS)
def test_every_sentence_of_a_section_is_a_promise_or_a_remark(heading: str) -> None:
    left = section(heading)
    for passage in (*(promise.sentence for promise in README), *README_REMARKS):
        left = left.replace(passage, "")

    assert left.split() == []


def test_every_remark_is_in_the_readme() -> None:
    text = prose(PAGE_OF_README)

    assert [remark for remark in README_REMARKS if remark not in text] == []


def test_each_promise_is_proved_by_tests_that_exist() -> None:
    assert [promise.sentence for promise in SECURITY + README if not promise.proofs] == []
    proofs = {proof for promise in SECURITY + README for proof in promise.proofs}
    assert [proof for proof in proofs if not exists(proof)] == []


def exists(proof: str) -> bool:
    file, _, name = proof.partition("::")
    return name in names_in(ROOT / "tests" / file)


def test_each_attack_of_the_list_has_a_test_that_exists() -> None:
    rows = re.findall(
        r"^\| [A-Z].* \|$", (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    proofs = [re.search(r"`(\S+\.py)::(\w+)` \|$", row) for row in rows]

    assert len(rows) > 20
    for row, proof in zip(rows, proofs, strict=True):
        assert proof is not None, row
        assert proof[2] in names_in(ROOT / "tests" / proof[1]), row


def test_every_file_of_fault_tests_proves_a_promise_of_security_md() -> None:
    proofs = {proof.partition("::")[0] for promise in SECURITY for proof in promise.proofs}
    files = {f"faults/{file.name}" for file in (ROOT / "tests" / "faults").glob("test_*.py")}

    assert files <= proofs


def test_the_programs_that_measured_the_figures_exist() -> None:
    programs = re.findall(r"`((?:benchmarks|tests)/\S+\.py)`", PAGE_OF_SECURITY)
    assert programs
    for program in programs:
        assert (ROOT / program).exists(), program
