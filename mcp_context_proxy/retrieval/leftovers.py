"""What indexing used for a while goes back to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def give_back() -> None:
    """Return memory that is free, where the C library keeps it (glibc).

    Between what stays of thousands of sources it keeps holes, about 100 MB of 100,000 tools, that vectors do
    not fit in. Takes some milliseconds; other threads go on.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None  # another C library, or another system
