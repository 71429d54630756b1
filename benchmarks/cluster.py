"""Measures several replicas and their store: ``python benchmarks/cluster.py [PART ...] [--kills 20]``.

Starts a PostgreSQL server of its own, and compares the cost of the store with that of a file, in turn. Then
the server is killed again and again while counts are written, and paused. The other parts run replicas.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import outages
import replicas
from support.postgres import PostgresServer, missing, postgres_server

from mcp_context_proxy.config import StoreConfig
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import SearchUsage, ToolUsage, UsageSlot

NOW = 1.7e9
SLOT = UsageSlot.of(NOW)
ROUNDS = 200
STORE_PARTS = ("costs", "kills", "pause")
REPLICA_PARTS = {
    part.__name__: part
    for part in (
        replicas.attribution,
        replicas.handles,
        replicas.relay,
        replicas.parked,
        replicas.hints,
        replicas.lists,
        replicas.crashes,
        replicas.rolling,
        replicas.scale,
        outages.calls,
        outages.away,
        outages.killed,
        outages.cuts,
        outages.teaching,
        outages.failover,
    )
}


def main() -> None:
    """Run all parts and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="time for which the server is paused")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("parts", nargs="*", choices=[*STORE_PARTS, *REPLICA_PARTS, []], help="all by default")
    given = parser.parse_args()
    parts = given.parts or [*STORE_PARTS, *REPLICA_PARTS]
    if reason := missing():
        raise SystemExit(reason)
    say(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with postgres_server() as server, tempfile.TemporaryDirectory() as folder:
        if "costs" in parts:
            costs(server)
        if "kills" in parts:
            kills(server, given.kills)
        if "pause" in parts:
            pause(server, given.seconds)
        for part in parts:
            if part in REPLICA_PARTS:
                anyio.run(REPLICA_PARTS[part], say, server, Path(folder))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def count(store: Store, tools: int = 1, batch: int | None = None) -> None:
    """Add one call to each of some tools."""
    rows = [(SLOT, ToolUsage("s", f"t{n}", 1, 0, 1, 2.0, 3, NOW, {7: 1})) for n in range(tools)]
    store.statistics.add(rows, {SLOT: SearchUsage(1)}, [], batch)


def costs(server: PostgresServer) -> None:
    """Compare operations on a file and on the server, one after the other in each round."""
    with tempfile.TemporaryDirectory() as folder:
        file = open_store(Path(folder) / "store.sqlite3")
        shared = open_store(StoreConfig(url=server.url, namespace="costs"))
        operations: dict[str, Callable[[Store], object]] = {
            "look for changed pairs": lambda store: store.learned.revision(),
            "read one request": lambda store: store.requests.get("r"),
            "count one tool": count,
            "count 20 tools": lambda store: count(store, 20),
        }
        for name, operation in operations.items():
            took: dict[str, list[float]] = {"file": [], "server": []}
            for _ in range(ROUNDS):
                for kind, store in (("file", file), ("server", shared)):
                    began = time.perf_counter()
                    operation(store)
                    took[kind].append(1000 * (time.perf_counter() - began))
            p50 = {kind: statistics.median(times) for kind, times in took.items()}
            say(f"{name}: file {p50['file']:.3f} ms, server {p50['server']:.3f} ms (p50 of {ROUNDS})")
        file.close()
        shared.close()


def kills(server: PostgresServer, times: int) -> None:
    """Kill the server under load; nothing that was acknowledged may be lost or doubled."""
    with open_store(StoreConfig(url=server.url, namespace="kills")) as store:
        acknowledged, stop, waits = 0, threading.Event(), list[float]()

        def write() -> None:
            nonlocal acknowledged
            while not stop.is_set():
                number, began = store.statistics.next_batch(), time.perf_counter()
                while True:
                    try:
                        count(store, 1, number)
                        break
                    except StoreError:
                        time.sleep(0.02)
                waits.append(time.perf_counter() - began)
                acknowledged += 1

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(times):
            time.sleep(0.5)
            server.kill()
            server.start()
        time.sleep(0.5)
        stop.set()
        thread.join()
        counted = sum(tool.calls for tool in store.statistics.tools())
    say(
        f"{times} kills: {acknowledged:,} batches acknowledged, {counted - acknowledged:+d} in the store, "
        f"longest wait until writing went on {max(waits):.1f} s"
    )


def pause(server: PostgresServer, seconds: float) -> None:
    """Pause the server; each operation has to be given up in time."""
    with open_store(StoreConfig(url=server.url, namespace="pause")) as store:
        count(store)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        server.pause()
        took, end = list[float](), time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                began = time.perf_counter()
                try:
                    count(store)
                except StoreError:
                    took.append(time.perf_counter() - began)
                time.sleep(0.005)
        finally:
            server.resume()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        slow, median = [each for each in took if each > 0.1], 1000 * statistics.median(took)
        say(
            f"paused {seconds:.0f} s: {len(took):,} operations failed, {len(slow)} of them after waiting; "
            f"longest {max(took):.2f} s, median {median:.3f} ms; memory {grown:+.1f} MiB"
        )


if __name__ == "__main__":
    main()
