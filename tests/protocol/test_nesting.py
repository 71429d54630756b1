"""The depth of JSON equals that of a reference implementation that parses it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.protocol import READABLE_LEVELS, envelope, without_depths
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
