"""The tools that are used again and again, so that the list may hold them before anybody searches.

Chosen once, at the start, and the same until the end: a list that changed with use would cost every prompt
its place in the provider's cache.

Tools that came lately and were not used yet: a search gives them a little more, for some days.

What nobody has used has nothing learned to speak for it. The addition is small beside what words and meaning
say, halves every few days, and ends with the first use. What was there at the installation is not new.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import IncludeMode, Tool
from mcp_context_proxy.learning.pairs import SECONDS_A_DAY, ToolKey
from mcp_context_proxy.store import StatisticsStore, ToolSessions, ToolSessionStore
from mcp_context_proxy.system.clock import time_of_day

logger = logging.getLogger(__name__)

SEVERAL: Final = 3
"""Sessions in which a tool was used before it belongs to it: twice may be one task that was resumed."""

WINDOW_DAYS: Final = 30.0
"""How far back sessions count; the same after which a learned pair that is not used is forgotten."""


@dataclass(slots=True)
class WorkingSet:
    """The tools, by server and own name, and why each is one of them. Empty until they are chosen."""

    reasons: Mapping[ToolKey, str] = field(default_factory=dict)

    def why(self, tool: Tool) -> str | None:
        """Why a tool belongs to it; None where it does not, and of one that is only to be called by name."""
        if tool.include is not IncludeMode.AGENT:
            return None
        return self.reasons.get((tool.server, tool.name))

    def choose(
        self,
        sessions: ToolSessionStore,
        definitions: StatisticsStore,
        budget: int,
        clock: Callable[[], float],
    ) -> None:
        """Choose them by what the store knows. Blocks; to be called once, before anything is listed.

        Args:
            sessions: In which sessions tools were used.
            definitions: What they cost a model to read.
            budget: Tokens that they may cost together.
            clock: Seconds since 1970.
        """
        if budget == 0:
            return
        try:
            used = sessions.counted(clock() - WINDOW_DAYS * SECONDS_A_DAY)
            tokens = {(row.server, row.tool): row.tokens for row in definitions.definitions()}
        except StoreError as error:
            logger.warning("%s. The list has no working set.", error)
            return
        self.reasons = chosen(used, tokens, budget)


def chosen(used: Sequence[ToolSessions], tokens: Mapping[ToolKey, int], budget: int) -> dict[ToolKey, str]:
    """Those used in most sessions first, as long as they fit; what is too dear makes room for what is not.

    A tool whose cost is not known yet is left for the next start.
    """
    left, found = budget, {}
    for one in sorted(used, key=lambda one: (-one.sessions, -one.last, one.server, one.tool)):
        cost = tokens.get((one.server, one.tool))
        if one.sessions >= SEVERAL and cost is not None and cost <= left:
            left -= cost
            found[one.server, one.tool] = _why(one)
    return found


def _why(one: ToolSessions) -> str:
    last = datetime.fromtimestamp(one.last, UTC).date().isoformat()
    return f"used in {one.sessions} sessions of the last {WINDOW_DAYS:.0f} days, last on {last}"


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
