"""Measures the structure of JSON without decoding it: how deep it nests, and how many entries it has.

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

_OTHER: Final = bytes(set(range(256)) - set(b'"[]{},'))
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


def _parts(encoded: bytes, part_bytes: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int32]]]:
    """Yield the brackets and commas outside of strings, each with the level after it."""
    start = depth = 0
    inside = False
    while start < len(encoded):
        part = encoded[start : start + part_bytes]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            # An escape is not cut.
            part = encoded[start : start + part_bytes + 1]
        start += len(part)
        # Escapes go first, from the left. Removing two adjacent quotes changes nothing of what is inside.
        bare = part.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER)
        if inside:
            bare = b'"' + bare
        inside = bare.count(b'"') % 2 == 1
        if inside:
            bare += b'"'
        marks = np.frombuffer(_STRING.sub(b"", bare.replace(b'""', b"")), np.uint8)
        levels = np.cumsum(_STEPS[marks], dtype=np.int32) + np.int32(depth)
        if len(levels):
            depth = int(levels[-1])
        yield marks, levels
