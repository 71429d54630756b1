"""Resources: the proxy's own rules, references and contexts, and those of the downstream servers.

A URI is only ever read from the server that listed it, or whose template it matches. Links in results are
never followed. The ``context://`` resources show the current context and the latest request contexts, each
only to the principal that asked; all callers without credentials are one principal: over standard streams
that is the person who started the proxy.
"""

from __future__ import annotations

import builtins
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
from mcp_context_proxy.context.session import Handles, Session, handle_of
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.link import Outgoing
from mcp_context_proxy.items import DOCUMENT_KINDS, Snapshot
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import RESOURCE_NOT_FOUND, Era, error_code
from mcp_context_proxy.server import rendering
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.forwarding import Forwarder, downstream_errors, fit_to_caller

SCHEME = "context://"
CURRENT = SCHEME + "current"
REQUESTS = SCHEME + "requests"

REQUESTS_LISTED = 50
"""Request contexts in the resource that lists them, the latest: as many as a person looks through."""

PRIORITY_SCALE = 999
"""Highest priority of a document; the protocol's is 1."""

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

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


class Resources:
    """Answers the ``resources/*`` methods."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        fleet: Fleet,
        forwarder: Forwarder,
        contexts: ContextEngine,
        handles: Handles,
    ) -> None:
        self._catalog, self._fleet, self._forwarder = catalog, fleet, forwarder
        self._contexts, self._handles = contexts, handles
        self._subscribe_found: builtins.list[Callable[[], None]] = []
        """One callback for each open subscription: subscribes to its resources as far as they exist."""

    async def list(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``resources/list``: the proxy's own resources, then the servers'."""
        del params, caller
        snapshot = self._catalog.snapshot
        own = [
            {
                "uri": uri,
                "name": document.name,
                "description": document.description,
                "mimeType": "text/markdown",
                "annotations": {"priority": round(document.priority / PRIORITY_SCALE, 3)},
            }
            for uri, document in snapshot.documents.items()
        ]
        foreign = [envelope.members(resource.definition) for resource in snapshot.resources.values()]
        return envelope.encode({"resources": [*own, *foreign, *LISTED]})

    async def templates(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``resources/templates/list``."""
        del params, caller
        templates = [envelope.members(template.definition) for template in self._catalog.snapshot.templates]
        return envelope.encode({"resourceTemplates": [*templates, TEMPLATE]})

    async def read(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``resources/read``, fitted to the caller's era.

        Raises:
            RequestError: nobody has the resource, or its server could not be asked.
        """
        uri = _uri(params)
        document = self._catalog.snapshot.documents.get(uri)
        if document is not None:
            read: tuple[str, str] | None = "text/markdown", document.text
        else:
            read = await self._read_context(uri, params, caller) if uri.startswith(SCHEME) else None
        if read is not None:
            content = {"uri": uri, "mimeType": read[0], "text": read[1]}
            return fit_to_caller("resources/read", envelope.encode({"contents": [content]}), caller)
        owner = self.owner(uri, caller.era)
        with _refusing(caller.era, uri):
            client, subject = self._fleet.clients[owner], f"resource {uri!r}"
            return await self._forwarder.forward(client, "resources/read", params, caller, subject)

    async def _read_context(self, uri: str, params: Members, caller: Caller) -> tuple[str, str] | None:
        """Return media type and text of a ``context://`` resource; None if there is no such resource."""
        session = handle_of(params, self._handles, caller.principal) or caller.session
        if uri == CURRENT:
            # For the query of the request, else for the session's latest, else the items of every session.
            query = envelope.text(eras.meta_of(params).get(eras.QUERY_KEY))
            if query is None and session is not None:
                query = session.query
            snapshot = self._catalog.snapshot
            context = await self._contexts.current(query, session, DOCUMENT_KINDS)
            documents = rendering.documents_of(context, snapshot)
            return "text/markdown", "\n\n".join(map(rendering.document_message, documents))
        if uri == REQUESTS:
            if session is None:
                latest = await self._contexts.requests_of(caller.principal, REQUESTS_LISTED)
            else:
                latest = await self._contexts.requests(session.id, REQUESTS_LISTED)
            return "application/json", envelope.encode([records.as_data(one) for one in latest]).decode()
        found = await self._contexts.request(uri.removeprefix(REQUESTS + "/"))
        if found is None or found.owner != caller.principal:
            return None
        return "application/json", envelope.encode(records.as_data(found)).decode()

    async def subscribe(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``resources/subscribe``."""
        uri, session = _uri(params), caller.session
        if session is None or uri in session.subscriptions:
            return b"{}"
        if uri not in self._catalog.snapshot.documents:
            owner = self.owner(uri, caller.era)
            outgoing = Outgoing(
                subject=f"resource {uri!r}", party=session.party, capabilities=caller.capabilities
            )
            with _refusing(caller.era, uri):
                await self._fleet.clients[owner].watch(uri, params, outgoing)
        session.subscriptions.add(uri)
        return b"{}"

    async def unsubscribe(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``resources/unsubscribe``."""
        uri = _uri(params)
        if caller.session is not None and uri in caller.session.subscriptions:
            caller.session.subscriptions.discard(uri)
            self._unsubscribe(uri)
        return b"{}"

    def end(self, session: Session) -> None:
        """End the subscriptions of a session that has ended."""
        for uri in session.subscriptions:
            self._unsubscribe(uri)
        session.subscriptions.clear()

    @asynccontextmanager
    async def watching(self, uris: Iterable[str]) -> AsyncIterator[None]:
        """Subscribe to resources meanwhile; to one that nobody has yet, once somebody has it."""
        wanted, watched = tuple(dict.fromkeys(uris)), dict[str, DownstreamClient]()

        def subscribe_found() -> None:
            for uri in wanted:
                if uri not in watched and (client := self._owning_client(uri)) is not None:
                    client.subscriptions.watch(uri)
                    watched[uri] = client

        subscribe_found()
        for client in set(watched.values()):
            await client.wake()
        self._subscribe_found.append(subscribe_found)
        try:
            async with anyio.create_task_group() as group:
                for uri, client in watched.items():
                    group.start_soon(client.subscriptions.wait_confirmed, uri)
            yield
        finally:
            self._subscribe_found.remove(subscribe_found)
            for uri, client in watched.items():
                # A server that was configured anew has taken over the subscriptions of its predecessor.
                self._fleet.clients.get(client.name, client).subscriptions.unwatch(uri)

    def catalog_changed(self) -> None:
        """Subscribe to the resources that open subscriptions wait for and that exist now."""
        for subscribe_found in self._subscribe_found:
            subscribe_found()

    def _unsubscribe(self, uri: str) -> None:
        client = self._owning_client(uri)
        if client is not None:
            client.subscriptions.unwatch(uri)

    def _owning_client(self, uri: str) -> DownstreamClient | None:
        return self._fleet.clients.get(_owner(self._catalog.snapshot, uri) or "")

    def owner(self, uri: str, era: Era) -> str:
        """Return the name of the server that has a resource.

        Raises:
            RequestError: nobody has it.
        """
        server = _owner(self._catalog.snapshot, uri)
        if server is None:
            code = error_code(RESOURCE_NOT_FOUND, era)
            raise RequestError(code, f"unknown resource {uri!r}", {"uri": uri})
        return server


@contextmanager
def _refusing(era: Era, uri: str) -> Iterator[None]:
    """Turn errors of the downstream server into errors of the caller's era."""
    try:
        with downstream_errors(era):
            yield
    except RequestError as error:
        # In the modern era a resource that is not found is an invalid parameter, named in the data.
        names_uri = isinstance(error.data, Raw) and envelope.value(error.data) == {"uri": uri}
        if era is Era.HANDSHAKE and error.code == INVALID_PARAMS and names_uri:
            error.code = RESOURCE_NOT_FOUND
        raise


def _uri(params: Members) -> str:
    uri = envelope.text(params.get("uri"))
    if uri is None:
        raise RequestError(INVALID_PARAMS, "the uri of a resource is missing")
    return uri


def _owner(snapshot: Snapshot, uri: str) -> str | None:
    resource = snapshot.resources.get(uri)
    if resource is not None:
        return resource.server
    return next(
        (template.server for template in snapshot.templates if _pattern(template.uri).fullmatch(uri)), None
    )


@lru_cache(maxsize=4096)
def _pattern(template: str) -> re.Pattern[str]:
    """Return a loose pattern of the expansions of a URI template (RFC 6570).

    Expressions that stay within a path segment match up to the next separator; the others match anything.
    """
    pattern, end = "", 0
    for match in _EXPRESSION.finditer(template):
        pattern += re.escape(template[end : match.start()]) + (
            r"[^/?#]*" if match[1] in ("", ".", ";") else r".*"
        )
        end = match.end()
    return re.compile(pattern + re.escape(template[end:]), re.DOTALL)
