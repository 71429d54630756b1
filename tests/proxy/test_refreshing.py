"""The catalog is taken apart in threads: no stop and no other server waits for the end of a long list."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
from support.ledger import until
from support.proxies import Host, inside
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.app.proxy import CatalogRefresh
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.config.settings import DocumentsConfig
from mcp_context_proxy.context.search import Found
from mcp_context_proxy.context.selection import SearchAnswer
from mcp_context_proxy.downstream.listing import LISTS, LONG_LIST, ServerListing
from mcp_context_proxy.items import Kind
from mcp_context_proxy.retrieval import Ranking
from mcp_context_proxy.server.search_answers import search_notes, search_text
from mcp_context_proxy.system.threads import in_thread

PATIENCE = 30.0


class Slow(tuple[bytes, ...]):
    """A list of which the second entry comes once the stop has been asked for."""

    def __new__(cls, entry: bytes, number: int) -> Slow:
        made = super().__new__(cls, [entry] * number)
        made.reached, made.asked, made.taken = threading.Event(), threading.Event(), 0
        return made

    reached: threading.Event
    asked: threading.Event
    taken: int

    def __iter__(self) -> Iterator[bytes]:
        for entry in super().__iter__():
            self.taken += 1
            if self.taken == 2:
                self.reached.set()
                assert self.asked.wait(PATIENCE)
            yield entry


ENTRIES = {
    "tools": b'{"name":"x","inputSchema":{"type":"object"}}',
    "prompts": b'{"name":"x"}',
    "resources": b'{"uri":"note://1","name":"x"}',
    "templates": b'{"uriTemplate":"note://{id}","name":"x"}',
    "skills": b'{"uri":"skill://x/SKILL.md","frontmatter":{"name":"x","description":"y"},"resources":[]}',
}


def test_every_kind_of_list_is_tried() -> None:
    assert set(ENTRIES) == set(LISTS)


@each("name", ENTRIES)
async def test_a_stop_does_not_wait_for_a_large_list(name: str) -> None:
    slow = Slow(ENTRIES[name], 1_000)
    client: Any = SimpleNamespace(
        name="evil",
        config=ServerConfig(name="evil", command="x"),
        listing=ServerListing(**{name: cast(Any, slow)}),
        introduction=SimpleNamespace(instructions=""),
    )
    library = DocumentLibrary([], Limits())
    catalog = Catalog(
        ExposeConfig(), Limits(), lambda: [client], library, configured=lambda: frozenset({"evil"})
    )
    before = catalog.snapshot
    refresh = CatalogRefresh(catalog, cast(Any, None), library, asyncio.Event(), first_list_seconds=0.0)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(refresh.run)
            assert await in_thread(slow.reached.wait, PATIENCE)
            group.cancel_scope.cancel()
            slow.asked.set()

    assert slow.taken == 2
    assert catalog.snapshot is before
    slow.asked.set()
    catalog.refresh()
    assert catalog.snapshot is not before


async def test_a_first_list_waits_for_documents_that_are_read_but_not_in_the_catalog_yet(
    tmp_path: Path,
) -> None:
    (tmp_path / "style.md").write_text("# Style\n\nShort names.\n", encoding="utf-8")
    slow = Slow(ENTRIES["resources"], 3)
    client: Any = SimpleNamespace(
        name="large",
        config=ServerConfig(name="large", command="x"),
        listing=ServerListing(resources=slow),
        introduction=SimpleNamespace(instructions=""),
    )
    library = DocumentLibrary([DocumentsConfig(kind=Kind.RULE, path=tmp_path)], Limits())
    catalog = Catalog(
        ExposeConfig(), Limits(), lambda: [client], library, configured=lambda: frozenset({"large"})
    )
    fleet: Any = SimpleNamespace(clients={})
    refresh = CatalogRefresh(catalog, fleet, library, asyncio.Event(), first_list_seconds=PATIENCE)
    listed = anyio.Event()

    async def first_list() -> None:
        await refresh.wait_for_first_lists()
        listed.set()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(refresh.run)
            assert await in_thread(slow.reached.wait, PATIENCE)
            group.start_soon(first_list)
            await anyio.wait_all_tasks_blocked()
            had_to_wait = not listed.is_set()
            slow.asked.set()
            await listed.wait()
            group.cancel_scope.cancel()

    assert had_to_wait
    assert len(catalog.snapshot.documents) == 1


async def test_an_answer_says_that_rules_and_references_are_not_read_yet(tmp_path: Path) -> None:
    (tmp_path / "style.md").write_text("# Style", encoding="utf-8")
    library = DocumentLibrary([DocumentsConfig(kind=Kind.RULE, path=tmp_path)], Limits())
    catalog = Catalog(ExposeConfig(), Limits(), list, library, configured=frozenset)
    fleet: Any = SimpleNamespace(off={}, unlisted=[], remembered=[], stale=[])
    nothing = Ranking("style", (), 0, "lexical", None, False, (), 0.0)
    context: Any = SimpleNamespace(query="style", dropped=())

    def told() -> bool:
        catalog.refresh()
        answer = SearchAnswer(context, Found(nothing, None, catalog.snapshot))
        return any("still being read" in note.text for note in search_notes(answer, fleet))

    assert told()
    library.reload()
    assert not told()


def test_an_answer_names_the_servers_whose_lists_are_not_in_the_catalog_yet() -> None:
    """Thousands of tools take seconds to read; that there are none is no answer meanwhile."""
    client: Any = SimpleNamespace(name="large")
    library, configured = DocumentLibrary([], Limits()), frozenset({"large"})
    catalog = Catalog(ExposeConfig(), Limits(), lambda: [client], library, configured=lambda: configured)
    fleet: Any = SimpleNamespace(off={}, unlisted=[], remembered=[], stale=[])
    context: Any = SimpleNamespace(query="make an invoice", dropped=())
    nothing = Ranking("make an invoice", (), 0, "lexical", None, False, (), 0.0)
    answer = SearchAnswer(context, Found(nothing, None, catalog.snapshot))

    told = search_text(answer, search_notes(answer, fleet), count=len)

    assert told.startswith("Note: Not searched: large.")
    assert "No server" not in told


async def test_a_snapshot_is_published_while_the_long_list_of_another_server_is_read_ahead() -> None:
    tools = Slow(ENTRIES["tools"], 3)
    large, honest = (
        SimpleNamespace(
            name=name,
            config=ServerConfig(name=name, command="x"),
            introduction=SimpleNamespace(instructions=""),
            listing=listing,
        )
        for name, listing in (
            ("large", ServerListing()),
            ("honest", ServerListing(tools=(ENTRIES["tools"],))),
        )
    )
    catalog = Catalog(
        ExposeConfig(),
        Limits(),
        lambda: cast(Any, [large, honest]),
        DocumentLibrary((), Limits()),
        configured=lambda: frozenset({"large", "honest"}),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, catalog.read_ahead, large.config, tools)
        assert await in_thread(tools.reached.wait, PATIENCE)
        meanwhile = await in_thread(catalog.refresh)
        tools.asked.set()
    large.listing = ServerListing(tools=tools)
    after = await in_thread(catalog.refresh)

    assert list(meanwhile.tools) == ["honest__x"]
    assert sorted(after.tools) == ["honest__x", "large__x"]
    assert tools.taken == len(tools)  # once


async def test_a_server_is_called_while_the_long_list_of_another_one_is_read(workshop: Workshop) -> None:
    go = workshop.flag("go")
    tools = [tool(f"t{number}") for number in range(LONG_LIST)]
    workshop.server("large", tools=tools, on={"tools/list": [{"wait": str(go)}]})
    workshop.server("honest", tools=[tool("hello")])
    begun, finish = threading.Event(), threading.Event()
    async with inside(workshop.config(), settled=False) as proxy:

        def read(config: ServerConfig, listed: tuple[bytes, ...]) -> None:
            begun.set()
            assert finish.wait(PATIENCE)
            proxy.catalog.read_ahead(config, listed)

        proxy.fleet.shared.read_ahead = read
        go.touch()
        assert await in_thread(begun.wait, PATIENCE)
        called = await Host(proxy, "handshake").call("honest__hello")
        meanwhile = {one.server for one in proxy.catalog.snapshot.tools.values()}
        finish.set()
        await until(lambda: len(proxy.catalog.snapshot.tools) == LONG_LIST + 1)

    assert "isError" not in called
    assert meanwhile == {"honest"}
