"""The cost for the others where somebody sends too much, sends too slowly, or reads nothing."""

from __future__ import annotations

import os
import selectors
import socket
import time
from contextlib import suppress
from typing import Any, cast

from faulty_bench import FaultyBench, is_ready, rss_mib, terminate
from figures import Figure, percentile
from raw_clients import FailureError, HttpClient, call_params, frame
from subjects import free_port, listening, proxy_command

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
RESULTS, RESULT_BYTES = 1000, 1_000_000
BACKLOG_CALLS, BACKLOG_BYTES, BACKLOG_SECONDS = 2000, 100_000, 5.0
GIVEN_BACK_SECONDS = 12.0
"""In which free memory is looked for at least once."""
FLOOD_SECONDS, CALLS_A_SECOND = 10.0, 50
SETTLED_SECONDS = 2.0


def floods(bench: FaultyBench, rounds: int) -> list[Figure]:
    """Latency of a healthy server's calls beside one that floods, and the memory that the flood adds."""
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
    client.until(lambda client: is_ready(client, "good__safe"))
    taken, until = list[float](), time.perf_counter() + FLOOD_SECONDS
    while time.perf_counter() < until:
        taken += client.timed("tools/call", call_params("good__safe", nonce="n"), 1)
        time.sleep(1 / CALLS_A_SECOND)
    peak = client.peak_mib()
    terminate(client)
    return peak, percentile(taken, 0.99)


def _huge(bench: FaultyBench, rounds: int) -> list[Figure]:
    """A result over the limit: the time until it is refused, and the memory that it adds."""
    client = bench.proxy(bench.faulty({"other": {"mode": "huge-result", "size": HUGE}}))
    client.open()
    client.until(lambda client: is_ready(client, "other__safe"))
    # What the first calls bring along is not the fault's.
    client.timed("tools/call", call_params("other__safe", nonce="n"), 100)
    time.sleep(SETTLED_SECONDS)
    before, taken = client.peak_mib(), list[float]()
    for number in range(rounds):
        params, began = call_params("other__tool_000", nonce="n"), time.perf_counter()
        answer = client.exchange(frame(2 * 10**6 + number, "tools/call", params, client.era))
        taken.append(time.perf_counter() - began)
        if b"over the limit" not in answer or not is_ready(client, "other__safe"):
            raise FailureError(answer[:500].decode())
    added = client.peak_mib() - before
    terminate(client)
    label = f"a result of {HUGE >> 20} MiB"
    return [
        Figure(f"{label}: refused after", taken, "s", 2.0),
        Figure(f"{label}: added to the peak", [added], "MiB", 40.0),
    ]


def crowds(bench: FaultyBench, rounds: int) -> list[Figure]:
    """Latency of a client's pings while a crowd sends its headers one byte a second, and the time it may."""
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
    """Memory that unread results add, and the time after which their host is left."""
    added, taken = list[float](), list[float]()
    for _ in range(rounds):
        client = bench.proxy(bench.faulty({"other": {"mode": "huge-result", "size": RESULT_BYTES}}))
        client.open()
        client.until(lambda client: is_ready(client, "other__safe"))
        client.timed("tools/call", call_params("other__safe", nonce="n"), 100)
        time.sleep(SETTLED_SECONDS)
        peak = before = client.peak_mib()
        params, began = call_params("other__tool_000", nonce="n"), time.perf_counter()
        for number in range(RESULTS):
            client.send(frame(2 * 10**6 + number, "tools/call", params, client.era))
        while client.process.poll() is None:
            with suppress(OSError, StopIteration):
                peak = max(peak, client.peak_mib())
            time.sleep(0.1)
        taken.append(time.perf_counter() - began)
        added.append(peak - before)
    label = f"{RESULTS:,} results of 1 MB that nobody reads"
    return [
        Figure(f"{label}: added to the peak", added, "MiB", 40.0),
        Figure(f"{label}: exit after", taken, "s", 35.0),
    ]


def backlog(bench: FaultyBench, rounds: int) -> list[Figure]:
    """Large calls to a server that has stopped reading: the memory that they add, and the part that stays."""
    config = bench.faulty({"deaf": {"mode": "stop-reading"}})
    config.write_text(config.read_text(encoding="utf-8") + f"\ncall_timeout = {BACKLOG_SECONDS}", "utf-8")
    client = bench.proxy(config)
    client.open()
    client.until(lambda client: is_ready(client, "deaf__safe"))
    time.sleep(SETTLED_SECONDS)
    before, took, left = rss_mib(client.process.pid), list[float](), list[float]()
    for _ in range(rounds):
        began = time.perf_counter()
        answers = client.flooded(call_params("deaf__tool_000", nonce="n" * BACKLOG_BYTES), BACKLOG_CALLS)
        took.append(time.perf_counter() - began)
        if not all(b"isError" in answer for answer in answers):
            raise FailureError(answers[0][:500].decode())
        time.sleep(GIVEN_BACK_SECONDS)
        left.append(rss_mib(client.process.pid) - before)
    added = client.peak_mib() - before
    terminate(client)
    label = f"{BACKLOG_CALLS:,} calls of {BACKLOG_BYTES // 1000} KB to a server that does not read"
    return [
        Figure(f"{label}: all answered within", took, "s", BACKLOG_SECONDS + 3.0),
        Figure(f"{label}: added to the peak", [added], "MiB", 40.0),
        Figure(f"{label}: left of it", left, "MiB"),
    ]
