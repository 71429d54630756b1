"""A replica writes back the fields that a newer version has put into a row, though it cannot read them."""

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.tables import each

from mcp_context_proxy.cluster import ContextState, decoded, encoded
from mcp_context_proxy.context import NO_OVERRIDES
from mcp_context_proxy.items import Kind

PLAIN: dict[str, Any] = {"id": "r1", "created": 1.5, "query": "send", "added": [["tool", "desk__send"]]}
OPTIONS = json.loads(msgspec.json.encode(NO_OVERRIDES))


def written_after(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The row after this version has read it, changed something, and written it."""
    state, unknown = decoded(json.dumps(row).encode())
    for name, value in changes.items():
        setattr(state, name, value)
    written: dict[str, Any] = json.loads(encoded(state, unknown))
    return written


def test_a_member_that_is_not_known_stays_in_the_row() -> None:
    row = PLAIN | {"mood": {"calm": [1, None]}, "flags": []}

    assert written_after(row) == row
    assert written_after(row, query="read", requests=2) == row | {"query": "read", "requests": 2}


def test_an_option_that_is_not_known_stays_beside_those_that_are_changed() -> None:
    tools = OPTIONS["tools"] | {"diversity": 0.5}
    row = PLAIN | {"overrides": OPTIONS | {"max_tokens": 50, "voice": "low", "tools": tools}}

    assert written_after(row, query="read") == row | {"query": "read"}
    changed = written_after(row, overrides=replace(NO_OVERRIDES, max_tokens=70))
    assert changed == row | {"overrides": row["overrides"] | {"max_tokens": 70}}


def test_an_element_of_a_kind_that_is_not_known_stays_beside_the_others() -> None:
    row = PLAIN | {"added": [["skill", "letters"], ["tool", "desk__send"]]}
    state, _ = decoded(json.dumps(row).encode())

    assert state.added == [(Kind.TOOL, "desk__send")]
    assert written_after(row, requests=1) == row | {"requests": 1}
    assert written_after(row, added=[])["added"] == [["skill", "letters"]]
    assert written_after(row, added=[(Kind.RULE, "tone")])["added"] == [
        ["rule", "tone"],
        ["skill", "letters"],
    ]


def test_a_value_that_cannot_be_read_stays_until_this_version_sets_another() -> None:
    row = PLAIN | {"log_level": {"server": "debug"}}
    state, _ = decoded(json.dumps(row).encode())

    assert state.log_level is None
    assert written_after(row) == row
    assert written_after(row, log_level="info")["log_level"] == "info"


def test_what_all_versions_know_is_written_as_it_was() -> None:
    state = ContextState(id="r1", created=1.0, query="send", answer=("a", "b"))

    assert decoded(encoded(state)) == (state, {})


@each("damaged", [b"", b"[]", b"{}", b'{"id": 1, "created": 2}', b'{"id": "r"'])
def test_a_damaged_row_is_refused(damaged: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoded(damaged)
