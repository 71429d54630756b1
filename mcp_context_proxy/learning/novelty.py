"""Tools that came lately and were not used yet: a search gives them a little more, for some days.

What nobody has used has nothing learned to speak for it. The addition is small beside what words and meaning
say, halves every few days, and ends with the first use. What was there at the installation is not new.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.learning.pairs import SECONDS_A_DAY, ToolKey
from mcp_context_proxy.store import StatisticsStore

logger = logging.getLogger(__name__)

MOST: Final = 0.02
"""Of cosine, for a tool that came this moment: as much as one word that is found in a description."""

HALVED_AFTER_DAYS: Final = 3.0

NEW_FOR_DAYS: Final = 14.0
"""What is left then is 0.0008, less than the scores of two tools differ by."""

SETTLED_AFTER_DAYS: Final = 1.0
"""After the first tool was seen: servers that are set up on one day are one installation."""

LOOK_SECONDS: Final = 60.0
"""Between two looks at the store."""


class Novelty:
    """What is added for tools that are new. Blocking, for milliseconds once a minute; thread-safe."""

    def __init__(
        self,
        store: StatisticsStore,
        used: Callable[[], Collection[ToolKey]],
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Know what is new.

        Args:
            store: Knows when tools were first seen.
            used: Server and own name of the tools that something was learned of.
            clock: Seconds since 1970.
        """
        self._store, self._used, self._clock = store, used, clock
        self._looking = threading.Lock()
        self._looked_at = float("-inf")
        self._came: Mapping[ToolKey, float] = {}

    def additions(self) -> Mapping[ToolKey, float]:
        """By server and own name, what is added to the cosine of each new tool now."""
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS and self._looking.acquire(blocking=False):
            try:
                self._look(now)
            finally:
                self._looking.release()
        if not self._came:
            return {}
        used = self._used()
        return {
            tool: addition((now - came) / SECONDS_A_DAY)
            for tool, came in self._came.items()
            if tool not in used and now - came < NEW_FOR_DAYS * SECONDS_A_DAY
        }

    def _look(self, now: float) -> None:
        self._looked_at = now
        try:
            rows = self._store.definitions()
        except StoreError as error:
            logger.debug("which tools are new is not known: %s", error)
            return
        settled = min((row.first for row in rows), default=now) + SETTLED_AFTER_DAYS * SECONDS_A_DAY
        since = max(settled, now - NEW_FOR_DAYS * SECONDS_A_DAY)
        self._came = {(row.server, row.tool): row.first for row in rows if row.first > since}


def addition(days: float) -> float:
    """What is added for a tool that came so many days ago."""
    return float(MOST * 0.5 ** (max(days, 0.0) / HALVED_AFTER_DAYS))
