"""The cost of counting for a call: the same proxy with statistics and without, over stdio; run by hand.

    python benchmarks/counting.py [--rounds N] [--calls N]

Both run beside each other, on a store in a file, and are measured in turns of some hundred calls, so that
whatever else the machine does hits both; the figure is the difference of the p50 of neighbouring turns.
Beside it, the cost of one call in the recorder alone. POSIX only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import anyio
from figures import Figure, machine, table
from raw_clients import StdioClient, call_params
from subjects import Workbench, answers, tool_name

from mcp_context_proxy import Catalog
from mcp_context_proxy.config import Limits
from mcp_context_proxy.statistics.recorder import Inventory, UsageRecorder
from mcp_context_proxy.store import open_store

BAR_MS = 0.05

RECORDED = 20_000
"""Calls in a turn of the recorder alone."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=300)
    arguments = parser.parse_args()
    print("\n".join(f"{name}: {value}" for name, value in machine().items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = over_stdio(Workbench(Path(folder)), arguments.rounds, arguments.calls)
    figures.append(Figure("in the recorder, a call", [anyio.run(recorder) for _ in range(5)], "ms"))
    print("\n" + table("What counting adds to a call", figures))


def over_stdio(bench: Workbench, rounds: int, calls: int) -> list[Figure]:
    """p50 of calls with and without, and the difference of each pair of turns."""
    configs = {
        enabled: bench.config(store=bench.folder / f"{enabled}.sqlite3", statistics={"enabled": enabled})
        for enabled in (False, True)
    }
    clients = {enabled: bench.proxy(config) for enabled, config in configs.items()}
    values: dict[bool, list[float]] = {False: [], True: []}
    try:
        for client in clients.values():
            client.open()
            client.until(partial(answers, tool_name("proxy")))
        for number in range(rounds + 1):
            for enabled in (False, True) if number % 2 else (True, False):
                p50 = _p50_ms(clients[enabled], calls)
                if number:
                    values[enabled].append(p50)
    finally:
        for client in clients.values():
            client.close()
    added = [with_ - without for with_, without in zip(values[True], values[False], strict=True)]
    return [
        Figure("without statistics, p50", values[False], "ms"),
        Figure("with statistics, p50", values[True], "ms"),
        Figure("added to the p50", added, "ms", BAR_MS),
    ]


def _p50_ms(client: StdioClient, calls: int) -> float:
    return median(client.timed("tools/call", call_params(tool_name("proxy")), calls)) * 1e3


async def recorder() -> float:
    """Milliseconds that the event loop spends on one call."""
    with open_store("memory") as store:
        inventory = Inventory(store.statistics, Catalog(), tokens=lambda _: 0, listed_whole=lambda _: False)
        usage = UsageRecorder(store.statistics, Limits(), inventory)
        began = time.perf_counter()
        for number in range(RECORDED):
            usage.called("server", f"tool_{number % 50}", 1.0 + number % 97, False, 500)
        return (time.perf_counter() - began) / RECORDED * 1e3


if __name__ == "__main__":
    main()
