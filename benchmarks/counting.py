"""The cost of all that follows a call: proxies with one part of it and without any, over stdio; run by hand.

    python benchmarks/counting.py [--rounds N] [--calls N]

The parts are results that are shortened, statistics, learning (calls are attributed to a search of their
session) and the audit. All proxies run beside each other, on a store in a file, and are measured in turns of
some hundred calls, so that whatever else the machine does hits all; the figures are the differences of the
p50, and of the processor time of a call, of neighbouring turns. Beside it, the cost of one call in the
recorder alone. Linux only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio
from figures import Figure, machine, table
from raw_clients import StdioClient, call_params
from subjects import Workbench, answers, tool_name

from mcp_context_proxy import Catalog
from mcp_context_proxy.config import Limits
from mcp_context_proxy.statistics.recorder import Inventory, UsageRecorder
from mcp_context_proxy.store.opening import open_store

BAR_MS = 0.005
"""All parts together may add that to the p50 of a call."""

OFF: dict[str, dict[str, Any]] = {
    "results": {"max_tokens": 0, "duplicates": "keep"},
    "statistics": {"enabled": False},
    "learning": {"enabled": False},
    "audit": {"enabled": False},
}
NOTHING, ALL = "none of it", "all of it"

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
    print("\n" + table("What results, statistics, learning and the audit add to a call", figures))


def over_stdio(bench: Workbench, rounds: int, calls: int) -> list[Figure]:
    """p50 and processor time of calls without any part, and what each part and all of them add."""
    configs = {
        name: bench.config(servers=1, store=bench.folder / f"{number}.sqlite3", **_settings(name))
        for number, name in enumerate((NOTHING, *OFF, ALL))
    }
    p50: dict[str, list[float]] = {name: [] for name in configs}
    used: dict[str, list[float]] = {name: [] for name in configs}
    with ExitStack() as stack:
        clients = {name: bench.proxy(config) for name, config in configs.items()}
        for client in clients.values():
            stack.callback(client.close)
            client.open()
            client.until(partial(answers, tool_name("proxy")))
            # The calls that follow are made for it.
            client.call("search_available_tools", query="create an issue")
        order = list(clients)
        for number in range(rounds + 1):
            for name in order[number % len(order) :] + order[: number % len(order)]:
                before = _nanoseconds(clients[name])
                taken = clients[name].timed("tools/call", call_params(tool_name("proxy")), calls)
                if number:
                    p50[name].append(median(taken) * 1e3)
                    used[name].append((_nanoseconds(clients[name]) - before) / calls / 1e6)
    figures = [
        Figure(f"{NOTHING}, p50", p50[NOTHING], "ms"),
        Figure(f"{NOTHING}, processor time of a call", used[NOTHING], "ms"),
    ]
    for name in (*OFF, ALL):
        bar = BAR_MS if name == ALL else None
        figures.append(Figure(f"{name}: added to the p50", _added(p50, name), "ms", bar))
        figures.append(Figure(f"{name}: added processor time, in all", _added(used, name), "ms"))
    return figures


def _settings(name: str) -> dict[str, Any]:
    if name == ALL:
        return {}
    return {part: off for part, off in OFF.items() if part != name}


def _added(values: dict[str, list[float]], name: str) -> list[float]:
    return [with_ - without for with_, without in zip(values[name], values[NOTHING], strict=True)]


def _nanoseconds(client: StdioClient) -> int:
    """Processor time of all threads of a proxy, as the kernel has counted it."""
    threads = Path(f"/proc/{client.process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads)


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
