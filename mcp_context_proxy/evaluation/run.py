"""Puts queries to an engine, one by one as the proxy would, and sums up how good the answers are.

Two runs over the same queries: how much more the second has of each measure, query by query.

A run: what was answered to each query, in a file that any other tool can score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.evaluation.data import EvalQuery, read_lines
from mcp_context_proxy.evaluation.metrics import DEEPEST, SELECTED, Estimate, estimate, estimates, measure
from mcp_context_proxy.items import Kind, Snapshot, Tool, ToolKey
from mcp_context_proxy.retrieval import Engine, Filters, Ranking, SearchOptions


class Answer(msgspec.Struct, frozen=True):
    """The answer to one query: one line of a run."""

    query: str
    ranking: list[tuple[str, str, float]]
    """Server, name and score, best first: as deep as was asked for, and at least those selected."""
    selected: Annotated[int, Meta(ge=0)]
    """How many of the ranking the selection rule returns, whether or not anything fits."""
    fits: bool
    """Whether the answer is that something fits."""

    @property
    def keys(self) -> list[ToolKey]:
        """The ranking without scores."""
        return [(server, name) for server, name, _ in self.ranking]


def write_run(path: Path, answers: Iterable[Answer]) -> None:
    """Write one line per answer.

    Raises:
        DataFileError: the file cannot be written.
    """
    try:
        path.write_bytes(b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers))
    except OSError as e:
        raise DataFileError(path, None, f"it cannot be written ({e.strerror or e})") from None


def read_run(path: Path) -> list[Answer]:
    """The answers of a run, in its order.

    Raises:
        DataFileError: the file cannot be read, or a line is no answer.
    """
    return [answer for _, answer in read_lines(path, Answer)]


TOOLS = Filters(kinds=frozenset({Kind.TOOL}))
"""What a search for tools considers; documents are searched apart."""

SCORE_DECIMALS = 6
"""As the engine rounds; what is written stays free of the tail a float32 grows in JSON."""


@dataclass(frozen=True, slots=True)
class QueryLatency:
    """Milliseconds of searches one after another, embedding of the query included, index and model ready."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Report:
    """How good the answers are."""

    tools: int
    servers: int
    queries: int
    unmeetable: int
    """Queries with a need that no tool there is can meet; such a need counts as missed."""
    method: str
    """The one used, which is by words where there is no model."""
    note: str | None
    """Why it was by words, or what else a person should know."""
    measures: dict[str, Estimate]
    """Each over the queries that have it."""
    latency_ms: QueryLatency


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All answers, and the report on them."""

    answers: list[Answer]
    report: Report


def evaluate(
    engine: Engine,
    snapshot: Snapshot,
    queries: Sequence[EvalQuery],
    options: SearchOptions,
    depth: int,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Index a snapshot, answer all queries, measure the answers. Blocks.

    Args:
        engine: Searches.
        snapshot: What is searched; only its tools.
        queries: In any order; each is answered alone.
        options: Of every search; their depth is replaced.
        depth: Results to rank for each query.
        on_progress: Called with how many queries are answered, and of how many.
    """
    options = replace(options, depth=depth)
    engine.index(snapshot)
    last = engine.search(queries[0].text, snapshot, TOOLS, options)
    answers, seconds = [], []
    for done, query in enumerate(queries, 1):
        last = engine.search(query.text, snapshot, TOOLS, options)
        answers.append(answer_of(last))
        seconds.append(last.seconds)
        on_progress(done, len(queries))
    tools = tools_of(snapshot)
    return Evaluation(
        answers,
        Report(
            tools=len(tools),
            servers=len({server for server, _ in tools}),
            queries=len(queries),
            unmeetable=sum(any(need.isdisjoint(tools) for need in query.needs) for query in queries),
            method=last.method,
            note=last.note,
            measures=estimates(measured(queries, answers, tools, depth)),
            latency_ms=_latency(seconds),
        ),
    )


def measured(
    queries: Iterable[EvalQuery], answers: Iterable[Answer], tools: frozenset[ToolKey] | None, depth: int
) -> list[dict[str, float]]:
    """All measures, by query.

    A query is answerable if some tool can meet one of its needs (without ``tools``: if it has needs); of the
    others it counts whether they were answered with "nothing fits".
    """
    return [
        measure(query.needs, answer.keys, depth, answer.selected, answer.fits, _answerable(query, tools))
        for query, answer in zip(queries, answers, strict=True)
    ]


def tools_of(snapshot: Snapshot) -> frozenset[ToolKey]:
    """Every tool a query can need."""
    items = (item for source in snapshot.sources for item in source.items)
    return frozenset(item.key for item in items if isinstance(item, Tool))


def answer_of(ranking: Ranking) -> Answer:
    """What a run keeps of the answer to a search for tools."""
    selected = ranking.results or ranking.near_misses
    ranked = [
        (result.item.server, result.item.name, round(result.score, SCORE_DECIMALS))
        for result in (*selected, *ranking.others)
        if isinstance(result.item, Tool)
    ]
    return Answer(ranking.query, ranked, len(selected), ranking.fits)


def _answerable(query: EvalQuery, tools: frozenset[ToolKey] | None) -> bool:
    return any(tools is None or not need.isdisjoint(tools) for need in query.needs)


def _latency(seconds: Sequence[float]) -> QueryLatency:
    p50, p95 = np.quantile(np.array(seconds) * 1e3, [0.5, 0.95])
    return QueryLatency(float(p50), float(p95))


FITS = "fits"


@dataclass(frozen=True, slots=True)
class MeasureDifference:
    """One measure in two runs, over the queries that have it."""

    first: float
    second: float
    difference: Estimate
    """Second less first, paired by query."""


def compare_files(
    first: Path, second: Path, queries: Sequence[EvalQuery] | None
) -> dict[str, MeasureDifference]:
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
) -> dict[str, MeasureDifference]:
    """The differences between two measurements of the same queries in the same order."""
    names = dict.fromkeys(name for row in first for name in row)
    found = {}
    for name in names:
        pairs = [(a[name], b[name]) for a, b in zip(first, second, strict=True) if name in a]
        found[name] = MeasureDifference(
            first=fmean(a for a, _ in pairs),
            second=fmean(b for _, b in pairs),
            difference=estimate(b - a for a, b in pairs),
        )
    return found


def _rows(answers: Sequence[Answer], queries: Sequence[EvalQuery] | None) -> list[dict[str, float]]:
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
