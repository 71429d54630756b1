"""Figures with their spread, their bar and their baseline; printed as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

PACKAGES = (
    "mcp-context-proxy",
    "mcp",
    "anyio",
    "msgspec",
    "pydantic",
    "onnxruntime",
    "tokenizers",
    "uvicorn",
)


Bench = TypeVar("Bench")
Tables: TypeAlias = dict[str, tuple[str, "Callable[[Bench, int], list[Figure]]"]]
"""By name on the command line: a title, and what measures it on a bench in so many rounds."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing: a value per round."""

    name: str
    values: Sequence[float]
    unit: str
    bar: float | None = None
    """What it has to keep; None where it is only there to compare with."""
    sense: Literal["at most", "at least"] = "at most"

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.values)

    @property
    def holds(self) -> bool | None:
        """Return whether the median keeps the bar."""
        if self.bar is None:
            return None
        return self.median <= self.bar if self.sense == "at most" else self.median >= self.bar


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def machine() -> dict[str, Any]:
    """The machine and the versions that the figures were measured on."""
    return {
        "date": date.today().isoformat(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def table(title: str, figures: Sequence[Figure]) -> str:
    """A Markdown table."""
    lines = [f"### {title}", "", "| | median | min to max | bar | |", "|---|---:|---:|---:|---|"]
    for figure in figures:
        spread = f"{_number(min(figure.values))} to {_number(max(figure.values))}"
        bar = "" if figure.bar is None else f"{'≤' if figure.sense == 'at most' else '≥'} {figure.bar:,g}"
        verdict = {None: "", True: "holds", False: "**missed**"}[figure.holds]
        value = f"{_number(figure.median)} {figure.unit}"
        lines.append(f"| {figure.name} | {value} | {spread} | {bar} | {verdict} |")
    return "\n".join(lines)


def as_json(tables: dict[str, list[Figure]]) -> str:
    """Everything, with each round's value."""
    rows = {
        title: [asdict(figure) | {"median": figure.median, "holds": figure.holds} for figure in figures]
        for title, figures in tables.items()
    }
    return json.dumps({"machine": machine(), "tables": rows}, indent=1)


def measured(
    description: str | None, tables: Tables[Bench], bench: Callable[[Path], Bench], rounds: int
) -> None:
    """Measure the tables that the command line names, each on a bench of its own, and print them."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", help="which; all by default")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.tables) - set(tables):
        parser.error(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(tables)}")
    print("\n".join(f"{name}: {value}" for name, value in machine().items()), flush=True)
    done = {}
    for name in arguments.tables or tables:
        title, measure = tables[name]
        with tempfile.TemporaryDirectory() as folder:
            done[title] = measure(bench(Path(folder)), arguments.rounds)
        print("\n" + table(title, done[title]), flush=True)
    if arguments.json:
        arguments.json.write_text(as_json(done), encoding="utf-8")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
