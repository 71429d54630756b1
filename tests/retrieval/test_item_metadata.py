"""Category, tags and hints of items, and their origin."""

import json
from typing import Any

import pytest

from mcp_context_proxy.items import Document, Kind, Tool
from mcp_context_proxy.retrieval.item_metadata import described, metadata_of


def tool(name: str, server: str = "srv", annotations: Any = None, **given: Any) -> Tool:
    definition = json.dumps({"name": name, "inputSchema": {}, "annotations": annotations}).encode()
    return Tool(server, name, f"{server}__{name}", "", definition, name, **given)


def test_without_annotations_the_protocols_defaults_apply() -> None:
    metadata = metadata_of(tool("anything"))

    assert (metadata.read_only, metadata.destructive, metadata.open_world) == (False, True, True)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"readOnlyHint": True}, (True, False, True)),
        ({"readOnlyHint": True, "destructiveHint": True}, (True, False, True)),
        ({"readOnlyHint": False}, (False, True, True)),
        ({"destructiveHint": False}, (False, False, True)),
        ({"openWorldHint": False}, (False, True, False)),
        ({"readOnlyHint": "true", "openWorldHint": 0}, (False, True, True)),
        ({}, (False, True, True)),
        ([], (False, True, True)),
        ("read-only", (False, True, True)),
    ],
    ids=str,
)
def test_hints_are_interpreted_as_the_protocol_defines_them(
    annotations: Any, expected: tuple[bool, bool, bool]
) -> None:
    metadata = metadata_of(tool("anything", annotations=annotations))

    assert (metadata.read_only, metadata.destructive, metadata.open_world) == expected


@pytest.mark.parametrize(
    ("server", "name", "derived"),
    [
        ("notes", "create_note", ["notes", "create"]),
        ("notes", "note_delete_all", ["notes", "delete"]),
        ("my-git_server2", "listBranches", ["my-git_server2", "git", "read"]),
        ("runner", "run_python", ["runner", "run", "python"]),
        ("clock", "now", ["clock"]),
        ("mail", "find_and_delete", ["mail", "search"]),
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
        "read-only",
    )
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
