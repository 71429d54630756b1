"""REST operations on request contexts and sessions: build, list, look at, change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from mcp_context_proxy.config.settings import Preset
from mcp_context_proxy.context import ContextItem, DomainOverrides, Overrides, RequestContext, as_data
from mcp_context_proxy.context import session as context_session
from mcp_context_proxy.context.engine import Explanation
from mcp_context_proxy.context.presets import PresetError, SavedPreset
from mcp_context_proxy.context.session import QUERY_CHARACTERS, Session, SessionContext, SessionState
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Document, Kind, Tool, ToolClass, item_by
from mcp_context_proxy.items import Item as CatalogItem
from mcp_context_proxy.server.rendering import RenderedRequest, ReplayedRequest, context_text
from mcp_context_proxy.server.tools_call import InteractionLog
from mcp_context_proxy.system.threads import assigned, in_thread
from mcp_context_proxy.trust import ACTING, Role
from mcp_context_proxy.web import (
    LISTED_MOST,
    SELECTED_MOST,
    Api,
    BadRequestError,
    Count,
    Given,
    Name,
    Operation,
    Words,
    answer_form,
    sentence,
    within_reach,
)
from mcp_context_proxy.web.search import Served, danger_data, terms_data

Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class DomainChanges(DomainOverrides, frozen=True, forbid_unknown_fields=True):
    """Changed options for tools, or for rules and references; numbers replace those of the preset."""

    top_k: Count | None = None
    top_n: Count | None = None


class OptionChanges(Overrides, frozen=True, forbid_unknown_fields=True):
    """Options that a session or a request changes; the others stay."""

    preset: Preset | None = None
    """For tools and documents, unless they have one of their own."""
    tools: DomainChanges = DomainChanges()
    documents: DomainChanges = DomainChanges()
    max_tokens: Tokens | None = None
    expansion_top_n: Count | None = None

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
    """True: items have their description, and their priority or danger class."""


class TextWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """A query that a text for a model is wanted for."""

    query: Words
    max_tokens: Tokens | None = None
    folder: Name | None = None
    """Folder in which it is asked: without one, the documents of all projects count."""


class ExplanationWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """An item, and the query for which it is looked at."""

    query: Words
    name: Name
    kind: Kind = Kind.TOOL
    server: Name | None = None


class Describe(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of an operation that returns items."""

    describe: bool = False


class RequestsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """Filters for the list of request contexts."""

    session: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=LISTED_MOST)] = 50


class PresetWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """A session, and the name under which its choices are saved."""

    name: Name
    session: Name


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


class Item(ContextItem, frozen=True):
    """One item of a context."""

    description: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    danger: ToolClass | UnsetType = UNSET
    """Harm that a call of a tool may do."""
    danger_reason: str | UnsetType = UNSET


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

PresetAnswer: Final = answer_form("PresetAnswer", "A saved preset.", SavedPreset, name=str)

PresetsResponse: Final = answer_form(
    "PresetsAnswer",
    "The saved presets, by name.",
    presets=list[PresetAnswer],  # type: ignore[valid-type]
)

ContextText: Final = answer_form(
    "ContextText",
    "A request context, and the text of it for a model.",
    request=RequestResponse,
    text=str,
)

ExplanationResponse: Final = answer_form(
    "ExplanationAnswer",
    "Reasons for which an item is chosen for a query or not.",
    Explanation,
    score=dict[str, Any] | None,
)

RenderedResponse: Final = answer_form("RenderedAnswer", "A past request as a model read it.", RenderedRequest)

ReplayedResponse: Final = answer_form(
    "ReplayedAnswer",
    "A past request, the answer to it from today's catalog, and the difference.",
    ReplayedRequest,
    then=RequestResponse,
    now=RequestResponse,
)

ITEM_LISTS: Final = ("items", "dropped", "near_misses")

DESCRIPTION_CHARACTERS = 2000
"""Length to which descriptions are cut: a person reads no more of one item among many."""

LISTED_CHARACTERS: Final = 2_000_000
"""Characters of the items of all sessions in one response, about; thousands of sessions have fewer."""

ITEM_CHARACTERS: Final = 200
"""Characters of an item without its description, about."""


class ContextsApi(Api):
    """Operations on request contexts and sessions."""

    def __init__(self, proxy: Served, log: InteractionLog | None) -> None:
        """Work on a proxy that serves; without ``log`` no query is remembered."""
        self._contexts, self._catalog, self._changes = proxy.contexts, proxy.catalog, proxy.changes
        self._past, self._profiles, self._log = proxy.past_requests, proxy.gateway.profiles, log

    @Operation("GET", "/requests", answer=RequestsResponse)
    async def _list_requests(self, given: Given, wanted: RequestsWanted) -> dict[str, Any]:
        """The latest request contexts, newest first."""
        session, limit = wanted.session, wanted.limit
        if given.principal.may(Role.VIEW):
            contexts = await self._contexts.requests(session, limit)
        else:
            own = await self._contexts.records.latest_of(given.principal.name, LISTED_MOST)
            contexts = [one for one in own if session in (None, one.session)][:limit]
        behind = await self._contexts.tokens_behind()
        return {"requests": list(map(as_data, contexts)), "tokens_behind": behind}

    @Operation("GET", "/requests/{request}", answer=RequestResponse, problems=(HTTPStatus.NOT_FOUND,))
    async def _get_request(self, given: Given, wanted: Describe) -> dict[str, Any]:
        """Choice for one request, how it was made and why."""
        data = as_data(await self._request(given))
        return self._described(data, *ITEM_LISTS) if wanted.describe else data

    @Operation("GET", "/requests/{request}/text", answer=RenderedResponse, problems=(HTTPStatus.NOT_FOUND,))
    async def _render_request(self, given: Given) -> RenderedRequest:
        """A past request as a model read it, by the definitions that it had then."""
        return await self._past.rendered(await self._request(given))

    @Operation("GET", "/requests/{request}/replay", answer=ReplayedResponse, problems=(HTTPStatus.NOT_FOUND,))
    async def _replay_request(self, given: Given) -> dict[str, Any]:
        """A past request, answered again from today's catalog, and the difference; nothing is recorded."""
        replayed = await self._past.replayed(await self._request(given))
        contexts = {"then": as_data(replayed.then), "now": as_data(replayed.now)}
        return {**contexts, "items": msgspec.to_builtins(replayed.items)}

    async def _request(self, given: Given) -> RequestContext:
        context = await self._contexts.request(given.path["request"])
        if context is None or not _may(Role.VIEW, given, context.owner):
            detail = f"There is no request {given.path['request']!r}, or not any more."
            raise BadRequestError(HTTPStatus.NOT_FOUND, detail)
        return context if given.principal.sees_all else within_reach(given.principal, context)

    @Operation("POST", "/context", answer=RequestResponse, problems=(HTTPStatus.NOT_FOUND,), names_agent=True)
    async def _build_context(self, given: Given, body: ContextWanted) -> dict[str, Any]:
        """The request context for a query."""
        session = None if body.session is None else self._session(given, body.session)
        # A context of a session is that of its client, whoever looks at it.
        with assigned(ACTING, given.principal if session is None else session.rights):
            context = await self._contexts.build(
                body.query[:QUERY_CHARACTERS],
                session,
                body.options.overrides(),
                remember=body.record,
                owner=given.principal.name,
            )
        if body.record and self._log is not None:
            self._log.searched(context.query, given.agent, given.principal.owner)
        data = as_data(context)
        return self._described(data, *ITEM_LISTS) if body.describe else data

    @Operation("POST", "/context/text", answer=ContextText)
    async def _write_context(self, given: Given, body: TextWanted) -> dict[str, Any]:
        """The rules, references and tools for a query, as a text for a model."""
        rights = given.principal
        if body.folder is not None:
            rights = self._profiles.in_folder(rights, body.folder)
        with assigned(ACTING, rights):
            answer = await self._contexts.select(
                body.query[:QUERY_CHARACTERS],
                overrides=Overrides(max_tokens=body.max_tokens),
                owner=rights.name,
                deliver="prompt",
            )
        text = context_text(answer.context, answer.found.snapshot, answer.recalled, answer.told)
        return {"request": as_data(answer.context), "text": text}

    @Operation("GET", "/explain", answer=ExplanationResponse, problems=(HTTPStatus.NOT_FOUND,))
    async def _explain(self, given: Given, wanted: ExplanationWanted) -> dict[str, Any]:
        """Reasons for which an item is chosen for a query or not, with each part of its score."""
        explained = await self._contexts.explain(wanted.query, wanted.kind, wanted.name, wanted.server)
        data: dict[str, Any] = msgspec.to_builtins(explained)
        if explained.score is not None:
            data["score"]["terms"] = terms_data(explained.score.terms)
        return data

    @Operation("GET", "/sessions", answer=SessionsResponse)
    async def _list_sessions(self, given: Given, wanted: Describe) -> dict[str, Any]:
        """All sessions, oldest first."""
        sessions = [
            _of_now(given, one) for one in self._contexts.sessions if _may(Role.VIEW, given, one.principal)
        ]
        # Of too many items, those of the newest sessions.
        found, left = list[dict[str, Any]](), LISTED_CHARACTERS
        while sessions and left > 0:
            found.append(data := await self._session_data(sessions.pop(), wanted.describe))
            left -= sum(ITEM_CHARACTERS + len(item.get("description", "")) for item in data["items"])
        return {"sessions": found[::-1]}

    @Operation("GET", "/sessions/{session}/context", answer=SessionResponse, problems=(HTTPStatus.NOT_FOUND,))
    async def _get_session_context(self, given: Given, wanted: Describe) -> dict[str, Any]:
        """Context of a session, whatever the query is."""
        session = self._session(given, given.path["session"], Role.VIEW)
        return await self._session_data(session, wanted.describe)

    @Operation(
        "PATCH", "/sessions/{session}/context", answer=SessionResponse, problems=(HTTPStatus.NOT_FOUND,)
    )
    async def _change_session_context(self, given: Given, body: SessionChanges) -> dict[str, Any]:
        """Add or remove items by hand, or change how much is selected."""
        session = self._session(given, given.path["session"])
        # All names are looked up before anything is changed: a mistake in one changes nothing.
        with assigned(ACTING, session.rights):
            removed, added = self._resolved(session, body.remove), self._resolved(session, body.add)
        # The client of a handle asks for its list itself; the client of a connection is notified.
        watched = self._changes.watching(session) if isinstance(session, Session) else nullcontext()
        with watched:
            for item in (*removed, *added):
                context_session.decided(session, item)
            for item in removed:
                context_session.remove(session, item)
            for item in added:
                context_session.add(session, item)
        if body.options is not None:
            session.overrides = body.options.overrides()
        return await self._session_data(session)

    @Operation("GET", "/presets", answer=PresetsResponse, role=Role.VIEW)
    async def _list_presets(self, given: Given) -> dict[str, Any]:
        """The saved presets, by name."""
        return self._presets()

    @Operation(
        "POST",
        "/presets",
        answer=PresetsResponse,
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
        role=Role.ADMIN,
    )
    async def _save_preset(self, given: Given, body: PresetWanted) -> dict[str, Any]:
        """Save what a person has chosen in a session as a preset, with which other sessions can begin."""
        chosen = self._contexts.presets.choices_of(self._session(given, body.session))
        return await self._changed(partial(self._contexts.presets.save, body.name, chosen))

    @Operation(
        "DELETE",
        "/presets/{preset}",
        answer=PresetsResponse,
        problems=(HTTPStatus.CONFLICT,),
        role=Role.ADMIN,
    )
    async def _forget_preset(self, given: Given) -> dict[str, Any]:
        """Forget a saved preset."""
        return await self._changed(partial(self._contexts.presets.forget, given.path["preset"]))

    async def _changed(self, change: Callable[[], None]) -> dict[str, Any]:
        try:
            await in_thread(change)
        except PresetError as error:
            raise BadRequestError(HTTPStatus.CONFLICT, sentence(error)) from None
        return self._presets()

    def _presets(self) -> dict[str, Any]:
        saved = self._contexts.presets.as_data()
        return {
            "presets": [self._known({"name": name, **one}, "added", "removed") for name, one in saved.items()]
        }

    def _session(self, given: Given, session_id: str, role: Role = Role.ADMIN) -> SessionContext:
        """Return a session, of another principal only to those with a role: by default to work in it."""
        session = self._contexts.sessions.get(session_id)
        if session is None or not _may(role, given, session.principal):
            detail = f"There is no session {session_id!r}, or not any more."
            raise BadRequestError(HTTPStatus.NOT_FOUND, detail)
        return _of_now(given, session)

    def _resolved(self, session: SessionContext, names: Iterable[ItemName]) -> list[CatalogItem]:
        snapshot, resolve = self._catalog.snapshot, context_session.resolve_in
        try:
            return [resolve(session, snapshot, one.type, one.name, one.server) for one in names]
        except UnknownItemError as error:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"{error}; nothing was changed") from None

    async def _session_data(self, session: SessionContext, describe: bool = False) -> dict[str, Any]:
        with assigned(ACTING, session.rights):
            data: dict[str, Any] = msgspec.to_builtins(await self._contexts.state(session))
        data = self._known(data, "removed", "by_person")
        return self._described(data, "items") if describe else data

    def _known(self, data: dict[str, Any], *names: str) -> dict[str, Any]:
        """Leave out the choices of items that somebody with limits does not know: they may not be told."""
        if ACTING.get().limited:
            snapshot = self._catalog.snapshot
            for name in names:
                data[name] = [
                    one for one in data[name] if item_by(snapshot, (Kind(one["type"]), one["name"]))
                ]
        return data

    def _described(self, data: dict[str, Any], *names: str) -> dict[str, Any]:
        """Add facts from the catalog; an item that is not in it any more stays a name."""
        snapshot = self._catalog.snapshot
        for one in (one for name in names for one in data[name]):
            item = item_by(snapshot, (Kind(one["type"]), one["name"]))
            if item is not None:
                one["description"] = item.description[:DESCRIPTION_CHARACTERS]
            if isinstance(item, Document):
                one["priority"] = item.priority
            elif isinstance(item, Tool):
                one.update(danger_data(item))
        return data


def _may(role: Role, given: Given, owner: str | None) -> bool:
    """Return whether a request is from the owner, or from somebody with the role that it takes otherwise."""
    return owner == given.principal.name or given.principal.may(role)


def _of_now(given: Given, session: SessionContext) -> SessionContext:
    """Return a session, whose principal may reach less by now than when it was last used."""
    if session.principal == given.principal.name:
        asks = given.principal
        session.rights = dataclasses.replace(session.rights, role=asks.role, reach=asks.reach)
    return session
