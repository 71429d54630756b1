"""The tools that are used again and again, so that the list may hold them before anybody searches.

Chosen once, at the start, and the same until the end: a list that changed with use would cost every prompt
its place in the provider's cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import IncludeMode, Tool
from mcp_context_proxy.learning.pairs import SECONDS_A_DAY, ToolKey
from mcp_context_proxy.store import StatisticsStore, ToolSessions, ToolSessionStore

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
