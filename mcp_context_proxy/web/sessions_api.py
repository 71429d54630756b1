"""What sessions have in their contexts, and how that is changed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context import session_items
from mcp_context_proxy.context.engine import ContextEngine, SessionState
from mcp_context_proxy.context.session import Session, SessionContext
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Item
from mcp_context_proxy.server.changes import Changes
from mcp_context_proxy.web import session_forms as forms
from mcp_context_proxy.web.context_forms import Describe
from mcp_context_proxy.web.describing import Describer
from mcp_context_proxy.web.operation import REFUSED, WITH_BODY, Given, Operation, RefusedError

_UNKNOWN = (*REFUSED, HTTPStatus.NOT_FOUND)


class SessionsApi:
    """What the operations do."""

    def __init__(self, contexts: ContextEngine, catalog: Catalog, changes: Changes) -> None:
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
                answer=forms.SessionsAnswer,
                problems=REFUSED,
            ),
            Operation(
                method="GET",
                path="/sessions/{session}/context",
                name="getSessionContext",
                summary="What a session has in its context, whatever the query is.",
                handler=self._session_context,
                query=Describe,
                answer=forms.SessionAnswer,
                problems=_UNKNOWN,
            ),
            Operation(
                method="PATCH",
                path="/sessions/{session}/context",
                name="changeSessionContext",
                summary="Add or remove items by hand, or change how much is selected.",
                handler=self._change_session,
                body=forms.SessionChanges,
                answer=forms.SessionAnswer,
                problems=(*_UNKNOWN, *WITH_BODY),
            ),
        )

    async def _list_sessions(self, given: Given) -> forms.SessionsAnswer:
        describer = self._describer(given.query.describe)
        states = await self._contexts.sessions()
        return forms.SessionsAnswer([_session_answer(state, describer) for state in states])

    async def _session_context(self, given: Given) -> forms.SessionAnswer:
        state = await self._contexts.state(session_of(self._contexts, given.path["session"]))
        return _session_answer(state, self._describer(given.query.describe))

    async def _change_session(self, given: Given) -> forms.SessionAnswer:
        session, wanted = session_of(self._contexts, given.path["session"]), given.body
        # All names are looked up before anything is changed: a mistake in one changes nothing.
        removed, added = self._resolved(wanted.remove), self._resolved(wanted.add)
        with self._watching(session):
            for item in removed:
                session_items.remove(session, item)
            for item in added:
                session_items.add(session, item)
        if wanted.options is not None:
            session.overrides = wanted.options.overrides()
        return _session_answer(await self._contexts.state(session), self._describer(False))

    def _resolved(self, names: Iterable[forms.ItemName]) -> list[Item]:
        snapshot = self._catalog.snapshot
        try:
            return [session_items.resolve(snapshot, one.type, one.name, one.server) for one in names]
        except UnknownItemError as error:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"{error}; nothing was changed") from None

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
        raise RefusedError(HTTPStatus.NOT_FOUND, detail)
    return session


def _session_answer(state: SessionState, describer: Describer) -> forms.SessionAnswer:
    return forms.SessionAnswer(
        id=state.id,
        kind=state.kind,
        created=state.created,
        query=state.query,
        items=describer.items(state.items),
        removed=[forms.RemovedItem(*item) for item in state.removed],
        options=state.overrides,
        latest_request=state.latest_request,
    )
