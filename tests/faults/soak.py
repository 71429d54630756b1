"""Everything goes wrong at once: ``python tests/faults/soak.py --seconds 600 [--seed N] [--shared]``.

With ``--shared`` the clients come over bridges to one proxy that they share, else over HTTP.

Thirty servers with random faults behind one proxy; their processes are killed, its configuration is edited,
clients come, call and leave, some in the middle of a call. All of it follows from one printed seed. At the
end it tells what was lost, doubled or run twice, of which there must be none, and how the healthy neighbour
fared meanwhile.

The neighbour is called from a process of its own, since calls from here would measure how busy the soak is.
Its times are by the clock, whatever else the machine does; how long the proxy itself kept its loop is told
beside them, by processor time.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.cases import STDIO
from faults.harness import BYSTANDER, PROGRAM, SAFE, Ledger, children, faulty, nonce, rss
from faults.sharing import door, meeting
from support.raw_client import RawClient, RpcError
from support.servers import Workshop

SERVERS = 30
DEAF = ["deaf1", "deaf2", "deaf3"]
"""Servers that answer no call; three, since one takes 256 at once."""

CALLERS = 8
VISIT_CALLS = 60
"""Of one client at most. Eight callers make 100,000 calls in a quarter of an hour; with more the neighbour
waits."""

CALL_SECONDS = 2.0
PAUSE_SECONDS = 0.1
"""Between two calls of one client, at most."""

CROWD = round(CALL_SECONDS / (PAUSE_SECONDS / 2) / 2)
"""Calls that one client has under way when half of the servers never answer: more than there ever are."""

GRACE_SECONDS = 10.0
"""Beyond the time limit of a call, after which it counts as late: a tool that is not known waits for servers
that are starting, a session's own connection is opened first, and the machine is busy by design."""

LATER_SECONDS = 60.0
"""After which it counts as lost."""

GONE_SECONDS = 5.0
"""For killed processes to be gone."""

WARM_SECONDS = 60.0
"""After which growth of memory counts. By then thousands of calls have met most ways to fail, and more than
later were under way at once: what that took, the allocators keep."""

MEMORY_SECONDS = 10.0
"""Of which the median counts: a few megabytes come and go with large answers that are under way."""

WATCHED = Path(__file__).with_name("watched.py")
NEIGHBOUR = Path(__file__).with_name("neighbour.py")
SERVING = re.compile(r"serving (http://\S+)/mcp")
MODES = [case for case in STDIO if case.mode != "memory-hog"]
LIMITS = {
    "message_bytes": 4 << 20,
    "pages": 30,
    "call_seconds": CALL_SECONDS,
    "connect_seconds": 5.0,
    "stop_seconds": 0.5,
    "backoff_max_seconds": 2.0,
    "breaker_seconds": 3.0,
    # Of clients that left without a word; half an hour would be all of the soak.
    "session_idle_seconds": 30.0,
}


@dataclass
class Figures:
    """The findings of a soak."""

    seed: int
    seconds: float
    calls: int = 0
    faults: int = 0
    """Calls that ended in an error, as they should where a server failed."""
    kills: int = 0
    edits: int = 0
    reconnects: int = 0
    abandoned: int = 0
    """Calls whose client left before the answer."""
    late: int = 0
    """Answers that came long after their deadline."""
    lost: int = 0
    doubled: int = 0
    """Messages that answer nothing that was asked, or answer it again, or are no messages."""
    wrong: int = 0
    """Answers of the healthy tool that were somebody else's."""
    repeated: int = 0
    bystander_calls: int = 0
    bystander_errors: int = 0
    bystander_p99_ms: float = 0.0
    longest_stall_ms: float = 0.0
    """The longest delay of the proxy's event loop by the clock, which includes delays by other processes."""
    longest_work_ms: float = 0.0
    """Processor time that the loop spent without looking at anything else."""
    rss_idle_mib: float = 0.0
    """Memory of the proxy before there was any load,"""
    rss_crowd_mib: float = 0.0
    """when more calls were under way at once than later,"""
    rss_warm_mib: float = 0.0
    """when it was warm,"""
    rss_mib: float = 0.0
    """at the end,"""
    rss_peak_mib: float = 0.0
    """and the most there was."""
    rss_growth_mib: float = 0.0
    """From warm to the end."""
    orphans: int = 0
    exit_code: int | None = None
    examples: list[str] = field(default_factory=list)


class Soak:
    """One run."""

    def __init__(self, folder: Path, seconds: float, seed: int, least: int, shared: bool = False) -> None:
        self.seconds, self.random, self.least = seconds, random.Random(seed), least
        self.shared = shared
        self.figures = Figures(seed, seconds)
        self.workshop, self.ledger = Workshop(folder), Ledger(folder / "ledger")
        self.folder = folder
        self.modes: dict[str, str] = {}
        for number in range(SERVERS):
            self.choose(f"s{number}")
        for server in DEAF:
            self.modes[server] = "hang-call"
            self.workshop.server(server).settings = faulty("hang-call", self.ledger.path, era="both")
        self.workshop.server(BYSTANDER).settings = faulty("normal", self.ledger.path, era="both")

    def choose(self, server: str) -> None:
        """Give a server a fault."""
        case = self.random.choice(MODES)
        self.modes[server] = case.mode
        options = {"size": 1 << 20, "delay": 0.5} | case.options
        settings = faulty(
            case.mode, self.ledger.path, era=self.random.choice(["handshake", "both"]), **options
        )
        self.workshop.server(server).settings = settings | {"env": {"API_TOKEN": "soak-secret-value"}}

    def configure(self) -> Path:
        return self.workshop.config(limits=LIMITS, search={"warm_up": False})

    @asynccontextmanager
    async def shared_proxy(self) -> AsyncIterator[tuple[str, int]]:
        """The address and the process of a proxy that clients start and share."""
        with meeting(self.configure()) as met:
            async with met.host("modern"):
                (pid,) = met.proxies()
                yield met.address, pid
            met.stop()
            self.figures.exit_code = 0
            (self.folder / "log").write_text(met.log(), encoding="utf-8")

    @contextmanager
    def proxy(self) -> Iterator[tuple[str, int]]:
        """The address and the process of a running proxy."""
        log = self.folder / "log"
        command = [sys.executable, str(WATCHED), str(self.folder / "report"), str(self.configure())]
        with (
            log.open("w", encoding="utf-8") as stderr,
            subprocess.Popen(
                # In a session of its own, as a host starts it: with the soak it would share one share.
                command,
                stderr=stderr,
                start_new_session=True,
            ) as process,
        ):
            try:
                while not (found := SERVING.search(log.read_text(encoding="utf-8"))):
                    assert process.poll() is None, log.read_text(encoding="utf-8")
                    time.sleep(0.05)
                yield found[1], process.pid
            finally:
                process.terminate()
                try:
                    self.figures.exit_code = process.wait(60)
                finally:
                    process.kill()

    async def run(self) -> Figures:
        if self.shared:
            async with self.shared_proxy() as (base, pid):
                await self.disturb(base, pid)
        else:
            with self.proxy() as (base, pid):
                await self.disturb(base, pid)
        self.conclude()
        return self.figures

    async def disturb(self, base: str, pid: int) -> None:
        async with door(base, "modern") as client:
            await self.until_there(client)
        await self.crowd(base, pid)
        async with self.neighbour(base), anyio.create_task_group() as group:
            for _ in range(CALLERS):
                group.start_soon(self.caller, base)
            group.start_soon(self.killer, pid)
            group.start_soon(self.editor)
            await self.watch_memory(pid)
            while self.figures.calls < self.least:  # noqa: ASYNC110 - another process
                await anyio.sleep(0.1)
            group.cancel_scope.cancel()

    async def crowd(self, base: str, pid: int) -> None:
        """Have more calls under way at once than later, before growth of memory counts.

        How many there are later depends on which faults the seed chose; what a call leaves behind does not.
        """
        self.figures.rss_idle_mib = rss(pid) / 2**20
        async with AsyncExitStack() as stack:
            eras = ["handshake", "modern"] * (CALLERS // 2)
            clients = [await stack.enter_async_context(door(base, era)) for era in eras]
            async with anyio.create_task_group() as group:
                for _ in range(CROWD):
                    for number, client in enumerate(clients):
                        group.start_soon(self.call, client, DEAF[number % len(DEAF)], "tool_000")
                    await anyio.sleep(PAUSE_SECONDS / 2)
                self.figures.rss_crowd_mib = rss(pid) / 2**20

    async def watch_memory(self, pid: int) -> None:
        """Look at the proxy's memory each second, to the end of the soak."""
        began, looks = anyio.current_time(), []
        for second in range(1, round(self.seconds) + 1):
            await anyio.sleep_until(began + second)
            looks.append(rss(pid) / 2**20)
        figures, some = self.figures, round(min(MEMORY_SECONDS, self.seconds / 4))
        warm = round(min(WARM_SECONDS, self.seconds / 2))
        figures.rss_peak_mib = max(looks)
        figures.rss_warm_mib = statistics.median(looks[warm - some : warm])
        figures.rss_mib = statistics.median(looks[-some:])
        figures.rss_growth_mib = figures.rss_mib - figures.rss_warm_mib

    @asynccontextmanager
    async def neighbour(self, base: str) -> AsyncIterator[None]:
        """Has the healthy server called all the while."""
        command = [sys.executable, str(NEIGHBOUR), base, str(self.least)]
        async with await anyio.open_process(command, stderr=None) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield
                await process.stdin.aclose()
                told = b"".join([part async for part in process.stdout])
            finally:
                if process.returncode is None:
                    process.kill()
        report, figures = json.loads(told), self.figures
        seconds, errors = sorted(report["seconds"]), report["errors"]
        figures.bystander_calls, figures.bystander_errors = len(seconds), len(errors)
        figures.bystander_p99_ms = seconds[int(len(seconds) * 0.99)] * 1000 if seconds else 0.0
        figures.examples += errors[:5]

    async def until_there(self, client: RawClient) -> None:
        """Until the healthy server can be called, and those of the crowd."""
        for server in [BYSTANDER, *DEAF]:
            while (await client.call(f"{server}__{SAFE}", {"nonce": nonce()})).get("isError"):  # noqa: ASYNC110
                await anyio.sleep(0.1)

    async def caller(self, base: str) -> None:
        """Clients, one after the other: each calls for a while, and some leave in the middle."""
        while True:
            era = self.random.choice(["handshake", "modern"])
            rude = self.random.random() < 0.3
            self.figures.reconnects += 1
            client: RawClient | None = None
            try:
                async with door(base, era) as client:
                    with anyio.move_on_after(self.random.uniform(0.2, 3.0) if rude else None):
                        async with anyio.create_task_group() as group:
                            for _ in range(self.random.randint(1, VISIT_CALLS)):
                                server = f"s{self.random.randrange(SERVERS)}"
                                tool = self.random.choice([SAFE, "tool_000", "tool_001"])
                                group.start_soon(self.call, client, server, tool)
                                await anyio.sleep(self.random.uniform(0, PAUSE_SECONDS))
            except Exception as error:
                self.figures.lost += 1
                self.figures.examples.append(repr(error)[:300])
            finally:
                if client is not None:
                    self.figures.doubled += len(client.violations)
                    self.figures.examples += client.violations[:2]

    async def call(self, client: RawClient, server: str, tool: str) -> None:
        mode, said = self.modes[server], nonce()
        self.figures.calls += 1
        try:
            params = {"name": f"{server}__{tool}", "arguments": {"nonce": said}}
            _, future = await client.start("tools/call", params)
            # Its error is looked at also where nobody waits for it any more.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait([future], timeout=CALL_SECONDS + GRACE_SECONDS)
            if not future.done():
                self.figures.late += 1
                await asyncio.wait([future], timeout=LATER_SECONDS)
                came = "late" if future.done() else "never"
                self.figures.examples.append(f"{came}: {server} ({mode}) {tool}, {client.era}")
            if future.done():
                self.judge(future.result(), tool, said)
            else:
                self.figures.lost += 1
        except RpcError:
            self.figures.faults += 1
        except anyio.get_cancelled_exc_class():
            self.figures.abandoned += 1
            raise

    def judge(self, result: Any, tool: str, said: str) -> None:
        if result.get("isError"):
            self.figures.faults += 1
        elif tool == SAFE and result["content"] != [{"type": "text", "text": said}]:
            self.figures.wrong += 1
            self.figures.examples.append(f"said {said}, heard {json.dumps(result)[:200]}")

    async def killer(self, pid: int) -> None:
        """Kills a server's process now and then."""
        while True:
            await anyio.sleep(self.random.uniform(0.3, 1.5))
            running = [child for child in children(pid) if not self.is_bystander(child)]
            if running:
                self.figures.kills += 1
                try:
                    os.kill(self.random.choice(sorted(running)), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def is_bystander(self, pid: int) -> bool:
        """Return whether it is the healthy server, or the guardian of the proxy."""
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            return b'"mode": "normal"' in line or str(PROGRAM).encode() not in line
        except OSError:
            return True

    async def editor(self) -> None:
        """Edits the configuration: another fault for a server; now and then something that is not TOML."""
        while True:
            await anyio.sleep(self.random.uniform(2.0, 5.0))
            self.figures.edits += 1
            if self.random.random() < 0.2:
                path = self.folder / "config.toml"
                path.write_text(path.read_text(encoding="utf-8") + "\n[nonsense", encoding="utf-8")
            else:
                self.choose(f"s{self.random.randrange(SERVERS)}")
                self.configure()

    def conclude(self) -> None:
        figures = self.figures
        repeated = self.ledger.repeated()
        figures.repeated = len(repeated)
        for entry in self.ledger.entries("call"):
            if entry["nonce"] in repeated:
                figures.examples.append(f"repeated: {json.dumps(entry)}")
        # A process that was killed may still have to be given the time to go.
        gone_by = time.monotonic() + GONE_SECONDS
        while self.ledger.survivors() and time.monotonic() < gone_by:
            time.sleep(0.05)
        figures.orphans = len(self.ledger.survivors())
        if not self.shared:
            report = json.loads((self.folder / "report").read_text(encoding="utf-8"))
            figures.longest_stall_ms = report["longest"] * 1000
            figures.longest_work_ms = report["longest_work"] * 1000
        secret = "soak-secret-value"
        if secret in (self.folder / "log").read_text(encoding="utf-8"):
            figures.examples.append("the secret is in the log")
            figures.wrong += 1


async def soak(folder: Path, seconds: float, seed: int, least: int = 0, shared: bool = False) -> Figures:
    """Run it for so many seconds, or until it and the neighbour have each made so many calls."""
    return await Soak(folder, seconds, seed, least, shared).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--shared", action="store_true")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = anyio.run(soak, Path(folder), arguments.seconds, seed, 0, arguments.shared)
    for name, value in asdict(figures).items():
        print(f"{name.replace('_', ' '):20} {f'{value:.1f}' if isinstance(value, float) else value}")
    failed = figures.lost or figures.doubled or figures.repeated or figures.orphans or figures.wrong
    sys.exit(1 if failed or figures.bystander_errors or figures.exit_code else 0)


if __name__ == "__main__":
    main()
