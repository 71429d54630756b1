"""Three replicas behind a balancer without affinity serve their clients as one proxy does."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support import wires
from support.balancer import Balancer, balancing
from support.postgres import PostgresServer
from support.proxies import HttpProxy, command, http_proxy
from support.servers import Workshop, tool

from mcp_context_proxy.cluster.relay import Signer

pytestmark = [pytest.mark.anyio, pytest.mark.cluster]

KEY = "0123456789abcdef" * 4
NOTE = {"uri": "note://one", "name": "one", "mimeType": "text/plain"}
VISIT = {
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}},
}
PERSON = {"elicitation": {}}
UPDATED = "notifications/resources/updated"
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
            time.sleep(0.02)
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


async def session_at(base: str, http: httpx2.AsyncClient, *, token: str = "Bearer ada") -> dict[str, str]:
    """Open a session, and return the headers of its further requests."""
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "authorization": token,
    }
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    }
    asked = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    opened = await http.post(f"{base}/mcp", json=asked, headers=headers)
    return headers | {"mcp-session-id": opened.headers["mcp-session-id"]}


def ping(number: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


async def test_a_session_of_another_principal_does_not_exist_at_any_replica(cluster: Cluster) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:
        ada = await session_at(cluster.bases[0], http)
        for base in cluster.bases:
            own = await http.post(f"{base}/mcp", json=ping(), headers=ada)
            other = await http.post(f"{base}/mcp", json=ping(), headers=ada | {"authorization": "Bearer eve"})
            assert (own.status_code, other.status_code) == (200, 404)


async def test_a_session_that_its_client_has_ended_is_gone_at_every_replica(cluster: Cluster) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:
        ada = await session_at(cluster.bases[0], http)
        ended = await http.delete(f"{cluster.bases[1]}/mcp", headers=ada)
        assert ended.status_code == 200
        for base in cluster.bases:
            assert (await http.post(f"{base}/mcp", json=ping(), headers=ada)).status_code == 404


RELAYED = {"method": "POST", "path": "/mcp", "query_string": b"", "type": "http"}


@pytest.mark.parametrize(
    "fault", ["another key", "another receiver", "another body", "another session", "too old", "unsigned"]
)
async def test_a_relay_that_no_replica_has_signed_for_this_request_is_refused(
    cluster: Cluster, fault: str
) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:
        ada = await session_at(cluster.bases[0], http)
        signed = json.dumps(ping()).encode()
        key = KEY[::-1] if fault == "another key" else KEY
        receiver = "b" if fault == "another receiver" else "a"
        session = "a.0" if fault == "another session" else ada["mcp-session-id"]
        signer = Signer(key.encode(), "b", clock=lambda: time.time() - 40 * (fault == "too old"))
        headers = ada | {"mcp-session-id": session}
        scope = RELAYED | {"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
        value = b"relay" if fault == "unsigned" else signer.sign(receiver, scope, signed)
        body = signed + b" " if fault == "another body" else signed
        answer = await http.post(
            f"{cluster.bases[0]}/mcp", content=body, headers=ada | {"x-mcp-relay": value.decode()}
        )
        assert (answer.status_code, answer.headers["x-mcp-relay"], answer.content) == (403, "refused", b"")


async def test_a_relay_is_taken_once_and_never_relayed_again(cluster: Cluster) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:
        ada = await session_at(cluster.bases[0], http)
        body, signer = json.dumps(ping()).encode(), Signer(KEY.encode(), "c")
        scope = RELAYED | {"headers": [(name.encode(), value.encode()) for name, value in ada.items()]}

        async def send(replica: int, value: bytes) -> httpx2.Response:
            relay = ada | {"x-mcp-relay": value.decode()}
            return await http.post(f"{cluster.bases[replica]}/mcp", content=body, headers=relay)

        value = signer.sign("a", scope, body)
        assert [(await send(0, value)).status_code for _ in range(2)] == [200, 403]
        looped = await send(1, signer.sign("b", scope, body))
        assert (looped.status_code, looped.headers["x-mcp-relay"]) == (421, "not-here")


async def test_a_session_goes_on_at_another_replica_when_its_home_is_killed(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    config = configured(tmp_path / "d", postgres, "d", cluster.port)
    with http_proxy(config, real=True) as lost:
        until_ready(lost.base)
        async with httpx2.AsyncClient(timeout=30) as http:
            ada = await session_at(lost.base, http)
            wanted = {"action": "add", "type": "tool", "name": "work__echo"}

            async def manage(base: str, arguments: dict[str, Any]) -> str:
                asked = {"name": "manage_context", "arguments": arguments}
                message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": asked}
                answer = await http.post(f"{base}/mcp", json=message, headers=ada)
                return answer.text

            assert "work__echo" in await manage(cluster.bases[0], wanted)
            lost.process.kill()
            lost.process.wait()
            for base in cluster.bases * 2:
                assert "work__echo" in await manage(base, {"action": "list"})


async def test_a_replica_with_another_key_is_not_ready_and_says_why(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    config = configured(tmp_path / "e", postgres, "e", cluster.port, key=KEY[::-1])
    with http_proxy(config) as wrong, httpx2.Client(timeout=30) as http:
        answer = http.get(f"{wrong.base}/readyz")
        assert answer.status_code == 503
        assert "cluster.key is not that of the other replicas" in answer.json()["missing"]
        for base in cluster.bases:
            assert http.get(f"{base}/readyz").status_code == 200


async def test_a_resource_that_a_server_announces_at_one_replica_is_told_at_another_once(
    cluster: Cluster,
) -> None:
    async with (
        wires.http(cluster.bases[0]) as subscriber,
        wires.http(cluster.bases[1], "modern") as caller,
    ):
        await subscriber.request("resources/subscribe", {"uri": NOTE["uri"]})
        await subscriber.wire.listening.wait()
        await caller.call("work__change", {})
        await subscriber.until(lambda one: one.notified(UPDATED))
        # A further one comes after any that would follow the first.
        await subscriber.call("work__echo", {})
        assert [told["uri"] for told in subscriber.notified(UPDATED)] == [NOTE["uri"]]


def test_the_command_shows_the_replicas(cluster: Cluster) -> None:
    config = cluster.replicas[0].folder / "config.toml"
    shown = subprocess.run(
        command(config, "cluster", "status", "--json"), capture_output=True, text=True, check=True
    )
    found = {each["replica"]: each for each in json.loads(shown.stdout)["replicas"]}
    assert {"a", "b", "c"} <= found.keys()
    assert found["a"]["address"] == cluster.bases[0]
