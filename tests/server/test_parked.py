"""A modern client is asked by a handshake-era server through the result of its own call."""

import json
import os
from typing import Any

import anyio
import pytest
from support.proxies import Host, host_of, inside
from support.questions import as_shown
from support.raw_client import PATIENCE, RpcError
from support.servers import Server, Workshop, tool

CAPABLE = {"sampling": {}, "elicitation": {}, "roots": {}}
ELICIT = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": {"x": [None]}}}
SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 9, "x-more": None}}
ROOTS = {"method": "roots/list"}
BY_URL = {"method": "elicitation/create", "params": {"mode": "url", "message": "Sign in", "url": "https://x"}}
WITH_TOOLS = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 9, "tools": []}}
CHOSEN = {"action": "accept", "content": {"which": "this"}, "x-more": [None]}
OTHER = {"action": "decline"}
UNKNOWN = "unknown or expired"


def curious(workshop: Workshop, **more: Any) -> Server:
    calls = {
        "elicit": [{"ask": ELICIT}],
        "sample": [{"ask": SAMPLE}],
        "roots": [{"ask": ROOTS}],
        "by_url": [{"ask": BY_URL}],
        "with_tools": [{"ask": WITH_TOOLS}],
        "twice": [{"ask_each": [ELICIT, SAMPLE]}],
        "both": [{"ask_together": [ELICIT, SAMPLE]}],
        "hang": [{"wait_cancelled": True}],
        **more.pop("calls", {}),
    }
    return workshop.server(
        "curious",
        tools=[tool(name) for name in (*calls, "echo")],
        calls=calls,
        resources=[{"uri": "note://1", "name": "one"}],
        prompts=[{"name": "greet"}],
        on={"prompts/get": [{"ask": ELICIT}], "resources/read": [{"ask": ELICIT}]},
        **more,
    )


def said(result: dict[str, Any]) -> Any:
    return json.loads(result["content"][0]["text"])


def shown(asked: dict[str, Any]) -> dict[str, Any]:
    """A request of the server as it reaches the client."""
    params = as_shown("curious", asked["method"], asked.get("params", {}))
    return asked | ({"params": params} if params else {})


def question(result: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The one question of a result: its key and its text."""
    assert result["resultType"] == "input_required"
    ((key, asked),) = result["inputRequests"].items()
    return key, asked


async def go_on(host: Host, name: str, result: dict[str, Any], answer: Any, **more: Any) -> Any:
    """Call again with the answer to the one question of a result."""
    key, _ = question(result)
    params = {"name": name, "arguments": {}, "inputResponses": {key: answer}} | more
    return await host.request("tools/call", params | {"requestState": result["requestState"]})


@pytest.mark.parametrize(
    ("name", "asked"), [("elicit", ELICIT), ("sample", SAMPLE), ("roots", ROOTS)], ids=["e", "s", "r"]
)
async def test_a_question_is_the_result_of_a_call_that_continues_with_the_answer(
    workshop: Workshop, name: str, asked: dict[str, Any]
) -> None:
    server = curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        first = await host.call(f"curious__{name}")
        result = await go_on(host, f"curious__{name}", first, CHOSEN)

    assert question(first)[1] == shown(asked)
    assert host.asked == []
    assert said(result) == CHOSEN
    assert len(server.ledger.calls(name)) == 1


async def test_a_question_is_passed_on_through_call_tool_as_well(workshop: Workshop) -> None:
    curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        arguments = {"name": "curious__elicit", "arguments": {"text": "x"}}
        first = await host.call("call_tool", arguments)
        result = await go_on(host, "call_tool", first, CHOSEN, arguments=arguments)

    assert said(result) == CHOSEN


@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "curious__greet"}), ("resources/read", {"uri": "note://1"})],
    ids=["prompt", "resource"],
)
async def test_prompts_and_resources_can_be_continued_as_well(
    workshop: Workshop, method: str, params: dict[str, Any]
) -> None:
    curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        first = await host.request(method, params)
        key, asked = question(first)
        more = {"requestState": first["requestState"], "inputResponses": {key: CHOSEN}}
        result = await host.request(method, params | more)

    assert asked == shown(ELICIT)
    assert said(result) == CHOSEN


async def test_several_questions_are_several_results(workshop: Workshop) -> None:
    server = curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        first = await host.call("curious__twice")
        second = await go_on(host, "curious__twice", first, CHOSEN)
        result = await go_on(host, "curious__twice", second, OTHER)

    assert (question(first)[1], question(second)[1]) == (shown(ELICIT), shown(SAMPLE))
    assert first["requestState"] != second["requestState"]
    assert said(result) == [CHOSEN, OTHER]
    assert len(server.ledger.calls()) == 1


async def test_a_question_without_an_answer_is_asked_again(workshop: Workshop) -> None:
    curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        both = await host.call("curious__both")
        params = {"name": "curious__both", "arguments": {}, "inputResponses": {"foreign": CHOSEN}}
        with anyio.fail_after(PATIENCE):
            # The second question has left the server, and may still be on its way to us.
            while len(both["inputRequests"]) < 2:
                await anyio.lowlevel.checkpoint()
                both = await host.request("tools/call", params | {"requestState": both["requestState"]})
        one, two = both["inputRequests"]
        more = {"inputResponses": {two: OTHER}, "requestState": both["requestState"]}
        left = await host.request("tools/call", params | more)
        result = await go_on(host, "curious__both", left, CHOSEN)

    assert list(both["inputRequests"].values()) == [shown(ELICIT), shown(SAMPLE)]
    assert question(left) == (one, shown(ELICIT))
    assert said(result) == [CHOSEN, OTHER]


async def test_a_continuation_handle_works_once(workshop: Workshop) -> None:
    server = curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        first = await host.call("curious__elicit")
        await go_on(host, "curious__elicit", first, CHOSEN)
        with pytest.raises(RpcError, match=UNKNOWN) as refused:
            await go_on(host, "curious__elicit", first, CHOSEN)

    assert refused.value.code == -32602
    assert len(server.ledger.calls()) == 1


@pytest.mark.parametrize(
    ("principal", "more"),
    [("another", {}), ("", {"arguments": {"text": "other"}}), ("", {"requestState": "guessed"})],
    ids=["another client", "another call", "another handle"],
)
async def test_a_continuation_handle_works_only_for_the_same_call_and_client(
    workshop: Workshop, principal: str, more: dict[str, Any]
) -> None:
    curious(workshop)
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "modern", CAPABLE)
        first = await host.call("curious__elicit")
        key, _ = question(first)
        params = {"name": "curious__elicit", "arguments": {}, "inputResponses": {key: OTHER}}
        other = Host(proxy, "modern", CAPABLE, principal=principal)
        with pytest.raises(RpcError, match=UNKNOWN):
            await other.request("tools/call", params | {"requestState": first["requestState"]} | more)

        assert said(await go_on(host, "curious__elicit", first, CHOSEN)) == CHOSEN


async def test_an_invalid_answer_is_refused_and_can_be_corrected(workshop: Workshop) -> None:
    curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        first = await host.call("curious__elicit")
        with pytest.raises(RpcError, match="must be an object"):
            await go_on(host, "curious__elicit", first, "yes")
        result = await go_on(host, "curious__elicit", first, CHOSEN)

    assert said(result) == CHOSEN


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("elicit", {}),
        ("elicit", {"sampling": {}, "roots": {}}),
        ("elicit", {"elicitation": {"url": {}}}),
        ("by_url", {"elicitation": {}}),
        ("by_url", {"elicitation": {"form": {}}}),
        ("with_tools", {"sampling": {}}),
    ],
    ids=str,
)
async def test_a_client_is_never_asked_what_it_did_not_declare(
    workshop: Workshop, name: str, declared: dict[str, Any], era: str
) -> None:
    curious(workshop)
    async with host_of(workshop.config(), era, declared) as host:
        result = await host.call(f"curious__{name}")

    assert host.asked == []
    assert result["isError"] is True
    assert "does not support" in said(result)["message"]


async def test_a_pending_call_that_is_not_continued_is_cancelled_at_its_server(workshop: Workshop) -> None:
    server = curious(workshop)
    async with inside(workshop.config(limits={"ask_seconds": 0.3})) as proxy:
        host = Host(proxy, "modern", CAPABLE)
        first = await host.call("curious__twice")
        await server.ledger.until(lambda ledger: ledger.entries("cancelled") or ledger.entries("asked"))
        await server.ledger.until(lambda ledger: not proxy.pending_input.waiting)
        with pytest.raises(RpcError, match=UNKNOWN):
            await go_on(host, "curious__twice", first, CHOSEN)


async def test_the_number_of_calls_pending_input_is_limited(workshop: Workshop) -> None:
    curious(workshop, settings={"isolation": "session"})
    async with host_of(workshop.config(limits={"parked_calls": 1}), "modern", CAPABLE) as host:
        first = await host.call("curious__elicit")
        refused = await host.call("curious__elicit")
        result = await go_on(host, "curious__elicit", first, CHOSEN)

    assert refused["isError"] is True
    assert "busy" in said(refused)["message"]
    assert said(result) == CHOSEN


async def test_the_timeout_of_a_call_is_paused_while_its_client_is_asked(workshop: Workshop) -> None:
    curious(workshop, settings={"call_timeout": 0.5, "isolation": "session"})
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        first = await host.call("curious__elicit")
        # As long as a call may take, and a little longer.
        assert (await host.call("curious__hang"))["isError"] is True
        result = await go_on(host, "curious__elicit", first, CHOSEN)

    assert said(result) == CHOSEN


async def test_a_call_that_is_cancelled_while_it_runs_is_cancelled_at_its_server(workshop: Workshop) -> None:
    server = curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        async with anyio.create_task_group() as group:
            group.start_soon(host.call, "curious__hang")
            await server.ledger.until(lambda ledger: ledger.calls("hang"))
            group.cancel_scope.cancel()
        await server.ledger.until(lambda ledger: ledger.entries("cancelled"))


async def test_progress_goes_to_the_latest_request_with_its_own_token(workshop: Workshop) -> None:
    curious(workshop, calls={"report": [{"ask_then": ELICIT}, {"progress": 2}]})
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        first = await host.call("curious__report", progressToken="one")
        key, _ = question(first)
        params = {"name": "curious__report", "arguments": {}, "inputResponses": {key: CHOSEN}}
        await host.request(
            "tools/call", params | {"requestState": first["requestState"]}, progressToken="two"
        )

    assert [params["progressToken"] for _, params in host.notifications] == ["two", "two"]


async def test_the_death_of_a_server_is_reported_when_its_call_is_continued(workshop: Workshop) -> None:
    server = curious(workshop)
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        first = await host.call("curious__elicit")
        (start,) = server.ledger.entries("start")
        os.kill(start["pid"], 9)
        result = await go_on(host, "curious__elicit", first, CHOSEN)

    assert result["isError"] is True
    assert "may or may not have run" in result["content"][0]["text"]


async def test_a_question_that_the_server_cancelled_is_not_asked(workshop: Workshop) -> None:
    curious(workshop, calls={"fickle": [{"ask_in_vain": ELICIT}, {"result": {"content": [], "x": 1}}]})
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        result = await host.call("curious__fickle")
        if result["resultType"] == "input_required":
            result = await go_on(host, "curious__fickle", result, CHOSEN)

    assert result["x"] == 1
