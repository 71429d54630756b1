"""New tools rank a little higher in searches, and nowhere else."""

import time

from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import DefinitionRow

QUERY = "count the apples in the basket"
DAY = 86_400.0


async def test_of_two_equal_tools_a_search_names_the_new_one_first(workshop: Workshop) -> None:
    store, now = workshop.folder / "store.sqlite3", time.time()
    names = ("apples_one", "apples_two")
    workshop.server("desk", tools=[tool(name, "Count the apples in the basket") for name in names])
    with open_store(store) as opened:
        ages = zip(names, (now, now - 20 * DAY), strict=True)
        rows = [DefinitionRow("desk", name, "f", 10, first) for name, first in ages]
        opened.statistics.put_definitions("desk", rows)
    config = workshop.config(store={"path": str(store)})
    async with inside(config) as proxy:
        found = await Host(proxy, "handshake").data("search_available_tools", {"query": QUERY})
        context = await proxy.contexts.build(QUERY)

    results = found["results"]
    assert [one["name"] for one in results] == ["desk__apples_one", "desk__apples_two"]
    assert [one["why"].endswith("; new here") for one in results] == [True, False]
    assert [item.name for item in context.items] == ["desk__apples_two", "desk__apples_one"]
