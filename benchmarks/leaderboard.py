"""Search of tools by several methods side by side: quality with intervals, size of an answer, latency.

    python benchmarks/leaderboard.py FOLDER [--sets NAME ...] [--peer NAME TOOL COMMAND] [--output FILE]

FOLDER has one folder per set, as benchmarks/retrieval.py reads them. Two sets come with the project: requests
for servers that the model was not trained on (``encoder/data``), and ``requests.jsonl`` over the 33 recorded
lists of tools, where any tool of the right server counts.

A peer is any server with a tool that searches tools, such as another proxy: COMMAND starts it over stdio,
with ``{corpus}`` for a file of the set's tools (a JSON array of tools, each with its server), and the first
text argument of TOOL gets the query. Its answer is read for the names of tools, in the order in which they
occur.
For FastMCP with its BM25 search:

    --peer FastMCP search_tools "FASTMCP_PYTHON benchmarks/fastmcp_search.py {corpus}"
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from baselines import PlainBM25, Ranked, SeedDesign
from catalogs import LISTS, lists_in, snapshot
from msgspec.structs import replace
from nothing_fits import pairs
from raw_clients import StdioClient
from retrieval import PublicSet, Remembering, Rows, folders, read_set, signed, spoken, table

from mcp_context_proxy.config import PACKAGED_MODELS, EmbeddingConfig
from mcp_context_proxy.embedding import BASE_MODEL
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, OnnxModel, load_model
from mcp_context_proxy.evaluation import (
    TOOLS,
    Answer,
    EvalQuery,
    estimate,
    macro_estimate,
    measured,
    tools_of,
)
from mcp_context_proxy.items import Snapshot, Tool, ToolKey
from mcp_context_proxy.retrieval import FITTING, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store

DEPTH = 10
SHOWN = 5
"""Tools in the answer of a method that has no rule of its own."""

BYTES_A_TOKEN = 4
MEASURES = ("recall@1", "recall@5", "ndcg@10")
OURS = "this proxy"
REQUESTS = Path(__file__).with_name("requests.jsonl")
INSTRUCTIONS = Path(__file__).with_name("instructions.json")
"""Instructions as the servers of the recorded lists might give them, written before any measurement."""
HELD_OUT, RECORDED = "held-out servers", "33 lists"

Search = Callable[[str], tuple[Ranked, int]]
"""Returns the best tools for a query, and how many of them the answer shows."""


@dataclass(frozen=True, slots=True)
class Line:
    """One method on one set."""

    rows: Rows
    tokens: float
    """Mean size of the definitions in an answer."""
    milliseconds: float
    """Median duration of a search; the vectors of its texts are known."""


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

    def __init__(self, tool: str, command: str, snapshot: Snapshot, folder: Path) -> None:
        corpus = folder / "corpus.json"
        named = [
            {**json.loads(one.definition), "name": one.exposed_name, "server": one.server}
            for one in tools_in(snapshot)
        ]
        corpus.write_text(json.dumps(named), encoding="utf-8")
        self._client = StdioClient([part.format(corpus=corpus) for part in shlex.split(command)])
        self._tool = tool
        self._client.open()
        listed = {one["name"]: one for one in self._client.request("tools/list")["tools"]}
        properties = listed[tool]["inputSchema"].get("properties", {})
        self._argument = next(name for name, one in properties.items() if one.get("type") == "string")
        self._keys = names_of(snapshot)
        names = sorted(self._keys, key=len, reverse=True)
        self._names = re.compile("(?<![\\w-])(?:" + "|".join(map(re.escape, names)) + ")(?![\\w-])")

    def close(self) -> None:
        """End the server."""
        self._client.close()

    def rank(self, query: str, depth: int) -> Ranked:
        """The tools that the answer names, the first first."""
        return self.answer(query)[0][:depth]

    def answer(self, query: str) -> tuple[Ranked, str]:
        """The same, and the text of the answer."""
        called = self._client.call(self._tool, **{self._argument: query})
        text = "".join(one.get("text", "") for one in called.get("content", ()))
        return self.named(text or json.dumps(called, ensure_ascii=False)), text

    def named(self, answer: str) -> Ranked:
        """The tools that a text names, the first first."""
        keys = dict.fromkeys(self._keys[found] for found in self._names.findall(answer))
        return [(*key, -float(place)) for place, key in enumerate(keys)]


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
    sets += [one for one in own_sets() if not arguments.sets or one.name in arguments.sets]
    with open_store(arguments.store or "memory") as store:
        models = {
            PACKAGED_MODELS[0]: CachedEmbedder(LazyModel(), store.vectors),
            PACKAGED_MODELS[1]: CachedEmbedder(LazyModel(published), store.vectors),
        }
        found = {one.name: measure(one, models, arguments.peer, arguments.every) for one in sets}
    text = "\n".join(page(sets, found, arguments.every)) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


def published() -> OnnxModel:
    """The model that the packaged one was trained from."""
    return load_model(BASE_MODEL, EmbeddingConfig(model=PACKAGED_MODELS[1]))


def own_sets() -> list[PublicSet]:
    """The sets that come with the project."""
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    held_out = {key for key, tool in tools.items() if tool.split != "train"}
    asked = [
        EvalQuery(
            one.text,
            tuple(frozenset({key}) for key in one.right) if one.needs_all else (frozenset(one.right),),
        )
        for one in requests
        if held_out.issuperset(one.right)
    ]
    lists = lists_in(LISTS)
    recorded = snapshot(sum(map(len, lists.values())), lists)
    said = json.loads(INSTRUCTIONS.read_text("utf-8"))
    sources = tuple(replace(one, about=said[one.key.removesuffix("-c0")]) for one in recorded.sources)
    recorded = replace(recorded, sources=sources)
    recorded = replace(recorded, tools={tool.exposed_name: tool for tool in tools_in(recorded)})
    of_server = {
        source.key: frozenset(tool.key for tool in source.items if isinstance(tool, Tool))
        for source in recorded.sources
    }
    lines = [json.loads(line) for line in REQUESTS.read_text("utf-8").splitlines()]
    queries = [
        EvalQuery(line["request"], (of_server[f"{line['list']}-c0"],))
        for line in lines
        if line["list"] in lists
    ]
    return [PublicSet(HELD_OUT, pairs.catalog(held_out), asked), PublicSet(RECORDED, recorded, queries)]


def measure(
    one: PublicSet, models: Mapping[str, CachedEmbedder], peers: Sequence[Sequence[str]], every: int
) -> dict[str, Line]:
    """Every method on one set."""
    print(one.name, file=sys.stderr)
    snapshot, queries = one.snapshot, one.queries[::every]
    engines = {}
    for name, catalog in models.items():
        engines[name] = Engine(catalog, Remembering(catalog), calibration=packaged_background(name))
        engines[name].index(snapshot)
    trained, base = (engines[name] for name in PACKAGED_MODELS)
    dense, shown = SearchOptions(method="dense", depth=DEPTH), replace(FITTING, depth=DEPTH)
    seed = SeedDesign(snapshot, models[PACKAGED_MODELS[1]], Remembering(models[PACKAGED_MODELS[1]]))
    methods: dict[str, Search] = {
        "plain BM25": fixed(PlainBM25(snapshot).rank),
        "regex": fixed(RegexSearch(snapshot).rank),
        "BM25F": by(Engine(None), snapshot, SearchOptions(method="lexical", depth=DEPTH)),
        "seed design": fixed(seed.rank),
        "published model alone": by(base, snapshot, dense),
        "trained model alone": by(trained, snapshot, dense),
        "RRF": by(trained, snapshot, SearchOptions(method="rrf", depth=DEPTH)),
        f"{OURS}, published model": by(base, snapshot, shown),
        OURS: by(trained, snapshot, shown),
    }
    size = {tool.key: len(tool.definition) / BYTES_A_TOKEN for tool in tools_in(snapshot)}
    score = partial(line_of, queries=queries, snapshot=snapshot, size=size)
    lines = {name: score(search) for name, search in methods.items()}
    for name, tool, command in peers:
        with tempfile.TemporaryDirectory() as folder:
            peer = Peer(tool, command, snapshot, Path(folder))
            lines[name] = score(fixed(peer.rank))
            peer.close()
    return lines


def line_of(
    search: Search, queries: Sequence[EvalQuery], snapshot: Snapshot, size: Mapping[ToolKey, float]
) -> Line:
    """Measure one method; each query is asked once before, so that its vectors are known."""
    answers, tokens, seconds = [], [], []
    for query in queries:
        search(query.text)
        began = time.perf_counter()
        ranked, shown = search(query.text)
        seconds.append(time.perf_counter() - began)
        tokens.append(sum(size[server, tool] for server, tool, _ in ranked[:shown]))
        answers.append(Answer(query.text, ranked, shown, fits=True))
    rows = measured(queries, answers, tools_of(snapshot), DEPTH)
    return Line(rows, float(np.mean(tokens)), 1000 * float(np.median(seconds)))


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
        f"A method without a rule of its own shows {SHOWN} tools.",
        "Milliseconds are medians, without embedding the query.",
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
    costs = [
        [name]
        + [f"{np.mean([found[one.name][name].tokens for one in sets]):.0f}"]
        + [f"{found[one.name][name].milliseconds:.1f}" for one in sets]
        for name in names
    ]
    head = [
        "method",
        f"tokens of an answer (definitions, {BYTES_A_TOKEN} bytes each)",
        *(f"ms, {one.name}" for one in sets),
    ]
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
