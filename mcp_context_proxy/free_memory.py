"""Gives memory that is free back to the system, where the C library (glibc) would keep it.

What is freed between pieces that are still used stays with the process: after a thousand large requests at
once, or after reading thousands of tools, it would remain as large as it was then.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import anyio

from mcp_context_proxy.threads import in_thread

GROWN_BYTES = 32 * 1024 * 1024
"""Since it was least: less is not worth looking for."""

USEFUL_BYTES = 4 * 1024 * 1024
"""Given back at once: with less, what has grown is in use."""

LOOK_SECONDS, LONGEST_SECONDS = 5.0, 600.0
"""Between two looks, and between two attempts where they are of no use."""

LARGE_BYTES = 1024 * 1024
"""Memory in one piece that the system gets back when it is free: that of large messages."""

MALLOC_MMAP_THRESHOLD, MALLOC_ARENA_MAX = -3, -8
"""What the C library calls the same; ``M_MMAP_THRESHOLD`` and ``M_ARENA_MAX`` in malloc.h."""

_STATM = Path("/proc/self/statm")


def keep_little() -> None:
    """Have the C library keep little of what is freed.

    By itself it takes the first large piece that is freed as a sign to keep such pieces from then on: they
    fall apart into what is small and stays, and the process grows with each. And it gives threads heaps of
    their own, eight for each core, of which each keeps what is free in it: after ten minutes of many calls
    12 MiB, with one heap for all 2. Those threads wait for the interpreter far more than for a heap.
    """
    configure = _from_c_library("mallopt")
    if configure is not None:
        configure(MALLOC_MMAP_THRESHOLD, LARGE_BYTES)
        configure(MALLOC_ARENA_MAX, 1)


def give_back() -> None:
    """Give back all that is free now. Takes some milliseconds, in which other threads go on."""
    trim = _from_c_library("malloc_trim")
    if trim is not None:
        trim(0)


async def keep_giving_back() -> None:
    """Give back what is free from time to time, until cancelled."""
    if _from_c_library("malloc_trim") is None:
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
        await in_thread(give_back)
        after = _resident()
        wait = LOOK_SECONDS if before - after >= USEFUL_BYTES else min(2 * wait, LONGEST_SECONDS)


@cache
def _from_c_library(name: str) -> Any:
    """A function of glibc; None with another C library, or on another system."""
    if sys.platform != "linux":
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None


def _resident() -> int:
    """Bytes of memory that the process has."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
