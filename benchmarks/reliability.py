"""What the proxy promises when there are many servers, many calls, or deaths; run by hand.

    python benchmarks/reliability.py [NAME ...] [--rounds N] [--json FILE]

Names are start, calls, memory, recovery, stop, floods, crowds, deaf, backlog, store, kills and
damage;
without any, all. The servers are those of `tests/faults`. Linux only (it reads /proc).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from figures import Figure, measured, percentile
from raw_clients import FailureError, HttpClient, StdioClient, call_params, frame
from stores import damage, kills, store
from subjects import Workbench, free_port, listening, proxy_command, tool_name

FAULTY = Path(__file__).parents[1] / "tests" / "faults" / "faulty"
SERVERS = 200
CALLS = 1000
DEATHS = 50
MANY = 100_000
WARM = 10_000
"""Calls before memory is looked at for the first time."""
IN_FLIGHT = 32
FLOODS = {
    "flood-stdout": 1 << 28,
    "flood-stderr": 1 << 28,
    "stderr-no-newline": 1 << 28,
    "endless-line": 1 << 30,
}
"""Bytes that a server writes, by its mode."""
HUGE = 1 << 26
CROWD = 600
"""Clients that send one byte of a header each second."""
CROWD_SECONDS = 15.0
PINGS_A_SECOND = 50
RESULT = 1_000_000
SETTLED_SECONDS = 2.0
BACKLOG_CALLS, BACKLOG_BYTES, BACKLOG_SECONDS = 2000, 100_000, 5.0
GIVEN_BACK_SECONDS = 12.0
"""In which free memory is looked for at least once."""
FLOOD_SECONDS, CALLS_A_SECOND = 10.0, 50
IMPORTS = "import mcp_context_proxy.cli.serve, mcp_context_proxy.app, mcp_context_proxy.server.sdk"


class FaultyBench(Workbench):
    """Configurations with servers that misbehave."""

    def faulty(self, modes: dict[str, dict[str, Any]], **limits: Any) -> Path:
        """One server for each name, with the mode and the options it is given."""
        self._made += 1
        lines = ["[store]", 'path = "memory"', "[limits]"]
        lines += [f"{key} = {value}" for key, value in limits.items()]
        for name, options in modes.items():
            arguments = ["-S", str(FAULTY), json.dumps(options)]
            lines += [f"[servers.{name}]", f"command = {json.dumps(sys.executable)}"]
            lines += [f"args = {json.dumps(arguments)}"]
        path = self.folder / f"faulty-{self._made}.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path


def start(bench: FaultyBench, rounds: int) -> list[Figure]:
    """The answer to ``initialize``, beyond what Python takes to import the program."""
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
            _end(client)
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
    client.until(lambda client: _answers(client, "slow__safe"))
    values = []
    for _ in range(rounds):
        values.append(CALLS / client.pipelined(call_params("slow__tool_000", nonce="n"), CALLS, CALLS))
    _end(client)
    return [Figure(f"{CALLS} concurrent calls of 1 s", values, "s", 3.0)]


def memory(bench: FaultyBench, rounds: int) -> list[Figure]:
    """What a warm proxy grows by in many calls: over stdio in each round; over HTTP, which is slow, once."""
    client = bench.proxy(bench.config())
    client.open()
    params = call_params(tool_name("proxy"))
    client.until(lambda client: _answers(client, tool_name("proxy")))
    client.pipelined(params, WARM, IN_FLIGHT)
    looks = [_rss_mib(client.process.pid)]
    for _ in range(rounds):
        for _ in range(MANY // WARM):
            client.pipelined(params, WARM, IN_FLIGHT)
        looks.append(_rss_mib(client.process.pid))
    _end(client)
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
        before = _rss_mib(process.pid)
        for _ in range(MANY // WARM):
            client.timed_calls(tool_name("proxy"), WARM)
        after = _rss_mib(process.pid)
        client.close()
    return after - before


def recovery(bench: FaultyBench, rounds: int) -> list[Figure]:
    """From a server's death to the next call that succeeds."""
    # Deaths in a row are what is measured here, so the breaker must not count them.
    config = bench.faulty({"frail": {"mode": "normal"}}, breaker_failures=10_000, backoff_reset_seconds=0.01)
    client = bench.proxy(config)
    client.open()
    client.until(lambda client: _answers(client, "frail__safe"))
    values = []
    for _ in range(max(rounds, DEATHS)):
        (child,) = _children(client.process.pid)
        os.kill(child, signal.SIGKILL)
        began = time.perf_counter()
        while _children(client.process.pid) == [child]:
            time.sleep(0.001)
        client.until(lambda client: _answers(client, "frail__safe"))
        values.append(time.perf_counter() - began)
    _end(client)
    return [
        Figure("a server's death to the next successful call", values, "s"),
        Figure(f"the longest of {len(values)}", [max(values)], "s", 2.0),
    ]


def stop(bench: FaultyBench, rounds: int) -> list[Figure]:
    """Stopping with servers that ignore the end of their input, SIGTERM and SIGINT."""
    config = bench.faulty({f"deaf{n}": {"mode": "ignore-sigterm"} for n in range(SERVERS)})
    values = []
    left = 0
    for _ in range(rounds):
        client = bench.proxy(config)
        client.open()
        client.until(lambda client: len(client.request("tools/list")["tools"]) >= 3, 120)
        client.until(lambda client: len(_children(client.process.pid)) == SERVERS, 300)
        # Each has to have come so far as to be deaf.
        client.until(lambda client: _answers(client, f"deaf{SERVERS - 1}__safe"), 120)
        children = _children(client.process.pid)
        began = time.perf_counter()
        client.process.send_signal(signal.SIGTERM)
        client.process.wait(60)
        values.append(time.perf_counter() - began)
        left += sum(Path(f"/proc/{child}").exists() for child in children)
    return [
        Figure(f"exit with {SERVERS} deaf servers", values, "s", 6.0),
        Figure("processes left", [left], "", 0),
    ]


def floods(bench: FaultyBench, rounds: int) -> list[Figure]:
    """What a healthy server's calls take beside one that floods, and what the flood adds to memory."""
    quiet, _ = _beside(bench, {"mode": "normal"})
    found = []
    for mode, size in FLOODS.items():
        looks = [_beside(bench, {"mode": mode, "size": size}) for _ in range(rounds)]
        label = f"{mode}, {size >> 20:,} MiB"
        found.append(Figure(f"{label}: p99 of its neighbour", [p99 * 1e3 for _, p99 in looks], "ms", 50.0))
        found.append(Figure(f"{label}: added to the peak", [peak - quiet for peak, _ in looks], "MiB", 40.0))
    return [*found, *_huge(bench, rounds)]


def _beside(bench: FaultyBench, other: dict[str, Any]) -> tuple[float, float]:
    """Peak memory in MiB of a proxy with a healthy server and another, and p99 of the healthy one's calls."""
    client = bench.proxy(bench.faulty({"good": {"mode": "normal"}, "other": other}))
    client.open()
    client.until(lambda client: _answers(client, "good__safe"))
    taken, until = list[float](), time.perf_counter() + FLOOD_SECONDS
    while time.perf_counter() < until:
        taken += client.timed("tools/call", call_params("good__safe", nonce="n"), 1)
        time.sleep(1 / CALLS_A_SECOND)
    peak = client.peak_mib()
    _end(client)
    return peak, percentile(taken, 0.99)


def _huge(bench: FaultyBench, rounds: int) -> list[Figure]:
    """A result over the limit: until it is refused, and what that adds to memory."""
    client = bench.proxy(bench.faulty({"other": {"mode": "huge-result", "size": HUGE}}))
    client.open()
    client.until(lambda client: _answers(client, "other__safe"))
    # What the first calls bring along is not the fault's.
    client.timed("tools/call", call_params("other__safe", nonce="n"), 100)
    time.sleep(SETTLED_SECONDS)
    before, taken = client.peak_mib(), list[float]()
    for number in range(rounds):
        params, began = call_params("other__tool_000", nonce="n"), time.perf_counter()
        answer = client.exchange(frame(2 * 10**6 + number, "tools/call", params, client.era))
        taken.append(time.perf_counter() - began)
        if b"over the limit" not in answer or not _answers(client, "other__safe"):
            raise FailureError(answer[:500].decode())
    added = client.peak_mib() - before
    _end(client)
    label = f"a result of {HUGE >> 20} MiB"
    return [
        Figure(f"{label}: refused after", taken, "s", 2.0),
        Figure(f"{label}: added to the peak", [added], "MiB", 40.0),
    ]


def crowds(bench: FaultyBench, rounds: int) -> list[Figure]:
    """What a client's pings take while a crowd sends its headers one byte a second, and how long that may."""
    port = free_port()
    command = [*proxy_command(bench.config()), "serve", "--http", "--no-auth", "--port", str(port)]
    pings, held, left = list[float](), list[float](), list[float]()
    with listening(command, port):
        client = HttpClient(port, "handshake")
        client.open()
        for _ in range(rounds):
            taken, lengths = _in_a_crowd(client, port)
            pings.append(percentile(taken, 0.99) * 1e3)
            held.append(max(lengths))
            left.append(CROWD - len(lengths))
        client.close()
    return [
        Figure(f"{CROWD} slow headers: p99 of a ping beside them", pings, "ms", 100.0),
        Figure(f"{CROWD} slow headers: the longest that one was let", held, "s", 11.0),
        Figure(f"{CROWD} slow headers: still connected", left, "", 0),
    ]


def _in_a_crowd(client: HttpClient, port: int) -> tuple[list[float], list[float]]:
    """Seconds of each ping, and for how long each of the crowd was let."""
    pings, lengths = list[float](), list[float]()
    with selectors.DefaultSelector() as crowd:
        for _ in range(CROWD):
            peer = socket.create_connection(("127.0.0.1", port))
            crowd.register(peer, selectors.EVENT_READ, time.perf_counter())
        due = time.perf_counter()
        end = due + CROWD_SECONDS
        while time.perf_counter() < end:
            # Nothing is sent to them: who can be read has been disconnected.
            for key, _ in crowd.select(0):
                lengths.append(time.perf_counter() - key.data)
                crowd.unregister(key.fileobj)
                cast("socket.socket", key.fileobj).close()
            if time.perf_counter() >= due:
                due += 1.0
                for key in crowd.get_map().values():
                    with suppress(OSError):
                        os.write(key.fd, b"a")
            pings.append(client.timed_ping())
            time.sleep(1 / PINGS_A_SECOND)
        for key in list(crowd.get_map().values()):
            cast("socket.socket", key.fileobj).close()
    return pings, lengths


def deaf(bench: FaultyBench, rounds: int) -> list[Figure]:
    """What results add to memory that a host does not read, and when it is left."""
    added, taken = list[float](), list[float]()
    for _ in range(rounds):
        client = bench.proxy(bench.faulty({"other": {"mode": "huge-result", "size": RESULT}}))
        client.open()
        client.until(lambda client: _answers(client, "other__safe"))
        client.timed("tools/call", call_params("other__safe", nonce="n"), 100)
        time.sleep(SETTLED_SECONDS)
        peak = before = client.peak_mib()
        params, began = call_params("other__tool_000", nonce="n"), time.perf_counter()
        for number in range(CALLS):
            client.send(frame(2 * 10**6 + number, "tools/call", params, client.era))
        while client.process.poll() is None:
            with suppress(OSError, StopIteration):
                peak = max(peak, client.peak_mib())
            time.sleep(0.1)
        taken.append(time.perf_counter() - began)
        added.append(peak - before)
    label = f"{CALLS:,} results of 1 MB that nobody reads"
    return [
        Figure(f"{label}: added to the peak", added, "MiB", 40.0),
        Figure(f"{label}: exit after", taken, "s", 35.0),
    ]


def backlog(bench: FaultyBench, rounds: int) -> list[Figure]:
    """Large calls to a server that has stopped reading: what they add to memory, and what of it stays."""
    config = bench.faulty({"deaf": {"mode": "stop-reading"}})
    config.write_text(config.read_text(encoding="utf-8") + f"\ncall_timeout = {BACKLOG_SECONDS}", "utf-8")
    client = bench.proxy(config)
    client.open()
    client.until(lambda client: _answers(client, "deaf__safe"))
    time.sleep(SETTLED_SECONDS)
    before, took, left = _rss_mib(client.process.pid), list[float](), list[float]()
    for _ in range(rounds):
        began = time.perf_counter()
        answers = client.flooded(call_params("deaf__tool_000", nonce="n" * BACKLOG_BYTES), BACKLOG_CALLS)
        took.append(time.perf_counter() - began)
        if not all(b"isError" in answer for answer in answers):
            raise FailureError(answers[0][:500].decode())
        time.sleep(GIVEN_BACK_SECONDS)
        left.append(_rss_mib(client.process.pid) - before)
    added = client.peak_mib() - before
    _end(client)
    label = f"{BACKLOG_CALLS:,} calls of {BACKLOG_BYTES // 1000} KB to a server that does not read"
    return [
        Figure(f"{label}: all answered within", took, "s", BACKLOG_SECONDS + 3.0),
        Figure(f"{label}: added to the peak", [added], "MiB", 40.0),
        Figure(f"{label}: left of it", left, "MiB"),
    ]


def _answers(client: StdioClient, tool: str) -> bool:
    with suppress(FailureError):
        client.result_of(
            client.exchange(frame(10**6, "tools/call", call_params(tool, nonce="n"), client.era))
        )
        return True
    return False


def _children(pid: int) -> list[int]:
    """The servers of a proxy, without the guardian that would end them."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for file in files for child in file.read_text(encoding="ascii").split()]
    return [child for child in found if str(FAULTY) in _command_line(child)]


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    return ""


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _end(client: StdioClient) -> None:
    client.process.terminate()
    client.process.wait(60)


TABLES: dict[str, tuple[str, Callable[[FaultyBench, int], list[Figure]]]] = {
    "start": ("Start", start),
    "calls": ("Concurrent calls", calls),
    "memory": ("Memory of many calls", memory),
    "recovery": ("Recovery", recovery),
    "stop": ("Stop", stop),
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
