"""A replica that is killed, drained, replaced or has another key costs the clients of others nothing."""

import contextlib
import json
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest
from msgspec.structs import replace
from support import wires
from support.balancer import Balancer, balancing
from support.ledger import until
from support.postgres import PostgresServer
from support.proxies import command, http_proxy
from support.raw_client import PATIENCE, RawClient, RpcError, text_of
from support.replicas import (
    ACCEPTED,
    KEY,
    NOTE,
    PERSON,
    UPDATED,
    Cluster,
    call_of,
    configured,
    counts_of,
    haproxy,
    kept_port,
    ledger_of,
    ping,
    session_at,
    until_ready,
)

from mcp_context_proxy.cluster import ReplicaRow
from mcp_context_proxy.cluster.replicas import ClusterCounts, Replicas
from mcp_context_proxy.errors import StoreError

pytestmark = pytest.mark.cluster


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
                message = call_of("manage_context", arguments)
                answer = await http.post(f"{base}/mcp", json=message, headers=ada)
                return answer.text

            assert "work__echo" in await manage(cluster.bases[0], wanted)
            lost.process.kill()
            lost.process.wait()
            before = counts_of(cluster.bases)
            for base in cluster.bases * 2:
                assert "work__echo" in await manage(base, {"action": "list"})
            counted = counts_of(cluster.bases) - before
            assert counted["cluster_adoptions_total",] == 1
            assert counted["cluster_sessions",] == 1
            assert counted["cluster_replicas_lost_total",] >= 1


async def test_a_call_under_way_at_a_replica_that_is_killed_may_have_run_and_is_not_repeated(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    """What was acknowledged stays, and a session goes on; what waited in memory ends with a reason."""
    config = configured(tmp_path / "i", postgres, "i", cluster.port)
    ledgers = [ledger_of(replica) for replica in cluster.replicas]
    with http_proxy(config, real=True) as lost:
        until_ready(lost.base)
        async with httpx2.AsyncClient(timeout=60) as http, AsyncExitStack() as stack:
            session = await session_at(lost.base, http)
            there, here = [
                await stack.enter_async_context(wires.http(base, "modern", capabilities=PERSON))
                for base in (lost.base, cluster.bases[0])
            ]
            wanted = {"action": "add", "type": "tool", "name": "work__echo"}
            made = await there.data("manage_context", wanted)
            posted = await http.post(f"{lost.base}/api/v1/interactions", json={"content": "said before"})
            assert posted.status_code == 200
            parked = await there.call("work__ask", {})
            answers = list[httpx2.Response]()

            async def hang() -> None:
                message = call_of("work__hang", {})
                answers.append(await http.post(f"{cluster.bases[0]}/mcp", json=message, headers=session))

            async with anyio.create_task_group() as group:
                group.start_soon(hang)
                await ledger_of(lost).until(lambda ledger: ledger.calls("hang"))
                lost.process.kill()
                lost.process.wait()
            assert answers[0].status_code == 200
            assert "may or may not have run" in answers[0].json()["error"]["message"]
            assert [ledger.calls("hang") for ledger in ledgers] == [[], [], []]

            gone = {"name": "work__ask", "arguments": {}, "requestState": parked["requestState"]}
            gone["inputResponses"] = dict.fromkeys(parked["inputRequests"], ACCEPTED)
            with pytest.raises(RpcError, match="make the call again"):
                await here.request("tools/call", gone)
            for base in cluster.bases:
                answer = await http.post(f"{base}/mcp", json=ping(), headers=session)
                assert (answer.status_code, answer.json()["result"]) == (200, {})
                found = await http.get(f"{base}/api/v1/interactions")
                assert "said before" in found.text
            listed = {"context_id": made["context_id"], "action": "list"}
            assert [each["name"] for each in (await here.data("manage_context", listed))["items"]] == [
                "work__echo"
            ]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_stream_that_has_begun_ends_with_the_reason_when_the_replica_that_runs_its_call_is_lost(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer, how: signal.Signals
) -> None:
    """A machine that loses its power closes no connection, as a process that is stopped does not."""
    config = configured(tmp_path / "j", postgres, f"j{how}", cluster.port)
    with http_proxy(config, real=True) as lost, ExitStack() as ending:
        ending.callback(lost.process.kill)
        until_ready(lost.base)
        async with httpx2.AsyncClient(timeout=60) as http, AsyncExitStack() as stack:
            session = await session_at(lost.base, http, person=True)
            call, url = call_of("work__ask", {}), f"{cluster.bases[0]}/mcp"
            asking = await stack.enter_async_context(http.stream("POST", url, json=call, headers=session))
            listening = await stack.enter_async_context(
                http.stream("GET", url, headers=session | {"accept": "text/event-stream"})
            )
            told = wires.events(asking)
            question = json.loads((await anext(told))[1])
            assert question["method"] == "elicitation/create"
            lost.process.send_signal(how)
            unanswered = await http.post(url, json=ping(), headers=session)
            last = json.loads((await anext(told))[1])
            assert last["id"] == call["id"]
            assert "may or may not have run" in last["error"]["message"]
            # Both streams end as a complete response does, so no client takes the connection for broken.
            assert [event async for event in told] == []
            assert [event async for event in wires.events(listening)] == []
            if how == signal.SIGSTOP:
                assert "may or may not have run" in unanswered.json()["error"]["message"]


async def test_a_drained_replica_ends_its_calls_and_its_sessions_move_without_an_error(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    home = configured(tmp_path / "g", postgres, "g", cluster.port)
    with http_proxy(home) as drained:
        until_ready(drained.base)
        async with httpx2.AsyncClient(timeout=30) as http, AsyncExitStack() as stack:
            quiet, busy = [await session_at(drained.base, http, person=True) for _ in range(2)]

            async def manage(base: str, action: str) -> str:
                wanted = {"action": action, "type": "tool", "name": "work__echo"}
                message = call_of("manage_context", wanted)
                return (await http.post(f"{base}/mcp", json=message, headers=quiet)).text

            assert "work__echo" in await manage(drained.base, "add")
            asking = await stack.enter_async_context(
                http.stream("POST", f"{cluster.bases[1]}/mcp", json=call_of("work__ask", {}), headers=busy)
            )
            told = wires.events(asking)
            question = json.loads((await anext(told))[1])
            parked = await stack.enter_async_context(wires.http(drained.base, "modern", capabilities=PERSON))
            asked = await parked.call("work__ask", {})

            await anyio.run_process(command(home, "cluster", "drain", "g"))
            while (probe := await http.get(f"{drained.base}/readyz")).status_code == 200:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            assert "new clients should go elsewhere" in probe.text
            before = counts_of(cluster.bases)

            # The quiet session moves, and is found wherever its client asks, at its old home as well.
            for base in (*cluster.bases, drained.base):
                assert "work__echo" in await manage(base, "list")
            assert (counts_of(cluster.bases) - before)["cluster_adoptions_total",] == 1
            # What is under way ends where it began.
            reply = {"jsonrpc": "2.0", "id": question["id"], "result": ACCEPTED}
            taken = await http.post(f"{cluster.bases[0]}/mcp", json=reply, headers=busy)
            assert taken.status_code == 202
            assert json.loads(text_of(json.loads((await anext(told))[1])["result"])) == ACCEPTED
            async with wires.http(cluster.bases[2], "modern", capabilities=PERSON) as answering:
                resumed = {"name": "work__ask", "arguments": {}, "requestState": asked["requestState"]}
                resumed["inputResponses"] = dict.fromkeys(asked["inputRequests"], ACCEPTED)
                assert json.loads(text_of(await answering.request("tools/call", resumed))) == ACCEPTED
            # Then that session moves, too, and nothing is left.
            for base in cluster.bases:
                assert (await http.post(f"{base}/mcp", json=ping(), headers=busy)).status_code == 200
            assert counts_of([drained.base])["cluster_sessions",] == 0
            # Whoever still comes is served.
            late = await session_at(drained.base, http)
            assert (await http.post(f"{drained.base}/mcp", json=ping(), headers=late)).status_code == 200


@pytest.mark.parametrize("how", ["killed", "stalled"])
async def test_contexts_and_sessions_go_on_while_the_database_is_away(
    cluster: Cluster, postgres: PostgresServer, how: str
) -> None:
    manage, echo, change = "manage_context", "work__echo", "work__change"
    async with httpx2.AsyncClient(timeout=30) as http, AsyncExitStack() as stack:
        one, other, stranger = [
            await stack.enter_async_context(wires.http(base, "modern")) for base in cluster.bases
        ]

        async def names(client: RawClient, context_id: str) -> set[str]:
            found = await client.data(manage, {"context_id": context_id, "action": "list"})
            return {item["name"] for item in found["items"]}

        made = await one.data(manage, {"action": "add", "type": "tool", "name": echo})
        known = made["context_id"]
        assert await names(other, known) == {echo}
        session = await session_at(cluster.bases[0], http)
        lost = await session_at(cluster.bases[0], http)
        lost["mcp-session-id"] = "gone" + lost["mcp-session-id"]
        for base in cluster.bases:  # one that does not know the home yet could not ask for it later
            assert (await http.post(f"{base}/mcp", json=ping(), headers=session)).status_code == 200
        await anyio.to_thread.run_sync(postgres.kill if how == "killed" else postgres.pause)
        try:
            for base in cluster.bases:
                async with wires.http(base, "modern") as plain:
                    assert echo in await plain.names()
                    assert "isError" not in await plain.call(echo, {})
                    found = await plain.call("search_available_tools", {"query": "repeat a text"})
                    assert echo in text_of(found)
                posted = await http.post(f"{base}/api/v1/interactions", json={"content": f"lost when {how}"})
                assert posted.status_code == 503
            added = {"context_id": known, "action": "add", "type": "tool", "name": change}
            assert "kept by one replica only" not in text_of(await one.call(manage, added))
            assert await names(one, known) == {echo, change}
            assert await names(other, known) == {echo}
            assert json.loads(text_of(await other.call(echo, {"context_id": known})))
            with pytest.raises(RpcError, match="cannot be looked up now"):
                await names(stranger, known)
            new = await one.call(manage, {"action": "add", "type": "tool", "name": change})
            assert "kept by one replica only" in new["content"][-1]["text"]
            for base in cluster.bases:
                assert (await http.post(f"{base}/mcp", json=ping(), headers=session)).status_code == 200
                undecided = await http.post(f"{base}/mcp", json=ping(), headers=lost)
                assert (undecided.status_code, undecided.headers["retry-after"]) == (503, "1")
                ready = await http.get(f"{base}/readyz")
                assert (ready.status_code, len(ready.json()["degraded"])) == (200, 1)
        finally:
            await anyio.to_thread.run_sync(postgres.start if how == "killed" else postgres.resume)
        with anyio.fail_after(30):
            while True:
                with contextlib.suppress(RpcError):
                    if await names(stranger, known) == {echo, change} == await names(other, known):
                        break
                await anyio.sleep(0.05)


async def test_a_home_that_was_out_of_reach_is_asked_again_while_the_database_is_away(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(kept_port())
        address = f"http://127.0.0.1:{port}"
        home = stack.enter_context(
            http_proxy(configured(tmp_path / "h", postgres, "h", port, advertise=address))
        )
        until_ready(home.base)
        async with httpx2.AsyncClient(timeout=30) as http:
            session = await session_at(home.base, http)

            async def status() -> int:
                return (await http.post(f"{cluster.bases[0]}/mcp", json=ping(), headers=session)).status_code

            async with balancing(Balancer([home.base], port)):
                assert await status() == 200
                await anyio.to_thread.run_sync(postgres.kill)
            try:
                assert await status() == 503
                async with balancing(Balancer([home.base], port)):
                    with anyio.fail_after(PATIENCE):
                        while await status() != 200:  # noqa: ASYNC110 - another process
                            await anyio.sleep(0.05)
            finally:
                await anyio.to_thread.run_sync(postgres.start)


KEY_DIFFERS = "cluster.key is not that of the other replicas"


async def test_a_replica_with_another_key_is_not_ready_and_says_why(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    config = configured(tmp_path / "e", postgres, "e", cluster.port, key=KEY[::-1])
    with http_proxy(config) as wrong, httpx2.Client(timeout=30) as http:
        # It says so once it has asked the others.
        await until(lambda: KEY_DIFFERS in http.get(f"{wrong.base}/readyz").json().get("missing", ()))
        assert http.get(f"{wrong.base}/readyz").status_code == 503
        for base in cluster.bases:
            assert http.get(f"{base}/readyz").status_code == 200


async def test_a_replica_is_given_up_only_if_it_could_give_signs_of_life_and_gives_none() -> None:
    own, other, gone = (
        ReplicaRow(name, name, f"http://{name}", "", "1", seen, seen, 0)
        for name, seen in (("a", 0.0), ("b", 0.0), ("c", -99.0))
    )
    signs: list[float | None] = [0.0, None, 100.0, 102.0, 103.0]
    there = list[bool]()

    def beat(row: ReplicaRow, *, at_start: bool) -> tuple[float, list[ReplicaRow]]:
        if (now := signs.pop(0)) is None:
            raise StoreError("the database", "it is away")
        return now, [replace(own, seen=now), other, gone]

    table: Any = SimpleNamespace(beat=beat)
    replicas = Replicas(
        table,
        name="a",
        instance="a",
        address="http://a",
        keys=[b"k"],
        heartbeat_seconds=1.0,
        counts=ClusterCounts(),
    )
    while signs:
        await replicas.join()
        there.append(replicas.is_there("b"))
        assert not replicas.is_there("c")
        if len(there) == 1:
            replicas.suspect("b")  # it could not be connected to, which a busy one cannot either
            assert (replicas.address_of("b"), replicas.is_there("b")) == (None, True)

    assert there == [True] * 4 + [False]


async def test_sessions_are_relayed_between_replicas_whose_clocks_differ(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    config = configured(tmp_path / "s", postgres, "s", cluster.port)
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nright = time.time\ntime.time = lambda: right() + 300\n"
    )
    with http_proxy(config, real=True, env=os.environ | {"PYTHONPATH": str(tmp_path)}) as late:
        until_ready(late.base)
        async with httpx2.AsyncClient(timeout=30) as http:
            for home, other in (late.base, cluster.bases[0]), (cluster.bases[0], late.base):
                session = await session_at(home, http)
                answer = await http.post(f"{other}/mcp", json=ping(), headers=session)
                assert (answer.status_code, answer.json().get("result")) == (200, {})
                assert len(answer.headers.get_list("date")) == 1


async def test_the_key_is_changed_replica_by_replica_while_clients_go_on(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    """Each replica accepts both keys, whichever of them it signs with itself."""
    with ExitStack() as stack:
        replicas = []
        for name, key, other in (("k1", KEY, KEY[::-1]), ("k2", KEY[::-1], KEY)):
            config = configured(tmp_path / name, postgres, name, cluster.port, key=key, other_keys=[other])
            text = config.read_text().replace('"replicas"', '"changed_key"')
            config.write_text(text)
            replicas.append(stack.enter_context(http_proxy(config)))
        bases = [replica.base for replica in replicas]
        for base in bases:
            until_ready(base)
        async with httpx2.AsyncClient(timeout=30) as http:
            for home in bases:
                session = await session_at(home, http)
                for base in bases:
                    answer = await http.post(f"{base}/mcp", json=ping(), headers=session)
                    assert (answer.status_code, answer.json()["result"]) == (200, {})
        assert counts_of(bases)["cluster_relays_total", "session", "answered"] == 2
        assert [httpx2.get(f"{base}/readyz").status_code for base in bases] == [200, 200]


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_resource_that_a_server_announces_at_one_replica_is_told_at_another_once(
    cluster: Cluster, era: str
) -> None:
    async with (
        wires.http(cluster.bases[0], era) as subscriber,
        wires.http(cluster.bases[1], "modern") as caller,
    ):
        if era == "modern":
            wanted = {"notifications": {"resourceSubscriptions": [NOTE["uri"]]}}
            await subscriber.start("subscriptions/listen", wanted, request_id="listening")
            await subscriber.until(lambda one: one.notified("notifications/subscriptions/acknowledged"))
        else:
            await subscriber.request("resources/subscribe", {"uri": NOTE["uri"]})
            await subscriber.wire.listening.wait()
        await caller.call("work__change", {})
        await subscriber.until(lambda one: one.notified(UPDATED))
        # A further one comes after any that would follow the first.
        await subscriber.call("work__echo", {})
        assert [told["uri"] for told in subscriber.notified(UPDATED)] == [NOTE["uri"]]
        if era == "modern":
            await subscriber.abandon("listening")


async def test_a_replica_of_a_cluster_serves_for_some_seconds_after_it_is_told_to_end(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    config = configured(tmp_path / "k", postgres, "k", cluster.port)
    text = config.read_text("utf-8")
    assert "drain_grace_seconds = 0.0\n" in text
    config.write_text(text.replace("drain_grace_seconds = 0.0\n", ""), "utf-8")
    with http_proxy(config) as leaving:
        until_ready(leaving.base)
        async with httpx2.AsyncClient(timeout=30) as http, wires.http(leaving.base, "modern") as client:
            leaving.process.terminate()
            while (await http.get(f"{leaving.base}/readyz")).status_code == 200:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            assert text_of(await client.call("work__echo", {"text": "served"}))
        # A second signal ends the wait.
        leaving.process.terminate()
        leaving.process.wait(60)


async def test_no_request_at_the_end_of_a_replica_is_an_internal_error(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    """A balancer gives a request that did not run to another replica by its 503, and never by a 500."""
    statuses = Counter[int]()

    async def keep_asking(url: str) -> None:
        with contextlib.suppress(httpx2.TransportError):
            async with httpx2.AsyncClient(timeout=30) as http:
                while True:
                    statuses[(await http.post(url, json=ping())).status_code] += 1

    with http_proxy(configured(tmp_path / "i", postgres, "i", cluster.port)) as leaving:
        until_ready(leaving.base)
        async with anyio.create_task_group() as group:
            for _ in range(24):
                group.start_soon(keep_asking, f"{leaving.base}/mcp")
            await until(lambda: statuses.total() > 100)
            leaving.process.terminate()

    assert not statuses[HTTPStatus.INTERNAL_SERVER_ERROR], statuses


async def test_behind_haproxy_no_request_fails_while_a_replica_is_replaced(
    tmp_path: Path, cluster: Cluster, postgres: PostgresServer
) -> None:
    first, second = cluster.bases[:2]
    leaving = configured(tmp_path / "h", postgres, "h", cluster.port, http={"drain_grace_seconds": 2.5})
    with http_proxy(leaving) as replaced:
        until_ready(replaced.base)
        names = {"a": first, "b": second, "h": replaced.base}
        async with httpx2.AsyncClient(timeout=30) as http, AsyncExitStack() as stack:
            balancer = stack.enter_context(haproxy(tmp_path, names, cluster.port))
            asked = {"elicitation/create": lambda _: ACCEPTED}
            session = await stack.enter_async_context(
                wires.http(balancer, capabilities=PERSON, answers=asked)
            )
            modern = await stack.enter_async_context(wires.http(balancer, "modern", capabilities=PERSON))
            before = counts_of(list(names.values()))
            for _ in range(4):
                assert json.loads(text_of(await session.call("work__ask", {}))) == ACCEPTED
            # Each request of a session went to its home at once.
            assert not (counts_of(list(names.values())) - before)[
                "cluster_relays_total", "session", "answered"
            ]
            homed = await session_at(replaced.base, http)
            made = await modern.data(
                "manage_context", {"action": "add", "type": "tool", "name": "work__echo"}
            )
            replaced.process.terminate()
            while replaced.process.poll() is None:
                answer = await http.post(f"{balancer}/mcp", json=ping(), headers=homed)
                assert (answer.status_code, answer.json()["result"]) == (200, {})
                await modern.call("work__echo", {"context_id": made["context_id"]})
                await session.call("work__echo", {})
                await anyio.sleep(0.05)
            assert replaced.process.returncode == 0
            answer = await http.post(f"{balancer}/mcp", json=ping(), headers=homed)
            assert (answer.status_code, answer.json()["result"]) == (200, {})
