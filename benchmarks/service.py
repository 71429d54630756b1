"""Search and recall where everything has filled up: 3,000 tools, 5,000 learned pairs, 10,000 interactions.

    python benchmarks/service.py [--rounds 5] [--requests 200] [--json]

Two proxies over stdio in front of the same servers take turns: *empty* has learned and remembers nothing,
*full* has both in its store and remembers each search as it comes. Queries, pairs and interactions are parts
of real tools' descriptions. Each query is new, is embedded, and counts once its answer is decoded. A round's
p99 is that of its requests; a figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import definitions
import numpy as np
from catalogs import LISTS, lists_in
from figures import Figure, as_json, percentile, table
from raw_clients import StdioClient
from subjects import SERVERS, Workbench

from mcp_context_proxy import Interactions
from mcp_context_proxy.embedding.embeddings import LazyModel, QueryEmbedder
from mcp_context_proxy.learning import MOST_PAIRS, query_key
from mcp_context_proxy.store.memory import Interaction, Pair
from mcp_context_proxy.store.opening import open_store

SEARCH, RECALL = "search_available_tools", "recall"
TOOLS_EACH = definitions.MOST
INTERACTIONS = 10_000
AGENTS = ("coder", "planner", "reviewer")
DAYS = 60
LENGTH, STRIDE = 12, 3
"""Words of a query, and from the beginning of one to that of the next out of the same description."""
WARM_UP = 20
P99_MS = 50
"""What a search may take, and a recall."""

Words = Iterator[str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="of each kind in each round")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Workbench(Path(folder)), arguments.rounds, arguments.requests)
    title = f"{SERVERS * TOOLS_EACH:,} tools, {MOST_PAIRS:,} learned pairs, {INTERACTIONS:,} interactions"
    sys.stdout.write(as_json({title: figures}) if arguments.json else table(title, figures) + "\n")


def measured(bench: Workbench, rounds: int, requests: int) -> list[Figure]:
    words = requests_made()
    empty, full = bench.folder / "empty.sqlite3", bench.folder / "full.sqlite3"
    switched_off: dict[str, Any] = {
        "learning": {"enabled": False},
        "limits": {"indexing_wait_seconds": 600.0},
    }
    without = bench.config(TOOLS_EACH, store=empty, **switched_off)
    with serving(bench, without, words):
        pass  # the tools are embedded once, for both
    shutil.copyfile(empty, full)
    fill(full, words)
    remembering: dict[str, Any] = {
        "interactions": {"enabled": True, "recall_tool": True},
        "limits": {"indexing_wait_seconds": 600.0},
    }
    filled = bench.config(TOOLS_EACH, store=full, **remembering)
    with serving(bench, without, words) as one, serving(bench, filled, words) as other:
        recall = partial(other.call, RECALL)
        assert other.data(RECALL, query=next(words))["known"] >= INTERACTIONS
        subjects = {
            "search, empty": partial(one.call, SEARCH),
            "search, full": partial(other.call, SEARCH),
            "recall": recall,
        }
        return timed(subjects, words, rounds, requests)


def requests_made() -> Words:
    """Parts of the descriptions of real tools, in an order that is always the same; no two are alike."""
    tools = itertools.chain.from_iterable(lists_in(LISTS).values())
    parts = dict.fromkeys(
        " ".join(words[start : start + LENGTH])
        for words in (tool.get("description", "").split() for tool in tools)
        for start in range(0, max(len(words) - LENGTH, 1), STRIDE)
    )
    shuffled = [part for part in parts if part]
    random.Random(1).shuffle(shuffled)
    return iter(shuffled)


def timed(
    subjects: Mapping[str, Callable[..., object]], words: Words, rounds: int, requests: int
) -> list[Figure]:
    """The median and p99 of each, measured in turns."""
    found: dict[str, list[list[float]]] = {name: [] for name in subjects}
    for call in subjects.values():
        for query in islice(words, WARM_UP):
            call(query=query)
    for _ in range(rounds):
        for name, call in subjects.items():
            found[name].append([milliseconds(call, query) for query in islice(words, requests)])
    figures = []
    for name, times in found.items():
        bar = None if "empty" in name else P99_MS
        figures.append(Figure(f"{name}: p50", [percentile(one, 0.5) for one in times], "ms"))
        figures.append(Figure(f"{name}: p99", [percentile(one, 0.99) for one in times], "ms", bar))
    return figures


def milliseconds(call: Callable[..., object], query: str) -> float:
    began = time.perf_counter()
    call(query=query)
    return 1e3 * (time.perf_counter() - began)


@contextmanager
def serving(bench: Workbench, config: Path, words: Words) -> Iterator[StdioClient]:
    """A proxy that has indexed every tool."""
    client = bench.proxy(config)
    client.open()
    try:
        client.until(partial(indexed, words=words), seconds=900)
        yield client
    finally:
        client.close()


def indexed(client: StdioClient, words: Words) -> bool:
    answer = client.data(SEARCH, query=next(words))
    return bool(answer["known"] == SERVERS * TOOLS_EACH and "indexed" not in answer)


def fill(store: Path, words: Words) -> None:
    """Pairs of the tools there are, and interactions of some weeks, with the vectors of their texts."""
    now, chance = time.time(), np.random.default_rng(1)
    queries = list(islice(words, MOST_PAIRS))
    model_id, vectors = QueryEmbedder(LazyModel()).vectors(queries)
    rows = [
        Pair(
            query_key(query), (f"s{number % SERVERS}", definitions.name_of(number % TOOLS_EACH)),
            query, vector, model_id, float(chance.uniform(0.5, 1)), 3, now - 9, now - 5,
        )
        for number, (query, vector) in enumerate(zip(queries, vectors, strict=True))
    ]  # fmt: skip
    with open_store(store) as opened:
        opened.learned.put(rows)
    said = [
        Interaction(
            AGENTS[number % len(AGENTS)],
            ("search", "call", "message")[number % 3],
            f"{queries[number % len(queries)]}, {number}",
            now - float(chance.uniform(0, DAYS)) * 86_400,
        )
        for number in range(INTERACTIONS)
    ]
    with Interactions(store) as interactions:
        kept = interactions.add(said)
        for start in range(0, len(kept), 500):
            interactions.embed(kept[start : start + 500])


if __name__ == "__main__":
    main()
