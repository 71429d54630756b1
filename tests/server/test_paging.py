"""Lists come on one page, or on pages of a configured size whose cursors are good for that list alone."""

from pathlib import Path
from typing import Any

import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import OWN, RpcError
from support.servers import Workshop, tool

LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


def setup(workshop: Workshop, size: int) -> Path:
    numbers = range(7)
    workshop.server(
        "work",
        tools=[tool(f"t{n}", f"Counts to {n}") for n in numbers],
        resources=[{"uri": f"note://{n}", "name": f"n{n}"} for n in numbers],
        templates=[{"uriTemplate": f"page://{n}/{{id}}", "name": f"p{n}"} for n in numbers],
        prompts=[{"name": f"p{n}"} for n in numbers],
        calls={"t0": [{"set": {"tools": [tool("t0"), *[tool(f"u{n}") for n in numbers]]}}]},
    )
    return workshop.config(expose={"mode": "all", "page_size": size})


async def pages(host: Host, method: str) -> list[list[Any]]:
    found: list[list[Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        result = await host.request(method, cursor)
        found.append(result[LISTS[method]])
        if "nextCursor" not in result:
            return found
        cursor = {"cursor": result["nextCursor"]}


async def test_the_pages_together_are_the_list(workshop: Workshop, era: str) -> None:
    async with host_of(setup(workshop, 3), era) as host:
        found = {method: await pages(host, method) for method in LISTS}
    async with host_of(setup(workshop, 0), era) as host:
        whole = {method: await pages(host, method) for method in LISTS}

    for method, parts in found.items():
        assert [[entry for page in parts for entry in page]] == whole[method]
        assert all(len(page) == 3 for page in parts[:-1])
        assert 1 <= len(parts[-1]) <= 3


@pytest.mark.parametrize("size", [0, 3])
async def test_a_foreign_cursor_is_refused(workshop: Workshop, size: int) -> None:
    async with host_of(setup(workshop, size), "modern") as host:
        for method in LISTS:
            with pytest.raises(RpcError, match="invalid cursor") as refused:
                await host.request(method, {"cursor": "bm9uc2Vuc2U="})
            assert refused.value.code == -32602


async def test_a_cursor_of_a_list_that_has_changed_is_stale(workshop: Workshop, era: str) -> None:
    async with inside(setup(workshop, 3)) as proxy:
        host = Host(proxy, era)
        first = await host.request("tools/list")
        before = proxy.catalog.snapshot.tools.keys()
        await host.call("work__t0")
        await until(lambda: proxy.catalog.snapshot.tools.keys() != before)
        with pytest.raises(RpcError, match="stale cursor") as refused:
            await host.request("tools/list", {"cursor": first["nextCursor"]})

    assert refused.value.code == -32602


async def test_a_cursor_of_another_query_is_stale(workshop: Workshop, era: str) -> None:
    path = setup(workshop, 3)
    path.write_text(path.read_text().replace('mode = "all"', 'mode = "search"'))
    async with host_of(path, era) as host:
        first = await host.request("tools/list", **{OWN + "query": "count to five"})
        with pytest.raises(RpcError, match="stale cursor"):
            await host.request("tools/list", {"cursor": first["nextCursor"]})
