"""Gives memory that is free back to the system, after a burst that left it in many small pieces.

The C library of Linux keeps what is freed between what is still used: after a thousand large requests at once
the process would stay as large as it was then.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

import anyio

from mcp_context_proxy.threads import in_thread

GROWN_BYTES = 32 * 1024 * 1024
"""Since it was least: less is not worth looking for."""

USEFUL_BYTES = 4 * 1024 * 1024
"""Given back at once: with less, what has grown is in use."""

LOOK_SECONDS, LONGEST_SECONDS = 5.0, 600.0
"""Between two looks, and between two attempts where they are of no use."""

_STATM = Path("/proc/self/statm")


async def keep_giving_back() -> None:
    """Give back what is free from time to time, until cancelled."""
    trim = _trim_function()
    if trim is None:
        return
    least, wait = _resident(), LOOK_SECONDS
    while True:
        await anyio.sleep(wait)
        before = _resident()
        least = min(least, before)
        if before - least < GROWN_BYTES:
            wait = LOOK_SECONDS
            continue
        # The interpreter is let go of meanwhile; who allocates in the same arena waits some milliseconds.
        await in_thread(trim, 0)
        after = _resident()
        wait = LOOK_SECONDS if before - after >= USEFUL_BYTES else min(2 * wait, LONGEST_SECONDS)


def _trim_function() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return found


def _resident() -> int:
    """Bytes of memory that the process has."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
