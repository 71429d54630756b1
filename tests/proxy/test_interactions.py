"""Searches and calls of hosts are remembered as interactions if that is turned on."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.proxies import Host, host_of, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.interactions import Recall

SEARCH, TOKEN = "search_available_tools", "a-very-secret-token"


def configured(workshop: Workshop, **settings: Any) -> Path:
    tools = [tool("send_mail", "Send a mail to somebody"), tool("list_mail", "List the mails")]
    workshop.server("post", tools=tools, settings={"env": {"POST_TOKEN": TOKEN}})
    on = {"enabled": True, **settings.pop("interactions", {})}
    return workshop.config(interactions=on, expose={"list_all_below": 0}, **settings)


@pytest.fixture
async def proxy(workshop: Workshop) -> AsyncIterator[Proxy]:
    async with inside(configured(workshop, interactions={"recall_tool": True})) as opened:
        yield opened


async def remembered(proxy: Proxy, query: str | None = None, **more: Any) -> Recall:
    assert proxy.interactions is not None
    await proxy.interactions.recorder.drain()
    memory = proxy.interactions.memory
    return memory.recent(**more) if query is None else memory.semantic_search_interactions(query, **more)


def told(found: Recall) -> list[tuple[str, str, str]]:
    return sorted(
        (one.interaction.agent_name, one.interaction.interaction_type, one.interaction.content)
        for one in found.results
    )


async def test_searches_and_calls_are_remembered_under_the_name_of_the_client(proxy: Proxy, era: str) -> None:
    host = Host(proxy, era)
    await host.call(SEARCH, {"query": "tell the team"})
    await host.call("post__send_mail", {"text": "hello"})
    await host.call("call_tool", {"name": "post__list_mail", "arguments": {}, "goal": "see what is new"})
    await host.call("set_context", {"query": "the release", "intent": "announce it"})

    assert told(await remembered(proxy)) == [
        ("host", "call", 'post__send_mail {"text":"hello"}'),
        ("host", "call", "see what is new\npost__list_mail"),
        ("host", "search", "tell the team"),
        ("host", "search", "the release\nannounce it"),
    ]


async def test_interactions_are_found_by_meaning(proxy: Proxy) -> None:
    host = Host(proxy, "modern")
    await host.call("post__send_mail", {"text": "the deployment is on friday"})
    await host.call("post__send_mail", {"text": "lunch is at noon"})
    found = await remembered(proxy, "when do we ship the new version")

    assert "friday" in found.results[0].interaction.content
    assert found.without_embedding == 0


async def test_interactions_are_kept_by_agent(proxy: Proxy) -> None:
    one, other = Host(proxy, "handshake"), Host(proxy, "modern")
    for host, name in ((one, b'{"name": "coder", "version": "1"}'), (other, b'{"version": "1"}')):
        host.client_info = type(host.client_info)(name)
        await host.call(SEARCH, {"query": "tell the team"})

    assert told(await remembered(proxy, agent_name="coder")) == [("coder", "search", "tell the team")]
    assert told(await remembered(proxy, "team", agent_name="unknown")) == [
        ("unknown", "search", "tell the team")
    ]
    (both,) = (await remembered(proxy, "team")).results
    assert both.times == 2


async def test_secrets_of_the_configuration_and_of_arguments_are_not_remembered(proxy: Proxy) -> None:
    host = Host(proxy, "modern")
    await host.call("post__send_mail", {"text": f"use {TOKEN}", "password": "swordfish"})
    ((_, _, content),) = told(await remembered(proxy))

    assert content == 'post__send_mail {"text":"use [redacted POST_TOKEN]","password":"[redacted]"}'


async def test_a_model_can_call_recall(proxy: Proxy, era: str) -> None:
    host = Host(proxy, era)
    assert "recall" in await host.names()
    await host.call("post__send_mail", {"text": "the deployment is on friday"})
    answer = await host.call("recall", {"query": "when is the deployment"})

    assert "the deployment is on friday" in answer["content"][0]["text"]
    assert "- just now, 20" in answer["content"][0]["text"], "a model does not know what day it is"
    (result,) = (await host.data("recall", {"query": "when is the deployment"}))["results"]
    assert (result["agent_name"], result["interaction_type"]) == ("host", "call")
    assert result["score"] > result["cosine"] > 0, "its words count beside its meaning"
    assert result["times"] == 1
    nobody = await host.call("recall", {"query": "deployment", "agent_name": "nobody"})
    assert nobody["content"][0]["text"] == "Nothing like that is remembered."
    wrong = await host.call("recall", {"query": "deployment", "top_k": 0})
    assert wrong["isError"] is True


async def test_calls_of_recall_are_not_remembered(proxy: Proxy) -> None:
    host = Host(proxy, "modern")
    await host.call("recall", {"query": "deployment"})
    await host.call("call_tool", {"name": "recall", "arguments": {"query": "deployment"}})

    assert told(await remembered(proxy)) == []


async def test_recall_is_not_listed_unless_it_is_switched_on(workshop: Workshop) -> None:
    async with host_of(configured(workshop), "modern") as host:
        answer = await host.call("recall", {"query": "deployment"})

        assert "recall" not in await host.names()
        assert answer["isError"] is True
        assert "[interactions] recall_tool switches it on" in answer["content"][0]["text"]


async def test_nothing_is_remembered_by_default(workshop: Workshop) -> None:
    store = workshop.folder / "store.sqlite3"
    workshop.server("post", tools=[tool("send_mail")])
    config = workshop.config(store={"path": str(store)}, context={"keep_requests": False})
    async with inside(config) as proxy:
        host = Host(proxy, "modern")
        await host.call(SEARCH, {"query": "a quite unusual question"})
        await host.call("post__send_mail", {"text": "a quite unusual answer"})

        assert proxy.interactions is None
        assert proxy.store.interactions.kinds() == []
    kept = b"".join(file.read_bytes() for file in workshop.folder.glob("store.sqlite3*"))
    assert b"unusual answer" not in kept


async def test_two_proxies_on_one_store_share_their_interactions(workshop: Workshop) -> None:
    path = str(workshop.folder / "store.sqlite3")
    config = configured(workshop, store={"path": path}, interactions={"recall_tool": True})
    async with inside(config) as one, inside(config) as other:
        await Host(one, "modern").call("post__send_mail", {"text": "the deployment is on friday"})
        await remembered(one)
        first = await Host(other, "modern").data("recall", {"query": "deployment"})
        await Host(other, "modern").call("post__send_mail", {"text": "the deployment is postponed"})
        await remembered(other)
        second = await Host(one, "modern").data("recall", {"query": "deployment"})

    assert "friday" in json.dumps(first["results"])
    assert len(second["results"]) == 2


async def test_interactions_survive_a_restart(workshop: Workshop) -> None:
    config = configured(workshop, store={"path": str(workshop.folder / "store.sqlite3")})
    async with inside(config) as proxy:
        await Host(proxy, "modern").call("post__send_mail", {"text": "the deployment is on friday"})
    async with inside(config) as proxy:
        found = await remembered(proxy)

    assert told(found) == [("host", "call", 'post__send_mail {"text":"the deployment is on friday"}')]
