"""Introductions, lists, resources, prompts and completions."""

import json

import pytest
from every_front.cases import SERVERS
from support.raw_client import PREFIX, RawClient, RpcError
from support.servers import Server

pytestmark = pytest.mark.each_value(cross=2)


async def test_the_proxy_introduces_itself_with_its_capabilities_and_the_names_of_its_servers(
    client: RawClient,
) -> None:
    said = client.introduction

    info = said["_meta"][PREFIX + "serverInfo"] if client.modern else said["serverInfo"]
    assert info["name"] == "mcp-context-proxy"
    assert {"tools", "resources", "prompts", "completions"} <= set(said["capabilities"])
    assert said["capabilities"]["tools"]["listChanged"] is True
    assert ", ".join(SERVERS) in said["instructions"]


async def test_the_tools_of_a_small_catalog_are_listed_sorted_and_without_the_proxys_own(
    client: RawClient,
) -> None:
    names = await client.names()

    assert names == sorted(names)
    assert {f"{name}__only_{name}" for name in SERVERS} <= set(names)


async def test_unknown_fields_of_a_definition_reach_the_client(client: RawClient, server: Server) -> None:
    listed = (await client.request("tools/list"))["tools"]

    (found,) = [entry for entry in listed if entry["name"] == f"{server.name}__only_{server.name}"]
    assert found["x-unknown"] == {"kept": None}


async def test_a_resource_is_read_from_the_server_that_lists_it(client: RawClient, server: Server) -> None:
    uri = f"note://{server.name}/1"

    listed = (await client.request("resources/list"))["resources"]
    read = await client.request("resources/read", {"uri": uri})

    (found,) = [entry for entry in listed if entry["uri"] == uri]
    assert found["x-unknown"] == [None]
    assert read["contents"] == [{"uri": uri, "text": f"{server.name} has {uri}"}]


async def test_a_resource_that_fits_a_template_is_read_from_the_server_of_the_template(
    client: RawClient, server: Server
) -> None:
    uri = f"page://{server.name}/17"

    listed = (await client.request("resources/templates/list"))["resourceTemplates"]
    read = await client.request("resources/read", {"uri": uri})

    assert f"page://{server.name}/{{id}}" in [entry["uriTemplate"] for entry in listed]
    assert read["contents"][0]["text"] == f"{server.name} has {uri}"


async def test_a_modern_client_is_told_how_long_a_resource_may_be_cached_if_the_server_says_so(
    client: RawClient, server: Server
) -> None:
    read = await client.request("resources/read", {"uri": f"note://{server.name}/1"})

    hints = {key: read[key] for key in ("ttlMs", "cacheScope") if key in read}
    if not client.modern:
        assert hints == {}
    elif SERVERS[server.name][0] == "modern":
        # Nobody may keep it for others, who may not reach the server.
        assert hints == {"ttlMs": 1000, "cacheScope": "private"}
    else:
        assert hints == {"ttlMs": 0, "cacheScope": "private"}


async def test_an_unknown_resource_is_refused_with_the_error_code_of_the_clients_era(
    client: RawClient,
) -> None:
    with pytest.raises(RpcError, match="file:///etc/passwd") as refused:
        await client.request("resources/read", {"uri": "file:///etc/passwd"})

    assert refused.value.code == (-32602 if client.modern else -32002)


async def test_a_prompt_is_listed_and_fetched_under_a_name_with_the_servers_prefix(
    client: RawClient, server: Server
) -> None:
    listed = (await client.request("prompts/list"))["prompts"]
    got = await client.request("prompts/get", {"name": f"{server.name}__greet", "arguments": {"who": "you"}})

    assert [entry["name"] for entry in listed] == [
        *sorted(f"{name}__greet" for name in SERVERS),
        "with_context",
    ]
    received = json.loads(got["messages"][0]["content"]["text"])
    assert (received["name"], received["arguments"]) == ("greet", {"who": "you"})


async def test_an_unknown_prompt_is_refused_with_the_nearest_name(client: RawClient) -> None:
    with pytest.raises(RpcError, match="old__greet") as refused:
        await client.request("prompts/get", {"name": "old__gret"})

    assert refused.value.code == -32602


async def test_completions_come_from_the_server_of_the_prompt_or_template(
    client: RawClient, server: Server
) -> None:
    argument = {"name": "who", "value": "y"}
    of_prompt = {"type": "ref/prompt", "name": f"{server.name}__greet"}
    of_template = {"type": "ref/resource", "uri": f"page://{server.name}/{{id}}"}

    prompt = await client.request("completion/complete", {"ref": of_prompt, "argument": argument})
    template = await client.request("completion/complete", {"ref": of_template, "argument": argument})

    assert json.loads(prompt["completion"]["values"][0])["name"] == "greet"
    assert json.loads(template["completion"]["values"][0]) == of_template


async def test_a_completion_for_an_unknown_prompt_or_template_is_an_invalid_parameter(
    client: RawClient,
) -> None:
    argument = {"name": "who", "value": "y"}
    for reference in ({"type": "ref/prompt", "name": "x"}, {"type": "ref/resource", "uri": "x://y"}):
        with pytest.raises(RpcError) as refused:
            await client.request("completion/complete", {"ref": reference, "argument": argument})
        assert refused.value.code == -32602


async def test_the_proxys_own_resources_have_no_completions(client: RawClient) -> None:
    reference = {"type": "ref/resource", "uri": "context://requests/{id}"}
    params = {"ref": reference, "argument": {"name": "id", "value": ""}}

    assert (await client.request("completion/complete", params))["completion"]["values"] == []
