"""Definitions as hosts see them: as the server sent them, except for the name."""

import copy
import json
from typing import Any

from support.servers import real_lists
from support.tables import each

from mcp_context_proxy.catalog.definitions import prompt_definition, tool_definition
from mcp_context_proxy.items import Prompt, Tool


def exposed(definition: bytes) -> str:
    tool = Tool("s", "own", "s__own", definition, "fingerprint")
    return bytes(tool_definition(tool)).decode()


@each("server", sorted(real_lists()))
def test_a_real_definition_changes_in_its_name_and_in_what_apis_of_models_refuse(server: str) -> None:
    for tool in real_lists()[server]:
        sent, schema = json.dumps(tool).encode(), copy.deepcopy(tool["inputSchema"])
        expected = {**tool, "inputSchema": schema, "name": "s__own"}
        if "properties" not in schema:
            expected["inputSchema"] = {"type": "object", **schema, "properties": {}}

        if tool["name"] == "hubspot-search-objects":  # An array without items.
            filters = schema["properties"]["filterGroups"]["items"]["properties"]["filters"]
            filters["items"]["properties"]["values"]["items"] = {}

        shown = json.loads(exposed(sent))

        assert json.dumps(shown) == json.dumps(expected)


def test_numbers_and_spaces_inside_stay_as_they_were_written() -> None:
    schema = '{"type":"object" , "default": 1.0e-07, "big": 123456789012345678901234567890, "properties":{}}'

    shown = exposed(f'{{"inputSchema": {schema},"name":"own"}}'.encode())

    assert schema in shown
    assert shown.endswith('"name":"s__own"}')


def test_unknown_members_of_a_prompt_stay() -> None:
    definition: dict[str, Any] = {"name": "greet", "x": [None], "arguments": [{"name": "a", "y": 1}]}
    prompt = Prompt("s", "greet", "s__greet", json.dumps(definition).encode())

    assert json.loads(bytes(prompt_definition(prompt))) == {**definition, "name": "s__greet"}


@each(
    ("definition", "description"),
    [
        (b'{"description": "caf\\u00e9"}', "café"),
        (b'{"name": "own"}', ""),
        (b'{"description": null}', ""),
        (b'{"description": ["Sends it."]}', ""),
        (b'{"description": "Draws it.", "description": "Sends it."}', "Sends it."),
    ],
)
def test_a_tool_is_described_by_its_definition(definition: bytes, description: str) -> None:
    assert Tool("s", "own", "s__own", definition, "fingerprint").description == description
