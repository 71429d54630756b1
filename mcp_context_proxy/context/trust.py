"""Whether a list may be filtered by a query, by what use has taught of such queries. Pure.

Only the lists of handshake-era sessions are decided on: those follow searches, and what they leave out is not
seen. Where too little was learned to tell, a list is filtered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mcp_context_proxy.context.request import ContextItem, Draft
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.items import IncludeMode, Kind, Snapshot, Tool
from mcp_context_proxy.retrieval.ranking import Ranking

DOUBTED: Final = 0.3
"""Confidence below which everything is listed that there is room for."""

RANKED: Final = 50
"""Tools that are put in order for that: more do not fit into a usual budget."""

WHY: Final = "listed because little is known of such requests"


def is_doubted(confidence: float | None) -> bool:
    """Whether a selection is too uncertain to hide the rest."""
    return confidence is not None and confidence < DOUBTED


@dataclass(frozen=True, slots=True)
class Room:
    """What a list is to be filled from, and what it has."""

    snapshot: Snapshot
    scope: Scope
    listed: Collection[str]
    """Exposed names; a list only ever grows, so they take their share of the room."""


def filling(
    ranking: Ranking, room: Room, draft: Draft, item: Callable[[Tool], ContextItem]
) -> Iterable[ContextItem]:
    """What there is room for beside the list and the context so far: the best first, then by name.

    The room is ``max_tokens``, or without one what a catalog may cost that is listed whole.
    """
    snapshot, scope, options = room.snapshot, room.scope, draft.options
    if scope.constraints or (scope.kinds is not None and Kind.TOOL not in scope.kinds):
        return
    left = options.list_tokens if options.max_tokens is None else options.max_tokens
    left -= sum(one.tokens for one in draft.items.values())
    others = {name for name in room.listed if (Kind.TOOL, name) not in draft.items}
    left -= sum(item(held).tokens for name in others if (held := snapshot.tools.get(name)))
    dropped = {(one.type, one.name) for one in draft.dropped}
    ranked = [result.item for result in (*ranking.results, *ranking.near_misses, *ranking.others)]
    for tool in dict.fromkeys((*ranked, *snapshot.tools.values())):
        if not isinstance(tool, Tool) or tool.include is not IncludeMode.AGENT:
            continue
        key = (Kind.TOOL, tool.exposed_name)
        if key in draft.items or key in dropped or key in scope.without or tool.exposed_name in others:
            continue
        one = item(tool)
        left -= one.tokens
        if left < 0:
            return
        yield one
