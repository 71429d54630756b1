"""Recall of interactions: what is found of a written set, and how long it takes among 100,000.

    python -m benchmarks.recall [--interactions 100000]

``set.json`` has 200 interactions (seventy messages, searches and calls written by hand, ninety messages
about tickets and twenty about commits made from patterns, one search twenty times) and 80 queries: 30 with
the id of a ticket or a commit, 30 in other words than the message, 20 that nothing fits. It was looked at
while the share of the best was chosen; the weights of words and of evidence were those of the tool search.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path

import numpy as np

from mcp_context_proxy import Interaction, Interactions
from mcp_context_proxy.config import Config
from mcp_context_proxy.interactions import Recall

SET = json.loads(Path(__file__).with_name("set.json").read_text(encoding="utf-8"))
DAY = 86_400.0


def quality() -> None:
    now = time.time()
    with Interactions() as memory:
        memory.add(
            [
                Interaction(one["agent"], one["type"], one["content"], now - one["days"] * DAY)
                for one in SET["interactions"]
            ]
        )
        memory.backfill()
        found: dict[str, list[tuple[int | None, int]]] = {}
        for query in SET["queries"]:
            recall = memory.semantic_search_interactions(query["query"])
            wanted = {SET["interactions"][at]["content"] for at in query["expected"]}
            places = [
                place for place, one in enumerate(recall.results, 1) if one.interaction.content in wanted
            ]
            found.setdefault(query["kind"], []).append((places[0] if places else None, len(recall.results)))
    print("| queries | number | first | among five | shown | nothing shown |")
    print("|---|---|---|---|---|---|")
    for kind, results in found.items():
        ranks = [rank for rank, _ in results if rank is not None]
        first, five = ranks.count(1), sum(rank <= 5 for rank in ranks)
        shown = statistics.mean(count for _, count in results)
        empty = sum(count == 0 for _, count in results)
        print(f"| {kind} | {len(results)} | {first} | {five} | {shown:.1f} | {empty} |")


def speed(count: int) -> None:
    chance, now = random.Random(1), time.time()
    words = [word for one in SET["interactions"] for word in one["content"].split()]
    config = Config.of({"interactions": {"keep": count}})
    with Interactions(config=config) as memory:
        kept = memory.add(
            [
                Interaction("agent", "message", " ".join(chance.choices(words, k=12)) + f" PROJ-{at}", now)
                for at in range(count)
            ]
        )
        # Vectors of random directions: embedding so many texts would take half an hour.
        model_id = memory._lazy.get().model_id
        rows = np.random.default_rng(1).standard_normal((count, 384)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        for start in range(0, count, 5_000):
            batch = kept[start : start + 5_000]
            memory._store.put_vectors(model_id, {one.id: rows[start + at] for at, one in enumerate(batch)})
        began = time.perf_counter()
        memory.semantic_search_interactions("warm")
        print(f"\n{count:,} interactions: the first search reads them in {time.perf_counter() - began:.1f} s")
        queries = [query["query"] for query in SET["queries"]] * 3
        took: dict[str, list[float]] = {"by the clock": [], "of processor time": []}
        for query in queries:
            began, busy = time.perf_counter(), time.process_time()
            answer: Recall = memory.semantic_search_interactions(query)
            took["by the clock"].append(1000 * (time.perf_counter() - began))
            took["of processor time"].append(1000 * (time.process_time() - busy))
            assert answer.known == count
        print(f"with embedding, at a load of {os.getloadavg()[0]:.1f}:")
        for kind, times in took.items():
            times.sort()
            print(f"p50 {times[len(times) // 2]:.1f} ms, p99 {times[int(len(times) * 0.99)]:.1f} ms {kind}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interactions", type=int, default=100_000)
    quality()
    speed(parser.parse_args().interactions)
