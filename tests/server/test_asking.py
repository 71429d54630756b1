"""Requests of a server during a call reach the client that called, in the form of the client's era."""

import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from typing import Any

import anyio
import pytest
from msgspec import Raw
from support.proxies import Host, host_of, inside
from support.questions import as_shown
from support.raw_client import PREFIX, RpcError
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config.tables import Limits
from mcp_context_proxy.protocol.envelope import RequestError

SAMPLING = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
    "maxTokens": 9,
    "x": [None],
}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m", "x-more": None}
ELICIT = {"message": "Which one?", "requestedSchema": {"type": "object", "properties": {}}}
CHOSEN = {"action": "accept", "content": {"which": "this"}}
CAPABLE = {"sampling": {}, "elicitation": {}}
INPUT = {
    "inputRequests": {
        "name": {"method": "elicitation/create", "params": ELICIT},
        "idea": {"method": "sampling/createMessage", "params": SAMPLING},
    },
    "requestState": "opaque \u2603 state==",
}
ANSWERS: dict[str, Any] = {
    "sampling/createMessage": lambda params: SAMPLED,
    "elicitation/create": lambda params: CHOSEN,
}


def asking(workshop: Workshop, era: str = "handshake") -> Any:
    calls = {
        "sample": [{"ask": {"method": "sampling/createMessage", "params": SAMPLING}}],
        "elicit": [{"ask": {"method": "elicitation/create", "params": ELICIT}}],
        "roots": [{"ask": {"method": "roots/list"}}],
        "unknown": [{"ask": {"method": "no/such/method"}}],
        "ping": [{"ask": {"method": "ping"}}],
        "input": [{"need_input": INPUT}],
        "insatiable": [{"result": {"resultType": "input_required"} | INPUT}],
    }
    return workshop.server("curious", era=era, tools=[tool(name) for name in calls], calls=calls)


def said(result: dict[str, Any]) -> Any:
    return json.loads(result["content"][0]["text"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    made = Workshop(tmp_path_factory.mktemp("old"))
    yield made
    made.close()


@pytest.fixture(scope="module")
async def modern(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    """A proxy with a modern server, for all tests that leave nothing behind."""
    with closing(Workshop(tmp_path_factory.mktemp("modern"))) as made:
        asking(made, "modern")
        async with inside(made.config(), patience=None) as proxy:
            yield proxy


@pytest.fixture(scope="module")
async def old(place: Workshop) -> AsyncIterator[Proxy]:
    """A proxy with a server of the handshake, for all tests that leave nothing behind."""
    asking(place)
    async with inside(place.config(), patience=None) as proxy:
        yield proxy


@each(
    ("tool", "method", "params", "answer"),
    [
        ("sample", "sampling/createMessage", SAMPLING, SAMPLED),
        ("elicit", "elicitation/create", ELICIT, CHOSEN),
    ],
)
async def test_a_question_is_passed_to_the_client_and_its_answer_back_unchanged(
    old: Proxy, tool: str, method: str, params: dict[str, Any], answer: dict[str, Any]
) -> None:
    host = Host(old, "handshake", CAPABLE, ANSWERS)
    result = await host.call(f"curious__{tool}")

    assert host.asked == [(method, as_shown("curious", method, params))]
    assert said(result) == answer


@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("downstream_era", ["handshake", "modern"])
async def test_an_answer_that_some_servers_cannot_read_is_not_sent(
    workshop: Workshop, era: str, downstream_era: str
) -> None:
    """Some servers end over what they cannot read, and with them the calls of everybody else."""
    server = asking(workshop, downstream_era)
    called = "curious__input" if downstream_era == "modern" else "curious__elicit"
    params: dict[str, Any] = {"name": called, "arguments": {}}
    values = {"levels": json.loads("[" * 130 + "]" * 130), "number": 10**400, "text": "red"}
    async with inside(workshop.config()) as proxy:
        for kind, value in values.items():
            answer = {"action": "accept", "content": {"color": value, "note": f"a {kind} of the person"}}
            answers = ANSWERS | {"elicitation/create": lambda params, answer=answer: answer}
            host = Host(proxy, era, CAPABLE, answers)
            with suppress(RpcError):
                result = await host.request("tools/call", params)
                if result.get("resultType") == "input_required":
                    given = dict.fromkeys(result["inputRequests"], answer)
                    again = params | {"inputResponses": given, "requestState": result["requestState"]}
                    await host.request("tools/call", again)

    written = "".join(server.ledger.lines())
    assert [kind for kind in values if f"a {kind} of the person" in written] == ["text"]


@each("data", [b"1e999", b"[" * 130 + b"]" * 130, b'"s3cr3t-0f-the-proxy-itself"'])
async def test_an_error_in_place_of_an_answer_has_the_same_bounds(
    old: Proxy, place: Workshop, data: bytes
) -> None:
    def refuse(params: Any) -> Any:
        raise RequestError(-1, "of the person", Raw(data))

    old.fleet.known.know_own(("bearer token", "s3cr3t-0f-the-proxy-itself"))
    await Host(old, "handshake", CAPABLE, {"elicitation/create": refuse}).call("curious__elicit")

    assert "of the person" not in "".join(place.servers["curious"].ledger.lines())


async def test_a_call_may_ask_its_client_a_limited_number_of_times(workshop: Workshop) -> None:
    most = Limits().questions_per_call
    question = {"method": "elicitation/create", "params": ELICIT}
    calls = {"nag": [{"ask_each": [question] * (most + 1)}]}
    workshop.server("curious", tools=[tool("nag")], calls=calls)
    async with host_of(workshop.config(), "handshake", CAPABLE, ANSWERS) as host:
        result = await host.call("curious__nag")

    assert len(host.asked) == most
    assert said(result) == [CHOSEN] * most + [None]


async def test_a_refusal_of_the_client_reaches_the_server(old: Proxy) -> None:
    def refuse(params: Any) -> Any:
        raise RpcError(-1, "the user said no")

    result = await Host(old, "handshake", CAPABLE, {"elicitation/create": refuse}).call("curious__elicit")

    assert said(result) == {"code": -1, "message": "the user said no"}


@each("name", ["roots", "unknown"])
async def test_an_unknown_request_of_a_server_is_refused_at_once(old: Proxy, name: str) -> None:
    result = await Host(old, "handshake", CAPABLE, ANSWERS).call(f"curious__{name}")

    assert said(result)["code"] == -32601


async def test_a_ping_of_the_server_is_answered_by_the_proxy(old: Proxy) -> None:
    assert said(await Host(old, "modern").call("curious__ping")) == {}


async def test_if_two_clients_could_be_meant_neither_is_asked(workshop: Workshop) -> None:
    flag = workshop.flag("go")
    calls = {"ask": [{"wait": str(flag)}, {"ask": {"method": "elicitation/create", "params": ELICIT}}]}
    server = workshop.server("curious", tools=[tool("ask")], calls=calls)
    async with inside(workshop.config()) as proxy:
        hosts = [Host(proxy, "handshake", CAPABLE, ANSWERS) for _ in range(2)]
        results = []

        async def call(host: Host) -> None:
            results.append(await host.call("curious__ask"))

        async with anyio.create_task_group() as group:
            for host in hosts:
                group.start_soon(call, host)
            await server.ledger.until(lambda ledger: len(ledger.calls("ask")) == 2)
            flag.touch()

    # The second to ask may be the only one left under way: then it is its own client that is asked.
    refused = [result for result in results if result["isError"]]
    assert refused
    assert sum(len(host.asked) for host in hosts) == 2 - len(refused)


async def test_between_modern_peers_a_question_is_named_and_its_state_unchanged(modern: Proxy) -> None:
    host = Host(modern, "modern", CAPABLE)
    asked = await host.call("curious__input")
    retried = await host.request(
        "tools/call",
        {
            "name": "curious__input",
            "arguments": {},
            "inputResponses": {"name": CHOSEN, "idea": SAMPLED},
            "requestState": asked["requestState"],
        },
    )

    assert asked["resultType"] == "input_required"
    assert asked["requestState"] == INPUT["requestState"]
    assert asked["inputRequests"] == {
        key: each | {"params": as_shown("curious", each["method"], each["params"])}
        for key, each in INPUT["inputRequests"].items()
    }
    assert said(retried) == {"answers": {"name": CHOSEN, "idea": SAMPLED}, "state": INPUT["requestState"]}


async def test_between_modern_peers_the_clients_capabilities_reach_the_server(workshop: Workshop) -> None:
    server = asking(workshop, "modern")
    async with inside(workshop.config()) as proxy:
        await Host(proxy, "modern", CAPABLE | {"x": 1}).call("curious__input")

    (call,) = server.ledger.calls("input")
    assert call["_meta"][PREFIX + "clientCapabilities"] == CAPABLE | {"x": 1}
    assert call["_meta"][PREFIX + "clientInfo"] == {"name": "host", "version": "1"}


async def test_a_handshake_client_is_asked_for_a_modern_server_and_the_call_is_continued(
    workshop: Workshop,
) -> None:
    server = asking(workshop, "modern")
    async with host_of(workshop.config(), "handshake", CAPABLE, ANSWERS) as host:
        result = await host.call("curious__input", {"text": "x"})

    assert said(result) == {"answers": {"name": CHOSEN, "idea": SAMPLED}, "state": INPUT["requestState"]}
    assert sorted(method for method, _ in host.asked) == ["elicitation/create", "sampling/createMessage"]
    first, second = server.ledger.messages("tools/call")
    assert first["id"] != second["id"]
    assert first["params"]["arguments"] == second["params"]["arguments"] == {"text": "x"}
    assert "resultType" not in result


async def test_a_handshake_client_that_cannot_be_asked_gets_an_error_not_a_question(modern: Proxy) -> None:
    host = Host(modern, "handshake")
    result = await host.call("curious__input")

    assert host.asked == []
    assert result["isError"] is True
    assert "'curious' asked for input and did not get it" in result["content"][0]["text"]


async def test_a_handshake_clients_refusal_becomes_the_result_of_its_call(modern: Proxy) -> None:
    def refuse(params: Any) -> Any:
        raise RpcError(-1, "the user would not")

    host = Host(modern, "handshake", CAPABLE, ANSWERS | {"elicitation/create": refuse})
    result = await host.call("curious__input")

    assert result["isError"] is True
    assert "'curious'" in result["content"][0]["text"]
    assert "the user would not" in result["content"][0]["text"]


async def test_a_result_of_an_unknown_type_is_an_error(workshop: Workshop) -> None:
    later = {"resultType": "task", "taskId": "t"}
    workshop.server("odd", era="modern", tools=[tool("later")], calls={"later": [{"result": later}]})
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, "handshake").call("odd__later")

    assert result["isError"] is True
    assert "result of type 'task'" in result["content"][0]["text"]


async def test_a_call_whose_result_asks_for_nothing_is_not_sent_again(workshop: Workshop) -> None:
    asks = {"resultType": "input_required", "inputRequests": {}}
    server = workshop.server("odd", era="modern", tools=[tool("pay")], calls={"pay": [{"result": asks}]})
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, "handshake", CAPABLE, ANSWERS).call("odd__pay")

    assert result["isError"] is True
    assert "requires input, and not which" in result["content"][0]["text"]
    assert len(server.ledger.calls()) == 1


async def test_a_modern_server_that_asks_endlessly_is_stopped(workshop: Workshop) -> None:
    server = asking(workshop, "modern")
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, "handshake", CAPABLE, ANSWERS).call("curious__insatiable")

    assert result["isError"] is True
    assert "was asked 10 times" in result["content"][0]["text"]
    assert len(server.ledger.calls()) <= 12


SIGN_IN = {"mode": "url", "url": "https://example.com/sign-in", "message": "Sign in", "x-more": [None]}


def behind_a_sign_in(workshop: Workshop) -> Any:
    """A server that refuses the first call of a tool until the person has been at a URL."""
    data = {"elicitations": [{**SIGN_IN, "elicitationId": "e1"}]}
    refused = [{"error": {"code": -32042, "message": "sign in first", "data": data}}]
    calls = {"once": [{"once": [str(workshop.flag("been there")), refused]}], "ever": refused}
    return workshop.server("closed", tools=[tool(name) for name in calls], calls=calls)


async def test_a_modern_client_is_asked_to_open_a_url_and_calls_again(workshop: Workshop) -> None:
    server = behind_a_sign_in(workshop)
    async with host_of(workshop.config(), "modern", {**CAPABLE, "elicitation": {"url": {}}}) as host:
        asked = await host.call("closed__once", {"text": "x"})
        answered = {key: {"action": "accept"} for key in asked["inputRequests"]}
        params = {"name": "closed__once", "arguments": {"text": "x"}, "inputResponses": answered}
        result = await host.request("tools/call", params)

    assert asked["resultType"] == "input_required"
    assert list(asked["inputRequests"].values()) == [
        {"method": "elicitation/create", "params": as_shown("closed", "elicitation/create", SIGN_IN)}
    ]
    assert said(result)["arguments"] == {"text": "x"}
    assert all("inputResponses" not in call for call in server.ledger.calls("once"))


async def test_a_url_that_a_server_demands_is_not_lost_through_a_call_tool(workshop: Workshop) -> None:
    behind_a_sign_in(workshop)
    opens: dict[str, Any] = {"elicitation": {"url": {}}}
    async with host_of(workshop.config(), "handshake", opens) as host:
        with pytest.raises(RpcError, match="sign in first") as refused:
            await host.call("call_tool", {"name": "closed__once"})
    async with host_of(workshop.config(), "handshake", {}) as host:
        told = await host.call("call_tool", {"name": "closed__ever"})

    assert refused.value.code == -32042
    assert SIGN_IN["url"] in json.dumps(refused.value.data)
    # The model can at least tell the person of it.
    assert told["isError"]
    assert SIGN_IN["url"] in told["content"][0]["text"]


async def test_a_client_that_declined_a_url_is_not_asked_again(workshop: Workshop) -> None:
    behind_a_sign_in(workshop)
    async with host_of(workshop.config(), "modern", {"elicitation": {"url": {}}}) as host:
        asked = await host.call("closed__ever")
        declined = {key: {"action": "decline"} for key in asked["inputRequests"]}
        with pytest.raises(RpcError, match="sign in first") as refused:
            await host.request("tools/call", {"name": "closed__ever", "inputResponses": declined})

    assert refused.value.code == -32603


async def test_a_model_is_told_that_a_url_was_declined_that_a_call_tool_needs(workshop: Workshop) -> None:
    behind_a_sign_in(workshop)
    async with host_of(workshop.config(), "modern", {"elicitation": {"url": {}}}) as host:
        call = {"name": "call_tool", "arguments": {"name": "closed__ever"}}
        asked = await host.request("tools/call", call)
        declined = {key: {"action": "decline"} for key in asked["inputRequests"]}
        told = await host.request("tools/call", call | {"inputResponses": declined})

    assert told["isError"]
    assert "sign in first" in told["content"][0]["text"]


async def test_a_modern_client_without_url_elicitation_is_told_which_capability_it_lacks(
    workshop: Workshop,
) -> None:
    behind_a_sign_in(workshop)
    async with inside(workshop.config()) as proxy:
        with pytest.raises(RpcError, match="sign in first") as refused:
            await Host(proxy, "modern", CAPABLE).call("closed__ever")

    assert refused.value.code == -32021
    assert refused.value.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


@each(
    ("declared", "lacking"),
    [
        ({}, {"elicitation": {}}),
        ({"elicitation": {}}, {"sampling": {}}),
        ({"elicitation": {"url": {}}, "sampling": {}}, {"elicitation": {"form": {}}}),
    ],
)
async def test_a_modern_client_gets_no_request_of_a_modern_server_beyond_its_capabilities(
    modern: Proxy, declared: dict[str, Any], lacking: dict[str, Any]
) -> None:
    with pytest.raises(RpcError, match="'curious'") as refused:
        await Host(modern, "modern", declared).call("curious__input")

    assert refused.value.code == -32021
    assert refused.value.data == {"requiredCapabilities": lacking}


@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"form": {}}}], ids=["not asked", "asked"])
async def test_calls_leave_nothing_for_the_garbage_collector(
    capabilities: dict[str, Any], era: str, workshop: Workshop
) -> None:
    """Arguments may have megabytes, and the collector seldom runs."""
    workshop.server("notes", tools=[tool("add")])
    async with host_of(workshop.config(), era, capabilities) as host:
        await host.call("notes__add")
        gc.collect()

        for _ in range(20):
            await host.call("notes__add")

        assert gc.collect() < 20
