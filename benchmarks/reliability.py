"""The promises of the proxy for many servers, many calls, and deaths; run by hand.

    python benchmarks/reliability.py [NAME ...] [--rounds N] [--json FILE]

Names are start, calls, memory, recovery, stop, idle, floods, crowds, deaf, backlog, store, kills
and damage; without any, all. The servers are those of `tests/faults`. Linux only (it reads /proc).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

from faulty_bench import FaultyBench, children_of, is_ready, processor_seconds, rss_mib, terminate
from figures import Figure, measured
from overload import backlog, crowds, deaf, floods
from raw_clients import HttpClient, StdioClient, call_params, frame
from stores import damage, kills, store
from subjects import free_port, listening, proxy_command, tool_name

SERVERS = 200
CALLS = 1000
DEATHS = 50
MANY = 100_000
WARM = 10_000
"""Calls before memory is looked at for the first time."""
IN_FLIGHT = 32
UNDER_WAY = 100
"""Calls that are never answered, when the proxy is told to stop."""
SETTLED_SECONDS = 2.0
IDLE_SECONDS = 60.0
IMPORTS = "import mcp_context_proxy.cli.serve, mcp_context_proxy.app.serve, mcp_context_proxy.front.local"


def start(bench: FaultyBench, rounds: int) -> list[Figure]:
    """The answer to ``initialize``, beyond the time in which Python imports the program."""
    silent = bench.faulty({f"s{n}": {"mode": "hang-initialize"} for n in range(SERVERS)}, stop_seconds=0.2)
    many = bench.faulty({f"s{n}": {"mode": "normal"} for n in range(SERVERS)}, stop_seconds=0.2)
    values: dict[str, list[float]] = {"imports": [], "healthy": [], "hanging": []}
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        imports = time.perf_counter() - began
        values["imports"].append(imports)
        for name, config in (("healthy", many), ("hanging", silent)):
            client = bench.proxy(config)
            client.open()
            values[name].append(time.perf_counter() - client.spawned - imports)
            terminate(client)
    return [
        Figure("the imports alone", values["imports"], "s"),
        Figure(f"initialize, {SERVERS} healthy servers", values["healthy"], "s", 0.5),
        Figure(f"initialize, {SERVERS} servers that never answer", values["hanging"], "s", 0.5),
    ]


def calls(bench: FaultyBench, rounds: int) -> list[Figure]:
    """A thousand calls of one second each, all at once."""
    config = bench.faulty({"slow": {"mode": "slow-call", "delay": 1.0}})
    client = bench.proxy(config)
    client.open()
    client.until(lambda client: is_ready(client, "slow__safe"))
    values = []
    for _ in range(rounds):
        values.append(CALLS / client.pipelined(call_params("slow__tool_000", nonce="n"), CALLS, CALLS))
    terminate(client)
    return [Figure(f"{CALLS} concurrent calls of 1 s", values, "s", 3.0)]


def memory(bench: FaultyBench, rounds: int) -> list[Figure]:
    """Growth of a warm proxy in many calls: over stdio in each round; over HTTP, which is slow, once."""
    client = bench.proxy(bench.config())
    client.open()
    params = call_params(tool_name("proxy"))
    client.until(lambda client: is_ready(client, tool_name("proxy")))
    client.pipelined(params, WARM, IN_FLIGHT)
    looks = [rss_mib(client.process.pid)]
    for _ in range(rounds):
        for _ in range(MANY // WARM):
            client.pipelined(params, WARM, IN_FLIGHT)
        looks.append(rss_mib(client.process.pid))
    terminate(client)
    grown = [after - before for before, after in pairwise(looks)]
    return [
        Figure(f"{MANY:,} calls over stdio add", grown, "MiB", 10.0),
        Figure(f"{MANY:,} calls over HTTP add", [_grown_over_http(bench)], "MiB", 10.0),
    ]


def _grown_over_http(bench: FaultyBench) -> float:
    port = free_port()
    command = [*proxy_command(bench.config()), "serve", "--http", "--no-auth", "--port", str(port)]
    with listening(command, port) as process:
        time.sleep(1)
        client = HttpClient(port, "modern")
        client.timed_calls(tool_name("proxy"), WARM)
        before = rss_mib(process.pid)
        for _ in range(MANY // WARM):
            client.timed_calls(tool_name("proxy"), WARM)
        after = rss_mib(process.pid)
        client.close()
    return after - before


def recovery(bench: FaultyBench, rounds: int) -> list[Figure]:
    """From a server's death to the next call that succeeds."""
    # Deaths in a row are what is measured here, so the breaker must not count them.
    config = bench.faulty({"frail": {"mode": "normal"}}, breaker_failures=10_000, backoff_reset_seconds=0.01)
    client = bench.proxy(config)
    client.open()
    client.until(lambda client: is_ready(client, "frail__safe"))
    values = []
    for _ in range(max(rounds, DEATHS)):
        (child,) = children_of(client.process.pid)
        os.kill(child, signal.SIGKILL)
        began = time.perf_counter()
        while children_of(client.process.pid) == [child]:
            time.sleep(0.001)
        client.until(lambda client: is_ready(client, "frail__safe"))
        values.append(time.perf_counter() - began)
    terminate(client)
    return [
        Figure("a server's death to the next successful call", values, "s"),
        Figure(f"the longest of {len(values)}", [max(values)], "s", 2.0),
    ]


def stop(bench: FaultyBench, rounds: int) -> list[Figure]:
    """Stopping with servers that ignore the end of their input, SIGTERM and SIGINT; idle, then with calls."""
    deaf = {f"deaf{n}": {"mode": "ignore-sigterm"} for n in range(SERVERS)}
    idle, busy = bench.faulty(deaf), bench.faulty(deaf | {"hangs": {"mode": "hang-call"}})
    left: list[int] = []
    still = [_stopped(bench.proxy(idle), left) for _ in range(rounds)]
    calling = [_stopped(bench.proxy(busy), left, UNDER_WAY) for _ in range(rounds)]
    return [
        Figure(f"exit with {SERVERS} deaf servers", still, "s", 6.0),
        Figure(f"exit with {UNDER_WAY} calls under way, too", calling, "s", 15.0),
        Figure("processes left", [len(left)], "", 0),
    ]


def _stopped(client: StdioClient, left: list[int], under_way: int = 0) -> float:
    """Seconds in which a proxy ends with all its servers up and so many calls; adds the servers left."""
    client.open()
    client.until(lambda client: len(client.request("tools/list")["tools"]) >= 3, 120)
    client.until(lambda client: len(children_of(client.process.pid)) >= SERVERS, 300)
    # Each has to have come so far as to be deaf.
    client.until(lambda client: is_ready(client, f"deaf{SERVERS - 1}__safe"), 120)
    if under_way:
        client.until(lambda client: is_ready(client, "hangs__safe"), 120)
        for number in range(under_way):
            client.send(frame(10**7 + number, "tools/call", call_params("hangs__tool_000", nonce="n")))
        time.sleep(SETTLED_SECONDS)
    children = children_of(client.process.pid)
    began = time.perf_counter()
    client.process.send_signal(signal.SIGTERM)
    client.process.wait(60)
    seconds = time.perf_counter() - began
    left += [child for child in children if Path(f"/proc/{child}").exists()]
    return seconds


def has_children(number: int, client: StdioClient) -> bool:
    return len(children_of(client.process.pid)) == number


def idle(bench: FaultyBench, rounds: int) -> list[Figure]:
    """The processor time of a proxy whose servers are there and of which nobody wants anything."""
    values: dict[int, list[float]] = {0: [], SERVERS: []}
    for number, found in values.items():
        config = bench.faulty({f"s{n}": {"mode": "normal"} for n in range(number)}, stop_seconds=0.2)
        client = bench.proxy(config)
        client.open()
        client.until(partial(has_children, number), 300)
        if number:
            client.until(lambda client: is_ready(client, f"s{SERVERS - 1}__safe"), 120)
        time.sleep(IDLE_SECONDS / 2)
        for _ in range(rounds):
            before = processor_seconds(client.process.pid)
            time.sleep(IDLE_SECONDS)
            found.append(100 * (processor_seconds(client.process.pid) - before) / IDLE_SECONDS)
        terminate(client)
    return [
        Figure(f"{number} idle servers, of one core", found, "%", 1.0) for number, found in values.items()
    ]


TABLES: dict[str, tuple[str, Callable[[FaultyBench, int], list[Figure]]]] = {
    "start": ("Start", start),
    "calls": ("Concurrent calls", calls),
    "memory": ("Memory of many calls", memory),
    "recovery": ("Recovery", recovery),
    "stop": ("Stop", stop),
    "idle": ("Idle servers", idle),
    "floods": ("Floods", floods),
    "crowds": ("A crowd of slow clients", crowds),
    "deaf": ("A host that reads nothing", deaf),
    "backlog": ("Backlog", backlog),
    "store": ("A store that is shared", store),
    "kills": ("A store whose proxy is killed", kills),
    "damage": ("A store with a flipped bit", damage),
}


def main() -> None:
    measured(__doc__, TABLES, FaultyBench, rounds=3)


if __name__ == "__main__":
    main()
