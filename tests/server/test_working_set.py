"""Tools that are used in several sessions are in everybody's list from the next day on."""

from pathlib import Path
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import pytest
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.context import Mode
from mcp_context_proxy.items import Kind

SEARCH = "search_available_tools"
USED = "desk__send_mail"


@pytest.fixture(autouse=True)
def desk(workshop: Workshop) -> None:
    described = {"send_mail": "Send a mail", "read_mail": "Read the mails", "wipe": "Delete all mails"}
    tools = [tool(*one) for one in described.items()]
    fails = {"read_mail": [{"result": {"content": [], "isError": True}}]}
    workshop.server("desk", tools=tools, calls=fails, settings={"tools": {"wipe": {"include": "manual"}}})


def config(workshop: Workshop, tokens: int = 500) -> Path:
    learning = {"working_set_tokens": tokens} if tokens else {}
    store = {"path": str(workshop.folder / "store.sqlite3")}
    return workshop.config(expose={"mode": "search"}, learning=learning, store=store)


async def use(proxy: Proxy, *names: str, sessions: int = 3) -> None:
    """Call tools, each in sessions of its own, until their cost is known, too."""
    for name in names:
        for _ in range(sessions):
            await Host(proxy, "handshake").call(name)
    while not await anyio.to_thread.run_sync(proxy.store.statistics.definitions):
        await anyio.lowlevel.checkpoint()


async def next_day(proxy: Proxy) -> None:
    """Forget the choice of today: the next proxy chooses as on another day."""

    def forget() -> None:
        with proxy.store.database.transaction() as transaction:
            transaction.execute("DELETE FROM working_sets")

    await anyio.to_thread.run_sync(forget)


def listed(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("desk")]


async def test_tools_used_in_several_sessions_are_listed_from_the_next_day_on(workshop: Workshop) -> None:
    async with inside(config(workshop)) as proxy:
        before = await Host(proxy, "handshake").names()
        await use(proxy, USED, "desk__read_mail", "desk__wipe")
        during = await Host(proxy, "handshake").names()
        await next_day(proxy)
    async with inside(config(workshop)) as proxy:
        after = await Host(proxy, "modern").names()
        result = await Host(proxy, "handshake").data(SEARCH, {"query": "read the mails", "top_n": 1})
        context = await proxy.contexts.request(result["request_id"])

    assert listed(before) == listed(during) == [], "the list does not change while a proxy runs"
    assert listed(after) == [USED], "neither what failed nor what is only called by name"
    assert context is not None
    (item,) = [item for item in context.items if item.name == USED]
    assert item.include_mode is Mode.WORKING_SET
    assert item.why.startswith("used in 3 sessions of the last 30 days")


async def test_by_default_there_is_no_working_set(workshop: Workshop) -> None:
    for _ in range(2):
        async with inside(config(workshop, tokens=0)) as proxy:
            await use(proxy, USED)
            assert listed(await Host(proxy, "handshake").names()) == []


async def test_a_tool_over_the_token_budget_is_not_listed(workshop: Workshop) -> None:
    async with inside(config(workshop)) as proxy:
        await use(proxy, USED)
        await next_day(proxy)
    async with inside(config(workshop, tokens=5)) as proxy:
        assert listed(await Host(proxy, "handshake").names()) == []


async def test_a_session_can_remove_a_tool_of_the_working_set(workshop: Workshop) -> None:
    async with inside(config(workshop)) as proxy:
        await use(proxy, USED)
        await next_day(proxy)
    async with inside(config(workshop)) as proxy:
        host = Host(proxy, "handshake")
        assert host.session is not None
        proxy.contexts.remove(host.session, Kind.TOOL, USED)
        names = await host.names()

    assert listed(names) == []


async def test_using_a_working_set_tool_teaches_nothing_about_queries_that_did_not_find_it(
    workshop: Workshop,
) -> None:
    async with inside(config(workshop)) as proxy:
        await use(proxy, USED)
        await next_day(proxy)
    async with inside(config(workshop)) as proxy:
        host = Host(proxy, "handshake")
        await host.call(SEARCH, {"query": "read the mails", "top_n": 1, "server": "desk"})
        await host.call(USED)
        recorder: Any = proxy.search.use_recorder
        await recorder.flush()
        taught = [pair.tool[1] for pair in proxy.search.learned.pairs]  # type: ignore[union-attr]

    assert taught == []
