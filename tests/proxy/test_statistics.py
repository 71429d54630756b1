"""Calls and searches are counted, kept and summed up over everything that shares a store."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
from support.proxies import Host, host_of, inside
from support.raw_client import RpcError
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.statistics import ToolFigures
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.statistics.report import Reports, SearchFigures
from mcp_context_proxy.store.statistics import SearchRow

SEARCH = "search_available_tools"
QUERY = "send a message to a channel"
TOOLS = [
    tool("post_message", "Send a message to a channel"),
    tool("post_letter", "Send a letter by post"),
    tool("set_status", "Change what is shown beside your name"),
    tool("fails", "Let the others know of a failure"),
    tool("refuses", "Never does anything"),
    *(tool(f"report_{n}", f"Report number {n} about sales") for n in range(6)),
]
CALLS = {
    "fails": [{"result": {"content": [], "isError": True}}],
    "refuses": [{"error": {"code": -32603, "message": "no"}}],
}


def configured(workshop: Workshop, **tables: Any) -> Path:
    if "s" not in workshop.servers:
        workshop.server("s", tools=TOOLS, calls=CALLS)
    return workshop.config(expose={"mode": "search"}, **tables)


@pytest.fixture
async def proxy(workshop: Workshop) -> AsyncIterator[Proxy]:
    async with inside(configured(workshop)) as opened:
        yield opened


def usage(proxy: Proxy) -> UsageRecorder:
    assert proxy.statistics.usage is not None
    return proxy.statistics.usage


async def figures(proxy: Proxy, name: str) -> ToolFigures | None:
    await usage(proxy).flush()
    return usage(proxy).figures.get(("s", name))


async def searches(proxy: Proxy) -> tuple[SearchFigures, list[SearchRow]]:
    await usage(proxy).flush()
    rows = proxy.store.statistics.searches(100)
    return Reports(proxy.store.statistics).searches(0.0), rows


async def until_counted(proxy: Proxy) -> SearchFigures:
    """Searches, once all tools are known."""
    while usage(proxy).counting:
        await anyio.lowlevel.checkpoint()
    return (await searches(proxy))[0]


async def find(host: Host, query: str = QUERY) -> list[str]:
    answer = await host.data(SEARCH, {"query": query})
    return [result["name"] for result in answer["results"]]


async def test_a_call_is_counted_with_its_latency_and_size(proxy: Proxy, host: Host) -> None:
    for _ in range(3):
        await host.call("s__set_status")
    await host.call("call_tool", {"name": "s__set_status"})
    found = await figures(proxy, "set_status")

    assert found is not None
    assert (found.calls, found.errors, found.success_rate) == (4, 0, 1.0)
    assert 0 < found.p50_ms <= found.p95_ms
    assert found.mean_ms > 0
    assert found.result_bytes > 10
    assert await figures(proxy, "report_1") is None
    assert list(usage(proxy).figures) == [("s", "set_status")]


async def test_tool_errors_and_protocol_errors_are_both_counted(proxy: Proxy, host: Host) -> None:
    await host.call("s__fails")
    with pytest.raises(RpcError):
        await host.call("s__refuses")
    failing, refusing = await figures(proxy, "fails"), await figures(proxy, "refuses")

    assert failing is not None
    assert refusing is not None
    assert (failing.calls, failing.errors) == (refusing.calls, refusing.errors) == (1, 1)
    assert usage(proxy).counters.servers["s"].errors == 2


async def test_calls_of_unknown_tools_are_not_counted(proxy: Proxy, host: Host) -> None:
    await host.call("s__nothing")
    await usage(proxy).flush()

    assert proxy.store.statistics.tools() == []
    assert usage(proxy).counters.servers == {}


async def test_a_search_is_counted_and_whether_its_first_result_was_used(proxy: Proxy, host: Host) -> None:
    first = (await find(host))[0]
    await host.call(first)
    await host.call(first)
    await find(host, "quarterly numbers nobody asked for")
    counted, rows = await searches(proxy)

    assert (counted.searches, counted.used, counted.accepted) == (2, 1, 1)
    (row,) = [row for row in rows if row.query == QUERY]
    assert (row.top, row.chosen, row.rank, row.origin, row.reranked) == (first, first, 1, "search", False)
    assert row.results >= 1
    assert 0 < row.ms < 60_000


async def test_a_search_whose_second_result_was_used_is_not_counted_as_accepted(
    proxy: Proxy, host: Host
) -> None:
    names = await find(host, "report about sales")
    await host.call(names[1])
    counted, (row,) = await searches(proxy)

    assert (counted.used, counted.accepted) == (1, 0)
    assert (row.chosen, row.rank) == (names[1], 2)


async def test_a_failed_call_does_not_count_as_use_of_a_search(proxy: Proxy, host: Host) -> None:
    assert "s__fails" in await find(host, "let the others know of a failure")
    await host.call("s__fails")
    counted, (row,) = await searches(proxy)

    assert (counted.used, row.chosen) == (0, None)


async def test_uses_are_attributed_even_if_learning_is_off(workshop: Workshop) -> None:
    async with inside(configured(workshop, learning={"enabled": False})) as proxy:
        host = Host(proxy, "modern")
        await host.call((await find(host))[0])
        counted, _ = await searches(proxy)

        assert proxy.search.use_recorder is None
        assert counted.accepted == 1


async def test_tokens_shown_and_saved_are_known_once_all_tools_are_counted(proxy: Proxy, host: Host) -> None:
    await find(host)
    counted = await until_counted(proxy)
    definitions = proxy.store.statistics.definitions()

    assert counted.tokens.behind == sum(row.tokens for row in definitions) > counted.tokens.shown > 0
    assert {row.tool for row in definitions} == {entry["name"] for entry in TOOLS}
    assert usage(proxy).counters.saved == counted.tokens.saved


async def test_if_everything_is_listed_no_tokens_are_saved(workshop: Workshop) -> None:
    workshop.server("s", tools=TOOLS, calls=CALLS)
    async with inside(workshop.config(expose={"mode": "all"})) as proxy:
        await find(Host(proxy, "modern"))
        counted = await until_counted(proxy)

        assert (counted.searches, counted.tokens.shown, counted.tokens.behind) == (1, 0, 0)


async def test_counts_go_on_after_a_restart_and_over_two_proxies_on_one_store(workshop: Workshop) -> None:
    config = configured(workshop, store={"path": str(workshop.folder / "store.sqlite3")})
    async with inside(config) as proxy:
        await Host(proxy, "modern").call("s__set_status")
    async with inside(config) as one, inside(config) as other:
        await Host(one, "modern").call("s__set_status")
        await usage(one).flush()
        await Host(other, "modern").call("s__set_status")
        await usage(other).flush()
        await usage(one).refresh()
        first, second = await figures(one, "set_status"), await figures(other, "set_status")
        (kept,) = one.store.statistics.tools()

    assert first is not None
    assert second is not None
    assert (first.calls, kept.calls) == (3, 3)


async def test_pending_counts_are_written_when_the_proxy_stops(workshop: Workshop) -> None:
    config = configured(workshop, store={"path": str(workshop.folder / "store.sqlite3")})
    async with host_of(config, "modern") as host:
        await find(host)
        await host.call("s__set_status")
    async with inside(config) as proxy:
        counted, rows = await searches(proxy)
        found = await figures(proxy, "set_status")

    assert counted.searches == len(rows) == 1
    assert found is not None
    assert found.calls == 1


async def test_statistics_can_be_switched_off_as_a_whole(workshop: Workshop) -> None:
    path = workshop.folder / "store.sqlite3"
    async with inside(
        configured(workshop, store={"path": str(path)}, statistics={"enabled": False})
    ) as proxy:
        host = Host(proxy, "modern")
        await host.call((await find(host))[0])
        assert proxy.statistics.usage is None
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = ("tool_usage", "search_usage", "searches", "definitions")
        rows = [connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables]
    connection.close()

    assert rows == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "tables",
    [{"learning": {"store_queries": False}}, {"context": {"keep_requests": False}}],
    ids=["learning", "requests"],
)
async def test_searches_can_be_stored_without_their_text(workshop: Workshop, tables: dict[str, Any]) -> None:
    async with inside(configured(workshop, **tables)) as proxy:
        await find(Host(proxy, "modern"))
        _, (row,) = await searches(proxy)

    assert row.query is None
    assert len(row.key) == 32


async def test_with_a_failing_store_calls_go_on_and_counts_are_written_later(
    workshop: Workshop,
) -> None:
    path = workshop.folder / "store.sqlite3"
    async with inside(configured(workshop, store={"path": str(path)})) as proxy:
        host = Host(proxy, "modern")
        await host.call("s__set_status")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("ALTER TABLE tool_usage RENAME TO away")
        connection.close()
        await host.call("s__set_status")
        in_memory = await figures(proxy, "set_status")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("ALTER TABLE away RENAME TO tool_usage")
        connection.close()
        await usage(proxy).flush()
        (kept,) = proxy.store.statistics.tools()

    assert in_memory is not None
    assert (in_memory.calls, kept.calls) == (2, 2)


async def test_with_a_damaged_store_calls_go_on_without_statistics(workshop: Workshop) -> None:
    path = workshop.folder / "store.sqlite3"
    async with inside(configured(workshop, store={"path": str(path)})) as proxy:
        host = Host(proxy, "modern")
        await host.call("s__set_status")
        await usage(proxy).flush()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE tool_usage SET calls = 'many'")
        connection.close()
        await host.call("s__set_status")
        await usage(proxy).flush()
        await usage(proxy).refresh()
        await host.call("s__post_message")
        found = await figures(proxy, "post_message")

    assert found is not None
    assert found.calls == 1
