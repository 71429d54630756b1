"""Parts of ``benchmarks/cluster.py`` about the database: its cost for a call, and its absence."""

from __future__ import annotations

import hashlib
import random
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import anyio
import numpy as np
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from replicas import THINGS, VERBS, Say, team
from support import wires
from support.cutting import CuttingProxy
from support.postgres import PostgresServer, postgres_server, standby_of
from support.proxies import http_proxy
from support.raw_client import RawClient
from support.replicas import until_ready

from mcp_context_proxy.config import StoreConfig
from mcp_context_proxy.embedding import Matrix
from mcp_context_proxy.embedding.embeddings import LazyModel, QueryEmbedder
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.learning import Signal, Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import SearchUsage, ToolUsage, UsageSlot

NOW = 1.7e9
SLOT = UsageSlot.of(NOW)

Times = dict[str, dict[str, list[float]]]
"""Milliseconds by kind of request, and by proxy."""


async def timed(client: RawClient, kind: str, number: int, context_id: str | None = None) -> float:
    """Return the milliseconds of a call, or of a search, whose words the number decides."""
    began = time.perf_counter()
    if kind == "call":
        await client.call("work__echo", {"text": str(number)})
    else:
        query = f"{VERBS[number % 10]} the {THINGS[number // 10 % 10]} of customer {number}"
        await client.call(
            "search_available_tools",
            {"query": query, "top_n": 5} | ({} if context_id is None else {"context_id": context_id}),
        )
    return 1000 * (time.perf_counter() - began)


TURN = 30
"""Requests to one proxy before those to the next one."""

QUERIES = 100
"""Number of different searches of `calls`. Each is made before it counts, which leaves out its embedding.

An embedding takes longer than all else in a search, and varies by more than what a store adds.
"""


def processor_ms(pid: int) -> float:
    """Return the processor time of the thread that serves requests, in milliseconds since its start."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


async def calls(say: Say, server: PostgresServer, folder: Path, turns: int = 30) -> None:
    """Compare calls and searches with a file, with the database, and in a cluster, in turns of some requests.

    A store adds the median of the differences between the medians of neighbouring turns, which meet the same
    load. The processor time is that of the thread that serves requests, with all else that it does meanwhile.
    """
    with ExitStack() as stack:
        alone = stack.enter_context(team(server, folder, "clustered", 1))
        bases, pids = {"cluster": alone.bases[0]}, {"cluster": alone.running["a"].process.pid}
        text = (alone.folder / "a" / "config.toml").read_text()
        head, _, rest = text.partition("[cluster]")
        without = head + rest[rest.index("[") :]
        for kind in ("database", "file"):
            config = alone.folder / "a" / f"{kind}.toml"
            store = f'[store]\npath = "{alone.folder}/store.sqlite3"\n'
            before, _, after = without.partition("[store]")
            config.write_text(without if kind == "database" else before + store + after[after.index("[") :])
            config.chmod(0o600)
            replica = stack.enter_context(http_proxy(config, real=True))
            until_ready(replica.base)
            bases[kind], pids[kind] = replica.base, replica.process.pid
        async with AsyncExitStack() as opened:
            clients = {
                kind: await opened.enter_async_context(wires.http(base, "modern"))
                for kind, base in bases.items()
            }
            handles = {
                kind: (
                    await client.data(
                        "manage_context", {"action": "add", "type": "tool", "name": "work__echo"}
                    )
                )["context_id"]
                for kind, client in clients.items()
            }
            for what in ("call", "search", "search with context_id"):
                kind_of, with_handle = what.partition(" ")[0], "context_id" in what
                took: dict[str, list[float]] = {kind: [] for kind in clients}
                used: dict[str, list[float]] = {kind: [] for kind in clients}
                for turn in range(-QUERIES // TURN, turns):
                    for kind, client in random.sample(list(clients.items()), len(clients)):
                        handle, began = handles[kind] if with_handle else None, processor_ms(pids[kind])
                        times = [
                            await timed(client, kind_of, (turn * TURN + number) % QUERIES, handle)
                            for number in range(TURN)
                        ]
                        if turn >= 0:
                            took[kind].append(median(times))
                            used[kind].append((processor_ms(pids[kind]) - began) / TURN)
                said = ", ".join(
                    f"{kind} {_added(took, kind):+.3f} ms ({_added(used, kind):+.3f} of processor time)"
                    for kind in ("database", "cluster")
                )
                file = f"file {median(took['file']):.2f} ms p50 ({median(used['file']):.3f})"
                say(f"{what}: {file}, {said}; bars 0.05, 0.1, 1.0")


def _added(turns: dict[str, list[float]], kind: str) -> float:
    return median(one - file for one, file in zip(turns[kind], turns["file"], strict=True))


@asynccontextmanager
async def beside(server: PostgresServer, folder: Path, name: str) -> AsyncIterator[Beside]:
    """Run a proxy whose database will be disturbed, beside an equal one whose database is left alone."""
    with (
        postgres_server() as other,
        team(server, folder, name, 1) as disturbed,
        team(other, folder, f"{name}_beside", 1) as quiet,
    ):
        async with AsyncExitStack() as stack:
            clients = {
                kind: await stack.enter_async_context(wires.http(replicas.bases[0], "modern"))
                for kind, replicas in (("disturbed", disturbed), ("quiet", quiet))
            }
            yield Beside(clients, next(iter(disturbed.running.values())).process.pid)


@dataclass
class Beside:
    """Clients of two proxies, which do the same in turn: whatever else the machine does meets both."""

    clients: dict[str, RawClient]
    process: int
    """Id of the process whose database is disturbed."""
    number: int = 0

    async def work(self, done: Callable[[], bool]) -> Times:
        """Call and search until something is done; return the milliseconds by kind of request and proxy."""
        took: Times = {kind: {name: [] for name in self.clients} for kind in ("call", "search")}
        while not done():
            self.number += 1
            for kind in ("call", "call", "call", "call", "search"):
                for name in random.sample(list(self.clients), 2):
                    took[kind][name].append(await timed(self.clients[name], kind, self.number))
            await anyio.sleep(0.02)
        return took

    async def work_for(self, seconds: float) -> Times:
        """Call and search for some seconds."""
        end = time.monotonic() + seconds
        return await self.work(lambda: time.monotonic() >= end)

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        status = Path(f"/proc/{self.process}/status").read_text().partition("VmRSS:")[2]
        return int(status.split()[0]) / 1024


def compared(say: Say, what: str, before: Times, during: Times) -> None:
    """Say how much longer requests take, against the proxy beside and against their difference before."""
    for kind, took in during.items():
        ratio = median(took["disturbed"]) / median(took["quiet"])
        usual = median(before[kind]["disturbed"]) / median(before[kind]["quiet"])
        tails = {name: quantiles(times, n=100)[98] for name, times in took.items()}
        say(
            f"{what}: {kind} {median(took['disturbed']):.2f} ms, {ratio / usual - 1:+.1%} p50 (bar 5 %), "
            f"{tails['disturbed'] - tails['quiet']:+.2f} ms p99 (bar 5), of {len(took['quiet']):,}"
        )


async def away(say: Say, server: PostgresServer, folder: Path, seconds: float = 60) -> None:
    """Call and search while the database is paused, beside a proxy whose database is not."""
    async with beside(server, folder, "away") as both:
        await both.work_for(5)
        before, began = await both.work_for(20), both.memory()
        await anyio.to_thread.run_sync(server.pause)
        try:
            paused = await both.work_for(seconds)
        finally:
            server.resume()
        grown = both.memory() - began
    compared(say, f"database paused {seconds:.0f} s", before, paused)
    say(f"  memory {grown:+.1f} MiB (bar 40)")


async def killed(say: Say, server: PostgresServer, folder: Path, times: int = 20) -> None:
    """Call and search while the database is killed again and again, beside a proxy whose database is not."""
    async with beside(server, folder, "killed") as both:
        await both.work_for(5)
        before, left = await both.work_for(20), times

        def kill() -> None:
            nonlocal left
            while left:
                time.sleep(1)
                server.kill()
                server.start()
                left -= 1

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, kill)
            during = await both.work(lambda: not left)
    compared(say, f"database killed {times} times", before, during)


def counted(store: Store, number: int | None = None) -> None:
    """Add one call of a tool."""
    rows = [(SLOT, ToolUsage("s", "t", 1, 0, 1, 2.0, 3, NOW, {7: 1}))]
    store.statistics.add(rows, {SLOT: SearchUsage(1)}, [], number)


async def cuts(say: Say, server: PostgresServer, folder: Path, times: int = 200) -> None:
    """Lose the answer to each COMMIT once; nothing may be counted twice."""
    (folder / "cuts").mkdir()
    proxy = CuttingProxy(folder / "cuts", server)
    config = StoreConfig(url=proxy.url, namespace="cuts", timeout_seconds=0.5, pool=1)

    def write() -> int:
        with open_store(config) as store:
            for _ in range(times):
                number, proxy.cuts = store.statistics.next_batch(), 1
                while True:
                    try:
                        counted(store, number)
                        break
                    except StoreError:
                        time.sleep(0.02)
            return sum(tool.calls for tool in store.statistics.tools())

    found = await anyio.to_thread.run_sync(write)
    proxy.close()
    say(f"answers to COMMIT lost {times} times: {found - times:+d} counted (bar 0)")


class Words(QueryEmbedder):
    """A model whose vectors are made from the text alone."""

    def __init__(self) -> None:
        super().__init__(LazyModel())

    def vectors(self, texts: Sequence[str]) -> tuple[str, Matrix]:
        """Return unit vectors."""
        rows = []
        for text in texts:
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
            row = np.random.default_rng(seed).standard_normal(64)
            rows.append(row / np.linalg.norm(row))
        return "words", np.array(rows, np.float32).reshape(len(rows), 64)


async def teaching(
    say: Say, server: PostgresServer, folder: Path, replicas: int = 8, pairs: int = 100
) -> None:
    """Teach the same pairs by several replicas at once, and by one; both must know the same."""

    def taught(namespace: str, number: int) -> set[tuple[object, ...]]:
        with ExitStack() as stack:
            stores = [
                stack.enter_context(open_store(StoreConfig(url=server.url, namespace=namespace)))
                for _ in range(number)
            ]
            tiers = [LearnedTier(Words(), store.learned, clock=lambda: NOW) for store in stores]

            def teach(turn: int) -> None:
                for pair in range(pairs):
                    use = Use(f"query number {pair}", ("s", f"tool{pair}"), Signal.FOUND, f"session {turn}")
                    tiers[turn % number].learn(use)

            with ThreadPoolExecutor(number) as pool:
                list(pool.map(teach, range(replicas)))
            return {
                (one.query, one.tool, one.uses, round(one.confidence_at(NOW), 6))
                for one in stores[0].learned.all()
            }

    together = await anyio.to_thread.run_sync(taught, "together", replicas)
    one = await anyio.to_thread.run_sync(taught, "one", 1)
    say(
        f"{pairs} pairs taught by {replicas} replicas and by one: {len(together ^ one)} different, "
        f"{len(together)} known, {sum(each[2] for each in together)} uses"  # type: ignore[misc]
    )


async def failover(say: Say, server: PostgresServer, folder: Path, times: int = 5) -> None:
    """Kill a database and promote its synchronous standby, again and again, while counts are written."""
    await anyio.to_thread.run_sync(_fail_over, say, times)


def _fail_over(say: Say, times: int) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(postgres_server())
        spare = PostgresServer(Path(f"{primary.folder}-standby"), primary.programs)
        stack.callback(shutil.rmtree, spare.folder, ignore_errors=True)
        stack.callback(spare.stop)
        hosts = f"{primary.folder},{spare.folder}"
        url = f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"
        acknowledged, waits, promoted, stop = 0, list[float](), list[float](), threading.Event()
        with open_store(StoreConfig(url=url, namespace="failover", timeout_seconds=1.0)) as store:
            counted(store, store.statistics.next_batch())

            def write() -> None:
                nonlocal acknowledged
                while not stop.is_set():
                    number, began = store.statistics.next_batch(), time.monotonic()
                    while True:
                        try:
                            counted(store, number)
                            break
                        except StoreError:
                            time.sleep(0.02)
                    waits.append(time.monotonic() - began)
                    acknowledged += 1

            for _ in range(times):
                standby_of(primary, spare)
                writing = threading.Thread(target=write)
                stop.clear()
                writing.start()
                time.sleep(1)
                primary.kill()
                with psycopg.connect(spare.url, autocommit=True) as connection:
                    began = time.monotonic()
                    connection.execute("SELECT pg_promote()")
                    promoted.append(time.monotonic() - began)
                time.sleep(2)
                stop.set()
                writing.join()
                primary, spare = spare, primary
            found = sum(tool.calls for tool in store.statistics.tools())
        for each in (primary, spare):
            each.stop()
    say(
        f"{times} failovers to a synchronous standby: {acknowledged:,} batches acknowledged, "
        f"{found - acknowledged - 1:+d} in the store, longest wait {max(waits):.2f} s (bars 0, 5 s), "
        f"of which the server took up to {max(promoted):.2f} s to be promoted"
    )
