"""Everything is relayed in every pair: three fronts and both eras in front, five servers behind."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fronts import EVERY_FRONT, opening
from support.proxies import HttpProxy, http_proxy
from support.raw_client import MODERN, OWN, PREFIX, RawClient, RpcError
from support.servers import Server, Workshop, tool

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DOWNSTREAM = {
    "old": ("handshake", "stdio"),
    "oldweb": ("handshake", "http"),
    "oldsse": ("handshake", "sse"),
    "new": ("modern", "stdio"),
    "newweb": ("modern", "http"),
}
"""Servers by name: their era and how they are reached."""

ELICIT = {"message": "Which one?", "requestedSchema": {"type": "object", "properties": {}}, "x-more": [None]}
SAMPLE = {"messages": [], "maxTokens": 9, "x-more": {"n": None}}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}
QUESTIONS = {
    "elicit": ("elicitation/create", ELICIT, {"action": "accept", "content": {"which": "this"}}),
    "sample": ("sampling/createMessage", SAMPLE, SAMPLED),
    "roots": ("roots/list", {}, {"roots": [{"uri": "file:///home"}]}),
}
CAPABLE: dict[str, Any] = {
    "elicitation": {},
    "sampling": {},
    "roots": {},
    "extensions": {"com.example/more": {"x": [None]}},
}
LOGGED = {"level": "warning", "data": {"said": [None]}, "logger": "x"}
MESSAGE, UPDATED = "notifications/message", "notifications/resources/updated"
TOOLS_CHANGED = "notifications/tools/list_changed"


def spec(name: str, era: str, kind: str) -> dict[str, Any]:
    uri = f"note://{name}/1"
    # A handshake-era server over HTTP that keeps no stream open can only speak up during a call.
    say = "notify" if (era, kind) == ("handshake", "http") else "announce"
    asking = {
        tool_name: [{"ask": {"method": method, "params": params}}]
        if era == "handshake"
        else [{"need_input": {"inputRequests": {"q": {"method": method, "params": params}}}}]
        for tool_name, (method, params, _) in QUESTIONS.items()
    }
    calls = {
        **asking,
        "report": [{"progress": 3}],
        "log": [{"notify": {"method": MESSAGE, "params": LOGGED}}],
        "refuse": [{"error": {"code": -32050, "message": "not today", "data": {"until": [1, None]}}}],
        "old_code": [{"error": {"code": -32042, "message": "sign in", "data": {"elicitations": []}}}],
        "new_code": [{"error": {"code": -32021, "message": "no", "data": {"requiredCapabilities": {}}}}],
        "hang": [{"wait_cancelled": True}],
        "touch": [{say: {"method": UPDATED, "params": {"uri": uri}}}],
    }
    return {
        "era": era,
        "tools": [tool(each) for each in (*calls, "echo")],
        "calls": calls,
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {},
            "completions": {},
            "logging": {},
        },
        "resources": [{"uri": uri, "name": "one"}],
        "prompts": [{"name": "greet", "arguments": [{"name": "who"}]}],
    }


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Server], Path]]:
    workshop = Workshop(tmp_path_factory.mktemp("matrix"))
    for name, (era, kind) in DOWNSTREAM.items():
        makers = {"stdio": workshop.server, "http": workshop.http_server, "sse": workshop.sse_server}
        makers[kind](name, settings={"era": era}, **spec(name, era, kind))
    yield workshop.servers, workshop.config(expose={"mode": "all"})
    workshop.close()


@pytest.fixture(scope="module")
def served(setup: tuple[dict[str, Server], Path]) -> Iterator[HttpProxy]:
    with http_proxy(setup[1]) as proxy:
        yield proxy


@pytest.fixture(**EVERY_FRONT)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[RawClient]:
    answers = {method: lambda params, given=given: given for method, _, given in QUESTIONS.values()}
    async with opening(request, capabilities=CAPABLE, answers=answers) as opened:
        await opened.until_listed(*(f"{name}__echo" for name in DOWNSTREAM))
        yield opened


@pytest.fixture(params=list(DOWNSTREAM))
def server(request: pytest.FixtureRequest, setup: tuple[dict[str, Server], Path]) -> Server:
    return setup[0][request.param]


async def finish(client: RawClient, name: str, result: dict[str, Any]) -> dict[str, Any]:
    """The result of a call that asks by its results, answered as the client answers requests."""
    while result.get("resultType") == "input_required":
        client.asked.extend(result["inputRequests"].values())
        given = {
            key: client.answers[asked["method"]](asked) for key, asked in result["inputRequests"].items()
        }
        params = {"name": name, "arguments": {}, "inputResponses": given}
        if "requestState" in result:
            params["requestState"] = result["requestState"]
        result = await client.request("tools/call", params)
    return result


async def test_a_call_arrives_under_the_servers_own_name_with_foreign_meta_and_without_ours(
    client: RawClient, server: Server
) -> None:
    meta = {"com.example/trace": {"a": None}, OWN + "query": "secret"}

    result = await client.call(f"{server.name}__echo", {"text": "hi"}, **meta)

    received = json.loads(result["content"][0]["text"])
    assert (received["name"], received["arguments"]) == ("echo", {"text": "hi"})
    assert received["_meta"]["com.example/trace"] == {"a": None}
    assert not [key for key in received["_meta"] if key.startswith(OWN)]
    if DOWNSTREAM[server.name] == ("modern", "http"):
        headers = [each["headers"] for each in server.ledger.entries("headers")]
        named = [each["mcp-name"] for each in headers if each["mcp-method"] == "tools/call"]
        assert named[-1] == "echo"


@pytest.mark.parametrize("name", list(QUESTIONS))
async def test_what_the_server_asks_reaches_the_client_and_the_answer_the_server(
    client: RawClient, server: Server, name: str
) -> None:
    method, params, given = QUESTIONS[name]
    client.asked.clear()

    result = await finish(client, f"{server.name}__{name}", await client.call(f"{server.name}__{name}"))

    assert [(asked["method"], asked.get("params", {})) for asked in client.asked] == [(method, params)]
    said = json.loads(result["content"][0]["text"])
    assert (said["answers"]["q"] if "answers" in said else said) == given


async def test_what_a_modern_client_can_do_reaches_a_modern_server_with_its_extensions(
    client: RawClient, server: Server
) -> None:
    result = await client.call(f"{server.name}__echo")

    meta = json.loads(result["content"][0]["text"]).get("_meta", {})
    era, _ = DOWNSTREAM[server.name]
    told = {key.removeprefix(PREFIX): value for key, value in meta.items() if key.startswith(PREFIX)}
    if era == "handshake":
        assert told == {}
    else:
        assert told["protocolVersion"] == MODERN
        assert told["clientCapabilities"] == CAPABLE
        assert told["clientInfo"]["name"] == "raw"


async def test_how_long_a_resource_keeps_is_the_servers_word_and_none_where_it_had_none(
    client: RawClient, server: Server
) -> None:
    read = await client.request("resources/read", {"uri": f"note://{server.name}/1"})

    hints = {key: read[key] for key in ("ttlMs", "cacheScope") if key in read}
    if not client.modern:
        assert hints == {}
    elif DOWNSTREAM[server.name][0] == "modern":
        assert hints == {"ttlMs": 1000, "cacheScope": "public"}
    else:
        assert hints == {"ttlMs": 0, "cacheScope": "private"}


async def test_progress_comes_in_order_and_before_the_result(client: RawClient, server: Server) -> None:
    client.notifications.clear()

    await client.call(f"{server.name}__report", progressToken="mine")

    told = client.notified("notifications/progress")
    assert [(note["progressToken"], note["progress"]) for note in told] == [("mine", n) for n in (1, 2, 3)]


async def test_a_log_message_of_a_call_reaches_the_client_that_wants_it(
    client: RawClient, server: Server
) -> None:
    client.notifications.clear()

    await client.call(f"{server.name}__log", **({PREFIX + "logLevel": "info"} if client.modern else {}))

    await client.until(lambda client: client.notified(MESSAGE))
    assert client.notified(MESSAGE) == [LOGGED]


async def test_a_log_message_below_the_level_is_left_out(client: RawClient, server: Server) -> None:
    if not client.modern:
        await client.request("logging/setLevel", {"level": "error"})
    client.notifications.clear()

    await client.call(f"{server.name}__log", **({PREFIX + "logLevel": "error"} if client.modern else {}))
    await client.call(f"{server.name}__log")
    await client.call(f"{server.name}__echo")

    if not client.modern:
        await client.request("logging/setLevel", {"level": "debug"})
    assert client.notified(MESSAGE) == []


async def test_a_refusal_keeps_its_code_message_and_data(client: RawClient, server: Server) -> None:
    with pytest.raises(RpcError) as refused:
        await client.call(f"{server.name}__refuse")

    assert refused.value.code == -32050
    assert (refused.value.message, refused.value.data) == ("not today", {"until": [1, None]})


async def test_a_code_that_one_era_alone_knows_is_not_shown_to_the_other(
    client: RawClient, server: Server
) -> None:
    codes = []
    for name in ("old_code", "new_code"):
        with pytest.raises(RpcError) as refused:
            await client.call(f"{server.name}__{name}")
        codes.append(refused.value.code)

    assert codes == ([-32603, -32021] if client.modern else [-32042, -32600])


async def test_a_cancelled_call_is_cancelled_at_the_server(client: RawClient, server: Server) -> None:
    before, called = len(server.ledger.entries("cancelled")), len(server.ledger.calls("hang"))
    hanging, _ = await client.start("tools/call", {"name": f"{server.name}__hang", "arguments": {}})
    await server.ledger.until(lambda ledger: len(ledger.calls("hang")) > called)

    if client.modern and hasattr(client.wire, "scopes"):
        client._pending.pop(hanging).cancel()
        client.wire.scopes[hanging].cancel()
    else:
        await client.cancel(hanging)

    await server.ledger.until(lambda ledger: len(ledger.entries("cancelled")) > before)


async def test_resources_prompts_and_completions_come_from_their_server(
    client: RawClient, server: Server
) -> None:
    uri, argument = f"note://{server.name}/1", {"name": "who", "value": "y"}

    read = await client.request("resources/read", {"uri": uri})
    got = await client.request("prompts/get", {"name": f"{server.name}__greet", "arguments": {"who": "me"}})
    reference = {"type": "ref/prompt", "name": f"{server.name}__greet"}
    completed = await client.request("completion/complete", {"ref": reference, "argument": argument})

    assert read["contents"] == [{"uri": uri, "text": f"{server.name} has {uri}"}]
    assert json.loads(got["messages"][0]["content"]["text"])["name"] == "greet"
    assert json.loads(completed["completion"]["values"][0])["name"] == "greet"


async def test_an_updated_resource_is_told_to_who_subscribed(client: RawClient, server: Server) -> None:
    uri = f"note://{server.name}/1"
    client.notifications.clear()
    async with subscribed(client, server, uri):
        await client.call(f"{server.name}__touch")
        await client.until(lambda client: client.notified(UPDATED))

    assert {note["uri"] for note in client.notified(UPDATED)} == {uri}
    tags = {note.get("_meta", {}).get(PREFIX + "subscriptionId") for note in client.notified(UPDATED)}
    assert tags == ({"listening"} if client.modern else {None})


class subscribed:  # noqa: N801 - used as a function
    """As long as it lasts, the client hears of updates of a resource."""

    def __init__(self, client: RawClient, server: Server, uri: str) -> None:
        self.client, self.server, self.uri = client, server, uri

    async def __aenter__(self) -> None:
        client = self.client
        if client.modern:
            wanted = {"notifications": {"resourceSubscriptions": [self.uri]}}
            await client.start("subscriptions/listen", wanted, request_id="listening")
            await client.until(lambda client: client.notified("notifications/subscriptions/acknowledged"))
        else:
            await client.request("resources/subscribe", {"uri": self.uri})

    async def __aexit__(self, *raised: Any) -> None:
        client = self.client
        if not client.modern:
            await client.request("resources/unsubscribe", {"uri": self.uri})
        elif hasattr(client.wire, "scopes"):
            client._pending.pop("listening").cancel()
            client.wire.scopes["listening"].cancel()
        else:
            await client.cancel("listening")
