"""The depth of JSON equals that of a reference implementation that parses it."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.protocol import READABLE_LEVELS, envelope, without_depths, without_strings
from mcp_context_proxy.protocol.envelope import nests_deeper

TEXT = st.text(alphabet='[]{}"\\\\é a', max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXT | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.booleans())
def test_the_measured_depth_is_that_of_the_parsed_value(value: Any, escaped: bool) -> None:
    encoded = json.dumps(value, ensure_ascii=escaped).encode()

    assert not nests_deeper(encoded, depth(value))
    assert depth(value) == 0 or nests_deeper(encoded, depth(value) - 1)


@each("character", ["x", "[", '\\"', "\\\\"])
def test_the_measured_depth_does_not_depend_on_chunks(character: str) -> None:
    encoded = json.dumps([[character * 50, [{"a": [character]}]]]).encode()
    for size in range(1, len(encoded)):
        assert nests_deeper(encoded, 4, size)
        assert not nests_deeper(encoded, 5, size)


def test_a_hundred_thousand_levels_are_counted_without_parsing() -> None:
    assert nests_deeper(b"[" * 100_000, 190)


@each("text", ["", "]", '\\"]', "\\\\", "x" * 50])
def test_what_is_too_deep_is_left_out_and_the_rest_stays_byte_for_byte(text: str) -> None:
    string = json.dumps([text]).encode()
    before, after = b'{"a": ' + string + b', "b": [', b"1, " + string + b"]}"
    deep = b"[" * 5_000 + string + b"]" * 5_000
    opened = READABLE_LEVELS - 2
    expected = before + b"[" * opened + b"null" + b"]" * opened + b", " + after
    for size in (7, 64, 1 << 20):
        assert without_depths(before + deep + b", " + after, size) == expected


@each("encoded", [b"{}", b'["[[["]', b"[" * 600, b"]" * 600, b"[[],[]]"])
def test_where_nothing_is_too_deep_nothing_is_left_out(encoded: bytes) -> None:
    assert without_depths(encoded) is None


def test_a_request_of_a_server_that_cannot_be_read_is_not_cut() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(envelope.MalformedError):
        envelope.decode_from_server(b'{"jsonrpc":"2.0","method":"x","params":{"a":' + deep + b"}}")


LONG = "x, [{ 1e999 } " * 300
"""A text with everything in it that counts outside of strings, and long enough for the quotes around it."""


def with_long_strings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key + LONG: with_long_strings(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_long_strings(inner) for inner in value]
    return LONG + value if isinstance(value, str) else value


def with_empty_strings(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"": {with_empty_strings(inner)}' for inner in value.values()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(with_empty_strings, value)) + "]"
    return '""' if isinstance(value, str) else json.dumps(value)


@given(VALUES, st.booleans())
@example(["\\" * 70], False)
@example(['"' * 5_000], False)
def test_without_its_strings_json_has_the_same_values(value: Any, escaped: bool) -> None:
    large = [with_long_strings(value), LONG * 20]

    bare = without_strings(json.dumps(large, ensure_ascii=escaped).encode())

    assert bare.decode() == with_empty_strings(large)


@each("text", [LONG * 20, '"quoted", ' * 20_000, 'a line of "text"\n' * 8_000, "\\" * 100_000])
def test_little_is_left_of_a_long_text(text: str) -> None:
    encoded = json.dumps({"content": [{"type": "text", "text": text}]}).encode()

    assert without_strings(encoded) == b'{"": [{"": "", "": ""}]}'


def test_json_of_many_short_strings_is_left_as_it_is() -> None:
    encoded = json.dumps(["short"] * 50_000).encode()

    assert without_strings(encoded) == encoded


@each("number", [b"1e999", b"-" + b"9" * 400])
def test_a_number_too_large_is_found_wherever_it_is(number: bytes) -> None:
    for before in (0, 65_000, 65_530, 65_535, 65_540, 130_000):
        text = b"x" * before
        assert envelope.overflows(b'["' + text + b'",' + number + b',"' + b"x" * 100_000 + b'"]')
        assert not envelope.overflows(b'["' + text + number + b'","' + b"x" * 100_000 + b'"]')
