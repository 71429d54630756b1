"""Measures which lines and branches of the package run, for coverage.py to report.

Before Python 3.12, coverage.py is called for each line that any library runs, which doubles what the tests
take. Here each statement of the package is preceded by one that marks it, which takes some nanoseconds, and
nothing else is slower. ``conftest.py`` begins it before it imports the package if the environment has
`WANTED`, and forked processes go on with it. All processes add to one file, of which pytest at its end makes
the data for ``coverage report``.
"""

import ast
import atexit
import contextlib
import marshal
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

WANTED = "MEASURE_COVERAGE"
MARKS = "__passed__"
"""Name, in each module, of its list of marks: for each line one, then one for the branch past its body."""

COMPILED = ".marked-2.pyc"
"""End of the names of compiled modules with marks; another number makes those of other marks useless."""

REPOSITORY = Path(__file__).parents[2]
GATHERED = REPOSITORY / ".coverage-marks"
"""What all processes have passed: for the path of each module, a byte for each of its marks."""


def begin() -> None:
    """Mark what runs of the package from now on, if that is wanted; nothing of it may be imported yet."""
    if WANTED in os.environ:
        sys.meta_path.insert(0, Finder())
        atexit.register(save)


def forget() -> None:
    """Forget what processes before have passed."""
    GATHERED.unlink(missing_ok=True)


class Finder(MetaPathFinder):
    """Finds the modules of the package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "mcp_context_proxy":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(name, spec.loader.path)
        return spec


class Loader(SourceFileLoader):
    """Compiles a module with its marks, and keeps what it compiled beside what is compiled without."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[MARKS] = [0] * 2 * (self.get_data(self.path).count(b"\n") + 2)
        super().exec_module(module)

    def source_to_code(self, data: Any, path: Any) -> Any:  # type: ignore[override]
        tree = Marking().visit(ast.parse(data))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def get_data(self, path: str) -> bytes:
        return super().get_data(path.replace(".pyc", COMPILED))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(path.replace(".pyc", COMPILED), data, _mode=_mode)


class Marking(ast.NodeTransformer):
    """Puts a mark before each statement, and where a branch leads past the body."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):  # that of a lambda or a conditional expression is none
                setattr(node, field, [*_marked(statements)])
        match node:
            case ast.Match() if not _takes_all(node.cases[-1]):
                node.cases.append(ast.match_case(ast.MatchAs(), None, [_mark(node, past=True)]))
            case ast.If(orelse=[]) | ast.For(orelse=[]) | ast.AsyncFor(orelse=[]) | ast.While(orelse=[]):
                node.orelse = [_mark(node, past=True)]
        return node


def _marked(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for place, statement in enumerate(statements):
        match statement:
            case ast.Expr(ast.Constant(str())) if place == 0:
                yield statement  # a docstring comes first, and is not counted
            case ast.ImportFrom(module="__future__"):
                yield from (statement, _mark(statement))
            case _:
                yield from (_mark(statement), statement)


def _mark(node: ast.stmt, past: bool = False) -> ast.stmt:
    place = ast.Subscript(ast.Name(MARKS, ast.Load()), ast.Constant(2 * node.lineno + past), ast.Store())
    return ast.copy_location(ast.Assign([place], ast.Constant(1)), node)


def _takes_all(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def save() -> None:
    """Add the marks of this process to those of all, unless a test has taken the disk from it."""
    passed = {
        str(module.__file__): vars(module)[MARKS]
        for name, module in [*sys.modules.items()]
        if name.startswith("mcp_context_proxy") and MARKS in vars(module)
    }
    if not passed:
        return
    import fcntl  # not on Windows

    with contextlib.suppress(OSError), GATHERED.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known: dict[str, bytes] = marshal.loads(GATHERED.read_bytes()) if GATHERED.exists() else {}
        for path, marks in passed.items():
            former = int.from_bytes(known.get(path, b""), "big")
            known[path] = (former | int.from_bytes(bytes(marks), "big")).to_bytes(len(marks), "big")
        new = GATHERED.with_suffix(".new")
        new.write_bytes(marshal.dumps(known))
        new.replace(GATHERED)


def write_data() -> None:
    """Write what all processes have passed as data of coverage.py."""
    if not GATHERED.exists():
        return
    from coverage import CoverageData

    package = REPOSITORY / "mcp_context_proxy"
    written = CoverageData(str(REPOSITORY / ".coverage"))
    written.erase()
    gathered: dict[str, bytes] = marshal.loads(GATHERED.read_bytes())
    written.add_arcs({path: arcs(Path(path), marks) for path, marks in gathered.items()})
    written.touch_files([*map(str, package.rglob("*.py"))])
    written.write()


def arcs(path: Path, marks: bytes) -> set[tuple[int, int]]:
    """Return the lines that ran, and the branches from one to another, as coverage.py names them."""
    from coverage.parser import PythonParser

    parser = PythonParser(filename=str(path))
    parser.parse_source()
    ways = defaultdict[int, set[int]](set)
    for one, other in parser.arcs():
        ways[one].add(other)
    ran = {line for line, mark in enumerate(marks[::2]) if mark}
    taken = set[tuple[int, int]]()

    def branch(start: ast.expr | ast.pattern, body: Sequence[ast.stmt], past: bool) -> None:
        """Note which ways were taken from where a branch starts: into its body, or past it."""
        line, inside = parser.first_line(start.lineno), parser.first_line(body[0].lineno)
        if body[0].lineno in ran:
            taken.add((line, inside))
        if past:
            taken.update((line, way) for way in ways[line] - {inside})

    for node in ast.walk(ast.parse(path.read_bytes())):
        past = isinstance(node, ast.stmt) and bool(marks[2 * node.lineno + 1])
        match node:
            case ast.If() | ast.While() | ast.For() | ast.AsyncFor():
                start = node.iter if isinstance(node, ast.For | ast.AsyncFor) else node.test
                branch(start, node.body, past or bool(node.orelse and node.orelse[0].lineno in ran))
            case ast.Match():
                for case in reversed(node.cases):
                    branch(case.pattern, case.body, past)
                    past = past or case.body[0].lineno in ran
                    if past:
                        ran.add(case.pattern.lineno)
            case ast.ExceptHandler() if node.body[0].lineno in ran:
                ran.add(node.lineno)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.lineno in ran:
                ran.update(decorator.lineno for decorator in node.decorator_list)
    return taken | {(-1, parser.first_line(line)) for line in ran}
