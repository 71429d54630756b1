"""Judges definitions that strangers wrote before anybody is shown them: bounded, and readable by a person.

Schemas are measured, never validated, resolved or compiled, and nothing they refer to is fetched. Texts lose
the characters that a person does not see. What a call depends on, such as a property's name, cannot be
changed: a tool that hides something there is withheld. What needs no mending stays the bytes it is.

Names that hosts see: ``<server>__<tool>``, valid everywhere, unique, and the same on every start.

A name depends on its own server and tool alone, never on what else is in the catalog, so it stays when
other servers come and go. Whatever could make two pairs meet in one name (a character that had to be
replaced, a cut, an underscore beside the separator) brings a short hash of the original pair with it.

Names that a person takes for one another: they differ in case, a hyphen, or letters of another script.

What a definition says, in whichever order and with whichever spaces it says it.

A server may write the members of an object in another order each time; that is no change. Everything else
is, also what no parser shows: a definition that names a member twice goes by its bytes.

Definitions as hosts see them: the bytes that came, with only the name changed.

The one addition: an ``inputSchema`` without ``type`` gets ``"type": "object"``, which the protocol demands
and without which hosts refuse the whole list. Some published servers leave it out.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from mcp_context_proxy.config import Limits
from mcp_context_proxy.items import Prompt, Resource, Tool, ToolKey
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.text import clean
from mcp_context_proxy.protocol.validation import nests_deeper

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


SEPARATOR = "__"
HASH_LENGTH = 6
"""Hexadecimal digits of the hash in a name: 1 in 16 million that two altered names of one shape meet."""

_VALID = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")
_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


def exposed_name(server: str, name: str, max_length: int) -> str:
    """The exposed name of a tool or prompt.

    Args:
        server: Key of the server; holds no separator.
        name: As the server itself names it; any text.
        max_length: Longest name allowed, in characters.
    """
    plain = f"{server}{SEPARATOR}{name}"
    ambiguous = server.endswith("_") or name.startswith("_")
    if _VALID.fullmatch(plain) and len(plain) <= max_length and not ambiguous:
        return plain
    cleaned = _INVALID_CHARACTER.sub("_", plain)
    if not _VALID.match(cleaned):
        cleaned = "_" + cleaned
    return _with_hash(cleaned, f"{server}\0{name}", max_length)


def _with_hash(text: str, original: str, max_length: int) -> str:
    """`text` with a hash of `original` in it, cut in the middle so that both ends stay readable."""
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_LENGTH]
    room = max_length - len(digest) - 1
    if len(text) <= room:
        return f"{text}_{digest}"
    room -= 1
    head = room - room // 3
    return f"{text[:head]}_{digest}_{text[len(text) - (room - head) :]}"


def bare_names(pairs: Sequence[ToolKey], reserved: Iterable[str], max_length: int) -> dict[ToolKey, str]:
    """Names without prefix where these are valid and unique; the prefixed name elsewhere.

    Args:
        pairs: Server and own name of everything in the catalog.
        reserved: Names that are taken by the proxy itself.
        max_length: Longest name allowed, in characters.
    """
    count = Counter(name for _, name in pairs)
    prefixed = {(server, name): exposed_name(server, name, max_length) for server, name in pairs}
    # A tool may be named like another server's tool with its prefix.
    taken = {*reserved, *prefixed.values()}
    return {
        (server, name): name
        if count[name] == 1 and name not in taken and len(name) <= max_length and _VALID.fullmatch(name)
        else prefixed[server, name]
        for server, name in pairs
    }


_LETTERS: Final = dict(
    zip(
        # Cyrillic, then Greek, in small letters.
        "аеорсухіјѕһԁԛԝкмтв" + "αορνικτυχγ",
        "aeopcyxijshdqwkmtb" + "aopviktuxy",
        strict=True,
    )
)
"""Those that are drawn like Latin ones."""

_SEPARATORS: Final = dict.fromkeys("-./ ", "_")
_DIGITS: Final = {"0": "o", "1": "l"}

LOOKALIKES_NAMED: Final = 5
"""Of a group; more say nothing new."""

_TABLE: Final = str.maketrans({**_LETTERS, **_SEPARATORS, **_DIGITS})


def lookalikes(names: Iterable[str]) -> Iterator[str]:
    """What is to be said of each group of tools whose names look alike."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_seen(name)].append(name)
    for group in groups.values():
        if len(group) > 1:
            more = ", ..." if len(group) > LOOKALIKES_NAMED else ""
            yield f"tools whose names look alike: {', '.join(map(repr, group[:LOOKALIKES_NAMED]))}{more}"


def _seen(name: str) -> str:
    """What is left of a name for somebody who reads it in passing."""
    folded = name.lower() if name.isascii() else unicodedata.normalize("NFKC", name).casefold()
    return folded.translate(_TABLE)


Defined = TypeVar("Defined", bound=Tool | Resource | Prompt)

_ESCAPED_COLONS: Final = (b"\\u003a", b"\\u003A")

_encode = msgspec.json.Encoder(order="deterministic").encode


def fingerprint(server: str, definition: bytes) -> str:
    """SHA-256 (hex) over the server and all members of a definition. Some 15 µs for 1.5 KB."""
    return hashlib.sha256(server.encode() + b"\0" + canonical(definition)).hexdigest()


def canonical(definition: bytes) -> bytes:
    """JSON without spaces, its members sorted; the bytes themselves where that would say less."""
    try:
        encoded = _encode(msgspec.json.decode(definition))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return definition
    # One colon for each member, and those in texts, unless they are escaped: fewer, and a member is gone.
    whole = encoded.count(b":") == definition.count(b":")
    return encoded if whole and not any(each in definition for each in _ESCAPED_COLONS) else definition


def steady(before: Mapping[str, Defined], now: Mapping[str, Defined]) -> dict[str, Defined]:
    """What there is now; each is the object that it was before where it says the same.

    So nothing is made, announced or refused anew because a server wrote it down in another order.
    """
    return {key: _steady(before.get(key), item) for key, item in now.items()}


def _steady(known: Defined | None, item: Defined) -> Defined:
    if known is None or known is item or known == item:
        return item
    if replace(known, definition=item.definition) != item:
        return item
    # A tool's fingerprint, which is the same, has said it already.
    same = isinstance(item, Tool) or canonical(known.definition) == canonical(item.definition)
    return known if same else item


def tool_definition(tool: Tool) -> Raw:
    """The definition of a tool under its exposed name."""
    members = envelope.members(tool.definition)
    members["name"] = envelope.raw(tool.exposed_name)
    schema = envelope.members(members["inputSchema"])
    if "type" not in schema:
        typed: Members = {"type": Raw(b'"object"')}
        members["inputSchema"] = envelope.raw({**typed, **schema})
    return envelope.raw(members)


def prompt_definition(prompt: Prompt) -> Raw:
    """The definition of a prompt under its exposed name."""
    members = envelope.members(prompt.definition)
    members["name"] = envelope.raw(prompt.exposed_name)
    return envelope.raw(members)
