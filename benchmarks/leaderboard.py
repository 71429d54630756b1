"""Search of tools by several methods side by side: quality with intervals, and size of an answer.

    python benchmarks/leaderboard.py FOLDER [--sets NAME ...] [--peer NAME TOOL COMMAND] [--output FILE]

FOLDER has one folder per set, as benchmarks/retrieval.py reads them. A peer is any server with a tool that
searches tools, such as another proxy or FastMCP with its BM25 search: COMMAND starts it over stdio, and the
first text argument of TOOL gets the query. It has to serve the catalog of the one set that is named with it.
Its answer is read for the names of tools, in the order in which they occur.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from baselines import PlainBM25, Ranked, SeedDesign
from raw_clients import StdioClient
from retrieval import PublicSet, Remembering, Rows, folders, read_set, signed, spoken, table

from mcp_context_proxy.embedding import CachedEmbedder, LazyModel
from mcp_context_proxy.evaluation.run import TOOLS, Answer, estimate, macro_estimate, measured, tools_of
from mcp_context_proxy.items import Snapshot, Tool, ToolKey
from mcp_context_proxy.retrieval import FITTING, Engine, SearchOptions
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store import open_store

DEPTH = 10
SHOWN = 5
"""Tools in the answer of a method that has no rule of its own."""

BYTES_A_TOKEN = 4
MEASURES = ("recall@1", "recall@5", "ndcg@10")
OURS = "this proxy"

Search = Callable[[str], tuple[Ranked, int]]
"""Returns the best tools for a query, and how many of them the answer shows."""


@dataclass(frozen=True, slots=True)
class Line:
    """One method on one set."""

    rows: Rows
    tokens: float
    """Mean size of the definitions in an answer."""


class RegexSearch:
    """Regular expressions over names and descriptions, as hosts search deferred tools.

    The words of the query are alternatives, and tools are ordered by how many of them they have.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._texts = [(tool, f"{tool.name} {tool.description}".lower()) for tool in tools_in(snapshot)]

    def rank(self, query: str, depth: int) -> Ranked:
        """The tools that have most of the words."""
        words = {re.escape(word) for word in re.findall(r"\w{3,}", query.lower())}
        if not words:
            return []
        pattern = re.compile("|".join(sorted(words, key=lambda word: (-len(word), word))))
        found = [(len(set(pattern.findall(text))), tool) for tool, text in self._texts]
        best = sorted(found, key=lambda one: -one[0])[:depth]
        return [(tool.server, tool.name, float(count)) for count, tool in best if count]


class Peer:
    """A server over stdio with a tool that searches tools."""

    def __init__(self, tool: str, command: str, snapshot: Snapshot) -> None:
        self._client, self._tool = StdioClient(shlex.split(command)), tool
        self._client.open()
        listed = {one["name"]: one for one in self._client.request("tools/list")["tools"]}
        properties = listed[tool]["inputSchema"].get("properties", {})
        self._argument = next(name for name, one in properties.items() if one.get("type") == "string")
        self._keys = names_of(snapshot)
        names = sorted(self._keys, key=len, reverse=True)
        self._names = re.compile("(?<![\\w-])(?:" + "|".join(map(re.escape, names)) + ")(?![\\w-])")

    def rank(self, query: str, depth: int) -> Ranked:
        """The tools that the answer names, the first first."""
        answer = json.dumps(self._client.call(self._tool, **{self._argument: query}), ensure_ascii=False)
        keys = dict.fromkeys(self._keys[found] for found in self._names.findall(answer))
        return [(*key, -float(place)) for place, key in enumerate(keys)][:depth]


def names_of(snapshot: Snapshot) -> Mapping[str, ToolKey]:
    """Exposed names of tools, and own names where only one tool has it."""
    own = [tool.name for tool in tools_in(snapshot)]
    names = {tool.exposed_name: tool.key for tool in tools_in(snapshot)}
    return names | {tool.name: tool.key for tool in tools_in(snapshot) if own.count(tool.name) == 1}


def tools_in(snapshot: Snapshot) -> list[Tool]:
    return [item for source in snapshot.sources for item in source.items if isinstance(item, Tool)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", help="only these")
    parser.add_argument("--every", type=int, default=1, help="only each such query")
    parser.add_argument("--store", type=Path, help="keeps vectors between runs; not the store of a proxy")
    parser.add_argument("--peer", nargs=3, action="append", default=[], metavar=("NAME", "TOOL", "COMMAND"))
    parser.add_argument("--output", type=Path, help="a file instead of the standard output")
    arguments = parser.parse_args()
    sets = [read_set(path) for path in folders(arguments.folder, arguments.sets)]
    with open_store(arguments.store or "memory") as store:
        catalog = CachedEmbedder(LazyModel(), store.vectors)
        found = {one.name: measure(one, catalog, arguments.peer, arguments.every) for one in sets}
    text = "\n".join(page(sets, found, arguments.every)) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


def measure(
    one: PublicSet, catalog: CachedEmbedder, peers: Sequence[Sequence[str]], every: int
) -> dict[str, Line]:
    """Every method on one set."""
    print(one.name, file=sys.stderr)
    snapshot, queries = one.snapshot, one.queries[::every]
    remembering = Remembering(catalog)
    engine = Engine(catalog, catalog, calibration=packaged_background())
    engine.index(snapshot)
    methods: dict[str, Search] = {
        "plain BM25": fixed(PlainBM25(snapshot).rank),
        "regex": fixed(RegexSearch(snapshot).rank),
        "BM25F": by(Engine(None), snapshot, SearchOptions(method="lexical", depth=DEPTH)),
        "base model alone": by(engine, snapshot, SearchOptions(method="dense", depth=DEPTH)),
        "seed design": fixed(SeedDesign(snapshot, catalog, remembering).rank),
        "RRF": by(engine, snapshot, SearchOptions(method="rrf", depth=DEPTH)),
        OURS: by(engine, snapshot, replace(FITTING, depth=DEPTH)),
    }
    methods |= {name: fixed(Peer(tool, command, snapshot).rank) for name, tool, command in peers}
    size = {tool.key: len(tool.definition) / BYTES_A_TOKEN for tool in tools_in(snapshot)}
    lines = {}
    for name, search in methods.items():
        answers, tokens = [], []
        for query in queries:
            ranked, shown = search(query.text)
            tokens.append(sum(size[server, tool] for server, tool, _ in ranked[:shown]))
            answers.append(Answer(query.text, ranked, shown, fits=True))
        rows = measured(queries, answers, tools_of(snapshot), DEPTH)
        lines[name] = Line(rows, float(np.mean(tokens)))
    return lines


def fixed(rank: Callable[[str, int], Ranked]) -> Search:
    return lambda query: (rank(query, DEPTH), SHOWN)


def by(engine: Engine, snapshot: Snapshot, options: SearchOptions) -> Search:
    def search(query: str) -> tuple[Ranked, int]:
        ranking = engine.search(query, snapshot, TOOLS, options)
        selected = ranking.results or ranking.near_misses
        ranked = [(one.item.server or "", one.item.name, one.score) for one in (*selected, *ranking.others)]
        return ranked, len(selected)

    return search


def page(sets: Sequence[PublicSet], found: Mapping[str, Mapping[str, Line]], every: int) -> list[str]:
    """The tables: each measure by set, then the cost of an answer, then our gain over each method."""
    names = list(next(iter(found.values())))
    lines = [
        "# Leaderboard",
        "",
        "Written by `python benchmarks/leaderboard.py FOLDER`, with 95 % bootstrap intervals in brackets"
        + (f", each {every}th query of a set." if every > 1 else "."),
        "The formula was chosen while looking at the public sets of benchmarks/retrieval.md.",
        "",
    ]
    for measure_name in MEASURES:
        rows = [
            [
                name,
                *(spoken(estimate(values(found[one.name][name], measure_name))) for one in sets),
                spoken(macro_estimate([values(found[one.name][name], measure_name) for one in sets])),
            ]
            for name in names
        ]
        head = ["method", *(f"{one.name} ({len(one.snapshot.tools)})" for one in sets), "macro"]
        lines += [f"## {measure_name}", "", *table(head, rows)]
    costs = [[name, f"{np.mean([found[one.name][name].tokens for one in sets]):.0f}"] for name in names]
    head = ["method", f"tokens of an answer (definitions, {BYTES_A_TOKEN} bytes each)"]
    lines += ["## Cost", "", *table(head, costs)]
    gains = [
        [name, *(signed(macro_estimate([gain(found[one.name], name, m) for one in sets])) for m in MEASURES)]
        for name in names
        if name != OURS
    ]
    return [*lines, f"## Gain of {OURS}, paired by query, macro", "", *table(["over", *MEASURES], gains)]


def gain(lines: Mapping[str, Line], other: str, measure_name: str) -> list[float]:
    pairs = zip(values(lines[OURS], measure_name), values(lines[other], measure_name), strict=True)
    return [ours - theirs for ours, theirs in pairs]


def values(line: Line, measure_name: str) -> list[float]:
    return [row[measure_name] for row in line.rows if measure_name in row]


if __name__ == "__main__":
    main()
