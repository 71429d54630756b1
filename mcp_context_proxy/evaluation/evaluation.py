"""Puts queries to an engine, one by one as the proxy would, and sums up how good the answers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcp_context_proxy.evaluation.intervals import Estimate, estimates
from mcp_context_proxy.evaluation.metrics import measure
from mcp_context_proxy.evaluation.queries import Query, ToolKey
from mcp_context_proxy.evaluation.run import Answer
from mcp_context_proxy.items import Kind, Snapshot, Tool
from mcp_context_proxy.retrieval import Engine, Filters, Ranking, SearchOptions

TOOLS = Filters(kinds=frozenset({Kind.TOOL}))
"""What a search for tools considers; documents are searched apart."""

SCORE_DECIMALS = 6
"""As the engine rounds; what is written stays free of the tail a float32 grows in JSON."""


@dataclass(frozen=True, slots=True)
class Latency:
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
    latency_ms: Latency


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All answers, and the report on them."""

    answers: list[Answer]
    report: Report


def evaluate(
    engine: Engine,
    snapshot: Snapshot,
    queries: Sequence[Query],
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
    queries: Iterable[Query], answers: Iterable[Answer], tools: frozenset[ToolKey] | None, depth: int
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
    return frozenset((item.server, item.name) for item in items if isinstance(item, Tool))


def answer_of(ranking: Ranking) -> Answer:
    """What a run keeps of the answer to a search for tools."""
    selected = ranking.results or ranking.near_misses
    ranked = [
        (result.item.server, result.item.name, round(result.score, SCORE_DECIMALS))
        for result in (*selected, *ranking.others)
        if isinstance(result.item, Tool)
    ]
    return Answer(ranking.query, ranked, len(selected), ranking.fits)


def _answerable(query: Query, tools: frozenset[ToolKey] | None) -> bool:
    return any(tools is None or not need.isdisjoint(tools) for need in query.needs)


def _latency(seconds: Sequence[float]) -> Latency:
    p50, p95 = np.quantile(np.array(seconds) * 1e3, [0.5, 0.95])
    return Latency(float(p50), float(p95))
