"""Probes, and the stop of a proxy behind a balancer: no call is lost, and the probes tell nothing secret."""

import itertools
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.ledger import until
from support.proxies import HttpProxy, http_proxy
from support.raw_client import ACCEPT, MODERN, PREFIX
from support.servers import Workshop, tool
from support.shop import TOKEN, environment

from mcp_context_proxy.app.serve import STARTING_SECONDS, open_proxy, readiness
from mcp_context_proxy.config import load
from mcp_context_proxy.front.http import Readiness
from mcp_context_proxy.server.gateway import Quota
from mcp_context_proxy.trust import Principal


def call(name: str, number: int) -> dict[str, Any]:
    """The arguments of a post that calls a tool in the modern era."""
    meta = {
        PREFIX + "protocolVersion": MODERN,
        PREFIX + "clientInfo": {"name": "raw", "version": "1"},
        PREFIX + "clientCapabilities": {},
    }
    params = {"name": f"work__{name}", "arguments": {"text": str(number)}, "_meta": meta}
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": params["name"]}
    body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    return {"json": body, "headers": ACCEPT | headers}


def served(answer: httpx2.Response) -> bool:
    """Whether a call has a result, and no error."""
    text = answer.text[answer.text.index("{") :]
    return answer.status_code == 200 and "result" in json.loads(text.splitlines()[0])


class Balancer:
    """Sends each request to a replica that says it is ready, and again only if nothing can have run."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client, self.replicas = client, list[str]()
        self._turn = itertools.count()
        self.sent = self.refused = 0

    async def call(self, number: int) -> httpx2.Response:
        self.sent += 1
        while True:
            base = self.replicas[next(self._turn) % len(self.replicas)]
            try:
                answer = await self._client.post(f"{base}/mcp", **call("echo", number))
            except httpx2.ConnectError:
                self.refused += 1
                continue
            if answer.status_code != 503:
                return answer
            self.refused += 1

    async def watch(self, everybody: Callable[[], list[str]]) -> None:
        """Follow the probes of all replicas, until cancelled."""
        while True:
            ready = []
            for base in everybody():
                try:
                    if (await self._client.get(f"{base}/readyz")).status_code == 200:
                        ready.append(base)
                except httpx2.TransportError:
                    # It has stopped, or stops in this moment.
                    continue
            self.replicas = ready or self.replicas
            await anyio.sleep(0.05)


async def test_a_rolling_restart_loses_no_call_and_runs_none_twice(workshop: Workshop) -> None:
    server = workshop.server("work", tools=[tool("echo")])
    # Longer than a balancer takes to see on a busy machine that a replica is not ready any more.
    config = workshop.config(http={"drain_grace_seconds": 3.0})
    numbers, failed, running = itertools.count(1), list[str](), list[HttpProxy]()
    with ExitStack() as stack:
        async with httpx2.AsyncClient(timeout=30) as client:
            balancer, done = Balancer(client), anyio.Event()

            async def keep_calling() -> None:
                while not done.is_set():
                    answer = await balancer.call(next(numbers))
                    if not served(answer):
                        failed.append(answer.text)
                    await anyio.sleep(0.02)  # the replicas that start need a processor, too

            def start() -> HttpProxy:
                return stack.enter_context(http_proxy(config))

            running += [start(), start()]
            async with anyio.create_task_group() as group:
                group.start_soon(balancer.watch, lambda: [one.base for one in running])
                await until(lambda: len(balancer.replicas) == 2)
                async with anyio.create_task_group() as callers:
                    for _ in range(3):
                        callers.start_soon(keep_calling)
                    for old in list(running):
                        new = await anyio.to_thread.run_sync(start)
                        running.append(new)
                        await until(lambda new=new: new.base in balancer.replicas)
                        old.process.send_signal(signal.SIGTERM)
                        assert await anyio.to_thread.run_sync(old.process.wait, 20) == 0
                        running.remove(old)
                    done.set()
                group.cancel_scope.cancel()

    ran = [params["arguments"]["text"] for params in server.ledger.calls("echo")]
    assert failed == []
    assert sorted(map(int, ran)) == list(range(1, balancer.sent + 1))
    assert balancer.sent > 20


async def test_a_proxy_that_stops_refuses_new_work_with_503_and_finishes_the_rest(workshop: Workshop) -> None:
    go = workshop.flag("go")
    server = workshop.server("work", tools=[tool("slow"), tool("echo")], calls={"slow": [{"wait": str(go)}]})
    ended = list[httpx2.Response]()
    with http_proxy(
        workshop.config(http={"drain_grace_seconds": 0.3}), auth=True, env=environment()
    ) as proxy:
        who = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(timeout=30, base_url=proxy.base, headers=who) as client:

            async def slow() -> None:
                ended.append(await client.post("/mcp", **call("slow", 1)))

            async with anyio.create_task_group() as group:
                group.start_soon(slow)
                await server.ledger.until(lambda ledger: ledger.calls("slow"))
                proxy.process.send_signal(signal.SIGTERM)
                while (answer := await client.get("/readyz")).status_code == 200:
                    pass
                in_grace = await client.post("/mcp", **call("echo", 2))
                while (refused := await client.post("/mcp", **call("echo", 3))).status_code == 200:
                    pass
                others = [await client.get(path) for path in ("/livez", "/healthz", "/api/v1/tools", "/sse")]
                go.touch()
        assert proxy.process.wait(20) == 0

    assert "stopping" in answer.json()["missing"][0]
    assert served(in_grace)
    assert in_grace.headers["connection"] == "close"
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "did not run" in refused.json()["error"]["message"]
    assert [other.status_code for other in others] == [200, 200, 503, 503]
    assert served(ended[0])


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    workshop = Workshop(tmp_path_factory.mktemp("probes"))
    workshop.server("work", tools=[tool("echo")])
    workshop.server("vault", settings={"command": "no-such-program-anywhere"})
    limits = {"calls_per_second": 0.01}
    with http_proxy(workshop.config(limits=limits), auth=True, env=environment()) as running:
        yield running
    workshop.close()


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
@pytest.mark.parametrize("host", ["10.1.2.3:8765", "anything.example", None])
async def test_a_probe_is_answered_under_any_host_without_a_token(
    proxy: HttpProxy, path: str, host: str | None
) -> None:
    headers = {} if host is None else {"host": host}
    async with httpx2.AsyncClient(base_url=proxy.base, timeout=20) as client:
        await until_ready(client)
        answer = await client.get(path, headers=headers)
        head = await client.head(path, headers=headers)
        elsewhere = await client.get("/api/v1/tools", headers=headers)
        written = await client.post(path, headers=headers)

    assert (answer.status_code, head.status_code) == (200, 200)
    assert elsewhere.status_code in (401, 421)
    assert written.status_code in (401, 421)
    for word in ("vault", "no-such-program", "work", "/", TOKEN):
        assert word not in answer.text


@pytest.mark.parametrize(
    "sent",
    [
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-mode": "no-cors"},
        {"user-agent": "Mozilla/5.0"},
    ],
)
async def test_a_page_under_a_name_that_was_made_to_lead_here_reads_no_probe(
    proxy: HttpProxy, sent: dict[str, str]
) -> None:
    async with httpx2.AsyncClient(base_url=proxy.base, timeout=20) as client:
        answer = await client.get("/readyz", headers={"host": "evil.example"} | sent)

    assert answer.status_code == 421


async def until_ready(client: httpx2.AsyncClient) -> None:
    with anyio.fail_after(60):
        while (await client.get("/readyz")).status_code != 200:
            pass


async def test_calls_beyond_the_rate_of_a_principal_get_429_and_say_when_to_try_again(
    proxy: HttpProxy,
) -> None:
    who = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=proxy.base, timeout=20, headers=who) as client:
        await until_ready(client)
        first = await client.post("/mcp", **call("echo", 1))
        refused = await client.post("/mcp", **call("echo", 2))
        other = await client.get("/api/v1/requests")

    assert served(first)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "100")
    assert "limits.calls_per_second" in refused.json()["error"]["message"]
    assert other.status_code == 200


def test_each_principal_has_a_rate_of_its_own_and_0_sets_none() -> None:
    quota, unlimited = Quota(0.01), Quota(0.0)

    assert [quota.take(Principal(name)) for name in ("anna", "anna", "ben", None, "ben")] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert all(unlimited.take(Principal("anna")) for _ in range(1_000))


async def test_a_proxy_is_ready_once_its_servers_have_answered_or_failed(
    workshop: Workshop, tmp_path: Path
) -> None:
    go = workshop.flag("go")
    workshop.server("work", tools=[tool("echo")], at_start=[{"wait": str(go)}])
    async with open_proxy(load(workshop.config())) as opened:
        early = readiness(opened)
        opened.started -= STARTING_SECONDS
        late = readiness(opened)
        opened.started += STARTING_SECONDS
        go.touch()
        await until(lambda: not readiness(opened).missing)
        lost = readiness(opened, [Lacking()])

    assert early.missing == ["1 of 1 servers have not answered yet"]
    assert late == Readiness()
    assert lost.missing == ["the keys of the issuer"]


class Lacking:
    lack = "the keys of the issuer"
