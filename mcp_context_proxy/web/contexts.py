"""The part of the REST API that builds request contexts, and shows those of earlier requests.

What the API takes and answers about request contexts: the forms, named as in the context layer.

What an item is beside its name, by the catalog as it is now: a record of a request has names only.

What sessions have in their contexts, and how that is changed by hand.

What the API takes and answers about sessions: the forms, named as in the context layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.config.settings import Preset
from mcp_context_proxy.context import session as context_session
from mcp_context_proxy.context.engine import ContextEngine, SessionState
from mcp_context_proxy.context.options import ContextOptions, DomainOverrides, Overrides
from mcp_context_proxy.context.records import ContextItem, Mode, Origin, RequestContext
from mcp_context_proxy.context.session import QUERY_CHARACTERS, Session, SessionContext
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Document, Kind, Snapshot
from mcp_context_proxy.items import Item as CatalogItem
from mcp_context_proxy.protocol.text import clean
from mcp_context_proxy.rerank.reranker import Reranking
from mcp_context_proxy.server.after_call import InteractionLog
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.web.api import (
    LISTED_MOST,
    REFUSED,
    SELECTED_MOST,
    WITH_BODY,
    BadRequestError,
    Count,
    Given,
    Name,
    Operation,
    Score,
    Words,
)

Depth = Annotated[int, Meta(ge=0, le=5)]
Steps = Annotated[int, Meta(ge=0, le=100)]
"""Requests or queries to look back."""
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class DomainChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """What is changed for tools, or for rules and references; numbers beat the preset."""

    preset: Preset | None = None
    top_k: Count | None = None
    top_n: Count | None = None
    include_score: Score | None = None

    def overrides(self, preset: Preset | None) -> DomainOverrides:
        """As the context layer has it; ``preset`` where there is none of its own."""
        return DomainOverrides(self.preset or preset, self.top_k, self.top_n, self.include_score)


class OptionChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """What a session or a request changes of how much is selected; what is not given stays."""

    preset: Preset | None = None
    """For tools and documents, where they have none of their own."""
    tools: DomainChanges = DomainChanges()
    documents: DomainChanges = DomainChanges()
    max_tokens: Tokens | None = None
    expansion_depth: Depth | None = None
    expansion_threshold: Score | None = None
    expansion_top_n: Count | None = None
    history: Steps | None = None
    retain_requests: Steps | None = None
    expand_results: bool | None = None

    def overrides(self) -> Overrides:
        """As the context layer has it."""
        return Overrides(
            tools=self.tools.overrides(self.preset),
            documents=self.documents.overrides(self.preset),
            max_tokens=self.max_tokens,
            expansion_depth=self.expansion_depth,
            expansion_threshold=self.expansion_threshold,
            expansion_top_n=self.expansion_top_n,
            history=self.history,
            retain_requests=self.retain_requests,
            expand_results=self.expand_results,
        )


class ContextWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """A query that a context is wanted for."""

    query: Words
    session: Name | None = None
    """Public id of the session whose items belong to it."""
    options: OptionChanges = OptionChanges()
    record: bool = True
    """False: only looked at, and not remembered."""
    describe: bool = False
    """True: items come with their description and priority."""


class Describe(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of what has items in it."""

    describe: bool = False


class RequestsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Which request contexts are listed."""

    session: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=LISTED_MOST)] = 50


class Item(Struct, frozen=True):
    """One item of a context."""

    type: Kind
    name: str
    server: str | None
    include_mode: Mode
    score: float | None
    tokens: int
    why: str
    description: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET


class RequestAnswer(Struct, frozen=True):
    """A request context."""

    id: str
    time: float
    query: str
    origin: Origin
    session: str | None
    items: list[Item]
    options: ContextOptions
    dropped: list[Item]
    near_misses: list[Item]
    failure: str | None
    note: str | None
    confidence: float | None
    rerank: Reranking | None
    filters: dict[str, bool | float | str | list[str]]
    """What the search was asked to keep to, by name."""
    seconds: float
    tokens: int
    """Of all items together."""


class RequestsAnswer(Struct, frozen=True):
    """The latest request contexts, newest first."""

    requests: list[RequestAnswer]
    tokens_behind: int | None
    """What a model would read if everything there is were listed; null while it is being counted."""


DESCRIPTION_CHARACTERS = 2000
"""Of a description that is shown: a person reads no more of one item among many."""


class Describer:
    """Puts items in the form of the API, with descriptions and priorities of one snapshot or without any."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._tools = {} if snapshot is None else snapshot.tools
        documents = () if snapshot is None else snapshot.documents.values()
        self._documents: dict[tuple[Kind, str], Document] = {(one.kind, one.name): one for one in documents}

    def items(self, items: Iterable[ContextItem]) -> list[Item]:
        """The items in the form of the API; one that has gone from the catalog stays a name."""
        return [self._described(item) for item in items]

    def _described(self, item: ContextItem) -> Item:
        plain: Item = msgspec.convert(item, Item, from_attributes=True)
        if (document := self._documents.get((item.type, item.name))) is not None:
            return msgspec.structs.replace(
                plain, description=_short(document.description), priority=document.priority
            )
        if item.type is Kind.TOOL and (tool := self._tools.get(item.name)) is not None:
            return msgspec.structs.replace(plain, description=_short(tool.description))
        return plain


def _short(text: str) -> str:
    return clean(text[:DESCRIPTION_CHARACTERS])


class ItemName(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool by its exposed name, or by its own with its server; a rule or reference by its name."""

    type: Kind
    name: Name
    server: Name | None = None


class SessionChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """What is changed in a session: all of it, or nothing where a name is unknown."""

    add: Annotated[list[ItemName], Meta(max_length=SELECTED_MOST)] = []
    remove: Annotated[list[ItemName], Meta(max_length=SELECTED_MOST)] = []
    options: OptionChanges | None = None
    """Replaces what the session has changed so far."""


class RemovedItem(Struct, frozen=True):
    """What was removed from a session by hand."""

    type: Kind
    name: str


class SessionAnswer(Struct, frozen=True):
    """A session's context."""

    id: str
    kind: str
    created: float
    query: str | None
    items: list[Item]
    removed: list[RemovedItem]
    options: Overrides
    latest_request: str | None


class SessionsAnswer(Struct, frozen=True):
    """All sessions, oldest first."""

    sessions: list[SessionAnswer]


class SessionsApi:
    """What the operations do."""

    def __init__(self, contexts: ContextEngine, catalog: Catalog, changes: ChangeNotifier) -> None:
        """Prepare to answer.

        Args:
            contexts: The one door to contexts.
            catalog: Has the items and their descriptions.
            changes: Tells hosts of what is changed here.
        """
        self._contexts, self._catalog, self._changes = contexts, catalog, changes

    def operations(self) -> tuple[Operation, ...]:
        """Everything that can be asked."""
        return (
            Operation(
                method="GET",
                path="/sessions",
                name="listSessions",
                summary="All sessions, oldest first.",
                handler=self._list_sessions,
                query=Describe,
                answer=SessionsAnswer,
                problems=REFUSED,
            ),
            Operation(
                method="GET",
                path="/sessions/{session}/context",
                name="getSessionContext",
                summary="What a session has in its context, whatever the query is.",
                handler=self._session_context,
                query=Describe,
                answer=SessionAnswer,
                problems=_UNKNOWN,
            ),
            Operation(
                method="PATCH",
                path="/sessions/{session}/context",
                name="changeSessionContext",
                summary="Add or remove items by hand, or change how much is selected.",
                handler=self._change_session,
                body=SessionChanges,
                answer=SessionAnswer,
                problems=(*_UNKNOWN, *WITH_BODY),
            ),
        )

    async def _list_sessions(self, given: Given) -> SessionsAnswer:
        describer = self._describer(given.query.describe)
        states = await self._contexts.sessions()
        return SessionsAnswer([_session_answer(state, describer) for state in states])

    async def _session_context(self, given: Given) -> SessionAnswer:
        state = await self._contexts.state(session_of(self._contexts, given.path["session"]))
        return _session_answer(state, self._describer(given.query.describe))

    async def _change_session(self, given: Given) -> SessionAnswer:
        session, wanted = session_of(self._contexts, given.path["session"]), given.body
        # All names are looked up before anything is changed: a mistake in one changes nothing.
        removed, added = self._resolved(wanted.remove), self._resolved(wanted.add)
        with self._watching(session):
            for item in removed:
                context_session.remove(session, item)
            for item in added:
                context_session.add(session, item)
        if wanted.options is not None:
            session.overrides = wanted.options.overrides()
        return _session_answer(await self._contexts.state(session), self._describer(False))

    def _resolved(self, names: Iterable[ItemName]) -> list[CatalogItem]:
        snapshot = self._catalog.snapshot
        try:
            return [context_session.resolve(snapshot, one.type, one.name, one.server) for one in names]
        except UnknownItemError as error:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"{error}; nothing was changed") from None

    def _watching(self, session: SessionContext) -> AbstractContextManager[None]:
        """A handle's client asks for its list itself; a connection's is told that it has changed."""
        return self._changes.watching(session) if isinstance(session, Session) else nullcontext()

    def _describer(self, describe: bool) -> Describer:
        return Describer(self._catalog.snapshot if describe else None)


def session_of(contexts: ContextEngine, session_id: str) -> SessionContext:
    """The session of that id.

    Raises:
        RefusedError: there is none, or not any more.
    """
    session = contexts.find_session(session_id)
    if session is None:
        detail = f"There is no session {session_id!r}, or not any more."
        raise BadRequestError(HTTPStatus.NOT_FOUND, detail)
    return session


def _session_answer(state: SessionState, describer: Describer) -> SessionAnswer:
    return SessionAnswer(
        id=state.id,
        kind=state.kind,
        created=state.created,
        query=state.query,
        items=describer.items(state.items),
        removed=[RemovedItem(*item) for item in state.removed],
        options=state.overrides,
        latest_request=state.latest_request,
    )


_UNKNOWN = (*REFUSED, HTTPStatus.NOT_FOUND)
_WITH_BODY = (*_UNKNOWN, *WITH_BODY)


class ContextsApi:
    """What the operations do."""

    def __init__(self, contexts: ContextEngine, catalog: Catalog, log: InteractionLog | None = None) -> None:
        """Prepare to answer.

        Args:
            contexts: The one door to contexts.
            catalog: Has descriptions.
            log: Notes what is searched for; None where it is not remembered.
        """
        self._contexts, self._catalog, self._log = contexts, catalog, log

    def operations(self) -> tuple[Operation, ...]:
        """Everything that can be asked."""
        return (
            Operation(
                method="GET",
                path="/requests",
                name="listRequests",
                summary="The latest request contexts, newest first.",
                handler=self._list_requests,
                query=RequestsWanted,
                answer=RequestsAnswer,
                problems=REFUSED,
            ),
            Operation(
                method="GET",
                path="/requests/{request}",
                name="getRequest",
                summary="What was chosen for one request, how and why.",
                handler=self._request,
                query=Describe,
                answer=RequestAnswer,
                problems=_UNKNOWN,
            ),
            Operation(
                method="POST",
                path="/context",
                name="buildContext",
                summary="The request context for a query.",
                handler=self._build_context,
                body=ContextWanted,
                answer=RequestAnswer,
                names_agent=True,
                problems=_WITH_BODY,
            ),
        )

    async def _list_requests(self, given: Given) -> RequestsAnswer:
        contexts = await self._contexts.requests(given.query.session, given.query.limit)
        describer = self._describer(False)
        behind = await self._contexts.tokens_behind()
        return RequestsAnswer([_request_answer(one, describer) for one in contexts], behind)

    async def _request(self, given: Given) -> RequestAnswer:
        context = await self._contexts.request(given.path["request"])
        if context is None:
            detail = f"There is no request {given.path['request']!r}, or not any more."
            raise BadRequestError(HTTPStatus.NOT_FOUND, detail)
        return _request_answer(context, self._describer(given.query.describe))

    async def _build_context(self, given: Given) -> RequestAnswer:
        wanted: ContextWanted = given.body
        context = await self._contexts.build(
            wanted.query[:QUERY_CHARACTERS],
            None if wanted.session is None else session_of(self._contexts, wanted.session),
            wanted.options.overrides(),
            remember=wanted.record,
        )
        if wanted.record and self._log is not None:
            self._log.searched(context.query, given.agent)
        return _request_answer(context, self._describer(wanted.describe))

    def _describer(self, describe: bool) -> Describer:
        return Describer(self._catalog.snapshot if describe else None)


def _request_answer(context: RequestContext, describer: Describer) -> RequestAnswer:
    return RequestAnswer(
        id=context.id,
        time=context.time,
        query=context.query,
        origin=context.origin,
        session=context.session,
        items=describer.items(context.items),
        options=context.options,
        dropped=describer.items(context.dropped),
        near_misses=describer.items(context.near_misses),
        failure=context.failure,
        note=context.note,
        confidence=context.confidence,
        rerank=context.rerank,
        filters=context.filters,
        seconds=context.seconds,
        tokens=context.tokens,
    )
