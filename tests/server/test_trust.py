"""A session's list is filtered only where that is to be relied on, by the pairs that use has taught."""

from collections.abc import Sequence

import anyio.to_thread
import pytest
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.context import Mode
from mcp_context_proxy.learning import Signal, Use
from mcp_context_proxy.learning.tier import ENOUGH

SEARCH = "search_available_tools"
QUERY_KEY = {"io.github.mcp-context-proxy/query": "send a mail to my boss"}
MAIL = "send a mail to my boss"
THINGS = ("apples", "bridges", "clouds", "dragons", "engines", "forests", "guitars", "hammers", "islands")
DEEDS = ("paint", "count", "sell", "weigh", "photograph", "describe", "clean")


@pytest.fixture(autouse=True)
def desk(workshop: Workshop) -> None:
    described = {"send_mail": "Send a mail to somebody"} | {
        f"tool_{number:02}": f"Measures the gauge number {number} of the plant" for number in range(40)
    }
    workshop.server("desk", tools=[tool(*one) for one in described.items()])


async def learn(proxy: Proxy, queries: Sequence[str], name: str, sessions: int = 1) -> None:
    tier = proxy.search.learned
    assert tier is not None

    def teach() -> None:
        for session in range(sessions):
            for number, query in enumerate(queries):
                tier.learn(Use(query, ("desk", name), Signal.FOUND, f"{name} {session} {number}"))

    await anyio.to_thread.run_sync(teach)


def other_needs() -> list[str]:
    return [f"{deed} the {thing}" for thing in THINGS for deed in DEEDS][: ENOUGH + 10]


def config(workshop: Workshop, **more: object) -> object:
    return workshop.config(
        expose={"mode": "search", "list_all_below": 1000}, search={"top_n": 1, "include_score": 1.0}, **more
    )


async def test_a_new_installation_lists_only_found_tools(workshop: Workshop) -> None:
    async with inside(config(workshop)) as proxy:
        host = Host(proxy, "handshake")
        await host.call(SEARCH, {"query": MAIL})
        names = await host.names()
        (context,) = await proxy.contexts.requests()

    assert context.confidence is None
    assert [name for name in names if name.startswith("desk")] == ["desk__send_mail"]


@pytest.mark.parametrize("by", ["search", "list"])
async def test_at_low_confidence_the_list_is_filled_up(workshop: Workshop, by: str) -> None:
    async with inside(config(workshop)) as proxy:
        await learn(proxy, other_needs(), "tool_00")
        host = Host(proxy, "handshake")
        if by == "search":
            found = await host.data(SEARCH, {"query": MAIL})
            assert [one["name"] for one in found["results"]] == ["desk__send_mail"]
        names = await host.names(**(QUERY_KEY if by == "list" else {}))
        (context,) = await proxy.contexts.requests()

    assert context.confidence is not None
    assert context.confidence < 0.3
    filled = [item for item in context.items if item.include_mode is Mode.UNCERTAIN]
    assert {item.name for item in context.items} == {name for name in names if name.startswith("desk")}
    assert 5 < len(filled) < 40
    assert context.tokens <= 1000 < context.tokens + 2 * filled[-1].tokens
    assert names[0] == SEARCH


async def test_at_high_confidence_the_list_is_filtered(workshop: Workshop) -> None:
    alike = [MAIL, "send my boss a mail", "mail my boss something"]
    async with inside(config(workshop)) as proxy:
        await learn(proxy, other_needs(), "tool_00")
        await learn(proxy, alike, "send_mail", sessions=12)
        host = Host(proxy, "handshake")
        await host.call(SEARCH, {"query": MAIL})
        names = await host.names()
        (context,) = await proxy.contexts.requests()

    assert context.confidence is not None
    assert context.confidence > 0.6
    assert [name for name in names if name.startswith("desk")] == ["desk__send_mail"]


async def test_max_tokens_limits_the_filled_up_list(workshop: Workshop) -> None:
    async with inside(config(workshop, context={"max_tokens": 300})) as proxy:
        await learn(proxy, other_needs(), "tool_00")
        await Host(proxy, "handshake").call(SEARCH, {"query": MAIL})
        (context,) = await proxy.contexts.requests()

    assert context.tokens <= 300
    assert any(item.include_mode is Mode.UNCERTAIN for item in context.items)


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_searches_of_one_server_or_without_a_session_are_not_filled_up(
    workshop: Workshop, era: str
) -> None:
    async with inside(config(workshop)) as proxy:
        await learn(proxy, other_needs(), "tool_00")
        asked = {"query": MAIL} | ({"server": "desk"} if era == "handshake" else {})
        await Host(proxy, era).call(SEARCH, asked)
        (context,) = await proxy.contexts.requests()

    assert [item.name for item in context.items] == ["desk__send_mail"]


async def test_the_list_of_a_session_stays_within_its_limit_after_many_uncertain_searches(
    workshop: Workshop,
) -> None:
    async with inside(config(workshop)) as proxy:
        await learn(proxy, other_needs(), "tool_00")
        host = Host(proxy, "handshake")
        for number in (7, 21, 33):
            await host.call(SEARCH, {"query": f"measure gauge number {number} of the plant"})
        listed = [name for name in await host.names() if name.startswith("desk")]
        costs = {item.name: item.tokens for one in await proxy.contexts.requests() for item in one.items}

    assert len(listed) > 5
    # What a search finds is always listed, also where there is no room left.
    assert sum(costs[name] for name in listed) <= 1000 + 2 * max(costs.values())
