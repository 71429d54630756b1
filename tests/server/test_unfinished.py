"""A first search answers before everything is indexed, and says so; indexing goes on meanwhile."""

import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel
from msgspec.structs import replace
from support.proxies import Host, inside
from support.raw_client import PATIENCE
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.server.search_answers import AGAIN, search_text

SEARCH = "search_available_tools"
COUNT = 80


@asynccontextmanager
async def impatient(workshop: Workshop, **tables: Any) -> AsyncIterator[Proxy]:
    """A proxy whose searches wait for indexing no longer than a blink."""
    workshop.server("many", tools=[tool(f"tool_{n}", f"Does thing number {n}") for n in range(COUNT)])
    async with inside(workshop.config(limits={"indexing_wait_seconds": 0.001}, **tables)) as proxy:
        yield proxy


@contextmanager
def held(proxy: Proxy) -> Iterator[None]:
    """While somebody else has begun to index and gets no further."""
    reached, go_on = threading.Event(), threading.Event()

    def hold(_done: int, _total: int) -> None:
        reached.set()
        go_on.wait()

    thread = threading.Thread(target=proxy.search.engine.index, args=(proxy.catalog.snapshot, hold))
    thread.start()
    try:
        reached.wait()
        yield
    finally:
        go_on.set()
        thread.join()


async def test_a_search_during_indexing_reports_its_progress(workshop: Workshop, era: str) -> None:
    async with impatient(workshop) as proxy:
        with held(proxy):
            # A search gives up comparing after a moment, and goes on from there when it is repeated.
            found = {"note": ""}
            with anyio.fail_after(PATIENCE):
                while "compared by meaning" not in found["note"]:
                    found = await Host(proxy, era).data(SEARCH, {"query": "thing number 7"})
            result = await Host(proxy, era, principal="another").call(SEARCH, {"query": "thing number 7"})

    note = f"Indexing goes on: of {COUNT} tools, the \\d+ likeliest were compared by meaning."
    assert found["results"][0]["name"] == "many__tool_7"
    assert found["indexed"] == {"done": 0, "total": COUNT}
    assert found["method"] == "hybrid"
    assert re.search(note, found["note"])
    assert re.search(f"Note: {note}", result["content"][0]["text"])


async def test_a_session_is_told_once_that_indexing_goes_on_and_by_no_overview(
    workshop: Workshop, era: str
) -> None:
    async with impatient(workshop) as proxy:
        with held(proxy):
            host, other = Host(proxy, era), Host(proxy, era, principal="another")
            told = [
                (await one.call(SEARCH, {"query": query}))["content"][0]["text"]
                for one, query in ((host, "*"), (host, "thing 7"), (host, "thing 8"), (other, "thing 9"))
            ]

    assert ["Indexing goes on" in text for text in told] == [False, True, False, True]


async def test_during_indexing_a_request_for_something_else_is_told_that_nothing_fits(
    workshop: Workshop,
) -> None:
    workshop.server("time", tools=[tool("convert_time", "Converts a time between zones")])
    async with impatient(workshop) as proxy:
        with held(proxy):
            host = Host(proxy, "modern")
            text = (await host.call(SEARCH, {"query": "translate this to French"}))["content"][0]["text"]
            meant = await host.data(SEARCH, {"query": "convert this to another zone"})

    assert "Indexing goes on" in text
    assert "fits. Nearest:\n- time__convert_time" in text
    assert [one["name"] for one in meant["results"]] == ["time__convert_time"]


async def test_where_not_everything_could_be_searched_nothing_that_fits_means_search_again(
    workshop: Workshop,
) -> None:
    workshop.server("time", tools=[tool("convert_time", "Converts a time between zones")])
    async with inside(workshop.config()) as proxy:
        answer = await proxy.contexts.select("translate this to French")
    tools = answer.found.tools
    texts = [
        search_text(replace(answer, found=replace(answer.found, tools=replace(tools, **more))), count=len)
        for more in ({}, {"indexed": (0, 9)}, {"indexed": (0, 9), "likely": 9})
    ]

    assert [AGAIN in text for text in texts] == [False, True, False]


async def test_during_indexing_a_rule_and_a_skill_are_found_as_afterwards(workshop: Workshop) -> None:
    workshop.server("git", tools=[tool("git_commit", "Records changes to the repository")])
    rules, skill = workshop.folder / "rules", workshop.folder / "skills" / "invoice"
    rules.mkdir()
    skill.mkdir(parents=True)
    (rules / "commits.md").write_text("# How we write commits\nCommit changes in the imperative.\n")
    (rules / "tone.md").write_text("# Tone\nAnswer in German.\n")
    about = "description: Fill in an invoice for a customer from a spreadsheet of hours"
    (skill / "SKILL.md").write_text(f"---\nname: invoice\n{about}\n---\n# Invoice\nRead the hours.\n")
    documents = [{"kind": "rule", "path": str(rules)}, {"path": str(skill.parent)}]
    queries = ("commit my changes", "write an invoice for the customer")

    async def found(proxy: Proxy) -> list[list[str]]:
        host = Host(proxy, "modern")
        return [
            [one["name"] for one in (await host.data(SEARCH, {"query": query}))["results"]]
            for query in queries
        ]

    async with impatient(workshop, documents=documents) as proxy:
        with held(proxy):
            meanwhile = await found(proxy)
        await proxy.searcher.index(proxy.catalog.snapshot)
        afterwards = await found(proxy)

    assert meanwhile == afterwards == [["git__git_commit", "commits"], ["invoice"]]


async def test_indexing_goes_on_after_the_search_has_answered(workshop: Workshop) -> None:
    async with impatient(workshop) as proxy:
        with held(proxy):
            await Host(proxy, "modern").call(SEARCH, {"query": "thing number 7"})
        # Waits for the one under way.
        await proxy.searcher.index(proxy.catalog.snapshot)
        result = await Host(proxy, "modern").data(SEARCH, {"query": "thing number 7"})

    assert result["method"] == "hybrid"
    assert "indexed" not in result


async def test_nothing_is_embedded_before_the_first_search(workshop: Workshop) -> None:
    async with impatient(workshop) as proxy:
        await Host(proxy, "modern").request("tools/list")

        assert not proxy.search.model.loaded
        assert not proxy.search.engine.indexed(proxy.catalog.snapshot)


async def test_with_warm_up_indexing_needs_no_search(workshop: Workshop) -> None:
    workshop.server("some", tools=[tool("forecast", "Forecast of the weather")])
    async with inside(workshop.config(search={"warm_up": True})) as proxy:
        while not proxy.search.engine.indexed(proxy.catalog.snapshot):
            await anyio.lowlevel.checkpoint()
