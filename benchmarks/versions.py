"""Two installed versions of the proxy, measured in turn beside each other; run by hand.

    python benchmarks/versions.py OTHER_PYTHON [--only starts calls http searches] [--rounds N] [--json FILE]

OTHER_PYTHON is the interpreter of an environment that has the other version. In each round both versions are
started anew, because a process mostly stays on the core where it was placed first. Then both run at the same
time in front of the same servers, and short batches of requests go to one and then to the other, so that
whatever else the machine does hits both. A value is the median of a round's batches, and the ratio in a round
is this version over the other one; its median over all rounds is the figure to look at. Linux only (it reads
/proc).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
CALLS, SEARCHES, LISTS, LARGE = 100, 5, 20, 10
"""Requests in a batch."""

MEGABYTE = 1_000_000
"""Characters of an argument or a result; the result is shortened, as by default."""

BATCHES = 5
"""Batches for each version in a round, after one that is not counted."""

Figures = dict[str, dict[str, list[float]]]
"""Values of each round, by name and version."""

Batches = dict[str, Callable[[], float]]
"""Functions by name that run one batch and return its figure."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other")
    measures = {"starts": starts, "calls": calls, "http": http, "searches": searches}
    parser.add_argument("--only", nargs="+", choices=measures, default=list(measures))
    parser.add_argument("--rounds", type=int, default=12)
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
    found: Figures = {}
    small = call_params(tool_name("proxy"))
    given = call_params(tool_name("proxy"), data="x" * MEGABYTE)
    got = call_params(tool_name("proxy"), size=MEGABYTE)

    def p50(client: StdioClient, method: str, params: dict[str, Any], count: int) -> float:
        return median(client.timed(method, params, count)) * 1e3

    def in_flight(client: StdioClient) -> float:
        return 1e3 / client.pipelined(small, 10 * CALLS, 32)

    def processor(client: StdioClient) -> float:
        before = processor_seconds(client.process.pid)
        client.pipelined(small, 100 * CALLS, 32)  # the system counts in steps of 10 ms
        return (processor_seconds(client.process.pid) - before) / (100 * CALLS) * 1e3

    for era in ("handshake", "modern"):
        config = bench.config(modern=era == "modern")

        @contextmanager
        def started(python: str, config: Path = config, era: str = era) -> Iterator[Batches]:
            with _ready(bench, python, config, era) as client:
                yield {
                    f"{era} call, p50": partial(p50, client, "tools/call", small, CALLS),
                    f"{era} list, p50": partial(p50, client, "tools/list", {}, LISTS),
                    f"{era} call with an argument of 1 MB": partial(p50, client, "tools/call", given, LARGE),
                    f"{era} call with a result of 1 MB": partial(p50, client, "tools/call", got, LARGE),
                    f"{era} call, 32 in flight": partial(in_flight, client),
                    f"{era} call, 32 in flight, processor time": partial(processor, client),
                }

        found |= _in_pairs({name: partial(started, python) for name, python in pythons.items()}, rounds)
    return found


def http(bench: Workbench, pythons: dict[str, str], rounds: int) -> Figures:
    """Milliseconds of a call over streamable HTTP: p50 of each batch, and of processor, also of a crowd."""
    found: Figures = {}
    for era in ("handshake", "modern"):
        config = bench.config(modern=era == "modern")

        @contextmanager
        def started(python: str, config: Path = config, era: str = era) -> Iterator[Batches]:
            port = free_port()
            serve = [*proxy_command(config, python), "serve", "--http", "--no-auth", "--port", str(port)]
            with listening(serve, port) as process:
                time.sleep(2)  # until the servers are ready
                yield {
                    f"{era} call over HTTP, p50": partial(_http_batch, port, era),
                    f"{era} call over HTTP, processor time": partial(_http_processor, port, era, process.pid),
                    f"{era} call over HTTP, 32 clients, processor time": partial(
                        _crowd_processor, port, era, process.pid
                    ),
                }

        found |= _in_pairs({name: partial(started, python) for name, python in pythons.items()}, rounds)
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
    words = definitions.queries()

    @contextmanager
    def started(python: str, config: Path) -> Iterator[Batches]:
        with _ready(bench, python, config, "handshake") as client:
            while "indexed" in client.data(SEARCH, query=next(words)):
                time.sleep(0.1)

            def batch() -> float:
                asked = [call_params(SEARCH, query=query) for query in islice(words, SEARCHES)]
                return median(client.timed("tools/call", params, 1)[0] for params in asked) * 1e3

            yield {"search, p50": batch, "peak memory, MiB": client.peak_mib}

    configs = {name: bench.config(store=bench.folder / f"{name}.sqlite3") for name in pythons}
    return _in_pairs(
        {name: partial(started, python, configs[name]) for name, python in pythons.items()}, rounds
    )


def _crowd_processor(port: int, era: str, pid: int) -> float:
    before = processor_seconds(pid)
    crowd(port, era, tool_name("proxy"), 32, 20 * CALLS)
    return (processor_seconds(pid) - before) / (20 * CALLS) * 1e3


@contextmanager
def _ready(bench: Workbench, python: str, config: Path, era: str) -> Iterator[StdioClient]:
    """One version over stdio, connected and with every server ready."""
    client = _client(bench, python, config, era)
    try:
        client.open()
        for server in range(SERVERS):
            client.until(partial(answers, tool_name("proxy", server)))
        yield client
    finally:
        client.close()


def _client(bench: Workbench, python: str, config: Path, era: str = "handshake") -> StdioClient:
    return StdioClient([*proxy_command(config, python), "serve"], era, bench.folder / "proxy.log")


def _in_pairs(versions: dict[str, Callable[[], AbstractContextManager[Batches]]], rounds: int) -> Figures:
    """Values of each round by figure and version, with both versions started anew for each round."""
    found: Figures = {}
    for number in range(rounds):
        with ExitStack() as stack:
            order = sorted(versions, reverse=bool(number % 2))
            started = {name: stack.enter_context(versions[name]()) for name in order}
            for figure in started[order[0]]:
                batches = {name: started[name][figure] for name in order}
                for name, values in _in_turn(batches, BATCHES).items():
                    found.setdefault(figure, {}).setdefault(name, []).append(median(values))
    return found


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
