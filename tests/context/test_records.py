"""Records of served requests stay as they were, for as long as is configured."""

from pathlib import Path
from typing import Any

import anyio
from support.proxies import inside
from support.raw_client import PATIENCE
from support.servers import Workshop, tool

from mcp_context_proxy.context import RequestContext


def config(workshop: Workshop, store: Path | str, **more: Any) -> Path:
    workshop.server("work", tools=[tool("commit", "Record changes in git"), tool("clock", "Tell the time")])
    return workshop.config(store={"path": str(store)}, **more)


async def built(path: Path, *queries: str) -> list[RequestContext]:
    async with inside(path) as proxy:
        return [await proxy.contexts.build(query) for query in queries]


async def later(path: Path) -> list[RequestContext]:
    async with inside(path) as proxy:
        return await proxy.contexts.requests()


async def test_a_request_context_rebuilt_from_the_store_is_what_was_served(workshop: Workshop) -> None:
    path = config(workshop, workshop.folder / "store.sqlite3")
    served = await built(path, "record my changes", "what time is it")

    async with inside(path) as proxy:
        assert await proxy.contexts.requests() == served[::-1]
        assert await proxy.contexts.request(served[0].id) == served[0]


async def test_proxies_that_share_a_store_list_each_others_requests(workshop: Workshop) -> None:
    path = config(workshop, workshop.folder / "store.sqlite3")
    async with inside(path) as one, inside(path) as other:
        await one.contexts.build("record my changes")
        await one.contexts.build("what time is it")
        served = await other.contexts.build("who changed it")
        with anyio.fail_after(PATIENCE):
            while (found := await one.contexts.requests(limit=1)) != [served]:
                assert found[0].query == "what time is it"


async def test_a_store_in_memory_ends_with_the_process(workshop: Workshop) -> None:
    path = config(workshop, "memory")
    await built(path, "record my changes")

    assert await later(path) == []


async def test_requests_are_not_stored_if_that_is_off(workshop: Workshop) -> None:
    store = workshop.folder / "store.sqlite3"
    path = config(workshop, store, context={"keep_requests": False})
    async with inside(path) as proxy:
        served = await proxy.contexts.build("my secret plan")
        assert await proxy.contexts.requests() == [served]

    assert await later(path) == []
    assert b"secret plan" not in store.read_bytes()


async def test_only_the_latest_requests_are_kept(workshop: Workshop) -> None:
    path = config(workshop, workshop.folder / "store.sqlite3", limits={"requests_kept": 2})
    served = await built(path, "one", "two", "three")

    assert await later(path) == [served[2], served[1]]


async def test_old_requests_are_deleted(workshop: Workshop) -> None:
    path = config(workshop, workshop.folder / "store.sqlite3", limits={"requests_age_seconds": 1e-6})
    await built(path, "one")
    await built(path, "two")

    assert "one" not in [context.query for context in await later(path)]
