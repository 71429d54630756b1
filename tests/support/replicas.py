"""Replicas that run, a balancer before them, and requests that clients send to them."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from prometheus_client.parser import text_string_to_metric_families

from support.balancer import Balancer, balancing
from support.ledger import Ledger
from support.postgres import PostgresServer
from support.proxies import HttpProxy, http_proxy
from support.raw_client import PATIENCE
from support.servers import Workshop, tool

KEY = "0123456789abcdef" * 4
BEAT_SECONDS, STORE_SECONDS = 1.0, 2.0
"""Time between two signs of life, three of which may come late on a busy machine, and for an operation."""

NOTE = {"uri": "note://one", "name": "one", "mimeType": "text/plain"}
VISIT = {
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}},
}
PERSON = {"elicitation": {}}
UPDATED = "notifications/resources/updated"
ACCEPTED = {"action": "accept", "content": {}}

TASK = {"taskId": "own", "createdAt": "2026-07-28T10:00:00Z", "lastUpdatedAt": "2026-07-28T10:00:00Z"}
TASK |= {"ttlMs": 60_000}


@contextmanager
def kept_port() -> Iterator[int]:
    """A port for a balancer that comes and goes, which nobody else is given meanwhile."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        yield int(kept.getsockname()[1])


@dataclass
class Cluster:
    """Running replicas, and the port of the balancer before them."""

    replicas: list[HttpProxy]
    port: int

    @property
    def bases(self) -> list[str]:
        return [replica.base for replica in self.replicas]

    @property
    def base(self) -> str:
        """URL of the balancer."""
        return f"http://127.0.0.1:{self.port}"

    def balancer(self) -> Balancer:
        return Balancer(self.bases, self.port)


def configured(
    folder: Path, postgres: PostgresServer, name: str, port: int, http: Any = None, **cluster: Any
) -> Path:
    """The configuration of one replica, in a folder of its own, with servers of its own."""
    folder.mkdir()
    workshop = Workshop(folder)
    workshop.server(
        "work",
        tools=[
            tool("echo", "Repeat a text"),
            tool("ask", "Ask the person"),
            tool("change", "Change a note"),
            tool("hang", "Wait for ever"),
        ],
        resources=[NOTE],
        capabilities={"tools": {"listChanged": True}, "resources": {"subscribe": True}},
        calls={
            "ask": [{"ask": VISIT}],
            "hang": [{"wait_cancelled": True}],
            "change": [
                {"notify": {"method": "notifications/resources/updated", "params": {"uri": NOTE["uri"]}}}
            ],
        },
    )
    workshop.server(
        "modern",
        era="modern",
        settings={"tools": {"visit": {"confirm": "write"}}},
        tools=[tool("visit", "Visit somebody"), tool("research", "Write a report")],
        calls={
            "visit": [{"need_input": {"inputRequests": {"q": VISIT}}}],
            "research": [{"result": TASK | {"resultType": "task", "status": "working"}}],
        },
        on={"tasks/get": [{"result": TASK | {"status": "completed", "result": {"content": []}}}]},
    )
    return workshop.config(
        store={"url": postgres.url, "namespace": "replicas", "timeout_seconds": STORE_SECONDS},
        cluster={"enabled": True, "replica": name, "key": KEY, "heartbeat_seconds": BEAT_SECONDS} | cluster,
        http={"allowed_hosts": [f"127.0.0.1:{port}"], "drain_grace_seconds": 0.0} | (http or {}),
        context={"manage_tool": True},
        interactions={"enabled": True},
    )


@contextmanager
def balanced(
    workshop: Workshop, postgres: PostgresServer, namespace: str, *, tokens: bool = False, **tables: Any
) -> Iterator[Cluster]:
    """Three replicas with the servers of a workshop, and a running balancer before them."""
    store = {"url": postgres.url, "namespace": namespace, "timeout_seconds": STORE_SECONDS}
    with ExitStack() as stack:
        port = stack.enter_context(kept_port())
        http = {"allowed_hosts": [f"127.0.0.1:{port}"], "drain_grace_seconds": 0.0, **tables.pop("http", {})}
        replicas = []
        for name in "abc":
            settings = {"enabled": True, "replica": name, "key": KEY, "heartbeat_seconds": BEAT_SECONDS}
            config = workshop.config(f"{name}.toml", store=store, cluster=settings, http=http, **tables)
            replicas.append(stack.enter_context(http_proxy(config, auth=tokens)))
        for replica in replicas:
            until_ready(replica.base)
        cluster = Cluster(replicas, port)
        portal = stack.enter_context(start_blocking_portal())
        stack.enter_context(portal.wrap_async_context_manager(balancing(cluster.balancer())))
        yield cluster


@contextmanager
def haproxy(folder: Path, names: dict[str, str], port: int) -> Iterator[str]:
    """HAProxy with the file of deploy/, before replicas of these names and URLs."""
    if (program := shutil.which("haproxy")) is None:
        pytest.skip("needs HAProxy: haproxy was not found")
    text = (Path(__file__).parents[2] / "deploy" / "haproxy.cfg").read_text()
    text = text.replace("bind :8765", f"bind 127.0.0.1:{port}")
    for number, (name, base) in enumerate(names.items(), 1):
        text = text.replace(f"replica{number}:8765", base.removeprefix("http://"))
        text = text.replace(f"replica{number}", name)
    file = folder / "haproxy.cfg"
    file.write_text(text)
    with subprocess.Popen(
        [program, "-db", "-f", str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            balancer = f"http://127.0.0.1:{port}"
            until_ready(balancer)
            yield balancer
        finally:
            process.kill()


def until_ready(base: str) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE
    with httpx2.Client(timeout=30) as http:
        while time.monotonic() < end:
            with contextlib.suppress(httpx2.TransportError):
                answer = http.get(f"{base}/readyz")
                if answer.status_code == 200:
                    return dict(answer.json())
            time.sleep(0.02)
    raise AssertionError(f"{base} is not ready")


Counts = Counter[tuple[str, ...]]


def counts_of(bases: list[str]) -> Counts:
    """The metrics of some replicas together, by name and values of labels."""
    found = Counts()
    for base in bases:
        text = httpx2.get(f"{base}/metrics", timeout=30).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name.removeprefix("mcp_context_proxy_"), *sample.labels.values()] += int(
                    sample.value
                )
    return found


def ledger_of(replica: HttpProxy, server: str = "work") -> Ledger:
    """What a server of one replica has received and done."""
    return Ledger(replica.folder / f"{server}.ledger")


async def session_at(
    base: str, http: httpx2.AsyncClient, *, token: str = "Bearer ada", person: bool = False
) -> dict[str, str]:
    """Open a session, and return the headers of its further requests."""
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "authorization": token,
    }
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": PERSON if person else {},
        "clientInfo": {"name": "raw", "version": "1"},
    }
    asked = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    opened = await http.post(f"{base}/mcp", json=asked, headers=headers)
    return headers | {"mcp-session-id": opened.headers["mcp-session-id"]}


def call_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}


def ping(number: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Cluster]:
    """Three replicas."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        port = stack.enter_context(kept_port())
        replicas = [
            stack.enter_context(http_proxy(configured(folder / name, postgres, name, port)))
            for name in ("a", "b", "c")
        ]
        for replica in replicas:
            until_ready(replica.base)
        yield Cluster(replicas, port)
