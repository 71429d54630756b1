"""Checks the HTTP headers in which a modern client repeats parts of its request, and makes those of a client.

Version, method and name of the target stand in headers of their own. A tool may ask by ``x-mcp-header`` in
its schema that an argument is repeated as well, as ``Mcp-Param-NAME``. What stands in between may decide by
these headers alone, so a header that contradicts the body refuses the request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, TAKEN_APART_BYTES, Members, RequestError
from mcp_context_proxy.system.later import pattern

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
PARAM_PREFIX: Final = "Mcp-Param-"

HEADER_MISMATCH: Final = -32020
"""Error code of the modern era: a header is missing, or contradicts the body."""

NAMED: Final = {
    **{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"},
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}
"""Methods whose target is repeated in a header, and the param that names it."""

SCHEMA_KEY: Final = "x-mcp-header"

_PARAM_PREFIX: Final = PARAM_PREFIX.lower()
_ONCE: Final = (VERSION_HEADER, METHOD_HEADER, NAME_HEADER)
_PLAIN: Final = pattern(r"[\x20-\x7e]*")
_WRAPPED: Final = pattern(r"=\?base64\?(.*)\?=")
_TOKEN: Final = pattern(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL: Final = pattern(r"(-?\d+)(?:\.0+)?")
_NUMBER: Final = pattern(r"-?\d+(\.\d+)?")
_TYPES: Final = ("string", "integer", "boolean")
"""Types of arguments that may be repeated: their text is the same in every language."""

_ONE_SCHEMA: Final = (
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames",
    "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTED_SCHEMAS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED_SCHEMAS: Final = ("$defs", "definitions", "dependentSchemas", "patternProperties")


class HeaderFields:
    """The headers of a request by their names, which are in lower case."""

    __slots__ = ("_values",)

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in headers:
            self._values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def all(self, name: str) -> list[str]:
        """Return the values of a header that may come several times."""
        return self._values.get(name, [])

    def get(self, name: str) -> str | None:
        """Return the value of a header, the last one if there are several."""
        values = self._values.get(name)
        return None if values is None else values[-1]


def check_routing(headers: HeaderFields, method: str, params: Members, meta: Members) -> None:
    """Check version, method and target in the headers against the body of a modern request.

    `meta` is the ``_meta`` of the params, decoded. Raises `RequestError` if one is missing, comes twice, or
    contradicts the body.
    """
    for name in _ONCE:
        if len(headers.all(name)) > 1:
            raise RequestError(HEADER_MISMATCH, f"the header {name} comes more than once")
    missing = [key for key in (eras.VERSION_KEY, eras.CLIENT_CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise RequestError(INVALID_PARAMS, f"_meta must be an object with {' and '.join(missing)}")
    for name, text in (
        (VERSION_HEADER, envelope.text(meta[eras.VERSION_KEY])),
        (METHOD_HEADER, method),
    ):
        if text is None or headers.get(name) != text:
            raise RequestError(HEADER_MISMATCH, f"the header {name} must say {text!r}, as the body does")
    target = NAMED.get(method)
    named = None if target is None else params.get(target)
    if (
        named is not None
        and bytes(named) != b"null"
        and decoded(headers.get(NAME_HEADER)) != envelope.text(named)
    ):
        raise RequestError(HEADER_MISMATCH, f"the header {NAME_HEADER} must repeat the param {target}")


def repeats_arguments(headers: HeaderFields) -> bool:
    return any(name.startswith(_PARAM_PREFIX) for name in headers)


def check_arguments(
    headers: HeaderFields, schema: Mapping[str, Any], given: Members, *, required: bool = True
) -> None:
    """Check the headers that repeat arguments of a call; a schema with a mistake in it asks for none.

    Args:
        headers: Headers of the request.
        schema: Input schema of the tool.
        given: Arguments of the call.
        required: Whether a header may not be missing.

    Raises:
        RequestError: one is missing, comes twice, or contradicts its argument, or that is too large to be
            looked at.
    """
    if fault_in(schema) is not None:
        return
    declared = list(_declared(schema))
    arguments = {name: _looked_at(name, given) for name in {path[0] for path, *_ in declared} & given.keys()}
    for path, name, place in declared:
        header, argument = PARAM_PREFIX + name, ".".join(path)
        raw, text = headers.get(header.lower()), _as_text(_at(arguments, path))
        if raw is None and text is None:
            continue
        if len(headers.all(header.lower())) > 1:
            raise RequestError(HEADER_MISMATCH, f"the header {header} comes more than once")
        if raw is None and not required:
            continue
        if raw is None:
            raise RequestError(HEADER_MISMATCH, f"the header {header} must repeat the argument {argument!r}")
        said = decoded(raw)
        if text is None or said is None or not _agree(place.get("type"), _at(arguments, path), text, said):
            problem = f"the header {header} contradicts the argument {argument!r}"
            raise RequestError(HEADER_MISMATCH, problem)


def argument_headers(
    header_map: Mapping[tuple[str, ...], str], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """Return the headers that repeat arguments of a call, by the map that `header_map_of` made."""
    texts = {name: _as_text(_at(arguments, path)) for path, name in header_map.items()}
    return {PARAM_PREFIX + name: encoded(text) for name, text in texts.items() if text is not None}


def header_map_of(schema: Any) -> dict[tuple[str, ...], str]:
    """Return the header of each argument that a schema wants repeated, by the path of the argument."""
    return {path: name for path, name, _ in _declared(schema)}


def fault_in(schema: Any) -> str | None:
    """Return the mistake in the headers that a schema asks for; None if there is none."""
    seen = set[str]()
    for path, place in _schemas(schema):
        if SCHEMA_KEY not in place:
            continue
        if not path:
            return f"{SCHEMA_KEY} is not at a property that can be reached by properties alone"
        name, where = place[SCHEMA_KEY], ".".join(path)
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            return f"property {where!r}: {SCHEMA_KEY} is not a name of a header"
        if place.get("type") not in _TYPES:
            return f"property {where!r}: {SCHEMA_KEY} is for strings, integers and booleans"
        if name.lower() in seen:
            return f"property {where!r}: {SCHEMA_KEY} {name!r} is another property's"
        seen.add(name.lower())
    return None


def encoded(text: str) -> str:
    """Write a text as the value of a header: as it is, or in base64 if it would not survive."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _WRAPPED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decoded(header: str | None) -> str | None:
    """Read the value of a header that `encoded` wrote; None if there is none, or it is damaged."""
    wrapped = None if header is None else _WRAPPED.fullmatch(header)
    if wrapped is None:
        return header
    try:
        data = base64.b64decode(wrapped[1], validate=True)
        # Other spellings of the same bytes would let two readers disagree.
        return data.decode() if base64.b64encode(data).decode() == wrapped[1] else None
    except (binascii.Error, ValueError):
        return None


def _schemas(root: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Yield each schema within a schema with its path; None for one that not only properties lead to."""
    waiting: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while waiting:
        path, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield path, schema
        properties = schema.get("properties")
        if isinstance(properties, dict):
            waiting += ((None if path is None else (*path, name), each) for name, each in properties.items())
        waiting += ((None, each) for each in _below(schema))


def _below(schema: Mapping[str, Any]) -> Iterable[Any]:
    for key in _ONE_SCHEMA:
        if key in schema:
            yield schema[key]
    for key in _LISTED_SCHEMAS:
        yield from found if isinstance(found := schema.get(key), list) else ()
    for key in _NAMED_SCHEMAS:
        yield from found.values() if isinstance(found := schema.get(key), dict) else ()


def _declared(schema: Any) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    for path, place in _schemas(schema):
        name = place.get(SCHEMA_KEY)
        if path and isinstance(name, str):
            yield path, name, place


def _looked_at(name: str, arguments: Members) -> Any:
    """Return an argument that a header may repeat, or a part of it."""
    if len(arguments[name]) > TAKEN_APART_BYTES:
        size = f"{len(arguments[name]):,} bytes; {TAKEN_APART_BYTES:,} are allowed where headers repeat it"
        raise RequestError(INVALID_PARAMS, f"the argument {name!r} has {size}")
    return envelope.value_or_none(arguments[name])


def _at(arguments: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        arguments = arguments.get(name) if isinstance(arguments, Mapping) else None
    return arguments


def _as_text(value: Any) -> str | None:
    """Return an argument as it stands in a header; None if it stands in none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:
        return None  # more digits than are written


def _agree(kind: Any, value: Any, text: str, said: str) -> bool:
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if kind != "integer" or not whole or not _NUMBER.fullmatch(said):
        return said == text
    number = _DECIMAL.fullmatch(said)
    try:
        return number is not None and int(number[1]) == int(value)
    except ValueError:
        return False
