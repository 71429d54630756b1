"""Two installed versions of the proxy, measured in turn beside each other; run by hand.

    python benchmarks/versions.py OTHER_PYTHON [--only starts calls http searches] [--rounds N] [--json FILE]

OTHER_PYTHON is the interpreter of an environment that has the other version. Both versions run at the same
time in front of the same servers, and short batches of requests go to one and then to the other, so that
whatever else the machine does hits both. The ratio in a round is this version over the other one; its median
over all rounds is the figure to look at. Linux only (it reads /proc).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import definitions
from raw_clients import HttpClient, StdioClient, call_params, crowd
from subjects import (
    SERVERS,
    Workbench,
    answers,
    free_port,
    listening,
    processor_seconds,
    proxy_command,
    tool_name,
)

SEARCH = "search_available_tools"
CALLS, SEARCHES, LISTS = 100, 5, 20
"""Requests in a batch."""

Figures = dict[str, dict[str, list[float]]]
"""Values of each round, by name and version."""

Batches = dict[str, Callable[[], float]]
"""A function for each version that runs one batch and returns its figure."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other")
    measures = {"starts": starts, "calls": calls, "http": http, "searches": searches}
    parser.add_argument("--only", nargs="+", choices=measures, default=list(measures))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pythons = {"this": sys.executable, "other": arguments.other}
    os.environ["MCP_CONTEXT_PROXY_OWN"] = "1"  # as `serve --own`, an option that older versions do not have
    found: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Path(folder))
        for chosen in arguments.only:
            for name, values in measures[chosen](bench, pythons, arguments.rounds).items():
                found[name] = values
                print(_row(name, values), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def starts(bench: Workbench, pythons: dict[str, str], rounds: int) -> Figures:
    """Milliseconds from spawning to the first ``tools/list``: by the clock, and of processor time."""
    config = bench.config()

    def first_list(python: str, processor: bool) -> float:
        client = _client(bench, python, config)
        client.open()
        client.request("tools/list")
        seconds = time.perf_counter() - client.spawned
        if processor:
            seconds = processor_seconds(client.process.pid)
        client.close()
        return seconds * 1e3

    return {
        figure: _in_turn({name: partial(first_list, one, used) for name, one in pythons.items()}, rounds)
        for figure, used in (("start", False), ("start, processor time", True))
    }


def calls(bench: Workbench, pythons: dict[str, str], rounds: int) -> Figures:
    """Milliseconds of a call and of a list over stdio, p50 of each batch; of a call with 32 in flight."""
    found = {}
    small = call_params(tool_name("proxy"))

    def p50(client: StdioClient, method: str, params: dict[str, Any], count: int) -> float:
        return median(client.timed(method, params, count)) * 1e3

    def in_flight(client: StdioClient) -> float:
        return 1e3 / client.pipelined(small, 1000, 32)

    for era in ("handshake", "modern"):
        with _ready(bench, pythons, bench.config(modern=era == "modern"), era) as clients:
            batches: dict[str, Callable[[StdioClient], float]] = {
                f"{era} call, p50": partial(p50, method="tools/call", params=small, count=CALLS),
                f"{era} list, p50": partial(p50, method="tools/list", params={}, count=LISTS),
                f"{era} call, 32 in flight": in_flight,
            }
            for name, batch in batches.items():
                subjects: Batches = {version: partial(batch, client) for version, client in clients.items()}
                found[name] = _in_turn(subjects, rounds)
    return found


def http(bench: Workbench, pythons: dict[str, str], rounds: int) -> Figures:
    """Milliseconds of a call over streamable HTTP: p50 of each batch, and of processor, also of a crowd."""
    found = {}
    for era in ("handshake", "modern"):
        with ExitStack() as stack:
            subjects: Batches = {}
            used: Batches = {}
            shared: Batches = {}
            for version, python in pythons.items():
                port = free_port()
                command = proxy_command(bench.config(modern=era == "modern"), python)
                serve = [*command, "serve", "--http", "--no-auth", "--port", str(port)]
                process = stack.enter_context(listening(serve, port))
                subjects[version] = partial(_http_batch, port, era)
                used[version] = partial(_http_processor, port, era, process.pid)
                shared[version] = partial(_crowd_processor, port, era, process.pid)
            time.sleep(3)  # until the servers are ready
            found[f"{era} call over HTTP, p50"] = _in_turn(subjects, rounds)
            found[f"{era} call over HTTP, processor time"] = _in_turn(used, rounds)
            found[f"{era} call over HTTP, 32 clients, processor time"] = _in_turn(shared, rounds)
    return found


def _http_batch(port: int, era: str) -> float:
    client = HttpClient(port, era)
    client.open()
    taken = client.timed_calls(tool_name("proxy"), CALLS)
    client.close()
    return median(taken) * 1e3


def _http_processor(port: int, era: str, pid: int) -> float:
    before = processor_seconds(pid)
    for _ in range(4):  # the system counts in steps of 10 ms
        _http_batch(port, era)
    return (processor_seconds(pid) - before) / (4 * CALLS) * 1e3


def searches(bench: Workbench, pythons: dict[str, str], rounds: int) -> Figures:
    """Milliseconds of a search over 500 tools that are indexed, and peak memory after all of them in MiB."""
    with _ready(bench, pythons, bench.config(), "handshake") as clients:
        words = definitions.queries()
        for client in clients.values():
            while "indexed" in client.data(SEARCH, query=next(words)):
                time.sleep(0.1)

        def batch(client: StdioClient) -> float:
            asked = [call_params(SEARCH, query=query) for query in islice(words, SEARCHES)]
            return median(client.timed("tools/call", params, 1)[0] for params in asked) * 1e3

        found = {
            "search, p50": _in_turn(
                {name: partial(batch, client) for name, client in clients.items()}, 2 * rounds
            )
        }
        found["peak memory, MiB"] = {name: [client.peak_mib()] for name, client in clients.items()}
    return found


def _crowd_processor(port: int, era: str, pid: int) -> float:
    before = processor_seconds(pid)
    crowd(port, era, tool_name("proxy"), 32, 20 * CALLS)
    return (processor_seconds(pid) - before) / (20 * CALLS) * 1e3


@contextmanager
def _ready(
    bench: Workbench, pythons: dict[str, str], config: Path, era: str
) -> Iterator[dict[str, StdioClient]]:
    """Two versions over stdio, connected and with every server ready."""
    clients = {name: _client(bench, python, config, era) for name, python in pythons.items()}
    try:
        for client in clients.values():
            client.open()
            for server in range(SERVERS):
                client.until(partial(answers, tool_name("proxy", server)))
        yield clients
    finally:
        for client in clients.values():
            client.close()


def _client(bench: Workbench, python: str, config: Path, era: str = "handshake") -> StdioClient:
    return StdioClient([*proxy_command(config, python), "serve"], era, bench.folder / "proxy.log")


def _in_turn(batches: Batches, rounds: int) -> dict[str, list[float]]:
    """Values by version, after one round that is not counted; who begins changes with each round."""
    values: dict[str, list[float]] = {name: [] for name in batches}
    for number in range(rounds + 1):
        for name in sorted(batches, reverse=bool(number % 2)):
            value = batches[name]()
            if number:
                values[name].append(value)
    return values


def _row(name: str, values: dict[str, list[float]]) -> str:
    ratios = [one / other for one, other in zip(values["this"], values["other"], strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    both = " | ".join(f"{median(values[version]):.3g}" for version in ("other", "this"))
    return f"| {name} | {both} | {median(ratios):.3f} | {low:.3f} to {high:.3f} |"


if __name__ == "__main__":
    main()
