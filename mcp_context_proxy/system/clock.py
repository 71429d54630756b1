"""The time of day for stored data, with clock jumps ignored until the next start.

Durations and deadlines never come from here. But stored data is deleted by its age, and learned pairs decay:
a clock that is wrong for a minute must not make all of it a year old.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LEAP_SECONDS: Final = 24 * 3600.0
"""A smaller jump is accepted: a machine whose clock is off gets corrected by some hours at most."""

PLAUSIBLE: Final = 1_735_689_600.0
"""The start of 2025. A machine without a battery starts in the past, and jumps once it has a network."""


def _passed() -> float:
    """Return seconds that only increase, also while the machine sleeps."""
    if not hasattr(time, "clock_gettime"):
        return time.monotonic()
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class TimeOfDay:
    """Seconds since 1970 as the machine has them, unless they jump."""

    def __init__(self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = _passed) -> None:
        """Trust the present time of `wall`, which somebody may set; nobody can set the seconds `passed`."""
        self._wall, self._passed = wall, passed
        self._offset = wall() - passed()

    def __call__(self) -> float:
        """Return the time of day; after a jump, the time that it would be without it."""
        wall = self._wall()
        steady = self._offset + self._passed()
        if steady < PLAUSIBLE <= wall:
            self._offset += wall - steady
            return wall
        return wall if abs(wall - steady) <= LEAP_SECONDS else steady


time_of_day: Final = TimeOfDay()
"""The clock of this process."""
