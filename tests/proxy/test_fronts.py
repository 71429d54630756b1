"""What every client is promised, whichever front and era it comes through, of servers of both eras.

One proxy for each of the three fronts, the real command, asked by a client that has no SDK in it.
"""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fronts import EVERY_FRONT, opening
from support.proxies import HttpProxy, http_proxy
from support.raw_client import OWN, PREFIX, RawClient, RpcError
from support.servers import Server, Workshop, tool

pytestmark = pytest.mark.anyio

DOWNSTREAM = {"old": "handshake", "new": "modern"}
"""A server of each era, by name."""

EXACT = (
    '{"content":[{"type":"text","text":"a\u2028b\\ud83d\\ude00","x-more":{"n":null}}],'
    '"structuredContent":{"big":123456789012345678901234567890,"small":1e-7,"one":1.0,"nothing":null,'
    '"nested":{"x":[null,[null]]},"snow":"\u2603"},'
    '"x-unknown":[1,null],"_meta":{"com.example/key":{"deep":null}}}'
)
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
FAILED = {"content": [{"type": "text", "text": "no such file"}], "isError": True, "x-code": 7}


def spec(name: str, era: str) -> dict[str, Any]:
    return {
        "era": era,
        "tools": [
            tool(each) for each in ("echo", "report", "refuse", "fail", "hang", "exact", "hop", "twice")
        ]
        + [tool(f"only_{name}", **{"x-unknown": {"kept": None}})],
        "calls": {
            "report": [{"progress": 3}],
            "refuse": [{"error": {"code": -32050, "message": "not today", "data": {"until": [1, None]}}}],
            "hop": [{"error": {"code": -32000, "message": "gone"}}],
            "fail": [{"result": FAILED}],
            "hang": [{"wait_cancelled": True}],
            "exact": [{"raw_result": EXACT}],
        },
        "resources": [{"uri": f"note://{name}/1", "name": "one", "x-unknown": [None]}],
        "templates": [{"uriTemplate": f"page://{name}/{{id}}", "name": "page"}],
        "prompts": [{"name": "greet", "description": "Greets", "arguments": [{"name": "who"}]}],
    }


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Server], Path]]:
    workshop = Workshop(tmp_path_factory.mktemp("fronts"))
    for name, era in DOWNSTREAM.items():
        workshop.server(name, **spec(name, era))
    yield workshop.servers, workshop.config(expose={"mode": "all"})
    workshop.close()


@pytest.fixture(scope="module")
def served(setup: tuple[dict[str, Server], Path]) -> Iterator[HttpProxy]:
    with http_proxy(setup[1]) as proxy:
        yield proxy


@pytest.fixture(**EVERY_FRONT)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[RawClient]:
    async with opening(request) as opened:
        await opened.until_listed("old__echo", "new__echo")
        yield opened


@pytest.fixture(params=list(DOWNSTREAM))
def server(request: pytest.FixtureRequest, setup: tuple[dict[str, Server], Path]) -> Server:
    return setup[0][request.param]


def own_meta(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what the modern era adds to each."""
    plain = {key: value for key, value in result.items() if key not in {"resultType", "ttlMs", "cacheScope"}}
    meta = {k: v for k, v in plain.pop("_meta", {}).items() if not k.startswith(PREFIX)}
    return plain | ({"_meta": meta} if meta else {})


async def test_it_says_who_it_is_and_what_it_can(client: RawClient) -> None:
    said = client.introduction

    info = said["_meta"][PREFIX + "serverInfo"] if client.modern else said["serverInfo"]
    assert info["name"] == "mcp-context-proxy"
    assert {"tools", "resources", "prompts", "completions"} <= set(said["capabilities"])
    assert said["capabilities"]["tools"]["listChanged"] is True
    assert "old, new" in said["instructions"]


async def test_tools_of_servers_of_both_eras_are_listed_after_our_own_and_sorted(client: RawClient) -> None:
    names = await client.names()

    assert names[:3] == ["search_available_tools", "call_tool", "set_context"]
    assert names[3:] == sorted(names[3:])
    assert {"old__only_old", "new__only_new"} <= set(names)


async def test_unknown_fields_of_a_definition_reach_the_client(client: RawClient, server: Server) -> None:
    listed = (await client.request("tools/list"))["tools"]

    (found,) = [entry for entry in listed if entry["name"] == f"{server.name}__only_{server.name}"]
    assert found["x-unknown"] == {"kept": None}


async def test_a_call_reaches_its_server_under_the_servers_own_name(
    client: RawClient, server: Server
) -> None:
    result = await client.call(f"{server.name}__echo", {"text": "hi"})

    received = json.loads(result["content"][0]["text"])
    assert (received["name"], received["arguments"]) == ("echo", {"text": "hi"})


async def test_arguments_arrive_unchanged(client: RawClient, server: Server) -> None:
    result = await client.call(f"{server.name}__echo", ARGUMENTS)

    assert json.loads(result["content"][0]["text"])["arguments"] == ARGUMENTS


async def test_unknown_params_and_foreign_meta_arrive_and_ours_do_not(
    client: RawClient, server: Server
) -> None:
    params = {"name": f"{server.name}__echo", "arguments": {}, "x-unknown": [None]}

    result = await client.request(
        "tools/call", params, **{"com.example/trace": {"a": None}, OWN + "query": "secret", OWN + "x": 1}
    )

    received = json.loads(result["content"][0]["text"])
    assert received["x-unknown"] == [None]
    assert received["_meta"]["com.example/trace"] == {"a": None}
    assert not [key for key in received["_meta"] if key.startswith(OWN)]


async def test_a_result_arrives_unchanged(client: RawClient, server: Server) -> None:
    result = await client.call(f"{server.name}__exact")

    assert own_meta(result) == json.loads(EXACT)


async def test_a_failed_call_is_the_servers_own_result(client: RawClient, server: Server) -> None:
    assert own_meta(await client.call(f"{server.name}__fail")) == FAILED


async def test_a_refusal_keeps_its_code_message_and_data(client: RawClient, server: Server) -> None:
    with pytest.raises(RpcError) as refused:
        await client.call(f"{server.name}__refuse")

    error = refused.value
    assert (error.code, error.message, error.data) == (-32050, "not today", {"until": [1, None]})


async def test_a_code_that_speaks_of_the_hop_behind_us_is_not_passed_as_ours(
    client: RawClient, server: Server
) -> None:
    with pytest.raises(RpcError, match="gone") as refused:
        await client.call(f"{server.name}__hop")

    assert refused.value.code == -32603


async def test_a_result_has_what_its_era_demands_and_nothing_of_the_other(
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


@pytest.mark.parametrize("token", [7, "seven", "7"], ids=["number", "text", "digits"])
async def test_progress_is_told_with_the_clients_own_token(
    client: RawClient, server: Server, token: int | str
) -> None:
    client.notifications.clear()

    await client.call(f"{server.name}__report", progressToken=token)

    told = client.notified("notifications/progress")
    assert [(note["progressToken"], note["progress"]) for note in told] == [
        (token, 1),
        (token, 2),
        (token, 3),
    ]
    assert told[0]["total"] == 3
    assert told[0]["message"] == "step 1"


async def test_the_clients_token_never_reaches_a_server(client: RawClient, server: Server) -> None:
    await client.call(f"{server.name}__report", {"text": "leak"}, progressToken="my-own-token")

    assert not [line for line in server.ledger.lines() if "my-own-token" in line]


async def test_without_a_token_no_progress_is_asked_for_nor_told(client: RawClient, server: Server) -> None:
    client.notifications.clear()

    await client.call(f"{server.name}__report")

    assert client.notified("notifications/progress") == []
    assert "progressToken" not in server.ledger.calls("report")[-1].get("_meta", {})


async def test_a_cancelled_call_is_cancelled_at_the_server_and_never_answered(
    client: RawClient, server: Server
) -> None:
    before = len(server.ledger.entries("cancelled"))
    hanging, _ = await client.start("tools/call", {"name": f"{server.name}__hang", "arguments": {}})
    await server.ledger.until(lambda ledger: len(ledger.calls("hang")) > before)

    if client.modern and hasattr(client.wire, "scopes"):
        client._pending.pop(hanging).cancel()
        client.wire.scopes[hanging].cancel()
    else:
        await client.cancel(hanging)

    await server.ledger.until(lambda ledger: len(ledger.entries("cancelled")) > before)
    await client.call(f"{server.name}__echo")  # the connection lives; an answer to the first would be noticed


async def test_a_resource_is_read_from_the_server_that_lists_it(client: RawClient, server: Server) -> None:
    uri = f"note://{server.name}/1"

    listed = (await client.request("resources/list"))["resources"]
    read = await client.request("resources/read", {"uri": uri})

    (found,) = [entry for entry in listed if entry["uri"] == uri]
    assert found["x-unknown"] == [None]
    assert read["contents"] == [{"uri": uri, "text": f"{server.name} has {uri}"}]


async def test_a_resource_of_a_template_is_read_from_the_server_of_the_template(
    client: RawClient, server: Server
) -> None:
    uri = f"page://{server.name}/17"

    listed = (await client.request("resources/templates/list"))["resourceTemplates"]
    read = await client.request("resources/read", {"uri": uri})

    assert f"page://{server.name}/{{id}}" in [entry["uriTemplate"] for entry in listed]
    assert read["contents"][0]["text"] == f"{server.name} has {uri}"


async def test_an_unknown_resource_is_refused_with_the_code_of_the_clients_era(client: RawClient) -> None:
    with pytest.raises(RpcError, match="file:///etc/passwd") as refused:
        await client.request("resources/read", {"uri": "file:///etc/passwd"})

    assert refused.value.code == (-32602 if client.modern else -32002)


async def test_completing_for_what_there_is_not_is_a_wrong_parameter(client: RawClient) -> None:
    argument = {"name": "who", "value": "y"}
    for reference in ({"type": "ref/prompt", "name": "x"}, {"type": "ref/resource", "uri": "x://y"}):
        with pytest.raises(RpcError) as refused:
            await client.request("completion/complete", {"ref": reference, "argument": argument})
        assert refused.value.code == -32602


async def test_of_our_own_resources_nothing_can_be_completed(client: RawClient) -> None:
    reference = {"type": "ref/resource", "uri": "context://requests/{id}"}
    params = {"ref": reference, "argument": {"name": "id", "value": ""}}

    assert (await client.request("completion/complete", params))["completion"]["values"] == []


async def test_a_prompt_is_had_under_a_prefixed_name(client: RawClient, server: Server) -> None:
    listed = (await client.request("prompts/list"))["prompts"]
    got = await client.request("prompts/get", {"name": f"{server.name}__greet", "arguments": {"who": "you"}})

    assert [entry["name"] for entry in listed] == ["new__greet", "old__greet", "with_context"]
    received = json.loads(got["messages"][0]["content"]["text"])
    assert (received["name"], received["arguments"]) == ("greet", {"who": "you"})


async def test_an_unknown_prompt_is_refused_with_the_nearest_name(client: RawClient) -> None:
    with pytest.raises(RpcError, match="old__greet") as refused:
        await client.request("prompts/get", {"name": "old__gret"})

    assert refused.value.code == -32602


async def test_completions_are_asked_of_the_owner(client: RawClient, server: Server) -> None:
    argument = {"name": "who", "value": "y"}
    of_prompt = {"type": "ref/prompt", "name": f"{server.name}__greet"}
    of_template = {"type": "ref/resource", "uri": f"page://{server.name}/{{id}}"}

    prompt = await client.request("completion/complete", {"ref": of_prompt, "argument": argument})
    template = await client.request("completion/complete", {"ref": of_template, "argument": argument})

    assert json.loads(prompt["completion"]["values"][0])["name"] == "greet"
    assert json.loads(template["completion"]["values"][0]) == of_template


async def test_a_call_by_another_way_gives_the_same_result(client: RawClient, server: Server) -> None:
    direct = await client.call(f"{server.name}__only_{server.name}", {"text": "x"})
    through = await client.call(
        "call_tool", {"name": f"{server.name}__only_{server.name}", "arguments": {"text": "x"}}
    )
    bare = await client.call(f"only_{server.name}", {"text": "x"})

    assert direct["content"] == through["content"] == bare["content"]


async def test_arguments_as_a_string_of_json_are_taken_as_the_object_they_are(
    client: RawClient, server: Server
) -> None:
    through = await client.call("call_tool", {"name": f"{server.name}__echo", "arguments": '{"text": "x"}'})

    direct = await client.request(
        "tools/call", {"name": f"{server.name}__echo", "arguments": '{"text": "x"}'}
    )

    for result in (through, direct):
        assert json.loads(result["content"][0]["text"])["arguments"] == {"text": "x"}


async def test_an_unknown_tool_is_answered_with_the_nearest_names(client: RawClient) -> None:
    for result in (await client.call("old__ecko"), await client.call("call_tool", {"name": "old__ecko"})):
        assert result["isError"] is True
        assert "old__echo" in result["content"][0]["text"]
        assert "search_available_tools" in result["content"][0]["text"]


async def test_an_ambiguous_bare_name_is_answered_with_all_it_could_mean(client: RawClient) -> None:
    result = await client.call("echo")

    assert result["isError"] is True
    assert "old__echo" in result["content"][0]["text"]
    assert "new__echo" in result["content"][0]["text"]


async def test_ids_may_be_text(client: RawClient, server: Server) -> None:
    _, future = await client.start(
        "tools/call", {"name": f"{server.name}__echo", "arguments": {}}, request_id='an "id" \u2028'
    )

    assert (await future)["content"]


async def test_many_calls_at_once_are_each_answered_with_their_own_result(
    client: RawClient, server: Server
) -> None:
    started = [
        await client.start("tools/call", {"name": f"{server.name}__echo", "arguments": {"n": number}})
        for number in range(40)
    ]

    for number, (_, future) in enumerate(started):
        result = await future
        assert json.loads(result["content"][0]["text"])["arguments"] == {"n": number}


async def test_an_unknown_method_is_refused(client: RawClient) -> None:
    with pytest.raises(RpcError) as refused:
        await client.request("no/such/method")

    assert refused.value.code == -32601


async def test_a_cursor_that_is_not_ours_is_refused(client: RawClient) -> None:
    for method in ("tools/list", "resources/list", "prompts/list", "resources/templates/list"):
        with pytest.raises(RpcError) as refused:
            await client.request(method, {"cursor": "17"})
        assert refused.value.code == -32602


ODD_REQUESTS = [
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


@pytest.mark.parametrize(("method", "params"), ODD_REQUESTS)
async def test_an_odd_request_is_answered_in_our_words_and_nothing_shows_what_is_inside(
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
