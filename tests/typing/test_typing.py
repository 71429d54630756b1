"""The library's public names have types that a program outside of this repository can rely on."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_context_proxy import library

pytestmark = [pytest.mark.slow]

HERE = Path(__file__).parent
EXAMPLES = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECKERS = {
    "mypy": ["mypy", "--strict", "--no-error-summary", "--no-incremental"],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}


@pytest.fixture(scope="module", params=list(CHECKERS))
def complaints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, set[int]]:
    """The lines with errors of each program, in a folder that has nothing of this repository."""
    folder = tmp_path_factory.mktemp("consumers")
    (folder / "pyproject.toml").write_text('[tool.pyright]\ntypeCheckingMode = "strict"\n')
    for program in ("consumer.py", "mistakes.py"):
        shutil.copy(HERE / program, folder)
    text = (HERE.parents[1] / "docs/library.md").read_text(encoding="utf-8")
    # The client libraries of models are not installed here.
    own = [example for example in EXAMPLES.findall(text) if "import OpenAI" not in example]
    own = [example for example in own if "import Anthropic" not in example]
    for number, example in enumerate(own):
        (folder / f"example_{number}.py").write_text(example, encoding="utf-8")
    files = sorted(file.name for file in folder.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[request.param], *files],
        cwd=folder,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 1, "there are mistakes, and nothing but mistakes"
    found: dict[str, set[int]] = {file: set() for file in files}
    for file, line in re.findall(r"(\w+\.py):(\d+):.*\berror\b", done.stdout):
        found[file].add(int(line))
    return found


def test_a_program_that_uses_every_public_name_is_correct(complaints: dict[str, set[int]]) -> None:
    assert complaints["consumer.py"] == set()


def test_the_examples_of_the_documentation_are_correct(complaints: dict[str, set[int]]) -> None:
    examples = {file: lines for file, lines in complaints.items() if file.startswith("example_")}

    assert examples == {f"example_{number}.py": set() for number in range(3)}


def test_every_mistake_in_a_program_is_found(complaints: dict[str, set[int]]) -> None:
    lines = (HERE / "mistakes.py").read_text(encoding="utf-8").splitlines()

    assert complaints["mistakes.py"] == {
        number for number, line in enumerate(lines, 1) if line.endswith("# mistake")
    }


def test_the_program_uses_every_public_name() -> None:
    tree = ast.parse((HERE / "consumer.py").read_text(encoding="utf-8"))

    assert set(library.__all__) <= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
