"""Requests for something that does not exist, and requests that are wrong."""

import json
from typing import Any

import pytest
from support.raw_client import RawClient, RpcError

pytestmark = [pytest.mark.anyio, pytest.mark.pairwise]

INVALID = [
    pytest.param("tools/call", {"name": 42}, id="a name that is a number"),
    pytest.param("tools/call", {}, id="no name"),
    pytest.param("tools/call", {"name": "old__echo", "arguments": [1]}, id="arguments that are a list"),
    pytest.param("tools/call", {"name": "search_available_tools", "arguments": {"query": {}}}, id="no query"),
    pytest.param("tools/call", {"name": "call_tool", "arguments": {"name": None}}, id="no tool to call"),
    pytest.param("tools/call", {"name": "set_context", "arguments": {"context_id": 7}}, id="no context"),
    pytest.param("tools/list", {"cursor": 42}, id="a cursor that is a number"),
    pytest.param("resources/read", {}, id="no uri"),
    pytest.param("resources/read", {"uri": ["x"]}, id="a uri that is a list"),
    pytest.param("resources/read", {"uri": "file:///etc/passwd"}, id="a file"),
    pytest.param("resources/subscribe", {"uri": None}, id="nothing to subscribe to"),
    pytest.param("prompts/get", {"name": {}}, id="a prompt that is an object"),
    pytest.param("prompts/get", {"name": "old__greet", "arguments": 7}, id="arguments that are a number"),
    pytest.param("completion/complete", {}, id="nothing to complete"),
    pytest.param("completion/complete", {"ref": {"type": "ref/odd"}, "argument": 1}, id="an odd reference"),
    pytest.param("logging/setLevel", {"level": "loud"}, id="an odd level"),
    pytest.param("subscriptions/listen", {"notifications": 7}, id="an odd subscription"),
    pytest.param("no/such/method", {"x": [None]}, id="an unknown method"),
]
OURS = {-32600, -32601, -32602, -32603}
"""What JSON-RPC has for us to say; others are a server's own, or speak of another hop or of a library."""

INSIDE = ("Traceback", 'File "', "pydantic", "msgspec", "site-packages", ".py", "object at 0x", "Error(")


@pytest.mark.parametrize(("method", "params"), INVALID)
async def test_the_answer_to_an_invalid_request_shows_nothing_of_the_proxys_insides(
    client: RawClient, method: str, params: dict[str, Any]
) -> None:
    try:
        told = json.dumps(await client.request(method, params))
    except RpcError as error:
        # Of the protocol's own: a header that does not say what the body does, a resource that is not there.
        codes = OURS | ({-32020} if client.modern else {-32002})
        assert error.code in codes, error
        assert error.message
        told = f"{error.message} {json.dumps(error.data)}"

    assert [sign for sign in INSIDE if sign in told] == []


async def test_an_unknown_method_is_refused(client: RawClient) -> None:
    with pytest.raises(RpcError) as refused:
        await client.request("no/such/method")

    assert refused.value.code == -32601


async def test_a_cursor_that_the_proxy_did_not_give_is_refused(client: RawClient) -> None:
    for method in ("tools/list", "resources/list", "prompts/list", "resources/templates/list"):
        with pytest.raises(RpcError) as refused:
            await client.request(method, {"cursor": "17"})
        assert refused.value.code == -32602


async def test_a_call_of_an_unknown_tool_is_answered_with_the_nearest_names(client: RawClient) -> None:
    for result in (await client.call("old__ecko"), await client.call("call_tool", {"name": "old__ecko"})):
        assert result["isError"] is True
        assert "old__echo" in result["content"][0]["text"]
        assert "search_available_tools" in result["content"][0]["text"]


async def test_a_bare_name_that_several_servers_have_is_answered_with_all_full_names(
    client: RawClient,
) -> None:
    result = await client.call("echo")

    assert result["isError"] is True
    assert "old__echo" in result["content"][0]["text"]
    assert "new__echo" in result["content"][0]["text"]
