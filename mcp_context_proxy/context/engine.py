"""The one door to contexts: builds request contexts, keeps sessions, remembers what was served.

A request never fails because selection did: then the session's items are served, and the record says why.
Runs on the event loop; what blocks is done by what it is given.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

import anyio

from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.context import session as context_session
from mcp_context_proxy.context.background_indexing import OnProgress
from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.context.expansion import ContextExpander
from mcp_context_proxy.context.explanation import Explanation, explain
from mcp_context_proxy.context.options import NO_OVERRIDES, ContextOptions, Overrides, overridden
from mcp_context_proxy.context.records import ContextItem, Draft, Origin, RequestContext, RequestRecords
from mcp_context_proxy.context.search import EVERYTHING, Scope, Searcher, Snapshots
from mcp_context_proxy.context.selection import Selected, Selection, SelectionRequest
from mcp_context_proxy.context.session import NO_SESSION, SessionContext, Sessions
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import Kind, Snapshot
from mcp_context_proxy.learning.working_set import WorkingSet
from mcp_context_proxy.rerank.reranker import CANDIDATES, Reranker
from mcp_context_proxy.rerank.reranker_model import RerankerModel

RELATED = 20
"""Items that are named as near to one: a screen."""

COUNTING_SECONDS = 0.5
"""For the tokens of all there is; a longer count goes on by itself, and whoever asks again has its result."""


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session as it is now."""

    id: str
    kind: str
    """What keeps it: a ``connection`` or a ``handle``."""
    created: float
    """Seconds since 1970."""
    query: str | None
    items: tuple[ContextItem, ...]
    removed: tuple[tuple[Kind, str], ...]
    """Type and name of what was removed by hand."""
    overrides: Overrides
    latest_request: str | None


class ContextEngine:
    """Contexts of agents, sessions and requests."""

    def __init__(
        self,
        catalog: Snapshots,
        searcher: Searcher,
        sessions: Sessions,
        records: RequestRecords,
        options: ContextOptions,
        costs: Costs,
        companions: ContextExpander,
        reranker: Reranker | None = None,
        working_set: WorkingSet | None = None,
    ) -> None:
        """Put together what it needs.

        Args:
            catalog: Of everything: the agent's level.
            searcher: Selects for a query.
            sessions: All there are.
            records: Remembers request contexts.
            options: The agent's.
            costs: Estimates tokens.
            companions: Knows what comes with what was found.
            reranker: Asks another model about the order; None for nobody.
            working_set: Is in every context.
        """
        self._reranker = reranker
        self._catalog, self._searcher, self._sessions = catalog, searcher, sessions
        self._records, self._costs = records, costs
        self.configure(options)
        self._selection = Selection(searcher, companions, costs, working_set or WorkingSet())

    def configure(self, options: ContextOptions) -> None:
        """Select by these options of the agent's from now on."""
        self._options, self.expand_results = options, options.expand_results

    async def build(
        self,
        query: str,
        session: SessionContext | None = None,
        overrides: Overrides = NO_OVERRIDES,
        *,
        origin: Origin = "context",
        scope: Scope | None = None,
        remember: bool = True,
    ) -> RequestContext:
        """What a model is to be given for a query. See `select`."""
        selected = await self.select(query, session, overrides, origin=origin, scope=scope, remember=remember)
        return selected.context

    async def select(
        self,
        query: str,
        session: SessionContext | None = None,
        overrides: Overrides = NO_OVERRIDES,
        *,
        origin: Origin = "context",
        scope: Scope | None = None,
        remember: bool = True,
        on_progress: OnProgress | None = None,
        rerank: RerankMode | None = None,
        client: RerankerModel | None = None,
        listed: Collection[str] | None = None,
        owner: str | None = None,
    ) -> Selected:
        """The same, with what the search found.

        Args:
            query: In the user's or model's words.
            session: Whose items are part of the context; None for the ``always`` items alone.
            overrides: What the request changes.
            origin: What asked.
            scope: What may be selected; None for everything that the session has not removed.
            remember: Whether it is kept; not where somebody only looks at what would be selected.
            on_progress: Told how far indexing is, when the search has to wait for it.
            rerank: When another model is asked for the order of the best tools; by default as configured, and
                never for a list, which has an order of its own, or where somebody only looks.
            client: The model of whoever asks, where it may be asked.
            listed: Exposed names in the list of a handshake-era session, where this decides on that list.
            owner: Who asks, where a host does.

        Raises:
            UnknownFilterError: the scope has a server, category or tag that there is not.
        """
        of_session = NO_OVERRIDES if session is None else session.overrides
        options = overridden(self._options, of_session, overrides)
        view = NO_SESSION if session is None else session.view(options.retain_requests, options.history)
        scope = replace(scope or EVERYTHING, without=view.removed)
        request = SelectionRequest(query, origin, options, view, scope, listed)
        filters = scope.constraints.applied()
        draft = Draft(query, origin, view.id, options, filters=filters, owner=owner)
        try:
            snapshot = await self._searcher.ready(self._catalog, on_progress)
            await self._searcher.check(request.scope, snapshot)
        except UnknownFilterError:
            raise
        except Exception as error:
            # boundary: a request must not fail because its selection did
            draft.fail(error)
            snapshot = self._catalog.snapshot
        if rerank is None and (origin == "list" or not remember):
            rerank = "never"
        selected = await self._selected(request, snapshot, draft, rerank, client)
        if remember:
            self._remember(selected.context, session)
        return selected

    async def _selected(
        self,
        request: SelectionRequest,
        snapshot: Snapshot,
        draft: Draft,
        rerank: RerankMode | None,
        client: RerankerModel | None,
    ) -> Selected:
        """The context of a request, with the order of another model where that is wanted."""
        selection, off_loop, reranker = self._selection, self._searcher.off_loop, self._reranker
        if reranker is None or (rerank or reranker.mode) == "never":
            return await off_loop(partial(selection.select, request, snapshot, draft))
        found = await off_loop(partial(selection.found, request, snapshot, draft, CANDIDATES))
        if found is not None:
            tools, draft.rerank = await reranker.rerank(found.tools, client, rerank)
            found = replace(found, tools=tools)
        return await off_loop(partial(selection.completed, request, snapshot, draft, found))

    async def explain(
        self,
        query: str,
        kind: Kind,
        name: str,
        server: str | None = None,
        session: SessionContext | None = None,
        overrides: Overrides = NO_OVERRIDES,
    ) -> Explanation:
        """Why an item is in the context of a query or is not; nothing is remembered.

        Raises:
            UnknownItemError: there is no such item.
        """
        as_configured = None if self._reranker is None else self._reranker.mode
        selected = await self.select(query, session, overrides, remember=False, rerank=as_configured)
        context, snapshot = selected.context, selected.snapshot
        item = context_session.resolve(snapshot, kind, name, server)

        def explained() -> Explanation:
            ranking = self._searcher.rank(query, kind, snapshot, context.options)
            return explain(item, context, ranking, self._costs.of(item))

        return await self._searcher.off_loop(explained)

    async def related(
        self, kind: Kind, name: str, server: str | None = None, limit: int = RELATED
    ) -> list[ContextItem]:
        """What is near in meaning to an item, nearest first.

        Raises:
            UnknownItemError: there is no such item.
        """
        snapshot = await self._searcher.ready(self._catalog)
        item = context_session.resolve(snapshot, kind, name, server)
        return await self._searcher.off_loop(partial(self._selection.related, item, snapshot, limit))

    async def current(
        self, query: str | None, session: SessionContext | None, kinds: frozenset[Kind]
    ) -> RequestContext:
        """What is in force now, looked at and not remembered; without a query what the session has."""
        if query is not None and query.strip():
            return await self.build(query, session, scope=Scope(kinds), remember=False)
        draft = Draft("", "context", None if session is None else session.id, self._options)
        draft.add(item for item in await self.items(session) if item.type in kinds)
        return draft.finished()

    def _remember(self, context: RequestContext, session: SessionContext | None) -> None:
        self._records.add(context)
        if session is not None:
            self._sessions.register(session)
            session.asked(context.id, context.query)

    def register(self, session: SessionContext) -> None:
        """List a session from now on, for as long as somebody keeps it."""
        self._sessions.register(session)

    def find_session(self, session_id: str) -> SessionContext | None:
        """What `build`, `add` and `remove` take, by its public id; None when there is none."""
        return self._sessions.get(session_id)

    async def sessions(self) -> list[SessionState]:
        """Every session, oldest first."""
        return [await self.state(session) for session in list(self._sessions)]

    async def state(self, session: SessionContext) -> SessionState:
        """A session as it is now."""
        return SessionState(
            id=session.id,
            kind=session.kind,
            created=session.created,
            query=session.query,
            items=await self.items(session),
            removed=tuple(sorted(session.removed)),
            overrides=session.overrides,
            latest_request=session.latest_request,
        )

    async def items(self, session: SessionContext | None = None) -> tuple[ContextItem, ...]:
        """A session's items; without a session, those of every session."""
        view = NO_SESSION if session is None else session.view()
        listed = partial(self._selection.session_items, self._catalog.snapshot, view)
        return await self._searcher.off_loop(lambda: tuple(listed()))

    def add(self, session: SessionContext, kind: Kind, name: str, server: str | None = None) -> None:
        """Add an item to a session by hand, whatever its include mode.

        Raises:
            UnknownItemError: there is no such item.
        """
        context_session.add(session, context_session.resolve(self._catalog.snapshot, kind, name, server))

    def remove(self, session: SessionContext, kind: Kind, name: str, server: str | None = None) -> None:
        """Remove an item from a session by hand: it is in none of its contexts until it is added again.

        Raises:
            UnknownItemError: there is no such item.
        """
        context_session.remove(session, context_session.resolve(self._catalog.snapshot, kind, name, server))

    async def requests(self, session: str | None = None, limit: int = 50) -> list[RequestContext]:
        """The latest request contexts, of one session (by public id) or of all, newest first."""
        return await self._records.latest(limit, session)

    async def requests_of(self, owner: str | None, limit: int = 50) -> list[RequestContext]:
        """The same, of one who asked."""
        return await self._records.latest_of(owner, limit)

    async def request(self, request_id: str) -> RequestContext | None:
        """One request context; None when it is unknown or forgotten."""
        return await self._records.get(request_id)

    async def tokens_behind(self) -> int | None:
        """What a model would read if everything were listed, estimated; None while it is being counted."""
        with anyio.move_on_after(COUNTING_SECONDS):
            return await self._searcher.off_loop(partial(self._costs.behind, self._catalog.snapshot))
        return None
