"""Three replicas behind a balancer without affinity serve their clients as one proxy does."""

import json
import re
import subprocess
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support import wires
from support.balancer import balancing
from support.postgres import PostgresServer
from support.proxies import command, http_proxy
from support.raw_client import text_of
from support.replicas import (
    ACCEPTED,
    KEY,
    PERSON,
    Cluster,
    call_of,
    configured,
    counts_of,
    ledger_of,
    ping,
    session_at,
    until_ready,
)

from mcp_context_proxy.cluster.member import COMPLAINTS
from mcp_context_proxy.cluster.replicas import Signer
from mcp_context_proxy.front.http_sessions import GUESSES

pytestmark = pytest.mark.cluster


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


async def test_a_call_belongs_to_the_latest_search_at_any_replica(cluster: Cluster) -> None:
    """Each replica knows an older search that shows the tool too, and hears of one after the call."""
    wanted = dict[str, str]()
    async with httpx2.AsyncClient(timeout=30) as http, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                wires.http(base, "modern", headers={"authorization": "Bearer sam"})
            )
            for base in cluster.bases
        ]
        for number in range(9):
            name = ("echo", "change", "echo")[number // 3]
            query = f"repeat a text or change a note, {number}"
            await clients[number % 3].data("search_available_tools", {"query": query, "top_n": 5})
            await clients[(number + 1) % 3].call(f"work__{name}", {})
            wanted[query] = f"work__{name}"

        async def chosen() -> dict[str, str | None]:
            answer = await http.get(f"{cluster.bases[0]}/api/v1/statistics/searches?limit=500")
            return {
                one["query"]: one["chosen"] for one in answer.json()["searches"] if one["query"] in wanted
            }

        with anyio.fail_after(30):
            while None in (found := await chosen()).values() or len(found) < len(wanted):  # noqa: ASYNC110
                await anyio.sleep(0.1)
        assert found == wanted


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


async def test_a_call_that_a_server_asks_about_goes_on_at_the_replica_that_has_asked(
    cluster: Cluster,
) -> None:
    """Its server may keep the call in memory, and a person who has agreed to it is not asked again."""
    ledgers = [ledger_of(replica, "modern") for replica in cluster.replicas]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(wires.http(base, "modern", capabilities=PERSON))
            for base in cluster.bases
        ]
        asked = list[str]()
        called: dict[str, Any] = {"name": "modern__visit", "arguments": {}}
        result = await clients[0].request("tools/call", called)
        for turn in (1, 2):
            assert result["resultType"] == "input_required"
            asked += [each["params"]["message"] for each in result["inputRequests"].values()]
            answers = dict.fromkeys(result["inputRequests"], ACCEPTED)
            again = called | {"inputResponses": answers, "requestState": result["requestState"]}
            result = await clients[turn].request("tools/call", again)
    assert json.loads(text_of(result))["answers"] == {"q": ACCEPTED}
    assert [message.partition("?")[0] for message in asked] == [
        "May tool 'visit' of server 'modern' be called",
        "[server 'modern' asks] Which",
    ]
    assert [len(ledger.calls("visit")) for ledger in ledgers] == [2, 0, 0]
    assert "requestState" not in ledgers[0].calls("visit")[-1]


async def test_a_task_is_found_at_any_replica(cluster: Cluster) -> None:
    """Only the replica that has made the call knows its server's id of the task."""
    takes_tasks = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    async with (
        balancing(cluster.balancer()) as balancer,
        wires.http(balancer.base, "modern", capabilities=takes_tasks) as client,
    ):
        for _ in range(4):
            begun = await client.call("modern__research", {})
            done = await client.request("tasks/get", {"taskId": begun["taskId"]})
            assert (done["taskId"], done["status"]) == (begun["taskId"], "completed")


async def test_a_large_result_is_read_at_any_replica_by_its_owner_alone(cluster: Cluster) -> None:
    ada, eve = {"authorization": "Bearer ada"}, {"authorization": "Bearer eve"}
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(wires.http(base, "modern", headers=ada)) for base in cluster.bases
        ]
        large = await clients[0].call("work__echo", {"text": "a line\n" * 20_000 + "the end"})
        (found,) = {*re.findall(r"\ba\.[\w-]{20,}", json.dumps(large))}
        for client in clients:
            assert "read_result" in await client.names()
            read = await client.call("read_result", {"id": found, "pattern": "the end"})
            assert "the end" in text_of(read)
            wanted = {"name": "read_result", "arguments": {"id": found, "pattern": "the end"}}
            assert "the end" in text_of(await client.call("call_tool", wanted))
        for base in cluster.bases:
            other = await stack.enter_async_context(wires.http(base, "modern", headers=eve))
            refused = await other.call("read_result", {"id": found})
            assert "there is no result with this id" in text_of(refused)


@pytest.mark.parametrize("how", ["ended", "killed"])
async def test_a_large_result_outlives_a_replica_that_is_told_to_end_and_not_one_that_is_killed(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer, how: str
) -> None:
    ada, eve = {"authorization": "Bearer ada"}, {"authorization": "Bearer eve"}
    config = configured(tmp_path / "r", postgres, f"r{how}", cluster.port)
    async with AsyncExitStack() as stack:
        with http_proxy(config, real=True) as gone:
            until_ready(gone.base)
            async with wires.http(gone.base, "modern", headers=ada) as client:
                large = await client.call("work__echo", {"text": "a line\n" * 20_000 + "the end"})
            async with httpx2.AsyncClient(timeout=30) as http:
                session = await session_at(gone.base, http)
                called = call_of("work__echo", {"text": "a line\n" * 20_000 + "of a session"})
                kept = await http.post(f"{gone.base}/mcp", json=called, headers=session)
            gone.process.terminate() if how == "ended" else gone.process.kill()
            gone.process.wait(60)
        ids = [re.findall(rf"\br{how}\.[\w-]{{20,}}", text)[0] for text in (json.dumps(large), kept.text)]
        one, other = [
            await stack.enter_async_context(wires.http(cluster.bases[0], "modern", headers=who))
            for who in (ada, eve)
        ]
        mine = text_of(await one.call("read_result", {"id": ids[0], "pattern": "the end"}))
        theirs = [text_of(await other.call("read_result", {"id": each})) for each in ids]
        async with httpx2.AsyncClient(timeout=30) as http:
            asked = call_of("read_result", {"id": ids[1], "pattern": "of a session"})
            adopted = await http.post(f"{cluster.bases[1]}/mcp", json=asked, headers=session)

    told = "has ended, and the result with it: it cannot be read any more. Call the tool"
    assert [told in text for text in theirs] == [True, True]
    if how == "ended":
        assert "the end" in mine
        assert "of a session" in adopted.text
        assert told not in adopted.text
    else:
        assert told in mine
        assert told in adopted.text


async def test_the_reply_to_a_question_of_a_server_may_arrive_at_another_replica(cluster: Cluster) -> None:
    async with (
        balancing(cluster.balancer()) as balancer,
        wires.http(
            balancer.base, capabilities=PERSON, answers={"elicitation/create": lambda _: ACCEPTED}
        ) as client,
    ):
        for _ in range(6):
            assert json.loads(text_of(await client.call("work__ask", {}))) == ACCEPTED


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


async def test_the_database_is_not_asked_for_one_who_has_guessed_too_many_sessions(
    cluster: Cluster, postgres: PostgresServer
) -> None:
    import psycopg

    async with httpx2.AsyncClient(timeout=30) as http:
        eve = await session_at(cluster.bases[0], http, token="Bearer guesses")

        async def guess(number: int, **more: str) -> int:
            headers = eve | {"mcp-session-id": f"gone.{number}"} | more
            return (await http.post(f"{cluster.bases[0]}/mcp", json=ping(), headers=headers)).status_code

        assert {await guess(number) for number in range(GUESSES)} == {404}
        with psycopg.connect(postgres.url) as connection:
            for _ in range(20):
                # After a moment, one more may be looked up.
                while await guess(0) == 404:
                    pass
                connection.execute("LOCK TABLE replicas.contexts IN ACCESS EXCLUSIVE MODE")
                refused = await guess(0)
                connection.rollback()
                if refused == 429:
                    break
            assert refused == 429
        assert await guess(0, authorization="Bearer ada") == 404
        assert (await http.post(f"{cluster.bases[0]}/mcp", json=ping(), headers=eve)).status_code == 200


async def test_each_replica_counts_its_relays_by_reason_and_result(cluster: Cluster) -> None:
    before = counts_of(cluster.bases)
    answers = {"elicitation/create": lambda _: ACCEPTED}
    async with (
        balancing(cluster.balancer()) as balancer,
        wires.http(balancer.base, capabilities=PERSON, answers=answers) as client,
    ):
        for _ in range(3):
            await client.call("work__ask", {})
    async with (
        wires.http(cluster.bases[0], "modern", capabilities=PERSON) as asking,
        wires.http(cluster.bases[1], "modern", capabilities=PERSON) as answering,
    ):
        asked = await asking.call("work__ask", {})
        resumed = {"name": "work__ask", "arguments": {}, "requestState": asked["requestState"]}
        resumed["inputResponses"] = dict.fromkeys(asked["inputRequests"], ACCEPTED)
        await answering.request("tools/call", resumed)
    counted = counts_of(cluster.bases) - before
    for reason in ("session", "reply", "call"):
        assert counted["cluster_relays_total", reason, "answered"] >= 1, reason
    assert counts_of(cluster.bases[:1])["cluster_replicas",] >= 3
    assert counts_of(cluster.bases)["store_up",] == 3


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
        signer = Signer([key.encode()], "b", clock=lambda: time.time() - 40 * (fault == "too old"))
        headers = ada | {"mcp-session-id": session}
        scope = RELAYED | {"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
        value = b"relay" if fault == "unsigned" else signer.sign(receiver, scope, signed)
        before = counts_of(cluster.bases[:1])["cluster_relays_refused_total",]
        body = signed + b" " if fault == "another body" else signed
        answer = await http.post(
            f"{cluster.bases[0]}/mcp", content=body, headers=ada | {"x-mcp-relay": value.decode()}
        )
        assert (answer.status_code, answer.headers["x-mcp-relay"], answer.content) == (403, "refused", b"")
        assert counts_of(cluster.bases[:1])["cluster_relays_refused_total",] == before + 1


@pytest.mark.parametrize("query", ['?a="b"', "?a=b c", "?%2e=<>", "?q={x}|y"])
async def test_no_address_of_a_client_makes_a_replica_take_its_own_key_for_a_wrong_one(
    cluster: Cluster, query: str
) -> None:
    """A library spells some queries anew, so that a relay with one would not fit its signature."""
    host, _, port = cluster.bases[1].removeprefix("http://").partition(":")
    before = counts_of(cluster.bases)["cluster_relays_refused_total",]
    async with httpx2.AsyncClient(timeout=30) as http:
        ada = await session_at(cluster.bases[0], http)
    body = json.dumps(ping()).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in ada.items())
    lines = f"POST /mcp{query.replace(' ', '%20')} HTTP/1.1\r\nhost: {host}:{port}\r\n{head}"
    lines += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send(lines.encode() + body)
        answer = b"".join([part async for part in stream])
    async with httpx2.AsyncClient(timeout=30) as http:
        ready = [(await http.get(f"{base}/readyz")).status_code for base in cluster.bases]

    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert ready == [200, 200, 200]
    assert counts_of(cluster.bases)["cluster_relays_refused_total",] == before


@pytest.mark.parametrize("path", ["", "%3Fx", "%2541", "a%23b", "../messages/x"])
async def test_no_path_below_that_of_messages_makes_a_replica_take_its_own_key_for_a_wrong_one(
    cluster: Cluster, path: str
) -> None:
    """What follows in the path means nothing, and a library writes it in another way than was signed."""
    host, _, port = cluster.bases[1].removeprefix("http://").partition(":")
    before = counts_of(cluster.bases)["cluster_relays_refused_total",]
    async with wires.sse(cluster.bases[0]) as ada:
        assert isinstance(ada.wire, wires.SseWire)
        session = ada.wire.url.partition("?")[2]
        answered = ada.expect("far")
        body = json.dumps({"jsonrpc": "2.0", "id": "far", "method": "ping"}).encode()
        lines = f"POST /messages/{path}?{session} HTTP/1.1\r\nhost: {host}:{port}\r\n"
        lines += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(f"{lines}connection: close\r\n\r\n".encode() + body)
            answer = b"".join([part async for part in stream])
        assert answer.startswith(b"HTTP/1.1 202 "), answer
        assert await answered == {}
    async with httpx2.AsyncClient(timeout=30) as http:
        ready = [(await http.get(f"{base}/readyz")).status_code for base in cluster.bases]

    assert ready == [200, 200, 200]
    assert counts_of(cluster.bases)["cluster_relays_refused_total",] == before


async def test_relays_that_nobody_has_signed_fill_no_log(cluster: Cluster) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:
        ada = await session_at(cluster.bases[2], http)
        for _ in range(50):
            refused = await http.post(
                f"{cluster.bases[2]}/mcp", json=ping(), headers=ada | {"x-mcp-relay": "x"}
            )
            assert refused.status_code == 403
    log = cluster.replicas[2].folder.joinpath("config.log").read_text(encoding="utf-8")

    assert 0 < log.count("refused a relay") <= 2 * COMPLAINTS


async def test_a_relay_is_taken_once_and_never_relayed_again(cluster: Cluster) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:
        ada = await session_at(cluster.bases[0], http)
        body, signer = json.dumps(ping()).encode(), Signer([KEY.encode()], "c", time.time)
        scope = RELAYED | {"headers": [(name.encode(), value.encode()) for name, value in ada.items()]}

        async def send(replica: int, value: bytes) -> httpx2.Response:
            relay = ada | {"x-mcp-relay": value.decode()}
            return await http.post(f"{cluster.bases[replica]}/mcp", content=body, headers=relay)

        value = signer.sign("a", scope, body)
        assert [(await send(0, value)).status_code for _ in range(2)] == [200, 403]
        looped = await send(1, signer.sign("b", scope, body))
        assert (looped.status_code, looped.headers["x-mcp-relay"]) == (421, "not-here")


def test_the_command_shows_the_replicas(cluster: Cluster) -> None:
    config = cluster.replicas[0].folder / "config.toml"
    shown = subprocess.run(
        command(config, "cluster", "status", "--json"), capture_output=True, text=True, check=True
    )
    found = {each["replica"]: each for each in json.loads(shown.stdout)["replicas"]}
    assert {"a", "b", "c"} <= found.keys()
    assert found["a"]["address"] == cluster.bases[0]
