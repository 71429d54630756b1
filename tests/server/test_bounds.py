"""Messages of servers and clients that the proxy would keep or pass on are bounded, and concern somebody."""

import dataclasses
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import PATIENCE, RpcError
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.context.search import SEARCHES_AT_ONCE
from mcp_context_proxy.downstream import Party
from mcp_context_proxy.downstream.inbound import (
    ELICITATIONS_KEPT,
    NOTIFICATION_BYTES,
    NOTIFICATION_STRINGS,
    Admission,
)
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.eras import URI_CHARACTERS, covers
from mcp_context_proxy.server.notifications import UPDATES_AT_ONCE
from mcp_context_proxy.server.resources import SUBSCRIPTIONS, SUBSCRIPTIONS_BYTES
from mcp_context_proxy.system.threads import assigned
from mcp_context_proxy.trust import ACTING, MARK, Principal, Profile, Role

UPDATED, COMPLETE = "notifications/resources/updated", "notifications/elicitation/complete"
MESSAGE = "notifications/message"
END = {"method": MESSAGE, "params": {"level": "error", "data": "end"}}
URLS = {"elicitation": {"url": {}}}
RESOURCES = {"resources": {"subscribe": True}}


def visit(elicitation_id: str) -> dict[str, Any]:
    url = "https://example.com/x"
    asked = {"mode": "url", "message": "Go there", "url": url, "elicitationId": elicitation_id}
    return {"method": "elicitation/create", "params": asked}


def announced(method: str, *params: dict[str, Any]) -> list[dict[str, Any]]:
    """Steps that announce something, and then say that they have."""
    return [{"announce": {"method": method, "params": each}} for each in params] + [{"announce": END}]


def heard(host: Host, method: str) -> list[Any]:
    return [params for each, params in [*host.told, *host.notifications] if each == method]


async def until_said(host: Host) -> None:
    await until(lambda: heard(host, MESSAGE))


async def test_an_update_of_a_resource_that_nobody_subscribed_to_at_its_server_is_not_kept(
    workshop: Workshop,
) -> None:
    foreign = [{"uri": uri} for uri in ("note://mine", "note://unasked", "other://x")]
    workshop.server(
        "odd",
        tools=[tool("touch")],
        resources=[{"uri": "note://unasked", "name": "unasked"}],
        calls={"touch": announced(UPDATED, *foreign)},
    )
    workshop.server("good", resources=[{"uri": "note://mine", "name": "mine"}])
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")
        await host.request("resources/subscribe", {"uri": "note://mine"})
        await host.call("odd__touch")
        await until_said(host)

        assert not any(proxy.changes._updated.values())
    assert heard(host, UPDATED) == []


async def test_more_updates_than_a_server_may_send_at_once_arrive_later_and_each_once(
    workshop: Workshop,
) -> None:
    uris = [f"note://{number}" for number in range(UPDATES_AT_ONCE + 50)]
    workshop.server(
        "busy",
        tools=[tool("touch")],
        resources=[{"uri": uri, "name": uri} for uri in uris],
        calls={"touch": announced(UPDATED, *({"uri": uri} for uri in [*uris, *uris]))},
    )
    async with host_of(workshop.config(), "handshake") as host:
        for uri in uris:
            await host.request("resources/subscribe", {"uri": uri})
        await host.call("busy__touch")
        await until(lambda: len({params["uri"] for params in heard(host, UPDATED)}) == len(uris))


async def test_a_completed_elicitation_is_told_once_to_the_session_that_was_asked(workshop: Workshop) -> None:
    completions = [{"elicitationId": name} for name in ("unknown", "asked", "asked", "refused", "refused")]
    refusal = {"code": -32042, "message": "sign in", "data": {"elicitations": [visit("refused")["params"]]}}
    workshop.server(
        "work",
        tools=[tool(name) for name in ("ask", "refuse", "complete")],
        calls={
            "ask": [{"ask": visit("asked")}],
            "refuse": [{"error": refusal}],
            "complete": announced(COMPLETE, *completions),
        },
    )
    async with inside(workshop.config()) as proxy:
        asked = Host(proxy, "handshake", URLS, {"elicitation/create": lambda params: {"action": "accept"}})
        other = Host(proxy, "handshake")
        await asked.call("work__ask")
        with pytest.raises(RpcError, match="sign in"):
            await asked.call("work__refuse")
        await other.call("work__complete")
        await until_said(other)
        await until(lambda: len(heard(asked, COMPLETE)) == 2)

    assert [params["elicitationId"] for params in heard(asked, COMPLETE)] == ["asked", "refused"]
    assert heard(other, COMPLETE) == []


async def test_the_completion_of_an_elicitation_of_another_server_is_not_passed_on(
    workshop: Workshop,
) -> None:
    workshop.server("work", tools=[tool("ask")], calls={"ask": [{"ask": visit("e1")}]})
    told = announced(COMPLETE, {"elicitationId": "e1"})
    workshop.server("odd", tools=[tool("complete")], calls={"complete": told})
    async with host_of(
        workshop.config(), "handshake", URLS, {"elicitation/create": lambda params: {"action": "accept"}}
    ) as host:
        await host.call("work__ask")
        await host.call("odd__complete")
        await until_said(host)

    assert heard(host, COMPLETE) == []


def test_the_elicitations_that_are_remembered_are_bounded_and_end_with_their_session() -> None:
    admission, party = Admission("odd"), Party(lasting=True)
    for number in range(ELICITATIONS_KEPT + 1):
        admission.expect_completion(f"e{number}", party)
    admission.expect_completion("x" * 300, party)

    def known(name: str) -> bool:
        return admission.completed({"elicitationId": envelope.raw(name)}) is party

    assert [known("e0"), known("e1"), known("e1"), known("x" * 300)] == [False, True, False, False]
    admission.end(party)
    assert not known("e2")


@pytest.mark.parametrize(
    "data",
    ["x" * NOTIFICATION_BYTES, ["\u200b"] * (NOTIFICATION_STRINGS + 1)],
    ids=["bytes", "strings"],
)
async def test_a_log_message_that_is_too_large_is_left_out_and_the_log_says_so(
    workshop: Workshop, era: str, data: Any, caplog: pytest.LogCaptureFixture
) -> None:
    large = {"level": "error", "data": data}
    calls = {"say": [{"notify": {"method": MESSAGE, "params": large}}, {"notify": END}]}
    workshop.server("loud", tools=[tool("say")], calls=calls)
    async with host_of(workshop.config(), era) as host:
        level = {} if era == "handshake" else {"io.modelcontextprotocol/logLevel": "debug"}
        await host.call("loud__say", **level)

    assert [params["data"] for params in heard(host, MESSAGE)] == ["end"]
    assert "server loud: 1 notifications were not passed on" in caplog.text


async def test_a_session_is_refused_more_subscriptions_than_it_may_have(workshop: Workshop) -> None:
    workshop.server(
        "work", templates=[{"uriTemplate": "note://{id}", "name": "notes"}], capabilities=RESOURCES
    )
    async with host_of(workshop.config(), "handshake") as host:
        assert host.session is not None
        host.session.subscriptions.update(f"note://{number}" for number in range(SUBSCRIPTIONS))
        with pytest.raises(RpcError, match="1,000 resources"):
            await host.request("resources/subscribe", {"uri": "note://more"})
        host.session.subscriptions = {"note://" + "x" * SUBSCRIPTIONS_BYTES}
        with pytest.raises(RpcError, match="262,144 bytes"):
            await host.request("resources/subscribe", {"uri": "note://more"})
        host.session.subscriptions = set()
        with pytest.raises(RpcError, match="subscribed to"):
            await host.request("resources/subscribe", {"uri": "note://" + "x" * URI_CHARACTERS})


async def test_questions_of_a_server_are_refused_while_too_many_bytes_of_them_are_open(
    workshop: Workshop,
) -> None:
    text = {"type": "text", "text": "x" * 700_000}
    params = {"messages": [{"role": "user", "content": text}], "maxTokens": 1}
    both = [{"method": "sampling/createMessage", "params": params}] * 2
    server = workshop.server("curious", tools=[tool("ask")], calls={"ask": [{"ask_together": both}]})

    class Slow(Host):
        async def ask(self, method: str, params: envelope.Members) -> bytes:
            refusals = lambda ledger: [line for line in ledger.lines() if "too many requests" in line]  # noqa: E731
            await server.ledger.until(refusals)
            return await super().ask(method, params)

    async with inside(workshop.config(limits={"message_bytes": 1 << 20})) as proxy:
        host = Slow(proxy, "handshake", {"sampling": {}}, {"sampling/createMessage": lambda params: {}})
        result = await host.call("curious__ask")

    assert len(host.asked) == 1
    assert result["content"][0]["text"] == "[{}, null]"


@each(
    ("subscribed", "covered"),
    [
        ("a://b", ["a://b", "a://b/c", "a://b/c/d"]),
        ("a://b/", ["a://b/", "a://b/c"]),
        ("a://", ["a://b"]),
    ],
)
def test_a_subscription_covers_a_resource_and_those_below_it(subscribed: str, covered: list[str]) -> None:
    assert all(covers({subscribed}, uri) for uri in covered)
    assert not any(covers({subscribed}, uri) for uri in ("a:/x", "x://b", "a", "b://b/c"))


@pytest.mark.parametrize("decode", [envelope.decode, envelope.decode_from_client])
def test_a_message_with_an_endless_id_is_refused(decode: Callable[[bytes], object]) -> None:
    def encoded(length: int) -> bytes:
        return envelope.encode({"jsonrpc": "2.0", "id": "x" * length, "method": "ping"})

    assert decode(encoded(envelope.ID_CHARACTERS))
    with pytest.raises(envelope.MalformedError, match="1,000 characters"):
        decode(encoded(envelope.ID_CHARACTERS + 1))


@pytest.mark.parametrize(
    ("limits", "text"),
    [({"in_flight_per_server": 4}, "x"), ({"message_bytes": 100_000}, "x" * 12_000)],
    ids=["number", "bytes"],
)
async def test_the_requests_of_one_person_leave_room_at_a_server_for_those_of_others(
    workshop: Workshop, limits: dict[str, int], text: str
) -> None:
    server = workshop.server(
        "work", tools=[tool("hang"), tool("echo")], calls={"hang": [{"wait_cancelled": True}]}
    )
    config = workshop.config(limits=limits, clients={"desk": {}})
    async with inside(config) as proxy, anyio.create_task_group() as group:
        anna, bens = (Principal(name, Role.USE) for name in ("anna", "ben"))
        for place in ("mcp", "profile"):
            host = Host(proxy, "modern", rights=anna if place == "mcp" else within(anna))
            group.start_soon(host.call, "work__hang", {"text": text})
        await until(lambda: len(server.ledger.calls("hang")) == 2)

        refused = await Host(proxy, "modern", rights=anna).call("work__echo", {"text": text})
        served = await Host(proxy, "modern", rights=bens).call("work__echo", {"text": text})
        own = await Host(proxy, "modern").call("work__echo", {"text": text})
        group.cancel_scope.cancel()

    assert "of your requests" in refused["content"][0]["text"]
    assert "isError" not in served
    assert "isError" not in own


QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object"}},
}
FORMS = {"elicitation": {"form": {}}}


async def test_the_calls_of_one_person_that_wait_for_an_answer_leave_room_for_those_of_others(
    workshop: Workshop,
) -> None:
    workshop.server("work", tools=[tool("ask")], calls={"ask": [{"ask": QUESTION}]})
    anna, ben = (Principal(name, Role.USE) for name in ("anna", "ben"))
    limits = {"parked_calls": 4, "lanes_per_server": 32}
    async with inside(workshop.config(limits=limits)) as proxy:
        annas = [await Host(proxy, "modern", FORMS, rights=anna).call("work__ask") for _ in range(4)]
        bens = [await Host(proxy, "modern", FORMS, rights=ben).call("work__ask") for _ in range(2)]

    assert ["requestState" in each for each in annas] == [True, True, False, False]
    assert all("requestState" in each for each in bens)


async def test_the_sessions_of_one_person_end_no_connection_that_another_has_to_a_server(
    workshop: Workshop,
) -> None:
    server = workshop.server("work", tools=[tool("echo")], settings={"isolation": "session"})
    anna, ben = (Principal(name, Role.USE) for name in ("anna", "ben"))
    async with inside(workshop.config(limits={"lanes_per_server": 4})) as proxy:
        bens = Host(proxy, "handshake", rights=ben)
        await bens.call("work__echo")
        for _ in range(6):
            await Host(proxy, "handshake", rights=anna).call("work__echo")
        started = len(server.ledger.entries("start"))
        await bens.call("work__echo")

    assert started > 6
    assert len(server.ledger.entries("start")) == started


async def test_the_searches_of_one_person_leave_a_thread_for_those_of_others(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("echo")])
    anna, ben = (Principal(name, Role.USE) for name in ("anna", "ben"))
    over = threading.Event()
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:

        async def search(person: Principal, work: Callable[[], bool]) -> bool:
            with assigned(ACTING, person):
                return await proxy.searcher.off_loop(work)

        for _ in range(2 * SEARCHES_AT_ONCE):
            group.start_soon(search, anna, over.wait)
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(PATIENCE):
                assert await search(ben, lambda: True)
        finally:
            over.set()


async def test_the_reads_of_one_person_wait_for_one_another_as_searches_do(workshop: Workshop) -> None:
    """Of a large result or document each takes up to a second: others waited for minutes behind sixty."""
    workshop.server("work", tools=[tool("log")], calls={"log": [{"large": 200_000}]})
    (workshop.folder / "guide.md").write_text("# Guide\n\nHow to work.")
    documents = [{"kind": "reference", "path": str(workshop.folder / "guide.md")}]
    anna, ben = (Principal(name, Role.USE) for name in ("anna", "ben"))
    over = threading.Event()
    async with inside(workshop.config(documents=documents)) as proxy, anyio.create_task_group() as group:
        hosts = {one.name: Host(proxy, "handshake", rights=one) for one in (anna, ben)}
        read = list[tuple[str | None, str]]()

        async def ask(person: Principal, name: str, /, **wanted: Any) -> str:
            with assigned(ACTING, person):
                told = str(await hosts[person.name].call(name, wanted))
            read.append((person.name, name))
            return told

        async def kept(person: Principal) -> str:
            return str(re.findall(r'id=\\?"([\w-]+)', await ask(person, "work__log"))[0])

        async def read_both(person: Principal, result: str) -> None:
            async with anyio.create_task_group() as both:
                both.start_soon(partial(ask, person, "read_result", id=result, page=1))
                both.start_soon(partial(ask, person, "read_document", name="guide"))

        of_anna = await kept(anna)
        with assigned(ACTING, anna):
            for _ in range(SEARCHES_AT_ONCE):
                group.start_soon(proxy.searcher.off_loop, over.wait)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(read_both, anna, of_anna)
        try:
            with anyio.fail_after(PATIENCE):
                await read_both(ben, await kept(ben))
            before = {*read}
        finally:
            over.set()

    reads = {"read_result", "read_document"}
    assert before == {("anna", "work__log"), ("ben", "work__log"), *(("ben", name) for name in reads)}
    assert {name for person, name in read if person == "anna"} == {"work__log", *reads}


def within(principal: Principal) -> Principal:
    """The same person at the address of a profile."""
    name = f"{principal.name} {MARK}desk"
    return dataclasses.replace(principal, name=name, profile=Profile("desk"))


async def test_repeated_notifications_of_a_client_wait_together_for_a_server_that_does_not_read(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, readable = 0, anyio.Event()

    async def notify(party: Party, method: str) -> None:
        nonlocal sent
        sent += 1
        await readable.wait()

    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        host = Host(proxy, "handshake")
        monkeypatch.setattr(proxy.fleet, "notify", notify)
        for _ in range(100):
            group.start_soon(proxy.gateway.notified, "notifications/roots/list_changed", host.session)
        await anyio.wait_all_tasks_blocked()
        assert sent == 1
        assert sent == 1
        readable.set()

    assert sent == 2
