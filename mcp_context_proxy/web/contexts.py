"""REST operations on request contexts and sessions: build, list, look at, change."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.config.settings import Preset
from mcp_context_proxy.context import session as context_session
from mcp_context_proxy.context.engine import ContextEngine, SessionState
from mcp_context_proxy.context.options import Overrides
from mcp_context_proxy.context.records import ContextItem, RequestContext, as_data
from mcp_context_proxy.context.session import QUERY_CHARACTERS, Session, SessionContext
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Document, Kind
from mcp_context_proxy.items import Item as CatalogItem
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
    answer_form,
)

Depth = Annotated[int, Meta(ge=0, le=5)]
Steps = Annotated[int, Meta(ge=0, le=100)]
"""Number of requests or queries to look back."""
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class DomainChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """Changed options for tools, or for rules and references; numbers replace those of the preset."""

    preset: Preset | None = None
    top_k: Count | None = None
    top_n: Count | None = None
    include_score: Score | None = None


class OptionChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """Options that a session or a request changes; the others stay."""

    preset: Preset | None = None
    """For tools and documents, unless they have one of their own."""
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
        """Return the changes as the context engine takes them."""
        changes = msgspec.convert(self, Overrides, from_attributes=True)
        return replace(
            changes,
            tools=replace(changes.tools, preset=self.tools.preset or self.preset),
            documents=replace(changes.documents, preset=self.documents.preset or self.preset),
        )


class ContextWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """A query that a context is wanted for."""

    query: Words
    session: Name | None = None
    """Public id of the session whose items are part of it."""
    options: OptionChanges = OptionChanges()
    record: bool = True
    """False: only look, and record nothing."""
    describe: bool = False
    """True: items have their description and priority."""


class Describe(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of an operation that returns items."""

    describe: bool = False


class RequestsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Filters for the list of request contexts."""

    session: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=LISTED_MOST)] = 50


class ItemName(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool by its exposed name, or by its own with its server; a rule or reference by its name."""

    type: Kind
    name: Name
    server: Name | None = None


class SessionChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a session; nothing is changed if a name is unknown."""

    add: Annotated[list[ItemName], Meta(max_length=SELECTED_MOST)] = []
    remove: Annotated[list[ItemName], Meta(max_length=SELECTED_MOST)] = []
    options: OptionChanges | None = None
    """Replaces all earlier changes of options by the session."""


@dataclass(frozen=True, slots=True)
class Item(ContextItem):
    """One item of a context."""

    description: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET


Items = list[Item]

RequestResponse: Final = answer_form(
    "RequestAnswer",
    "A request context.",
    RequestContext,
    without={"owner"},
    items=Items,
    dropped=Items,
    near_misses=Items,
    filters=dict[str, bool | float | str | list[str]],
    tokens=int,
)

RequestsResponse: Final = answer_form(
    "RequestsAnswer",
    "The latest request contexts, newest first.",
    requests=list[RequestResponse],  # type: ignore[valid-type]
    tokens_behind=int | None,
)
"""``tokens_behind``: estimated tokens of the whole catalog; null while they are being counted."""

SessionResponse: Final = answer_form("SessionAnswer", "A session's context.", SessionState, items=Items)

SessionsResponse: Final = answer_form(
    "SessionsAnswer",
    "All sessions, oldest first.",
    sessions=list[SessionResponse],  # type: ignore[valid-type]
)

DESCRIPTION_CHARACTERS = 2000
"""Length to which descriptions are cut: a person reads no more of one item among many."""

_UNKNOWN: Final = (*REFUSED, HTTPStatus.NOT_FOUND)


class ContextsApi:
    """The operations."""

    def __init__(
        self,
        contexts: ContextEngine,
        catalog: Catalog,
        changes: ChangeNotifier,
        log: InteractionLog | None = None,
    ) -> None:
        """Connect the parts.

        Args:
            contexts: Builds contexts, and has sessions and records.
            catalog: Has the items and their descriptions.
            changes: Notifies hosts of changed sessions.
            log: Remembers queries; None to remember none.
        """
        self._contexts, self._catalog, self._changes, self._log = contexts, catalog, changes, log

    def operations(self) -> tuple[Operation, ...]:
        """Return all operations."""
        return (
            Operation(
                method="GET",
                path="/requests",
                name="listRequests",
                summary="The latest request contexts, newest first.",
                handler=self._list_requests,
                query=RequestsWanted,
                answer=RequestsResponse,
            ),
            Operation(
                method="GET",
                path="/requests/{request}",
                name="getRequest",
                summary="What was chosen for one request, how and why.",
                handler=self._request,
                query=Describe,
                answer=RequestResponse,
                problems=_UNKNOWN,
            ),
            Operation(
                method="POST",
                path="/context",
                name="buildContext",
                summary="The request context for a query.",
                handler=self._build_context,
                body=ContextWanted,
                answer=RequestResponse,
                names_agent=True,
                problems=(*_UNKNOWN, *WITH_BODY),
            ),
            Operation(
                method="GET",
                path="/sessions",
                name="listSessions",
                summary="All sessions, oldest first.",
                handler=self._list_sessions,
                query=Describe,
                answer=SessionsResponse,
            ),
            Operation(
                method="GET",
                path="/sessions/{session}/context",
                name="getSessionContext",
                summary="What a session has in its context, whatever the query is.",
                handler=self._session_context,
                query=Describe,
                answer=SessionResponse,
                problems=_UNKNOWN,
            ),
            Operation(
                method="PATCH",
                path="/sessions/{session}/context",
                name="changeSessionContext",
                summary="Add or remove items by hand, or change how much is selected.",
                handler=self._change_session,
                body=SessionChanges,
                answer=SessionResponse,
                problems=(*_UNKNOWN, *WITH_BODY),
            ),
        )

    async def _list_requests(self, given: Given) -> dict[str, Any]:
        contexts = await self._contexts.requests(given.query.session, given.query.limit)
        behind = await self._contexts.tokens_behind()
        return {"requests": list(map(as_data, contexts)), "tokens_behind": behind}

    async def _request(self, given: Given) -> dict[str, Any]:
        context = await self._contexts.request(given.path["request"])
        if context is None:
            detail = f"There is no request {given.path['request']!r}, or not any more."
            raise BadRequestError(HTTPStatus.NOT_FOUND, detail)
        return self._request_data(context, given.query.describe)

    async def _build_context(self, given: Given) -> dict[str, Any]:
        wanted: ContextWanted = given.body
        context = await self._contexts.build(
            wanted.query[:QUERY_CHARACTERS],
            None if wanted.session is None else self._session(wanted.session),
            wanted.options.overrides(),
            remember=wanted.record,
        )
        if wanted.record and self._log is not None:
            self._log.searched(context.query, given.agent)
        return self._request_data(context, wanted.describe)

    async def _list_sessions(self, given: Given) -> dict[str, Any]:
        states = await self._contexts.sessions()
        return {"sessions": [self._session_data(state, given.query.describe) for state in states]}

    async def _session_context(self, given: Given) -> dict[str, Any]:
        state = await self._contexts.state(self._session(given.path["session"]))
        return self._session_data(state, given.query.describe)

    async def _change_session(self, given: Given) -> dict[str, Any]:
        session, wanted = self._session(given.path["session"]), given.body
        # All names are looked up before anything is changed: a mistake in one changes nothing.
        removed, added = self._resolved(wanted.remove), self._resolved(wanted.add)
        # The client of a handle asks for its list itself; the client of a connection is notified.
        watched = self._changes.watching(session) if isinstance(session, Session) else nullcontext()
        with watched:
            for item in removed:
                context_session.remove(session, item)
            for item in added:
                context_session.add(session, item)
        if wanted.options is not None:
            session.overrides = wanted.options.overrides()
        return self._session_data(await self._contexts.state(session), describe=False)

    def _session(self, session_id: str) -> SessionContext:
        session = self._contexts.find_session(session_id)
        if session is None:
            detail = f"There is no session {session_id!r}, or not any more."
            raise BadRequestError(HTTPStatus.NOT_FOUND, detail)
        return session

    def _resolved(self, names: Iterable[ItemName]) -> list[CatalogItem]:
        snapshot = self._catalog.snapshot
        try:
            return [context_session.resolve(snapshot, one.type, one.name, one.server) for one in names]
        except UnknownItemError as error:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"{error}; nothing was changed") from None

    def _request_data(self, context: RequestContext, describe: bool) -> dict[str, Any]:
        data = as_data(context)
        if describe:
            self._describe(data["items"], data["dropped"], data["near_misses"])
        return data

    def _session_data(self, state: SessionState, describe: bool) -> dict[str, Any]:
        data: dict[str, Any] = msgspec.to_builtins(state)
        if describe:
            self._describe(data["items"])
        return data

    def _describe(self, *lists: list[dict[str, Any]]) -> None:
        """Add descriptions and priorities; an item that is not in the catalog any more stays a name."""
        snapshot = self._catalog.snapshot
        for data in (data for items in lists for data in items):
            item = context_session.item_by(snapshot, (Kind(data["type"]), data["name"]))
            if item is not None:
                data["description"] = item.description[:DESCRIPTION_CHARACTERS]
            if isinstance(item, Document):
                data["priority"] = item.priority
