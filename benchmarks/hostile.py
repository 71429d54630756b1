"""The cost of indexing hostile tools beside ordinary ones of equal size: pairs, in processor time.

    python benchmarks/hostile.py [--tools N] [--rounds N]

Each round takes apart and indexes as many bytes of real definitions and of hostile ones, by words alone, in
rotating order; the ratio is that of one round. Each hostile description repeats one part that an expression,
a normalization or a decoder may try over and over (`tests/trust/test_adversarial_text.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from catalogs import lists_in
from figures import machine

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from trust.test_adversarial_text import UNITS

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.config import ExposeConfig, Limits
from mcp_context_proxy.config.settings import ServerConfig
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.listing import ServerListing
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval.engine import Engine

LISTS = Path(__file__).parents[1] / "tests" / "data" / "tools"


def ordinary(number: int) -> list[bytes]:
    """Definitions of real servers, again and again under other names."""
    real = [entry for entries in lists_in(LISTS).values() for entry in entries]
    return [
        json.dumps({**entry, "name": f"{entry['name'][:40]}_{at}"}).encode()
        for at, entry in enumerate(islice(cycle(real), number))
    ]


def hostile(like: Sequence[bytes], parts: Sequence[str]) -> Iterator[bytes]:
    """Definitions of the same sizes, whose texts repeat the parts."""
    for at, (definition, part) in enumerate(zip(like, cycle(parts), strict=False)):
        entry: dict[str, Any] = {
            "name": f"t_{at}",
            "description": "I need ",
            "inputSchema": {"type": "object"},
        }
        room = max(0, len(definition) - len(json.dumps(entry)))
        entry["description"] += part * (room // (len(json.dumps(part)) - 2))
        yield json.dumps(entry).encode()


def seconds(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def catalog_of(definitions: Sequence[bytes]) -> Catalog:
    client = SimpleNamespace(
        name="one",
        config=ServerConfig(name="one", command="x"),
        listing=ServerListing(tools=tuple(definitions)),
        introduction=object(),
    )
    clients = [cast(DownstreamClient, client)]
    documents = DocumentLibrary([], Limits())
    return Catalog(
        ExposeConfig(), Limits(), lambda: clients, documents, configured=lambda: frozenset({"one"})
    )


def measured(definitions: Sequence[bytes]) -> tuple[float, float, float]:
    """Return the time of the definitions, of their words, and of a search."""
    catalog, engine = catalog_of(definitions), Engine(None)
    taken = seconds(catalog.refresh)
    snapshot: Snapshot = catalog.snapshot
    assert len(snapshot.tools) > len(definitions) // 2
    words = seconds(lambda: engine.index(snapshot))
    search = seconds(lambda: engine.search("I need to create a note about a meeting", snapshot))
    return taken, words, search


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    plain = ordinary(arguments.tools)
    # Parts that are removed from definitions, or withhold them, cost nothing later.
    of_all = list(hostile(plain, [part for part in UNITS.values() if part.isprintable()]))
    rows: dict[str, list[tuple[float, float]]] = {"definitions": [], "words": [], "one search": []}
    measured(plain)
    for number in range(arguments.rounds):
        pair = [plain, of_all]
        first, second = map(measured, pair if number % 2 == 0 else pair[::-1])
        both = (first, second) if number % 2 == 0 else (second, first)
        for name, times in zip(rows, zip(*both, strict=True), strict=True):
            rows[name].append((times[0], times[1]))
    print(json.dumps(machine()), f"{arguments.tools:,} tools, {sum(map(len, plain)):,} bytes", sep="\n")
    print("| | ordinary, ms | hostile, ms | ratio of a round | its middle half |\n|---|---:|---:|---:|---:|")
    for name, pairs in rows.items():
        ratios = [evil / good for good, evil in pairs]
        low, _, high = statistics.quantiles(ratios, n=4)
        good, evil = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(ratios)
        print(f"| {name} | {good:,.1f} | {evil:,.1f} | {ratio:.2f} | {low:.2f} to {high:.2f} |")


if __name__ == "__main__":
    main()
