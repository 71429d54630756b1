"""Signatures of tools: their parameters with types, as ``create_issue(title: string, labels?: string[])``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol import envelope

COUNTED_NAMES: Final = 40
"""Required parameters that a signature names; the others are counted. No real tool has as many."""

ENUM_VALUES: Final = 40
"""Values of an enumeration that a required parameter spells out."""

OPTIONAL_ENUM_VALUES: Final = 6
"""Values of an enumeration that an optional parameter spells out."""

OPTIONS: Final = 8
"""Alternative types that a signature spells out."""

LITERAL_CHARACTERS: Final = 60
TYPE_CHARACTERS: Final = 400


@dataclass(frozen=True, slots=True)
class Detail:
    """Amount that an answer tells about an item."""

    characters: int
    """Length of the description, or half of that of a document's excerpt."""
    optional: int
    """Optional parameters that are named; the others are counted."""
    depth: int
    """Levels of nested objects that are spelled out; deeper ones read ``object``."""


def schema_of(tool: Tool) -> Any:
    """Return the input schema of a tool, decoded; empty if it cannot be."""
    schema = envelope.members(tool.definition).get("inputSchema")
    try:
        return {} if schema is None else msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return {}


def tool_signature(name: str, schema: Any, detail: Detail) -> str:
    """Return a call signature, such as ``create_issue(title: string, labels?: string[], ... 3 optional)``."""
    return f"{name}({', '.join(_Signature(schema, detail).parameters(schema, detail.depth))})"


class _Signature:
    """The parameters of one input schema as text."""

    def __init__(self, root: Any, detail: Detail) -> None:
        self._root, self._detail = root, detail

    def parameters(self, schema: Any, depth: int) -> Iterator[str]:
        """Yield the required parameters of an object with their types, then optional ones."""
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict):
            return
        given = schema.get("required")
        needed = {name for name in given if isinstance(name, str)} if isinstance(given, list) else set()
        required = [name for name in properties if name in needed]
        optional = [name for name in properties if name not in needed]
        for names, most, mark in ((required, COUNTED_NAMES, ""), (optional, self._detail.optional, "?")):
            for name in names[:most]:
                yield f"{_word(name)}{mark}: {self._type(properties[name], depth, not mark)}"
            if (more := len(names) - most) > 0:
                yield f"... {more} {'optional' if mark else 'more'}"

    def _type(self, schema: Any, depth: int, is_required: bool) -> str:
        text = self._any_type(self._resolved(schema), depth, is_required)
        return text if len(text) <= TYPE_CHARACTERS else text[: TYPE_CHARACTERS - 4] + " ..."

    def _resolved(self, schema: Any) -> Any:
        """Return the definition that a schema refers to, where it is in the same document."""
        for _ in range(OPTIONS):
            if not isinstance(schema, dict):
                break
            reference, parts = schema.get("$ref"), schema.get("allOf")
            if isinstance(reference, str) and reference.startswith("#/"):
                found = self._root
                for key in reference[2:].split("/", OPTIONS):
                    found = found.get(key) if isinstance(found, dict) else None
                if found is None:
                    break
                schema = found
            elif isinstance(parts, list) and len(parts) == 1 and "type" not in schema:
                schema = parts[0]
            else:
                break
        return schema

    def _any_type(self, schema: Any, depth: int, is_required: bool) -> str:
        if not isinstance(schema, dict):
            return "any"
        if isinstance(values := schema.get("enum"), list):
            most = ENUM_VALUES if is_required else OPTIONAL_ENUM_VALUES
            return " | ".join(map(_literal, values[:most])) + (" | ..." if len(values) > most else "")
        if "const" in schema:
            return _literal(schema["const"])
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list) and depth > 0:
                told = (self._type(option, depth - 1, is_required) for option in options[:OPTIONS])
                return " | ".join(dict.fromkeys(told)) or "any"
        kind = schema.get("type")
        if isinstance(kind, list):
            told = (self._any_type({**schema, "type": one}, depth, is_required) for one in kind[:OPTIONS])
            return " | ".join(dict.fromkeys(told)) or "any"
        if kind == "array":
            inner = self._type(schema.get("items"), depth - 1, is_required) if depth > 0 else "any"
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == "object" and depth > 0 and is_required:
            fields = ", ".join(self.parameters(schema, depth - 1))
            return f"{{{fields}}}" if fields else "object"
        return _word(kind) if isinstance(kind, str) else "any"


def _literal(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LITERAL_CHARACTERS else text[: LITERAL_CHARACTERS - 3] + "..."


def _word(name: str) -> str:
    """Return the name of a parameter or type, in quotes if it is not one word."""
    return (
        name if len(name) <= LITERAL_CHARACTERS and name.replace("-", "_").isidentifier() else _literal(name)
    )
