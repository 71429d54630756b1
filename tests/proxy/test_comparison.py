"""Requests with and without learned pairs side by side, and the figures about both."""

from collections.abc import AsyncIterator

import pytest
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.context import Mode, RequestContext

SEARCH = "search_available_tools"
QUERY = "let the others know that I shall be late"
TOOLS = [
    tool("post_message", "Send a message to a channel"),
    tool("set_status", "Change what is shown beside your name"),
    *(tool(f"report_{n}", f"Report number {n} about sales") for n in range(6)),
]


@pytest.fixture
async def proxy(workshop: Workshop) -> AsyncIterator[Proxy]:
    workshop.server("s", tools=TOOLS)
    config = workshop.config(expose={"mode": "search"}, learning={"ab_share": 0.5})
    async with inside(config) as opened:
        yield opened


async def taught(proxy: Proxy) -> str:
    """Teach that the last tool that is found for the query is the one that is meant; return its name."""
    host = Host(proxy, "handshake")
    answer = await host.data(SEARCH, {"query": QUERY})
    name: str = (answer["results"] or answer["near_misses"])[-1]["name"]
    await host.call(name)
    assert proxy.search.use_recorder is not None
    await proxy.search.use_recorder.flush()
    return name


async def asked_by_many(proxy: Proxy) -> dict[str, list[RequestContext]]:
    """Requests by arm, of sessions that ask until there are some in both."""
    arms: dict[str, list[RequestContext]] = {"learned": [], "plain": []}
    while min(map(len, arms.values())) < 3:
        host = Host(proxy, "handshake")
        await host.data(SEARCH, {"query": QUERY})
        await host.data(SEARCH, {"query": QUERY})
        assert host.session is not None
        contexts = await proxy.contexts.requests(host.session.id)
        assert contexts[0].arm is not None
        assert contexts[0].arm == contexts[1].arm, "a session was flipped mid-way"
        arms[contexts[0].arm] += contexts
    return arms


async def test_a_share_of_the_sessions_is_answered_without_what_was_learned_and_recorded(
    proxy: Proxy,
) -> None:
    name = await taught(proxy)
    arms = await asked_by_many(proxy)

    def modes(arm: str) -> set[Mode]:
        return {item.include_mode for one in arms[arm] for item in one.items if item.name == name}

    assert modes("learned") == {Mode.LEARNED}
    assert Mode.LEARNED not in modes("plain")
    assert all(one.options.learned is (one.arm == "learned") for one in (*arms["learned"], *arms["plain"]))


async def test_what_is_used_in_each_arm_is_counted_every_tool_once(proxy: Proxy) -> None:
    await asked_by_many(proxy)
    host = Host(proxy, "handshake")
    found = [one["name"] for one in (await host.data(SEARCH, {"query": "a report about sales"}))["results"]]
    assert len(found) > 1
    for name in (found[0], found[1], found[0]):
        await host.call(name)
    assert proxy.usage is not None
    await proxy.usage.flush()
    (row,) = [one for one in proxy.store.statistics.compared(0.0) if one.chosen is not None]
    trial = proxy.statistics.reports.trial(0.0, 86_400.0)

    assert (row.chosen, row.rank, row.uses, row.results) == (found[0], 1, 2, len(found))
    assert host.session is not None
    assert row.session == host.session.id
    of_arm = trial.learned if row.arm == "learned" else trial.plain
    assert of_arm.precision is not None
    assert of_arm.precision.value > 0
    assert min(trial.learned.requests, trial.plain.requests) >= 4


async def test_a_context_that_is_not_recorded_is_in_no_arm(proxy: Proxy) -> None:
    looked = await proxy.contexts.build(QUERY, remember=False)

    assert (looked.arm, looked.options.learned) == (None, True)


async def test_without_a_share_nothing_is_compared(workshop: Workshop) -> None:
    workshop.server("s", tools=TOOLS)
    async with inside(workshop.config(expose={"mode": "search"})) as proxy:
        context = await proxy.contexts.build(QUERY)

        assert (context.arm, context.options.learned) == (None, True)
