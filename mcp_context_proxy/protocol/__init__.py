"""Messages as bytes, in both eras of the protocol: envelopes, framing, and the words of strangers.

Here JSON is measured without being decoded: how deep it nests, and how many values and entries it has. What
is large is measured in parts, so that a worker thread that does it lets the event loop run between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from mcp_context_proxy.system.later import NDArray, np, pattern

PART_BYTES: Final = 1 << 16
"""Bytes measured at a time, in at most 5 ms. Measuring takes a few times this memory, which the process keeps
for the next part; for parts of a megabyte, the system would have to give it new memory each time."""

SMALL_BYTES: Final = 1 << 20
"""Size up to which brackets are counted without numpy, in the same time where the JSON is a list of tools."""

MESSAGE_VALUES: Final = 1_000_000
"""Values in one message: more than any model reads, and as many as are passed over in 10 ms."""

BLANKS_A_VALUE: Final = 4
"""Spaces between values that take as long as one value."""

BYTES_A_QUOTE: Final = 1024
"""Bytes for each quote from which on to look for every quote takes far less time than to measure all."""

MOST_BACKSLASHES: Final = 64
"""Backslashes before a quote that are counted to tell whether the quote is escaped."""

_NO_BEGINNING: Final = bytes(set(range(256)) - set(b'"[{,'))
_OTHER: Final = bytes(set(range(256)) - set(b'"[]{},'))
_UNMARKED: Final = bytes(set(range(256)) - set(b'"[{, \t\r\n'))
_MARKS: Final = b",[{"
_BLANKS: Final = b" \t\r\n"
_STRING: Final = pattern(rb'"[^"]*"')
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
        for bare in _without_strings(encoded, part_bytes, _OTHER):
            reached = list(accumulate(map(_SIGNED.__getitem__, bare.translate(_STEPS)), initial=level))
            level = reached[-1]
            yield max(reached)
        return
    for _, levels in _parts(encoded, part_bytes):
        yield int(levels.max(initial=0))


def has_more_entries(encoded: bytes, limit: int, part_bytes: int = PART_BYTES) -> bool:
    """Return whether an object or array in valid JSON has more than `limit` entries of its own."""
    if not may_have_entries(encoded, limit):
        return False
    found = 0
    for marks, levels in _parts(encoded, part_bytes):
        found += int(np.count_nonzero((marks == _COMMA) & (levels == 1)))
        if found >= limit:
            return True
    return False


def may_have_entries(encoded: bytes, limit: int) -> bool:
    """Return whether valid JSON has `limit` commas outside of its strings, as far as that is told quickly."""
    return encoded.count(b",") >= limit and without_strings(encoded).count(b",") >= limit


def holds_too_much(encoded: bytes) -> bool:
    """Return whether JSON has more than `MESSAGE_VALUES` values; spaces between them count as well.

    Whoever decodes it holds the interpreter, and so everybody else, as long as it takes.
    """
    # No byte counts for more than one value.
    if len(encoded) > MESSAGE_VALUES:
        encoded = _emptied(encoded, len(encoded) // BYTES_A_QUOTE) or encoded
    if len(encoded) <= MESSAGE_VALUES or not _seems_to_hold_too_much(encoded):
        return False
    weight = 0
    for bare in _without_strings(encoded, PART_BYTES, _UNMARKED):
        marks = sum(bare.count(mark) for mark in (b",", b"[", b"{"))
        weight += marks + (len(bare) - marks) // BLANKS_A_VALUE
        if weight > MESSAGE_VALUES:
            return True
    return False


def without_strings(encoded: bytes) -> bytes:
    """Return JSON with nothing in its strings, or at least without their escaped quotes where it has many.

    Most of what is large is one long text, or an image: what is left of it is measured in no time. What has
    one part comes back as it is.
    """
    if len(encoded) <= PART_BYTES:
        return encoded
    most = len(encoded) // BYTES_A_QUOTE
    if (bare := _emptied(encoded, most)) is not None:
        return bare
    plain = encoded.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _emptied(plain, most) or plain


def _emptied(encoded: bytes, most: int) -> bytes | None:
    """Return JSON with empty strings; None if it has `most` quotes or more, escaped ones included."""
    kept, begin, inside = list[bytes](), 0, False
    quote = encoded.find(b'"')
    for _ in range(most):
        if quote < 0:
            return b"".join((*kept, encoded[begin:]))
        before = encoded[max(begin + 1, quote - MOST_BACKSLASHES) : quote] if inside else b""
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes == MOST_BACKSLASHES:
            return None
        if not inside:
            kept.append(encoded[begin : quote + 1])
        if backslashes % 2 == 0:
            begin, inside = quote, not inside
        quote = encoded.find(b'"', quote + 1)
    return None


def _seems_to_hold_too_much(encoded: bytes) -> bool:
    """Return whether there would be too many values if nothing were inside of strings."""
    weight = 0
    for start in range(0, len(encoded), PART_BYTES):
        part = np.frombuffer(encoded[start : start + PART_BYTES], np.uint8)
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
