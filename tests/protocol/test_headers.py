"""Headers that repeat parts of a request: agreement, contradiction, and mistakes in a schema."""

from collections.abc import Iterable
from typing import Any

import pytest
from support.tables import each

from mcp_context_proxy.protocol import envelope, eras, headers
from mcp_context_proxy.protocol.envelope import RequestError

META = {eras.VERSION_KEY: eras.MODERN_VERSION, eras.CLIENT_CAPABILITIES_KEY: {}}
SENT = {headers.VERSION_HEADER: eras.MODERN_VERSION, headers.METHOD_HEADER: "tools/call"}
SCHEMA: dict[str, Any] = {
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "deep": {"type": "object", "properties": {"on": {"type": "boolean", "x-mcp-header": "On"}}},
    }
}


def routing(fields: list[tuple[str, str]], name: str = "s__echo") -> None:
    params = {"name": envelope.raw(name), "_meta": envelope.raw(META)}
    headers.check_routing(sent_as(fields), "tools/call", params, eras.meta_of(params))


def sent_as(fields: Iterable[tuple[str, str]]) -> headers.HeaderFields:
    return headers.HeaderFields((name.lower().encode(), value.encode()) for name, value in fields)


def arguments(
    sent: dict[str, str], given: dict[str, Any], schema: dict[str, Any] = SCHEMA, *, required: bool = True
) -> None:
    raw = {name: envelope.raw(value) for name, value in given.items()}
    headers.check_arguments(sent_as(sent.items()), schema, raw, required=required)


@each("name", ["s__echo", "grüße", " edge ", "=?base64?eA==?="])
def test_headers_that_repeat_the_body_are_accepted(name: str) -> None:
    routing([*SENT.items(), (headers.NAME_HEADER, headers.encoded(name))], name)


@each(
    "fields",
    [
        list(SENT.items()),
        [*SENT.items(), (headers.NAME_HEADER, "other")],
        [*SENT.items(), (headers.NAME_HEADER, "=?base64?%%%?=")],
        [*SENT.items(), (headers.NAME_HEADER, "s__echo"), (headers.NAME_HEADER, "s__echo")],
        [(headers.VERSION_HEADER, eras.MODERN_VERSION), (headers.NAME_HEADER, "s__echo")],
        [*({**SENT, headers.VERSION_HEADER: "2025-11-25"}).items(), (headers.NAME_HEADER, "s__echo")],
    ],
)
def test_a_header_that_is_missing_doubled_or_wrong_is_refused(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(RequestError) as refused:
        routing(fields)

    assert refused.value.code == headers.HEADER_MISMATCH


def test_what_a_client_writes_is_what_the_proxy_accepts() -> None:
    given = {"region": "Köln ", "count": 42, "deep": {"on": True}}

    sent = headers.argument_headers(headers.header_map_of(SCHEMA), given)

    assert sent == {
        "Mcp-Param-Region": "=?base64?S8O2bG4g?=",
        "Mcp-Param-Count": "42",
        "Mcp-Param-On": "true",
    }
    arguments(sent, given)
    arguments({"Mcp-Param-Count": "42.0"}, {"count": 42})


@each(
    ("sent", "given"),
    [
        ({}, {"region": "eu"}),
        ({"Mcp-Param-Region": "eu"}, {}),
        ({"Mcp-Param-Region": "us"}, {"region": "eu"}),
        ({"Mcp-Param-Count": "42.5"}, {"count": 42}),
        ({"Mcp-Param-Count": "43"}, {"count": 42}),
        ({"Mcp-Param-Region": "x"}, {"region": ["x"]}),
    ],
)
def test_an_argument_that_its_header_contradicts_is_refused(
    sent: dict[str, str], given: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as refused:
        arguments(sent, given)

    assert refused.value.code == headers.HEADER_MISMATCH


@each(
    "schema",
    [
        {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "not a token"}}},
        {"items": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}},
        {"properties": {name: {"type": "string", "x-mcp-header": header} for name, header in ("aA", "ba")}},
    ],
)
def test_a_schema_with_a_mistake_asks_for_no_header(schema: dict[str, Any]) -> None:
    assert headers.fault_in(schema) is not None
    arguments({}, {"a": "x"}, schema)


def test_headers_that_nobody_has_asked_for_hold_too() -> None:
    arguments({}, {"region": "eu"}, required=False)
    arguments({"Mcp-Param-Region": "eu"}, {"region": "eu"}, required=False)
    with pytest.raises(RequestError, match="contradicts the argument 'region'"):
        arguments({"Mcp-Param-Region": "us"}, {"region": "eu"}, required=False)


def test_an_argument_too_large_to_be_looked_at_is_refused_where_headers_repeat_it() -> None:
    arguments({}, {"other": [[]] * 100_000})
    with pytest.raises(RequestError, match="the argument 'deep' has 300,001 bytes; 65,536 are allowed"):
        arguments({}, {"deep": [[]] * 100_000})
