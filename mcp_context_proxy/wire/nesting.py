"""How deep JSON nests, found on its bytes: nothing is built, so nothing can be too deep to look at."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

CHUNK_BYTES: Final = 1 << 20
"""Brackets counted together: what that takes in memory is a few times this."""

_OTHER: Final = bytes(set(range(256)) - set(b'"[]{}'))
_STRING: Final = re.compile(rb'"[^"]*"')


def nests_deeper(encoded: bytes, limit: int, chunk_bytes: int = CHUNK_BYTES) -> bool:
    """Whether objects and arrays nest over more than `limit` levels. Must be JSON; nobody checks."""
    if encoded.count(b"{") + encoded.count(b"[") <= limit:
        return False
    # Escapes out of the way, from the left: what quotes remain begin and end strings.
    bare = encoded.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER)
    # Two quotes beside each other go without changing which brackets are inside of strings.
    brackets = _STRING.sub(b"", bare.replace(b'""', b""))
    depth = 0
    for start in range(0, len(brackets), chunk_bytes):
        count = min(chunk_bytes, len(brackets) - start)
        chunk = np.frombuffer(brackets, dtype=np.uint8, count=count, offset=start)
        levels = np.cumsum(np.where((chunk & 7) == (ord("[") & 7), 1, -1), dtype=np.int32) + depth
        if levels.max() > limit:
            return True
        depth = int(levels[-1])
    return False
