"""The lint step for structure finds each kind of problem."""

from __future__ import annotations

from pathlib import Path

import pytest
import structure


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""A package."""\n')
    return folder


def test_a_package_as_agreed_has_no_problems(package: Path) -> None:
    (package / "words.py").write_text('"""Words of a text.\n\nWhat follows may be anything."""\n')
    (package / "text.py").write_text("from package import words\nfrom package.words import x\n")

    assert structure.problems(package) == []


@pytest.mark.parametrize(
    "code",
    [
        '"""What there is."""',
        'class Reader:\n    """Whoever reads."""',
        'def known() -> bool:\n    """Whether it is known."""',
        'class Reader:\n    async def known(self) -> None:\n        """If it is known, nothing."""',
    ],
    ids=["module", "class", "function", "method"],
)
def test_a_docstring_that_begins_with_a_fragment_is_a_problem(package: Path, code: str) -> None:
    (package / "words.py").write_text(code + "\n")

    (problem,) = structure.problems(package)

    assert "words.py:" in problem
    assert "noun or a verb" in problem


def test_a_module_that_is_too_long_is_a_problem(package: Path) -> None:
    (package / "words.py").write_text("x = 1\n" * (structure.MOST_LINES + 1))

    assert structure.problems(package) == ["package/words.py: 601 lines, more than 600"]


def test_a_package_of_too_many_modules_is_a_problem(package: Path) -> None:
    for number in range(structure.MOST_MODULES + 1):
        (package / f"words_{number}.py").touch()

    (problem,) = structure.problems(package)

    assert "modules, more than" in problem


@pytest.mark.parametrize(
    "back",
    ["from package.words import x", "if TYPE_CHECKING:\n    from package import words"],
    ids=["at run time", "for type checks"],
)
def test_modules_that_import_each_other_are_a_problem(package: Path, back: str) -> None:
    (package / "words.py").write_text("import package.text\n")
    (package / "text.py").write_text(back + "\n")

    (problem,) = structure.problems(package)

    assert "imports in a circle" in problem


def test_an_import_inside_a_function_makes_no_circle(package: Path) -> None:
    (package / "words.py").write_text("import package.text\n")
    (package / "text.py").write_text("def read():\n    import package.words\n")

    assert structure.problems(package) == []
