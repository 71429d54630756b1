"""Tool calls: params at the server, results at the client, and the ways to make a call."""

import json
from typing import Any

import pytest
from every_front.cases import EXACT, FAILED, NUMBERS, SERVERS
from support.raw_client import MODERN, OWN, PREFIX, RawClient, RpcError
from support.servers import Server
from support.tables import each

from mcp_context_proxy.front.conversation import MOST_VALUES

pytestmark = pytest.mark.each_value(cross=2)

ARGUMENTS = {
    "big": 123456789012345678901234567890,
    "negative": -(2**70),
    "small": 1e-7,
    "one": 1.0,
    "nothing": None,
    "nested": {"x": [None, [None]]},
    "lines": "a\u2028b\u2029c\x85d",
    "snow": "\u2603\U0001f600",
    "": {"": ""},
}


def own_meta(result: dict[str, Any]) -> dict[str, Any]:
    """A result without the members that the modern era adds to each."""
    plain = {key: value for key, value in result.items() if key not in {"resultType", "ttlMs", "cacheScope"}}
    meta = {k: v for k, v in plain.pop("_meta", {}).items() if not k.startswith(PREFIX)}
    return plain | ({"_meta": meta} if meta else {})


def echoed(result: dict[str, Any]) -> Any:
    """The params that the server received."""
    return json.loads(result["content"][0]["text"])


def request(client: RawClient, request_id: str, tool: str, arguments: str, meta: str | None = None) -> str:
    """A call as text, with these very bytes in it."""
    own = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}} if client.modern else {}
    return (
        f'{{"jsonrpc":"2.0","id":"{request_id}","method":"tools/call","params":{{"name":"{tool}",'
        f'"arguments":{arguments},"_meta":{json.dumps(own) if meta is None else meta}}}}}'
    )


async def answered(client: RawClient, request_id: str, text: str) -> Any:
    answer = client.expect(request_id)
    await client.wire.send(text)
    return await answer


async def test_arguments_in_several_lines_are_one_message_for_the_server(
    client: RawClient, server: Server
) -> None:
    """Otherwise the line in between would be a message of its own for a server on standard streams."""
    forged = '{"jsonrpc":"2.0","id":"forged","method":"tools/call","params":{"name":"touch","arguments":{}}}'
    # A host on standard streams ends its own message by a line end.
    line_end = "\n" if client.wire.answers_cancelled else "\r"
    arguments = f'{{"text":{line_end}{forged}{line_end}}}'
    before = len(server.ledger.calls("touch"))

    answer = await answered(client, "lines", request(client, "lines", f"{server.name}__echo", arguments))

    assert echoed(answer)["arguments"] == {"text": json.loads(forged)}
    assert len(server.ledger.calls("touch")) == before


@pytest.mark.parametrize("value", ["1e999", "9" * 400, "9" * 300 + "e10", "[" * 130 + "]" * 130])
async def test_arguments_that_some_servers_cannot_read_are_refused(
    client: RawClient, server: Server, value: str
) -> None:
    """Some servers end over what they cannot read, and with them the calls of everybody else."""
    sent = request(client, "odd", f"{server.name}__echo", f'{{"text":{value}}}')

    with pytest.raises(RpcError, match="was not sent"):
        await answered(client, "odd", sent)


async def test_a_call_reaches_its_server_under_the_servers_own_name(
    client: RawClient, server: Server
) -> None:
    received = echoed(await client.call(f"{server.name}__echo", {"text": "hi"}))

    assert (received["name"], received["arguments"]) == ("echo", {"text": "hi"})
    if SERVERS[server.name] == ("modern", "http"):
        headers = [each["headers"] for each in server.ledger.entries("headers")]
        named = [each["mcp-name"] for each in headers if each["mcp-method"] == "tools/call"]
        assert named[-1] == "echo"


async def test_arguments_arrive_unchanged(client: RawClient, server: Server) -> None:
    received = echoed(await client.call(f"{server.name}__echo", ARGUMENTS))

    assert received["arguments"] == ARGUMENTS


async def test_arguments_arrive_byte_for_byte(client: RawClient, server: Server) -> None:
    await answered(client, "exact", request(client, "exact", f"{server.name}__echo", NUMBERS))

    assert NUMBERS in server.ledger.lines("tools/call")[-1]


async def test_arguments_of_very_many_values_arrive(client: RawClient, server: Server) -> None:
    arguments = json.dumps(dict.fromkeys(map(str, range(MOST_VALUES + 1)), 0))

    await answered(client, "many", request(client, "many", f"{server.name}__echo", arguments))

    assert arguments in server.ledger.lines("tools/call")[-1]


async def test_unknown_params_and_the_clients_meta_reach_the_server_but_the_proxys_own_meta_does_not(
    client: RawClient, server: Server
) -> None:
    params = {"name": f"{server.name}__echo", "arguments": {}, "x-unknown": [None]}
    meta = {"com.example/trace": {"a": None}, OWN + "query": "secret", OWN + "x": 1}

    received = echoed(await client.request("tools/call", params, **meta))

    assert received["x-unknown"] == [None]
    assert received["_meta"]["com.example/trace"] == {"a": None}
    assert not [key for key in received["_meta"] if key.startswith(OWN)]


async def test_a_result_arrives_unchanged(client: RawClient, server: Server) -> None:
    result = await client.call(f"{server.name}__exact")

    assert own_meta(result) == json.loads(EXACT)


async def test_structured_content_arrives_byte_for_byte(client: RawClient, server: Server) -> None:
    await client.call(f"{server.name}__exact")

    # Not the latest text: a notification may have come since.
    assert any(f'"structuredContent":{NUMBERS}' in text for text in client.texts)


async def test_a_failed_call_is_the_servers_own_result(client: RawClient, server: Server) -> None:
    assert own_meta(await client.call(f"{server.name}__fail")) == FAILED


async def test_a_servers_error_keeps_its_code_and_data_and_its_message_names_the_server(
    client: RawClient, server: Server
) -> None:
    with pytest.raises(RpcError) as refused:
        await client.call(f"{server.name}__refuse")

    error = refused.value
    assert (error.code, error.data) == (-32050, {"until": [1.0e-7, None]})
    assert error.message == f"[server {server.name!r} says] not today"


async def test_an_error_code_about_the_servers_own_connection_becomes_an_internal_error(
    client: RawClient, server: Server
) -> None:
    with pytest.raises(RpcError, match="gone") as refused:
        await client.call(f"{server.name}__hop")

    assert (refused.value.code, refused.value.data) == (-32603, {"since": None})


async def test_an_error_code_that_only_one_era_knows_is_not_shown_to_a_client_of_the_other(
    client: RawClient, server: Server
) -> None:
    codes = []
    for name in ("old_code", "new_code"):
        with pytest.raises(RpcError) as refused:
            await client.call(f"{server.name}__{name}")
        codes.append(refused.value.code)

    assert codes == ([-32603, -32021] if client.modern else [-32042, -32600])


async def test_every_result_has_the_members_that_its_era_demands_and_none_of_the_other_era(
    client: RawClient, server: Server
) -> None:
    results = {
        "tools/list": await client.request("tools/list"),
        "tools/call": await client.call(f"{server.name}__echo"),
        "resources/list": await client.request("resources/list"),
        "resources/templates/list": await client.request("resources/templates/list"),
        "resources/read": await client.request("resources/read", {"uri": f"note://{server.name}/1"}),
        "prompts/list": await client.request("prompts/list"),
        "prompts/get": await client.request("prompts/get", {"name": f"{server.name}__greet"}),
    }

    for method, result in results.items():
        extra = {"resultType", "ttlMs", "cacheScope"} & set(result)
        info = result.get("_meta", {}).get(PREFIX + "serverInfo")
        if not client.modern:
            assert (method, extra, info) == (method, set(), None)
            continue
        assert result["resultType"] == "complete"
        assert info["name"] == "mcp-context-proxy"
        assert ("ttlMs" in extra and "cacheScope" in extra) == (method not in {"tools/call", "prompts/get"})


async def test_a_cancelled_call_is_cancelled_at_the_server_and_never_answered(
    client: RawClient, server: Server
) -> None:
    cancelled, called = len(server.ledger.entries("cancelled")), len(server.ledger.calls("hang"))
    hanging, _ = await client.start("tools/call", {"name": f"{server.name}__hang", "arguments": {}})
    await server.ledger.until(lambda ledger: len(ledger.calls("hang")) > called)

    await client.abandon(hanging)

    await server.ledger.until(lambda ledger: len(ledger.entries("cancelled")) > cancelled)
    await client.call(f"{server.name}__echo")  # the connection lives; an answer to the first would be noticed


async def test_a_direct_call_call_tool_and_the_bare_name_of_a_tool_give_the_same_result(
    client: RawClient, server: Server
) -> None:
    tool = f"only_{server.name}"

    direct = await client.call(f"{server.name}__{tool}", {"text": "x"})
    through = await client.call("call_tool", {"name": f"{server.name}__{tool}", "arguments": {"text": "x"}})
    bare = await client.call(tool, {"text": "x"})

    assert direct["content"] == through["content"] == bare["content"]


@each(("given", "read"), [('{"text": "x"}', {"text": "x"}), ("", {})])
async def test_arguments_given_as_a_json_string_are_read_as_the_object_in_it_and_an_empty_one_as_none(
    client: RawClient, server: Server, given: str, read: dict[str, str]
) -> None:
    params = {"name": f"{server.name}__echo", "arguments": given}

    through = await client.call("call_tool", params)
    direct = await client.request("tools/call", params)

    assert echoed(through)["arguments"] == echoed(direct)["arguments"] == read


@pytest.mark.parametrize("given", ["x", "[1]", "null", '"{}"', [1], 1, True])
async def test_arguments_that_are_no_object_reach_no_server(
    client: RawClient, server: Server, given: object
) -> None:
    params = {"name": f"{server.name}__echo", "arguments": given}
    before = len(server.ledger.lines("tools/call"))

    through = await client.call("call_tool", params)
    with pytest.raises(RpcError, match="arguments of tools/call must be an object"):
        await client.request("tools/call", params)

    assert "must be an object" in through["content"][0]["text"]
    assert through["isError"]
    assert len(server.ledger.lines("tools/call")) == before


async def test_a_request_id_may_be_any_text(client: RawClient, server: Server) -> None:
    params = {"name": f"{server.name}__echo", "arguments": {}}

    _, future = await client.start("tools/call", params, request_id='an "id" \u2028')

    assert (await future)["content"]


async def test_a_request_id_can_be_used_again_as_soon_as_it_is_answered(client: RawClient) -> None:
    for _ in range(30):
        assert await answered(client, "again", request(client, "again", "old__echo", "{}"))


async def test_many_calls_at_once_are_each_answered_with_their_own_result(
    client: RawClient, server: Server
) -> None:
    started = [
        await client.start("tools/call", {"name": f"{server.name}__echo", "arguments": {"n": number}})
        for number in range(12)
    ]

    for number, (_, future) in enumerate(started):
        assert echoed(await future)["arguments"] == {"n": number}


async def test_a_message_for_the_proxy_itself_is_refused_if_it_has_very_many_values(
    client: RawClient,
) -> None:
    much = {"x": dict.fromkeys(map(str, range(MOST_VALUES)), 0)}

    with pytest.raises(RpcError) as refused:
        await client.request("server/discover", much)

    assert refused.value.code == -32600
    assert f"{MOST_VALUES:,} values" in str(refused.value)
    assert await client.call("old__echo", {})


@each("meta", ["7", '"x"', "[]", "true"])
async def test_meta_that_is_no_object_is_an_invalid_parameter(client: RawClient, meta: str) -> None:
    with pytest.raises(RpcError) as refused:
        await answered(client, "meta", request(client, "meta", "old__echo", "{}", meta))

    assert refused.value.code == -32602
    assert "_meta must be an object" in str(refused.value)
