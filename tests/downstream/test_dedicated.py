"""A handshake-era server that asks gets a connection for each session; one that asks nothing is shared."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import RpcError
from support.servers import Server, Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.trust import THE_USER, Principal, Role

ELICIT = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": {}}}
CAPABLE = {"elicitation": {}, "roots": {"listChanged": True}, "x-unknown": {}}
SESSION = {"isolation": "session"}


def server(workshop: Workshop, isolation: str = "auto", **more: Any) -> Server:
    calls = {
        "pid": [{"pid": True}],
        "ask": [{"ask": ELICIT}],
        "roots": [{"ask": {"method": "roots/list"}}],
        "hang": [{"wait_cancelled": True}],
        "exit": [{"exit": 4}],
        **more.pop("calls", {}),
    }
    settings = {"isolation": isolation}
    return workshop.server(
        "work", tools=[tool(name) for name in calls], calls=calls, settings=settings, **more
    )


def person(
    proxy: Proxy,
    name: str,
    capabilities: dict[str, Any] | None = None,
    rights: Principal = THE_USER,
    era: str = "handshake",
) -> Host:
    """The host of somebody who answers with a name."""
    declared = CAPABLE if capabilities is None else capabilities
    answers = {
        "elicitation/create": lambda params: {"action": "accept", "content": {"name": name}},
        "roots/list": lambda params: {"roots": [{"uri": f"file:///{name}"}]},
    }
    return Host(proxy, era, declared, answers, rights=rights)


def text(result: dict[str, Any]) -> str:
    assert not result.get("isError"), result
    return str(result["content"][0]["text"])


async def pid(host: Host) -> int:
    return int(text(await host.call("work__pid")))


async def name_given(host: Host) -> str:
    return str(json.loads(text(await host.call("work__ask")))["content"]["name"])


@asynccontextmanager
async def under_way(host: Host, made: Server) -> AsyncIterator[None]:
    """A call of a host that does not end before the block does."""
    async with anyio.create_task_group() as group:
        group.start_soon(host.call, "work__hang")
        await made.ledger.until(lambda ledger: ledger.calls("hang"))
        yield
        group.cancel_scope.cancel()


async def test_a_resource_is_subscribed_to_once_on_each_connection(workshop: Workshop) -> None:
    """Or the one who comes second, on the connection that all share, would never hear of an update."""
    uri = "note://work/1"
    made = server(workshop, resources=[{"uri": uri, "name": "one"}])
    async with inside(workshop.config()) as proxy:
        keeper, other = (person(proxy, name) for name in "ab")
        await name_given(keeper)
        for host in (other, keeper):
            await host.request("resources/subscribe", {"uri": uri})
        pids = {await pid(other), await pid(keeper)}

    received = made.ledger.entries("received")
    told = [entry["pid"] for entry in received if "resources/subscribe" in entry["line"]]
    assert len(pids) == 2
    assert sorted(told) == sorted(pids)


async def test_a_server_that_makes_no_requests_is_one_process_for_all(workshop: Workshop) -> None:
    made = server(workshop)
    async with inside(workshop.config()) as proxy:
        pids = [await pid(person(proxy, name)) for name in "ab"] + [await pid(Host(proxy, "modern", CAPABLE))]

    assert len(set(pids)) == 1
    assert len(made.ledger.entries("start")) == 1


async def test_once_a_server_makes_a_request_each_session_gets_a_process_and_the_first_keeps_its_own(
    workshop: Workshop,
) -> None:
    server(workshop)
    async with inside(workshop.config()) as proxy:
        one, two = person(proxy, "one"), person(proxy, "two")
        before = await pid(one), await pid(two)
        assert await name_given(one) == "one"
        after = await pid(one), await pid(two)
        again = await pid(one), await pid(two)

    assert before[0] == before[1] == after[0]
    assert after[1] != after[0]
    assert again == after


async def test_sessions_asked_at_the_same_time_are_each_asked_their_own_question(workshop: Workshop) -> None:
    flag = workshop.flag("go")
    made = server(workshop, "session", calls={"ask": [{"wait": str(flag)}, {"ask": ELICIT}]})
    names = [f"p{number}" for number in range(4)]
    given = {}
    async with inside(workshop.config()) as proxy:

        async def ask(name: str) -> None:
            given[name] = await name_given(person(proxy, name))

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(ask, name)
            await made.ledger.until(lambda ledger: len(ledger.calls("ask")) == len(names))
            flag.touch()

    assert given == {name: name for name in names}


async def test_the_calls_of_one_session_share_its_dedicated_connection(workshop: Workshop) -> None:
    made = server(workshop, "session")
    async with inside(workshop.config()) as proxy:
        host = person(proxy, "one")
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(pid, host)

    assert len(made.ledger.entries("start")) == 2


async def test_a_dedicated_connection_declares_the_capabilities_of_its_client(workshop: Workshop) -> None:
    made = server(workshop, "session")
    async with inside(workshop.config()) as proxy:
        await pid(person(proxy, "one", {"elicitation": {"form": {}, "url": {}}, "tasks": {}}))

    shared, lane = made.ledger.messages("initialize")
    assert shared["params"]["capabilities"] == {"sampling": {}, "elicitation": {}, "roots": {}}
    assert lane["params"]["capabilities"] == {"elicitation": {"form": {}, "url": {}}}


async def test_a_server_that_asks_in_vain_is_told_so_before_the_next_call(workshop: Workshop) -> None:
    """Many servers ask for a confirmation only where they may, and go on without it elsewhere."""
    made = server(workshop)
    async with inside(workshop.config()) as proxy:
        mute, modern = person(proxy, "mute", {}), person(proxy, "modern", {}, era="modern")
        refused = await mute.call("work__ask")
        pids = [await pid(mute), await pid(modern), await pid(mute), await pid(person(proxy, "able"))]

    assert "support elicitation/create. If the call fails because of that, call again" in str(refused)
    lanes = [message["params"]["capabilities"] for message in made.ledger.messages("initialize")[1:]]
    assert lanes == [{}, {}, {"elicitation": {}, "roots": {"listChanged": True}}]
    assert (pids[0] == pids[2], len(set(pids))) == (True, 3)


async def test_a_session_that_a_server_asks_in_vain_without_failing_keeps_what_the_server_knows_of_it(
    workshop: Workshop,
) -> None:
    """So do others that cannot be asked: there is one process, and not one for each."""
    made = server(workshop, calls={"try": [{"ask_then": ELICIT}, {"pid": True}]})
    async with inside(workshop.config()) as proxy:
        mute, modern, able = (
            person(proxy, "mute", {}),
            person(proxy, "modern", {}, era="modern"),
            person(proxy, "a"),
        )
        before = await pid(mute)
        tried = text(await mute.call("work__try"))
        pids = [await pid(mute), await pid(modern), await pid(person(proxy, "other", {}))]
        apart = await pid(able)

    assert [int(tried), *pids] == [before] * 4
    assert apart != before
    assert len(made.ledger.entries("start")) == 2


async def test_a_dedicated_connection_is_closed_with_its_session(workshop: Workshop) -> None:
    made = server(workshop, "session")
    async with inside(workshop.config()) as proxy:
        one, two = person(proxy, "one"), person(proxy, "two")
        gone, stays = await pid(one), await pid(two)
        one.leave()
        await made.ledger.until(lambda ledger: ledger.entries("end of input"))
        assert await pid(two) == stays

        assert [entry["pid"] for entry in made.ledger.entries("end of input")] == [gone]


async def test_requests_of_a_server_on_connecting_are_answered_by_the_session(workshop: Workshop) -> None:
    made = server(workshop, "session", after_initialized=[{"ask": {"method": "roots/list"}}])
    async with inside(workshop.config()) as proxy:
        await made.ledger.until(lambda ledger: ledger.entries("asked"))
        await pid(person(proxy, "one"))
        await made.ledger.until(lambda ledger: len(ledger.entries("asked")) == 2)

    shared, lane = (entry["answer"]["result"] for entry in made.ledger.entries("asked"))
    assert shared == {"roots": []}
    assert lane == {"roots": [{"uri": "file:///one"}]}


async def test_a_server_that_asks_for_roots_on_connecting_gets_a_connection_for_each_session_with_roots(
    workshop: Workshop,
) -> None:
    made = server(workshop, after_initialized=[{"ask": {"method": "roots/list"}}])
    async with inside(workshop.config()) as proxy:
        await made.ledger.until(lambda ledger: ledger.entries("asked"))
        without, with_roots = await pid(person(proxy, "one", {})), await pid(person(proxy, "two"))

    assert without != with_roots


def eager_to_know(workshop: Workshop, questions: int) -> None:
    """A server that asks for roots at once, and tells when called the answers heard by then."""
    first = [{"method": "roots/list"}] * questions
    server(workshop, "session", asks_first=first, calls={"known": [{"heard": True}]})


async def test_the_first_call_on_a_dedicated_connection_waits_until_its_server_has_the_roots(
    workshop: Workshop,
) -> None:
    eager_to_know(workshop, 2)
    async with inside(workshop.config()) as proxy:
        known = json.loads(text(await person(proxy, "one").call("work__known")))

    assert known == [{"roots": [{"uri": "file:///one"}]}] * 2


async def test_the_first_call_also_waits_if_a_modern_client_is_asked_for_the_roots(
    workshop: Workshop,
) -> None:
    eager_to_know(workshop, 1)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        question = await host.call("work__known")
        roots = {"roots": [{"uri": "file:///one"}]}
        assert [each["method"] for each in question["inputRequests"].values()] == ["roots/list"]
        retry = {
            "name": "work__known",
            "arguments": {},
            "inputResponses": dict.fromkeys(question["inputRequests"], roots),
            "requestState": question["requestState"],
        }
        known = json.loads(text(await host.request("tools/call", retry)))

    assert known == [roots]


async def test_a_server_that_does_not_know_ping_is_called_nevertheless(workshop: Workshop) -> None:
    server(workshop, "session", on={"ping": [{"error": {"code": -32601, "message": "what?"}}]})
    async with inside(workshop.config()) as proxy:
        assert await pid(person(proxy, "one"))


async def test_changed_roots_are_sent_over_the_dedicated_connection_of_the_session(
    workshop: Workshop,
) -> None:
    made = server(workshop, "session")
    changed = "notifications/roots/list_changed"
    async with inside(workshop.config()) as proxy:
        one, two = person(proxy, "one"), person(proxy, "two")
        lane, _ = await pid(one), await pid(two)
        assert one.session is not None
        await proxy.gateway.notified(changed, one.session)
        told = await made.ledger.until(
            lambda ledger: [entry for entry in ledger.entries("notified") if entry["method"] == changed]
        )

    assert [entry["pid"] for entry in told] == [lane]


async def test_a_request_of_a_shared_server_is_refused_if_two_clients_could_be_meant(
    workshop: Workshop,
) -> None:
    made = server(workshop, "shared")
    async with inside(workshop.config()) as proxy:
        one, two = person(proxy, "one"), person(proxy, "two")
        assert (await name_given(one), await name_given(two)) == ("one", "two")
        async with under_way(one, made):
            refused = await two.call("work__ask")

    assert refused["isError"] is True
    assert "2 clients" in refused["content"][0]["text"]
    assert [len(one.asked), len(two.asked)] == [1, 1]
    assert len(made.ledger.entries("start")) == 1


LOG = {"method": "notifications/message", "params": {"level": "error", "data": "what anna asked"}}


@pytest.mark.parametrize("isolation", ["auto", "shared"])
async def test_nobody_is_asked_or_told_what_may_be_about_a_call_of_another_person_that_has_ended(
    workshop: Workshop, isolation: str
) -> None:
    """The server asks and logs while the call of one person is under way, after that of another has ended."""
    made = server(workshop, isolation, calls={"log": [{"notify": LOG}, {"pid": True}]})
    async with inside(workshop.config()) as proxy:
        anna, bert = (person(proxy, name, rights=Principal(name, Role.USE)) for name in ("anna", "bert"))
        again = person(proxy, "anna again", rights=anna.rights)
        await pid(again)
        assert text(await anna.call("work__log"))
        assert [method for method, _ in anna.notifications] == ["notifications/message"]
        assert text(await bert.call("work__log"))
        refused = await bert.call("work__ask")
        told = [params for method, params in bert.notifications + bert.told if method == LOG["method"]]
        assert [told, bert.asked] == [[], []]
        assert "another person that has just ended" in refused["content"][0]["text"]
        if isolation == "auto":
            assert [await name_given(one) for one in (bert, anna)] == ["bert", "anna"]

    assert len(made.ledger.entries("start")) == (3 if isolation == "auto" else 1)


async def test_other_sessions_of_the_same_person_do_not_keep_a_question_from_being_asked(
    workshop: Workshop,
) -> None:
    server(workshop, "shared")
    async with inside(workshop.config()) as proxy:
        rights = Principal("anna", Role.USE)
        one, two = person(proxy, "one", rights=rights), person(proxy, "two", rights=rights)
        assert (await name_given(one), await name_given(two)) == ("one", "two")


async def test_a_client_that_cannot_be_asked_is_never_mistaken_for_another(workshop: Workshop) -> None:
    made = server(workshop, "shared")
    async with inside(workshop.config()) as proxy:
        one, mute = person(proxy, "one"), person(proxy, "mute", {})
        async with under_way(one, made):
            refused = await mute.call("work__ask")

    assert refused["isError"] is True
    assert one.asked == []


async def test_at_the_limit_an_idle_dedicated_connection_is_closed_and_never_one_in_use(
    workshop: Workshop,
) -> None:
    made = server(workshop, "session")
    async with inside(workshop.config(limits={"lanes_per_server": 1})) as proxy:
        one, two = person(proxy, "one"), person(proxy, "two")
        assert await pid(one) != await pid(two)
        async with under_way(two, made):
            refused = await one.call("work__pid")

    assert refused["isError"] is True
    assert "busy" in refused["content"][0]["text"]


async def test_the_log_says_once_that_a_server_has_many_dedicated_connections_and_what_bounds_them(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    server(workshop, "session")
    async with inside(workshop.config(limits={"lanes_per_server": 4})) as proxy:
        for number in range(3):
            await pid(person(proxy, f"person {number}"))

    (told,) = (record.getMessage() for record in caplog.records if "dedicated" in record.getMessage())
    assert told == (
        "server work: 2 dedicated connections, one for each client that it may ask, and each a process; "
        "limits.lanes_per_server allows 4"
    )


async def test_a_dedicated_connection_that_cannot_be_opened_says_why_and_the_next_call_tries_again(
    workshop: Workshop,
) -> None:
    shared, broken = str(workshop.flag("shared")), str(workshop.flag("broken"))
    made = server(
        workshop,
        "session",
        on={"tools/list": [{"once": [shared, []]}]},
        at_start=[{"if": [shared, [{"once": [broken, [{"exit": 5}]]}]]}],
    )
    async with inside(workshop.config()) as proxy:
        host = person(proxy, "one")
        refused = await host.call("work__pid")
        assert await pid(host)

    assert "exited (code 5)" in refused["content"][0]["text"]
    assert len(made.ledger.entries("start")) == 3


async def test_a_lost_dedicated_connection_fails_its_own_calls_alone_and_is_opened_again(
    workshop: Workshop,
) -> None:
    server(workshop, "session")
    async with inside(workshop.config()) as proxy:
        one, two = person(proxy, "one"), person(proxy, "two")
        first, other = await pid(one), await pid(two)
        died = await one.call("work__exit")
        again = await pid(one)
        assert await pid(two) == other

    assert died["isError"] is True
    assert "exited (code 4)" in died["content"][0]["text"]
    assert again != first


async def test_modern_calls_whose_client_may_be_asked_use_one_dedicated_connection_at_a_time(
    workshop: Workshop,
) -> None:
    made = server(workshop, "session")
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "modern", CAPABLE)
        first = await pid(host)
        async with under_way(host, made):
            second = await pid(host)
        third = await pid(host)
        stranger = await pid(Host(proxy, "modern", CAPABLE, principal="another"))

    assert first != second
    assert third in (first, second)
    assert stranger not in (first, second)


async def test_a_dedicated_connection_without_a_session_is_closed_when_idle(workshop: Workshop) -> None:
    made = server(workshop, "session")
    async with inside(workshop.config(limits={"lane_idle_seconds": 0.2})) as proxy:
        lane = await pid(Host(proxy, "modern", CAPABLE))
        await made.ledger.until(lambda ledger: ledger.entries("end of input"))
        closed = [entry["pid"] for entry in made.ledger.entries("end of input")]

    assert closed == [lane]


async def test_no_dedicated_connection_outlives_the_proxy(workshop: Workshop) -> None:
    made = server(workshop, "session")
    async with inside(workshop.config()) as proxy:
        await pid(person(proxy, "one"))
        await pid(Host(proxy, "modern", CAPABLE))

    starts = {entry["pid"] for entry in made.ledger.entries("start")}
    assert len(starts) == 3
    assert {entry["pid"] for entry in made.ledger.entries("end of input")} == starts


async def test_a_handshake_server_over_http_gets_dedicated_connections_as_well(workshop: Workshop) -> None:
    calls = {"ask": [{"ask": ELICIT}]}
    made = workshop.http_server("work", tools=[tool("ask")], calls=calls, settings=SESSION)
    async with inside(workshop.config()) as proxy:
        one, two = person(proxy, "one"), person(proxy, "two")
        assert (await name_given(one), await name_given(two)) == ("one", "two")

    assert len(made.ledger.messages("initialize")) == 3


async def test_a_request_that_the_server_cancels_is_cancelled_at_the_client(workshop: Workshop) -> None:
    asked = workshop.flag("asked")
    in_vain = {"ask_in_vain": {**ELICIT, "until": str(asked)}}
    server(workshop, calls={"fickle": [in_vain, {"result": {"content": []}}]})
    async with inside(workshop.config()) as proxy:
        host = person(proxy, "slow")
        cancelled = []

        async def think(method: str, params: Any) -> bytes:
            asked.touch()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                cancelled.append(method)
                raise
            raise RpcError(0, "unreachable")

        host.ask = think  # type: ignore[method-assign]
        await host.call("work__fickle")
        await until(lambda: cancelled)
