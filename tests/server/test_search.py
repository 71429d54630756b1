"""The answers of the proxy's own tools, as text for models and as data for programs."""

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
from support.proxies import Host, host_of, inside
from support.raw_client import OWN, text_of
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.items import SearchFilters, Tool

SEARCH = "search_available_tools"
OF_CHAT = ("chat", "is the chat server up", "why is chat not working", "status of the chat server")
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Name of the city"},
        "days": {"type": "integer"},
    },
    "required": ["city"],
}


@pytest.fixture(scope="module")
async def proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    workshop = Workshop(tmp_path_factory.mktemp("search"))
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "commit-style.md").write_text(
        "# Commit messages\n\nSay why, in the imperative.", encoding="utf-8"
    )
    references = workshop.folder / "references"
    references.mkdir()
    (references / "billing.md").write_text("# Billing\n\nHow an invoice is numbered.", encoding="utf-8")
    workshop.server(
        "weather",
        tools=[
            tool("forecast", "Forecast of the weather for a city", inputSchema=SCHEMA),
            tool("tides", "Times of high and low water at a harbour"),
        ],
    )
    workshop.server("code", tools=[tool("commit", "Record staged changes in a git repository")])
    documents = [
        {"kind": "rule", "path": str(rules)},
        {"kind": "reference", "path": str(references)},
    ]
    async with inside(workshop.config(documents=documents), patience=None) as opened:
        yield opened


async def definitions(host: Host) -> dict[str, Any]:
    return {entry["name"]: entry for entry in (await host.request("tools/list"))["tools"]}


async def test_a_search_of_an_indexed_catalog_is_answered_without_a_task(proxy: Proxy) -> None:
    host = Host(proxy, "handshake")
    await proxy.searcher.index(proxy.catalog.snapshot)
    await host.call(SEARCH, {"query": "weather"})
    await host.call(SEARCH, {"query": "high water"})

    assert not host.had_task


QUERIES: list[dict[str, Any]] = [
    {"query": "will it rain in Paris"},
    {"query": "will it rain", "top_n": 1},
    {"query": "will it rain", "include_schema": False},
    {"query": "commit", "server": "code"},
    {"query": "commit messages", "kinds": ["rule"]},
    {"query": "invoice number", "kinds": ["reference", "tool"]},
    {"query": "xyzzy qwertyuiop"},
    {"query": "will it rain", "category": "weather", "tags": ["weather"], "any_tags": ["weather", "code"]},
    {"query": "will it rain", "read_only": True, "exclude_destructive": True, "open_world": False},
    {"query": "will it rain", "max_latency_ms": 100, "min_success_rate": 0.9, "strict": True},
    {"query": "🙂 \u2028"},
    {"query": "the of and"},
    {"query": "x" * 20_000},
]


@each("arguments", QUERIES)
async def test_a_search_is_answered_with_text_alone_and_with_data_on_request(
    host: Host, arguments: dict[str, Any]
) -> None:
    jsonschema.validate(arguments, (await definitions(host))[SEARCH]["inputSchema"])

    result = await host.call(SEARCH, arguments)
    data = await host.data(SEARCH, arguments)

    assert set(result) & {"isError", "structuredContent"} == set()
    (block,) = result["content"]
    # If filters leave nothing that fits, the items that they left out are named instead of the nearest.
    named = data["results"] or ([] if "note" in data else data["near_misses"][:3])
    assert all(one.get("uri", one["name"]) in block["text"] for one in named)
    assert data["fits"] is bool(data["results"])
    assert len(data["request_id"]) == 16


async def test_no_tool_of_the_proxy_promises_structured_content(host: Host) -> None:
    assert [name for name, one in (await definitions(host)).items() if "outputSchema" in one] == []


async def test_set_context_tells_a_model_and_a_program_the_context_for_later_calls(host: Host) -> None:
    wanted = {"query": "the weather", "intent": "plan a trip"}
    result = await host.call("set_context", wanted)
    context_id = result["content"][0]["text"].rpartition("context_id ")[2]
    data = await host.data("set_context", {**wanted, "context_id": context_id})

    assert set(result) & {"isError", "structuredContent"} == set()
    assert data["context_id"] == context_id


async def test_a_form_that_does_not_exist_is_refused_before_anything_is_done(host: Host) -> None:
    result = await host.call(SEARCH, {"query": "weather"}, **{OWN + "format": "yaml"})

    assert result["isError"] is True
    assert f'{OWN}format in _meta can only be "json"' in result["content"][0]["text"]


@each(
    "filters",
    [
        {"server": "code"},
        {"category": "weather", "tags": ["weather"], "any_tags": ["weather", "code"]},
        {"read_only": True, "exclude_destructive": None, "open_world": False},
        {"max_latency_ms": 100, "min_success_rate": 0.9, "strict": True},
    ],
)
async def test_filters_mean_the_same_in_filters_and_beside_it(host: Host, filters: dict[str, Any]) -> None:
    inside_filters = await host.data(SEARCH, {"query": "commit the weather", "filters": filters})
    beside = await host.data(SEARCH, {"query": "commit the weather", **filters})

    found = [
        [(each["name"], each["score"]) for each in answer["results"]] for answer in (inside_filters, beside)
    ]
    assert found[0] == found[1]


async def test_a_filter_inside_filters_beats_the_same_filter_beside_it(host: Host) -> None:
    arguments = {"query": "weather", "server": "code", "filters": {"server": "weather"}, "top_n": 1}

    (found,) = (await host.data(SEARCH, arguments))["results"]

    assert found["server"] == "weather"


async def test_an_unknown_filter_is_refused_with_its_name(host: Host) -> None:
    refused = await host.call(SEARCH, {"query": "weather", "filters": {"colour": "red"}})

    assert refused["isError"] is True
    assert "colour" in refused["content"][0]["text"]
    assert all(name in refused["content"][0]["text"] for name in SearchFilters.__struct_fields__)


async def test_the_definitions_themselves_are_valid_schemas(host: Host) -> None:
    for name in (SEARCH, "call_tool", "call_read_only_tool"):
        definition = (await definitions(host))[name]
        jsonschema.Draft202012Validator.check_schema(definition["inputSchema"])


async def test_a_found_tool_comes_with_everything_needed_to_call_it(host: Host) -> None:
    result = await host.call(SEARCH, {"query": "weather of a city tomorrow"})
    best = (await host.data(SEARCH, {"query": "weather of a city tomorrow"}))["results"][0]

    assert (best["name"], best["server"]) == ("weather__forecast", "weather")
    assert best["inputSchema"] == SCHEMA
    assert "weather__forecast(city: string, days?: integer)" in result["content"][0]["text"]


async def test_a_found_tool_can_be_called_by_its_name(host: Host) -> None:
    found = await host.data(SEARCH, {"query": "weather of a city tomorrow"})

    name = found["results"][0]["name"]
    called = await host.call("call_tool", {"name": name, "arguments": {"city": "Paris"}})

    assert json.loads(called["content"][0]["text"])["arguments"] == {"city": "Paris"}


async def test_documents_are_found_beside_tools_and_alone(host: Host) -> None:
    alone = await host.data(SEARCH, {"query": "how to word a commit message", "kinds": ["rule"]})
    reference = await host.data(SEARCH, {"query": "numbering of invoices", "kinds": ["reference"]})

    (rule,) = alone["results"]
    assert (rule["type"], rule["uri"]) == ("rule", "rule://commit-style")
    assert reference["results"][0]["uri"] == "reference://billing"


async def test_a_search_of_tools_alone_finds_no_documents(host: Host) -> None:
    result = await host.data(SEARCH, {"query": "commit messages", "kinds": ["tool"]})

    assert {each["type"] for each in result["results"]} == {"tool"}


async def test_a_search_of_one_server_finds_only_its_tools(host: Host) -> None:
    found = await host.data(SEARCH, {"query": "weather", "server": "code", "top_n": 50})

    assert {each["server"] for each in found["results"] + found.get("near_misses", [])} <= {"code"}


async def test_an_unknown_server_is_answered_with_the_known_ones(host: Host) -> None:
    result = await host.call(SEARCH, {"query": "weather", "server": "wether"})

    assert result["isError"] is True
    assert "'weather'" in result["content"][0]["text"]


@each(
    ("wanted", "nearest"),
    [
        ({"category": "wether"}, "'weather'"),
        ({"tags": ["weather", "cod"]}, "'code'"),
        ({"any_tags": ["cod"]}, "'code'"),
        ({"language": "fortran"}, "There is none"),
    ],
)
async def test_an_unknown_filter_value_is_answered_with_the_nearest(
    host: Host, wanted: dict[str, Any], nearest: str
) -> None:
    result = await host.call(SEARCH, {"query": "read the weather", **wanted})

    assert result["isError"] is True
    assert nearest in result["content"][0]["text"]


async def test_a_search_applies_its_filters(host: Host) -> None:
    wanted = {"category": "code", "tags": ["code"], "open_world": True, "read_only": None}
    found = await host.data(SEARCH, {"query": "weather of a city, then commit", **wanted})

    assert {each["name"] for each in found["results"] + found.get("near_misses", [])} == {"code__commit"}


async def test_a_search_whose_filters_leave_nothing_names_the_excluded_tools(host: Host) -> None:
    wanted = {"query": "forecast of the weather", "read_only": True, "kinds": ["tool"]}
    result, data = await host.call(SEARCH, wanted), await host.data(SEARCH, wanted)

    said = "No item meets the filters (read_only true). Left out by them: weather__forecast (by read_only)"
    assert said in result["content"][0]["text"]
    assert data["note"].startswith(said)
    assert data["fits"] is False


async def test_if_nothing_fits_the_nearest_tools_are_named_and_can_be_called(host: Host) -> None:
    result = await host.call(SEARCH, {"query": "zyxgh qwvut"})
    data = await host.data(SEARCH, {"query": "zyxgh qwvut"})

    lines = result["content"][0]["text"].splitlines()
    assert data["fits"] is False
    assert lines[0] == "None of 5 tools and documents fits. Nearest:"
    nearest = [one.get("uri") or one["name"] for one in data["near_misses"][:3]]
    assert lines[1:-1] == [f"- {name}" for name in nearest]
    assert lines[-1] == "Call one only if it does exactly this; else search in other words or do without."


async def test_tools_that_something_else_has_brought_are_not_called_documents(workshop: Workshop) -> None:
    rules = workshop.folder / "rules"
    rules.mkdir()
    text = "# Commit messages\n\nSay why, in the imperative. Use `tides` first."
    (rules / "commit-style.md").write_text(text, encoding="utf-8")
    workshop.server("weather", tools=[tool("forecast", "Weather of a city"), tool("tides"), tool("moon")])
    config = workshop.config(
        documents=[{"kind": "rule", "path": str(rules)}],
        context={"expansion_rules": {"forecast": ["moon"]}},
    )
    async with host_of(config, "handshake", patience=None) as host:
        named = await host.call(SEARCH, {"query": "rules for commit messages"})
        await host.call("weather__forecast", {})
        later = await host.call(SEARCH, {"query": "zyxgh qwvut"})

    beside, after = named["content"][0]["text"], later["content"][0]["text"]
    assert "But one document fits, and one tool may go with it:\n\nweather__tides" in beside
    assert "But one tool may go with a rule in force, or with what was done:\n\nweather__moon" in after


async def test_no_more_is_returned_than_was_asked_for(host: Host) -> None:
    result = await host.data(
        SEARCH, {"query": "weather tides commit forecast", "top_n": 1, "kinds": ["tool"]}
    )

    assert len(result["results"]) == 1


@pytest.mark.parametrize(
    "wanted",
    [{"query": "weather of a city", "include_schema": True}, {"query": "weather__forecast"}],
    ids=str,
)
async def test_schemas_are_whole_for_who_asks_for_them_or_for_one_tool_by_name(
    host: Host, wanted: dict[str, Any]
) -> None:
    whole = (await host.call(SEARCH, wanted))["content"][0]["text"]
    short = (await host.call(SEARCH, {"query": "weather of a city"}))["content"][0]["text"]

    (line,) = [line for line in whole.splitlines() if "Name of the city" in line]
    assert json.loads(line.strip().removeprefix("Input schema: ")) == SCHEMA
    assert "Name of the city" not in short


async def test_the_schemas_of_one_server_do_not_fill_an_answer_with_those_of_all(workshop: Workshop) -> None:
    large = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(4_000)}}
    kinds = ("text", "image", "table", "music")
    workshop.server(
        "files", tools=[tool(f"read_{one}", f"Reads a {one}", inputSchema=large) for one in kinds]
    )
    async with host_of(workshop.config(), "handshake") as host:
        wanted = {"query": "read a text, an image, a table and music", "include_schema": True}
        text = (await host.call(SEARCH, wanted))["content"][0]["text"]

    assert text.count("files__read_") == 4 and text.count("Input schema: ") == 1
    assert text.count("p4?: string, p5?: string, ... 3994 optional)") == 3
    assert "Reads a music" in text


async def test_whole_schemas_fill_no_answer_and_leave_the_others_their_signatures(workshop: Workshop) -> None:
    said = {"type": "object", "properties": {"path": {"type": "string", "description": "word " * 500}}}
    kinds = ("text", "image", "table", "music")
    workshop.server("files", tools=[tool(f"read_{one}", f"Reads a {one}", inputSchema=said) for one in kinds])
    async with host_of(workshop.config(), "handshake") as host:
        wanted = {"query": "read a text, an image, a table and music", "include_schema": True}
        text = (await host.call(SEARCH, wanted))["content"][0]["text"]

    assert text.count("Input schema: ") == 2
    assert text.count("(path?: string") == 2
    assert "Search for its exact name to see all about it." in text


async def test_arguments_as_a_string_of_json_are_understood(host: Host) -> None:
    result = await host.request(
        "tools/call", {"name": SEARCH, "arguments": '{"query": "weather of a city", "top_n": 1}'}
    )

    assert "The best match of 5 tools and documents:\n\nweather__forecast(" in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"top_n": "1", "include_schema": "true"}, {"top_n": 1, "include_schema": True}),
        ({"filters": '{"tags": "weather"}'}, {"filters": {"tags": ["weather"]}}),
        ({"kinds": "tool", "tags": "weather"}, {"kinds": ["tool"], "tags": ["weather"]}),
        ({"filters": {"read_only": "false", "server": None}}, {"filters": {"read_only": False}}),
    ],
    ids=str,
)
async def test_arguments_in_the_wrong_form_are_understood_if_only_one_thing_can_be_meant(
    host: Host, sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    query = {"query": "will it rain in Paris"}
    answer, expected = await host.call(SEARCH, query | sent), await host.call(SEARCH, query | meant)

    assert not answer.get("isError")
    assert answer["content"] == expected["content"]


async def test_a_search_understands_the_words_of_others_and_a_list_of_needs(host: Host) -> None:
    needs, tools = ["will it rain in Paris", "commit the changes"], {"kinds": ["tool"]}
    expected = await host.call(SEARCH, {"query": "\n".join(needs), "top_n": 2, **tools})
    for sent in (
        {"q": "\n".join(needs), "limit": 2},
        {"queries": needs, "max_results": 2},
        {"query": needs, "k": "2"},
    ):
        assert (await host.call(SEARCH, sent | tools))["content"] == expected["content"]
    assert (await host.call(SEARCH, {"q": "x", "search": "y"}))["isError"]


@each(
    "arguments",
    [
        {},
        {"query": "", "kinds": ["rule"]},
        {"query": 7},
        {"query": ["rain", 7]},
        {"query": None},
        {"query": "x", "top_n": 0},
        {"query": "x", "top_n": 51},
        {"query": "x", "top_n": "many"},
        {"query": "x", "kinds": ["cat"]},
        {"query": "x", "kinds": "cat"},
        {"query": "x", "unknown": 1},
        {"query": "x", "server": []},
        {"query": "x", "tags": {"weather": 1}},
        {"query": "x", "filters": "server=weather"},
        {"query": "x", "read_only": "yes"},
        {"query": "x", "min_success_rate": 2},
        {"query": "x", "max_latency_ms": 0},
    ],
)
async def test_invalid_arguments_are_explained_so_that_a_model_can_correct_them(
    host: Host, arguments: dict[str, Any]
) -> None:
    result = await host.call(SEARCH, arguments)

    assert result["isError"] is True
    assert SEARCH in result["content"][0]["text"]


@pytest.mark.parametrize(
    "query",
    [
        *("", "*", "all", "help", "What tools do you have?", "List all tools.", "what can you do"),
        *("Which servers are there?", "list the servers"),
    ],
)
async def test_a_query_for_everything_is_answered_with_an_overview(host: Host, query: str) -> None:
    text = (await host.call(SEARCH, {"query": query}))["content"][0]["text"]

    assert text.startswith("3 tools of 2 servers:")
    assert "- weather (2): weather__forecast, tides" in text
    assert "- code (1): code__commit" in text
    assert "- rules and references (2): billing, commit-style" in text


@pytest.mark.parametrize("query", ["all tools of weather", "what can weather do", "list the weather tools"])
async def test_a_query_for_the_tools_of_a_server_is_answered_with_no_others(host: Host, query: str) -> None:
    text = (await host.call(SEARCH, {"query": query, "top_n": 8}))["content"][0]["text"]

    assert ("weather__forecast" in text) and ("weather__tides" in text)
    assert {line.split("__")[0] for line in text.splitlines() if "__" in line.split("(")[0]} == {"weather"}


async def test_a_question_for_what_runs_at_a_server_finds_its_tools(workshop: Workshop) -> None:
    workshop.server("cloud", tools=[tool("list_machines", "List machines that you rent, with their state")])
    async with host_of(workshop.config(), "modern") as host:
        text = (await host.call(SEARCH, {"query": "list the servers running on cloud"}))["content"][0]["text"]

    assert "cloud__list_machines(" in text


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("list_machines", "List servers that you rent, with their state"),
        ("server_list", "Show each server of the account, with its state"),
    ],
)
async def test_a_question_about_servers_finds_the_tools_that_are_for_servers(
    workshop: Workshop, name: str, description: str
) -> None:
    workshop.server("good", tools=[tool("echo", "Say something again")])
    workshop.server("cloud", tools=[tool(name, description)])
    async with host_of(workshop.config(), "modern") as host:
        text = (await host.call(SEARCH, {"query": "which servers are running"}))["content"][0]["text"]

    assert f"cloud__{name}(" in text


async def test_an_overview_shortens_no_name_to_one_that_means_another_tool(workshop: Workshop) -> None:
    workshop.server("notes", tools=[*map(tool, ("add", "edit", "recall", "bank__pay"))])
    async with host_of(workshop.config(), "modern") as host:
        text = (await host.call(SEARCH, {"query": "*"}))["content"][0]["text"]

    assert "- notes (4): notes__add, notes__bank__pay, edit, notes__recall" in text


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        *((query, "Note: Not searched: chat (off: NOT_SET_ANYWHERE is not set") for query in OF_CHAT),
        ("weather server status", "1 tool of 1 server:\n\n- weather (1): weather__forecast"),
        ("is the broken server up", "Note: Not searched: chat (off: NOT_SET_ANYWHERE is not set"),
        ("is the old server up", "Note: Not searched: chat (off: NOT_SET_ANYWHERE is not set"),
    ],
)
async def test_a_question_for_the_state_of_a_server_is_answered_with_the_state(
    workshop: Workshop, query: str, answer: str
) -> None:
    workshop.server("weather", tools=[tool("forecast", "Forecast of the weather for a city")])
    workshop.server("game", tools=[tool("server_status", "Show whether the game is running")])
    workshop.server("chat").settings = {"command": "x", "env": {"T": "${NOT_SET_ANYWHERE}"}}
    workshop.server("old", settings={"enabled": False})
    async with host_of(workshop.config(), "modern") as host:
        text = (await host.call(SEARCH, {"query": query}))["content"][0]["text"]

    assert text.startswith(answer)
    assert "weather__forecast(" not in text
    assert ("game" in text) == ("broken" in query or "old" in query)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("which servers are down?", False),
        ("what servers do not work", False),
        ("list all servers", True),
    ],
)
async def test_a_tool_for_one_machine_answers_no_question_about_all_servers(
    workshop: Workshop, query: str, *, named: bool
) -> None:
    workshop.server("game", tools=[tool("server_status", "Show whether the game is running")])
    workshop.server("chat").settings = {"command": "x", "env": {"T": "${NOT_SET_ANYWHERE}"}}
    async with host_of(workshop.config(), "modern") as host:
        text = (await host.call(SEARCH, {"query": query}))["content"][0]["text"]

    assert "Not searched: chat (off: NOT_SET_ANYWHERE is not set" in text
    assert "1 tool of 1 server:" in text
    assert ("server_status" in text, "game (1)" in text) == (named, True)


async def test_the_descriptions_of_all_tools_are_read_off_the_event_loop(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question about servers looks in all of them, of which a very long list has many, in a file."""
    described, readers = Tool.description.fget, set[threading.Thread]()

    def read(self: Tool) -> str:
        readers.add(threading.current_thread())
        return described(self)

    monkeypatch.setattr(Tool, "description", property(read))
    await host.call(SEARCH, {"query": "which servers are running"})
    assert readers
    assert threading.current_thread() not in readers


async def test_an_overview_meets_filters(host: Host) -> None:
    wanted = {"query": "*", "kinds": ["tool"], "filters": {"tags": ["weather"]}}
    text = (await host.call(SEARCH, wanted))["content"][0]["text"]

    assert text.startswith("2 tools of 1 server:\n\n- weather (2): weather__forecast, tides")
    assert "commit" not in text


@pytest.mark.parametrize("query", ["the weather tools", "Weather", "list all tools of weather", ""])
async def test_a_query_for_the_tools_of_a_server_has_every_name(host: Host, query: str) -> None:
    wanted = {"query": query, "top_n": 1, "filters": {"server": "weather"}}
    text = (await host.call(SEARCH, wanted))["content"][0]["text"]

    assert "The best match of 5 tools and documents:" in text
    assert "1 more of weather: weather__" in text
    assert ("weather__forecast" in text) and ("weather__tides" in text)


async def test_tools_that_are_called_by_hand_alone_are_named_by_no_search(workshop: Workshop) -> None:
    hidden = {"tools": {"reset": {"include": "manual"}}}
    workshop.server("router", tools=[tool("reset"), tool("status")], settings=hidden)
    workshop.server("web", tools=[tool("get")], settings={"include": "manual"})
    async with inside(workshop.config(expose={"mode": "search"})) as proxy:
        host = Host(proxy, "modern")
        told = [text_of(await host.call(SEARCH, {"query": one})) for one in ("*", "router", "web", "status")]

    assert "1 tool of 1 server:" in told[0]
    assert not any("reset" in one or "web__get" in one for one in told)


async def test_an_overview_is_no_request_that_a_call_is_learned_for(proxy: Proxy, host: Host) -> None:
    await host.call(SEARCH, {"query": "will it rain"})
    before = [one.id for one in proxy.contexts.records.recent()]
    await host.call(SEARCH, {"query": "list all tools"})

    assert [one.id for one in proxy.contexts.records.recent()] == before


async def test_call_tool_may_be_given_no_arguments(host: Host) -> None:
    for arguments in ({"name": "weather__tides"}, {"name": "weather__tides", "arguments": None}):
        result = await host.call("call_tool", arguments)
        assert json.loads(result["content"][0]["text"])["arguments"] == {}


async def test_call_tool_can_call_the_proxys_own_tools_but_not_recurse(host: Host) -> None:
    found = await host.call("call_tool", {"name": SEARCH, "arguments": {"query": "weather"}})
    itself = await host.call("call_tool", {"name": "call_tool", "arguments": {"name": "call_tool"}})

    assert "best match" in found["content"][0]["text"]
    assert itself["isError"] is True


async def test_progress_of_indexing_is_sent_to_clients_that_ask_for_it(workshop: Workshop, era: str) -> None:
    workshop.server("many", tools=[tool(f"tool_{n}", f"Does thing number {n}") for n in range(80)])
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        await host.call(SEARCH, {"query": "thing"}, progressToken="mine")
        told = [params for method, params in host.notifications if method == "notifications/progress"]
        silent = Host(proxy, era)
        await silent.call(SEARCH, {"query": "thing"})

    assert told
    assert {params["progressToken"] for params in told} == {"mine"}
    assert told[-1]["progress"] <= told[-1]["total"]
    assert silent.notifications == []


async def test_the_tools_of_a_server_that_comes_late_are_found_and_called(workshop: Workshop) -> None:
    flag = workshop.flag("ready")
    workshop.server(
        "late", tools=[tool("brew", "Brew a cup of coffee")], on={"tools/list": [{"wait": str(flag)}]}
    )
    async with inside(workshop.config(limits={"start_wait_seconds": 0.1}), settled=False) as proxy:
        host = Host(proxy, "modern")
        before = await host.data(SEARCH, {"query": "brew coffee"})
        flag.touch()
        await proxy.wait_first_connect()
        after = await host.data(SEARCH, {"query": "brew coffee"})

    assert before["results"] == []
    assert after["results"][0]["name"] == "late__brew"
