"""Checks how the package is cut and how its docstrings begin: ``python .ci/structure.py [FOLDER]``.

* A docstring begins with a noun or a verb: one that begins with *What*, *Whether* or *Those* names nothing.
* A package has few modules, and a module fits into a reader's head.
* One name, one thing: no two packages have a public class of the same name.
* The arguments of a constructor with five or more are named.
* No modules import each other in a circle, not even for type checks. Imports in functions do not count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mcp_context_proxy"

MOST_MODULES = 22
"""Modules in one package, without its ``__init__``."""
MOST_LINES = 600
MOST_POSITIONAL = 4
"""Arguments of a constructor that may be given without their names."""

FRAGMENT = re.compile(
    r"(What|Whether|Of|Those|They|Who|Whoever|Whom|Whose|Which|Where|How|Both|If|When)\b", re.IGNORECASE
)

LIBRARY = "library"
"""Module for programs; its classes have the names of those that they stand in front of."""
EXAMPLES = "examples"
"""Programs of their own."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    """Print every problem, and exit with 1 if there is one."""
    found = problems(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
    if found:
        raise SystemExit("\n".join([*found, f"{len(found)} problems of structure"]))
    sys.stdout.write("  Docstrings, sizes and imports are as agreed\n")


def problems(root: Path) -> list[str]:
    """Return the problems of the package in a folder, each with its place."""
    files = sorted(root.rglob("*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    found = []
    for file in files:
        place = file.relative_to(root.parent)
        found += [f"{place}:{line}: {why}" for line, why in fragments(trees[file])]
        found += [f"{place}:{line}: {why}" for line, why in unnamed_arguments(trees[file])]
        if (lines := len(texts[file].splitlines())) > MOST_LINES:
            found.append(f"{place}: {lines} lines, more than {MOST_LINES}")
    for folder in sorted({file.parent for file in files}):
        if (modules := len([*folder.glob("*.py")]) - 1) > MOST_MODULES:
            place = folder.relative_to(root.parent)
            found.append(f"{place}: {modules} modules, more than {MOST_MODULES}")
    found += same_names(root, trees)
    try:
        TopologicalSorter(imports(root, trees)).prepare()
    except CycleError as error:
        found.append(f"{root.name}: imports in a circle: {' -> '.join(error.args[1])}")
    return found


def fragments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and first words of the docstrings that begin with no noun and no verb."""
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)) and FRAGMENT.match(text):
            words = " ".join(text.split()[:6])
            yield getattr(node, "lineno", 1), f'"{words} ..." should begin with a noun or a verb'


def unnamed_arguments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line of each constructor with many arguments that are not named."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in owner.body:
            if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
                continue
            if (count := len(node.args.args) - 1) > MOST_POSITIONAL:
                yield node.lineno, f"{owner.name} takes {count} arguments without names"


def same_names(root: Path, trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Public classes that have the name of a class in another package."""
    packages: dict[str, set[str]] = {}
    for file, tree in trees.items():
        package = file.relative_to(root).with_suffix("").parts[0]
        if package not in {LIBRARY, EXAMPLES}:
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    packages.setdefault(node.name, set()).add(package)
    for name, found in packages.items():
        if len(found) > 1:
            yield f"{root.name}: {' and '.join(sorted(found))} each have a class {name}"


def imports(root: Path, trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports before anything of it is called."""
    names = {file: ".".join([root.name, *file.relative_to(root).with_suffix("").parts]) for file in trees}
    names = {file: name.removesuffix(".__init__") for file, name in names.items()}
    known = set(names.values())
    return {names[file]: {*_imported(tree.body, known)} - {names[file]} for file, tree in trees.items()}


def _imported(body: list[ast.stmt], known: set[str]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from {alias.name for alias in statement.names} & known
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            for alias in statement.names:
                name = f"{statement.module}.{alias.name}"
                yield from {name if name in known else statement.module} & known
        elif isinstance(statement, ast.If | ast.Try):
            yield from _imported([*statement.body, *statement.orelse], known)


if __name__ == "__main__":
    main()
