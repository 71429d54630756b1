"""The time of day, for what is remembered: a clock that leaps is not believed until the next start.

Durations and deadlines never come from here. But what is kept is forgotten by its age, and what was learned
fades: a clock that is set wrong for a minute must not make all of it a year old.

What is open until it is closed can be used in a ``with`` statement, which closes it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

LEAP_SECONDS: Final = 24 * 3600.0
"""Less is taken over: a machine whose clock is off is set right by some hours at most."""

PLAUSIBLE: Final = 1_735_689_600.0
"""2025. A machine without a battery begins in the past, and leaps to what is right once it has a network."""


def _passed() -> float:
    """Seconds that only go on, also while the machine sleeps."""
    if not hasattr(time, "clock_gettime"):
        return time.monotonic()
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class TimeOfDay:
    """Seconds since 1970, as the machine has them unless they leap."""

    def __init__(self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = _passed) -> None:
        """Believe the time there is now.

        Args:
            wall: Seconds since 1970, which somebody may set.
            passed: Seconds that nobody can set.
        """
        self._wall, self._passed = wall, passed
        self._offset = wall() - passed()

    def __call__(self) -> float:
        """The time of day; after a leap, what it would be without."""
        wall = self._wall()
        steady = self._offset + self._passed()
        if steady < PLAUSIBLE <= wall:
            self._offset += wall - steady
            return wall
        return wall if abs(wall - steady) <= LEAP_SECONDS else steady


time_of_day: Final = TimeOfDay()
"""The clock of this process."""


class Closing(ABC):
    """Something that has to be closed."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
