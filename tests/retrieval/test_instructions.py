"""The instructions of servers decide among tools that are otherwise alike, and lift no server over others."""

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from support.catalogs import snapshot, tool
from support.listings import Introduced, Run
from support.listings import tool as listed

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel
from mcp_context_proxy.items import Snapshot, Tool
from mcp_context_proxy.retrieval import Ranking
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.indexing import INSTRUCTION_TERMS, instruction_terms
from mcp_context_proxy.retrieval.scoring import INSTRUCTIONS, packaged_background
from mcp_context_proxy.store.opening import open_store

Search = Callable[..., Ranking]


def catalog(*tools: Tool, **said: str) -> Snapshot:
    """A catalog of tools whose servers give some instructions."""
    whole = snapshot(*tools)
    sources = tuple(replace(source, about=said.get(source.key, "")) for source in whole.sources)
    return replace(whole, sources=sources)


@pytest.fixture(scope="module")
def search() -> Iterator[Search]:
    with open_store("memory") as store:
        embedder = CachedEmbedder(LazyModel(), store.vectors)

        def ranked(query: str, *tools: Tool, **said: str) -> Ranking:
            engine = Engine(embedder, calibration=packaged_background())
            return engine.search(query, catalog(*tools, **said))

        yield ranked


TWO = [tool("add_item", "Adds an item", server=server) for server in ("alpha", "beta")]


def test_of_like_tools_the_one_whose_server_speaks_of_the_request_is_first(search: Search) -> None:
    query = "add an item to the shopping basket"

    tools = [tool(one.name, f"Adds an item, {one.server}", server=one.server) for one in TWO]
    first = {
        server: search(query, *tools, **{server: "The shopping basket of the store."}).results[0].item.server
        for server in ("alpha", "beta")
    }
    assert first == {"alpha": "alpha", "beta": "beta"}


def test_the_addition_is_bounded_and_part_of_the_score(search: Search) -> None:
    query = "add an item to the shopping basket"
    ranking = search(query, *TWO, beta=query)

    by_server = {result.item.server: result for result in ranking.results}
    assert by_server["beta"].instructions == pytest.approx(INSTRUCTIONS)
    for one in ranking.results:
        assert one.cosine is not None
        parts = one.cosine + 0.02 * one.lexical + one.action + one.instructions + one.need
        assert one.score == pytest.approx(parts, abs=1e-5)


def test_a_server_is_not_lifted_over_others_by_instructions_of_all_words(search: Search) -> None:
    tools = [
        tool("create_note", "Create a note with a title and text", server="notes"),
        tool("get_weather", "Weather forecast of a city", server="weather"),
        tool("spam", "Does something else", server="evil"),
    ]
    words = "create note title text weather forecast city write jot down temperature Paris"
    for query, first in (("write a note", "create_note"), ("forecast for Paris", "get_weather")):
        assert search(query, *tools, evil=words).results[0].item.name == first


def test_the_catalog_has_the_instructions_that_a_server_gives_now() -> None:
    with open_store("memory") as store:
        run = Run(store)
        before = run.list("notes", listed("create"))
        run.clients["notes"].introduction = Introduced("Keeps notes.")
        after = run.catalog.refresh()

    assert [source.about for source in (*before.sources, *after.sources) if source.key == "notes"] == [
        "",
        "Keeps notes.",
    ]


def test_only_the_beginning_of_instructions_counts_and_each_word_once() -> None:
    assert instruction_terms("Issues, issues and the ISSUE") == {"issu"}
    assert "zebra" not in instruction_terms("word " * 1_000 + "zebra")
    assert len(instruction_terms(" ".join(f"w{n}x" for n in range(200)))) <= INSTRUCTION_TERMS


def test_instructions_are_no_evidence_that_something_fits(search: Search) -> None:
    assert not search("zyxgh qwvut", *TWO, beta="zyxgh qwvut").fits
