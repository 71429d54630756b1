"""The parameters of a tool, out of a definition nobody has checked.

Schemas are hostile: they are walked without recursion, up to fixed limits, and references are never followed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from mcp_context_proxy.items import JSON

MAX_PARAMETERS = 64
"""Names read from one schema; real tools have fewer than 40, and a flood would only drown the description."""

MAX_NAME = 128
"""Characters read of one parameter's name."""

MAX_NODES = 2_000
"""Schema nodes visited; bounds the work on a schema that is nothing but nesting."""

MAX_DESCRIPTION = 1_000
"""Characters read of one parameter's description."""

_COMBINERS = ("anyOf", "oneOf", "allOf")
_NESTING = frozenset({"properties", "items", *_COMBINERS})
"""Keys of a schema that has others in it: most parameters have none."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a schema says about the arguments of a tool, outer ones first."""

    top: tuple[str, ...]
    """Names of the arguments themselves."""
    nested: tuple[str, ...]
    """Names within them."""
    descriptions: tuple[str, ...]


def read_parameters(definition: bytes) -> Parameters:
    """The parameters in a tool's definition; empty for a definition that cannot be read."""
    try:
        decoded = msgspec.json.decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Parameters((), (), ())
    schema = decoded.get("inputSchema") if isinstance(decoded, dict) else None
    return _collect(schema)


def _collect(schema: JSON) -> Parameters:
    top: list[str] = []
    nested: list[str] = []
    descriptions: list[str] = []
    for depth, name, node in _walk(schema):
        if len(top) + len(nested) >= MAX_PARAMETERS:
            break
        (top if depth == 0 else nested).append(name[:MAX_NAME])
        description = node.get("description") if isinstance(node, dict) else None
        if isinstance(description, str) and description:
            descriptions.append(description[:MAX_DESCRIPTION])
    return Parameters(tuple(top), tuple(nested), tuple(descriptions))


def _walk(schema: JSON) -> Iterator[tuple[int, str, JSON]]:
    """Every property with its depth, breadth first, so that limits cut the innermost."""
    waiting: deque[tuple[int, JSON]] = deque([(0, schema)])
    for _ in range(MAX_NODES):
        if not waiting:
            return
        depth, node = waiting.popleft()
        if not isinstance(node, dict):
            continue
        properties = node.get("properties")
        if isinstance(properties, dict):
            for name, child in list(properties.items())[:MAX_PARAMETERS]:
                yield depth, name, child
                if isinstance(child, dict) and not _NESTING.isdisjoint(child):
                    waiting.append((depth + 1, child))
        waiting.extend((depth, child) for child in _alternatives(node))


def _alternatives(node: dict[str, JSON]) -> list[JSON]:
    found = [node.get("items")]
    for key in _COMBINERS:
        options = node.get(key)
        if isinstance(options, list):
            found.extend(options[:MAX_PARAMETERS])
    return found
