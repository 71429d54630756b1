"""The working set: tools that are used again and again, and so are in the list before anybody searches.

It is chosen once a day (UTC) from the sessions in which tools were used, by the first proxy that needs it,
and stored: a list that changed with use would cost every prompt its place in the provider's cache, and
proxies on one store list the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import IncludeMode, Tool, ToolKey
from mcp_context_proxy.statistics.recorder import WINDOW_DAYS
from mcp_context_proxy.store import DAY, Store, ToolSessions
from mcp_context_proxy.system.process import date_of

logger = logging.getLogger(__name__)

SEVERAL: Final = 3
"""Sessions in which a tool of the working set was used: twice may be one task that was resumed."""


class WorkingSet(Struct):
    """The tools of the working set, and why each is in it. Empty until they are chosen."""

    reasons: Mapping[ToolKey, str] = field(default_factory=dict)
    day: str = ""
    """The day for which they were chosen."""

    def why(self, tool: Tool) -> str | None:
        """Return why a tool is in it; None where it is not, or where only a person may add it."""
        return self.reasons.get(tool.key) if tool.include is IncludeMode.AGENT else None

    def choose(
        self,
        store: Store,
        budget: int,
        clock: Callable[[], float],
    ) -> bool:
        """Choose tools for a budget in tokens, or take those of the day; return whether they are others now.

        Blocks; to be called before anything is listed, and again from time to time.
        """
        day = date_of(clock()).date().isoformat()
        if budget == 0 or day == self.day:
            return False
        try:
            reasons = store.working_sets.get(day, budget)
            if reasons is None:
                used = store.tool_sessions.counted(clock() - WINDOW_DAYS * DAY)
                tokens = {row.key: row.tokens for row in store.statistics.definitions()}
                reasons = store.working_sets.choose(day, budget, chosen(used, tokens, budget))
        except StoreError as error:
            if not self.day:
                logger.warning("%s. The list has no working set.", error)
            return False
        before, self.reasons, self.day = self.reasons.keys(), reasons, day
        return reasons.keys() != before


def chosen(used: Sequence[ToolSessions], tokens: Mapping[ToolKey, int], budget: int) -> dict[ToolKey, str]:
    """Return the tools used in most sessions that fit into a budget, each with the reason.

    A tool that does not fit makes room for others. A tool of unknown cost is left for the next start.
    """
    left, found = budget, {}
    for one in sorted(used, key=lambda one: (-one.sessions, -one.last, one.server, one.tool)):
        cost = tokens.get(one.key)
        if one.sessions >= SEVERAL and cost is not None and cost <= left:
            left -= cost
            last = date_of(one.last).date().isoformat()
            days = f"{WINDOW_DAYS:.0f} days"
            found[one.key] = f"used in {one.sessions} sessions of the last {days}, last on {last}"
    return found
