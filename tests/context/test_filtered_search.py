"""Filtered searches: their results, their refusals, and the answer where nothing is left."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.proxies import inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.context import Overrides
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.selection import SearchAnswer
from mcp_context_proxy.context.session import Session
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import Kind, SearchFilters

from .conftest import document

READS = {"readOnlyHint": True, "openWorldHint": False}


@pytest.fixture(scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    workshop = Workshop(tmp_path_factory.mktemp("filters"))
    workshop.server(
        "files",
        tools=[
            tool("read_file", "Read the contents of a file from disk", annotations=READS),
            tool("write_file", "Write the contents of a file to disk"),
            tool("run_python", "Run a Python script on files"),
        ],
        settings={
            "category": "Office",
            "tags": ["desk"],
            "tools": {"write_file": {"tags": ["risky"], "category": "storage"}},
        },
    )
    workshop.server(
        "mail",
        tools=[
            tool("read_inbox", "Read the email messages in the inbox", annotations=READS),
            tool("send_mail", "Send an email message to a recipient"),
        ],
    )
    workshop.server("away").settings = {"url": "http://127.0.0.1:9/mcp", "category": "far"}
    rules = workshop.folder / "rules"
    document(rules, "mailing", "Every email message ends with our address.", tags="[post]")
    documents = [{"kind": "rule", "path": str(rules)}]
    async with inside(workshop.config(documents=documents), patience=None) as opened:
        yield opened


async def search(contexts: ContextEngine, query: str, **asked: Any) -> SearchAnswer:
    return await contexts.select(query, origin="search", scope=Scope(None, SearchFilters(**asked)))


def names(selected: SearchAnswer) -> set[str]:
    found = selected.found
    return {result.item.name for result in (*found.results, *found.near_misses)}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"server": "files"}, {"read_file", "write_file", "run_python"}),
        ({"category": "office"}, {"read_file", "run_python"}),
        ({"category": "STORAGE"}, {"write_file"}),
        ({"category": "mail"}, {"read_inbox", "send_mail"}),
        ({"tags": ("desk", "read")}, {"read_file"}),
        ({"tags": ("Risky",)}, {"write_file"}),
        ({"any_tags": ("risky", "send")}, {"write_file", "send_mail"}),
        ({"any_tags": ("post", "send")}, {"mailing", "send_mail"}),
        ({"language": "python"}, {"run_python"}),
        ({"read_only": True}, {"read_file", "read_inbox", "mailing"}),
        ({"exclude_destructive": True}, {"read_file", "read_inbox", "mailing"}),
        ({"open_world": True}, {"write_file", "run_python", "send_mail"}),
        ({"open_world": False, "server": "mail"}, {"read_inbox"}),
        ({"category": "rule"}, {"mailing"}),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
async def test_only_tools_that_meet_every_filter_are_found(
    proxy: Proxy, asked: dict[str, Any], expected: set[str]
) -> None:
    """The query has something of everything."""
    query = "Read and write the contents of a file. Send an email message. Run a Python script. "
    query += "End every email message with our address."

    assert names(await search(proxy.contexts, query, **asked)) == expected


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"server": "male"}, "there is no server 'male'. Did you mean 'mail'? There are: files, mail, away"),
        ({"category": "offices"}, "there is no category 'offices'. Did you mean 'office'"),
        ({"tags": ("desk", "raed")}, "there is no tag 'raed'. Did you mean 'read'"),
        ({"any_tags": ("desk", "sendd")}, "there is no tag 'sendd'. Did you mean 'send'"),
        (
            {"language": "pyton"},
            "there is no language 'pyton'. Did you mean 'python'? There are: python",
        ),
        ({"category": "x" * 1000}, f"there is no category '{'x' * 100}'. There are: far, mail"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_an_unknown_filter_value_is_refused_with_the_nearest_one(
    proxy: Proxy, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnknownFilterError) as refused:
        await search(proxy.contexts, "read a file", **asked)

    assert str(refused.value).startswith(said)


async def test_the_server_of_a_filter_may_be_written_in_any_case(proxy: Proxy) -> None:
    selected = await search(proxy.contexts, "read a file", server=" Files")

    assert {one.item.server for one in selected.found.results} == {"files"}
    assert selected.context.filters == {"server": "files"}


async def test_filter_values_of_an_unavailable_server_are_known_but_match_nothing(proxy: Proxy) -> None:
    selected = await search(proxy.contexts, "read the contents of a file", category="far")

    assert selected.found.results == ()
    assert selected.found.tools.considered == 0
    assert selected.found.filter_note is not None
    assert selected.found.filter_note.startswith(
        "No item meets the filters (category far). Left out by them: files__read_file (by category)"
    )


async def test_if_nothing_fits_after_filtering_the_excluded_tools_are_named_with_the_filter(
    proxy: Proxy,
) -> None:
    query = "Send an email message to a recipient"
    selected = await search(proxy.contexts, query, server="files", read_only=True)

    assert selected.found.results == ()
    note = selected.found.filter_note
    assert note is not None
    assert note.startswith(
        "Nothing fits among the 1 item that the filters leave (server files, read_only true). "
        "Left out by them: mail__send_mail (by server, read_only)"
    )
    assert [result.item.name for result in selected.found.near_misses] == ["read_file"]


async def test_filters_that_leave_a_fitting_tool_are_not_mentioned(proxy: Proxy) -> None:
    selected = await search(proxy.contexts, "read the contents of a file", read_only=True)

    assert selected.found.filter_note is None
    assert selected.found.excluded == ()


async def test_expansion_respects_the_filters(proxy: Proxy) -> None:
    session = Session()
    await proxy.contexts.select("write the contents of a file", session)
    for tool_ in proxy.catalog.snapshot.tools.values():
        session.called(tool_, b"{}", proxy.contexts.result_reading)
    scope = Scope(None, SearchFilters(read_only=True))

    selected = await proxy.contexts.select("read the contents of a file", session, scope=scope)

    found = {item.name for item in selected.context.of(Kind.TOOL)}
    assert found == {"files__read_file", "mail__read_inbox"}


async def test_a_repeated_query_gets_the_cached_answer_and_its_own_record(proxy: Proxy) -> None:
    lookups = proxy.search.lookups["search_results"]
    first = await search(proxy.contexts, "read all of my email messages")
    hits, misses = lookups.hits, lookups.misses

    second = await search(proxy.contexts, "read all of my email messages")

    assert (lookups.hits, lookups.misses) == (hits + 1, misses)
    assert second.found == first.found
    assert second.context.id != first.context.id
    assert second.context.items == first.context.items
    assert await proxy.contexts.request(second.context.id) == second.context


async def test_a_different_query_is_searched_anew(proxy: Proxy) -> None:
    query, lookups = "write something into a file", proxy.search.lookups["search_results"]
    session = Session()
    proxy.contexts.add(session, Kind.TOOL, "files__write_file")
    proxy.contexts.remove(session, Kind.TOOL, "files__write_file")
    misses = lookups.misses

    await search(proxy.contexts, query)
    await search(proxy.contexts, f"{query}.")
    await search(proxy.contexts, query, read_only=True)
    await search(proxy.contexts, query, min_success_rate=0.5, strict=True)
    await proxy.contexts.select(query, scope=Scope(frozenset({Kind.TOOL})))
    await proxy.contexts.select(query, overrides=Overrides(expansion_depth=1))
    removed = await proxy.contexts.select(query, session)

    assert lookups.misses == misses + 7
    assert "write_file" not in names(removed)
