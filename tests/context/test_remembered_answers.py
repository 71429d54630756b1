"""Answers that are given again are never outdated, whatever has changed."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from support.proxies import inside
from support.raw_client import PATIENCE
from support.servers import Workshop, tool

from mcp_context_proxy import Catalog, ContextEngine
from mcp_context_proxy import tool as library_tool
from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config import load
from mcp_context_proxy.context.search import ANSWERS, SECONDS, ResultCache, Scope
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import SearchFilters
from mcp_context_proxy.learning import Signal, Use


class Clock:
    """Shows the text that it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_cached_answer_is_given_to_the_same_query_only() -> None:
    remembered = ResultCache[str]()
    first = remembered.get("now", "a")
    remembered.put("now", "a", "answer")

    assert (first, remembered.get("now", "a"), remembered.get("now", "b")) == (None, "answer", None)
    assert (remembered.lookups.hits, remembered.lookups.misses) == (1, 2)


def test_a_changed_state_empties_the_cache() -> None:
    remembered = ResultCache[str]()
    remembered.get("before", "a")
    remembered.put("before", "a", "answer")

    assert remembered.get("after", "a") is None
    assert remembered.get("before", "a") is None


def test_an_answer_from_an_earlier_state_is_not_cached() -> None:
    remembered = ResultCache[str]()
    remembered.get("before", "a")
    remembered.get("after", "b")
    remembered.put("before", "a", "answer of before")

    assert remembered.get("after", "a") is None


def test_a_cached_answer_expires() -> None:
    clock = Clock()
    remembered = ResultCache[str](clock)
    remembered.get("now", "a")
    remembered.put("now", "a", "answer")

    clock.now = SECONDS - 1
    kept = remembered.get("now", "a")
    clock.now = SECONDS
    assert (kept, remembered.get("now", "a")) == ("answer", None)


def test_the_least_recently_used_answer_is_evicted() -> None:
    remembered = ResultCache[int]()
    remembered.get("now", 0)
    for number in range(ANSWERS):
        remembered.put("now", number, number)
    remembered.get("now", 0)
    remembered.put("now", ANSWERS, ANSWERS)

    assert remembered.get("now", 0) == 0
    assert remembered.get("now", 1) is None
    assert remembered.get("now", ANSWERS) == ANSWERS


async def test_another_catalog_is_searched_anew() -> None:
    catalog = Catalog([library_tool("send_mail", "Send an email message")])
    with ContextEngine(catalog) as engine:
        before = await engine.build("read an old message")
        catalog.replace([library_tool("read_mail", "Read an old message")])
        after = await engine.build("read an old message")

    assert "read_mail" not in [item.name for item in before.items]
    assert [item.name for item in after.items] == ["read_mail"]


async def names(proxy: Proxy, query: str) -> list[str]:
    selected = await proxy.contexts.select(query)
    return [result.item.name for result in (*selected.found.results, *selected.found.near_misses)]


async def test_a_newly_learned_pair_counts_at_once(workshop: Workshop) -> None:
    tools = [tool(f"report_{number}", f"Report number {number} about sales") for number in range(8)]
    workshop.server("s", tools=[*tools, tool("post_message", "Send a message to a channel")])
    query, lookups = "let the others know that I shall be late", "search_results"
    async with inside(workshop.config()) as proxy:
        learned = proxy.search.learned
        assert learned is not None
        await names(proxy, query)
        again = await names(proxy, query)
        hits = proxy.search.lookups[lookups].hits
        use = Use(query, ("s", "report_7"), Signal.FOUND, "a session")
        await anyio.to_thread.run_sync(learned.learn, use)
        taught = await names(proxy, query)

        assert hits == 1
        assert proxy.search.lookups[lookups].hits == hits
        assert again[0] != "report_7"
        assert taught[0] == "report_7"
        learned.forget(lambda _pair: True)
        assert await names(proxy, query) == again


async def test_a_changed_document_is_found_by_its_new_text(workshop: Workshop) -> None:
    rules = workshop.folder / "rules"
    rules.mkdir()
    page = rules / "house.md"
    page.write_text("# House\n\nWater the plants on Monday.\n", encoding="utf-8")
    workshop.server("s", tools=[tool("clock", "Tell the time")])
    config = workshop.config(documents=[{"kind": "rule", "path": str(rules)}])
    query = "who repairs the bicycles"
    async with inside(config) as proxy:
        before = await names(proxy, query)
        page.write_text("# House\n\nThe bicycles are repaired by Ann.\n", encoding="utf-8")
        with anyio.fail_after(PATIENCE):
            while not any("Ann" in one.text for one in proxy.catalog.snapshot.documents.values()):
                await anyio.lowlevel.checkpoint()
            selected = await proxy.contexts.select(query)

    chunks = [result.chunk for result in selected.found.results]
    assert before == ["clock", "house"]
    assert any("Ann" in chunk for chunk in chunks)


async def test_answers_during_indexing_are_not_cached(workshop: Workshop) -> None:
    tools: list[Any] = [tool(f"make_{n}", f"Make {n} pieces of thing number {n}") for n in range(100)]
    workshop.server("s", tools=tools)
    config = workshop.config(limits={"indexing_wait_seconds": 0.001})
    async with inside(Path(config)) as proxy:
        first = await proxy.contexts.select("make some pieces")
        await proxy.searcher.index(proxy.catalog.snapshot)
        after = await proxy.contexts.select("make some pieces")

    assert first.context.note is not None
    assert after.context.note is None
    assert after.found.tools.method == "hybrid"


async def test_changed_tags_count_at_once_and_restart_nothing(workshop: Workshop) -> None:
    server = workshop.server("s", tools=[tool("send_mail", "Send a mail"), tool("read_mail", "Read a mail")])
    scope = Scope(None, SearchFilters(tags=("careful",)))
    config = workshop.config()
    async with inside(config) as proxy:
        with pytest.raises(UnknownFilterError):
            await proxy.contexts.select("a mail", scope=scope)
        await names(proxy, "a mail")
        server.settings["tools"] = {"send_mail": {"tags": ["careful"]}}
        await proxy.apply(load(workshop.config(), environ={}))
        await proxy.wait_first_connect()
        selected = await proxy.contexts.select("a mail", scope=scope)

    assert [result.item.name for result in selected.found.results] == ["send_mail"]
    assert len(server.ledger.entries("start")) == 1
