"""Searches that go by how calls went: from a call through the proxy to the search that leaves it out."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy

SEARCH = "search_available_tools"
TOOLS = [tool(name, "Send a letter to a friend") for name in ("good", "fails", "unused")]
CALLS = {"fails": [{"result": {"content": [], "isError": True}}]}


@pytest.fixture
async def proxy(workshop: Workshop) -> AsyncIterator[Proxy]:
    workshop.server("post", tools=TOOLS, calls=CALLS)
    async with inside(workshop.config(expose={"mode": "search"})) as opened:
        yield opened


async def found(host: Host, **filters: Any) -> set[str]:
    data = await host.data(SEARCH, {"query": "send a letter", "kinds": ["tool"], **filters})
    return {each["name"].removeprefix("post__") for each in (*data["results"], *data.get("near_misses", []))}


async def called(proxy: Proxy, host: Host, times: int) -> None:
    for _ in range(times):
        for name in ("good", "fails"):
            await host.call(f"post__{name}", {"text": "x"})
    assert proxy.statistics.usage is not None
    await proxy.statistics.usage.flush()


async def test_a_failing_tool_is_filtered_out_from_the_fifth_call_on(proxy: Proxy, host: Host) -> None:
    await called(proxy, host, 4)
    before = await found(host, min_success_rate=0.5)
    strict = await found(host, min_success_rate=0.5, strict=True)
    await called(proxy, host, 1)

    assert before == {"good", "fails", "unused"}
    assert strict == set()
    assert await found(host, min_success_rate=0.5) == {"good", "unused"}
    assert await found(host, min_success_rate=0.5, strict=True) == {"good"}


async def test_a_tool_slower_than_the_filter_allows_is_left_out(proxy: Proxy, host: Host) -> None:
    await called(proxy, host, 1)

    assert await found(host, max_latency_ms=0.000001) == {"unused"}
    assert await found(host, max_latency_ms=3_600_000) == {"good", "fails", "unused"}
    assert await found(host, max_latency_ms=3_600_000, strict=True) == {"good", "fails"}
