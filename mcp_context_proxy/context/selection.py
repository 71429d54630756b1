"""Puts a request context together: the session's items, then what is selected for the query. Blocks.

Nothing here fails because the search did: its failure is part of what is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.context.options import ContextOptions
from mcp_context_proxy.context.request import SESSION_MODES, ContextItem, Draft, Mode, Origin, RequestContext
from mcp_context_proxy.context.search import EVERYTHING, Found, Scope, Searcher
from mcp_context_proxy.context.session import NO_SESSION, SessionView, key_of
from mcp_context_proxy.context.session_items import session_items
from mcp_context_proxy.items import Item, Kind, Snapshot, Tool
from mcp_context_proxy.retrieval.ranking import Ranking, Result

WHY = {Mode.ALWAYS: "in every session", Mode.MANUAL: "added to this session by hand"}


@dataclass(frozen=True, slots=True)
class Request:
    """What a context is wanted for."""

    query: str
    origin: Origin
    options: ContextOptions
    session: SessionView = NO_SESSION
    scope: Scope = EVERYTHING


@dataclass(frozen=True, slots=True)
class Selected:
    """A request context with what it was made from, for who shows more than names."""

    context: RequestContext
    snapshot: Snapshot
    found: Found
    """What the search found; the session's items when it failed."""

    @property
    def tool_names(self) -> list[str]:
        """Exposed names of the tools selected for the query, beside those the session has."""
        tools = self.context.of(Kind.TOOL)
        return [item.name for item in tools if item.include_mode not in SESSION_MODES]


class Selection:
    """Selects items for requests."""

    def __init__(self, searcher: Searcher, costs: Costs) -> None:
        self._searcher, self._costs = searcher, costs

    def select(self, request: Request, snapshot: Snapshot, draft: Draft) -> Selected:
        """The context of a request."""
        draft.add(self.session_items(snapshot, request.session))
        found = None if draft.failure else self._found(request, snapshot, draft)
        if found is None:
            return Selected(draft.finished(), snapshot, _instead(request, snapshot, draft))
        draft.add(map(self._selected, found.results))
        draft.near_misses = tuple(map(self._selected, found.near_misses))
        draft.note = found.tools.note
        return Selected(draft.finished(), snapshot, found)

    def session_items(self, snapshot: Snapshot, session: SessionView) -> Iterator[ContextItem]:
        """The items a session has whatever the query is."""
        for item, mode in session_items(snapshot, session):
            yield self._context_item(item, mode, None, WHY[mode])

    def _found(self, request: Request, snapshot: Snapshot, draft: Draft) -> Found | None:
        try:
            return self._searcher.find(request.query, snapshot, request.options, request.scope)
        except Exception as error:
            # boundary: a request must not fail because its selection did
            draft.fail(error)
            return None

    def _selected(self, result: Result) -> ContextItem:
        mode = Mode.LEARNED if result.learned > 0 else Mode.AGENT
        return self._context_item(result.item, mode, round(result.score, 4), result.why)

    def _context_item(self, item: Item, mode: Mode, score: float | None, why: str) -> ContextItem:
        kind, name = key_of(item)
        server = item.server if isinstance(item, Tool) else None
        return ContextItem(kind, name, server, mode, score, self._costs.of(item), why)


def _instead(request: Request, snapshot: Snapshot, draft: Draft) -> Found:
    """What is served when the search failed: the session's items, and the reason."""
    results = tuple(
        Result(item, 0.0, None, 0.0, 0.0, item.description, (), WHY[mode])
        for item, mode in session_items(snapshot, request.session)
        if request.scope.kinds is None or item.kind in request.scope.kinds
    )
    note = f"The search failed ({draft.failure}); these are the items of every request."
    return Found(
        Ranking(request.query, results, len(results), "lexical", note, bool(results), (), 0.0), None, snapshot
    )
