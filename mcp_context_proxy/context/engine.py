"""Context engine: builds request contexts, adds recalled interactions, keeps sessions, explains records.

The record of a request names the interactions; their text is in the answer alone, one line each.
It runs on the event loop; blocking work goes to the threads of the searcher.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Final

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config import DomainOptions
from mcp_context_proxy.config.settings import RerankMode
from mcp_context_proxy.context import (
    NO_OVERRIDES,
    ContextItem,
    ContextOptions,
    Delivery,
    Mode,
    Origin,
    Overrides,
    RecalledInteraction,
    RequestContext,
    RequestRecords,
    joined,
    overridden,
)
from mcp_context_proxy.context import session as context_session
from mcp_context_proxy.context.delivery import Deliver, given_now
from mcp_context_proxy.context.indexing import OnProgress
from mcp_context_proxy.context.presets import PresetBook
from mcp_context_proxy.context.search import EVERYTHING, OnWait, Scope, Searcher, T, narrowed
from mcp_context_proxy.context.selection import ContextExpander, SearchAnswer, Selection, Selector
from mcp_context_proxy.context.session import (
    NO_RESULTS,
    Given,
    RemovedItem,
    ResultReading,
    SessionContext,
    Sessions,
    SessionState,
    SessionView,
)
from mcp_context_proxy.embedding.embeddings import Costs
from mcp_context_proxy.errors import ContextProxyError, UnknownFilterError
from mcp_context_proxy.interactions import MOST_FOUND, InteractionMemory, Recollection
from mcp_context_proxy.items import (
    IncludeMode,
    Item,
    ItemKey,
    Kind,
    SearchFilters,
    Snapshot,
    Snapshots,
    Tool,
    item_by,
    key_of,
)
from mcp_context_proxy.learning import WorkingSet
from mcp_context_proxy.protocol.strangers import clean, one_line
from mcp_context_proxy.retrieval import SUSPECTED, Ranking
from mcp_context_proxy.retrieval.expansion import DocumentJudge
from mcp_context_proxy.retrieval.reranker import CANDIDATES, Reranker, RerankerModel
from mcp_context_proxy.statistics.report import arm_of
from mcp_context_proxy.store.memory import SEARCH
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_task, in_thread
from mcp_context_proxy.trust import ACTING, profile_in, reaches

logger = logging.getLogger(__name__)

SECONDS: Final = 1.0
"""Time for it: a context does not wait for a model to be opened, or a large memory to be read first."""

CHARACTERS: Final = 300
"""Length to which one interaction is cut."""

SPARE: Final = 5
"""Interactions that are looked for beside those wanted: some only ask."""

_STEPS: Final = ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"))


class Recollector:
    """Adds interactions to contexts."""

    def __init__(self, memory: InteractionMemory, count_tokens: Callable[[str], int]) -> None:
        """Look into a memory; ``count_tokens`` estimates the tokens of a text, and blocks."""
        self._memory, self._count = memory, count_tokens
        self.seconds = SECONDS
        """Time for it; may be replaced where somebody waits."""

    async def complete(self, answer: SearchAnswer, owner: str) -> SearchAnswer:
        """Return an answer with the interactions of an owner that its query means, within its budget.

        None are added that cannot be found in time: no request fails for its memory.
        """
        await in_task()
        with anyio.move_on_after(self.seconds):
            try:
                return await in_thread(partial(self._complete, answer, owner), abandon_on_cancel=True)
            except ContextProxyError as error:
                logger.debug("no interactions in a context: %s", error)
        return answer

    def _complete(self, answer: SearchAnswer, owner: str) -> SearchAnswer:
        context = answer.context
        options, now = context.options, time_of_day()
        wanted = min(options.interactions_top_n + SPARE, MOST_FOUND)
        found = self._memory.semantic_search_interactions(context.query, top_k=wanted, owner=owner)
        if found.method == "recent":  # nothing was compared with the query
            return answer
        left = options.interaction_tokens
        if options.max_tokens is not None:
            left = min(left, options.max_tokens - context.tokens)
        chosen, lines = list[RecalledInteraction](), list[str]()
        for one in found.results:
            said = one.interaction
            is_query = said.content.casefold().split() == context.query.casefold().split()
            if is_query or said.interaction_type == SEARCH:
                continue  # they only ask
            line = _line(one, now)
            tokens, score = self._count(line), round(one.score or 0.0, 4)
            if len(chosen) < options.interactions_top_n and tokens <= left:
                left -= tokens
                facts = said.id, said.agent_name, said.interaction_type, said.time
                chosen.append(RecalledInteraction(*facts, score, tokens))
                lines.append(line)
        return replace(answer, context=replace(context, interactions=tuple(chosen)), recalled=tuple(lines))


def _line(one: Recollection, now: float) -> str:
    """Return an interaction on one line, so that no content can pass for another one."""
    said = one.interaction
    times = "" if one.times == 1 else f", {one.times:,} times"
    content = one_line(said.content, CHARACTERS)
    return f"- {age(said.time, now)}, {said.interaction_type} of {said.agent_name}{times}: {content}"


def age(time: float, now: float) -> str:
    """Return how long ago a time was, as in ``3 days ago``."""
    for seconds, unit in _STEPS:
        if number := int((now - time) / seconds):
            return f"{number:,} {unit}{'' if number == 1 else 's'} ago"
    return "just now"


RELATED = 20
"""Related items in one response: a screen."""

COUNTING_SECONDS = 0.5
"""Timeout for counting the tokens of the catalog; a longer count goes on for the next caller."""


class ContextEngine:
    """Contexts of agents, sessions and requests. An unknown item is an `UnknownItemError`."""

    def __init__(
        self,
        *,
        catalog: Snapshots,
        searcher: Searcher,
        sessions: Sessions,
        records: RequestRecords,
        options: ContextOptions,
        ab_share: float = 0.0,
        costs: Costs,
        expander: ContextExpander,
        reranker: Reranker | None = None,
        working_set: WorkingSet | None = None,
        presets: PresetBook | None = None,
        reading: ResultReading = NO_RESULTS,
        recollector: Recollector | None = None,
        redact: Callable[[str], str],
    ) -> None:
        """Connect the parts; ``options`` and ``reading`` are configured.

        ``redact`` removes secrets from a query. ``ab_share`` of recorded requests have no learned pairs.
        """
        self.presets = presets or PresetBook(None)
        self.recollector, self._redact = recollector, redact
        self._catalog, self._searcher, self._reranker, self.costs = catalog, searcher, reranker, costs
        self.sessions, self.records, self._ab_share = sessions, records, ab_share
        self.configure(options, reading)
        self._selector = Selector(searcher, expander, costs, working_set or WorkingSet())

    @property
    def rerank_mode(self) -> RerankMode | None:
        """Return when another model is asked for the order; None if there is none."""
        return None if self._reranker is None else self._reranker.mode

    def configure(self, options: ContextOptions, reading: ResultReading) -> None:
        self._options, self.result_reading = options, reading

    async def build(
        self,
        query: str,
        session: SessionContext | None = None,
        overrides: Overrides = NO_OVERRIDES,
        *,
        origin: Origin = "context",
        scope: Scope | None = None,
        remember: bool = True,
        owner: str | None = None,
    ) -> RequestContext:
        """Return the context for a query; see `select`."""
        answer = await self.select(
            query, session, overrides, origin=origin, scope=scope, remember=remember, owner=owner
        )
        return answer.context

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
        on_wait: OnWait | None = None,
        rerank: RerankMode | None = None,
        client: RerankerModel | None = None,
        introduced: str | None = None,
        listed: Collection[str] | None = None,
        owner: str | None = None,
        deliver: Deliver = "nothing",
        write: Callable[[SearchAnswer], str] | None = None,
        finish: Callable[[SearchAnswer], Awaitable[SearchAnswer]] | None = None,
        given: Given | None = None,
        within: float = math.inf,
    ) -> SearchAnswer:
        """Return the context for a query, with the results of the search.

        Args:
            query: In the user's or model's words.
            session: Session whose items are part of the context; None for the ``always`` items alone.
            overrides: Changes by the request.
            origin: Cause of the request.
            scope: Limits of the search; None for everything that the session has not removed.
            remember: Record the request; False to only look.
            on_progress: Called if the search has to wait for indexing.
            on_wait: Called if it has to wait for servers that are starting.
            rerank: When to ask another model for the order of the best tools; by default as configured, and
                never for a list, which has an order of its own, or without `remember`.
            client: Model of the client, where it may be asked.
            introduced: Name by which the client introduced itself, where its session has none.
            listed: Exposed names in the list of a handshake-era session, if this decides on that list.
            owner: Principal of the client.
            deliver: Amount that the caller gives to a model of the documents in the context. The record and
                the session note it.
            write: Writes the answer as a text, in the same thread: to begin another one takes time.
            finish: Returns the answer with the context that is recorded: of less, if less of it is given.
            given: Documents that a client without a session was given, if that is known; kept up to date.
            within: Seconds for which the search waits at most for servers and for indexing.

        Raises:
            UnknownFilterError: a server, category or tag in the scope does not exist.
        """
        query = self._redact(clean(query[: context_session.QUERY_CHARACTERS]))
        begun_with = ACTING.get().all_presets
        own = NO_OVERRIDES if session is None else session.overrides
        levels = [*(self.presets.options(begun_with) if begun_with else ()), own, overrides]
        changes = [level for level in levels if level != NO_OVERRIDES]
        options = overridden(self._options, *changes) if changes else self._options
        if session is None:
            view = self.presets.view(begun_with) if begun_with else context_session.NO_SESSION
            view = view if given is None else replace(view, delivered={**given})
        else:
            view = session.view(options.retain_requests, options.history)
        if (said := view.client or introduced) is not None:
            view = replace(view, client=self._redact(clean(said)))
        share = self._ab_share if remember else 0
        arm = arm_of(share, view.id, query, time_of_day()) if share else None
        if arm == "plain":
            options = replace(options, learned=False)
        selection = Selection(
            query=query,
            origin=origin,
            options=options,
            session=view,
            scope=replace(scope or EVERYTHING, without=view.removed),
            listed=listed,
            owner=owner,
            arm=arm,
            deliver=deliver,
            write=write,
        )
        try:
            catalog = self._catalog if ACTING.get().limited else self._catalog.whole
            enough = partial(self._searcher.is_sure, query, catalog, options, selection.scope)
            snapshot = await self._searcher.ready(catalog, on_progress, on_wait, within, enough)
            self._fit_to(selection, snapshot)
            checked = await self._searcher.check(selection.scope.filters, snapshot)
            selection.scope = replace(selection.scope, filters=checked)
        except UnknownFilterError:
            raise
        except Exception as error:
            # boundary: a request must not fail because its selection did
            selection.fail(error)
            snapshot = self._catalog.snapshot
        if rerank is None and (origin == "list" or not remember):
            rerank = "never"
        answer = await self._complete(selection, snapshot, rerank, client)
        if self.recollector is not None and options.interactions_top_n and origin == "context":
            rights = ACTING.get() if session is None else session.rights
            answer = await self.recollector.complete(answer, rights.owner)
        if finish is not None:
            answer = await finish(answer)
        if remember:
            self.records.add(answer.context)
            if session is not None:
                self.sessions.register(session)
                session.asked(answer.context.id, query)
                given = session.delivered
            if given is not None and deliver != "nothing" and answer.found.snapshot.documents:
                given.update(given_now(answer.context, answer.found.snapshot))
        return answer

    def _fit_to(self, selection: Selection, snapshot: Snapshot) -> None:
        """Take the name of a tool as the index has it, and the filters that the query of a search implies."""
        query = selection.query
        if (named := snapshot.wider.get(query)) is not None:
            selection.query = named.exposed_name
        if selection.origin == "search":
            scope, settings = selection.scope, self._searcher.config.servers
            on = (one for one in snapshot.servers if one not in settings or settings[one].enabled)
            filters = narrowed(scope.filters, query, filter(reaches, on))
            selection.scope = replace(scope, filters=filters)

    async def _complete(
        self,
        selection: Selection,
        snapshot: Snapshot,
        rerank: RerankMode | None,
        client: RerankerModel | None,
    ) -> SearchAnswer:
        selector, off_loop, reranker = self._selector, self._searcher.off_loop, self._reranker
        if reranker is None or (rerank or reranker.mode) == "never":
            return await off_loop(partial(selector.select, selection, snapshot))
        found = await off_loop(partial(selector.search, selection, snapshot, CANDIDATES))
        if found is not None:
            await in_task()
            tools, selection.rerank = await reranker.rerank(found.tools, client, rerank)
            found = replace(found, tools=tools)
        return await off_loop(partial(selector.complete, selection, snapshot, found))

    async def replay(self, then: RequestContext, filters: SearchFilters) -> RequestContext:
        """Return the context that a recorded request would have now, outside of its session.

        It has the options of then, and is not recorded. Raises `UnknownFilterError` if a server, category or
        tag of its filters does not exist any more.
        """
        catalog = self._catalog if ACTING.get().limited else self._catalog.whole
        filters = await self._searcher.check(filters, snapshot := await self._searcher.ready(catalog))
        scope = Scope(None if then.kinds is None else frozenset(then.kinds), filters)
        selection = Selection(query=then.query, origin=then.origin, options=then.options, scope=scope)
        rerank = self.rerank_mode if then.rerank is not None and then.rerank.used else "never"
        return (await self._complete(selection, snapshot, rerank, None)).context

    async def explain(
        self,
        query: str,
        kind: Kind,
        name: str,
        server: str | None = None,
        session: SessionContext | None = None,
        overrides: Overrides = NO_OVERRIDES,
    ) -> Explanation:
        """Explain why an item is in the context of a query or not, without a record."""
        answer = await self.select(
            query, session, overrides, remember=False, rerank=self.rerank_mode, deliver="answer"
        )
        context, snapshot = answer.context, answer.found.snapshot
        item = context_session.resolve(snapshot, kind, name, server)

        def explained() -> Explanation:
            rank = partial(self._searcher.rank, query, snapshot, context.options)
            ranking, against = rank(key_of(item)[0]), None
            if not isinstance(item, Tool):
                against = self._searcher.documents.judge(query, snapshot, ranking, rank(Kind.TOOL))
            return _explain(item, context, ranking, self.costs.of(item), against)

        return await self._searcher.off_loop(explained)

    async def related(
        self, kind: Kind, name: str, server: str | None = None, limit: int = RELATED
    ) -> list[ContextItem]:
        """Return the items most similar to one, most similar first."""
        snapshot = await self._searcher.ready(self._catalog)
        item = context_session.resolve(snapshot, kind, name, server)
        return await self._searcher.off_loop(partial(self._selector.related, item, snapshot, limit))

    async def standing(self, session: SessionContext | None, kinds: frozenset[Kind]) -> RequestContext:
        """Return the context of a session that has no query yet, without a record."""
        view = SessionView(id=None if session is None else session.id)
        selection = Selection(query="", origin="context", options=self._options, session=view)
        selection.add(item for item in await self.items(session) if item.type in kinds)
        return selection.context()

    async def state(self, session: SessionContext) -> SessionState:
        """Return the current context of a session, without names of what its client may not know."""
        wanted, snapshot = session.rights.all_presets, self._catalog.snapshot
        missing = self.presets.unknown(wanted)
        begun_with = tuple(name for name in wanted if name not in missing)
        hidden = ACTING.get().limited

        def known(keys: Iterable[ItemKey]) -> tuple[RemovedItem, ...]:
            return tuple(RemovedItem(*key) for key in sorted(keys) if not hidden or item_by(snapshot, key))

        return SessionState(
            id=session.id,
            kind=session.kind,
            created=session.created,
            query=session.query,
            items=await self.items(session),
            removed=known(session.removed),
            options=session.overrides,
            latest_request=session.latest_request,
            profile=profile_in(session.principal),
            by_person=known(session.by_person),
            client=session.client,
            presets=begun_with,
            preset_options=joined(self.presets.options(begun_with)),
        )

    async def items(self, session: SessionContext | None = None) -> tuple[ContextItem, ...]:
        """Return the items of a session; without one, those of every session."""
        view = self.presets.view(ACTING.get().all_presets) if session is None else session.view()
        listed = partial(self._selector.session_items, self._catalog.snapshot, view)
        return await self._searcher.off_loop(lambda: tuple(listed()))

    def add(
        self,
        session: SessionContext,
        kind: Kind,
        name: str,
        server: str | None = None,
        *,
        by_model: bool = False,
    ) -> None:
        """Add an item to a session by hand, whatever its include mode; a model may add ``agent`` items only.

        Raises `NotForModelsError` if only a person may add it.
        """
        context_session.add(session, self._decided(session, kind, name, server, by_model))

    def remove(
        self,
        session: SessionContext,
        kind: Kind,
        name: str,
        server: str | None = None,
        *,
        by_model: bool = False,
    ) -> None:
        """Remove an item from all contexts of a session, until it is added again; for a model as in `add`.

        Raises `NotForModelsError` if only a person may remove it.
        """
        context_session.remove(session, self._decided(session, kind, name, server, by_model))

    def _decided(
        self, session: SessionContext, kind: Kind, name: str, server: str | None, by_model: bool
    ) -> Item:
        """Return an item that a model may change, or that a person has decided on."""
        item = context_session.resolve_in(session, self._catalog.snapshot, kind, name, server)
        (context_session.check_model_may if by_model else context_session.decided)(session, item)
        return item

    async def requests(self, session: str | None = None, limit: int = 50) -> list[RequestContext]:
        """Return the latest request contexts of a session (by public id) or of all, newest first."""
        return await self.records.latest(limit, session)

    async def request(self, request_id: str) -> RequestContext | None:
        """Return a request context; None if it is unknown or forgotten."""
        return await self.records.get(request_id)

    async def in_turn(self, work: Callable[[], T]) -> T:
        """Return the result of work that may take a second: much of one person waits, as searches do."""
        return await self._searcher.off_loop(work)

    async def tokens_behind(self) -> int | None:
        """Return the estimated tokens of the whole catalog; None while they are being counted."""
        with anyio.move_on_after(COUNTING_SECONDS):
            return await self._searcher.off_loop(partial(self.costs.behind, self._catalog.snapshot))
        return None


class Score(Struct, frozen=True):
    """Parts of a score; see `Result`."""

    total: float
    cosine: float | None
    lexical: float
    need: float
    terms: tuple[tuple[str, str, float], ...]
    """The lexical score by field and word."""
    action: float = 0.0
    instructions: float = 0.0
    learned: float = 0.0
    novelty: float = 0.0


class Explanation(Struct, frozen=True):
    """Reasons for which one item is in a context or not."""

    query: str
    type: Kind
    name: str
    server: str | None
    include: IncludeMode
    """The configured include mode."""
    selected: Mode | None
    """How it came into the context; None if it did not."""
    reason: str
    rank: int | None
    """Position among the ``ranked`` items of its domain; None if it is not ranked."""
    ranked: int
    score: Score | None
    tokens: int
    options: DomainOptions
    max_tokens: int | None
    rerank: str | None = None
    """Outcome of reranking; ``rank`` is the position before it."""
    delivered: Delivery | None = None
    """Form in which the answer to a search gives a rule or reference to the model; None if it does not."""
    read_as: str | None = None
    """The query with its words corrected and written out; None where nothing was changed."""
    danger: str | None = None
    """Danger class of a tool and why it has it, such as ``destructive: its name says 'delete'``."""
    tool: str | None = None
    """Name that the server itself gives a tool, as the configuration names it."""


def _explain(
    item: Item, context: RequestContext, ranking: Ranking, tokens: int, against: DocumentJudge | None
) -> Explanation:
    """Explain an item by the context for a query and the ranking of the item's whole domain."""
    kind, name = key_of(item)
    ordered = (*ranking.results, *ranking.near_misses, *ranking.others)
    place = next((at for at, result in enumerate(ordered) if key_of(result.item) == (kind, name)), None)
    result = None if place is None else ordered[place]
    here = next((one for one in context.items if (one.type, one.name) == (kind, name)), None)
    told = None if result is None or against is None else against(result)
    reason = _why_not(item, context, ranking, place, told) if here is None else here.why
    suspicion = ranking.suspected.get(item.server) if isinstance(item, Tool) else None
    if suspicion is not None and SUSPECTED[suspicion] not in reason:
        reason = f"{reason}; {SUSPECTED[suspicion]}"
    score = None
    if result is not None:
        score = Score(result.score, *(getattr(result, part) for part in Score.__struct_fields__[1:]))
    return Explanation(
        query=context.query,
        type=kind,
        name=name,
        server=item.server if isinstance(item, Tool) else None,
        include=item.include,
        selected=None if here is None else here.include_mode,
        reason=reason,
        rank=None if place is None else place + 1,
        ranked=len(ordered),
        score=score,
        tokens=tokens,
        options=context.options.tools if kind is Kind.TOOL else context.options.documents,
        max_tokens=context.options.max_tokens,
        rerank=None if context.rerank is None or kind is not Kind.TOOL else context.rerank.reason,
        delivered=None if here is None else here.delivered,
        read_as=ranking.read_as,
        danger=f"{item.tool_class}: {item.class_reason}" if isinstance(item, Tool) else None,
        tool=item.name if isinstance(item, Tool) else None,
    )


def _why_not(
    item: Item, context: RequestContext, ranking: Ranking, place: int | None, told: str | None
) -> str:
    if context.failure is not None:
        return f"the search failed: {context.failure}"
    if item.include is IncludeMode.MANUAL:
        return "it is manual: no search finds it, it must be added to a session by hand"
    if any((one.type, one.name) == key_of(item) for one in context.dropped):
        return f"it was selected, but does not fit into {context.options.max_tokens:,} tokens"
    if told is not None:
        return told
    if not ranking.fits:
        return "nothing fits the query well enough"
    if place is None:
        return "it has nothing in common with the query"
    score = (*ranking.results, *ranking.near_misses, *ranking.others)[place].score
    best = f"the best {len(ranking.results)}, down to {ranking.results[-1].score:.2f}, are chosen"
    return f"it is number {place + 1:,} with a score of {score:.2f}, and {best}"
