"""The working set, tools that are used again and again; and novelty, a small bonus for tools that are new.

The working set is in the list before anybody searches. It is chosen once, at the start, from the sessions in
which tools were used: a list that changed with use would cost every prompt its place in the provider's cache.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import IncludeMode, Tool, ToolKey
from mcp_context_proxy.store import (
    DAY,
    BatchWriter,
    StatisticsStore,
    ToolSession,
    ToolSessions,
    ToolSessionStore,
)
from mcp_context_proxy.system.clock import time_of_day

logger = logging.getLogger(__name__)

SEVERAL: Final = 3
"""Sessions in which a tool of the working set was used: twice may be one task that was resumed."""

WINDOW_DAYS: Final = 30.0
"""How far back sessions count; a learned pair that is not used is forgotten after the same time."""


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


BATCH_SECONDS: Final = 0.5
"""How long uses are gathered before they are written."""
MOST_KEPT: Final = 20_000
"""Uses in the store, one per tool and session: a month of 60 sessions a day with ten tools each, 2 MB."""
UNWRITTEN_KEPT: Final = 10_000
"""Uses that wait for the store; of more, the oldest are dropped."""
SEEN_KEPT: Final = 2_000
"""Uses that are remembered, 350 bytes each, so that each is written once, or again when it was forgotten."""


class SessionRecorder:
    """Records the sessions in which tools were used. Its `run` owns the writing."""

    def __init__(self, store: ToolSessionStore, clock: Callable[[], float] = time_of_day) -> None:
        self._store, self._clock = store, clock
        self._uses = BatchWriter(self._write, seconds=BATCH_SECONDS, limit=UNWRITTEN_KEPT)
        self._seen: OrderedDict[tuple[ToolKey, str], None] = OrderedDict()

    def used(self, tool: ToolKey, session: str | None) -> None:
        """Record a successful call; without a session, the day counts as one. Does not block."""
        now = self._clock()
        of_session = session or f"day {datetime.fromtimestamp(now, UTC).date().isoformat()}"
        if (tool, of_session) in self._seen:
            return
        self._seen[tool, of_session] = None
        if len(self._seen) > SEEN_KEPT:
            self._seen.popitem(last=False)
        self._uses.add(ToolSession(*tool, of_session, now))

    async def run(self) -> None:
        """Write until cancelled, and then the uses that are left."""
        await self._uses.run()

    async def flush(self) -> None:
        """Write every use that was recorded before."""
        await self._uses.flush()

    def _write(self, uses: Sequence[ToolSession]) -> None:
        self._store.add(uses, self._clock() - WINDOW_DAYS * DAY, MOST_KEPT)


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
        """Return what is added to the cosine of each new tool now."""
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
