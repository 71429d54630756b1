"""Puts a request context together: the session's items, what the query selects, what comes with it. Blocks.

Nothing here fails because the search did: its failure is part of what is recorded.

Keeps a context within what it may cost: what does not fit is named, never dropped in silence.

What the session has stays, because somebody wanted it; of the rest the best comes first, and what is too dear
makes room for what is cheaper.

Whether a list may be filtered by a query, by what use has taught of such queries. Pure.

Only the lists of handshake-era sessions are decided on: those follow searches, and what they leave out is not
seen. Where too little was learned to tell, a list is filtered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.context.expansion import Companion, ContextExpander
from mcp_context_proxy.context.options import ContextOptions
from mcp_context_proxy.context.records import SESSION_MODES, ContextItem, Draft, Mode, Origin, RequestContext
from mcp_context_proxy.context.search import EVERYTHING, Found, Scope, Searcher
from mcp_context_proxy.context.session import NO_SESSION, SessionView, key_of, session_items, standing_items
from mcp_context_proxy.items import IncludeMode, Item, Kind, Snapshot, Tool
from mcp_context_proxy.learning.working_set import WorkingSet
from mcp_context_proxy.retrieval.results import Ranking, Result


def keep(draft: Draft) -> None:
    """Move what does not fit into `ContextOptions.max_tokens` from the items to those dropped."""
    if draft.options.max_tokens is None:
        return
    left = draft.options.max_tokens
    left -= sum(item.tokens for item in draft.items.values() if item.include_mode in SESSION_MODES)
    selected = [item for item in draft.items.values() if item.include_mode not in SESSION_MODES]
    dropped: list[ContextItem] = []
    for item in sorted(selected, key=lambda item: -(item.score or 0.0)):
        if item.tokens <= left:
            left -= item.tokens
        else:
            dropped.append(item)
            del draft.items[item.type, item.name]
    draft.dropped = tuple(dropped)


DOUBTED: Final = 0.3
"""Confidence below which everything is listed that there is room for."""

RANKED: Final = 50
"""Tools that are put in order for that: more do not fit into a usual budget."""

WHY_FILLED: Final = "listed because little is known of such requests"


def is_doubted(confidence: float | None) -> bool:
    """Whether a selection is too uncertain to hide the rest."""
    return confidence is not None and confidence < DOUBTED


@dataclass(frozen=True, slots=True)
class FillingRoom:
    """What a list is to be filled from, and what it has."""

    snapshot: Snapshot
    scope: Scope
    listed: Collection[str]
    """Exposed names; a list only ever grows, so they take their share of the room."""


def filling(
    ranking: Ranking, room: FillingRoom, draft: Draft, item: Callable[[Tool], ContextItem]
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


WHY = {Mode.ALWAYS: "in every session", Mode.MANUAL: "added to this session by hand"}


@dataclass(frozen=True, slots=True)
class SelectionRequest:
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
        self, searcher: Searcher, companions: ContextExpander, costs: Costs, working_set: WorkingSet
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

    def select(self, request: SelectionRequest, snapshot: Snapshot, draft: Draft) -> Selected:
        """The context of a request."""
        return self.completed(request, snapshot, draft, self.found(request, snapshot, draft))

    def completed(
        self, request: SelectionRequest, snapshot: Snapshot, draft: Draft, found: Found | None
    ) -> Selected:
        """The context of a request, for which that was found; None where the search failed."""
        draft.add(self.session_items(snapshot, request.session))
        if found is None:
            return Selected(draft.finished(), snapshot, self._instead(request, snapshot, draft))
        draft.note = found.tools.note or found.filter_note
        draft.near_misses = tuple(self._selected(result) for result in found.near_misses)
        draft.add(self._selected(result) for result in found.results)
        brought = self._brought(request, snapshot, found, draft)
        draft.add(self._companion(companion) for companion in brought)
        keep(draft)
        if is_doubted(draft.confidence):
            room = FillingRoom(snapshot, request.scope, request.listed or ())
            draft.add(filling(found.tools, room, draft, self._uncertain))
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

    def found(
        self, request: SelectionRequest, snapshot: Snapshot, draft: Draft, depth: int = 0
    ) -> Found | None:
        """What the search finds, its tools ranked down to ``depth``; None where it fails."""
        if draft.failure is not None:
            return None
        try:
            if request.listed is not None:
                draft.confidence = self._searcher.confidence(request.query, snapshot)
                depth = RANKED if is_doubted(draft.confidence) else depth
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

    def _brought(
        self, request: SelectionRequest, snapshot: Snapshot, found: Found, draft: Draft
    ) -> list[Companion]:
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

    def _instead(self, request: SelectionRequest, snapshot: Snapshot, draft: Draft) -> Found:
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
        return self._context_item(tool, Mode.UNCERTAIN, None, WHY_FILLED)

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
