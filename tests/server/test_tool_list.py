"""The answer to ``tools/list``: stable by default, filtered if the request carries a query."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.proxies import Host, host_of, inside
from support.raw_client import OWN, RpcError
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy

OURS = ["search_available_tools", "call_tool", "call_read_only_tool"]
QUERY = {OWN + "query": "translate a text into another language"}
SUBJECTS = {
    "translate": "Translate a text from one language into another",
    "weather": "Forecast of the weather for a place, by the hour",
    "invoice": "Write an invoice to a customer and send it",
    "resize": "Resize a picture to a width and a height in pixels",
    "commit": "Record staged changes in a git repository",
    "calendar": "Add an appointment to the calendar",
    "stock": "Price of a share at the stock exchange",
    "playlist": "Songs of a playlist, in the order they are played",
}


def tools() -> list[dict[str, Any]]:
    return [tool(name, description) for name, description in SUBJECTS.items()]


@pytest.fixture(scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    """More than is listed whole, one tool in every list, one in none."""
    workshop = Workshop(tmp_path_factory.mktemp("lists"))
    settings = {"tools": {"weather": {"include": "always"}, "stock": {"include": "manual"}}}
    workshop.server("work", tools=tools(), settings=settings)
    async with inside(workshop.config(expose={"list_all_below": 0}), patience=None) as opened:
        yield opened


async def test_by_default_the_list_has_the_proxys_own_and_always_included_tools(host: Host) -> None:
    assert await host.names() == [*OURS, "work__weather"]


async def test_a_query_in_the_request_adds_fitting_tools(host: Host) -> None:
    names = await host.names(**QUERY)

    assert names[: len(OURS) + 1] == [*OURS, "work__weather"]
    assert "work__translate" in names
    assert "work__stock" not in names
    assert len(names) < len(OURS) + len(SUBJECTS)


async def test_the_order_never_follows_the_score(host: Host) -> None:
    names = await host.names(**{OWN + "query": "weather, invoice, translate a text, add an appointment"})

    more = names[len(OURS) + 1 :]
    assert more == sorted(more)


async def test_a_list_that_depends_on_a_query_must_not_be_cached(proxy: Proxy) -> None:
    answer = await Host(proxy, "modern").request("tools/list", **QUERY)

    assert (answer["ttlMs"], answer["cacheScope"]) == (0, "private")


async def test_the_base_list_may_be_cached(proxy: Proxy) -> None:
    answer = await Host(proxy, "modern").request("tools/list")

    assert answer["ttlMs"] > 0
    assert answer["cacheScope"] == "private"


@pytest.mark.parametrize("query", ["", "   ", None, 7, ["a"], {}], ids=repr)
async def test_an_invalid_query_is_ignored(host: Host, query: Any) -> None:
    assert await host.names(**{OWN + "query": query}) == [*OURS, "work__weather"]


async def test_a_huge_query_is_cut(host: Host) -> None:
    assert (await host.names(**{OWN + "query": "translate " * 6_000}))[: len(OURS)] == OURS


async def test_set_context_returns_a_handle_that_selects_the_same_tools_in_any_request(proxy: Proxy) -> None:
    host = Host(proxy, "modern")
    answer = await host.data("set_context", {"query": QUERY[OWN + "query"]})

    by_handle = await host.request("tools/list", **{OWN + "context": answer["context_id"]})
    other = await Host(proxy, "handshake").names(**{OWN + "context": answer["context_id"]})

    names = [entry["name"] for entry in by_handle["tools"]]
    assert names == other == await host.names(**QUERY)
    assert (by_handle["ttlMs"], by_handle["cacheScope"]) == (0, "private")


async def test_handles_cannot_be_guessed(proxy: Proxy) -> None:
    given = {
        (await Host(proxy, "modern").data("set_context", {"query": "a text"}))["context_id"] for _ in range(3)
    }

    assert len(given) == 3
    assert min(map(len, given)) >= 22  # 128 bits in base 64


@pytest.mark.parametrize("handle", ["no-such-handle", "x" * 10_000])
async def test_an_unknown_handle_is_refused(host: Host, handle: str) -> None:
    with pytest.raises(RpcError, match="set_context") as refused:
        await host.names(**{OWN + "context": handle})

    assert refused.value.code == -32602


async def test_a_query_beats_a_handle(proxy: Proxy) -> None:
    host = Host(proxy, "modern")
    answer = await host.data("set_context", {"query": "resize a picture"})
    handle = {OWN + "context": answer["context_id"]}

    assert await host.names(**QUERY, **handle) == await host.names(**QUERY)


async def test_no_search_changes_the_list_of_a_modern_client(proxy: Proxy) -> None:
    host = Host(proxy, "modern")
    before = await host.names()

    await host.call("search_available_tools", {"query": "translate a text"})
    await host.call("set_context", {"query": "resize a picture"})

    assert await host.names() == before


async def test_the_list_of_a_handshake_session_grows_with_its_searches(proxy: Proxy) -> None:
    host = Host(proxy, "handshake")

    await host.call("search_available_tools", {"query": "translate a text", "top_n": 1})
    first = await host.names()
    await host.call("search_available_tools", {"query": "resize a picture", "top_n": 1})
    second = await host.names()

    assert "work__translate" in first
    assert second[: len(first)] == first, "listed tools keep their place"
    assert "work__resize" in second[len(first) :]


@pytest.mark.parametrize(
    ("tokens", "added"),
    [(0, []), (200, ["invoice", "translate"]), (3_000, ["invoice", "translate", "resize"])],
)
async def test_searches_add_to_a_list_only_as_many_tokens_as_are_configured(
    workshop: Workshop, tokens: int, added: list[str]
) -> None:
    # Each definition has some 80 tokens by estimate.
    described = {name: f"{text}. {'Further details. ' * 12}" for name, text in SUBJECTS.items()}
    workshop.server("work", tools=[tool(*one) for one in described.items()])
    expose = {"list_all_below": 0, "found_tokens": tokens}
    async with host_of(
        workshop.config(expose=expose, search={"top_n": 1, "include_score": 1.0}), "handshake"
    ) as host:
        for subject in ("invoice", "translate", "resize"):
            await host.call("search_available_tools", {"query": SUBJECTS[subject]})
        names = await host.names()
        answer = await host.call("call_tool", {"name": "work__resize", "arguments": {}})

    assert names == [*OURS, *(f"work__{name}" for name in added)]
    assert not answer.get("isError")


async def test_one_session_does_not_see_what_another_searched(proxy: Proxy) -> None:
    await Host(proxy, "handshake").call("search_available_tools", {"query": "translate a text"})

    assert await Host(proxy, "handshake").names() == [*OURS, "work__weather"]


async def test_a_manual_tool_is_never_found_but_can_be_called(host: Host) -> None:
    found = await host.data("search_available_tools", {"query": "price of a share", "top_n": 50})
    called = await host.call("work__stock", {"text": "x"})

    assert "work__stock" not in [each["name"] for each in found["results"]]
    assert "isError" not in called


async def test_a_tool_for_the_interface_of_an_app_alone_is_shown_to_no_model(
    workshop: Workshop,
) -> None:
    def visible(*to: str) -> dict[str, Any]:
        return {"_meta": {"ui": {"visibility": [*to]}}}

    workshop.server(
        "pdf",
        tools=[
            tool("save_page", "Save a page of a document", **visible("app")),
            tool("save_note", "Save a note about a document", **visible("app")),
            tool("save_copy", "Save a copy of a document", **visible("model", "app")),
        ],
        settings={"tools": {"save_note": {"include": "agent"}}},
    )
    async with host_of(workshop.config(expose={"mode": "search"}), "modern") as host:
        found = await host.data("search_available_tools", {"query": "save a page of a document", "top_n": 9})
        called = await host.call("pdf__save_page")

    assert {each["name"] for each in found["results"]} == {f"pdf__save_{what}" for what in ("note", "copy")}
    assert "isError" not in called


async def test_every_tool_can_be_called_without_being_listed(host: Host) -> None:
    for name in SUBJECTS:
        for called in (f"work__{name}", name):
            result = await host.call(called, {"text": name})
            assert json.loads(result["content"][0]["text"])["name"] == name


async def test_a_small_catalog_is_listed_completely(workshop: Workshop, era: str) -> None:
    workshop.server("work", tools=tools())
    async with host_of(workshop.config(), era) as host:
        expected = sorted(f"work__{name}" for name in SUBJECTS)

        assert await host.names() == expected
        await host.call("search_available_tools", {"query": "translate a text"})
        assert await host.names() == expected


async def test_mode_all_lists_everything_whatever_its_size(workshop: Workshop, era: str) -> None:
    workshop.server("work", tools=tools())
    async with inside(workshop.config(expose={"mode": "all", "list_all_below": 0})) as proxy:
        assert await Host(proxy, era).names() == sorted(f"work__{name}" for name in SUBJECTS)


async def test_mode_search_lists_nothing_more_however_small_the_catalog(workshop: Workshop, era: str) -> None:
    workshop.server("work", tools=tools(), settings={"tools": {"commit": {"include": "always"}}})
    async with inside(workshop.config(expose={"mode": "search"})) as proxy:
        assert await Host(proxy, era).names() == [*OURS, "work__commit"]


async def test_a_schema_that_an_api_of_models_refuses_is_listed_in_another_form_and_searched_as_it_is(
    workshop: Workshop,
) -> None:
    text = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {"route": text, "file": text, "uids[]": {"type": "array"}},
        "anyOf": [{"required": ["route"]}, {"required": ["file"]}],
    }
    workshop.server("maps", tools=[{**tool("impact", "Impact of a change."), "inputSchema": schema}])
    async with host_of(workshop.config(expose={"mode": "all"}), "modern") as host:
        [listed] = (await host.request("tools/list"))["tools"]
        found = await host.call(
            "search_available_tools", {"query": "impact of a change", "include_schema": True}
        )

    assert listed["inputSchema"] == {"type": "object", "properties": {"route": text, "file": text}}
    assert listed["description"] == "Impact of a change. Takes uids[], too."
    assert "anyOf" in str(found)
    assert "uids[]" in str(found)


async def test_an_always_included_server_is_listed_except_for_its_exceptions(workshop: Workshop) -> None:
    settings = {"include": "always", "tools": {"commit": {"include": "agent"}}}
    workshop.server("work", tools=tools(), settings=settings)
    async with inside(workshop.config(expose={"mode": "search"})) as proxy:
        names = await Host(proxy, "modern").names()

    assert names == [*OURS, *sorted(f"work__{name}" for name in SUBJECTS if name != "commit")]


async def test_without_prefix_tools_are_called_and_listed_by_their_own_names(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("one"), tool("both"), tool("call_tool")])
    workshop.server("play", tools=[tool("two"), tool("both")])
    async with host_of(workshop.config(expose={"prefix": False}), "modern") as host:
        names = await host.names()
        called = await host.call("work__call_tool", {"text": "x"})

    assert names == ["one", "play__both", "two", "work__both", "work__call_tool"]
    assert json.loads(called["content"][0]["text"])["name"] == "call_tool"


async def test_the_proxys_own_definitions_depend_only_on_the_configuration(workshop: Workshop) -> None:
    def own(answer: dict[str, Any]) -> str:
        return json.dumps(answer["tools"][: len(OURS)])

    workshop.server("work", tools=tools())
    workshop.server("gone", at_start=[{"exit": 1}])
    async with inside(workshop.config(), settled=False) as proxy:
        at_once = own(await Host(proxy, "modern").request("tools/list"))
        await proxy.wait_first_connect()
        settled = own(await Host(proxy, "handshake").request("tools/list"))
    async with inside(workshop.config()) as proxy:
        again = own(await Host(proxy, "modern").request("tools/list"))

    assert at_once == settled == again


async def test_invalid_entries_are_withheld_one_by_one(workshop: Workshop) -> None:
    odd: list[Any] = [
        None,
        "text",
        [],
        {},
        {"name": "", "inputSchema": {"type": "object"}},
        {"name": 7, "inputSchema": {"type": "object"}},
        {"name": "no\nprint", "inputSchema": {"type": "object"}},
        {"name": "none"},
        {"name": "listed", "inputSchema": []},
        {"name": "huge", "inputSchema": {"type": "object", "x": "x" * 300_000}},
    ]
    workshop.server("odd", tools=[*odd, tool("good"), tool("good", "again"), tool("fine")])
    async with inside(workshop.config()) as proxy:
        names = await Host(proxy, "modern").names()
        findings = proxy.catalog.snapshot.findings

    assert names == ["odd__fine", "odd__good"]
    assert len(findings) == len(odd) + 1


async def test_a_list_in_pages_is_read_to_its_end(workshop: Workshop) -> None:
    workshop.server("paged", tools=tools(), page_size=3)
    async with inside(workshop.config()) as proxy:
        names = await Host(proxy, "modern").names()

    assert len(names) == len(SUBJECTS)


async def test_a_list_that_never_ends_is_cut(workshop: Workshop) -> None:
    page = {"tools": [tool("one")], "nextCursor": "again"}
    workshop.server("endless", on={"tools/list": [{"result": page}]})
    workshop.server("good", tools=[tool("two")])
    async with inside(workshop.config()) as proxy:
        names = await Host(proxy, "modern").names()

    assert names == ["endless__one", "good__two"]


async def test_a_tool_named_like_one_of_the_proxys_own_does_not_replace_it(workshop: Workshop) -> None:
    workshop.server("a", tools=[tool("search_available_tools"), tool("call_tool")])
    async with host_of(workshop.config(), "modern") as host:
        names = await host.names()
        ours = await host.call("search_available_tools", {"query": "anything"})

    assert names == ["a__call_tool", "a__search_available_tools"]
    assert ours["content"][0]["text"].startswith(("The ", "None of 2 tools"))
