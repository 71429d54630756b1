"""How well search finds what is needed, on a public set of tools and queries; a first yardstick, run by hand.

    python benchmarks/retrieval_quality.py CORPUS QUERIES [--lexical] [--store FILE]

CORPUS: JSON lines {server, name, description, input_schema?}.
QUERIES: JSON lines {query, relevant: [[server, name], ...], any_of?: [[[server, name], ...], ...]}: all of
``relevant`` are needed, and one of each ``any_of`` group. Both may be gzipped.
Everything goes through `Engine`, as in the product.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from mcp_context_proxy.embedding import CachedEmbedder, LazyModel
from mcp_context_proxy.items import Snapshot, Source, Tool
from mcp_context_proxy.retrieval import EmbedTexts, Engine, Ranking, SearchOptions
from mcp_context_proxy.store import open_store

DEPTHS = (1, 5, 10)
"""Where recall is measured."""

RANKED = SearchOptions(top_n=max(DEPTHS), include_score=math.inf)
BY_SHARE = SearchOptions(share_of_best=0.65, at_least=3, at_most=12, include_score=math.inf)
DEFAULT = SearchOptions()

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Query:
    """A need: of each group any one member is enough."""

    text: str
    groups: tuple[frozenset[Key], ...]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--lexical", action="store_true", help="without a model")
    parser.add_argument("--store", type=Path, help="keeps vectors between runs; not the store of a proxy")
    arguments = parser.parse_args()
    embedder = None if arguments.lexical else _embedder(arguments.store)
    started = time.perf_counter()
    report = measure(Engine(embedder), snapshot_of(arguments.corpus), list(queries_of(arguments.queries)))
    for name, value in report.items():
        print(f"{name:28s} {value:8.3f}")
    print(f"{'seconds':28s} {time.perf_counter() - started:8.1f}")


def measure(engine: Engine, snapshot: Snapshot, queries: list[Query]) -> dict[str, float]:
    """Means over all queries; what does not fit is measured as ranked, as it is shown to the host as well."""
    rows = [_row(engine, snapshot, query) for query in queries]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def snapshot_of(corpus: Path) -> Snapshot:
    """A catalog as if every server of the corpus were connected."""
    rows = sorted(_lines(corpus), key=lambda row: (row["server"], row["name"]))
    sources = [
        Source(server, tuple(_tool(row) for row in group), {})
        for server, group in groupby(rows, key=lambda row: row["server"])
    ]
    tools = {item.exposed_name: item for source in sources for item in source.items if isinstance(item, Tool)}
    return Snapshot(1, tuple(sources), dict(sorted(tools.items())))


def queries_of(path: Path) -> Iterator[Query]:
    for row in _lines(path):
        needed = [frozenset([(server, name)]) for server, name in row["relevant"]]
        either = [frozenset((server, name) for server, name in group) for group in row.get("any_of", ())]
        yield Query(row["query"], (*needed, *either))


def recall(query: Query, found: list[Key]) -> float:
    return sum(not group.isdisjoint(found) for group in query.groups) / len(query.groups)


def ndcg(query: Query, found: list[Key]) -> float:
    """Binary gains; each group counts at its first member found."""
    gain, open_groups = 0.0, list(query.groups)
    for rank, key in enumerate(found):
        met = next((group for group in open_groups if key in group), None)
        if met is not None:
            open_groups.remove(met)
            gain += 1 / math.log2(rank + 2)
    return gain / sum(1 / math.log2(rank + 2) for rank in range(min(len(query.groups), len(found) or 1)))


def _row(engine: Engine, snapshot: Snapshot, query: Query) -> dict[str, float]:
    ranking = engine.search(query.text, snapshot, options=RANKED)
    found = _keys(ranking)
    by_share = _keys(engine.search(query.text, snapshot, options=BY_SHARE))
    default = _keys(engine.search(query.text, snapshot, options=DEFAULT))
    row = {f"R@{depth}": recall(query, found[:depth]) for depth in DEPTHS}
    row |= {f"complete@{depth}": float(recall(query, found[:depth]) == 1) for depth in DEPTHS[1:]}
    row |= {"nDCG@10": ndcg(query, found), "fits": float(ranking.fits)}
    row |= {"0.65 of best: returned": len(by_share), "0.65 of best: recall": recall(query, by_share)}
    return row | {"default: returned": len(default), "default: recall": recall(query, default)}


def _keys(ranking: Ranking) -> list[Key]:
    items = [result.item for result in ranking.results or ranking.near_misses]
    return [(item.server, item.name) for item in items if isinstance(item, Tool)]


def _tool(row: dict[str, Any]) -> Tool:
    definition = {
        "name": row["name"],
        "description": row["description"],
        "inputSchema": row.get("input_schema", {}),
    }
    exposed = f"{row['server']}__{row['name']}"
    return Tool(
        row["server"], row["name"], exposed, row["description"], json.dumps(definition).encode(), exposed
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8") as file
    ):
        yield from map(json.loads, file)


def _embedder(store: Path | None) -> EmbedTexts:
    return CachedEmbedder(LazyModel(), open_store(store or "memory").vectors)


if __name__ == "__main__":
    main()
