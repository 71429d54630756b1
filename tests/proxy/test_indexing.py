"""Indexing as a user meets it: whose tools come first, and that it never holds up the end."""

import sqlite3
import threading
from contextlib import closing

import anyio
from support.embeddings import embedding_service
from support.proxies import Host, command, inside
from support.servers import Workshop, tool
from support.wires import stdio

from mcp_context_proxy.context.indexing import BackgroundIndexing, OnProgress
from mcp_context_proxy.items import Snapshot

SEARCH = "search_available_tools"
MANY = 2_000


async def test_the_servers_that_were_called_most_are_indexed_first(workshop: Workshop) -> None:
    for name in ("alpha", "beta", "gamma"):
        workshop.server(name, tools=[tool(f"tool_{n}", f"Does thing {n}") for n in range(70)])
    with embedding_service() as service:
        table = {"model": "embedder", "endpoint": service.url}
        async with inside(workshop.config(embedding=table)) as proxy:
            host = Host(proxy, "modern")
            for exposed in ("gamma__tool_1", "beta__tool_1", "gamma__tool_2"):
                await host.call(exposed, {})
            await proxy.searcher.index(proxy.catalog.snapshot)

    order = dict.fromkeys(text.split()[0] for text in service.texts if "tool" in text)
    assert list(order) == ["gamma", "beta", "alpha"]


async def test_a_proxy_whose_input_ends_does_not_finish_indexing_first(workshop: Workshop) -> None:
    workshop.server("many", tools=[tool(f"tool_{n}", f"Does thing number {n}") for n in range(MANY)])
    store = workshop.folder / "store.sqlite3"
    config = workshop.config(store={"path": str(store)}, limits={"indexing_wait_seconds": 0.001})
    async with stdio(command(config)) as client:
        await client.until_listed(SEARCH)
        while "indexed" not in (found := await client.data(SEARCH, {"query": "thing"})):
            assert not found["results"]

    with closing(sqlite3.connect(store)) as database:
        ((stored,),) = database.execute("SELECT count(*) FROM vectors")
    assert stored < MANY


async def test_after_a_restart_search_is_prepared_before_the_first_query(workshop: Workshop) -> None:
    store = {"path": str(workshop.folder / "store.sqlite3")}
    workshop.server("first", tools=[tool("alpha")])
    with embedding_service() as service:
        tables = {"store": store, "embedding": {"model": "embedder", "endpoint": service.url}}
        async with stdio(command(workshop.config(**tables))) as client:
            await client.call(SEARCH, {"query": "alpha"})
        workshop.server("second", tools=[tool("beta")])
        async with stdio(command(workshop.config(**tables))) as client:
            await client.until(lambda _: any("beta" in text for text in service.texts))


async def test_without_recent_queries_search_is_not_prepared(workshop: Workshop) -> None:
    store = {"path": str(workshop.folder / "store.sqlite3")}
    workshop.server("first", tools=[tool("alpha")])
    with embedding_service() as service:
        tables = {"store": store, "embedding": {"model": "embedder", "endpoint": service.url}}
        for _ in range(2):
            async with stdio(command(workshop.config(expose={"mode": "search"}, **tables))) as client:
                await client.until_listed(SEARCH)
                await client.call("call_tool", {"name": "first__alpha", "arguments": {}})

    assert service.texts == []


class Slow:
    """An engine whose indexing reports two texts of very many, and gets no further until it is told to."""

    def __init__(self, texts: int) -> None:
        self._texts, self.go_on = texts, threading.Event()

    def index(self, _snapshot: Snapshot, on_progress: OnProgress, _cancelled: object) -> None:
        on_progress(1, self._texts)
        on_progress(2, self._texts)
        self.go_on.wait()

    def indexed(self, _snapshot: Snapshot) -> bool:
        return False


async def test_a_search_does_not_wait_for_indexing_that_will_not_be_ready_in_time() -> None:
    slow, snapshot, patience = Slow(10**15), Snapshot(1, ()), 3600.0
    indexing = BackgroundIndexing(slow, lambda: None)  # type: ignore[arg-type]
    async with anyio.create_task_group() as group:
        group.start_soon(indexing.run)
        await indexing.wait(snapshot, anyio.current_time() + patience, patience, None)
        slow.go_on.set()
        group.cancel_scope.cancel()


async def test_a_search_waits_for_indexing_that_may_be_ready_in_time() -> None:
    slow, snapshot, patience = Slow(3), Snapshot(1, ()), 3600.0
    indexing = BackgroundIndexing(slow, lambda: None)  # type: ignore[arg-type]
    reported = list[int]()

    def report(done: int, _total: int) -> None:
        reported.append(done)
        if done == 2:
            slow.go_on.set()

    async with anyio.create_task_group() as group:
        group.start_soon(indexing.run)
        await indexing.wait(snapshot, anyio.current_time() + patience, patience, report)
        group.cancel_scope.cancel()

    assert reported == [1, 2]
