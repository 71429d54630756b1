"""Speed and memory of search, from 1,000 to 100,000 tools. `leaderboard.py` has other searches beside it.

    python benchmarks/search.py [FOLDER] [--sizes 1000 3000 10000 100000] [--json]

FOLDER has ``tools/list`` results of real servers, tests/data/tools by default; `catalogs` tells how a large
catalog is made of them. Queries are embedded by the packaged model, and that counts; embedding the tools does
not, except for the lists themselves. Each size is a process of its own. Processor time is given beside time,
because on a machine that others use, too, only that is the time of search; bars are for either.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
from catalogs import LISTS, Copies, lists_in, published, snapshot, with_one_change
from figures import machine

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import SearchOptions, vectors
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.item_metadata import DESTRUCTIVE, tag_label
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.system.process import (
    SWITCH_SECONDS,
    collect_garbage_seldom,
    limit_malloc_arenas,
    trim_periodically,
    unmap_files,
)

SIZES = (1_000, 3_000, 10_000, 100_000)
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
CHANGES = 5
TOP = 10
COMPARED = 60
"""Queries for which the ten best are compared with the exact ones: every other word of a description."""
TICK = 0.001

HEADINGS = {
    "tools": ("tools", None),
    "servers": ("servers", None),
    "search_ms": ("search p50, ms", {1_000: 2.5, 10_000: 5, 100_000: 12}),
    "search_cpu": ("- processor time", None),
    "p95_ms": ("search p95, ms", None),
    "filtered_cpu": ("of one server, p50, processor ms", None),
    "narrowed_cpu": ("of one tag, nothing destructive, p50, processor ms", None),
    "change_ms": ("one changed tool searchable, ms", {100_000: 100}),
    "change_cpu": ("- processor time", {100_000: 100}),
    "stall_ms": ("longest loop stall, indexing and swapping, ms", dict.fromkeys(SIZES, 50)),
    "idle_ms": ("- with nothing to do", None),
    "memory_mb": ("peak memory, MB", {100_000: 450}),
    "agreement": ("of the exact ten best, %", dict.fromkeys(SIZES, 99.5)),
    "words_cpu_s": ("indexing without embedding, processor s", None),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=LISTS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--real", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--known", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.folder, int(arguments.one[0]), Path(arguments.one[1]))))
    elif arguments.real:
        lists = lists_in(arguments.folder)
        print(json.dumps(measure_real(snapshot(sum(map(len, lists.values())), lists), arguments.real)))
    elif arguments.known:
        print(json.dumps(measure_real(published(lists_in(arguments.folder)), arguments.known)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            report(arguments.folder, arguments.sizes, arguments.json, Path(folder) / "store.sqlite3")


def report(lists: Path, sizes: Sequence[int], as_json: bool, store: Path) -> None:
    first, again = (apart(lists, "--real", str(store)) for _ in range(2))
    known = apart(lists, "--known", str(store.with_name("known.sqlite3")))
    real = {"first": first, "again": again, "known": known}
    rows = [apart(lists, "--one", str(size), str(store)) for size in sizes]
    found = {"machine": machine(), "real": real, "sizes": rows}
    print(json.dumps(found, indent=1) if as_json else table(found))


def apart(lists: Path, *more: str) -> dict[str, float]:
    command = [sys.executable, __file__, str(lists), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return dict(json.loads(done.stdout))


def measure_real(catalog: Snapshot, path: Path) -> dict[str, float]:
    """The first search over the real tools, indexing and loading the model included.

    Under changed names and with changed descriptions nothing is known of them; as they were published, their
    vectors come with the package.
    """
    with open_store(path) as store:
        model = LazyModel()
        engine = Engine(
            CachedEmbedder(model, store.vectors), QueryEmbedder(model), calibration=packaged_background()
        )
        first, cpu = spent(partial(first_search, engine, model, catalog))
    count = sum(len(source.items) for source in catalog.sources)
    return {"tools": count, "first_s": round(first, 2), "cpu_s": round(cpu, 2)}


def first_search(engine: Engine, model: LazyModel, catalog: Snapshot) -> None:
    """As a proxy does it: the model is opened while words are read."""
    opening = Thread(target=model.get)
    opening.start()
    engine.search(QUERIES[0], catalog)
    opening.join()


def measure(folder: Path, size: int, path: Path) -> dict[str, float]:
    # As a proxy does.
    limit_malloc_arenas()
    collect_garbage_seldom()
    sys.setswitchinterval(SWITCH_SECONDS)
    catalog, model = snapshot(size, lists_in(folder)), LazyModel()
    queries = QueryEmbedder(model, remembered=0)
    queries.embed(["the model is loaded"])
    with open_store(path) as store:
        copies = Copies(CachedEmbedder(model, store.vectors))
        engine = Engine(copies, queries)
        # As a proxy does when its servers have settled: what they listed is there to stay, unlike the pages
        # that were only needed to load libraries.
        gc.freeze()
        unmap_files()
        idle, _ = anyio.run(stalls, partial(time.sleep, 1))
        stall, words_s = anyio.run(stalls, partial(engine.index, catalog))
        times = latencies(lambda query: engine.search(query, catalog))
        one = Filters(servers=frozenset({catalog.sources[0].key}))
        filtered = latencies(lambda query: engine.search(query, catalog, one))
        narrow = Filters(labels=frozenset({tag_label("read")}), no_labels=frozenset({DESTRUCTIVE}))
        narrowed = latencies(lambda query: engine.search(query, catalog, narrow))
        changes, changed = [], catalog
        for _ in range(CHANGES):
            changed = with_one_change(changed)
            changes.append(spent(partial(engine.search, "the tool changed just now", changed)))
        swapping, _ = anyio.run(stalls, partial(engine.index, with_one_change(changed)))
        unit = 1 if sys.platform == "darwin" else 1024
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
        agreement = agreed(engine, changed)
    found = {
        "tools": size,
        "servers": len(catalog.sources),
        **middle("search", times),
        "p95_ms": 1e3 * float(np.quantile([wall for wall, _ in times], 0.95)),
        **middle("filtered", filtered),
        **middle("narrowed", narrowed),
        **middle("change", changes),
        "stall_ms": max(stall, swapping),
        "idle_ms": idle,
        "memory_mb": memory,
        "agreement": 100 * agreement,
        "words_cpu_s": words_s,
    }
    return {name: round(value, 2) for name, value in found.items()}


def middle(name: str, times: Sequence[tuple[float, float]]) -> dict[str, float]:
    """The medians of both clocks, in ms."""
    wall, cpu = 1e3 * np.median(times, axis=0)
    return {f"{name}_ms": float(wall), f"{name}_cpu": float(cpu)}


async def stalls(act: Callable[[], Any]) -> tuple[float, float]:
    """The longest time that an event loop got no turn, in ms, while something ran in a thread.

    And the processor time of that, in seconds.
    """
    longest, began = 0.0, time.process_time()

    async def run(scope: anyio.CancelScope) -> None:
        await anyio.to_thread.run_sync(act)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(run, group.cancel_scope)
        group.start_soon(trim_periodically)  # as a proxy does
        while True:
            before = time.perf_counter()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(TICK)
            longest = max(longest, time.perf_counter() - before - TICK)
            if group.cancel_scope.cancel_called:
                break
    return 1e3 * longest, time.process_time() - began


def agreed(engine: Engine, catalog: Snapshot) -> float:
    """The share of the ten best without any estimate that search gives as its ten best."""
    tools = [item for source in catalog.sources for item in source.items if isinstance(item, Tool)]
    rng = np.random.default_rng(0)
    words = [tools[at].description.split()[:24:2] for at in rng.choice(len(tools), COMPARED, replace=False)]
    asked = [*QUERIES, *(re.sub(r"[.!?]", "", " ".join(some)) for some in words)]
    estimating = [ten_best(engine, catalog, query) for query in asked]
    limit = vectors.EXACT_CHUNKS
    try:
        vectors.EXACT_CHUNKS = 1_000_000_000
        exact = [ten_best(engine, catalog, query) for query in asked]
    finally:
        vectors.EXACT_CHUNKS = limit
    return sum(len(one & other) for one, other in zip(estimating, exact, strict=True)) / sum(map(len, exact))


def ten_best(engine: Engine, catalog: Snapshot, query: str) -> set[tuple[str, str]]:
    options = SearchOptions(top_k=100, top_n=TOP, include_score=2)
    ranking = engine.search(query, catalog, options=options)
    return {(r.item.server, r.item.name) for r in ranking.results or ranking.near_misses}


def latencies(search: Callable[[str], Any]) -> list[tuple[float, float]]:
    """Time of each search, after one round that does not count."""
    for query in QUERIES:
        search(query)
    return [spent(partial(search, query)) for query in QUERIES * ROUNDS]


def spent(act: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and seconds of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - wall, time.process_time() - cpu


def table(found: dict[str, Any]) -> str:
    rows, real = found["sizes"], found["real"]
    lines = ["\n".join(f"{name}: {value}" for name, value in found["machine"].items()), ""]
    lines.append("| | " + " | ".join(f"{row['tools']:,.0f}" for row in rows) + " |")
    lines.append("|---|" + "---:|" * len(rows))
    for name, (heading, bars) in list(HEADINGS.items())[1:]:
        cells = [cell(name, row[name], (bars or {}).get(row["tools"])) for row in rows]
        lines.append(f"| {heading} | " + " | ".join(cells) + " |")
    first, last = rows[0], rows[-1]
    return "\n".join(
        [
            *lines,
            "",
            f"From {first['tools']:,} to {last['tools']:,} tools a search takes "
            f"{last['search_ms'] / first['search_ms']:.1f} times as long.",
            f"The {real['first']['tools']:,} real tools, loading the model included: first search "
            f"{real['first']['first_s']} s ({real['first']['cpu_s']} s of processors) with nothing stored, "
            f"bar 10 on 2 cores; {real['again']['first_s']} s ({real['again']['cpu_s']} s) after a restart; "
            f"{real['known']['first_s']} s ({real['known']['cpu_s']} s) with nothing stored but the vectors "
            "that come with the package.",
        ]
    )


def cell(name: str, value: float, bar: float | None) -> str:
    if bar is None:
        return f"{value:,.10g}"
    holds = value >= bar if name == "agreement" else value <= bar
    return f"{value:,.10g} ({'bar' if holds else '**missed**, bar'} {bar:g})"


if __name__ == "__main__":
    main()
