"""The cost of learned pairs: writes and searches with 5,000 pairs over 3,000 tools.

    python benchmarks/learned.py [FOLDER] [--rounds N]

FOLDER has ``tools/list`` results of real servers, tests/data/tools by default; `catalogs` tells how a large
catalog is made of them. The pairs are of descriptions of the tools, of which every other word is left out, so
that queries of the same kind are near to many. Each query is new, and embedding it counts. A write is durable
when it is timed, in a file on the disk that the temporary folder is on. Searches with and without what was
learned take turns.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from catalogs import LISTS, Copies, lists_in, snapshot
from figures import Figure, machine, percentile, table

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.learning import MOST_PAIRS, Signal, Use, query_key
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.queries import read_query
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.retrieval.vectors import query_vectors
from mcp_context_proxy.store.memory import Pair
from mcp_context_proxy.store.opening import open_store

TOOLS = 3_000
EACH_ROUND = 40
"""Queries searched, and uses learned, in a round."""
WRITE_MS, SEARCH_MS = 10, 50
Spent = tuple[float, float]
"""Milliseconds, and milliseconds of the processor: on a machine that others use, too, only these say much."""
DEPTH_OF_TEXT = 24
"""Words of a description that a query is made of."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=LISTS)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("\n".join(f"{name}: {value}" for name, value in machine().items()))
    with tempfile.TemporaryDirectory() as folder:
        print("\n" + table("Learned", measure(arguments.folder, arguments.rounds, Path(folder))))


def measure(lists: Path, rounds: int, folder: Path) -> list[Figure]:
    catalog, model = snapshot(TOOLS, lists_in(lists)), LazyModel()
    queries, asked = QueryEmbedder(model, remembered=0), texts(catalog, 0)
    with open_store(folder / "store.sqlite3") as store:
        vectors = Copies(CachedEmbedder(model, store.vectors))
        tier = LearnedTier(queries, store.learned)
        # With those that are learned while it is measured there are 5,000 in the end, and nothing is pruned.
        first = MOST_PAIRS - (rounds + 1) * EACH_ROUND
        tier.take(list(itertools.islice(pairs(catalog, vectors, queries), first)))
        known = len(tier.pairs)
        print(f"pairs: {known:,}", file=sys.stderr)
        engines = [
            Engine(vectors, queries, calibration=packaged_background(), learned=it) for it in (None, tier)
        ]
        for engine in engines:
            engine.index(catalog)
            engine.search("one that does not count", catalog)
        index = engines[0].index_of(catalog)
        found_by_round: list[tuple[list[Spent], list[Spent], list[Spent]]] = []
        supported = []
        for _ in range(rounds + 1):
            searched: tuple[list[Spent], list[Spent]] = ([], [])
            writes: list[Spent] = []
            for query in itertools.islice(asked, EACH_ROUND):
                for engine, spent in zip(engines, searched, strict=True):
                    spent.append(timed(partial(engine.search, query, catalog)))
                understood = read_query(query, index.lexical.has, index.words, {})
                (found,) = query_vectors([(understood.texts, understood.beside)], queries.embed)
                assert found is not None
                supported.append(len(tier.supported(found[0])))
                tool = next(tools(catalog))
                use = Use(query, (tool.server, tool.name), Signal.FOUND, f"session {query}")
                writes.append(timed(partial(tier.learn, use)))
            found_by_round.append((*searched, writes))
        pruning, before = (0.0, 0.0), 0
        while len(tier.pairs) >= before:
            query, before = next(asked), len(tier.pairs)
            use = Use(query, (tool.server, tool.name), Signal.FOUND, f"session {query}")
            pruning = timed(partial(tier.learn, use))
    print(f"tools that use speaks for, by query: {np.mean(supported):.0f}", file=sys.stderr)
    counted = found_by_round[1:]
    figures = []
    for at, name, bar in (
        (0, "search, nothing learned", None),
        (1, "search, 5,000 pairs", SEARCH_MS),
        (2, "a use: embedded, learned, written", WRITE_MS),
    ):
        figures += [
            Figure(f"{name}, p50", [at_share(one[at], 0.5, 0) for one in counted], "ms"),
            Figure(f"{name}, p99", [at_share(one[at], 0.99, 0) for one in counted], "ms", bar),
            Figure("- processor time, p99", [at_share(one[at], 0.99, 1) for one in counted], "ms", bar),
        ]
    return [*figures, Figure("the use after which they are pruned", [pruning[0]], "ms")]


def at_share(values: Sequence[Spent], share: float, clock: int) -> float:
    return percentile([value[clock] for value in values], share)


def tools(catalog: Snapshot) -> Iterator[Tool]:
    """All, again and again, in another order each time."""
    found = [item for source in catalog.sources for item in source.items if isinstance(item, Tool)]
    rng = np.random.default_rng(7)
    while True:
        yield from (found[at] for at in rng.permutation(len(found)))


def texts(catalog: Snapshot, offset: int) -> Iterator[str]:
    """Queries: every other word of descriptions, from the first or the second on; never one twice."""
    for number, tool in enumerate(tools(catalog)):
        words = re.sub(r"[.!?]", "", tool.description).split()[offset:DEPTH_OF_TEXT:2]
        if len(words) > 3:
            yield f"{' '.join(words)} {number}"


def pairs(catalog: Snapshot, vectors: Copies, queries: QueryEmbedder) -> Iterator[Pair]:
    """As use would have left them; with vectors made as those of copies of tools are, which is quick."""
    model_id, _ = queries.vectors([])
    now = time.time()
    rng = np.random.default_rng(3)
    for number, tool in enumerate(tools(catalog)):
        text = tool.description[:200]
        (vector,) = vectors.embed([f"{text} {number}"])
        confidence, age = float(rng.uniform(0.4, 1)), float(rng.uniform(0, 10)) * 86_400
        query = f"{text} {number}"
        yield Pair(
            query_key(query),
            (tool.server, tool.name),
            query,
            vector,
            model_id,
            confidence,
            3,
            now - age,
            now - age,
        )


def timed(act: Callable[[], object]) -> Spent:
    wall, processor = time.perf_counter(), time.process_time()
    act()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - processor)


if __name__ == "__main__":
    main()
