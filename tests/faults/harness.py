"""Parts that the tests of faults share: the faulty servers, a healthy neighbour, and instruments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from support.ledger import Ledger as Entries
from support.raw_client import RawClient

PROGRAM = Path(__file__).with_name("faulty")
BYSTANDER = "good"
"""The healthy server beside every fault."""
SAFE = "safe"
"""The tool that works in every mode."""


class Ledger(Entries):
    """The events of all servers of one proxy, in one file."""

    def of(self, event: str, mode: str | None = None, **facts: Any) -> list[dict[str, Any]]:
        """The entries of one event, of one mode, with these facts."""
        return [
            entry
            for entry in self.entries(event)
            if (mode is None or entry["mode"] == mode)
            and all(entry.get(key) == value for key, value in facts.items())
        ]

    def repeated(self) -> list[str]:
        """Nonces of calls that were run more than once: there must be none."""
        nonces = Counter(entry["nonce"] for entry in self.entries("call") if entry["nonce"] is not None)
        return [nonce for nonce, count in nonces.items() if count > 1]

    def survivors(self) -> list[int]:
        """Servers, and processes they started, that still run."""
        pids = {entry["pid"] for entry in self.entries("start")}
        pids |= {entry["child"] for entry in self.entries("spawned")}
        return [pid for pid in pids if runs(pid) and is_faulty(pid)]


def runs(pid: int) -> bool:
    """Return whether a process with this id runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_faulty(pid: int) -> bool:
    """Return whether the process with this id is one of the faulty servers, because ids are reused."""
    try:
        return str(PROGRAM).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def rss(pid: int) -> int:
    """Resident memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """The children of a process."""
    # Each thread has those that it started itself.
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text(encoding="utf-8").split()]


def faulty(mode: str, ledger: Path, era: str = "handshake", **options: Any) -> dict[str, Any]:
    """The settings of a faulty server on standard streams."""
    data = {"mode": mode, "ledger": str(ledger), "era": era} | options
    return {"command": sys.executable, "args": ["-S", str(PROGRAM), json.dumps(data)]}


@contextmanager
def twin(ledger: Path, era: str = "handshake", **options: Any) -> Iterator[str]:
    """Every mode over HTTP, at a URL of its own: its base."""
    data = {"http": True, "ledger": str(ledger), "era": era} | options
    command = [sys.executable, "-S", str(PROGRAM), json.dumps(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def nonce() -> str:
    """Something that no other call says."""
    return uuid.uuid4().hex


@dataclass
class Bystander:
    """Calls the healthy server all the while, and counts."""

    client: RawClient
    tool: str = f"{BYSTANDER}__{SAFE}"
    rate: float = 20.0
    calls: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[Bystander]:
        async with anyio.create_task_group() as group:
            group.start_soon(self._run)
            yield self
            group.cancel_scope.cancel()

    async def _run(self) -> None:
        due = anyio.current_time()
        while True:
            await self.call()
            # Not so long after the last call: a slow answer would thin out the calls that would show it.
            due = max(due + 1 / self.rate, anyio.current_time())
            await anyio.sleep_until(due)

    async def call(self) -> None:
        said, began = nonce(), time.perf_counter()
        try:
            result = await self.client.call(self.tool, {"nonce": said})
        except Exception as error:
            self.errors.append(repr(error))
            return
        self.seconds.append(time.perf_counter() - began)
        self.calls += 1
        if result["content"] != [{"type": "text", "text": said}]:
            self.errors.append(json.dumps(result)[:300])

    async def until_more(self, count: int = 2) -> None:
        """Wait until it has made that many more calls; none may have failed."""
        wanted = self.calls + count
        await self.client.until(lambda _: self.calls >= wanted or self.errors)
        assert self.errors == []


class Watchdog:
    """Sleeps 10 ms at a time and notes by how much that was exceeded: the stalls of its event loop."""

    STEP = 0.01

    def __init__(self) -> None:
        self.longest = 0.0
        """By the clock, in seconds."""
        self.longest_work = 0.0
        """By the processor time of the loop's thread: a busy machine adds nothing to it."""

    async def run(self) -> None:
        while True:
            began, worked = time.perf_counter(), time.thread_time()
            await anyio.sleep(self.STEP)
            self.longest = max(self.longest, time.perf_counter() - began - self.STEP)
            self.longest_work = max(self.longest_work, time.thread_time() - worked)
