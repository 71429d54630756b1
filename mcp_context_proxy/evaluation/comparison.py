"""Two runs over the same queries: how much more the second has of each measure, query by query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.evaluation.evaluation import measured
from mcp_context_proxy.evaluation.intervals import Estimate, estimate
from mcp_context_proxy.evaluation.metrics import DEEPEST, SELECTED
from mcp_context_proxy.evaluation.queries import Query
from mcp_context_proxy.evaluation.run import Answer, read_run

FITS = "fits"


@dataclass(frozen=True, slots=True)
class Difference:
    """One measure in two runs, over the queries that have it."""

    first: float
    second: float
    difference: Estimate
    """Second less first, paired by query."""


def compare_files(first: Path, second: Path, queries: Sequence[Query] | None) -> dict[str, Difference]:
    """The differences between two runs; of how good they are only when the queries say what is needed.

    A result that a run does not have counts as not found, so runs that end before rank 10 lose by it.

    Raises:
        DataFileError: a file cannot be used, or the two do not answer the same queries.
    """
    texts = [query.text for query in queries] if queries else [answer.query for answer in read_run(first)]
    rows = [_rows(_in_order(path, texts), queries) for path in (first, second)]
    return differences(*rows)


def differences(
    first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]
) -> dict[str, Difference]:
    """The differences between two measurements of the same queries in the same order."""
    names = dict.fromkeys(name for row in first for name in row)
    found = {}
    for name in names:
        pairs = [(a[name], b[name]) for a, b in zip(first, second, strict=True) if name in a]
        found[name] = Difference(
            first=fmean(a for a, _ in pairs),
            second=fmean(b for _, b in pairs),
            difference=estimate(b - a for a, b in pairs),
        )
    return found


def _rows(answers: Sequence[Answer], queries: Sequence[Query] | None) -> list[dict[str, float]]:
    if queries is None:
        return [{SELECTED: answer.selected, FITS: float(answer.fits)} for answer in answers]
    return measured(queries, answers, None, DEEPEST)


def _in_order(path: Path, texts: Sequence[str]) -> list[Answer]:
    """The answers of a run in the order of the queries; of queries with one text, in their own order."""
    run = read_run(path)
    answers = dict(zip(_numbers([answer.query for answer in run]), run, strict=True))
    wanted = _numbers(texts)
    if missing := next((text for text, number in wanted if (text, number) not in answers), None):
        raise DataFileError(path, None, f"it does not answer the query {missing!r}")
    if len(answers) > len(wanted):
        raise DataFileError(path, None, f"it answers {len(answers)} queries where {len(wanted)} are compared")
    return [answers[key] for key in wanted]


def _numbers(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Each text with how often it came before."""
    seen: Counter[str] = Counter()
    numbered = []
    for text in texts:
        numbered.append((text, seen[text]))
        seen[text] += 1
    return numbered
