"""Schemas that an API of models refuses are listed in another form, and all others as they came."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from support.servers import real_lists
from support.tables import each

from mcp_context_proxy.catalog.definitions import taken_by_models
from mcp_context_proxy.catalog.model_schemas import PARTS
from mcp_context_proxy.server.meta_definitions import Setup, definitions, read_result

ONE, TWO = {"type": "string"}, {"type": "number"}


def listed(schema: Any) -> Any:
    return json.loads(bytes(taken_by_models(Raw(json.dumps(schema).encode()))[0]))


def problems(schema: Any, at_root: bool = True) -> list[str]:
    """Return what an API refuses in a schema, as the reports of hosts have it."""
    if not isinstance(schema, dict):
        return [f"{schema!r} is no object"]
    found = []
    if at_root:
        found += [key for key in ("anyOf", "oneOf", "enum", "not", "$ref") if key in schema]
        found += ["allOf"] if "allOf" in schema and "properties" not in schema else []
        found += (
            [] if schema.get("type") == "object" and "properties" in schema else ["no object at the root"]
        )
        found += [name for name in schema.get("properties", {}) if not name.isascii() or "[" in name]
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        found.append("an array without items")
    if not isinstance(schema.get("required", []), list):
        found.append("required is no list")
    for told in (
        *schema.get("properties", {}).values(),
        *schema.get("anyOf", []),
        *schema.get("prefixItems", []),
    ):
        found += problems(told, at_root=False)
    if "items" in schema:
        found += problems(schema["items"], at_root=False)
    return found


def test_the_schemas_of_real_servers_are_listed_as_they_came_unless_an_api_refuses_them() -> None:
    changed = []
    for tools in real_lists().values():
        for tool in tools:
            before = Raw(json.dumps(tool["inputSchema"]).encode())
            after, left_out = taken_by_models(before)
            assert not problems(json.loads(bytes(after)))
            if bytes(after) != bytes(before):
                changed.append((tool["name"], left_out))
            else:
                assert not problems(tool["inputSchema"])
    assert len(changed) < 60


def test_choices_at_the_root_become_properties_of_which_only_the_common_ones_are_required() -> None:
    schema = {
        "anyOf": [
            {"properties": {"id": ONE, "url": ONE}, "required": ["id", "url"]},
            {"properties": {"id": TWO, "file": ONE}, "required": ["id", "file"]},
        ]
    }

    assert listed(schema) == {
        "type": "object",
        "properties": {"id": {"anyOf": [ONE, TWO]}, "url": ONE, "file": ONE},
        "required": ["id"],
    }


def test_demands_of_one_of_several_properties_are_left_to_the_server() -> None:
    schema = {
        "type": "object",
        "properties": {"route": ONE, "file": ONE, "deep": ONE},
        "required": ["deep"],
        "oneOf": [{"required": ["route"]}, {"required": ["file"]}],
    }

    assert listed(schema) == {key: schema[key] for key in ("type", "properties", "required")}


def test_what_the_root_refers_to_and_what_it_combines_stand_at_the_root() -> None:
    schema = {
        "$ref": "#/$defs/Input",
        "$defs": {
            "Input": {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": ONE}, "required": ["b"]}]},
            "Base": {"properties": {"a": TWO}, "required": ["a"]},
        },
    }

    found = listed(schema)

    assert (found["properties"], found["required"]) == ({"a": TWO, "b": ONE}, ["a", "b"])


def test_conditions_beside_properties_stay_as_the_protocol_asks() -> None:
    schema = {
        "type": "object",
        "properties": {"a": ONE, "b": TWO},
        "allOf": [{"anyOf": [{"required": ["a"]}]}],
    }

    assert listed(schema) == schema


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    assert listed({"$ref": "#"})["properties"] == {}
    assert listed({"allOf": [{"$ref": "#"}] * 4000})["type"] == "object"


def test_of_too_many_choices_the_first_are_listed() -> None:
    found = listed({"anyOf": [{"properties": {f"p{number}": ONE}} for number in range(1000)]})

    assert list(found["properties"]) == [f"p{number}" for number in range(PARTS - 1)]


@each(
    ("written", "now"),
    [
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": ["array", "null"]}, {"type": ["array", "null"], "items": {}}),
        ({"type": "array", "items": [ONE, TWO]}, {"type": "array", "prefixItems": [ONE, TWO], "items": {}}),
        (True, {}),
        (False, {"not": {}}),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True},
         {"type": "number", "minimum": 0, "exclusiveMinimum": 0}),
        ({"type": "string", "required": True}, ONE),
        ({"type": "any", "description": "x"}, {"description": "x"}),
        ({"type": "string", "description": None, "default": None}, {"type": "string", "default": None}),
        ({"type": "string", "enum": []}, {"type": "string", "enum": []}),
    ],
)  # fmt: skip
def test_what_only_old_versions_of_json_schema_have_is_written_anew(written: Any, now: Any) -> None:
    schema = {"type": "object", "properties": {"x": written}}

    assert listed(schema)["properties"]["x"] == now


def test_a_property_whose_name_an_api_refuses_is_left_out_and_named() -> None:
    schema = {
        "type": "object",
        "properties": {"uids[]": ONE, "größe": ONE, "a.b-c_d": ONE, "x" * 65: ONE},
        "required": ["uids[]", "a.b-c_d"],
        "additionalProperties": False,
    }

    found, left_out = taken_by_models(Raw(json.dumps(schema).encode()))

    assert json.loads(bytes(found)) == {
        "type": "object",
        "properties": {"a.b-c_d": ONE},
        "required": ["a.b-c_d"],
    }
    assert left_out == ["uids[]", "größe", "x" * 65]


def test_a_large_number_stays_what_it_was() -> None:
    schema = {"properties": {"x": {"type": "integer", "maximum": 10**30}}}

    assert listed(schema)["properties"]["x"]["maximum"] == 10**30


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "$ref",
                    "required",
                    "enum",
                    "$defs",
                    "x[]",
                ]
            ),
            inner | st.sampled_from(["array", "object", "#/$defs/x"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@example({"properties": {"type": {"items": []}, "properties": {"type": None, "x[]": "array"}}})
@given(st.dictionaries(st.sampled_from(["type", "properties", "anyOf", "allOf", "$ref", "$defs"]), ANYTHING))
def test_whatever_a_server_writes_is_listed_in_a_form_that_is_taken_and_stays_as_it_is_then(
    schema: Any,
) -> None:
    first = listed(schema)

    assert not problems(first)
    assert listed(first) == first


def test_the_proxys_own_tools_are_taken_as_they_are() -> None:
    setup = Setup(["git"], True, set_context=True, manage=True, recall=True)
    own = [json.loads(bytes(one)) for one in (*definitions(setup, whole=False), read_result())]

    assert len(own) == 8
    for definition in own:
        schema = definition["inputSchema"]
        assert listed(schema) == schema
        assert not problems(schema)
