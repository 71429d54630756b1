"""Tokens of definitions are counted once, as long as the catalog has them."""

from collections.abc import AsyncIterator

import pytest
from msgspec import Raw
from support.proxies import inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.web.inventory import TokenCounts, all_tools


@pytest.fixture
async def proxy(workshop: Workshop) -> AsyncIterator[Proxy]:
    workshop.server("s", tools=[tool(f"tool_{n}", f"Does {n}") for n in range(20)])
    async with inside(workshop.config(expose={"mode": "all"})) as opened:
        yield opened


async def test_a_list_of_tools_counts_each_definition_once_and_again_when_it_is_new(
    proxy: Proxy,
) -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    counts = TokenCounts(count)
    first = all_tools(proxy, counts)
    once = len(counted)
    second = all_tools(proxy, counts)

    assert once == 20
    assert len(counted) == once
    assert second == first
    assert counts.of(Raw(b'{"name":"another"}')) > 0
    assert len(counted) == once + 1
