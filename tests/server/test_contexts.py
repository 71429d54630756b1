"""Contexts over MCP: handles, ``context://`` resources, the prompt, and ``manage_context``."""

import json
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

import anyio
import jsonschema
import pytest
from support.proxies import Host, host_of, inside
from support.raw_client import OWN, RpcError
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.items import Kind

UPDATED = "notifications/resources/updated"

QUERY = "how to commit my changes with good messages"


@pytest.fixture(scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    workshop = Workshop(tmp_path_factory.mktemp("contexts"))
    rules = workshop.folder / "rules"
    rules.mkdir()
    for name, front, text in (
        ("tone", "include: always\npriority: 800", "Be polite."),
        ("commits", "priority: 10", "Commit messages in git say why."),
        ("secret", "include: manual", "Only by hand."),
    ):
        (rules / f"{name}.md").write_text(f"---\n{front}\n---\n{text}\n", encoding="utf-8")
    workshop.server(
        "work",
        tools=[tool("commit", "Record staged changes in a git repository"), tool("clock", "Tell the time")],
    )
    config = workshop.config(
        documents=[{"kind": "rule", "path": str(rules)}],
        expose={"list_all_below": 0},
        context={"manage_tool": True},
    )
    async with inside(config, patience=None) as opened:
        yield opened


async def made(host: Host, query: str = QUERY) -> str:
    answer = await host.data("set_context", {"query": query})
    return str(answer["context_id"])


async def read(host: Host, uri: str, **meta: Any) -> str:
    (content,) = (await host.request("resources/read", {"uri": uri}, **meta))["contents"]
    assert content["uri"] == uri
    return str(content["text"])


async def test_a_context_id_works_as_an_argument_and_in_meta(proxy: Proxy) -> None:
    host = Host(proxy, "modern")
    context_id = await made(host)

    current = {"name": "context://current", "context_id": context_id}
    assert "say why" in (await host.call("call_read_only_tool", current))["content"][0]["text"]
    await host.call("search_available_tools", {"query": "one", "context_id": context_id})
    await host.call("search_available_tools", {"query": "two"}, **{OWN + "context": context_id})
    again = await host.data("set_context", {"query": "three", "context_id": context_id})

    assert again["context_id"] == context_id
    requests = json.loads(await read(host, "context://requests", **{OWN + "context": context_id}))
    assert [one["query"] for one in requests] == ["three", "two", "one", QUERY]


async def test_nobody_else_can_use_a_context_id(proxy: Proxy) -> None:
    context_id = await made(Host(proxy, "modern", principal="alice"))
    mallory = Host(proxy, "modern", principal="mallory")

    refused = await mallory.call("search_available_tools", {"query": "x", "context_id": context_id})
    with pytest.raises(RpcError, match="context"):
        await mallory.names(**{OWN + "context": context_id})

    assert refused["isError"] is True
    assert "set_context" in refused["content"][0]["text"]


async def test_requests_of_a_modern_client_share_nothing_unless_they_name_a_context(proxy: Proxy) -> None:
    """No state is keyed to a modern connection."""
    host = Host(proxy, "modern")
    found = await host.data("search_available_tools", {"query": QUERY})

    context = await proxy.contexts.request(found["request_id"])

    assert context is not None
    assert context.session is None
    assert "work__commit" not in await host.names()


async def test_the_current_context_is_that_of_the_latest_query_ordered_by_priority(
    proxy: Proxy, era: str
) -> None:
    host = Host(proxy, era)
    meta = {OWN + "context": await made(host)} if era == "modern" else {}
    if era == "handshake":
        await host.call("search_available_tools", {"query": QUERY})

    text = await read(host, "context://current", **meta)

    assert text == "Rule: commits\n\nCommit messages in git say why.\n\nRule: tone\n\nBe polite."


async def test_a_client_that_subscribed_to_its_context_is_told_of_each_change(proxy: Proxy) -> None:
    subscribed, other = Host(proxy, "handshake"), Host(proxy, "handshake")
    for uri in ("context://current", "context://requests"):
        await subscribed.request("resources/subscribe", {"uri": uri})
    await other.call("search_available_tools", {"query": "write a mail"})
    await subscribed.call("search_available_tools", {"query": "write a mail"})
    with anyio.fail_after(30):
        while len(updated := [params for method, params in subscribed.told if method == UPDATED]) < 2:
            await anyio.lowlevel.checkpoint()

    assert "context://current" in str(updated)
    assert UPDATED not in dict(other.told)


async def test_without_a_query_the_current_context_has_the_always_items(proxy: Proxy, era: str) -> None:
    assert await read(Host(proxy, era), "context://current") == "Rule: tone\n\nBe polite."


async def test_the_current_context_has_of_a_long_reference_the_section_that_is_meant(
    workshop: Workshop,
) -> None:
    (folder := workshop.folder / "handbook").mkdir()
    others = "".join(f"## Room {n}\n\nThe key of room {n} is on hook {n}.\n\n" for n in range(90))
    text = f"# Handbook\n\n## Refunds\n\nA refund is paid within nine days.\n\n{others}"
    (folder / "handbook.md").write_text(text, encoding="utf-8")
    async with host_of(
        workshop.config(documents=[{"kind": "reference", "path": str(folder)}]), "modern"
    ) as host:
        told = await read(
            host, "context://current", **{OWN + "query": "within how many days is a refund paid"}
        )

    assert "nine days" in told
    assert "hook 30" not in told
    assert "read_document" in told


async def test_a_query_in_the_request_beats_the_latest_one(proxy: Proxy, era: str) -> None:
    text = await read(Host(proxy, era), "context://current", **{OWN + "query": QUERY})

    assert text.startswith("Rule: commits")


async def test_a_request_context_can_be_read_by_the_id_of_its_search(proxy: Proxy, era: str) -> None:
    host = Host(proxy, era)
    found = await host.data("search_available_tools", {"query": QUERY})

    context = json.loads(await read(host, f"context://requests/{found['request_id']}"))

    assert (context["id"], context["query"]) == (found["request_id"], QUERY)
    assert {"tone", "commits", "work__commit"} <= {item["name"] for item in context["items"]}
    assert "Commit messages in git" not in json.dumps(context)


async def test_each_principal_sees_its_own_request_contexts_and_no_others(proxy: Proxy) -> None:
    hosts = {name: Host(proxy, "modern", principal=name) for name in ("carol", "dave", None)}
    ids = {}
    for name, host in hosts.items():
        answer = await host.data("search_available_tools", {"query": f"asked by {name}"})
        ids[name] = answer["request_id"]
        await host.request("tools/list", **{OWN + "query": f"listed for {name}"})

    for name, host in hosts.items():
        text = await read(host, "context://requests")
        assert [one["query"] for one in json.loads(text)][:2] == [f"listed for {name}", f"asked by {name}"]
        assert not any(f"asked by {other}" in text for other in hosts if other != name)
        assert "owner" not in text
        assert json.loads(await read(host, f"context://requests/{ids[name]}"))["id"] == ids[name]
    for name, other in (("dave", "carol"), (None, "carol"), ("carol", None)):
        with pytest.raises(RpcError, match=f"context://requests/{ids[other]}"):
            await read(hosts[name], f"context://requests/{ids[other]}")


async def test_after_a_restart_request_contexts_still_belong_to_their_principal(workshop: Workshop) -> None:
    config = workshop.config(store={"path": str(workshop.folder / "store.sqlite3")})
    async with inside(config) as proxy:
        for name in ("alice", "mallory"):
            host = Host(proxy, "modern", principal=name)
            await host.call("search_available_tools", {"query": f"asked by {name}"})
    async with inside(config) as proxy:
        text = await read(Host(proxy, "modern", principal="alice"), "context://requests")

    assert [one["query"] for one in json.loads(text)] == ["asked by alice"]


async def test_an_unknown_request_is_an_unknown_resource(proxy: Proxy, era: str) -> None:
    with pytest.raises(RpcError, match="context://requests/0123"):
        await Host(proxy, era).request("resources/read", {"uri": "context://requests/0123"})


async def test_the_template_and_the_prompt_are_listed(proxy: Proxy, era: str) -> None:
    host = Host(proxy, era)

    templates = (await host.request("resources/templates/list"))["resourceTemplates"]
    prompts = (await host.request("prompts/list"))["prompts"]

    assert [one["uriTemplate"] for one in templates] == ["context://requests/{id}"]
    assert [(one["name"], one["arguments"][0]["name"]) for one in prompts] == [("with_context", "query")]


async def test_the_prompt_gives_rules_as_messages_names_tools_and_ends_with_the_query(
    proxy: Proxy, era: str
) -> None:
    params = {"name": "with_context", "arguments": {"query": QUERY}}

    messages = (await Host(proxy, era).request("prompts/get", params))["messages"]

    texts = [message["content"]["text"] for message in messages]
    assert texts[0] == "Rule: commits\n\nCommit messages in git say why."
    assert texts[1] == "Rule: tone\n\nBe polite."
    assert "- work__commit(" in texts[2]
    assert texts[3] == QUERY


async def test_the_prompt_needs_a_query(proxy: Proxy, era: str) -> None:
    with pytest.raises(RpcError, match="needs a query"):
        await Host(proxy, era).request("prompts/get", {"name": "with_context"})


async def test_an_argument_of_the_prompt_has_no_completions_and_is_no_error(proxy: Proxy, era: str) -> None:
    params = {
        "ref": {"type": "ref/prompt", "name": "with_context"},
        "argument": {"name": "query", "value": "x"},
    }

    answer = await Host(proxy, era).request("completion/complete", params)

    assert answer["completion"]["values"] == []


async def test_manage_context_adds_lists_and_removes_items(proxy: Proxy, era: str) -> None:
    host = Host(proxy, era)
    named = {"context_id": await made(host)} if era == "modern" else {}

    await host.call(
        "manage_context", {"action": "add", "type": "tool", "name": "clock", "server": "work", **named}
    )
    listed = await host.data("manage_context", {"action": "list", **named})
    tools = await host.names(**({OWN + "context": named["context_id"]} if named else {}))

    modes = {one["name"]: one["include_mode"] for one in listed["items"]}
    assert modes == {"tone": "always", "work__clock": "manual"}
    assert "work__clock" in tools


@pytest.mark.parametrize(
    ("action", "name", "why"), [("add", "secret", '"manual"'), ("remove", "tone", '"always"')]
)
async def test_a_model_changes_nothing_about_manual_items_and_always_rules(
    proxy: Proxy, era: str, action: str, name: str, why: str
) -> None:
    host = Host(proxy, era)
    named = {"context_id": await made(host)} if era == "modern" else {}

    wanted = {"action": action, "type": "rule", "name": name, **named}
    refused = await host.call("manage_context", wanted)
    listed = await host.data("manage_context", {"action": "list", **named})

    assert refused["isError"]
    assert f"its include mode is {why}" in refused["content"][0]["text"]
    assert [one["name"] for one in listed["items"]] == ["tone"]


async def test_a_model_changes_nothing_that_a_person_has_decided(proxy: Proxy) -> None:
    host = Host(proxy, "handshake")
    assert host.session is not None
    proxy.contexts.remove(host.session, Kind.TOOL, "work__commit")
    proxy.contexts.add(host.session, Kind.RULE, "secret")
    for action, kind, name in (("add", "tool", "work__commit"), ("remove", "rule", "secret")):
        refused = await host.call("manage_context", {"action": action, "type": kind, "name": name})
        assert "a person has decided on it" in refused["content"][0]["text"]
    listed = await host.data("manage_context", {"action": "list"})

    assert {one["name"] for one in listed["items"]} == {"tone", "secret"}


async def test_a_tool_that_was_removed_by_hand_is_not_found_nor_listed_again(proxy: Proxy) -> None:
    host = Host(proxy, "handshake")
    await host.call("search_available_tools", {"query": QUERY})
    assert "work__commit" in await host.names()

    await host.call("manage_context", {"action": "remove", "type": "tool", "name": "work__commit"})
    found = await host.data("search_available_tools", {"query": QUERY})

    assert "work__commit" not in await host.names()
    assert "work__commit" not in [one["name"] for one in found["results"]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"action": "add"}, "type and name"),
        ({"action": "add", "type": "rule", "name": "tome"}, "did you mean tone"),
        ({"action": "add", "type": "tool", "name": "comit"}, "did you mean work__commit"),
        ({"action": "drop", "type": "rule", "name": "tone"}, "action must be one of add, list, remove"),
        ({"action": "list", "context_id": "nonsense"}, "set_context"),
    ],
)
async def test_manage_context_explains_invalid_requests(proxy: Proxy, arguments: Any, told: str) -> None:
    refused = await Host(proxy, "handshake").call("manage_context", arguments)

    assert refused["isError"] is True
    assert told in refused["content"][0]["text"]


async def test_manage_context_is_listed_only_if_it_is_switched_on(proxy: Proxy, workshop: Workshop) -> None:
    listed = {entry["name"]: entry for entry in (await Host(proxy, "modern").request("tools/list"))["tools"]}
    async with host_of(workshop.config(), "modern") as host:
        names = await host.names()
        refused = await host.call("manage_context", {"action": "list"})

    jsonschema.Draft202012Validator.check_schema(listed["manage_context"]["inputSchema"])
    assert "manage_context" not in names
    assert "switched off" in refused["content"][0]["text"]


async def test_a_record_has_the_name_of_its_client_in_both_eras(proxy: Proxy, host: Host) -> None:
    query = {"query": "write a note"}
    given = await host.data("set_context", query)
    await host.call("search_available_tools", query | {"context_id": given["context_id"]})
    await host.names(**{"io.github.mcp-context-proxy/query": "write a note"})
    await host.request("prompts/get", {"name": "with_context", "arguments": query})
    assert [one.client for one in islice(proxy.contexts.records.recent(), 4)] == ["host"] * 4
