"""Contexts as resources: what is in force now, and what was served before, each to whoever asked for it.

All who have no credentials are one: over standard streams the one person who started the proxy.
"""

from __future__ import annotations

from typing import Any

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context import request
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.handles import Handles
from mcp_context_proxy.context.query import handle_of
from mcp_context_proxy.context.request import RequestContext
from mcp_context_proxy.context.session import SessionContext
from mcp_context_proxy.items import DOCUMENT_KINDS
from mcp_context_proxy.server import context_text
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members

SCHEME = "context://"
CURRENT = SCHEME + "current"
REQUESTS = SCHEME + "requests"

REQUESTS_LISTED = 50
"""Request contexts that the resource names, the latest: what a person looks through."""

LISTED: list[dict[str, Any]] = [
    {
        "uri": CURRENT,
        "name": "current context",
        "description": "The rules and references that are in force for what is being done now.",
        "mimeType": "text/markdown",
    },
    {
        "uri": REQUESTS,
        "name": "request contexts",
        "description": "What was chosen for the latest requests, how and why.",
        "mimeType": "application/json",
    },
]

TEMPLATE: dict[str, Any] = {
    "uriTemplate": REQUESTS + "/{id}",
    "name": "request context",
    "description": "What was chosen for one request, how and why; its id is in the answer to a search.",
    "mimeType": "application/json",
}


class ContextResources:
    """Reads ``context://`` resources."""

    def __init__(self, catalog: Catalog, contexts: ContextEngine, handles: Handles) -> None:
        self._catalog, self._contexts, self._handles = catalog, contexts, handles

    async def read(self, uri: str, params: Members, caller: Caller) -> bytes | None:
        """The result of ``resources/read``; None when there is no such resource.

        Raises:
            RequestError: the context handle is unknown or was forgotten.
        """
        session = handle_of(params, self._handles, caller.principal) or caller.session
        if uri == CURRENT:
            return _content(uri, "text/markdown", await self._current(params, session))
        if uri == REQUESTS:
            latest = [request.as_data(one) for one in await self._latest(session, caller)]
            return _content(uri, "application/json", envelope.encode(latest).decode())
        found = await self._contexts.request(uri.removeprefix(REQUESTS + "/"))
        if found is None or found.owner != caller.principal:
            return None
        return _content(uri, "application/json", envelope.encode(request.as_data(found)).decode())

    async def _latest(self, session: SessionContext | None, caller: Caller) -> list[RequestContext]:
        if session is None:
            return await self._contexts.requests_of(caller.principal, REQUESTS_LISTED)
        return await self._contexts.requests(session.id, REQUESTS_LISTED)

    async def _current(self, params: Members, session: SessionContext | None) -> str:
        """Of the query in the request, else of the session's latest, else what is in every session."""
        snapshot = self._catalog.snapshot
        context = await self._context(params, session)
        documents = context_text.documents_of(context, snapshot)
        return "\n\n".join(map(context_text.document_text, documents))

    async def _context(self, params: Members, session: SessionContext | None) -> RequestContext:
        query = envelope.text(era.meta_of(params).get(era.QUERY_KEY))
        if query is None and session is not None:
            query = session.query
        return await self._contexts.current(query, session, DOCUMENT_KINDS)


def _content(uri: str, mime_type: str, text: str) -> bytes:
    return envelope.encode({"contents": [{"uri": uri, "mimeType": mime_type, "text": text}]})
