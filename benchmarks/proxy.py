"""Speed of the proxy, beside no proxy and beside the least proxy the SDK makes; run by hand.

    python benchmarks/proxy.py [start] [lists] [calls] [http] [search] [life] [--rounds N] [--json FILE]

Without a name, all. In each round every subject is measured once, in turning order, so that whatever else
the machine does hits all of them; the figure is the median of the rounds, with the least and the most.
Compare ratios of one run, not figures of two. Linux only (it reads /proc).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import definitions
from catalogs import LISTS, lists_in
from figures import Figure, measured, percentile
from raw_clients import FailureError, HttpClient, StdioClient, call_params, crowd, frame
from subjects import (
    HERE,
    SERVERS,
    SUBJECTS,
    TOOLS,
    Workbench,
    answers,
    bare_command,
    free_port,
    listening,
    processor_seconds,
    proxy_command,
    recorded,
    tool_name,
)

SEARCH = "search_available_tools"
MANY = definitions.MOST
"""Tools of each server where a large catalog is measured: 3,000 in all."""

INDEXING_SECONDS = 0.1
"""Between two looks at how far indexing is."""

WARM_UP = 20
"""First searches that are not counted."""

IN_FLIGHT = 32
LEAST, LEAST_PROXY = "bare asyncio server", "bare asyncio proxy"
"""Over HTTP, beside the SDK's: what the language itself takes."""
CROWD_CALLS = 4000

PEAK_MIB = 250e6 / 2**20

SEARCH_BARS: dict[int, dict[str, float]] = {
    TOOLS: {"p50": 20, "in process": 20, "added": 0.8, "cold peak": PEAK_MIB, "warm peak": PEAK_MIB},
    100: {"cold first": 15, "warm first": 0.3, "added": 0.8},
    MANY: {"in process": 10, "added": 0.8, "cold peak": PEAK_MIB, "warm peak": PEAK_MIB},
}
"""By tools of each server."""

SEARCHED = {
    "cold first": ("first search, nothing stored", "s"),
    "warm first": ("first search after a restart", "s"),
    "p50": ("search p50", "ms"),
    "p99": ("search p99", "ms"),
    "in process": ("search p50, in process", "ms"),
    "added": ("search p50, over the protocol rather than in process", "ms"),
    "cold peak": ("peak RSS, nothing stored", "MiB"),
    "warm peak": ("peak RSS after a restart", "MiB"),
}

Values = dict[str, list[float]]


def main() -> None:
    measured(__doc__, TABLES, Workbench, rounds=5)


def start(bench: Workbench, rounds: int) -> list[Figure]:
    """From spawning to the answer of the first ``tools/list``, and to a complete catalog."""
    healthy, hanging = bench.config(), bench.config(hanging=1)
    everything = bench.config(expose={"mode": "all"})
    subjects: dict[str, Callable[[], float]] = {
        "python -c pass": _interpreter,
        "proxy": lambda: _first_list(bench.proxy(healthy)),
        "proxy, one server hangs": lambda: _first_list(bench.proxy(hanging)),
        "proxy, all tools listed": lambda: _complete_list(bench.proxy(everything)),
        "bare SDK": lambda: _first_list(bench.bare()),
    }
    values = _alternating(subjects, rounds)
    bars = {"proxy": 1.5, "proxy, one server hangs": 1.5}
    return [Figure(name, values[name], "s", bars.get(name)) for name in subjects]


def lists(bench: Workbench, rounds: int) -> list[Figure]:
    """Warm ``tools/list``."""
    few, many = bench.proxy(bench.config()), bench.proxy(bench.config(MANY, expose={"mode": "all"}))
    bare = bench.bare(tools=MANY)
    for client in (few, many, bare):
        _ready(client)
    for client in (many, bare):
        client.until(lambda client: len(client.request("tools/list")["tools"]) >= MANY * SERVERS)
    subjects = {
        "default list": lambda: _p50_ms(few, "tools/list", 200),
        "3,000 tools": lambda: _p50_ms(many, "tools/list", 20),
        "3,000 tools, bare SDK": lambda: _p50_ms(bare, "tools/list", 2),
    }
    values = _alternating(subjects, rounds)
    for client in (few, many, bare):
        client.close()
    bars = {"default list": 3, "3,000 tools": 40}
    return [Figure(name, values[name], "ms", bars.get(name)) for name in subjects]


def calls(bench: Workbench, rounds: int) -> list[Figure]:
    """``tools/call`` over stdio."""
    found = []
    for era in ("handshake", "modern"):
        with bench.trio(era) as clients:
            found += _sequential(clients, rounds, f"{era}, small", 0, 1000, 0.5)
            if era == "handshake":
                found += _sequential(clients, rounds, f"{era}, 10 kB", 10_000, 500, None)
                found += _sequential(clients, rounds, f"{era}, 1 MB", 1_000_000, 20, None)
            found += _through_call_tool(clients, rounds, era)
            found += _throughput(clients, rounds, era)
    return found


def http(bench: Workbench, rounds: int) -> list[Figure]:
    """``tools/call`` over kept-alive HTTP connections: one, and 32 with a call under way on each."""
    ports = {name: free_port() for name in (*SUBJECTS, LEAST, LEAST_PROXY)}
    at = {name: str(port) for name, port in ports.items()}
    serve = [*proxy_command(bench.config()), "serve", "--http", "--no-auth", "--port", at["proxy"]]
    least = [sys.executable, str(HERE / "bare_asyncio_proxy.py")]
    found = []
    with ExitStack() as stack:
        running = stack.enter_context(listening(serve, ports["proxy"]))
        for name, command in {
            "direct": bare_command(0, 0, False),
            "bare SDK": bare_command(SERVERS, TOOLS, False),
            LEAST: [*least, "0", "0"],
            LEAST_PROXY: [*least, str(SERVERS), str(TOOLS)],
        }.items():
            stack.enter_context(listening([*command, "--http", at[name]], ports[name]))
        time.sleep(2)
        for era in ("handshake", "modern"):
            found += _over_http(ports, era, rounds)
            found += _crowd(ports["proxy"], running.pid, era, rounds)
    return found


def search(bench: Workbench, rounds: int) -> list[Figure]:
    """Searches: the first ones, warm ones, and their cost in memory."""
    found = []
    for count, bars in SEARCH_BARS.items():
        total = f"{count * SERVERS:,} tools"
        values = _searches(bench, count, rounds if count == TOOLS else 1 + rounds // 2)
        found += [
            Figure(f"{total}: {name}", values[key], unit, bars.get(key))
            for key, (name, unit) in SEARCHED.items()
        ]
    values = _real_searches(bench, rounds)
    return found + [
        Figure(f"real tools: {name}", values[key], unit, 0.8 if key == "added" else None)
        for key, (name, unit) in SEARCHED.items()
        if key in values
    ]


def life(bench: Workbench, rounds: int) -> list[Figure]:
    """The end of the process, and the recovery of a server that died."""
    values: Values = {"exit": [], "exit, one server hangs": [], "recovery": [], "exit, bare SDK": []}
    healthy, hanging = bench.config(), bench.config(hanging=1)
    for _ in range(rounds):
        client = _ready(bench.proxy(healthy))
        started = time.perf_counter()
        client.exchange(frame(0, "tools/call", call_params(tool_name("proxy"), crash=True)))
        client.until(partial(answers, tool_name("proxy")))
        values["recovery"].append(time.perf_counter() - started)
        values["exit"].append(client.close())
        values["exit, one server hangs"].append(_ready(bench.proxy(hanging)).close())
        values["exit, bare SDK"].append(_ready(bench.bare()).close())
    names = {"exit": "exit after end of input", "recovery": "a server dies: next successful call"}
    return [Figure(names.get(name, name), values[name], "s") for name in values]


TABLES: dict[str, tuple[str, Callable[[Workbench, int], list[Figure]]]] = {
    "start": ("Start: spawn, initialize, tools/list", start),
    "lists": ("tools/list, warm", lists),
    "calls": ("tools/call over stdio", calls),
    "http": ("tools/call over HTTP", http),
    "search": ("Search", search),
    "life": ("End and recovery", life),
}


def _alternating(subjects: dict[str, Callable[[], float]], rounds: int) -> Values:
    """A value per subject and round, after one round that is not counted."""
    values: Values = {name: [] for name in subjects}
    order = list(subjects)
    for number in range(rounds + 1):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            value = subjects[name]()
            if number:
                values[name].append(value)
    return values


def _interpreter() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - started


def _first_list(client: StdioClient) -> float:
    client.open()
    client.request("tools/list")
    seconds = time.perf_counter() - client.spawned
    client.close()
    return seconds


def _complete_list(client: StdioClient) -> float:
    client.open()
    client.until(lambda client: len(client.request("tools/list")["tools"]) >= SERVERS * TOOLS)
    seconds = time.perf_counter() - client.spawned
    client.close()
    return seconds


def _ready(client: StdioClient) -> StdioClient:
    client.open()
    for server in range(SERVERS):
        client.until(partial(answers, tool_name("proxy", server)))
    return client


def _p50_ms(client: StdioClient, method: str, count: int) -> float:
    return median(client.timed(method, {}, count)) * 1e3


def _sequential(
    clients: dict[str, StdioClient], rounds: int, label: str, size: int, count: int, bar: float | None
) -> list[Figure]:
    """p50 and p99 of calls one after the other, and the addition of each proxy to direct ones in a round."""
    arguments = {"size": size} if size else {}

    def times(name: str) -> list[float]:
        return clients[name].timed("tools/call", call_params(tool_name(name), **arguments), count)

    p50, p99 = _percentiles(times, rounds)
    return _compared(label, p50, p99, bar)


def _percentiles(
    times: Callable[[str], list[float]], rounds: int, subjects: Iterable[str] = SUBJECTS
) -> tuple[Values, Values]:
    p99: Values = {name: [] for name in subjects}

    def measure(name: str) -> float:
        taken = times(name)
        p99[name].append(percentile(taken, 0.99) * 1e3)
        return median(taken) * 1e3

    p50 = _alternating({name: partial(measure, name) for name in subjects}, rounds)
    return p50, {name: values[1:] for name, values in p99.items()}


def _compared(
    label: str, p50: Values, p99: Values, bar: float | None, subjects: Iterable[str] = SUBJECTS
) -> list[Figure]:
    found = []
    for name in subjects:
        found.append(Figure(f"{label}: {name}, p50", p50[name], "ms"))
        found.append(Figure(f"{label}: {name}, p99", p99[name], "ms"))
    for name in SUBJECTS[1:]:
        over = _over(p50, name, "direct")
        kept = bar if name == "proxy" else None
        found.append(Figure(f"{label}: {name} over direct, p50", over, "ms", kept))
    return found


def _through_call_tool(clients: dict[str, StdioClient], rounds: int, era: str) -> list[Figure]:
    """Plain calls are measured again beside it: p50 drifts within a run by more than the two differ."""
    tool = tool_name("proxy")
    wrapped = {"name": "call_tool", "arguments": {"name": tool, "arguments": {}}}
    requests = {
        "direct": ("direct", call_params(tool_name("direct"))),
        "plain": ("proxy", call_params(tool)),
        "call_tool": ("proxy", wrapped),
    }

    def measure(name: str) -> float:
        subject, params = requests[name]
        return median(clients[subject].timed("tools/call", params, 1000)) * 1e3

    values = _alternating({name: partial(measure, name) for name in requests}, rounds)
    label = f"{era}, small, through call_tool"
    return [
        Figure(f"{label}: proxy over direct, p50", _over(values, "call_tool", "direct"), "ms", 0.5),
        Figure(f"{label}: over a plain call, p50", _over(values, "call_tool", "plain"), "ms"),
    ]


def _over(values: Values, one: str, other: str) -> list[float]:
    return [value - base for value, base in zip(values[one], values[other], strict=True)]


def _throughput(clients: dict[str, StdioClient], rounds: int, era: str) -> list[Figure]:
    counts = {"direct": 5000, "proxy": 5000, "bare SDK": 1000}

    def rate(name: str) -> float:
        return clients[name].pipelined(call_params(tool_name(name)), counts[name], IN_FLIGHT)

    values = _alternating({name: partial(rate, name) for name in SUBJECTS}, rounds)
    bars = {"proxy": 1500.0}
    label = f"{era}, small, {IN_FLIGHT} in flight"
    return [
        Figure(f"{label}: {name}", values[name], "calls/s", bars.get(name), "at least") for name in SUBJECTS
    ]


def _over_http(ports: dict[str, int], era: str, rounds: int) -> list[Figure]:
    # The least proxy passes on what it gets to servers of the handshake era.
    eras = {LEAST_PROXY: "handshake"}
    clients = {name: HttpClient(port, eras.get(name, era)) for name, port in ports.items()}
    for client in clients.values():
        client.open()
    p50, p99 = _percentiles(lambda name: clients[name].timed_calls(tool_name(name), 200), rounds, ports)
    for client in clients.values():
        client.close()
    over = _over(p50, "proxy", LEAST)
    return [
        *_compared(f"{era}, small", p50, p99, 0.12, ports),
        Figure(f"{era}, small: proxy over {LEAST}, p50", over, "ms"),
        Figure(f"{era}, small: proxy over {LEAST_PROXY}, p50", _over(p50, "proxy", LEAST_PROXY), "ms"),
    ]


def _crowd(port: int, pid: int, era: str, rounds: int) -> list[Figure]:
    """Calls of many clients, each on a connection of its own."""
    values: Values = {"rate": [], "processor": [], "one core": [], "p50": [], "p99": []}
    for _ in range(rounds):
        before = processor_seconds(pid)
        rate, taken = crowd(port, era, tool_name("proxy"), IN_FLIGHT, CROWD_CALLS)
        used = (processor_seconds(pid) - before) / CROWD_CALLS
        for name, value in (("rate", rate), ("processor", used * 1e6), ("one core", 1 / used)):
            values[name].append(value)
        values["p50"].append(median(taken) * 1e3)
        values["p99"].append(percentile(taken, 0.99) * 1e3)
    label, bar = f"{era}, {IN_FLIGHT} clients", 2500.0 if era == "modern" else None
    return [
        Figure(f"{label}: calls/s", values["rate"], "calls/s"),
        Figure(f"{label}: processor time of a call", values["processor"], "us"),
        Figure(f"{label}: for which one core has time", values["one core"], "calls/s", bar, "at least"),
        Figure(f"{label}: p50", values["p50"], "ms"),
        Figure(f"{label}: p99", values["p99"], "ms"),
    ]


def _searches(bench: Workbench, count: int, rounds: int) -> Values:
    """Each round: a process without a store, and one with the store it left."""
    store = bench.folder / f"store-{count}.sqlite3"
    config = bench.config(count, store=store)
    values: Values = {}
    for _ in range(rounds):
        for path in bench.folder.glob(store.name + "*"):
            path.unlink()
        for state in ("cold", "warm"):
            _search_run(bench, config, state, values, count * SERVERS)
    return values


def _real_searches(bench: Workbench, rounds: int) -> Values:
    values: Values = {}
    folder = bench.folder / "recorded"
    folder.mkdir()
    config = recorded(folder, folder / "store.sqlite3")
    lines = (HERE / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    requests = [json.loads(line)["request"] for line in lines]
    known = sum(map(len, lists_in(LISTS).values()))
    for _ in range(rounds):
        client = bench.proxy(config)
        client.open()
        while "indexed" in (data := client.data(SEARCH, query=requests[0])) or data["known"] < known:
            time.sleep(INDEXING_SECONDS)
        _in_turns(config, requests, partial(_search_time, client), values)
        client.close()
    return values


def _in_turns(config: Path, requests: Iterable[str], over: Callable[[str], float], values: Values) -> None:
    """Searches over stdio and through the engine's own interface, in turn for each request."""
    taken = asyncio.run(_in_process(config, requests, over))[WARM_UP:]
    walls, within = [one for one, _ in taken], [one for _, one in taken]
    found = {
        "p50": median(walls),
        "p99": percentile(walls, 0.99),
        "in process": median(within),
        "added": median(one - other for one, other in taken),
    }
    for name, seconds in found.items():
        values.setdefault(name, []).append(seconds * 1e3)


def _search_run(bench: Workbench, config: Path, state: str, values: Values, known: int) -> None:
    """One process: its first search, whatever is indexed by then, then whole ones, then its peak memory."""
    client = _ready(bench.proxy(config))
    words = definitions.queries()
    started = time.perf_counter()
    client.call(SEARCH, query=next(words))
    values.setdefault(f"{state} first", []).append(time.perf_counter() - started)
    while "indexed" in client.data(SEARCH, query=next(words)):
        time.sleep(INDEXING_SECONDS)
    _in_turns(config, islice(words, WARM_UP + 100), partial(_search_time, client, known=known), values)
    values.setdefault(f"{state} peak", []).append(client.peak_mib())
    client.close()


def _search_time(client: StdioClient, query: str, known: int | None = None) -> float:
    """Seconds of one search, which has to be a whole one: by words alone or over less it would be faster."""
    started = time.perf_counter()
    (block,) = client.call(SEARCH, query=query)["content"]
    seconds = time.perf_counter() - started
    if "Note: Indexing" in block["text"] or (known and f" of {known:,} tools" not in block["text"]):
        raise FailureError(f"not a whole search: {block['text'][:200]}")
    return seconds


async def _in_process(
    config: Path, requests: Iterable[str], other: Callable[[str], float]
) -> list[tuple[float, float]]:
    """Seconds of each request elsewhere, and through the engine's own interface after it."""
    from mcp_context_proxy.app.serve import open_proxy
    from mcp_context_proxy.config import load

    async with open_proxy(load(config)) as proxy:
        await proxy.wait_first_connect()
        taken = []
        for query in requests:
            elsewhere = other(query)
            started = time.perf_counter()
            await proxy.contexts.select(query, remember=False)
            taken.append((elsewhere, time.perf_counter() - started))
        return taken


if __name__ == "__main__":
    main()
