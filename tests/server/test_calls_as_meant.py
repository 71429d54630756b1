"""Calls through call_tool in the words and forms that models use: read as they are meant, or told how to."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.proxies import Host, host_of, inside
from support.raw_client import text_of
from support.servers import Server, Workshop, tool
from support.tables import each

from mcp_context_proxy.app.proxy import Proxy


@pytest.fixture
async def github(workshop: Workshop) -> AsyncIterator[tuple[Proxy, Server]]:
    """A proxy and its one server, for all rows of a table."""
    server = workshop.server("github", tools=[tool("create_issue")])
    async with inside(workshop.config()) as proxy:
        yield proxy, server


@each(
    "said",
    [
        {"tool": "github__create_issue", "args": {"title": "x"}},
        {"tool_name": "github__create_issue", "parameters": {"title": "x"}},
        {"name": "github__create_issue", "input": {"title": "x"}, "goal": "a note"},
        {"toolName": "github__create_issue", "arguments": '{"title": "x"}'},
        {"server": "github", "name": "create_issue", "arguments": {"title": "x"}},
        {"server_name": "github", "tool_name": "github__create_issue", "arguments": {"title": "x"}},
        {"server": None, "name": "github__create_issue", "arguments": {"title": "x"}},
        {"server": "github", "name": "create_issue", "title": "x"},
        {"name": "call_tool", "args": {"name": "github__create_issue", "title": "x"}},
        {"server_name": "github", "tool": "github__create_issue", "title": "x"},
    ],
)
async def test_call_tools_understand_the_words_of_others_for_name_and_arguments(
    github: tuple[Proxy, Server], said: dict[str, Any]
) -> None:
    proxy, server = github
    before = len(server.ledger.messages("tools/call"))
    answer = await Host(proxy, "modern").call("call_tool", said)

    assert not answer.get("isError")
    (sent,) = server.ledger.messages("tools/call")[before:]
    assert sent["params"]["arguments"] == {"title": "x"}


@each(
    "name",
    [
        *(
            "github.create_issue",
            "github/create_issue",
            "github:create_issue",
            "functions.github__create_issue",
        ),
        *("mcp__context-proxy__github__create_issue", "mcp__github__create_issue"),
        *("github__create_issue(title: string)", "github__create_issue [r]", " `github__create_issue`"),
    ],
)
async def test_a_name_in_the_form_of_others_leads_to_the_tool_of_its_server(
    github: tuple[Proxy, Server], name: str
) -> None:
    proxy, server = github
    before = len(server.ledger.messages("tools/call"))
    answer = await Host(proxy, "modern").call("call_tool", {"name": name, "arguments": {"title": "x"}})

    assert not answer.get("isError"), answer
    (sent,) = server.ledger.messages("tools/call")[before:]
    assert sent["params"]["name"] == "create_issue"


async def test_two_words_for_the_same_argument_of_a_call_tool_are_refused(workshop: Workshop) -> None:
    server = workshop.server("github", tools=[tool("create_issue")])
    said = {"name": "github__create_issue", "args": {"title": "x"}, "params": {"title": "y"}}
    async with inside(workshop.config()) as proxy:
        answer = await Host(proxy, "modern").call("call_tool", said)

    assert answer["isError"]
    assert "is not known" in text_of(answer)
    assert not server.ledger.messages("tools/call")


async def test_what_stands_beside_the_name_is_what_the_tool_is_given(workshop: Workshop) -> None:
    server = workshop.server("github", tools=[tool("create_issue")])
    said = [
        {"name": "github__create_issue", "title": "x"},
        {"tool": "github__create_issue", "title": "x", "input": "a text", "goal": "a note"},
        {"name": "github__create_issue", "server": "web1"},
    ]
    async with inside(workshop.config()) as proxy:
        answers = [await Host(proxy, "modern").call("call_tool", one) for one in said]

    assert not any(answer.get("isError") for answer in answers)
    sent = [message["params"]["arguments"] for message in server.ledger.messages("tools/call")]
    assert sent == [{"title": "x"}, {"title": "x", "input": "a text"}, {"server": "web1"}]


@each("through", ["call_tool", "call_read_only_tool"])
@each(
    ("said", "why"),
    [
        (
            {"name": "github__create_issue", "arguments": {}, "title": "x"},
            "title is not known; known are name, arguments, goal",
        ),
        ({}, "name is missing"),
        ({"name": "call_tool", "arguments": {}}, "name is missing"),
    ],
)
async def test_unusable_arguments_of_a_call_tool_are_answered_with_its_form(
    github: tuple[Proxy, Server], through: str, said: dict[str, Any], why: str
) -> None:
    answer = await Host(github[0], "modern").call(through, said)

    form = 'It takes {"name": "name of the tool", "arguments": {what the tool is given}}'
    assert answer["isError"]
    assert text_of(answer) == f"{through}: {why}. {form}"


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param({"error": {"code": -32602, "message": "invalid"}}, id="error"),
        pytest.param(
            {"result": {"content": [{"type": "text", "text": "invalid"}], "isError": True}}, id="result"
        ),
    ],
)
async def test_a_refused_call_is_told_what_the_tool_takes_and_what_its_arguments_lack(
    workshop: Workshop, era: str, refusal: dict[str, Any]
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "zone": {"type": "string"},
            "day": {"type": "integer"},
            "unit": {"type": "string", "enum": ["h", "min"]},
            "also": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}},
            "from": {"type": "object", "properties": {"city": {}, "of": {}}, "required": ["city"]},
        },
        "required": ["zone"],
    }
    tools = [tool("tell", "Tells time.", inputSchema=schema)]
    workshop.server("clock", tools=tools, calls={"tell": [refusal]})
    also = [[{"id": 1}, {"id": "x"}], [{"id": 1}]]
    calls = [
        {"tz": "x", "unit": "s", "day": "monday", "also": also[0], "from": {"town": "Lyon"}},
        {"zone": "UTC", "day": 1, "unit": "h", "also": also[1]},
    ]
    async with host_of(workshop.config(), era) as host:
        wrong, right = [
            await host.call("call_tool", {"name": "clock__tell", "arguments": one}) for one in calls
        ]

    said = wrong["content"][-1]["text"].splitlines()[-1]
    assert wrong["isError"]
    assert said == (
        'It takes (zone: string, day?: integer, unit?: "h" | "min", also?: object[], from?: object). '
        "Missing: zone, from.city. Not known: tz, from.town. Wrong type or value: unit, day, also[1].id. "
        "Search for clock__tell to see all about it."
    )
    # Nothing is wrong with these arguments that could be seen from outside.
    assert "It takes" not in json.dumps(right)


async def test_a_model_gets_the_reason_that_stands_in_the_data_of_an_error(
    workshop: Workshop, era: str
) -> None:
    data = {"field": "id", "reason": "no parcel '12'; ids look like P-00012"}
    errors = {"get": {"code": -32602, "message": "Invalid params", "data": data}}
    errors |= {"put": {**errors["get"], "data": "x" * 9_000}, "cut": {**errors["get"], "data": None}}
    page = {"elicitations": [{"url": "https://depot.example/?key=a-secret-of-the-depot"}]}
    errors |= {"away": {"code": -32042, "message": "Log in", "data": page}}
    calls = {name: [{"error": error}] for name, error in errors.items()}
    key = {"env": {"DEPOT_KEY": "a-secret-of-the-depot"}}
    workshop.server("depot", tools=[tool(name) for name in errors], calls=calls, settings=key)
    async with host_of(workshop.config(), era) as host:
        told = {name: text_of(await host.call("call_tool", {"name": f"depot__{name}"})) for name in errors}

    assert told["get"].splitlines()[1] == f"Details: {json.dumps(data, separators=(',', ':'))}"
    assert len(told["put"]) < 800
    assert "Details" not in told["cut"]
    # One who cannot be led to an address gets it from the model.
    assert ("https://depot.example/?key=[redacted DEPOT_KEY]" in told["away"]) == (era == "handshake")
    assert "a-secret-of-the-depot" not in str(told)


HOUR = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
SLOT = {"type": "object", "properties": {"day": {"enum": ["monday", "friday"]}, "fromHour": HOUR}}
BOOKING = {
    "type": "object",
    "properties": {
        "bookIds": {"type": "array", "items": {"type": "string"}},
        "slot": {"$ref": "#/$defs/Slot"},
        "number": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "share": {"type": "number"},
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        "paid": {"type": "boolean"},
        "card": {"type": "string"},
        "by": {"type": "string", "enum": ["MAIL", "sms"]},
        "free": {},
        "either": {"type": ["string", "array"]},
        "to": {"type": "array", "items": {"type": "string", "format": "email"}},
        "days": {"type": "array", "items": {"type": "string", "enum": ["Mon", "Tue"]}},
        "slots": {"type": "array", "items": {"$ref": "#/$defs/Slot"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
    },
    "$defs": {"Slot": SLOT},
}
MEANT: list[tuple[dict[str, Any], str]] = [
    ({"bookIds": '["a"]', "slot": ' {"day": "friday"}'}, '{"bookIds":["a"],"slot":{"day":"friday"}}'),
    ({"slot": {"Day": "Monday", "from_hour": "9"}}, '{"slot":{"day":"monday","fromHour":9}}'),
    ({"rows": '[["a", 1], [2.50]]'}, '{"rows":[["a","1"],["2.50"]]}'),
    ({"book_ids": ["a"], "Card": "c"}, '{"bookIds":["a"],"card":"c"}'),
    ({"number": "3", "share": "1.50", "paid": "True"}, '{"number":3,"share":1.50,"paid":true}'),
    ({"bookIds": "a b"}, '{"bookIds":["a b"]}'),
    ({"card": 12, "by": "mail"}, '{"card":"12","by":"MAIL"}'),
    ({"to": "a@x.org, b@x.org", "days": "mon;Tue"}, '{"to":["a@x.org","b@x.org"],"days":["Mon","Tue"]}'),
    ({"slots": {"from_hour": 9}, "sizes": "4"}, '{"slots":[{"fromHour":9}],"sizes":[4]}'),
]
LEFT: list[dict[str, Any]] = [
    # They fit, or may be meant in another way, or in none.
    {"free": "[1]", "either": "[1]", "card": "[1]", "number": None},
    {"bookIds": "a, b", "slot": "[1]", "number": "3.5", "share": "1,5", "paid": "yes", "by": "post"},
    {"book_ids": ["a"], "bookIds": ["b"], "bookids": ["c"]},
    {"to": "Ann, a@x.org", "days": "Mon, Sun", "slots": "Mon", "sizes": "1,2"},
    {"slots": None, "sizes": "", "to": ""},
    {"share": "1e999", "bookIds": "[" * 40 + "]" * 40},
    {"card": {"a": 1}, "slot": True, "rows": "a"},
    {"slot": {"day": "sunday", "Day": "friday"}, "rows": [[None, ["x"]]]},
]


async def test_arguments_that_can_mean_one_thing_only_are_sent_as_the_tool_takes_them(
    workshop: Workshop,
) -> None:
    server = workshop.server("library", tools=[tool("book", "Books.", inputSchema=BOOKING)])
    given = [*(one for one, _ in MEANT), *LEFT]
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "modern")
        for one in given:
            await host.call("call_tool", {"name": "library__book", "arguments": one})
        # A text may have all of them.
        await host.call("call_tool", {"name": "library__book", "arguments": json.dumps(given[0])})
        # A host that calls a tool by its own name has its schema.
        await host.call("library__book", given[0])

    sent = [one["params"]["arguments"] for one in server.ledger.messages("tools/call")]
    assert sent == [*(json.loads(one) for _, one in MEANT), *LEFT, json.loads(MEANT[0][1]), given[0]]


NUMBER = {"type": "integer"}
FITTING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"properties": {"PATH": {"type": "string"}}, "additionalProperties": {"type": "string"}}, {"path": "/"}),
    ({"properties": {"id": NUMBER}, "additionalProperties": True}, {"ID": 5}),
    ({"properties": {"userId": {}}, "additionalProperties": {}}, {"user_id": 1}),
    ({"properties": {"a-b": NUMBER}, "patternProperties": {"^[a-z_]+$": NUMBER}}, {"a_b": 1}),
    ({"properties": {"userId": {}}, "anyOf": [{"properties": {"user_id": {}}}]}, {"user_id": 1}),
    ({"properties": {"userId": {}}, "allOf": [{"additionalProperties": NUMBER}]}, {"user_id": 1}),
    (
        {"properties": {"x": {"type": "array", "prefixItems": [NUMBER], "items": {"type": "string"}}}},
        {"x": [1, "a"]},
    ),
    ({"properties": {"x": {"enum": [1, "A", None, [2]]}}}, {"x": None}),
]


async def test_arguments_that_the_schema_takes_are_sent_as_they_are(workshop: Workshop) -> None:
    schemas = [{"type": "object", **one} for one, _ in FITTING]
    deep = [{"type": "object", "properties": {"of": one}} for one in schemas]
    needed = {**schemas[1], "required": ["id"]}
    tools = [tool(f"t{at}", inputSchema=one) for at, one in enumerate([*schemas, *deep, needed])]
    server = workshop.server("s", tools=tools)
    given = [*(one for _, one in FITTING), *({"of": one} for _, one in FITTING), {"ID": "5", "Id": 6}]
    async with inside(workshop.config()) as proxy:
        for at, one in enumerate(given):
            await Host(proxy, "modern").call("call_tool", {"name": f"s__t{at}", "arguments": one})

    sent = [one["params"]["arguments"] for one in server.ledger.messages("tools/call")]
    # A name that is demanded is missing otherwise, so that the schema does refuse these.
    assert sent == [*given[:-1], {"id": 5, "Id": 6}]


async def test_a_schema_that_repeats_itself_costs_no_time(workshop: Workshop) -> None:
    """Thousands of parameters refer to thousands of values, and as many arguments are compared."""
    many = {"enum": [f"v{number}" for number in range(2_000)]}
    wide = {"type": "object", "properties": {f"p{number}": True for number in range(1_500)}}
    refer = {f"a{at}": {"$ref": f"#/$defs/{'wide' if at % 2 else 'many'}"} for at in range(900)}
    schema = {"type": "object", "properties": {"of": {"type": "array", "items": many}, **refer}}
    schema["$defs"] = {"many": many, "wide": wide}
    server = workshop.server("s", tools=[tool("t", inputSchema=schema)])
    arguments = {"of": ["x"] * 10_000}
    async with inside(workshop.config()) as proxy:
        began = time.process_time()
        answer = await Host(proxy, "modern").call("call_tool", {"name": "s__t", "arguments": arguments})
        assert not answer.get("isError"), answer
        spent = time.process_time() - began

    (sent,) = server.ledger.messages("tools/call")
    assert sent["params"]["arguments"] == arguments
    assert spent < 0.5


@pytest.mark.parametrize("given", ["UTC", [1]])
async def test_a_call_without_an_object_is_told_the_tool_and_the_object_that_it_takes(
    workshop: Workshop, given: object
) -> None:
    schema = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
    workshop.server("clock", tools=[tool("tell", "Tells time.", inputSchema=schema)])
    async with inside(workshop.config()) as proxy:
        answer = await Host(proxy, "modern").call("call_tool", {"name": "clock__tell", "arguments": given})

    assert answer["isError"]
    assert answer["content"][0]["text"] == (
        "arguments of tools/call must be an object\n"
        "It takes (zone: string). Missing: zone. Search for clock__tell to see all about it."
    )
