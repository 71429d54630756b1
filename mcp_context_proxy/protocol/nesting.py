"""Measures the structure of JSON without decoding it: how deep it nests, and how many values it has.

Large JSON is measured in parts, so that a worker thread that does it lets the event loop run between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

PART_BYTES: Final = 1 << 20
"""Bytes measured at a time, in some 5 ms; measuring takes a few times this memory."""

MESSAGE_VALUES: Final = 1_000_000
"""Values in one message: more than any model reads, and as many as are passed over in 10 ms."""

BLANKS_A_VALUE: Final = 4
"""Spaces between values that take as long as one value."""

_OTHER: Final = bytes(set(range(256)) - set(b'"[]{},'))
_UNMARKED: Final = bytes(set(range(256)) - set(b'"[{, \t\r\n'))
_MARKS: Final = b",[{"
_BLANKS: Final = b" \t\r\n"
_STRING: Final = re.compile(rb'"[^"]*"')
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_COMMA: Final = ord(",")


def deepest(encoded: bytes, part_bytes: int = PART_BYTES) -> Iterator[int]:
    """Yield the deepest level of objects and arrays in each part of valid JSON."""
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
    if not _seems_to_hold_too_much(encoded, part_bytes):
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
        levels = np.cumsum(_STEPS[marks], dtype=np.int32) + np.int32(depth)
        if len(levels):
            depth = int(levels[-1])
        yield marks, levels


def _without_strings(encoded: bytes, part_bytes: int, other: bytes) -> Iterator[bytes]:
    """Yield each part without its strings, and without the `other` characters, of which quotes are none."""
    start, inside = 0, False
    while start < len(encoded):
        part = encoded[start : start + part_bytes]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            # An escape is not cut.
            part = encoded[start : start + part_bytes + 1]
        start += len(part)
        # Escapes go first, from the left. Removing two adjacent quotes changes nothing of what is inside.
        bare = part.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, other)
        if inside:
            bare = b'"' + bare
        inside = bare.count(b'"') % 2 == 1
        if inside:
            bare += b'"'
        yield _STRING.sub(b"", bare.replace(b'""', b""))
