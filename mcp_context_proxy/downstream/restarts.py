"""Decides when a server whose connection was lost is connected again. Knows no clock and no server.

One that worked and died is wanted back at once, as often as it has answered something meanwhile; not one that
soon leaves of itself each time. Else waiting begins, twice as long each time, with jitter, so that many do
not come back together. One that fails again and again is left alone, and tried once in a while.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from mcp_context_proxy.config import Limits

LEAST_SHARE = 0.1
"""Of a wait: jitter never makes it shorter."""


QUICK_SECONDS = 5.0
"""A server that leaves of itself sooner would be started more than twelve times a minute."""


class Restarts:
    """Counts the failures of one server in a row."""

    def __init__(self, limits: Limits, jitter: Callable[[float, float], float] = random.uniform) -> None:
        self._limits, self._jitter = limits, jitter
        self.failures = 0
        """In a row, since it was last healthy for long enough."""

    def configure(self, limits: Limits) -> None:
        """Wait by other limits from the next failure on."""
        self._limits = limits

    @property
    def left_alone(self) -> bool:
        """Whether the breaker is open."""
        return self.failures >= self._limits.breaker_failures

    def wait_seconds(self, lasted: float, useful: bool = False, left: bool = False) -> float:
        """How long to wait, now that a connection was lost that had been ready for `lasted` seconds.

        0 for `lasted` means that it never was; `useful`, that it has answered a request of a client; `left`,
        that it went of itself: nobody killed it, and no call was under way that it could have died of.
        """
        quick = left and lasted < QUICK_SECONDS
        if (useful and not quick) or lasted >= self._limits.backoff_reset_seconds:
            self.failures = 0
            return 0.0
        self.failures += 1
        if self.left_alone:
            return self._limits.breaker_seconds
        if lasted > 0 and self.failures == 1:
            return 0.0
        ceiling = self._limits.backoff_first_seconds * 2.0 ** (self.failures - 1)
        return self._jitter(LEAST_SHARE, 1.0) * min(ceiling, self._limits.backoff_max_seconds)
