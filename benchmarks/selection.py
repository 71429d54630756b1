"""Selection and cost of each preset; worth of query chunking, expansion and history, on public sets.

    python benchmarks/selection.py FOLDER [--sets NAME ...] [--most N] [--store FILE] [--output FILE]

FOLDER is the one that benchmarks/retrieval.py reads. Tokens are estimates of what the definitions of the
tools selected cost a model.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import structs
from retrieval import PublicSet, Remembering, folders, read_set, table

from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.config.settings import PRESETS
from mcp_context_proxy.context.search import tool_search
from mcp_context_proxy.embedding.embeddings import (
    CachedEmbedder,
    Costs,
    LazyModel,
    QueryEmbedder,
    TokenCounter,
)
from mcp_context_proxy.evaluation import EvalQuery, complete, recall
from mcp_context_proxy.items import Kind, Tool, ToolKey
from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander, ExpansionOptions
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store

TOOLS = Filters(kinds=frozenset({Kind.TOOL}))
NORMAL = tool_search(structs.replace(PRESETS["normal"], by_fit=False))
"""Five tools, so that comparisons are of the same number."""

EXPANSIONS = tuple(
    ExpansionOptions(depth, threshold, 3) for depth, threshold in ((1, 0.75), (1, 0.65), (1, 0.55), (2, 0.75))
)
HISTORIES = (0, 1, 2, 3)

Select = Callable[[EvalQuery], Sequence[Tool]]


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over queries."""

    recall: float
    complete: float
    tools: float
    tokens: float

    def cells(self) -> list[str]:
        """For a row of a table."""
        return [f"{self.recall:.3f}", f"{self.complete:.3f}", f"{self.tools:.1f}", f"{self.tokens:,.0f}"]


HEAD = ["recall", "complete", "tools", "tokens"]


class Subject:
    """One set, indexed."""

    def __init__(self, of: PublicSet, catalog: CachedEmbedder, queries: Remembering, costs: Costs) -> None:
        print(of.name, file=sys.stderr)
        self.of, self.costs = of, costs
        self.engine = Engine(catalog, queries, calibration=packaged_background())
        self.engine.index(of.snapshot)
        self.expander = Expander(self.engine.index_of, queries)

    def search(self, query: str, options: SearchOptions = NORMAL, history: Sequence[str] = ()) -> list[Tool]:
        """The tools selected."""
        found = self.engine.search(query, self.of.snapshot, TOOLS, options, history=history)
        results = found.results or found.near_misses
        return [result.item for result in results if isinstance(result.item, Tool)]

    def expanded(self, query: str, options: ExpansionOptions) -> list[Tool]:
        """The tools selected, and those near to them."""
        found = self.search(query)
        more = self.expander.expand(found, query, self.of.snapshot, options, lambda _item: True)
        return [*found, *(one.item for one in more if isinstance(one.item, Tool))]

    def quality(self, select: Select, queries: Sequence[EvalQuery] | None = None) -> Quality:
        """Measures of the selection for the queries that need something."""
        rows = [self._row(query, select(query)) for query in queries or self.of.queries if query.needs]
        return Quality(*map(float, np.mean(np.array(rows, np.float64), axis=0)))

    def quality_by_text(
        self, select: Callable[[str], Sequence[Tool]], queries: Sequence[EvalQuery] | None = None
    ) -> Quality:
        """Measures of a selection that needs nothing of a query but its text."""
        return self.quality(lambda query: select(query.text), queries)

    def _row(self, query: EvalQuery, tools: Iterable[Tool]) -> tuple[float, float, float, float]:
        tools = list(tools)
        keys: list[ToolKey] = [(tool.server, tool.name) for tool in tools]
        tokens = sum(map(self.costs.of, tools))
        return recall(query.needs, keys), float(complete(query.needs, keys)), len(tools), tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", help="instead of all that benchmarks/retrieval.py reads")
    parser.add_argument("--most", type=int, help="queries of a set, at equal distances; all by default")
    parser.add_argument("--store", default="memory", help="keeps vectors between runs; not a proxy's store")
    parser.add_argument("--output", type=Path, help="a file instead of the standard output")
    arguments = parser.parse_args()
    model, costs = LazyModel(), Costs(TokenCounter(), tool_definition)
    sets = [read_set(path) for path in folders(arguments.folder, arguments.sets)]
    if arguments.most is not None:
        sets = [replace(one, queries=one.queries[:: -(-len(one.queries) // arguments.most)]) for one in sets]
    with open_store(arguments.store) as store:
        catalog, queries = CachedEmbedder(model, store.vectors), Remembering(QueryEmbedder(model))
        subjects = [Subject(one, catalog, queries, costs) for one in sets]
        text = "\n".join(page(subjects, arguments.most))
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


def page(subjects: Sequence[Subject], most: int | None) -> list[str]:
    return [
        "# Selection on public sets",
        "",
        "Written by `python benchmarks/selection.py FOLDER --output benchmarks/selection.md`"
        + ("." if most is None else f" with at most {most} queries of a set (`--most {most}`)."),
        "**recall**: the share of a query's needs that the selected tools meet. **complete**: the share of",
        "queries whose needs are all met. **tokens**: the estimated cost of the selected definitions for a",
        "model; in the first row of a set, the cost of all its tools.",
        "The formula was chosen while looking at these sets.",
        "",
        *presets(subjects),
        *chunking(subjects),
        *expansion(subjects),
        *history(subjects),
    ]


def presets(subjects: Sequence[Subject]) -> list[str]:
    rows, found = [], {name: list[Quality]() for name in PRESETS}
    for subject in subjects:
        tools = [item for source in subject.of.snapshot.sources for item in source.items]
        tokens = sum(map(subject.costs.of, tools))
        rows.append([subject.of.name, "everything", "", "", f"{len(tools)}", f"{tokens:,}"])
        for name, numbers in PRESETS.items():
            options = tool_search(numbers)
            quality = subject.quality_by_text(partial(subject.search, options=options))
            found[name].append(quality)
            rows.append(["", name, *quality.cells()])
    rows += [["**macro**", name, *mean(qualities).cells()] for name, qualities in found.items()]
    return ["## Presets", "", *table(["set", "preset", *HEAD], rows)]


def chunking(subjects: Sequence[Subject]) -> list[str]:
    """Queries that have several needs and several sentences: with sentences, and as one text."""
    rows = []
    for subject in subjects:
        queries = [query for query in subject.of.queries if len(query.needs) > 1]
        several = [query for query in queries if sentences(query.text) > 1]
        if not several:
            continue
        undivided = [structs.replace(query, text=as_one_text(query.text)) for query in several]
        whole = subject.quality_by_text(subject.search, undivided)
        parts = subject.quality_by_text(subject.search, several)
        rows.append([f"{subject.of.name} ({len(several)})", "as one text", *whole.cells()])
        rows.append(["", "by sentence", *parts.cells()])
    head = ["set (queries)", "query", *HEAD]
    return [
        "## Query chunking: queries with several sentences and needs, five tools",
        "",
        *table(head, rows),
    ]


def expansion(subjects: Sequence[Subject]) -> list[str]:
    """Finds of expansion, beside as many more tools of the ranking itself."""
    rows = []
    for subject in subjects:
        plain = subject.quality_by_text(subject.search)
        rows.append([subject.of.name, "none", *plain.cells()])
        for options in EXPANSIONS:
            quality = subject.quality_by_text(partial(subject.expanded, options=options))
            name = f"depth {options.depth}, threshold {options.threshold}"
            rows.append(["", name, *quality.cells()])
        deeper = SearchOptions(top_k=40, top_n=NORMAL.top_n + 3, include_score=NORMAL.include_score)
        more = subject.quality_by_text(partial(subject.search, options=deeper))
        rows.append(["", "none, top_n 8", *more.cells()])
    return ["## Context expansion, five tools", "", *table(["set", "expansion", *HEAD], rows)]


def history(subjects: Sequence[Subject]) -> list[str]:
    """Steps of tasks, each with the steps before it: the one set whose queries follow one another."""
    subject = next((one for one in subjects if one.of.name == "livemcp_steps"), None)
    if subject is None:
        return []
    texts = [query.text for query in subject.of.queries]
    place = {id(query): at for at, query in enumerate(subject.of.queries)}

    def select(query: EvalQuery, steps: int) -> list[Tool]:
        at = place[id(query)]
        return subject.search(query.text, NORMAL, texts[max(0, at - steps) : at][::-1])

    rows = [
        [subject.of.name, f"{steps}", *subject.quality(partial(select, steps=steps)).cells()]
        for steps in HISTORIES
    ]
    return ["## Message history: number of earlier queries", "", *table(["set", "queries", *HEAD], rows)]


def mean(qualities: Sequence[Quality]) -> Quality:
    rows = [[one.recall, one.complete, one.tools, one.tokens] for one in qualities]
    return Quality(*map(float, np.mean(np.array(rows), axis=0)))


def sentences(text: str) -> int:
    return len([part for part in re.split(r"[.!?\n]+\s", text) if len(part.split()) > 1])


def as_one_text(text: str) -> str:
    """The same words without anything that ends a sentence."""
    return re.sub(r"[.!?\n]+(\s|$)", " ", text)


if __name__ == "__main__":
    main()
