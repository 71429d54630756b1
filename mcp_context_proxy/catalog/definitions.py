"""Judges definitions that strangers wrote before anybody is shown them: bounded, and readable by a person.

Schemas are measured, never validated, resolved or compiled, and nothing they refer to is fetched. Texts lose
the characters that a person does not see. What a call depends on, such as a property's name, cannot be
changed: a tool that hides something there is withheld. What needs no mending stays the bytes it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import Raw

from mcp_context_proxy.config import Limits
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.nesting import nests_deeper
from mcp_context_proxy.wire.text import clean

SCHEMAS = ("inputSchema", "outputSchema")

TEXTS = frozenset({"description", "title", "$comment", "examples"})
"""Members, at any depth, that are only read: cleaning them changes no call."""

NAMED = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Members of a schema whose own members have names that a server chose."""

_UNSEEN_IN_PATTERN = re.compile(r"\\?[^\\ -~\n\t\U00010000-\U0010ffff]|\\.", re.DOTALL)
"""Such a character, with a backslash before it that it then needs no more, or what is escaped already. Beyond
the basic plane dialects write escapes differently."""

_CONTROL_ESCAPED = re.compile(rb"\\[ubfr]")
_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|[,\[{]', re.DOTALL)


class UnfitError(ValueError):
    """A definition that cannot be shown; the text says why."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A definition as it may be shown."""

    definition: bytes
    remark: str = ""
    """What is missing of it, for a person."""


def fit(definition: bytes, limits: Limits) -> Fitted:
    """A definition as it may be shown.

    Raises:
        UnfitError: it is over a bound, or hides something where nothing can be changed.
    """
    _measure(definition, limits)
    return shorten(readable(definition), limits.description_shown_bytes)


def readable(definition: bytes) -> bytes:
    """The definition without characters that a person does not see.

    Raises:
        UnfitError: there are such in a name or value that calls depend on.
    """
    if definition.isascii() and _CONTROL_ESCAPED.search(definition) is None:
        return definition
    # Not msgspec, which has no numbers beyond 64 bits.
    value = json.loads(definition)
    cleaned = _cleaned(value, "", False)
    return definition if cleaned == value else json.dumps(cleaned, ensure_ascii=False).encode()


def shorten(definition: bytes, limit: int) -> Fitted:
    """The definition with a description of at most about `limit` bytes, and a mark where it was cut."""
    if len(definition) <= limit:
        return Fitted(definition)
    members: Members = envelope.members(definition)
    description = envelope.text(members.get("description"))
    if description is None or len(description.encode()) <= limit:
        return Fitted(definition)
    size = len(description.encode())
    kept = description.encode()[:limit].decode("utf-8", "ignore")
    members["description"] = envelope.raw(f"{kept} … [cut here: {limit:,} of {size:,} bytes]")
    remark = f"its description is cut: {limit:,} of {size:,} bytes are shown"
    return Fitted(envelope.encode(members), remark)


def _measure(definition: bytes, limits: Limits) -> None:
    members = envelope.members(definition)
    for name in SCHEMAS:
        schema = bytes(members.get(name, Raw(b"")))
        if len(schema) > limits.schema_bytes:
            raise UnfitError(f"its {name} is over {limits.schema_bytes:,} bytes")
        if schema and _values(schema, limits.schema_nodes) > limits.schema_nodes:
            raise UnfitError(f"its {name} has more than {limits.schema_nodes:,} values")
    if nests_deeper(definition, limits.nesting_definitions):
        raise UnfitError(f"it nests deeper than {limits.nesting_definitions} levels")


def _values(encoded: bytes, limit: int) -> int:
    """Values in encoded JSON, about: each begins after a bracket or a comma."""
    most = encoded.count(b",") + encoded.count(b"{") + encoded.count(b"[")
    if most <= limit:
        return most
    return 1 + sum(1 for match in _VALUE.finditer(encoded) if match[0][:1] != b'"')


def _cleaned(value: Any, key: str, named: bool) -> Any:
    """The value with clean texts; `key` is the member it belongs to, `named` whether a server chose that key.

    Recursion is bounded by the levels that were measured before.
    """
    if isinstance(value, str):
        if key == "pattern" and not named:
            return _written_out(value)
        return clean(value) if key in TEXTS and not named else _unchanged(value, key)
    if isinstance(value, list):
        return [_cleaned(item, key, named) for item in value]
    if isinstance(value, dict):
        inside = key in NAMED and not named
        return {_unchanged(name, name): _cleaned(item, name, inside) for name, item in value.items()}
    return value


def _unchanged(value: str, key: str) -> str:
    """A value as it is."""
    if clean(value) == value:
        return value
    raise UnfitError(f"it hides characters in {clean(key) or 'a name'!r}, which calls depend on")


def _written_out(pattern: str) -> str:
    """The same regular expression, with escapes for what a person does not see: it may speak of such."""
    return _unchanged(_UNSEEN_IN_PATTERN.sub(_escape, pattern), "pattern")


def _escape(found: re.Match[str]) -> str:
    char = found[0][-1]
    return found[0] if clean(char) else f"\\u{ord(char):04x}"


def keyed(
    listed: Iterable[bytes], what: str, member: str, limits: Limits, findings: list[str]
) -> Iterator[tuple[str, bytes]]:
    """Each definition of a resource or prompt as it may be shown, with the text that identifies it.

    Args:
        listed: By a server.
        what: Name of the list, for messages.
        member: Which text that is.
        limits: Bounds on definitions.
        findings: Told which are left out or cut, and why.
    """
    for position, definition in enumerate(listed, 1):
        try:
            key = envelope.text(envelope.members(definition).get(member))
            if not key:
                raise UnfitError(f"it has no {member}")
            fitted = fit(definition, limits)
        except UnfitError as error:
            findings.append(withheld(position, what, str(error)))
        except (ValueError, RecursionError):
            findings.append(withheld(position, what, "it is not an object"))
        else:
            if fitted.remark:
                findings.append(f"{key!r} of its {what}: {fitted.remark}")
            yield key, fitted.definition


def withheld(position: int, what: str, reason: str) -> str:
    """What is said of an entry that nobody is shown."""
    return f"entry {position} of its {what} is withheld: {reason}"
