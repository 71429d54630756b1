"""Parts of ``benchmarks/cluster.py`` that run replicas: real processes behind a balancer without affinity."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import httpx2

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from subjects import free_port
from support import wires
from support.balancer import Balancer, balancing
from support.plain_http import PlainHttp
from support.postgres import PostgresServer
from support.proxies import HttpProxy, http_proxy
from support.raw_client import MODERN, RawClient, RpcError
from support.replicas import ACCEPTED, KEY, PERSON, haproxy, until_ready
from support.servers import Workshop, tool

QUESTION = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
VERBS = ("archive", "borrow", "clean", "deliver", "examine", "fold", "grind", "heat", "insure", "knit")
THINGS = ("apples", "boats", "carpets", "drums", "eggs", "forks", "guitars", "hats", "invoices", "jackets")

NOTE, UPDATED = "note://one", "notifications/resources/updated"

MODERN_HEADERS = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": MODERN,
    "mcp-method": "tools/call",
    "mcp-name": "work__echo",
}
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}

Say = Callable[[str], None]


@dataclass
class Team:
    """Replicas that run, and the database that they share."""

    folder: Path
    server: PostgresServer
    namespace: str
    stack: ExitStack
    tables: dict[str, Any] = field(default_factory=dict)
    running: dict[str, HttpProxy] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    balancer: int = 0
    """Port of a balancer before them."""

    @property
    def bases(self) -> list[str]:
        """URLs of the replicas, without a path."""
        return [each.base for each in self.running.values()]

    def start(self, name: str) -> HttpProxy:
        """Start a replica, or one that has ended, and wait until it is ready."""
        folder = self.folder / name
        port = self.ports.setdefault(name, free_port())
        if folder.exists():
            replica = self.running[name] = self._begun(folder / "config.toml", port)
            return replica
        folder.mkdir()
        workshop = Workshop(folder)
        tools = [
            tool(f"{verb}_{thing}", f"{verb.capitalize()} {thing}") for verb in VERBS for thing in THINGS
        ]
        workshop.server(
            "work",
            tools=[tool("echo"), tool("ask", "Ask the person"), tool("change", "Change a note"), *tools],
            resources=[{"uri": NOTE, "name": "one"}],
            capabilities={"tools": {"listChanged": True}, "resources": {"subscribe": True}},
            calls={
                "ask": [{"ask": {"method": "elicitation/create", "params": QUESTION}}],
                "change": [{"notify": {"method": UPDATED, "params": {"uri": NOTE}}}],
            },
        )
        config = workshop.config(
            store={"url": self.server.url, "namespace": self.namespace},
            cluster={"enabled": True, "replica": name, "key": KEY, "heartbeat_seconds": 0.5},
            **{"context": {"manage_tool": True}, "expose": {"list_all_below": 0}}
            | self.tables
            | {
                "http": {"allowed_hosts": [f"127.0.0.1:{self.balancer}"], "drain_grace_seconds": 0.0}
                | self.tables.get("http", {})
            },
        )
        replica = self.running[name] = self._begun(config, port)
        return replica

    def _begun(self, config: Path, port: int) -> HttpProxy:
        replica = self.stack.enter_context(http_proxy(config, "--port", str(port), real=True))
        until_ready(replica.base)
        return replica


@contextmanager
def team(
    server: PostgresServer, folder: Path, namespace: str, number: int = 3, **tables: Any
) -> Iterator[Team]:
    """Run replicas named a, b, c and so on."""
    with ExitStack() as stack:
        made = Team(folder / namespace, server, namespace, stack, tables, balancer=free_port())
        made.folder.mkdir()
        for name in "abcdefgh"[:number]:
            made.start(name)
        yield made


async def attribution(say: Say, server: PostgresServer, folder: Path, pairs: int = 200) -> None:
    """Search at one replica and call the tool that was found at the next one."""
    with team(server, folder, "attribution") as replicas:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(wires.http(base, "modern")) for base in replicas.bases]
            wanted = dict[str, str]()
            for number in range(pairs):
                verb, thing = VERBS[number % 10], THINGS[number // 10 % 10]
                query = f"please {verb} the {thing} of customer {number}"
                await clients[number % 3].data("search_available_tools", {"query": query, "top_n": 5})
                name = wanted[query] = f"work__{verb}_{thing}"
                await clients[(number + 1) % 3].call(name)
            await anyio.sleep(4)
            async with httpx2.AsyncClient(timeout=30) as http:
                answer = await http.get(f"{replicas.bases[0]}/api/v1/statistics/searches?limit=500")
            found = {one["query"]: one for one in answer.json()["searches"]}
    right = [query for query, name in wanted.items() if found[query]["chosen"] == name]
    say(f"search at one replica, call at the next: {len(right)} of {pairs} attributed (bar 99 %)")
    for query in sorted(wanted.keys() - set(right))[:10]:
        say(f"  not attributed: {query}: {found[query]}")


def cpu_seconds(process: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def opened(http: httpx2.AsyncClient, base: str, token: str = "Bearer ada") -> dict[str, str]:
    """Open a session, and return the headers of its further requests."""
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "authorization": token,
    }
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    }
    asked = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    answer = await http.post(f"{base}/mcp", json=asked, headers=headers)
    return headers | {"mcp-session-id": answer.headers["mcp-session-id"]}


def called(number: int, name: str = "work__echo", **arguments: Any) -> dict[str, Any]:
    """Return the message of a call."""
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def handles(say: Say, server: PostgresServer, folder: Path, rounds: int = 150) -> None:
    """Add, remove, search and list with handles, each time at another replica than before."""
    unknown = stale = turn = 0
    with team(server, folder, "handles") as replicas:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(wires.http(base, "modern")) for base in replicas.bases]

            async def ask(name: str, /, **arguments: Any) -> str:
                nonlocal turn, unknown
                turn += 1
                text = str(await clients[turn % 3].call(name, arguments))
                unknown += "unknown or expired" in text
                return text

            made = [
                (
                    await clients[0].data(
                        "manage_context", {"action": "add", "type": "tool", "name": "work__ask"}
                    )
                )
                for _ in range(10)
            ]
            for number in range(rounds):
                handle = {"context_id": made[number % len(made)]["context_id"]}
                for action in ("add", "remove"):
                    item = {"action": action, "type": "tool", "name": "work__change"}
                    await ask("manage_context", **handle, **item)
                    listed = await ask("manage_context", **handle, action="list")
                    stale += ("work__change" in listed) != (action == "add")
                found = f"{VERBS[number % 10]}_{THINGS[number // 10 % 10]}"
                await ask("search_available_tools", **handle, query=found)
                await ask("set_context", **handle, query=found)
                turn += 1
                stale += f"work__{found}" not in await clients[turn % 3].names(
                    **{"io.github.mcp-context-proxy/context": handle["context_id"]}
                )
    say(
        f"{7 * rounds:,} requests on handles, each at another replica than before: {unknown} unknown, "
        f"{stale} stale (bars 0)"
    )


async def relay(say: Say, server: PostgresServer, folder: Path, rounds: int = 1000) -> None:
    """Call in a session at its home and through another replica, in turn."""
    with team(server, folder, "relay", 2) as replicas:
        home, other = replicas.bases
        took: dict[str, list[float]] = {home: [], other: []}
        async with httpx2.AsyncClient(timeout=30) as http:
            headers = await opened(http, home)

            async def call(base: str, number: int) -> float:
                began = time.perf_counter()
                answer = await http.post(f"{base}/mcp", json=called(number), headers=headers)
                assert answer.status_code == 200, answer.text
                return 1000 * (time.perf_counter() - began)

            for number in range(100):
                await call(replicas.bases[number % 2], number)
            for number in range(rounds):
                for base, times in took.items():
                    times.append(await call(base, number))
            spent = {}
            for base in took:
                before = [cpu_seconds(each.process.pid) for each in replicas.running.values()]
                for number in range(rounds):
                    await call(base, number)
                after = [cpu_seconds(each.process.pid) for each in replicas.running.values()]
                spent[base] = [1000 * (b - a) / rounds for a, b in zip(before, after, strict=True)]
    at_home, relayed = (median(times) for times in took.values())
    say(
        f"relay: {at_home:.2f} ms at home, {relayed:.2f} relayed, {relayed - at_home:+.2f} ms p50 (bar 3); "
        f"processor time a call, home and relaying replica: {spent[home][0]:.2f} + {spent[home][1]:.2f} ms, "
        f"relayed {spent[other][0]:.2f} + {spent[other][1]:.2f} ms"
    )


async def parked(
    say: Say, server: PostgresServer, folder: Path, calls: int = 500, replies: int = 200
) -> None:
    """Answer parked calls at random replicas, each twice; then questions of servers through a balancer."""
    with team(server, folder, "parked") as replicas:
        resumed = again = 0
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(wires.http(base, "modern", capabilities=PERSON))
                for base in replicas.bases
            ]
            for _ in range(calls):
                asked = await random.choice(clients).call("work__ask", {})
                answer = {"name": "work__ask", "arguments": {}, "requestState": asked["requestState"]}
                answer["inputResponses"] = dict.fromkeys(asked["inputRequests"], ACCEPTED)
                for turn in range(2):
                    try:
                        given = await random.choice(clients).request("tools/call", answer)
                    except RpcError as error:
                        if turn == 0:
                            say(f"  not resumed: {error}")
                        continue
                    right = "accept" in str(given.get("content"))
                    resumed, again = resumed + (right and turn == 0), again + (right and turn == 1)
        answered = 0
        async with (
            balancing(Balancer(replicas.bases, replicas.balancer)) as balancer,
            wires.http(
                balancer.base, capabilities=PERSON, answers={"elicitation/create": lambda _: ACCEPTED}
            ) as client,
        ):
            for _ in range(replies):
                answered += "accept" in str((await client.call("work__ask", {}))["content"])
    say(f"parked calls answered at a random replica: {resumed} of {calls} resumed, {again} twice")
    say(f"replies to questions of servers behind a balancer: {answered} of {replies}")


def has_heard(times: int, client: RawClient) -> bool:
    return len(client.notified(UPDATED)) >= times


async def hints(say: Say, server: PostgresServer, folder: Path, rounds: int = 10) -> None:
    """Have a server at one replica announce a resource to which clients of another one are subscribed."""
    took: dict[str, list[float]] = {"handshake": [], "modern": []}
    told = 0
    with team(server, folder, "hints", 2) as replicas:
        here, there = replicas.bases
        async with wires.http(there, "modern") as caller, AsyncExitStack() as stack:
            clients = {era: await stack.enter_async_context(wires.http(here, era)) for era in took}
            await clients["handshake"].request("resources/subscribe", {"uri": NOTE})
            wire = clients["handshake"].wire
            assert isinstance(wire, wires.HttpWire)
            await wire.listening.wait()
            wanted = {"notifications": {"resourceSubscriptions": [NOTE]}}
            await clients["modern"].start("subscriptions/listen", wanted, request_id="listening")
            await anyio.sleep(1)
            for number in range(1, rounds + 1):
                began = time.perf_counter()
                await caller.call("work__change", {})
                for era, client in clients.items():
                    await client.until(partial(has_heard, number))
                    took[era].append(time.perf_counter() - began)
                # An announcement of the same within two seconds is one.
                await anyio.sleep(2.2)
            told = sum(len(client.notified(UPDATED)) for client in clients.values())
            await clients["modern"].abandon("listening")
    longest = ", ".join(f"{era} {max(times):.2f} s" for era, times in took.items())
    say(f"resource announced at another replica: {longest} at most (bar 1.5); told {told} of {2 * rounds}")


async def lists(say: Say, server: PostgresServer, folder: Path) -> None:
    """Compare the lists of replicas when they are ready, and after calls and searches."""

    async def digests(bases: list[str], era: str) -> list[str]:
        # A session of its own each: one lists the tools that it has found as well.
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(wires.http(base, era)) for base in bases]
            return await digests_of(clients)

    async def digests_of(clients: list[RawClient]) -> list[str]:
        listed = [json.dumps(await client.request("tools/list", {}), sort_keys=True) for client in clients]
        return [hashlib.sha256(each.encode()).hexdigest()[:12] for each in listed]

    with team(server, folder, "lists", expose={}) as replicas:
        found = list[str]()
        async with AsyncExitStack() as stack:
            for era in ("handshake", "modern"):
                clients = [await stack.enter_async_context(wires.http(base, era)) for base in replicas.bases]
                found += await digests(replicas.bases, era)
                for number in range(60):
                    name = f"{VERBS[number % 7]}_{THINGS[number % 3]}"
                    await clients[number % 3].call(f"work__{name}", {})
                    await clients[number % 3].data("search_available_tools", {"query": name, "top_n": 3})
                await anyio.sleep(3)
                found += await digests(replicas.bases, era)
    say(f"lists of 3 replicas, each before and after use: {len(set(found))} different for two eras (bar 2)")


async def crashes(
    say: Say, server: PostgresServer, folder: Path, kills: int = 20, sessions: int = 64
) -> None:
    """Kill a replica again and again; each session goes on at another one."""
    took, failed = list[float](), 0
    with team(server, folder, "crashes") as replicas:
        async with httpx2.AsyncClient(timeout=30) as http:
            for _ in range(kills):
                bases = replicas.bases
                open_ones = [await opened(http, bases[number % 3]) for number in range(sessions)]
                name = random.choice(list(replicas.running))
                replicas.running[name].process.kill()
                replicas.running[name].process.wait()
                left = [each.base for other, each in replicas.running.items() if other != name]
                results = list[float]()

                async def ask(headers: dict[str, str], base: str, results: list[float] = results) -> None:
                    began = time.perf_counter()
                    answer = await http.post(f"{base}/mcp", json=called(1), headers=headers)
                    if answer.status_code == 200 and "result" in answer.text:
                        results.append(1000 * (time.perf_counter() - began))

                # Not all at once: the clients are one process.
                for start in range(0, sessions, 8):
                    async with anyio.create_task_group() as group:
                        for headers in open_ones[start : start + 8]:
                            group.start_soon(ask, headers, random.choice(left))
                took += results
                failed += sessions - len(results)
                replicas.start(name)
    say(
        f"{kills} kills, {sessions} sessions each: {failed} failed, next call p50 {median(took):.1f} ms, "
        f"longest {max(took):.0f} ms (bars 50, 1000), 8 at a time"
    )


async def rolling(say: Say, server: PostgresServer, folder: Path, rate: int = 300) -> None:
    """Replace each of three replicas behind HAProxy, or a plain balancer, while clients call."""
    sent = failed = 0
    reasons = Counter[str]()
    with team(server, folder, "rolling", http={"drain_grace_seconds": 2.5}) as replicas:
        async with AsyncExitStack() as stack:
            base = await stack.enter_async_context(balanced(replicas))
            clients = rate // 10
            http = await stack.enter_async_context(httpx2.AsyncClient(timeout=30))
            sessions = [await opened(http, base) for _ in range(clients // 2)]
            done = anyio.Event()

            async def client(number: int) -> None:
                nonlocal sent, failed
                modern = number >= len(sessions)
                headers = MODERN_HEADERS if modern else sessions[number]
                async with PlainHttp(30) as plain:
                    message = called(number)
                    if modern:
                        message["params"]["_meta"] = MODERN_META
                    text, due = json.dumps(message), anyio.current_time() + random.random() / 10
                    while not done.is_set():
                        await anyio.sleep_until(due)
                        due += clients / rate
                        sent += 1
                        try:
                            answer = await plain.post(f"{base}/mcp", content=text, headers=headers)
                            if answer.status_code != 200 or '"result"' not in answer.text:
                                raise ValueError(f"{answer.status_code} {answer.text[:150]}")
                        except (OSError, EOFError, ValueError, TimeoutError) as error:
                            failed += 1
                            reasons[f"{type(error).__name__}: {error}"] += 1

            began = time.monotonic()
            async with anyio.create_task_group() as group:
                for number in range(clients):
                    group.start_soon(client, number)
                await anyio.sleep(2)
                for name in tuple(replicas.running):
                    process = replicas.running[name].process
                    process.terminate()
                    assert await anyio.to_thread.run_sync(process.wait) == 0
                    await anyio.to_thread.run_sync(replicas.start, name)
                    await anyio.sleep(2)
                done.set()
            seconds = time.monotonic() - began
    say(f"3 replicas replaced under {sent / seconds:.0f} calls/s: {failed} of {sent:,} failed")
    for reason, number in reasons.most_common(5):
        say(f"  {number} x {reason}")


@asynccontextmanager
async def balanced(replicas: Team) -> AsyncIterator[str]:
    """Run HAProxy with the file of deploy/ before three replicas, or a plain balancer where there is none."""
    if shutil.which("haproxy") is None:
        async with balancing(Balancer(replicas.bases, replicas.balancer)) as balancer:
            yield balancer.base
        return
    names = dict(zip(replicas.running, replicas.bases, strict=True))
    with haproxy(replicas.folder, names, replicas.balancer) as base:
        yield base


async def scale(
    say: Say, server: PostgresServer, folder: Path, quota: float = 0.3, seconds: float = 8
) -> None:
    """Compare the calls of one replica with those of two, each with a share of a processor."""
    rates = dict[int, float]()
    for turn, number in enumerate((1, 2, 1, 2)):
        with (
            team(server, folder, f"scale{turn}", number) as replicas,
            ExitStack() as stack,
        ):
            for one in replicas.running.values():
                stack.enter_context(at_most(quota, one.process.pid))
            done = 0

            async def client(base: str, until: float) -> None:
                nonlocal done
                message = called(1)
                message["params"]["_meta"] = MODERN_META
                text = json.dumps(message)
                async with PlainHttp(60) as http:
                    while time.monotonic() < until:
                        answer = await http.post(f"{base}/mcp", content=text, headers=MODERN_HEADERS)
                        assert answer.status_code == 200, answer.text
                        done += 1

            async with anyio.create_task_group() as group:
                for each in range(8 * number):
                    group.start_soon(client, replicas.bases[each % number], time.monotonic() + seconds)
            rates[number] = max(rates.get(number, 0.0), done / seconds)
    say(
        f"calls with {quota:.0%} of a processor for each replica: {rates[1]:.0f}/s by one, "
        f"{rates[2]:.0f}/s by two, {rates[2] / rates[1]:.2f} times as many (bar 1.8)"
    )


@contextmanager
def at_most(share: float, process: int) -> Iterator[None]:
    """Give a process at most a share of one processor, by a control group of its own."""
    root = Path("/sys/fs/cgroup")
    group = (root / "cpu" if (root / "cpu").is_dir() else root) / f"benchmark-{process}"
    group.mkdir()
    try:
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text("20000")
            (group / "cpu.cfs_quota_us").write_text(str(int(20000 * share)))
        else:
            (group / "cpu.max").write_text(f"{int(20000 * share)} 20000")
        (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(process))
        group.rmdir()
