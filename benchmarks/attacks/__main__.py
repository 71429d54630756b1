"""Attacks on two installed versions of the proxy, one after the other, and their outcomes; run by hand.

    python benchmarks/attacks OTHER_PYTHON [--only WORD ...]

OTHER_PYTHON is the interpreter of an environment that has the other version. Each attack starts a proxy as
people do, in front of malicious servers (those of `tests/support`), on this machine alone, and looks at what
comes of it from outside: at its messages, files, memory and exit. docs/attacks.md has the outcomes. Each
module beside this one has the attacks of a section of that page.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

import anyio
import anyio.to_thread

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from attacked import ATTACKS, PATIENCE, Attack, Attacked

for _chapter in (
    "names",
    "definitions",
    "pulls",
    "work",
    "questions",
    "words",
    "programs",
    "logins",
    "http_front",
):
    importlib.import_module(_chapter)


async def outcome(function: Attack, python: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        at = Attacked(python, Path(folder))
        try:
            with anyio.move_on_after(PATIENCE) as scope:
                return await function(at)
            return f"no outcome in {PATIENCE} s" if scope.cancelled_caught else ""
        except Exception as problem:
            return f"the attack failed: {_innermost(problem)!r:.200}"
        finally:
            at.workshop.close()


def _innermost(problem: BaseException) -> BaseException:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other")
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    print("| attack | other | this |\n|---|---|---|")
    for sentence, function in ATTACKS.items():
        if arguments.only and function.__name__ not in arguments.only:
            continue
        found = [await outcome(function, python) for python in (arguments.other, sys.executable)]
        cells = [" ".join(cell.replace("|", "\\|").split()) for cell in (sentence, *found)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    anyio.run(main)
