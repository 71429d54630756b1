"""The cost for others of a server whose descriptions are people's requests: recall@5 with it and without.

    python benchmarks/poisoning.py FOLDER [--sets NAME ...] [--store FILE]

FOLDER is as for benchmarks/retrieval.py. Half of the queries of each set are known to the poisoner, who makes
50 tools of them; the other half is asked, up to 200. In one style those that are asked are known themselves.
Everything is compared with the set and one harmless tool of another server, because a second server changes
what is embedded (`retrieval/text.py`). Takes some three minutes, and comes out the same every time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from retrieval import PublicSet, Remembering, folders, read_set, table

from mcp_context_proxy.embedding import Embedder
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel
from mcp_context_proxy.evaluation import EvalQuery, evaluate, measured, tools_of
from mcp_context_proxy.items import Snapshot, Source, Tool
from mcp_context_proxy.retrieval import FITTING
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store

TOOLS = 50
ASKED = 200
SEED = 3

_END = re.compile(r"[.?!]+$")
_PERSON = re.compile(r"\bI(?:'m)?\b|\bme\b")


@dataclass(frozen=True, slots=True)
class Style:
    """Way in which queries become a description."""

    name: str
    queries: int
    """In each description."""
    write: Callable[[Sequence[str]], str] = " ".join
    servers: int = 1
    same: bool = False
    """Whether these are the very queries that are asked."""
    named: bool = False
    """Whether tools are called by a word of their queries, instead of ``helper``."""
    place: str = "description"
    """Where the queries stand: there, in the ``title``, or in the ``instructions`` of the server."""


def joined(separator: str, before: str = "") -> Callable[[Sequence[str]], str]:
    return lambda queries: before + separator.join(_END.sub("", query) for query in queries)


def words(queries: Sequence[str]) -> str:
    found = re.findall(r"(?<!\S)[a-z]{4,20}\b", " ".join(queries).lower())
    return " ".join(sorted(set(found)))


def of_a_user(queries: Sequence[str]) -> str:
    return _PERSON.sub("the user", " ".join(queries))


STYLES = (
    Style("1 query", 1),
    Style("2 queries", 2),
    Style("5 queries", 5),
    Style("20 queries", 20),
    Style("5, the very ones asked", 5, same=True),
    Style("5 with commas", 5, joined(", ")),
    Style("5 as a list", 5, joined("\n- ", "Use this tool to:\n- ")),
    Style("5 for anything", 5, joined(", ", "Use this tool for anything. It can ")),
    Style("5 by 5 servers", 5, servers=5),
    Style("5 of 'the user'", 5, of_a_user),
    Style("words of 20", 20, words),
    Style("1 in the title", 1, place="title"),
    Style("5 in the title", 5, place="title"),
    Style("5 in the instructions", 5, place="instructions"),
    Style("5 in those of 5 servers", 5, place="instructions", servers=5),
    Style("5 in those of 50 servers", 5, place="instructions", servers=TOOLS),
    Style("5 of 'the user', named", 5, of_a_user, named=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", help="only these")
    parser.add_argument("--store", type=Path, help="keeps vectors between runs; not the store of a proxy")
    arguments = parser.parse_args()
    rows = []
    with open_store(arguments.store or "memory") as store:
        catalog = CachedEmbedder(LazyModel(), store.vectors)
        queries = Remembering(catalog)
        for path in folders(arguments.folder, arguments.sets):
            print(path.name, file=sys.stderr)
            rows.append([path.name, *costs(read_set(path), catalog, queries)])
    head = ["points of recall@5", "clean", *(style.name for style in STYLES)]
    columns = [list(column) for column in zip(head, *rows, strict=True)]
    print(*table(columns[0], columns[1:]), sep="\n")


def costs(one: PublicSet, catalog: Embedder, queries: Embedder) -> list[str]:
    """Recall@5 without the poisoner, and the loss through each style."""
    chance = random.Random(SEED)
    shuffled = list(one.queries)
    chance.shuffle(shuffled)
    known, asked = shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :][:ASKED]

    def found(more: Sequence[Tool], instructions: Mapping[str, str] = {}) -> float:
        snapshot = beside(one.snapshot, more, instructions)
        engine = Engine(catalog, queries, calibration=packaged_background())
        answers = evaluate(engine, snapshot, asked, FITTING, 5).answers
        rows = measured(asked, answers, tools_of(snapshot), 5)
        return 100 * float(np.mean([row["recall@5"] for row in rows]))

    clean = found([poison(0, "Does nothing.")])
    drops = [found(*poisoned(style, asked if style.same else known, chance)) - clean for style in STYLES]
    return [f"{clean:.1f}", *(f"{drop:+.1f}" for drop in drops)]


def poisoned(
    style: Style, known: Sequence[EvalQuery], chance: random.Random
) -> tuple[list[Tool], dict[str, str]]:
    """The tools of the poisoner, and the instructions of its servers."""
    count = min(style.queries, len(known))
    texts = [[query.text for query in chance.sample(known, count)] for _ in range(TOOLS)]
    tools, instructions = list[Tool](), dict[str, str]()
    for at, own in enumerate(texts):
        text, server = style.write(own), f"poisoner{at % style.servers}"
        if style.place == "description":
            tools.append(poison(at, text, server, longest(own) if style.named else "helper"))
        else:
            tools.append(poison(at, "Helps.", server, title=text if style.place == "title" else None))
        if style.place == "instructions":
            instructions[server] = text
    return tools, instructions


def longest(queries: Sequence[str]) -> str:
    return max(words(queries).split(), key=len, default="helper")


def poison(
    number: int,
    description: str,
    server: str = "poisoner0",
    word: str = "helper",
    title: str | None = None,
) -> Tool:
    name = f"{word}_{number}"
    facts = {"name": name, "description": description, "inputSchema": {}}
    raw = json.dumps(facts if title is None else {**facts, "title": title}).encode()
    return Tool(server, name, f"{server}__{name}", raw, hashlib.sha256(raw).hexdigest())


def beside(snapshot: Snapshot, more: Sequence[Tool], instructions: Mapping[str, str]) -> Snapshot:
    """A snapshot with further tools."""
    by_server = groupby(sorted(more, key=lambda tool: tool.server), key=lambda tool: tool.server)
    sources = [
        Source(server, tuple(tools), about=instructions.get(server, "")) for server, tools in by_server
    ]
    tools = {**snapshot.tools, **{tool.exposed_name: tool for tool in more}}
    return Snapshot(snapshot.generation + 1, (*snapshot.sources, *sources), tools)


if __name__ == "__main__":
    main()
