"""Input schemas in a form that the APIs of Anthropic, Google and OpenAI take.

Such an API refuses a whole request, with all tools of a host, for one schema that it does not like: choices
or a reference at the root, no ``properties``, an array without ``items``, a property with an unusual name,
what only older versions of JSON Schema have. Hosts mostly pass on what a server lists.

A schema without such a fault stays the bytes that came, and so does one with ``allOf`` beside its properties:
the protocol's conformance suite asks that it is kept, although Anthropic's API refuses it at the root. Any
other allows whatever it allowed, and sometimes more: its server judges. Searches and calls go by the schema
of the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Raw

from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.system.later import pattern

TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
CHOICES: Final = ("anyOf", "oneOf")
COMBINED: Final = frozenset({"allOf", *CHOICES, "prefixItems"})
"""Members that hold a list of schemas."""
REFUSED_AT_ROOT: Final = frozenset({"allOf", *CHOICES, "$ref", "const", "enum", "not"})
BY_NAME: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Members that hold schemas by names of the server's own."""
ONE_SCHEMA: Final = frozenset({"items", "not", "if", "then", "else", "contains", "propertyNames"})
VALUES: Final = frozenset({"default", "const", "examples"})
"""Members that hold any value."""
BOUNDS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
"""Bounds that an old version of JSON Schema writes as a flag beside another."""

PARTS: Final = 500
"""Parts of a schema at its root that are looked at, each for ten of its properties as well: references let
few words stand for millions."""
LEVELS: Final = 5
"""References and choices in one another at the root of a schema."""
TOLD: Final = 5
"""Properties left out that a description names."""

PROPERTY: Final = pattern(r"[a-zA-Z0-9_.-]{1,64}")
"""Names of properties that Anthropic's API takes."""
SIGN: Final = pattern(
    rb'"items"\s*:\s*\[|"type"\s*:\s*"(?!(?:array|boolean|integer|null|number|object|string)")|'
    rb'"(?!(?:default|const|nullable|deprecated|readOnly|writeOnly|uniqueItems|additionalProperties)")'
    rb'[^"\\]*"\s*:\s*(?:true|false|null)'
)
"""Signs of what some API refuses below the root; not each is a fault."""


def rewritten(schema: Raw) -> tuple[Raw, list[str]]:
    """Return an input schema in a form that every API takes, and the first of the properties it leaves out.

    Those have names that an API refuses; calls may have them all the same.
    """
    # Not msgspec: its numbers end at 64 bits.
    root = json.loads(bytes(schema))
    parts = list(_parts(root, root, LEVELS, [PARTS]))
    given: dict[str, list[Any]] = {}
    for part, _ in parts:
        for name, told in _object(part.get("properties")).items():
            known = given.setdefault(name, [])
            if told not in known:
                known.append(told)
    left_out = [name for name in given if not PROPERTY.fullmatch(name)]
    required = dict.fromkeys(name for part, is_sure in parts if is_sure for name in _required(part))
    made = {"type": "object", **{key: value for key, value in root.items() if key not in REFUSED_AT_ROOT}} | {
        "type": "object",
        "properties": {
            name: told[0] if len(told) == 1 else {"anyOf": told}
            for name, told in given.items()
            if name not in left_out
        },
        "required": [name for name in required if name in given and name not in left_out],
    }
    if not made["required"]:
        del made["required"]
    if left_out and made.get("additionalProperties") is False:
        del made["additionalProperties"]
    return envelope.raw(_of_today(made)), left_out[:TOLD]


def plain_schema(schema: Any) -> Any:
    """Return a schema without what is said to programs alone: dialects, and titles that repeat names."""
    if not isinstance(schema, dict):
        return schema
    found = {key: value for key, value in schema.items() if key not in ("$schema", "title")}
    if found.get("additionalProperties") is False:
        del found["additionalProperties"]
    for key in ("properties", "$defs", "definitions"):
        if isinstance(named := found.get(key), dict):
            found[key] = {name: plain_schema(one) for name, one in named.items()}
    for key in (*CHOICES, "allOf"):
        if isinstance(parts := found.get(key), list):
            found[key] = [plain_schema(one) for one in parts]
    if "items" in found:
        found["items"] = plain_schema(found["items"])
    return found


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _required(schema: Mapping[str, Any]) -> list[str]:
    return [name for name in _list(schema.get("required")) if isinstance(name, str)]


def _parts(
    schema: Any, root: Mapping[str, Any], levels: int, left: list[int]
) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Yield the objects of which a schema consists, each with whether it holds in any case.

    ``left`` has the number of parts that may still be looked at.
    """
    if not isinstance(schema, dict) or levels == 0 or left[0] <= 0:
        return
    left[0] -= 1 + (len(_object(schema.get("properties"))) + len(_list(schema.get("required")))) // 10
    yield schema, True
    yield from _parts(envelope.referred(schema.get("$ref"), root), root, levels - 1, left)
    for one in _list(schema.get("allOf")):
        yield from _parts(one, root, levels - 1, left)
    for key in CHOICES:
        options = [list(_parts(one, root, levels - 1, left)) for one in _list(schema.get(key))]
        yield from ((part, False) for option in options for part, _ in option)
        if options:
            needed = (
                {name for part, is_sure in option if is_sure for name in _required(part)}
                for option in options
            )
            yield {"required": sorted(set.intersection(*needed))}, True


def _of_today(schema: Any) -> Any:
    """Return a schema as version 2020-12 of JSON Schema writes it, without what is none.

    Recursion is bounded by the depth of definitions, which is checked before.
    """
    if not isinstance(schema, dict):
        return {"not": {}} if schema is False else {}
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in VALUES:
            made[key] = value
        elif key == "items" and _list(value):
            made["prefixItems"] = [_of_today(one) for one in value]
        elif key in ONE_SCHEMA:
            made[key] = _of_today(value)
        elif key == "additionalProperties":
            made[key] = value if isinstance(value, bool) else _of_today(value)
        elif key in BY_NAME and isinstance(value, dict):
            made[key] = {name: _of_today(told) for name, told in value.items()}
        elif key in COMBINED and _list(value):
            made[key] = [_of_today(one) for one in value]
        elif key in BOUNDS and isinstance(value, bool):
            if value and BOUNDS[key] in schema:
                made[key] = schema[BOUNDS[key]]
        elif _is_kept(key, value):
            made[key] = value
    kinds = made.get("type")
    if kinds == "array" or "array" in _list(kinds):
        made.setdefault("items", {})
    return made


def _is_kept(key: str, value: Any) -> bool:
    """Return whether a member that holds no schema may stay."""
    if key == "type":
        kinds = value if isinstance(value, list) else [value]
        return bool(kinds) and all(isinstance(one, str) and one in TYPES for one in kinds)
    if key in ("required", "enum"):
        return bool(_list(value)) or (key == "required" and value == [])
    return value is not None and key not in BY_NAME | COMBINED
