"""Answers to searches as a model reads them: their cost, and the parts that stay visible."""

import gzip
import json
import re
import tracemalloc
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.proxies import Host, host_of, inside
from support.servers import TOOLS, Workshop, real_lists, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.catalog.names import EXPOSED
from mcp_context_proxy.config.host_profiles import HOSTS, room_given
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.embedding.embeddings import TokenCounter
from mcp_context_proxy.items import Snapshot, Source, Tool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval import Result
from mcp_context_proxy.server.meta_definitions import said_later
from mcp_context_proxy.server.search_answers import IN_ENGLISH, WHICH_ONE, Fitting

SEARCH = "search_available_tools"
LISTS = ("excel", "firecrawl", "github", "notion", "slack")
"""Real lists with long descriptions, many parameters, enumerations and references."""

REQUESTS = [
    (one["list"], one["request"])
    for line in (Path(__file__).parents[2] / "benchmarks" / "requests.jsonl").read_text("utf-8").splitlines()
    if (one := json.loads(line))["list"] in LISTS
]
COUNTER = TokenCounter()

NOTHING = "fits. Nearest"
"""Words of an answer that nothing fits."""


def tokens(text: str) -> int:
    """By the tokenizer or as four characters each, whichever are more."""
    return max(COUNTER.count(text), len(text) / 4)


async def text_of(host: Host, query: str, **more: Any) -> str:
    result = await host.call(SEARCH, {"query": query, **more})
    (block,) = result["content"]
    return str(block["text"])


def line_of(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}(")]
    return line


@pytest.fixture(scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    workshop = Workshop(tmp_path_factory.mktemp("answers"))
    for name in LISTS:
        plain = workshop.folder / f"{name}.tools.json"
        plain.write_bytes(gzip.decompress((TOOLS / f"{name}.json.gz").read_bytes()))
        workshop.server(name, tools_file=str(plain), ledger=None)
    async with inside(workshop.config(limits={"indexing_wait_seconds": 600.0}), patience=None) as proxy:
        yield proxy


async def test_answers_over_real_tools_cost_400_tokens_on_average_and_700_at_most(real: Proxy) -> None:
    host = Host(real, "modern")
    impossible = ["recommend a red wine for grilled lamb", "teach me the chords of a folk song"]
    asked = [request for _, request in REQUESTS] + impossible
    # A client of each length of names; what else a model reads of a text alone is the same in every host.
    for client in {room_given(one): next(iter(one.clients.value), "") for one in HOSTS.values()}.values():
        host.client_info = envelope.raw({"name": client})
        texts = {request: await text_of(host, request) for request in asked}
        fitting = {request: tokens(text) for request, text in texts.items() if NOTHING not in text}
        others = [tokens(text) for request, text in texts.items() if request not in fitting]

        assert len(fitting) >= 0.7 * len(REQUESTS)
        assert sum(fitting.values()) / len(fitting) <= 400
        assert max(fitting.values()) <= 700
        assert others
        assert max(others) <= 80


async def test_that_nothing_fits_costs_80_tokens_at_most_whatever_is_to_be_noted(
    workshop: Workshop, era: str
) -> None:
    verbs = ("read", "write", "list", "copy")
    tools = [tool(f"{verb}_the_yearly_report_of_a_region", f"To {verb} a report") for verb in verbs]
    workshop.server("accounting-reports", tools=tools)
    for name in ("github-enterprise", "customer-relations", "warehouse-planning"):
        settings = {"command": "x", "env": {"T": "${A_LONG_NAME_OF_A_VARIABLE_THAT_IS_NOT_SET}"}}
        workshop.server(name).settings = settings
    async with inside(workshop.config()) as proxy:
        texts = [await text_of(Host(proxy, era), query) for query in ("zyxgh qwvut", "zyxgh qwvut " * 40)]

    for text in texts:
        assert tokens(text) <= 80
        assert "Not searched: github-enterprise, customer-relations and 1 more." in text
        assert "\n- accounting-reports__" in text


def test_the_instructions_of_a_server_that_a_session_knows_are_not_examined_again() -> None:
    words = SimpleNamespace(instructions="Grind the beans first.")
    clients: list[Any] = [SimpleNamespace(name="known"), SimpleNamespace(name="late", introduction=words)]
    known = {"known"}

    assert said_later(clients, Redactor(()), known) == ["[server 'late' says] Grind the beans first."]
    assert known == {"known", "late"}
    assert said_later(clients, Redactor(()), known) == []


async def test_a_search_in_a_server_that_is_off_says_why_it_found_nothing(workshop: Workshop) -> None:
    workshop.server("clock", tools=[tool("tell_time", "Tells the time")])
    workshop.server("notion").settings = {"command": "x", "env": {"T": "${NOT_SET_ANYWHERE}"}}
    async with host_of(workshop.config(), "modern") as host:
        text = await text_of(host, "find a page", filters={"server": "notion"})
        refused = await host.call(SEARCH, {"query": "find a page", "filters": {"server": "notoin"}})

    assert "Not searched: notion (off: NOT_SET_ANYWHERE is not set" in text
    assert "Did you mean 'notion'?" in refused["content"][0]["text"]


async def test_the_first_three_tools_show_every_required_parameter_with_type_and_values(real: Proxy) -> None:
    host = Host(real, "modern")
    definitions = {f"{server}__{one['name']}": one for server in LISTS for one in real_lists()[server]}
    seen = 0
    for server, request in REQUESTS:
        text = await text_of(host, request, server=server)
        for found in (await host.data(SEARCH, {"query": request, "server": server}))["results"][:3]:
            schema = definitions[found["name"]]["inputSchema"]
            for name in schema.get("required", ()):
                described, line = schema["properties"][name], line_of(text, found["name"])
                values = described.get("enum", ())
                kind = described.get("type") if not values else None
                told = " | ".join(map(json.dumps, values)) or (kind if kind in {"string", "integer"} else "")
                assert f"{name}: {told}" in line
                seen += 1
    assert seen > 50


async def test_an_answer_has_no_scores(real: Proxy) -> None:
    text = await text_of(Host(real, "modern"), "make a bar chart of the sales by month")

    assert re.match(r"The \d best matches of 130 tools:\n\nexcel__create_chart\(", text)
    assert "score" not in text
    assert text.endswith("Search for its exact name to see all about it.")


async def test_more_tools_than_there_is_room_for_are_named(workshop: Workshop) -> None:
    parameters = {f"parameter_{n}": {"type": "string", "description": "long " * 50} for n in range(20)}
    schema = {"type": "object", "properties": parameters, "required": [*parameters][:10]}
    name = "file_the_report_of_region_number_{}"
    described = "Files the yearly report of region number {}, with all of its figures, where it belongs."
    tools = [tool(name.format(n), described.format(n) * 5, inputSchema=schema) for n in range(12)]
    workshop.server("desk", tools=tools)
    config = workshop.config(search={"include_score": 0.1})
    async with host_of(config, "modern") as host:
        text = await text_of(host, "file the yearly report of a region")
        found = (await host.data(SEARCH, {"query": "file the yearly report of a region"}))["results"]

    assert len(found) > 5
    assert all(one["name"] in text for one in found)
    assert f"\n\n{len(found) - 3} more: " in text
    assert "parameter_9: string, ... 10 optional)" in line_of(text, found[2]["name"])
    assert tokens(text) <= 700


ID = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
ROW = {"type": "object", "properties": {"cells": {"type": "array", "items": {"type": "string"}}}}
STRING = {"type": "string"}
NINE, FORTY = (" | ".join(map(json.dumps, some)) for some in ("abcdefghi", map(str, range(40))))


def act(name: str, **others: Any) -> dict[str, Any]:
    """Return what a tool that does several things takes for one of them."""
    return {"type": "object", "properties": {"act": {"const": name}, **others}, "required": ["act"]}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"$ref": "#/$defs/P", "$defs": {"P": {"properties": {"n": {"type": "integer"}}}}}, "n?: integer"),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "allOf": [{"required": ["a"]}, {"properties": {"b": {"type": "integer"}}}],
            },
            "a: string, b?: integer",
        ),
        (
            {
                "type": "object",
                "oneOf": [
                    {"properties": {"path": {"type": "string"}}, "required": ["path"]},
                    {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
                ],
            },
            "{path: string} | {id: integer}",
        ),
        (
            {
                "type": "object",
                "properties": {"rows": {"type": "array", "items": ROW}},
                "required": ["rows"],
            },
            "rows: {cells?: string[]}[]",
        ),
        (
            {
                "type": "object",
                "properties": {
                    "to": {"anyOf": [{"type": "array", "items": {"oneOf": [ROW, ID]}}, {"type": "string"}]},
                    "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
                },
                "required": ["to", "kind"],
            },
            'to: ({cells?: string[]} | {id: integer})[] | string, kind: "a" | "b" = "a"',
        ),
        (
            {
                "type": "object",
                "properties": {
                    "since": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
                    "limit": {"type": ["integer", "null"]},
                    "tongue": {"type": "string", "enum": [*"abcdefghij"]},
                },
            },
            'since?: string(date-time), limit?: integer, tongue?: "a" | "b" | "c" | ... 7 more',
        ),
        (
            {
                "type": "object",
                "properties": {"do": {"anyOf": [act(one) for one in [*"abcdefgh"]] + [act("i", id=STRING)]}},
                "required": ["do"],
            },
            f"do: {{act: {NINE}, id?: string}}",
        ),
        (
            {"type": "object", "oneOf": [act(one) for one in [*"abcdefghi"]]},
            f"{{act: {NINE}}}",
        ),
        (
            {
                "type": "object",
                "properties": {
                    "by": {"oneOf": [{"const": one} for one in "abcdefghi"]},
                    "as": {"anyOf": [{"type": f"t{n}"} for n in range(100)]},
                    "at": {"oneOf": [{"const": n} for n in range(100)]},
                    "in": {"anyOf": [act(f"{n}") for n in range(100)]},
                },
                "required": ["by", "as"],
            },
            f"by: {NINE}, as: t0 | t1 | t2 | t3 | t4 | t5 | t6 | t7 | ... 92 more, "
            "at?: 0 | 1 | 2 | ... 97 more, in?: object",
        ),
        (
            {"type": "object", "oneOf": [act(f"{n}") for n in range(100)]},
            f"{{act: {FORTY} | ... 60 more}}",
        ),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "parameters not told by its server"),
        ({"type": "object"}, ""),
    ],
)
async def test_parameters_are_shown_wherever_a_schema_has_them(
    workshop: Workshop, schema: dict[str, Any], shown: str
) -> None:
    workshop.server("desk", tools=[tool("file_the_report", "Files the yearly report.", inputSchema=schema)])
    async with inside(workshop.config()) as proxy:
        text = await text_of(Host(proxy, "modern"), "file the yearly report")

    assert line_of(text, "desk__file_the_report") == f"desk__file_the_report({shown})"


async def test_optional_parameters_that_the_query_speaks_of_come_first_and_are_always_named(
    workshop: Workshop,
) -> None:
    many = {f"parameter_{n}": {"type": "string"} for n in range(20)}
    state = {"state": {"type": "string", "enum": ["opened", "closed"]}}
    tools = [
        tool(f"list_{kind}", f"Lists the {kind} of a region.", inputSchema={"properties": many | state})
        for kind in ("requests", "reports", "rumours", "repairs", "results", "recalls")
    ]
    workshop.server("desk", tools=tools)
    async with host_of(workshop.config(search={"include_score": 0.1}), "modern") as host:
        text = await text_of(host, "list the closed requests of a region", top_n=6)
        other = await text_of(host, "list the requests of a region", top_n=6)

    assert line_of(text, "desk__list_requests").startswith(
        'desk__list_requests(state?: "opened" | "closed", '
    )
    lines = [line for line in text.splitlines() if line.startswith("desk__")]
    assert len(lines) == 6
    assert all('(state?: "opened" | "closed", ' in line for line in lines)
    assert "state?" not in other


async def test_the_best_tools_note_what_the_names_of_their_parameters_do_not_say(workshop: Workshop) -> None:
    described = {
        "time": "Time to convert in 24-hour format (HH:MM)",
        "text": "The text.",
        "zone": "IANA name of the time zone, such as 'Asia/Tokyo'. More of it.",
        "quiet": "True to say nothing whatever happens",
    }
    properties = {name: {"type": "string", "description": words} for name, words in described.items()}
    properties["key"] = {"type": "string", "pattern": "^[A-Z]+-[0-9]+$"}
    schema = {"type": "object", "properties": properties, "required": ["time", "text", "zone", "key"]}
    tools = [tool(name, f"To {name} a time.", inputSchema=schema) for name in ("convert", "shift")]
    workshop.server("clock", tools=tools)
    async with inside(workshop.config(search={"include_score": 0.1})) as proxy:
        text = await text_of(Host(proxy, "modern"), "convert a time", top_n=2)

    notes = [
        "  time: Time to convert in 24-hour format (HH:MM)",
        "  zone: IANA name of the time zone, such as 'Asia/Tokyo'.",
        "  key: matches ^[A-Z]+-[0-9]+$",
    ]
    best, second = text.index("clock__convert("), text.index("clock__shift(")
    assert text[best:second].splitlines()[2:5] == notes
    # Those that both have are not repeated.
    assert text.count("IANA name") == 1
    assert "quiet:" not in text


async def test_room_that_is_left_goes_to_the_best_tool(workshop: Workshop) -> None:
    properties = {f"parameter_{n}": {"type": "string"} for n in range(30)}
    words = "Keeps the yearly report of a region with all of its figures where it belongs. "
    tools = [
        tool(name, f"To {name}: {words * 3}", inputSchema={"type": "object", "properties": properties})
        for name in [
            f"{verb}_report" for verb in ("file", "copy", "read", "move", "burn", "sell", "lend", "hide")
        ]
    ]
    workshop.server("desk", tools=tools)
    async with inside(workshop.config(search={"include_score": 0.1})) as proxy:
        text = await text_of(Host(proxy, "modern"), "file the yearly report of a region")

    best, *others = [line for line in text.splitlines() if line.startswith("desk__")]
    assert "parameter_0?: string" in best
    assert "parameter_0?: string" not in others[-1]


def test_each_line_of_an_answer_is_counted_once_whatever_was_tried_to_make_it_fit() -> None:
    count, counted = TokenCounter().count, list[str]()

    def counting(line: str) -> int:
        counted.append(line)
        return count(line)

    names = [one["name"] for one in real_lists()["github"]]
    definitions = [json.dumps(one).encode() for one in real_lists()["github"]]
    tools = tuple(map(partial(Tool, "github"), names, names, definitions, names))[:8]
    results = [Result(one, 1.0, None, 0.0, 0.0, "", (), "") for one in tools]
    snapshot = Snapshot(1, (Source("github", tools),))
    for budget in (100, 300, 600, 5000):
        told = Fitting(results, snapshot, counting, EXPOSED).fit(["Best matches:"], budget)

        assert {line for text in told for line in text.split("\n  ")} & {*counted}
        assert len(counted) == len({*counted})
        assert not any("\n" in line for line in counted)
        counted.clear()


def test_a_tool_is_told_for_each_query_and_list_anew_whatever_earlier_answers_told_of_it() -> None:
    def made(name: str, description: str, **properties: Any) -> Tool:
        definition = tool(name, description, inputSchema={"type": "object", "properties": properties})
        return Tool("desk", name, name, json.dumps(definition).encode(), description)

    def told(query: str, *tools: Tool) -> str:
        results = [Result(tools[0], 1.0, None, 0.0, 0.0, "", (), "")]
        snapshot = Snapshot(1, (Source("desk", tools),))
        return "\n".join(Fitting(results, snapshot, COUNTER.count, EXPOSED, query=query).fit([], 400))

    colours = {
        name: {"type": "string"}
        for name in ("red", "green", "blue", "grey", "black", "white", "pink", "teal")
    }
    paint = made("paint", "Paints a wall. Ask the owner before.", **colours)
    others = [made(f"other_{n}", "Does more. Ask the owner before.") for n in range(2)]

    alone, of_teal, again = (
        told(query, paint) for query in ("paint a wall", "paint it teal", "paint a wall")
    )
    assert "red?: string" in alone
    assert "teal" not in alone
    assert "(teal?: string, red?: string" in of_teal
    assert again == alone
    assert "Ask the owner before." in alone
    assert "Ask the owner before." not in told("paint a wall", paint, *others)
    assert "Scrapes a wall" in told("paint a wall", made("paint", "Scrapes a wall."))


def test_kept_lines_of_tools_keep_no_former_list_of_a_server_and_no_long_line() -> None:
    """A server may change its list all the time, and branch its schemas."""
    values = {"type": "string", "enum": [f"{n} {'v' * 55}" for n in range(7)]}
    needed = {f"n{n}": {"$ref": "#/$defs/values"} for n in range(40)}
    named = {f"{a}{b}": {} for a in ("red", "blue", "grey") for b in ("hat", "coat", "shoe", "sock")}
    schema = {
        "type": "object",
        "properties": needed | named,
        "required": [*needed],
        "$defs": {"values": values},
    }
    written = json.dumps(tool("t0", "Wears.", inputSchema=schema)).encode()

    def tell(version: int) -> None:
        filler = json.dumps(tool("x", f"{version:02}" * 15_000)).encode()
        names = [*(f"t{n:02}" for n in range(40)), "z"]
        tools = tuple(Tool("desk", one, one, filler if one == "z" else written, one) for one in names)
        results = [Result(tools[version % 30], 1.0, None, 0.0, 0.0, "", (), "")]
        query = " ".join([*named][version % 12 : version % 12 + 3])
        Fitting(results, Snapshot(1, (Source("desk", tools),)), COUNTER.count, EXPOSED, query=query).fit(
            [], 400
        )

    tell(0)
    tracemalloc.start()
    for version in range(60):
        tell(version)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1_000_000


async def test_a_tool_with_hundreds_of_required_parameters_cannot_make_an_answer_long(
    workshop: Workshop,
) -> None:
    parameters = {f"parameter_{n}": {"type": "string", "enum": ["x" * 50] * 5} for n in range(500)}
    schema = {"type": "object", "properties": parameters, "required": [*parameters]}
    workshop.server("desk", tools=[tool("flood", "Floods the kitchen", inputSchema=schema)])
    async with host_of(workshop.config(), "modern") as host:
        text = await text_of(host, "flood the kitchen")

    assert "1 more: desk__flood" in text
    assert tokens(text) <= 700


async def test_values_and_fields_of_required_parameters_are_shown_through_references(
    workshop: Workshop,
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "target": {"$ref": "#/$defs/Target"},
            "mode": {"allOf": [{"$ref": "#/$defs/Mode"}], "description": "The mode"},
            "extra": {"$ref": "#/$defs/Target"},
            "self": {"$ref": "#/$defs/Loop"},
        },
        "required": ["target", "mode", "self"],
        "$defs": {
            "Mode": {"type": "string", "enum": ["fast", "slow"]},
            "Target": {
                "type": "object",
                "properties": {"url": {"type": "string"}, "depth": {"type": "integer"}},
                "required": ["url"],
            },
            "Loop": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/Loop"}},
                "required": ["next"],
            },
        },
    }
    workshop.server("web", tools=[tool("crawl", "Crawls a web site", inputSchema=schema)])
    async with inside(workshop.config()) as proxy:
        text = await text_of(Host(proxy, "modern"), "crawl the web site")

    told = 'target: {url: string, depth?: integer}, mode: "fast" | "slow", self: {next: {next: object}}'
    assert line_of(text, "web__crawl") == f"web__crawl({told}, extra?: object)"


async def test_a_name_that_several_servers_use_is_answered_in_short(workshop: Workshop) -> None:
    for server in ("wiki", "web"):
        described = f"Finds a page of the {server}. " + "More to know. " * 100
        workshop.server(server, tools=[tool("find_page", described)])
    async with host_of(workshop.config(), "modern") as host:
        both = await text_of(host, "find_page")
        one = await text_of(host, "wiki__find_page")

    assert line_of(both, "wiki__find_page")
    assert line_of(both, "web__find_page")
    assert tokens(both) < 300
    assert one.count("More to know.") == 100
    assert "\n\n1 more: web__find_page\n\n" in one


async def test_sentences_that_siblings_share_are_left_out(workshop: Workshop) -> None:
    shared = "Part of the great Acme suite of tools for your business."
    says = {"mow": "Mows the lawn.", "rake": "Rakes the leaves.", "dig": "Digs a hole.", "sow": "Sows seeds."}
    workshop.server("acme", tools=[tool(name, f"{shared}\n\n{own}") for name, own in says.items()])
    async with inside(workshop.config()) as proxy:
        text = await text_of(Host(proxy, "modern"), "mow the lawn", top_n=1)

    assert "acme__mow(text?: string)\n  Mows the lawn.\n" in text
    assert "Acme suite" not in text


async def test_a_long_description_is_cut_to_its_first_sentences_and_whole_on_request(
    workshop: Workshop,
) -> None:
    described = (
        "# Kettle\n\nBoils water. Takes about three minutes, e.g. for tea.\n\n" + "More to know. " * 100
    )
    workshop.server("kitchen", tools=[tool("boil", described)])
    async with host_of(workshop.config(), "modern") as host:
        short = await text_of(host, "boil some water")
        whole = await text_of(host, "boil some water", include_schema=True)

    assert "\n  Boils water. Takes about three minutes, e.g. for tea. More to know." in short
    assert len(short) < 500
    assert whole.count("More to know.") == 100
    # Every line is indented: no description can pass for another tool.
    assert "\n  # Kettle\n" in whole


async def test_a_sentence_that_was_wrapped_into_lines_is_told_to_its_end(workshop: Workshop) -> None:
    described = (
        "Add or replace a chart, which stands beside the table that\nits values come from. "
        "**Best for:** reports.\n- `source` is a range (e.g. `A1:B2`). It is needed.\n\nNot for:\n- "
        + "charts of what has no table and is "
        * 10
    )
    workshop.server("sheet", tools=[tool("add_chart", described)])
    async with inside(workshop.config()) as proxy:
        text = await text_of(Host(proxy, "modern"), "add a chart to the table")

    told = (
        "  Add or replace a chart, which stands beside the table that its values come from. "
        "Best for: reports. `source` is a range (e.g. `A1:B2`). It is needed."
    )
    assert told in text.splitlines()


async def test_tags_around_the_parts_of_a_description_are_not_told(workshop: Workshop) -> None:
    described = (
        "\n  <use_case>\n    Plan the migration of a table.\n  </use_case>\n\n<notes>\nRun it.\n</notes>"
    )
    workshop.server("base", tools=[tool("plan_migration", described)])
    async with inside(workshop.config()) as proxy:
        text = await text_of(Host(proxy, "modern"), "plan the migration of a table")

    assert "  Plan the migration of a table. Run it." in text.splitlines()


async def test_a_schema_is_told_without_what_says_nothing_to_a_model(workshop: Workshop) -> None:
    title = {"type": "string", "title": "Title", "description": "Of the page"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "addArguments",
        "type": "object",
        "properties": {"title": title, "parts": {"type": "array", "items": {"anyOf": [title, ID]}}},
        "additionalProperties": False,
    }
    workshop.server("wiki", tools=[tool("add_page", "Adds a page.", inputSchema=schema)])
    async with inside(workshop.config()) as proxy:
        text = await text_of(Host(proxy, "modern"), "add_page")

    (line,) = [line for line in text.splitlines() if line.startswith("  Input schema: ")]
    plain = {"type": "string", "description": "Of the page"}
    assert json.loads(line.partition(": ")[2]) == {
        "type": "object",
        "properties": {"title": plain, "parts": {"type": "array", "items": {"anyOf": [plain, ID]}}},
    }


async def test_what_a_request_in_another_script_finds_is_said_to_be_doubtful(workshop: Workshop) -> None:
    tools = [tool("create_issue", "Opens up to 10 tickets."), tool("list", "Zeigt Größen 予約.")]
    workshop.server("work", tools=tools)
    async with host_of(workshop.config(), "modern") as host:
        strange, *known = [
            await text_of(host, query, top_n=2)
            for query in ("患者5の次の手術を明日の10時に変更して", "予約", "Größen zeigen", "ticket 変更")
        ]

    assert IN_ENGLISH in strange
    assert not any(IN_ENGLISH in text for text in known)


async def test_the_same_tool_of_two_servers_is_told_once_and_the_other_is_named(workshop: Workshop) -> None:
    tools = [tool("create_issue", "Opens a ticket."), tool("close_issue", "Closes a ticket.")]
    for server in ("home", "work"):
        workshop.server(server, tools=tools)
    async with host_of(workshop.config(), "modern") as host:
        text = await text_of(host, "tickets")
        data = await host.data(SEARCH, {"query": "tickets"})

    assert len(data["results"]) == 2
    for one in data["results"]:
        (other,) = one["also"]
        assert line_of(text, one["name"])
        assert f"  The same at another server: {other}." in text.splitlines()
        assert f"{other}(" not in text
        assert one["name"].partition("__")[2] == other.partition("__")[2]
    # To call one at the wrong server may do harm.
    assert f"call_tool. {WHICH_ONE} Search for" in text
