"""How deep JSON nests and how much it holds, found on its bytes: nothing is built, so nothing is too much."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

CHUNK_BYTES: Final = 1 << 20
"""Brackets counted together: what that takes in memory is a few times this."""

_OTHER: Final = bytes(set(range(256)) - set(b'"[]{}'))
_NO_BEGINNING: Final = bytes(set(range(256)) - set(b'"[{,'))
_STRING: Final = re.compile(rb'"[^"]*"')


def nests_deeper(encoded: bytes, limit: int, chunk_bytes: int = CHUNK_BYTES) -> bool:
    """Whether objects and arrays nest over more than `limit` levels. Must be JSON; nobody checks."""
    if encoded.count(b"{") + encoded.count(b"[") <= limit:
        return False
    brackets = _STRING.sub(b"", _bare(encoded, _OTHER))
    depth = 0
    for start in range(0, len(brackets), chunk_bytes):
        count = min(chunk_bytes, len(brackets) - start)
        chunk = np.frombuffer(brackets, dtype=np.uint8, count=count, offset=start)
        levels = np.cumsum(np.where((chunk & 7) == (ord("[") & 7), 1, -1), dtype=np.int32) + depth
        if levels.max() > limit:
            return True
        depth = int(levels[-1])
    return False


def holds_more(encoded: bytes, limit: int) -> bool:
    """Whether there are `limit` values or more, empty ones and keys aside. Must be JSON; nobody checks."""
    if sum(encoded.count(mark) for mark in (b",", b"[", b"{")) < limit:
        return False
    bare = _bare(encoded, _NO_BEGINNING)
    # Each string that is left is a key or a value, and what begins or parts values is in it or outside.
    if bare.count(b'"') > 4 * limit:
        return True
    return len(_STRING.sub(b"", bare)) >= limit


def _bare(encoded: bytes, other: bytes) -> bytes:
    """Without `other` bytes, escapes, and strings that are empty then: what quotes remain surround one."""
    # Escapes first, from the left. Two quotes side by side go without changing what is inside of strings.
    return encoded.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, other).replace(b'""', b"")
