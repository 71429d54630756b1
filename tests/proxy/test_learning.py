"""Learning from live calls: the query that a call is attributed to, and the effect on the next search."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config.tables import ClientConfig
from mcp_context_proxy.learning import Signal, moved
from mcp_context_proxy.store.memory import Pair
from mcp_context_proxy.trust import Principal, Profile, Role

SEARCH = "search_available_tools"
QUERY = "let the others know that I shall be late"
TOOLS = [
    tool("post_message", "Send a message to a channel"),
    tool("set_status", "Change what is shown beside your name"),
    *(tool(f"report_{n}", f"Report number {n} about sales") for n in range(6)),
]
CALLS = {"fails": [{"result": {"content": [], "isError": True}}]}


def configured(workshop: Workshop, **tables: Any) -> Path:
    tools = [*TOOLS, tool("fails", "Let the others know of a failure")]
    workshop.server("s", tools=tools, calls=CALLS)
    return workshop.config(expose={"mode": "search"}, **tables)


@pytest.fixture
async def proxy(workshop: Workshop) -> AsyncIterator[Proxy]:
    async with inside(configured(workshop)) as opened:
        yield opened


async def pairs(proxy: Proxy) -> list[Pair]:
    assert proxy.search.use_recorder is not None
    assert proxy.search.learned is not None
    await proxy.search.use_recorder.flush()
    return list(proxy.search.learned.pairs)


async def found(host: Host, query: str = QUERY, **more: Any) -> list[str]:
    answer = await host.data(SEARCH, {"query": query, **more})
    return [result["name"] for result in answer["results"] or answer["near_misses"]]


async def test_a_tool_that_was_found_and_used_is_learned_for_its_query(proxy: Proxy, host: Host) -> None:
    names = await found(host)
    used = names[-1]
    await host.call(used)
    (pair,) = await pairs(proxy)

    assert (pair.query, pair.tool, pair.confidence) == (QUERY, ("s", used.partition("__")[2]), 0.75)


@pytest.mark.parametrize("query", ["elimina la fila 4 de la hoja", "zeige mir alle offenen Issues"])
async def test_a_request_that_is_understood_as_other_words_is_learned_as_well(
    proxy: Proxy, host: Host, query: str
) -> None:
    before = await found(host, query)
    used = next(name for name in before[::-1] if "report" in name)
    await host.call("call_tool", {"name": used, "arguments": {}})
    await pairs(proxy)

    assert before[0] != used
    assert (await found(host, query))[0] == used


async def test_the_next_search_finds_it_better_and_says_why(proxy: Proxy, host: Host) -> None:
    before = await found(host)
    used = before[-1]
    await host.call("call_tool", {"name": used, "arguments": {}})
    await pairs(proxy)
    answer = await host.data(SEARCH, {"query": "let others know I shall be late"})
    ranks = {result["name"]: rank for rank, result in enumerate(answer["results"])}

    assert ranks[used] < before.index(used)
    (result,) = [result for result in answer["results"] if result["name"] == used]
    assert "used before for a similar request" in result["why"]
    assert result["learned"] > 0


async def test_the_goal_of_a_call_is_learned_and_never_reaches_the_server(
    proxy: Proxy, host: Host, workshop: Workshop
) -> None:
    goal = "apologise to my team for being late"
    await host.call("call_tool", {"name": "s__post_message", "arguments": {"text": "x"}, "goal": goal})
    (pair,) = await pairs(proxy)

    assert (pair.query, pair.tool) == (goal, ("s", "post_message"))
    assert pair.confidence == 0.5, "nobody had found it, but the call says what it is for"
    assert goal not in json.dumps(workshop.servers["s"].ledger.entries())


async def test_a_call_that_fails_teaches_nothing(proxy: Proxy, host: Host) -> None:
    await found(host)
    await host.call("s__fails")

    assert await pairs(proxy) == []


async def test_a_call_without_any_request_before_it_teaches_nothing(proxy: Proxy, host: Host) -> None:
    await host.call("s__post_message")

    assert await pairs(proxy) == []


async def test_in_a_session_a_tool_that_was_not_found_is_learned_weakly_for_the_latest_query(
    proxy: Proxy,
) -> None:
    host = Host(proxy, "handshake")
    names = await found(host, "report about sales", top_n=3)
    assert "s__set_status" not in names
    await host.call("s__set_status")
    (pair,) = await pairs(proxy)

    assert (pair.query, pair.tool, pair.confidence) == ("report about sales", ("s", "set_status"), 0.25)


async def test_without_a_session_a_call_belongs_to_the_latest_request_that_showed_the_tool(
    proxy: Proxy,
) -> None:
    host = Host(proxy, "modern")
    assert "s__post_message" in await found(host, "send a message to a channel", top_n=1)
    assert "s__post_message" not in await found(host, "report number 3 about sales", top_n=1)
    await host.call("s__post_message")
    await host.call("s__set_status")
    (pair,) = await pairs(proxy)

    assert (pair.query, pair.tool) == ("send a message to a channel", ("s", "post_message"))


async def test_calls_with_a_context_handle_belong_to_one_session(proxy: Proxy) -> None:
    host = Host(proxy, "modern")
    answer = await host.data("set_context", {"query": QUERY})
    context_id = answer["context_id"]
    await host.call("s__set_status", **{"io.github.mcp-context-proxy/context": context_id})
    (pair,) = await pairs(proxy)

    assert (pair.query, pair.tool) == (QUERY, ("s", "set_status"))


@pytest.mark.parametrize("way", ["requests", "handles", "connections"])
async def test_one_person_who_teaches_everybody_counts_once_a_day(workshop: Workshop, way: str) -> None:
    """Ten people have used one tool for a request; an eleventh uses another one, as often as they can."""
    used, pushed = ("s", "post_message"), ("s", "set_status")
    both = "send a message to a channel and change what is shown beside your name"

    async def use(proxy: Proxy, name: str, tool: tuple[str, str], way: str, query: str = both) -> None:
        rights = Principal(name, Role.USE).within(Profile("team", ClientConfig(learn=True)))
        host = Host(proxy, "handshake" if way == "connections" else "modern", rights=rights)
        meta = {}
        if way == "handles":
            context_id = (await host.data("set_context", {"query": query}))["context_id"]
            meta = {"io.github.mcp-context-proxy/context": context_id}
        await host.call(SEARCH, {"query": query}, **meta)
        await host.call("__".join(tool), **meta)

    async with inside(configured(workshop, clients={"team": {"learn": True}})) as proxy:
        for number in range(10):
            await use(proxy, f"person {number}", used, "requests")
        before = {pair.tool: pair for pair in await pairs(proxy)}
        for number in range(40):
            await use(proxy, "mallory", pushed, way, both + "!" * number)
        after = {pair.tool: pair for pair in await pairs(proxy)}

    assert (before[used].uses, before[used].owner) == (10, "")
    assert after[pushed].uses == 1
    assert after[used].confidence == pytest.approx(moved(before[used].confidence, Signal.PASSED_OVER))


async def test_pairs_survive_a_restart_and_end_with_the_store(workshop: Workshop) -> None:
    store = workshop.folder / "store.sqlite3"
    config = configured(workshop, store={"path": str(store)})
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")
        before = await found(host)
        await host.call(before[-1])
        await pairs(proxy)
    async with inside(config) as proxy:
        after = await found(Host(proxy, "handshake"))
    for file in workshop.folder.glob("store.sqlite3*"):
        file.unlink()
    async with inside(config) as proxy:
        without = await found(Host(proxy, "handshake"))

    assert after.index(before[-1]) < before.index(before[-1])
    assert without == before


async def test_learning_that_is_switched_off_neither_ranks_nor_learns(workshop: Workshop) -> None:
    store = {"path": str(workshop.folder / "store.sqlite3")}
    async with inside(configured(workshop, store=store)) as proxy:
        host = Host(proxy, "handshake")
        before = await found(host)
        await host.call(before[-1])
        await pairs(proxy)
    async with inside(configured(workshop, store=store, learning={"enabled": False})) as proxy:
        host = Host(proxy, "handshake")
        off = await found(host)
        await host.call("s__set_status")

        assert proxy.search.learned is None
        assert off == before
        assert len(proxy.store.learned.all()) == 1


async def test_queries_can_be_stored_without_their_text(workshop: Workshop) -> None:
    config = configured(
        workshop,
        store={"path": str(workshop.folder / "store.sqlite3")},
        learning={"store_queries": False},
        context={"keep_requests": False},
    )
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")
        names = await found(host)
        await host.call(names[-1])
        await pairs(proxy)
        why = (await host.data(SEARCH, {"query": QUERY}))["results"]

    kept = b"".join(file.read_bytes() for file in workshop.folder.glob("store.sqlite3*"))
    assert QUERY.encode() not in kept
    assert any("used before for a similar request" in result["why"] for result in why)
