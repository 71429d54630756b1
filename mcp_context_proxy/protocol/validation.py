"""Checks messages before they are handled: params, nesting depth, number of values, levels, subscriptions.

Only members that this proxy acts on are checked; the server judges the rest. Depth and number of values are
counted on the bytes, without building any object, so that no input is too large to check.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least severe first."""


def reaches(level: str | None, least: str | None) -> bool:
    """Return whether a log message is at or above the level `least`; an unknown level always is."""
    if least not in LOG_LEVELS:
        return False
    return level not in LOG_LEVELS or LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)


def most_verbose(levels: Iterable[str | None]) -> str | None:
    """Return the least severe of the levels; None if there is none."""
    known = [level for level in levels if level in LOG_LEVELS]
    return min(known, key=LOG_LEVELS.index, default=None)


URI_CHARACTERS = 4096
"""Longest URI of a subscription or an update; a longer one is refused, or not passed on."""

URI_LEVELS = 64
"""Parents of a URI that are looked for among the subscriptions."""


def covers(subscribed: Collection[str], uri: str) -> bool:
    """Return whether a resource, or one that contains it, is among those subscribed to."""
    return bool(subscribed) and any(each in subscribed for each in containing(uri))


def containing(uri: str) -> Iterator[str]:
    """Yield the URI of a resource, then of those that contain it, without and with a slash."""
    yield uri
    end = len(uri) if len(uri) <= URI_CHARACTERS else 0
    for _ in range(URI_LEVELS):
        end = uri.rfind("/", 0, end)
        if end < 0:
            return
        yield uri[:end]
        yield uri[: end + 1]


STRING, OBJECT, NULL = b'"', b"{", b"n"
"""First characters that tell the kind of a JSON value."""

_KINDS = {STRING[0]: "a string", OBJECT[0]: "an object"}

_NEEDED: Mapping[str, Mapping[str, bytes]] = {
    "tools/call": {"name": STRING},
    "prompts/get": {"name": STRING},
    "resources/read": {"uri": STRING},
    "resources/directory/read": {"uri": STRING},
    "resources/subscribe": {"uri": STRING},
    "resources/unsubscribe": {"uri": STRING},
    "completion/complete": {"ref": OBJECT, "argument": OBJECT},
    "logging/setLevel": {"level": STRING},
    "skills/get": {"uri": STRING},
}
"""Required members of the params of each method, with their kind."""

_LISTS = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/directory/read",
    "skills/list",
)

_ALLOWED: Mapping[str, Mapping[str, bytes]] = {
    # Models sometimes write the object as a string of JSON; it is accepted.
    "tools/call": {"arguments": OBJECT + STRING + NULL},
    "prompts/get": {"arguments": OBJECT + NULL},
    **{method: {"cursor": STRING + NULL} for method in _LISTS},
}
"""Optional members of the params of each method, with the first characters of their possible kinds."""

_LOOKED_AT: Mapping[str, tuple[str, ...]] = {
    **{method: tuple(needed) for method, needed in _NEEDED.items()},
    **dict.fromkeys(_LISTS, ("cursor",)),
}
"""Members of the params of each method that are decoded here, and so bounded, beside ``_meta``; others are
only passed on."""

_CHECKS = {
    method: (_LOOKED_AT[method], (*_NEEDED.get(method, {}).items(),), (*_ALLOWED.get(method, {}).items(),))
    for method in _LOOKED_AT
}
"""All of these, put together for each method: every call is checked."""

_NO_CHECKS = (), (), ()

_REFERENCES = {"ref/prompt": "name", "ref/resource": "uri"}


def fault(method: str, params: Members, *, modern: bool = False, meta: Members | None = None) -> str | None:
    """Return the fault in the params of a request, for its sender; None if they are right.

    `meta` is their ``_meta``, if it is decoded already.
    """
    looked_at, needed, allowed = _CHECKS.get(method, _NO_CHECKS)
    raw_meta = params.get("_meta")
    for name in looked_at:
        if (raw := params.get(name)) is not None and len(raw) > envelope.TAKEN_APART_BYTES:
            return _too_large(name, method, raw)
    if raw_meta is not None and len(raw_meta) > envelope.TAKEN_APART_BYTES:
        return _too_large("_meta", method, raw_meta)
    for name, kind in needed:
        if not _is(params.get(name), kind):
            return f"{method} needs {name}, {_KINDS[kind[0]]}"
    for name, kinds in allowed:
        if (raw := params.get(name)) is not None and not _is(raw, kinds):
            return f"{name} of {method} must be {_KINDS[kinds[0]]}"
    if raw_meta is not None and not _is(raw_meta, OBJECT + NULL):
        return "_meta must be an object"
    if method == "completion/complete" and (wrong := _reference_fault(params)) is not None:
        return wrong
    if raw_meta is None:
        return f"{eras.CLIENT_CAPABILITIES_KEY} must be an object" if modern else None
    if meta is None:
        meta = eras.meta_of(params)
    token, level = meta.get("progressToken"), meta.get(eras.LOG_LEVEL_KEY)
    if token is not None and type(envelope.value_or_none(token)) not in (int, str):
        return "progressToken must be a string or an integer"
    if modern and not _is(meta.get(eras.CLIENT_CAPABILITIES_KEY), OBJECT):
        return f"{eras.CLIENT_CAPABILITIES_KEY} must be an object"
    if modern and level is not None and envelope.text(level) not in LOG_LEVELS:
        return f"{eras.LOG_LEVEL_KEY} must be one of {', '.join(LOG_LEVELS)}"
    return None


def _reference_fault(params: Members) -> str | None:
    try:
        reference, argument = envelope.members(params["ref"]), envelope.members(params["argument"])
    except msgspec.DecodeError:
        return "completion/complete needs ref and argument, objects"
    needed = _REFERENCES.get(envelope.text(reference.get("type")) or "")
    if needed is None or not _is(reference.get(needed), STRING):
        return "ref must be of type ref/prompt with a name, or of type ref/resource with a uri"
    if not (_is(argument.get("name"), STRING) and _is(argument.get("value"), STRING)):
        return "argument needs a name and a value, strings"
    return None


def _too_large(name: str, method: str, raw: Raw) -> str:
    return f"{name} of {method} has {len(raw):,} bytes; {envelope.TAKEN_APART_BYTES:,} are allowed"


def _is(raw: Raw | None, kinds: bytes) -> bool:
    return raw is not None and envelope.starts_with(raw, kinds)


# Large JSON is measured in parts, so that a worker thread that does it lets the event loop run between them.

PART_BYTES: Final = 1 << 20
"""Bytes measured at a time, in some 5 ms; measuring takes a few times this memory."""

SMALL_BYTES: Final = 1 << 20
"""Size up to which brackets are counted without numpy, in the same time where the JSON is a list of tools."""

SMALL_PART_BYTES: Final = 1 << 16
"""Bytes of them that are counted at a time, in at most 5 ms."""

MESSAGE_VALUES: Final = 1_000_000
"""Values in one message: more than any model reads, and as many as are passed over in 10 ms."""

BLANKS_A_VALUE: Final = 4
"""Spaces between values that take as long as one value."""

_NO_BEGINNING: Final = bytes(set(range(256)) - set(b'"[{,'))
_OTHER: Final = bytes(set(range(256)) - set(b'"[]{},'))
_UNMARKED: Final = bytes(set(range(256)) - set(b'"[{, \t\r\n'))
_MARKS: Final = b",[{"
_BLANKS: Final = b" \t\r\n"
_STRING: Final = re.compile(rb'"[^"]*"')
_STEPS: Final = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
"""Levels by which each byte goes deeper, as signed bytes."""
_SIGNED: Final = (*range(128), *range(-128, 0))
"""The number that each signed byte means."""
_COMMA: Final = ord(",")
_QUOTE: Final = ord('"')

READABLE_LEVELS: Final = 520
"""Levels of a message that are read: more than any limit of nesting allows (`config.limits.MOST_LEVELS`), so
what is cut here is refused for its depth. The parser gives up on a message at some 900."""

DEPTHS_CUT: Final = 10_000
"""Values below these levels that are left out of one message: as many as the entries of the largest list."""


def nests_deeper(encoded: bytes, limit: int, part_bytes: int = PART_BYTES) -> bool:
    """Return whether objects and arrays nest deeper than `limit` levels. The input must be valid JSON."""
    if encoded.count(b"{") + encoded.count(b"[") <= limit:
        return False
    return any(depth > limit for depth in deepest(encoded, part_bytes))


def without_depths(encoded: bytes, part_bytes: int = PART_BYTES) -> bytes | None:
    """Return JSON with null for every value below `READABLE_LEVELS`; None if there are none, or too many.

    So one entry of a list that no parser can read does not cost the list.
    """
    begins, ends = list[int](), list[int]()
    depth, inside, start = 0, 0, 0
    while start < len(encoded):
        part = _part(encoded, start, part_bytes)
        # Escapes become spaces, which leave everything in its place.
        marks = np.frombuffer(part.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
        strings = (np.cumsum(marks == _QUOTE, dtype=np.int32) + np.int32(inside)) & 1
        steps = np.frombuffer(_STEPS, np.int8)[marks] * (strings == 0)
        levels = np.cumsum(steps, dtype=np.int32) + np.int32(depth)
        begins += (start + np.flatnonzero((steps == 1) & (levels == READABLE_LEVELS + 1))).tolist()
        ends += (start + np.flatnonzero((steps == -1) & (levels == READABLE_LEVELS))).tolist()
        if len(begins) > DEPTHS_CUT:
            return None
        depth, inside, start = int(levels[-1]), int(strings[-1]), start + len(part)
    if not begins or len(begins) != len(ends):
        return None
    parts, done = list[bytes](), 0
    for begin, end in zip(begins, ends, strict=True):
        parts += encoded[done:begin], b"null"
        done = end + 1
    return b"".join((*parts, encoded[done:]))


def holds_more(encoded: bytes, limit: int) -> bool:
    """Return whether valid JSON has `limit` values or more, not counting empty ones."""
    if sum(encoded.count(mark) for mark in (b",", b"[", b"{")) < limit:
        return False
    # Escapes go first, from the left. Removing two adjacent quotes does not change what is inside strings.
    plain = encoded.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = plain.translate(None, _NO_BEGINNING).replace(b'""', b"")
    # Each remaining string is a key or a value; the marks that begin or separate values are in it or outside.
    if bare.count(b'"') > 4 * limit:
        return True
    return len(_STRING.sub(b"", bare)) >= limit


def deepest(encoded: bytes, part_bytes: int = PART_BYTES) -> Iterator[int]:
    """Yield the deepest level of objects and arrays in each part of valid JSON."""
    if len(encoded) <= SMALL_BYTES:
        # All but huge lists and results: numpy is not imported for them.
        level = 0
        for bare in _without_strings(encoded, min(part_bytes, SMALL_PART_BYTES), _OTHER):
            reached = list(accumulate(map(_SIGNED.__getitem__, bare.translate(_STEPS)), initial=level))
            level = reached[-1]
            yield max(reached)
        return
    for _, levels in _parts(encoded, part_bytes):
        yield int(levels.max(initial=0))


def has_more_entries(encoded: bytes, limit: int, part_bytes: int = PART_BYTES) -> bool:
    """Return whether an object or array in valid JSON has more than `limit` entries of its own."""
    if encoded.count(b",") < limit:
        return False
    found = 0
    for marks, levels in _parts(encoded, part_bytes):
        found += int(np.count_nonzero((marks == _COMMA) & (levels == 1)))
        if found >= limit:
            return True
    return False


def holds_too_much(encoded: bytes, part_bytes: int = PART_BYTES) -> bool:
    """Return whether JSON has more than `MESSAGE_VALUES` values; spaces between them count as well.

    Whoever decodes it holds the interpreter, and so everybody else, as long as it takes.
    """
    # No byte counts for more than one value.
    if len(encoded) <= MESSAGE_VALUES or not _seems_to_hold_too_much(encoded, part_bytes):
        return False
    weight = 0
    for bare in _without_strings(encoded, part_bytes, _UNMARKED):
        marks = sum(bare.count(mark) for mark in (b",", b"[", b"{"))
        weight += marks + (len(bare) - marks) // BLANKS_A_VALUE
        if weight > MESSAGE_VALUES:
            return True
    return False


def _seems_to_hold_too_much(encoded: bytes, part_bytes: int) -> bool:
    """Return whether there would be too many values if nothing were inside of strings."""
    weight = 0
    for start in range(0, len(encoded), part_bytes):
        part = np.frombuffer(encoded[start : start + part_bytes], np.uint8)
        marks = sum(int(np.count_nonzero(part == mark)) for mark in _MARKS)
        blanks = sum(int(np.count_nonzero(part == blank)) for blank in _BLANKS)
        weight += marks + blanks // BLANKS_A_VALUE
        if weight > MESSAGE_VALUES:
            return True
    return False


def _parts(encoded: bytes, part_bytes: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int32]]]:
    """Yield the brackets and commas outside of strings, each with the level after it."""
    depth = 0
    for bare in _without_strings(encoded, part_bytes, _OTHER):
        marks = np.frombuffer(bare, np.uint8)
        levels = np.cumsum(np.frombuffer(_STEPS, np.int8)[marks], dtype=np.int32) + np.int32(depth)
        if len(levels):
            depth = int(levels[-1])
        yield marks, levels


def _without_strings(encoded: bytes, part_bytes: int, other: bytes) -> Iterator[bytes]:
    """Yield each part without its strings, and without the `other` characters, of which quotes are none."""
    start, inside = 0, False
    while start < len(encoded):
        part = _part(encoded, start, part_bytes)
        start += len(part)
        # Escapes go first, from the left. Removing two adjacent quotes changes nothing of what is inside.
        bare = part.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, other)
        if inside:
            bare = b'"' + bare
        inside = bare.count(b'"') % 2 == 1
        if inside:
            bare += b'"'
        yield _STRING.sub(b"", bare.replace(b'""', b""))


def _part(encoded: bytes, start: int, part_bytes: int) -> bytes:
    """Return the part from `start` on, which does not end within an escape."""
    part = encoded[start : start + part_bytes]
    within = (len(part) - len(part.rstrip(b"\\"))) % 2
    return encoded[start : start + part_bytes + 1] if within else part
