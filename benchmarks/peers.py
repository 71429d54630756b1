"""The proxy beside the lightest ones there are: a bare one in plain asyncio, and one in Rust; run by hand.

    pip install mcp-compressor
    python benchmarks/peers.py [calls] [start] [memory] [--rounds N] [--json FILE]

Ten servers of 50 tools stand behind each. In each round every subject is measured once, in turning order;
a ratio is that of two figures of one round. Without `mcp-compressor` beside this Python or on the path, its
rows are left out. Linux only (it reads /proc).
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal

import definitions
from figures import Figure, measured, percentile
from raw_clients import StdioClient, call_params
from subjects import HERE, SERVERS, TOOLS, Workbench, child, processor_seconds

IN_FLIGHT = 32
CALLS, BURST = 2000, 5000
MANY, SEARCHES = 100, 60
"""Tools of each server where memory is measured, and searches, one a second while indexing goes on."""
SETTLED_SECONDS = 7.0
"""After which free memory has been given back."""
SEARCH = "search_available_tools"
OURS, BARE, RUST, DIRECT = "proxy", "bare asyncio", "mcp-compressor (Rust)", "direct"
THROUGH = "proxy, through call_tool"
"""The same proxy, called as a model calls a tool that is not listed."""

Values = dict[str, list[float]]


def main() -> None:
    measured(__doc__, TABLES, Workbench, rounds=5)


def calls(bench: Workbench, rounds: int) -> list[Figure]:
    """``tools/call`` over stdio."""
    found: list[Figure] = []
    for era in ("handshake", "modern"):
        with _running(bench, era) as clients:
            p50, p95, rate, one, many = (dict[str, list[float]]() for _ in range(5))
            for name in _turning(clients, rounds):
                pid = clients[name].process.pid
                began = processor_seconds(pid)
                taken = clients[name].timed("tools/call", _call(name), CALLS)
                between = processor_seconds(pid)
                p50.setdefault(name, []).append(median(taken) * 1e3)
                p95.setdefault(name, []).append(percentile(taken, 0.95) * 1e3)
                rate.setdefault(name, []).append(clients[name].pipelined(_call(name), BURST, IN_FLIGHT))
                one.setdefault(name, []).append((between - began) / CALLS * 1e6)
                many.setdefault(name, []).append((processor_seconds(pid) - between) / BURST * 1e6)
            found += _table(f"{era}: call p50", p50, "ms", {BARE: 1.15, RUST: 1.0})
            found += _table(f"{era}: call p95", p95, "ms", {BARE: 1.3})
            found += _table(f"{era}: {IN_FLIGHT} in flight", rate, "calls/s", {RUST: 1.5}, "at least")
            found += _table(f"{era}: processor time of a call", one, "us", {BARE: None, RUST: None})
            found += _table(f"{era}: the same, {IN_FLIGHT} in flight", many, "us", {BARE: None, RUST: None})
    return found


def start(bench: Workbench, rounds: int) -> list[Figure]:
    """From spawning to the answers of ``initialize`` and of the first ``tools/list``, and the cost."""
    hello, listed, spent, memory = (dict[str, list[float]]() for _ in range(4))
    subjects = _subjects(bench, "handshake")
    for name in _turning(subjects, rounds):
        client = subjects[name]()
        client.open()
        hello.setdefault(name, []).append(time.perf_counter() - client.spawned)
        client.request("tools/list")
        listed.setdefault(name, []).append(time.perf_counter() - client.spawned)
        spent.setdefault(name, []).append(processor_seconds(client.process.pid))
        memory.setdefault(name, []).append(_pss_mib(client.process.pid))
        client.close()
    return [
        *_table("initialize", hello, "s", {}),
        *_table("first list", listed, "s", {BARE: 1.25}),
        *_table("processor time until then", spent, "s", {}),
        *_table("memory then (PSS)", memory, "MiB", {}),
    ]


def memory(bench: Workbench, rounds: int) -> list[Figure]:
    """The proxy with 1,000 tools: with nothing to do, and after searches, the first of which indexes all."""
    idle, searched = list[float](), list[float]()
    for number in range(rounds):
        store = bench.folder / f"memory-{number}.sqlite3"
        client = bench.proxy(bench.config(tools=MANY, store=store))
        client.open()
        client.request("tools/list")
        time.sleep(SETTLED_SECONDS)
        idle.append(_pss_mib(client.process.pid))
        words = islice(definitions.queries(), SEARCHES)
        while "indexed" in client.data(SEARCH, query=next(words)):
            time.sleep(1)
        for query in words:
            client.call(SEARCH, query=query)
        time.sleep(SETTLED_SECONDS)
        searched.append(_pss_mib(client.process.pid))
        client.close()
    return [
        Figure("with nothing to do (PSS)", idle, "MiB", 45e6 / 2**20),
        Figure(f"after {SEARCHES} searches (PSS)", searched, "MiB", 110e6 / 2**20),
    ]


TABLES: dict[str, tuple[str, Callable[[Workbench, int], list[Figure]]]] = {
    "calls": ("tools/call over stdio, beside the lightest proxies", calls),
    "start": ("Start, beside the lightest proxies", start),
    "memory": (f"Memory with {MANY * SERVERS:,} tools", memory),
}


def _call(name: str) -> dict[str, Any]:
    """The same call of the same tool for each subject's client."""
    if name == RUST:
        return call_params("s0_invoke_tool", tool_name="create_issue", tool_input={"id": "x"})
    if name == THROUGH:
        return call_params("call_tool", name="s0__create_issue", arguments={"id": "x"})
    return call_params("create_issue" if name == DIRECT else "s0__create_issue", id="x")


def _subjects(bench: Workbench, era: str) -> dict[str, Callable[[], StdioClient]]:
    """The command of each subject; only two speak the modern era."""
    modern = era == "modern"
    found: dict[str, Callable[[], StdioClient]] = {
        DIRECT: lambda: bench.direct(era),
        OURS: lambda: bench.proxy(bench.config(modern=modern), era),
    }
    found[BARE] = partial(
        StdioClient, [sys.executable, str(HERE / "bare_asyncio_proxy.py"), str(SERVERS), str(TOOLS)]
    )
    beside = Path(sys.executable).with_name("mcp-compressor")
    program = str(beside) if beside.exists() else shutil.which("mcp-compressor")
    if program is not None:
        command = [program]
        for number in range(SERVERS):
            spec = child(number, TOOLS)
            command += ["--multi-server", f"s{number}={' '.join([spec['command'], *spec['args']])}"]
        found[RUST] = partial(StdioClient, command)
    return found


@contextmanager
def _running(bench: Workbench, era: str) -> Iterator[dict[str, StdioClient]]:
    """Every subject, connected and with its servers ready."""
    with ExitStack() as stack:
        clients = {name: begin() for name, begin in _subjects(bench, era).items()}
        for name, client in clients.items():
            stack.callback(client.close)
            client.open()
            client.until(partial(_answers, _call(name)))
        yield clients | {THROUGH: clients[OURS]}


def _answers(params: dict[str, Any], client: StdioClient) -> bool:
    try:
        client.request("tools/call", params)
    except Exception:  # boundary: the server has not started yet
        return False
    return True


def _pss_mib(pid: int) -> float:
    """Return the memory of a process, shared pages divided among those that share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def _turning(subjects: dict[str, Any], rounds: int) -> Iterator[str]:
    """The subjects in turning order, in each round."""
    order = list(subjects)
    for number in range(rounds):
        yield from order[number % len(order) :] + order[: number % len(order)]


def _table(
    label: str,
    values: Values,
    unit: str,
    bars: Mapping[str, float | None],
    sense: Literal["at most", "at least"] = "at most",
) -> Iterator[Figure]:
    """Figures of every subject, and the ratio of the proxy to those that are named, with the bar if any."""
    for name, found in values.items():
        yield Figure(f"{label}: {name}", found, unit)
    for own in (OURS, THROUGH):
        for name, bar in bars.items():
            if own in values and name in values:
                ratios = [ours / other for ours, other in zip(values[own], values[name], strict=True)]
                yield Figure(f"{label}: {own} to {name}", ratios, "x", bar, sense)


if __name__ == "__main__":
    main()
