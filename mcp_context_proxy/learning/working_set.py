"""The working set, tools that are used again and again; and novelty, a small bonus for tools that are new.

The working set is in the list before anybody searches. It is chosen once, at the start, from the sessions in
which tools were used: a list that changed with use would cost every prompt its place in the provider's cache.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import IncludeMode, Tool, ToolKey
from mcp_context_proxy.statistics.recorder import WINDOW_DAYS
from mcp_context_proxy.store import (
    DAY,
    StatisticsStore,
    ToolSessions,
    ToolSessionStore,
)
from mcp_context_proxy.system.clock import time_of_day

logger = logging.getLogger(__name__)

SEVERAL: Final = 3
"""Sessions in which a tool of the working set was used: twice may be one task that was resumed."""


@dataclass(slots=True)
class WorkingSet:
    """The tools of the working set, and why each is in it. Empty until they are chosen."""

    reasons: Mapping[ToolKey, str] = field(default_factory=dict)

    def why(self, tool: Tool) -> str | None:
        """Return why a tool is in it; None where it is not, or where only a person may add it."""
        return self.reasons.get(tool.key) if tool.include is IncludeMode.AGENT else None

    def choose(
        self,
        sessions: ToolSessionStore,
        definitions: StatisticsStore,
        budget: int,
        clock: Callable[[], float],
    ) -> None:
        """Choose the tools. Blocks; to be called once, before anything is listed.

        Args:
            sessions: Has the sessions in which tools were used.
            definitions: Has the tokens of their definitions.
            budget: Tokens that they may cost together.
            clock: Seconds since 1970.
        """
        if budget == 0:
            return
        try:
            used = sessions.counted(clock() - WINDOW_DAYS * DAY)
            tokens = {row.key: row.tokens for row in definitions.definitions()}
        except StoreError as error:
            logger.warning("%s. The list has no working set.", error)
            return
        self.reasons = chosen(used, tokens, budget)


def chosen(used: Sequence[ToolSessions], tokens: Mapping[ToolKey, int], budget: int) -> dict[ToolKey, str]:
    """Return the tools used in most sessions that fit into a budget, each with the reason.

    A tool that does not fit makes room for others. A tool of unknown cost is left for the next start.
    """
    left, found = budget, {}
    for one in sorted(used, key=lambda one: (-one.sessions, -one.last, one.server, one.tool)):
        cost = tokens.get(one.key)
        if one.sessions >= SEVERAL and cost is not None and cost <= left:
            left -= cost
            last = datetime.fromtimestamp(one.last, UTC).date().isoformat()
            days = f"{WINDOW_DAYS:.0f} days"
            found[one.key] = f"used in {one.sessions} sessions of the last {days}, last on {last}"
    return found


MOST: Final = 0.02
"""Addition to the cosine of a brand-new tool: as much as one word that is found in a description."""
HALVED_AFTER_DAYS: Final = 3.0
NEW_FOR_DAYS: Final = 14.0
"""By then 0.0008 are left, less than the scores of two tools differ by."""
SETTLED_AFTER_DAYS: Final = 1.0
"""Time after the first tool was seen: servers that are set up on one day are one installation."""
LOOK_SECONDS: Final = 60.0
"""Time between two looks at the store."""


class Novelty:
    """A bonus in search for tools that came lately and were not used yet, for which no pair can speak.

    It is small beside words and meaning, halves every few days, and ends with the first use. Tools of the
    first installation are not new. Blocks for milliseconds once a minute; thread-safe.
    """

    def __init__(
        self,
        store: StatisticsStore,
        used: Callable[[], Collection[ToolKey]],
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Read nothing yet.

        Args:
            store: Has the time at which each tool was first seen.
            used: Returns the tools that have learned pairs.
            clock: Seconds since 1970.
        """
        self._store, self._used, self._clock = store, used, clock
        self._looking = threading.Lock()
        self._looked_at = float("-inf")
        self._came: Mapping[ToolKey, float] = {}

    def additions(self) -> Mapping[ToolKey, float]:
        """Return the addition to the cosine of each new tool now."""
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
            tool: addition((now - came) / DAY)
            for tool, came in self._came.items()
            if tool not in used and now - came < NEW_FOR_DAYS * DAY
        }

    def _look(self, now: float) -> None:
        self._looked_at = now
        try:
            rows = self._store.definitions()
        except StoreError as error:
            logger.debug("new tools get no bonus: %s", error)
            return
        settled = min((row.first for row in rows), default=now) + SETTLED_AFTER_DAYS * DAY
        since = max(settled, now - NEW_FOR_DAYS * DAY)
        self._came = {row.key: row.first for row in rows if row.first > since}


def addition(days: float) -> float:
    """Return the addition for a tool that came some days ago."""
    return float(MOST * 0.5 ** (max(days, 0.0) / HALVED_AFTER_DAYS))
