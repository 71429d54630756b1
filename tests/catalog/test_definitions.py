"""Definitions of untrusted servers: bounded, readable, and otherwise unchanged bytes."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers import real_lists
from support.tables import each

from mcp_context_proxy.catalog.definitions import UnfitError, fit, with_description
from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.http_client import header_map
from mcp_context_proxy.protocol.strangers import clean

LIMITS = Limits()
HIDDEN = "\u200b\u202e\U000e0041\x07\x1b[8m\x9b31m"


def encoded(**members: Any) -> bytes:
    return json.dumps({"name": "t", "inputSchema": {"type": "object"}} | members).encode()


def fitted(definition: bytes, limits: Limits = LIMITS) -> Any:
    return json.loads(fit(definition, limits)[0])


def test_definitions_of_real_tools_are_not_changed_by_a_byte() -> None:
    for tools in real_lists().values():
        for tool in tools:
            for definition in (json.dumps(tool).encode(), json.dumps(tool, ensure_ascii=False).encode()):
                texts = json.dumps(tool, ensure_ascii=False)
                if clean(texts) == texts and "\\r" not in texts:
                    assert fit(definition, LIMITS) == (definition, "")


def test_invisible_characters_are_removed_from_texts_at_every_depth() -> None:
    schema = {"type": "object", "title": f"a{HIDDEN}b", "properties": {"x": {"description": f"c{HIDDEN}d"}}}

    found = fitted(encoded(description=f"e{HIDDEN}f", title=f"g{HIDDEN}h", inputSchema=schema))

    assert (found["description"], found["title"]) == ("ef", "gh")
    assert found["inputSchema"]["title"] == "ab"
    assert found["inputSchema"]["properties"]["x"]["description"] == "cd"


@each(
    ("written", "meant"),
    [
        ("Description", "description"),
        ("DE\u017fCRIPTION", "description"),
        ("input_schema", "inputSchema"),
        ("Name", "name"),
        ("annotations ", "annotations"),
        ("t\u0131tle", "title"),
    ],
)
def test_a_member_that_some_hosts_read_as_another_is_left_out(written: str, meant: str) -> None:
    """Libraries for Go compare names in any case (CVE-2026-27896), the SDK for Python reads snake case."""
    plain = encoded(description="d", annotations={"readOnlyHint": False}, **{"x-other": 1})
    odd = json.dumps(json.loads(plain) | {written: json.loads(plain).get(meant, "x")}).encode()

    assert fitted(odd) == json.loads(plain)
    assert fit(plain, LIMITS) == (plain, "")


def test_a_hint_that_only_some_hosts_read_is_left_out() -> None:
    odd = encoded(annotations={"read_only_hint": True, "DestructiveHint": False, "title": "t"})

    assert fitted(odd)["annotations"] == {"title": "t"}


def test_no_escape_hides_a_member_from_those_who_look_for_it() -> None:
    plain = {"icons": [{"src": "javascript:alert(1)"}], "inputSchema": {"x-mcp-header": "A"}}
    icons, header = '"\\u0069cons":[{"src":"javascript:alert(1)"}]', '"x\\u002dmcp\\u002Dheader":"A"'
    escaped = f'{{"name":"t",{icons},"inputSchema":{{{header}}}}}'.encode()
    honest = rb'{"name":"t","inputSchema":{},"description":"1 \u003c 2 \u0026 \u0027, \u00e9"}'

    assert b"\\" not in fit(escaped, LIMITS)[0]
    assert fitted(escaped) == fitted(encoded(**plain))
    assert header_map(escaped)[1:] == header_map(encoded(**plain))[1:]
    assert fit(honest, LIMITS) == (honest, "")


def test_scripts_and_emoji_keep_the_joiners_that_they_need() -> None:
    text = "👩\u200d💻 می\u200cخواهم क्\u200dष ❤\ufe0f\nline two\ttabbed"

    assert fitted(encoded(description=text))["description"] == text


@each(
    "schema",
    [
        pytest.param({"properties": {"a\u200b": {}}}, id="a-property"),
        pytest.param({"properties": {"a": {"enum": ["x", "y\U000e0041"]}}}, id="an-enum"),
        pytest.param({"properties": {"a": {"default": "\u202e"}}}, id="a-default"),
        pytest.param({"properties": {"description": {"const": "\x1b[8m"}}}, id="under-a-telling-name"),
    ],
)
def test_a_tool_with_invisible_characters_in_names_or_values_is_withheld(schema: Any) -> None:
    with pytest.raises(UnfitError, match="hides characters"):
        fit(encoded(inputSchema=schema), LIMITS)


@each(
    ("pattern", "shown"),
    [
        ("^[^\u0000-\u001f\u200b]+$", r"^[^\u0000-\u001f\u200b]+$"),
        ("a\\\u200b\\\\\u202e", r"a\u200b\\\u202e"),
        (r"^\u200b\\.é\n", r"^\u200b\\.é\n"),
    ],
)
def test_invisible_characters_in_a_pattern_are_shown_as_escapes(pattern: str, shown: str) -> None:
    schema = {"properties": {"a": {"pattern": pattern}}}

    assert fitted(encoded(inputSchema=schema))["inputSchema"] == {"properties": {"a": {"pattern": shown}}}


def test_a_tool_whose_pattern_cannot_be_escaped_is_withheld() -> None:
    with pytest.raises(UnfitError, match="hides characters in 'pattern'"):
        fit(encoded(inputSchema={"properties": {"a": {"pattern": "a\U000e0041"}}}), LIMITS)


def test_a_property_named_description_is_not_treated_as_a_description() -> None:
    schema = {"properties": {"description": {"type": "string", "description": "of it\u200b"}}}

    assert fitted(encoded(inputSchema=schema))["inputSchema"]["properties"]["description"] == {
        "type": "string",
        "description": "of it",
    }


def test_a_long_description_is_cut_with_a_mark_and_at_a_character() -> None:
    found = fitted(encoded(description="é" * 20_000))["description"]

    assert found.startswith("é" * 8192 + " …")
    assert "16,384 of 40,000 bytes" in found


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth - 1):
        schema = {"properties": schema}
    return schema


def test_nesting_is_counted_from_the_top_of_the_definition() -> None:
    assert fitted(encoded(inputSchema=nested(63)))
    with pytest.raises(UnfitError, match="deeper than 64 levels"):
        fit(encoded(inputSchema=nested(64)), LIMITS)


@pytest.mark.parametrize("member", ["inputSchema", "outputSchema"])
def test_a_schema_of_too_many_values_or_bytes_is_withheld(member: str) -> None:
    many = {"enum": list(range(10_001))}
    with pytest.raises(UnfitError, match="more than 10,000 values"):
        fit(encoded(**{member: many}), LIMITS)
    with pytest.raises(UnfitError, match="over 262,144 bytes"):
        fit(encoded(**{member: {"description": "x" * 262_144}}), LIMITS)


def test_commas_inside_strings_are_not_counted_as_values() -> None:
    assert fitted(encoded(inputSchema={"description": ",[{" * 4000}))


TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)


@given(TEXTS, TEXTS)
def test_no_accepted_definition_has_invisible_characters_in_its_texts(description: str, title: str) -> None:
    found = fitted(encoded(description=description, inputSchema={"title": title}))

    for text in (found["description"], found["inputSchema"]["title"]):
        assert clean(text) == text
        assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in text)


def test_a_configured_description_replaces_that_of_the_server_and_nothing_else() -> None:
    sent = b'{"name":"x","description":"Bad.","inputSchema":{"type":"object"},"_meta":{"a":[1,2.50]}}'

    assert with_description(sent, "Good.") == sent.replace(b"Bad.", b"Good.")
