"""Losses of a store that is shared, whose proxy is killed, or whose bytes were changed."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
import time
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

from figures import Figure
from raw_clients import FailureError, StdioClient, call_params
from subjects import Workbench, answers, tool_name

from mcp_context_proxy.trust.audit_file import AuditFile

SHARING_SECONDS, SETTLED_SECONDS = 60.0, 2.0
KILLS, KILLED_WITHIN = 500, 2.0
"""Seconds from when it has servers: several of its writings."""
FLIPS = 200
SEARCH_EVERY = 10
"""Calls to one search, which writes to other tables."""
TOOLS = 5
FILES = ("", "-wal")


def store(bench: Workbench, rounds: int) -> list[Figure]:
    """Calls that are lost where two proxies share a store."""
    del rounds
    path = bench.folder / "store.sqlite3"
    config = bench.config(store=path)
    tool = tool_name("proxy")
    clients = [_opened(bench, config, tool) for _ in range(2)]
    time.sleep(SETTLED_SECONDS)
    made, until = _counted(path), time.perf_counter() + SHARING_SECONDS
    while time.perf_counter() < until:
        for number, client in enumerate(clients):
            client.timed("tools/call", call_params(tool), 10)
            client.call("search_available_tools", query=f"what {number} needs at {time.perf_counter()}")
            made += 10
    for client in clients:
        client.close()
    uncounted = made - _counted(path)
    return [Figure(f"two proxies, {SHARING_SECONDS:.0f} s: calls that are not counted", [uncounted], "", 0)]


def kills(bench: Workbench, rounds: int) -> list[Figure]:
    """Calls that are lost where a proxy is killed, at moments that nothing else knows of."""
    del rounds
    path = bench.folder / "store.sqlite3"
    config = bench.config(TOOLS, servers=1, store=path)
    chance = random.Random(1)
    _opened(bench, config, tool_name("proxy")).close()
    ages, unnoted, unsound = [], [], 0
    for _ in range(KILLS):
        try:
            age, of_audit = _killed(bench, config, path, chance.uniform(0, KILLED_WITHIN))
        except sqlite3.DatabaseError:
            unsound += 1
        else:
            ages.append(age)
            unnoted.append(of_audit)
    return [
        Figure(f"{KILLS} kills: stores that fail `integrity_check`", [unsound], "", 0),
        Figure(f"{KILLS} kills: age of the oldest call that is lost", [max(ages)], "s", 1.0),
        Figure(f"{KILLS} kills: the same, median", ages, "s"),
        Figure(f"{KILLS} kills: age of the oldest call that the audit lost", [max(unnoted)], "s", 1.0),
        Figure(f"{KILLS} kills: the same, median", unnoted, "s"),
    ]


def _killed(bench: Workbench, config: Path, path: Path, after: float) -> tuple[float, float]:
    """Kill a proxy that makes calls; how old the oldest is that statistics lost, and that the audit did."""
    tool, before, answered = tool_name("proxy"), _counted(path), list[float]()
    for old in path.parent.glob("audit*.jsonl"):
        old.unlink()
    client = bench.proxy(config)
    client.open()
    client.until(lambda client: any(found["name"] == tool for found in client.request("tools/list")["tools"]))
    killed = list[float]()

    def kill() -> None:
        killed.append(time.perf_counter())
        client.process.kill()

    killing = threading.Timer(after, kill)
    killing.start()
    with suppress(FailureError, BrokenPipeError):
        for number in count(1):
            client.call(tool)
            answered.append(time.perf_counter())
            if number % SEARCH_EVERY == 0:
                client.call("search_available_tools", query=f"what number {number} needs")
    killing.join()
    client.process.wait()
    noted = sum(entry["kind"] == "call" for entry in AuditFile(path.parent, 10_000_000, 3).entries())
    lost, unnoted = len(answered) - (_counted(path) - before), len(answered) - noted
    return (
        killed[0] - answered[-lost] if lost > 0 else 0.0,
        killed[0] - answered[-unnoted] if unnoted > 0 else 0.0,
    )


def damage(bench: Workbench, rounds: int) -> list[Figure]:
    """Proxies that start with one bit of their store, or of its log, flipped."""
    del rounds
    path, sound = bench.folder / "store.sqlite3", bench.folder / "sound"
    config, tool = bench.config(TOOLS, servers=1, store=path), tool_name("proxy")
    # Killed, so that part of what it wrote is in the log.
    client = _opened(bench, config, tool)
    for number in range(50):
        client.call(tool)
        client.call("search_available_tools", query=f"what number {number} needs")
    time.sleep(SETTLED_SECONDS)
    client.process.kill()
    client.process.wait()
    for end in FILES:
        shutil.copy(f"{path}{end}", f"{sound}{end}")
    chance, aside, failed = random.Random(1), 0, list[str]()
    for _ in range(FLIPS):
        for old in path.parent.glob(f"{path.stem}*"):
            old.unlink()
        what = _flipped(sound, path, chance)
        log = bench.folder / "proxy.log"
        log.write_bytes(b"")
        try:
            client = _opened(bench, config, tool)
            client.call("search_available_tools", query="what is needed")
            client.close()
        except (FailureError, OSError) as error:
            failed.append(f"{what}: {error}")
        told = log.read_text(encoding="utf-8")
        if client.process.returncode != 0 or "Traceback" in told:
            failed.append(f"{what}: {client.process.returncode} {told}")
        aside += any(path.parent.glob(f"{path.stem}.corrupt-*"))
    print("\n".join(failed), flush=True)
    return [
        Figure(f"{FLIPS} flips: proxies that did not start, serve and end well", [len(failed)], "", 0),
        Figure(f"{FLIPS} flips: stores that were set aside", [aside], ""),
    ]


def _flipped(sound: Path, path: Path, chance: random.Random) -> str:
    """Lay the files of a sound store there, one bit of them flipped; which."""
    chosen = chance.choice(FILES)
    for end in FILES:
        data = bytearray(Path(f"{sound}{end}").read_bytes())
        if end == chosen:
            at, bit = chance.randrange(len(data)), chance.randrange(8)
            data[at] ^= 1 << bit
        Path(f"{path}{end}").write_bytes(data)
    return f"bit {bit} of byte {at} of {path.name}{chosen}"


def _opened(bench: Workbench, config: Path, tool: str) -> StdioClient:
    """A proxy whose servers answer."""
    client = bench.proxy(config)
    client.open()
    client.until(lambda client: answers(tool, client))
    return client


def _counted(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            raise sqlite3.DatabaseError(f"{path} is damaged")
        return int(connection.execute("SELECT total(calls) FROM tool_usage").fetchone()[0])
