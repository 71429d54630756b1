"""Comparison of the processor time of two texts in one run, so that no machine is too slow for a test."""

import time
from collections.abc import Callable
from typing import TypeVar

Read = TypeVar("Read")

QUICK_SECONDS = 0.02
"""Time that is too short to be compared."""

ATTEMPTS = 5
"""Measurements that must all be too long."""


def seconds(function: Callable[[Read], object], written: Read, enough: float = QUICK_SECONDS) -> float:
    """Return the least processor time of a few attempts, or of those until one is quick enough."""
    best = float("inf")
    for _ in range(3):
        begun = time.thread_time()
        function(written)
        best = min(best, time.thread_time() - begun)
        if best <= enough:
            break
    return best


def costs_more(times: float, function: Callable[[Read], object], written: Read, other: Read) -> bool:
    """Return whether a text takes so many times the processor time of another, whenever it is measured.

    Processor time is longer while others use the same caches, so what looks slow is measured again.
    """
    for _ in range(ATTEMPTS):
        most = max(times * seconds(function, other), QUICK_SECONDS)
        if seconds(function, written, most) <= most:
            return False
    return True
