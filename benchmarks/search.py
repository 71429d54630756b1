"""How fast search is and how much memory it takes, from 1,000 to 100,000 tools, beside the seed design.

    python benchmarks/search.py [--sizes 1000 10000 100000] [--json]

The tools are those of tests/data/tools, again and again under other server names, each copy with words of its
own. Queries are embedded by the packaged model, and that counts. The vectors of the tools are random: no time
but that of embedding them depends on what they are, and it is left out. Each size is a process of its own.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from baselines import SeedDesign

from mcp_context_proxy.embedding import LazyModel
from mcp_context_proxy.embedding.queries import QueryEmbedder
from mcp_context_proxy.items import Snapshot, Source, Tool
from mcp_context_proxy.retrieval import Engine

LISTS = Path(__file__).parents[1] / "tests" / "data" / "tools"
SIZES = (1_000, 3_000, 10_000, 100_000)
DIMENSIONS = 384
QUERIES = (
    "create a new issue in the repository for this bug",
    "list the files in a folder",
    "send a message to a channel",
    "which pods are running in the cluster",
    "convert a timestamp to another timezone",
    "take a screenshot of the page",
    "how many rows does the table have",
    "search the web for the latest news",
)
ROUNDS = 5
WORDS = ("alpha", "harbour", "meadow", "copper", "lantern", "orchard", "summit", "violet", "walnut", "zephyr")

HEADINGS = {
    "tools": "tools",
    "servers": "servers",
    "index_s": "index s",
    "p50_ms": "p50 ms",
    "p95_ms": "p95 ms",
    "seed_p50_ms": "seed p50 ms",
    "change_ms": "one change ms",
    "memory_mb": "peak MB",
}


class RandomVectors:
    """A fixed direction for each text."""

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """One row per text."""
        del on_progress
        seeds = (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts)
        rows = np.array([np.random.default_rng(seed).standard_normal(DIMENSIONS) for seed in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    rows = [apart(size) for size in arguments.sizes]
    print(json.dumps(rows, indent=2) if arguments.json else table(rows))


def apart(size: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(size)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    return dict(json.loads(done.stdout))


def measure(size: int) -> dict[str, float]:
    catalog, queries = snapshot(size), QueryEmbedder(LazyModel())
    queries.embed(["the model is loaded"])
    engine = Engine(RandomVectors(), queries)
    index_s = seconds(lambda: engine.index(catalog))
    times = latencies(lambda query: engine.search(query, catalog))
    changed = with_one_change(catalog)
    change_ms = 1e3 * seconds(lambda: engine.search("the tool that was changed just now", changed))
    unit = 1 if sys.platform == "darwin" else 1024
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    seed = SeedDesign(catalog, RandomVectors(), queries)
    seed_times = latencies(lambda query: seed.rank(query, 10))
    found = {
        "tools": size,
        "servers": len(catalog.sources),
        "index_s": index_s,
        "p50_ms": float(np.quantile(times, 0.5)),
        "p95_ms": float(np.quantile(times, 0.95)),
        "seed_p50_ms": float(np.quantile(seed_times, 0.5)),
        "change_ms": change_ms,
        "memory_mb": memory,
    }
    return {name: round(value, 2) for name, value in found.items()}


def latencies(search: Callable[[str], Any]) -> list[float]:
    """Milliseconds of each search, after one round that does not count."""
    for query in QUERIES:
        search(query)
    return [1e3 * seconds(lambda: search(query)) for query in QUERIES * ROUNDS]  # noqa: B023


def seconds(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def snapshot(size: int) -> Snapshot:
    """So many tools, the same every time."""
    lists = {path.name.split(".")[0]: read(path) for path in sorted(LISTS.glob("*.json.gz"))}
    sources, left = [], size
    for copy in itertools.count():
        for server, tools in lists.items():
            own = tuple(made(f"{server}-{copy}", tool, copy) for tool in tools[:left])
            sources.append(Source(f"{server}-{copy}", own, {}))
            left -= len(own)
            if not left:
                return Snapshot(1, tuple(sources))
    raise AssertionError("unreachable")


def read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(json.load(file)["tools"])


def made(server: str, entry: dict[str, Any], copy: int) -> Tool:
    word = f"{WORDS[copy % len(WORDS)]} {WORDS[copy // len(WORDS) % len(WORDS)]}"
    description = f"{entry.get('description', '')} {word}"
    definition = json.dumps({**entry, "description": description}).encode()
    fingerprint = hashlib.sha256(server.encode() + b"\0" + definition).hexdigest()
    return Tool(server, entry["name"], f"{server}__{entry['name']}", description, definition, fingerprint)


def with_one_change(before: Snapshot) -> Snapshot:
    """The catalog after one tool of its largest server has another description."""
    at = max(range(len(before.sources)), key=lambda at: len(before.sources[at].items))
    source = before.sources[at]
    tool = source.items[0]
    assert isinstance(tool, Tool)
    entry = {"name": tool.name, "inputSchema": {}, "description": "It was changed just now."}
    items = (made(tool.server, entry, 0), *source.items[1:])
    changed = replace(source, items=items)
    return Snapshot(2, (*before.sources[:at], changed, *before.sources[at + 1 :]))


def table(rows: Sequence[dict[str, float]]) -> str:
    cells = [list(HEADINGS.values())]
    cells += [[f"{row[name]:,.10g}" for name in HEADINGS] for row in rows]
    first, last = rows[0], rows[-1]
    growth = f"From {first['tools']:,} to {last['tools']:,} tools a search takes"
    return "\n".join(
        [
            *("".join(f"{cell:>15}" for cell in row) for row in cells),
            "",
            f"{growth} {last['p50_ms'] / first['p50_ms']:.1f} times as long; "
            f"in the seed design {last['seed_p50_ms'] / first['seed_p50_ms']:.1f} times.",
        ]
    )


if __name__ == "__main__":
    main()
