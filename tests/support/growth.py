"""Comparison of the processor time of two texts in one run, so that no machine is too slow for a test."""

import time
from collections.abc import Callable
from typing import TypeVar

Read = TypeVar("Read")

QUICK_SECONDS = 0.02
"""Time that is too short to be compared."""

ATTEMPTS = 10
"""Measurements that must all be too long."""

FAR = 4
"""What is so many times quicker than it has to be needs no second measurement of the other text."""


def seconds(function: Callable[[Read], object], written: Read) -> float:
    """Return the processor time of reading a text."""
    begun = time.thread_time()
    function(written)
    return time.thread_time() - begun


def costs_more(times: float, function: Callable[[Read], object], written: Read, other: Read) -> bool:
    """Return whether a text takes so many times the processor time of another, whenever it is measured.

    Processor time is longer while others use the same caches, so what looks slow is measured again.
    """
    for _ in range(ATTEMPTS):
        taken = seconds(function, written)
        if taken <= QUICK_SECONDS:
            return False
        least = seconds(function, other)
        if FAR * taken <= times * least:
            return False
        least = min(least, *(seconds(function, other) for _ in range(2)))
        if taken <= times * least:
            return False
    return True
