"""A search can ask the model of the client that searches, in either era, and is answered whatever it does."""

import json
from typing import Any

import anyio.lowlevel
import pytest
from support.chat import ChatService
from support.proxies import Host, host_of, inside
from support.raw_client import OWN, RpcError, data_of
from support.servers import Workshop, tool

from mcp_context_proxy.items import Kind

SEARCH, SAMPLING = "search_available_tools", "sampling/createMessage"
CAPABLE = {"sampling": {}}
QUERY = "delete what is in the notes"
ALWAYS = {"mode": "always"}


@pytest.fixture(autouse=True)
def desk(workshop: Workshop) -> None:
    described = {
        "delete_note": "Delete a note",
        "delete_notes": "Delete all the notes of a folder",
        "empty_note": "Remove the text of a note",
    }
    workshop.server("desk", tools=[tool(*one) for one in described.items()])


def sampled(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": {"type": "text", "text": text}, "model": "theirs"}


def order(result: dict[str, Any]) -> list[str]:
    return [one["name"] for one in result["results"]]


async def plain_order(workshop: Workshop) -> list[str]:
    async with inside(workshop.config()) as proxy:
        return order(await Host(proxy, "handshake").data(SEARCH, {"query": QUERY}))


async def test_by_default_no_model_is_asked(workshop: Workshop) -> None:
    async with host_of(
        workshop.config(), "handshake", CAPABLE, {SAMPLING: lambda params: sampled("3, 2, 1")}
    ) as host:
        result = await host.data(SEARCH, {"query": QUERY})

    assert host.asked == []
    assert "rerank" not in result


async def test_a_handshake_client_that_declared_sampling_is_asked_and_its_order_counts(
    workshop: Workshop,
) -> None:
    before = await plain_order(workshop)
    async with inside(workshop.config(rerank=ALWAYS)) as proxy:
        host = Host(proxy, "handshake", CAPABLE, {SAMPLING: lambda params: sampled("3, 1, 2")})
        result = await host.data(SEARCH, {"query": QUERY})
        (context,) = await proxy.contexts.requests()
        assert proxy.statistics.usage is not None
        assert proxy.statistics.usage.counters.reranked == 1

    ((method, params),) = host.asked
    assert method == SAMPLING
    assert "desk__delete_note" in params["messages"][0]["content"]["text"]
    assert order(result) == [before[2], before[0], before[1]]
    assert result["rerank"] == {"used": True, "reason": "ordered by the client's model"}
    assert context.rerank is not None
    assert context.rerank.used
    assert [item.name for item in context.items] == order(result)


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_client_that_declared_nothing_is_not_asked(workshop: Workshop, era: str) -> None:
    before = await plain_order(workshop)
    async with host_of(workshop.config(rerank=ALWAYS), era) as host:
        result = await host.data(SEARCH, {"query": QUERY})

    assert host.asked == []
    assert order(result) == before
    assert "there is no model to ask" in result["rerank"]["reason"]


async def test_a_client_that_refuses_gets_the_unchanged_order(workshop: Workshop) -> None:
    def refuse(params: Any) -> Any:
        raise RpcError(-1, "the user said no")

    before = await plain_order(workshop)
    async with host_of(workshop.config(rerank=ALWAYS), "handshake", CAPABLE, {SAMPLING: refuse}) as host:
        result = await host.data(SEARCH, {"query": QUERY})

    assert order(result) == before
    assert "the user said no" in result["rerank"]["reason"]


@pytest.mark.parametrize("through", [False, True], ids=["search", "call_tool"])
async def test_a_modern_client_is_asked_by_the_result_of_its_search(
    workshop: Workshop, through: bool
) -> None:
    before = await plain_order(workshop)
    call: dict[str, Any] = {"name": SEARCH, "arguments": {"query": QUERY}}
    if through:
        call = {"name": "call_tool", "arguments": call}
    call["_meta"] = {OWN + "format": "json"}
    async with host_of(workshop.config(rerank=ALWAYS), "modern", CAPABLE) as host:
        asked = await host.request("tools/call", call)
        ((key, question),) = asked["inputRequests"].items()
        answers = {"inputResponses": {key: sampled("2")}, "requestState": asked["requestState"]}
        result = await host.request("tools/call", call | answers)

    assert asked["resultType"] == "input_required"
    assert question["method"] == SAMPLING
    assert order(data_of(result)) == [before[1], before[0], before[2]]


async def test_a_modern_client_that_answers_late_gets_the_unchanged_order(workshop: Workshop) -> None:
    before = await plain_order(workshop)
    call = {"name": SEARCH, "arguments": {"query": QUERY}, "_meta": {OWN + "format": "json"}}
    config = workshop.config(rerank=ALWAYS, limits={"rerank_seconds": 0.05})
    async with inside(config) as proxy:
        host = Host(proxy, "modern", CAPABLE)
        asked = await host.request("tools/call", call)
        (key,) = asked["inputRequests"]
        while not await proxy.contexts.requests():
            await anyio.lowlevel.checkpoint()
        answers = {"inputResponses": {key: sampled("3, 2, 1")}, "requestState": asked["requestState"]}
        result = data_of(await host.request("tools/call", call | answers))

    assert order(result) == before
    assert "no answer within 0.05 s" in result["rerank"]["reason"]


async def test_a_filtered_list_asks_no_model(workshop: Workshop) -> None:
    async with host_of(
        workshop.config(rerank=ALWAYS, expose={"mode": "search"}),
        "handshake",
        CAPABLE,
        {SAMPLING: lambda params: sampled("3, 2, 1")},
    ) as host:
        await host.names(**{"io.github.mcp-context-proxy/query": QUERY})

    assert host.asked == []


async def test_with_a_configured_endpoint_the_client_is_not_asked(
    workshop: Workshop, service: ChatService
) -> None:
    service.reply = lambda asked: asked.say("3, 2, 1")
    before = await plain_order(workshop)
    rerank = {"mode": "always", "endpoint": service.url, "model": "small"}
    async with inside(workshop.config(rerank=rerank)) as proxy:
        host = Host(proxy, "modern", CAPABLE)
        result = await host.data(SEARCH, {"query": QUERY})
        explained = await proxy.contexts.explain(QUERY, Kind.TOOL, before[2])

    assert host.asked == []
    assert order(result) == before[::-1]
    assert json.dumps(service.requests[0].data[0]) == json.dumps({"request": QUERY})
    assert explained.rerank == f"ordered by small at {service.url}, as before"


async def test_auto_does_not_ask_about_a_clear_result(workshop: Workshop, service: ChatService) -> None:
    rerank = {"mode": "auto", "endpoint": service.url, "model": "small"}
    async with inside(workshop.config(rerank=rerank)) as proxy:
        result = await Host(proxy, "modern").data(SEARCH, {"query": "desk__empty_note"})

    assert service.requests == []
    assert result["rerank"] == {
        "used": False,
        "reason": "skipped: the query is the name of a tool",
    }
