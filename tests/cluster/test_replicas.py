"""Three replicas behind a balancer without affinity serve their clients as one proxy does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support import wires
from support.balancer import Balancer, balancing
from support.postgres import PostgresServer
from support.proxies import HttpProxy, http_proxy
from support.servers import Workshop, tool

pytestmark = [pytest.mark.anyio, pytest.mark.cluster]

KEY = "0123456789abcdef" * 4
NOTE = {"uri": "note://one", "name": "one", "mimeType": "text/plain"}
VISIT = {
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}},
}
PERSON = {"elicitation": {}}
ACCEPTED = {"action": "accept", "content": {}}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@dataclass
class Cluster:
    """Running replicas, and the port of the balancer before them."""

    replicas: list[HttpProxy]
    port: int

    @property
    def bases(self) -> list[str]:
        return [replica.base for replica in self.replicas]

    def balancer(self) -> Balancer:
        return Balancer(self.bases, self.port)


def configured(folder: Path, postgres: PostgresServer, name: str, port: int, **cluster: Any) -> Path:
    """The configuration of one replica, in a folder of its own, with a server of its own."""
    folder.mkdir()
    workshop = Workshop(folder)
    workshop.server(
        "work",
        tools=[tool("echo", "Repeat a text"), tool("ask", "Ask the person"), tool("change", "Change a note")],
        resources=[NOTE],
        capabilities={"tools": {"listChanged": True}, "resources": {"subscribe": True}},
        calls={
            "ask": [{"ask": VISIT}],
            "change": [
                {"notify": {"method": "notifications/resources/updated", "params": {"uri": NOTE["uri"]}}}
            ],
        },
    )
    return workshop.config(
        store={"url": postgres.url, "namespace": "replicas"},
        cluster={"enabled": True, "replica": name, "key": KEY, "heartbeat_seconds": 0.3} | cluster,
        http={"allowed_hosts": [f"127.0.0.1:{port}"]},
        context={"manage_tool": True},
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Cluster]:
    """Three replicas."""
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(http_proxy(configured(folder / name, postgres, name, port)))
            for name in ("a", "b", "c")
        ]
        for replica in replicas:
            until_ready(replica.base)
        yield Cluster(replicas, port)


def until_ready(base: str) -> dict[str, Any]:
    with httpx2.Client(timeout=30) as http:
        for _ in range(1000):
            answer = http.get(f"{base}/readyz")
            if answer.status_code == 200:
                return dict(answer.json())
            anyio.run(anyio.sleep, 0.02)
    raise AssertionError(answer.text)


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


async def test_a_session_is_served_by_its_home_wherever_its_requests_arrive(cluster: Cluster) -> None:
    async with balancing(cluster.balancer()) as balancer, wires.http(balancer.base) as client:
        for number in range(9):
            assert json.loads(text_of(await client.call("work__echo", {"text": str(number)})))
        names = [await client.names() for _ in range(3)]
        assert names[0] == names[1] == names[2]


async def test_a_handle_is_known_and_never_stale_at_any_replica(cluster: Cluster) -> None:
    async with balancing(cluster.balancer()) as balancer, wires.http(balancer.base, "modern") as client:
        made = await client.data("manage_context", {"action": "add", "type": "tool", "name": "work__echo"})
        context_id = made["context_id"]
        for _ in range(6):
            for action in ("remove", "add"):
                wanted = {"action": action, "type": "tool", "name": "work__change"}
                await client.data("manage_context", {"context_id": context_id} | wanted)
                found = await client.data("manage_context", {"context_id": context_id, "action": "list"})
                shown = {item["name"] for item in found["items"]}
                assert shown == {"work__echo"} | ({"work__change"} if action == "add" else set())


async def test_a_handle_is_its_principals_alone_at_every_replica(cluster: Cluster) -> None:
    async with balancing(cluster.balancer()) as balancer:
        async with wires.http(balancer.base, "modern", headers={"authorization": "Bearer ada"}) as ada:
            made = await ada.data("manage_context", {"action": "add", "type": "tool", "name": "work__echo"})
        async with wires.http(balancer.base, "modern", headers={"authorization": "Bearer eve"}) as eve:
            for _ in range(3):
                refused = await eve.call(
                    "manage_context", {"context_id": made["context_id"], "action": "list"}
                )
                assert "unknown or expired" in text_of(refused)


async def test_a_parked_call_is_resumed_wherever_its_answer_arrives(cluster: Cluster) -> None:
    async with (
        balancing(cluster.balancer()) as balancer,
        wires.http(balancer.base, "modern", capabilities=PERSON) as client,
    ):
        for _ in range(6):
            asked = await client.call("work__ask", {})
            keys = asked["inputRequests"]
            answered = await client.request(
                "tools/call",
                {
                    "name": "work__ask",
                    "arguments": {},
                    "requestState": asked["requestState"],
                    "inputResponses": dict.fromkeys(keys, ACCEPTED),
                },
            )
            assert json.loads(text_of(answered)) == ACCEPTED


async def test_the_reply_to_a_question_of_a_server_may_arrive_at_another_replica(cluster: Cluster) -> None:
    async with (
        balancing(cluster.balancer()) as balancer,
        wires.http(
            balancer.base, capabilities=PERSON, answers={"elicitation/create": lambda _: ACCEPTED}
        ) as client,
    ):
        for _ in range(6):
            assert json.loads(text_of(await client.call("work__ask", {}))) == ACCEPTED
