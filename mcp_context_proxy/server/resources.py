"""Resources: rules and references of the proxy's own, and those of the downstream servers by their URIs.

A URI is only ever read from the server that listed it, or whose template it matches. Links in results are
never followed.

Contexts as resources: what is in force now, and what was served before, each to whoever asked for it.

All who have no credentials are one: over standard streams the one person who started the proxy.
"""

from __future__ import annotations

import builtins
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any

import anyio
from msgspec import Raw

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context import records
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.records import RequestContext
from mcp_context_proxy.context.session import Handles, Session, SessionContext, handle_of
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.link import Outgoing
from mcp_context_proxy.errors import DownstreamError, RemoteError
from mcp_context_proxy.items import DOCUMENT_KINDS, Document, Snapshot
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import RESOURCE_NOT_FOUND, Era, error_code
from mcp_context_proxy.server import forwarding, rendering
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.forwarding import Forwarder

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
            latest = [records.as_data(one) for one in await self._latest(session, caller)]
            return _content(uri, "application/json", envelope.encode(latest).decode())
        found = await self._contexts.request(uri.removeprefix(REQUESTS + "/"))
        if found is None or found.owner != caller.principal:
            return None
        return _content(uri, "application/json", envelope.encode(records.as_data(found)).decode())

    async def _latest(self, session: SessionContext | None, caller: Caller) -> list[RequestContext]:
        if session is None:
            return await self._contexts.requests_of(caller.principal, REQUESTS_LISTED)
        return await self._contexts.requests(session.id, REQUESTS_LISTED)

    async def _current(self, params: Members, session: SessionContext | None) -> str:
        """Of the query in the request, else of the session's latest, else what is in every session."""
        snapshot = self._catalog.snapshot
        context = await self._context(params, session)
        documents = rendering.documents_of(context, snapshot)
        return "\n\n".join(map(rendering.document_message, documents))

    async def _context(self, params: Members, session: SessionContext | None) -> RequestContext:
        query = envelope.text(eras.meta_of(params).get(eras.QUERY_KEY))
        if query is None and session is not None:
            query = session.query
        return await self._contexts.current(query, session, DOCUMENT_KINDS)


def _content(uri: str, mime_type: str, text: str) -> bytes:
    return envelope.encode({"contents": [{"uri": uri, "mimeType": mime_type, "text": text}]})


logger = logging.getLogger(__name__)

PRIORITY_SCALE = 999
"""A document's highest priority; the protocol's is 1."""

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


class Resources:
    """Answers the ``resources/*`` methods."""

    def __init__(
        self, catalog: Catalog, fleet: Fleet, forwarder: Forwarder, contexts: ContextResources
    ) -> None:
        self._catalog, self._fleet, self._forwarder, self._contexts = catalog, fleet, forwarder, contexts
        self._watchers: builtins.list[Callable[[], None]] = []
        """Of each subscription that is open: watches what it waits for, as far as that is there."""

    async def list(self, params: Members, caller: Caller) -> bytes:
        """The result of ``resources/list``: ours, then the servers'."""
        del caller
        _one_page(params)
        snapshot = self._catalog.snapshot
        own = [_described(uri, document) for uri, document in snapshot.documents.items()]
        foreign = [envelope.members(resource.definition) for resource in snapshot.resources.values()]
        return envelope.encode({"resources": [*own, *foreign, *LISTED]})

    async def templates(self, params: Members, caller: Caller) -> bytes:
        """The result of ``resources/templates/list``."""
        del caller
        _one_page(params)
        templates = [envelope.members(template.definition) for template in self._catalog.snapshot.templates]
        return envelope.encode({"resourceTemplates": [*templates, TEMPLATE]})

    async def read(self, params: Members, caller: Caller) -> bytes:
        """The result of ``resources/read``.

        Raises:
            RequestError: nobody has the resource, or its server could not be asked.
        """
        uri = _uri(params)
        document = self._catalog.snapshot.documents.get(uri)
        if document is not None:
            content = {"uri": uri, "mimeType": "text/markdown", "text": document.text}
            return envelope.encode({"contents": [content]})
        if uri.startswith(SCHEME):
            read = await self._contexts.read(uri, params, caller)
            if read is not None:
                return read
        return await self._forward("resources/read", uri, params, caller)

    async def subscribe(self, params: Members, caller: Caller) -> bytes:
        """The result of ``resources/subscribe``."""
        uri, session = _uri(params), caller.session
        if session is None or uri in session.subscriptions:
            return b"{}"
        if uri not in self._catalog.snapshot.documents:
            owner = self.owner(uri, caller.era)
            outgoing = Outgoing(
                subject=f"resource {uri!r}", party=session.party, capabilities=caller.capabilities
            )
            with _refusing(caller.era, uri):
                await self._fleet.client(owner).watch(uri, params, outgoing)
        session.subscriptions.add(uri)
        return b"{}"

    async def unsubscribe(self, params: Members, caller: Caller) -> bytes:
        """The result of ``resources/unsubscribe``."""
        uri = _uri(params)
        if caller.session is not None and uri in caller.session.subscriptions:
            caller.session.subscriptions.discard(uri)
            self._unwatch(uri)
        return b"{}"

    @asynccontextmanager
    async def watching(self, uris: Iterable[str]) -> AsyncIterator[None]:
        """Hear of updates of these resources meanwhile; of one that nobody has, once somebody has it."""
        wanted, watched = tuple(dict.fromkeys(uris)), dict[str, DownstreamClient]()

        def watch() -> None:
            for uri in wanted:
                if uri not in watched and (client := self._watcher(uri)) is not None:
                    client.subscriptions.watch(uri)
                    watched[uri] = client

        watch()
        for client in set(watched.values()):
            await client.wake()
        self._watchers.append(watch)
        try:
            async with anyio.create_task_group() as group:
                for uri, client in watched.items():
                    group.start_soon(client.subscriptions.wait_confirmed, uri)
            yield
        finally:
            self._watchers.remove(watch)
            for uri, client in watched.items():
                # A server that was configured anew has taken over the subscriptions of its predecessor.
                self._fleet.clients.get(client.name, client).subscriptions.unwatch(uri)

    def catalog_changed(self) -> None:
        """A resource that subscriptions wait for may exist now."""
        for watch in self._watchers:
            watch()

    def end(self, session: Session) -> None:
        """A session has ended, and its subscriptions with it."""
        for uri in session.subscriptions:
            self._unwatch(uri)
        session.subscriptions.clear()

    def _unwatch(self, uri: str) -> None:
        client = self._watcher(uri)
        if client is not None:
            client.subscriptions.unwatch(uri)

    def _watcher(self, uri: str) -> DownstreamClient | None:
        """The client whose server tells of updates of a resource; None when nobody has it."""
        return self._fleet.clients.get(_owner(self._catalog.snapshot, uri) or "")

    def owner(self, uri: str, era: Era) -> str:
        """Name of the server that has a resource.

        Raises:
            RequestError: nobody has it.
        """
        server = _owner(self._catalog.snapshot, uri)
        if server is None:
            code = error_code(RESOURCE_NOT_FOUND, era)
            raise RequestError(code, f"unknown resource {uri!r}", {"uri": uri})
        return server

    async def _forward(self, method: str, uri: str, params: Members, caller: Caller) -> bytes:
        owner = self.owner(uri, caller.era)
        with _refusing(caller.era, uri):
            client = self._fleet.client(owner)
            return await self._forwarder.forward(client, method, params, caller, f"resource {uri!r}")


@contextmanager
def _refusing(spoken: Era, uri: str) -> Iterator[None]:
    """What a downstream server refuses, or cannot do, is refused in the words of the caller's era."""
    try:
        yield
    except RemoteError as error:
        refused = forwarding.request_error(error, spoken)
        if spoken is Era.HANDSHAKE and refused.code == INVALID_PARAMS and _names(refused.data, uri):
            refused.code = RESOURCE_NOT_FOUND
        raise refused from error
    except DownstreamError as error:
        raise RequestError(INTERNAL_ERROR, str(error), {"server": error.server}) from error


def _names(data: Any, uri: str) -> bool:
    """Whether the data of an error names a resource, as the modern era does for one that is not found."""
    return isinstance(data, Raw) and envelope.value(data) == {"uri": uri}


def _uri(params: Members) -> str:
    uri = envelope.text(params.get("uri"))
    if uri is None:
        raise RequestError(INVALID_PARAMS, "the uri of a resource is missing")
    return uri


def _one_page(params: Members) -> None:
    if envelope.text(params.get("cursor")):
        raise RequestError(INVALID_PARAMS, "invalid cursor: the list has one page")


def _described(uri: str, document: Document) -> dict[str, Any]:
    return {
        "uri": uri,
        "name": document.name,
        "description": document.description,
        "mimeType": "text/markdown",
        "annotations": {"priority": round(document.priority / PRIORITY_SCALE, 3)},
    }


def _owner(snapshot: Snapshot, uri: str) -> str | None:
    resource = snapshot.resources.get(uri)
    if resource is not None:
        return resource.server
    return next(
        (template.server for template in snapshot.templates if _pattern(template.uri).fullmatch(uri)), None
    )


@lru_cache(maxsize=4096)
def _pattern(template: str) -> re.Pattern[str]:
    """What a URI template (RFC 6570) can expand to, loosely: one path segment, or the rest of the URI."""
    pattern, end = "", 0
    for match in _EXPRESSION.finditer(template):
        pattern += re.escape(template[end : match.start()]) + (
            r"[^/?#]*" if match[1] in ("", ".", ";") else r".*"
        )
        end = match.end()
    return re.compile(pattern + re.escape(template[end:]), re.DOTALL)
