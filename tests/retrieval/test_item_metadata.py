"""Category, tags and hints of items, and their origin."""

import json
from typing import Any

from support import catalogs
from support.tables import each

from mcp_context_proxy.catalog.definitions import markers_of
from mcp_context_proxy.items import Document, Kind, Tool, ToolClass
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.item_metadata import (
    MAX_VALUES,
    NAME_LIMIT,
    Fields,
    item_text,
    metadata_of,
)
from mcp_context_proxy.trust import danger_of
from mcp_context_proxy.web.search import described


def tool(name: str, server: str = "srv", annotations: Any = None, **given: Any) -> Tool:
    definition = json.dumps({"name": name, "inputSchema": {}, "annotations": annotations}).encode()
    hinted = markers_of(envelope.members(definition)).hinted
    danger = danger_of(name, hinted, None, "")
    return Tool(server, name, f"{server}__{name}", definition, name, tool_class=danger.tool_class, **given)


def test_without_annotations_the_protocols_defaults_apply() -> None:
    metadata = metadata_of(tool("anything"))

    assert (metadata.read_only, metadata.destructive, metadata.open_world) == (False, True, True)


@each(
    ("annotations", "expected"),
    [
        ({"readOnlyHint": True}, (True, False, True)),
        ({"readOnlyHint": True, "destructiveHint": True}, (False, True, True)),
        ({"readOnlyHint": False}, (False, True, True)),
        ({"destructiveHint": False}, (False, False, True)),
        ({"openWorldHint": False}, (False, True, False)),
        ({"readOnlyHint": "true", "openWorldHint": 0}, (False, True, True)),
        ({}, (False, True, True)),
        ([], (False, True, True)),
        ("read-only", (False, True, True)),
    ],
)
def test_hints_are_interpreted_as_the_protocol_defines_them(
    annotations: Any, expected: tuple[bool, bool, bool]
) -> None:
    metadata = metadata_of(tool("anything", annotations=annotations))

    assert (metadata.read_only, metadata.destructive, metadata.open_world) == expected


def test_a_hint_does_not_make_a_tool_more_harmless_than_its_danger_class() -> None:
    deletes = tool("delete_all", annotations={"readOnlyHint": True, "destructiveHint": False})
    metadata = metadata_of(deletes)

    assert deletes.tool_class is ToolClass.DESTRUCTIVE
    assert (metadata.read_only, metadata.destructive) == (False, True)
    assert {"destructive", "read-only"} & metadata.all_tags == {"destructive"}


@each(
    ("server", "name", "derived"),
    [
        ("notes", "create_note", ["notes", "create"]),
        ("notes", "note_delete_all", ["notes", "delete", "destructive"]),
        ("my-git_server2", "listBranches", ["my-git_server2", "git", "read"]),
        ("runner", "run_python", ["runner", "run", "python"]),
        ("clock", "now", ["clock"]),
        ("mail", "find_and_delete", ["mail", "search", "destructive"]),
    ],
)
def test_tags_are_derived_from_server_and_name(server: str, name: str, derived: list[str]) -> None:
    assert list(metadata_of(tool(name, server)).derived_tags) == derived


def test_hints_that_a_server_gives_itself_are_tags_and_defaults_are_not() -> None:
    given = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": True}

    assert metadata_of(tool("x", annotations=given)).derived_tags == (
        "srv",
        "destructive",
        "idempotent",
        "open-world",
    )
    assert metadata_of(
        tool("x", annotations={"readOnlyHint": True, "destructiveHint": True})
    ).derived_tags == (
        "srv",
        "destructive",
    )
    assert metadata_of(tool("x", annotations={"readOnlyHint": True})).derived_tags == ("srv", "read-only")
    assert metadata_of(tool("x")).derived_tags == ("srv",)


def test_configured_tags_come_first_without_duplicates() -> None:
    made = described(tool("create_note", "notes", tags=("Desk ", "create"), category="Office"))

    assert made["category"] == {"name": "office", "origin": "configured"}
    assert made["tags"] == [
        {"name": "desk", "origin": "configured"},
        {"name": "create", "origin": "configured"},
        {"name": "notes", "origin": "derived"},
    ]


def test_the_default_category_is_the_server() -> None:
    assert described(tool("create_note", "Notes"))["category"] == {"name": "notes", "origin": "derived"}


def test_a_document_is_read_only_and_has_the_tags_of_its_front_matter() -> None:
    metadata = metadata_of(Document(Kind.RULE, "style", "", "", "x", tags=("Team", "team")))

    assert (metadata.category, metadata.tags, metadata.derived_tags) == ("rule", ("team",), ())
    assert (metadata.read_only, metadata.destructive, metadata.open_world) == (True, False, False)


def fields_of(several: bool = False, **members: Any) -> tuple[Fields, tuple[str, ...]]:
    configured = {key: members.pop(key) for key in ("use_cases", "tags", "category") if key in members}
    told = {"name": "fetch_it", "description": "Fetch a page.", "inputSchema": {}, **members}
    definition = json.dumps(told).encode()
    made = Tool("srv", "fetch_it", "srv__fetch_it", definition, "f", **configured)
    return item_text(made, several)


@each(
    ("members", "title"),
    [
        ({"title": "Web page reader"}, "Web page reader"),
        ({"annotations": {"title": "Web page reader"}}, "Web page reader"),
        ({"title": "Web page", "annotations": {"title": "Other"}}, "Web page"),
        ({"title": "Fetch It"}, ""),
        ({"title": 3}, ""),
        ({"title": "x" * 9_000}, "x" * NAME_LIMIT),
        ({}, ""),
    ],
)
def test_a_title_is_searched_unless_it_repeats_the_name(members: dict[str, Any], title: str) -> None:
    assert fields_of(**members)[0].title == title


def test_values_and_examples_of_parameters_are_searched() -> None:
    properties = {
        "format": {"type": "string", "enum": ["markdown", "html", 3, "x" * 500]},
        "city": {"type": "string", "examples": ["Rome"]},
        "flood": {"enum": [f"value{at}" for at in range(5_000)]},
    }
    values = fields_of(inputSchema={"type": "object", "properties": properties})[0].values.split()

    assert values[:3] == ["markdown", "html", "Rome"]
    assert len(values) == MAX_VALUES


def test_values_are_read_in_each_form_that_a_parameter_may_have() -> None:
    properties = {
        "several": {"type": "array", "items": {"enum": ["a"]}},
        "optional": {"anyOf": [{"enum": ["b"]}, {"type": "null"}]},
        "referred": {"$ref": "#/$defs/Page"},
        "one": {"oneOf": [{"const": "d"}, {"properties": {"size": {"const": "e"}}}]},
    }
    pages = {"Page": {"properties": {"color": {"enum": ["c"]}}}}
    schema = {"type": "object", "properties": properties, "$defs": pages}
    fields = fields_of(inputSchema=schema)[0]

    assert fields.values == "a b d c e"
    assert fields.parameters == "several optional referred one color size"


def test_each_thing_that_a_tool_does_by_a_parameter_is_a_chunk_of_its_own() -> None:
    names = ["delete", "step_into", "step_over", "list", "stack"]
    acts = [{"properties": {"action": {"const": name}}} for name in names]
    chunks = ("fetch it: step into", "fetch it: step over", "fetch it: stack")
    for action in ({"enum": names}, {"anyOf": acts}, {"enum": [*names, "a whole sentence"]}):
        schema = {"type": "object", "properties": {"action": action}}
        assert fields_of(inputSchema=schema)[1][1:4] == chunks
        assert all(
            "sentence" not in chunk.partition("Fetch")[0] for chunk in fields_of(inputSchema=schema)[1]
        )

    few = {"type": "object", "properties": {"action": {"enum": names[:3]}}}
    assert not any(chunk in fields_of(inputSchema=few)[1] for chunk in chunks)


def test_configured_tags_and_category_are_searched() -> None:
    assert fields_of(tags=("paper",), category="office")[0].labels == "paper office"


def test_each_use_case_is_a_chunk_of_its_own() -> None:
    fields, chunks = fields_of(use_cases=("read a web page to me", "save an article"))

    assert fields.use_cases == "read a web page to me\nsave an article"
    assert chunks == (
        "fetch it: Fetch a page.",
        "fetch it: read a web page to me",
        "fetch it: save an article",
    )
    assert fields_of(True, use_cases=("save an article",))[1][1] == "srv fetch it: save an article"


def test_a_title_and_labels_that_say_something_else_are_chunks_of_their_own() -> None:
    _, chunks = fields_of(title="Web reader", tags=("holidays",), category="office")

    assert chunks == ("fetch it: Fetch a page.", "fetch it: Web reader", "fetch it: holidays office")
    assert fields_of(title="Fetch pages")[1] == ("fetch it: Fetch a page.",)


def test_values_are_embedded_with_a_short_description() -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["payroll", "overtime"]}}}
    short = catalogs.tool("op19", "Produces a document.", schema=schema)
    long = catalogs.tool("op19", "Produces a document, with all that it takes. " * 3, schema=schema)

    assert item_text(short, False)[1][1:] == ("op 19: Produces a document. payroll overtime",)
    assert len(item_text(long, False)[1]) == 1


@each(
    ("query", "expected"),
    [
        ("put this customer into the archive", "op17"),
        ("payroll for march", "op19"),
        ("what is on the loading dock", "op20"),
        ("which people have birthdays", "op21"),
        ("who of my colleagues is away next week", "op22"),
        ("make it grayscale", "op25"),
    ],
)
def test_badly_described_tools_are_found_by_their_other_fields(
    engine: Engine, query: str, expected: str
) -> None:
    def operation(name: str, description: str, members: dict[str, Any], **configured: Any) -> Tool:
        told = {"name": name, "description": description, "inputSchema": {}, **members}
        definition = json.dumps(told).encode()
        return Tool("odd", name, f"odd__{name}", definition, name, **configured)

    def schema(**values: Any) -> dict[str, Any]:
        return {"inputSchema": {"type": "object", "properties": {"it": {"type": "string", **values}}}}

    tools = (
        operation("op17", "Runs operation 17.", {"title": "Archive a customer record"}),
        operation("op19", "Produces a document.", schema(enum=["attendance", "payroll"])),
        operation("op20", "Looks at the stock.", schema(examples=["loading dock"])),
        operation("op21", "Runs operation 21.", {}, tags=("birthdays",)),
        operation("op22", "Runs operation 22.", {}, use_cases=("find out who is on holiday next week",)),
        operation("op25", "Runs operation 25.", schema(enum=["grayscale", "sepia"])),
    )
    others = [
        catalogs.tool("add_picture", "Add an image to a document.", server="word"),
        catalogs.tool("list_users", "List the users of the workspace.", server="chat"),
        catalogs.tool("copy_document", "Create a copy of a document.", server="word"),
    ]
    ranking = engine.search(query, catalogs.snapshot(*tools, *others))

    assert ranking.fits
    assert ranking.results[0].item.name == expected
