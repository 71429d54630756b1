"""Puts a request context together: the session's items, what the query selects, what comes with it. Blocks.

Nothing here fails because the search did: its failure is part of what is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from mcp_context_proxy.context import budget, trust
from mcp_context_proxy.context.companions import Companion, Companions
from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.context.found import Found
from mcp_context_proxy.context.options import ContextOptions
from mcp_context_proxy.context.request import (
    SESSION_MODES,
    ContextItem,
    Draft,
    Mode,
    Origin,
    RequestContext,
)
from mcp_context_proxy.context.search import EVERYTHING, Scope, Searcher
from mcp_context_proxy.context.session import NO_SESSION, SessionView, key_of
from mcp_context_proxy.context.session_items import session_items, standing_items
from mcp_context_proxy.items import Item, Kind, Snapshot, Tool
from mcp_context_proxy.learning.working_set import WorkingSet
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
    listed: Collection[str] | None = None
    """What the list of a handshake-era session has, where this request decides on it; None elsewhere."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A request context with what it was made from, for whoever shows more than names."""

    context: RequestContext
    snapshot: Snapshot
    found: Found
    """What the search found and the context took; the session's items when the search failed."""

    @property
    def tool_names(self) -> list[str]:
        """Exposed names of the tools selected for the query, beside those the session has."""
        tools = self.context.of(Kind.TOOL)
        return [item.name for item in tools if item.include_mode not in SESSION_MODES]


class Selection:
    """Selects items for requests."""

    def __init__(
        self, searcher: Searcher, companions: Companions, costs: Costs, working_set: WorkingSet
    ) -> None:
        """Prepare to select.

        Args:
            searcher: Finds what fits a query.
            companions: Knows what comes with what was found.
            costs: Estimates tokens.
            working_set: Is in every context.
        """
        self._searcher, self._companions, self._costs = searcher, companions, costs
        self._working_set = working_set
        self._standing: tuple[Snapshot | None, tuple[tuple[Item, Mode], ...]] = (None, ())

    def select(self, request: Request, snapshot: Snapshot, draft: Draft) -> Selected:
        """The context of a request."""
        return self.completed(request, snapshot, draft, self.found(request, snapshot, draft))

    def completed(self, request: Request, snapshot: Snapshot, draft: Draft, found: Found | None) -> Selected:
        """The context of a request, for which that was found; None where the search failed."""
        draft.add(self.session_items(snapshot, request.session))
        if found is None:
            return Selected(draft.finished(), snapshot, self._instead(request, snapshot, draft))
        draft.note = found.tools.note or found.filter_note
        draft.near_misses = tuple(self._selected(result) for result in found.near_misses)
        draft.add(self._selected(result) for result in found.results)
        brought = self._brought(request, snapshot, found, draft)
        draft.add(self._companion(companion) for companion in brought)
        budget.keep(draft)
        if trust.is_doubted(draft.confidence):
            room = trust.Room(snapshot, request.scope, request.listed or ())
            draft.add(trust.filling(found.tools, room, draft, self._uncertain))
        return Selected(draft.finished(), snapshot, _taken(found, brought, draft))

    def session_items(self, snapshot: Snapshot, session: SessionView) -> Iterator[ContextItem]:
        """The items a session has whatever the query is."""
        for item, mode in session_items(snapshot, self._standing_in(snapshot), session):
            yield self._context_item(item, mode, None, self._why(item, mode))

    def _why(self, item: Item, mode: Mode) -> str:
        of_working_set = self._working_set.why(item) if isinstance(item, Tool) else None
        return WHY.get(mode) or of_working_set or ""

    def _standing_in(self, snapshot: Snapshot) -> tuple[tuple[Item, Mode], ...]:
        """Looked for once in each snapshot: there may be thousands of items that are not."""
        known, items = self._standing
        if known is not snapshot:
            items = tuple(standing_items(snapshot, self._working_set))
            self._standing = (snapshot, items)
        return items

    def related(self, item: Item, snapshot: Snapshot, limit: int) -> list[ContextItem]:
        """What is near to an item, nearest first."""
        return [self._companion(one) for one in self._companions.related(item, snapshot, limit)]

    def found(self, request: Request, snapshot: Snapshot, draft: Draft, depth: int = 0) -> Found | None:
        """What the search finds, its tools ranked down to ``depth``; None where it fails."""
        if draft.failure is not None:
            return None
        try:
            if request.listed is not None:
                draft.confidence = self._searcher.confidence(request.query, snapshot)
                depth = trust.RANKED if trust.is_doubted(draft.confidence) else depth
            return self._searcher.find(
                request.query,
                snapshot,
                request.options,
                request.scope,
                request.session.history,
                depth,
                explore=request.origin == "search",
            )
        except Exception as error:
            # boundary: a request must not fail because its selection did
            draft.fail(error)
            return None

    def _brought(self, request: Request, snapshot: Snapshot, found: Found, draft: Draft) -> list[Companion]:
        """What comes with what was found; without it where it cannot be told."""
        items = [result.item for result in found.results]
        try:
            return self._companions.of(
                items, request.query, snapshot, request.options, request.session, found.filters
            )
        except Exception as error:
            # boundary: a request must not fail because its selection did
            draft.fail(error)
            return []

    def _instead(self, request: Request, snapshot: Snapshot, draft: Draft) -> Found:
        """What is served when the search failed: the session's items, and the reason."""
        filters = self._searcher.filters(request.scope)
        results = tuple(
            Result(item, 0.0, None, 0.0, 0.0, item.description, (), self._why(item, mode))
            for item, mode in session_items(snapshot, self._standing_in(snapshot), request.session)
            if filters.allow(item)
        )
        note = f"The search failed ({draft.failure}); these are the items of every request."
        return Found(
            Ranking(request.query, results, len(results), "lexical", note, bool(results), (), 0.0),
            None,
            snapshot,
            constraints=request.scope.constraints,
            filters=filters,
        )

    def _selected(self, result: Result) -> ContextItem:
        mode = Mode.LEARNED if result.learned > 0 else Mode.AGENT
        return self._context_item(result.item, mode, round(result.score, 4), result.why)

    def _uncertain(self, tool: Tool) -> ContextItem:
        return self._context_item(tool, Mode.UNCERTAIN, None, trust.WHY)

    def _companion(self, companion: Companion) -> ContextItem:
        return self._context_item(companion.item, companion.mode, companion.score, companion.why)

    def _context_item(self, item: Item, mode: Mode, score: float | None, why: str) -> ContextItem:
        kind, name = key_of(item)
        server = item.server if isinstance(item, Tool) else None
        return ContextItem(kind, name, server, mode, score, self._costs.of(item), why)


def _taken(found: Found, brought: list[Companion], draft: Draft) -> Found:
    """What was found, without what did not fit into the budget, and with what it brought."""
    dropped = {(item.type, item.name) for item in draft.dropped}
    expanded = [one.result() for one in brought if one.mode is Mode.EXPANSION]
    known = {key_of(result.item) for result in found.results} | dropped

    def fitting(ranking: Ranking) -> Ranking:
        if not dropped:
            return ranking
        results = tuple(result for result in ranking.results if key_of(result.item) not in dropped)
        return replace(ranking, results=results)

    return replace(
        found,
        tools=fitting(found.tools),
        documents=None if found.documents is None else fitting(found.documents),
        brought=tuple(result for result in expanded if key_of(result.item) not in known),
    )
