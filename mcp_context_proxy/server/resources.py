"""Resources and prompts: the proxy's own, and those of the downstream servers.

A URI is only ever read from its owner (`catalog.uri_owners`): the server that listed it, or whose template it
matches. One without an owner is read from the server whose result linked to it, by those who got that result.
URIs of the proxy's own schemes never reach a server, and the proxy itself follows no link. The ``context://``
resources show the current context and the latest request contexts, each only to the principal that asked; all
callers without credentials are one principal: over standard streams that is the person who started the proxy.

The proxy has one prompt of its own, ``with_context``: it takes a query and returns the rules and references
that apply to it, as messages for the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache, partial
from typing import Any

import anyio
import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.catalog import definitions, names
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.definitions import is_page
from mcp_context_proxy.catalog.document_reading import paged, uris_meant
from mcp_context_proxy.catalog.uri_owners import OF_TWO, URI_BYTES, is_own, skill_claim
from mcp_context_proxy.context import as_data
from mcp_context_proxy.context.delivery import ToldDocument
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.session import QUERY_CHARACTERS, Handles, Session, handle_of
from mcp_context_proxy.downstream import Outgoing
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import UnknownItemError, WithheldError
from mcp_context_proxy.items import DOCUMENT_KINDS, Document, IncludeMode, Prompt, Resource, SearchFilters
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import RESOURCE_NOT_FOUND, Era, error_code
from mcp_context_proxy.protocol.strangers import bounded, one_line, quoted, stranger_json, unmarked
from mcp_context_proxy.results import LINK_CHARACTERS, ResourceLinks, failure, mark_untrusted
from mcp_context_proxy.results.shortening import with_note
from mcp_context_proxy.retrieval.text import terms
from mcp_context_proxy.server import Caller, rendering
from mcp_context_proxy.server.forwarding import Forwarder, downstream_errors, tell_waiting
from mcp_context_proxy.server.meta_definitions import (
    CALL_READ_ONLY,
    CONTEXT_PROMPT,
    CONTEXT_RESOURCES,
    CONTEXT_TEMPLATE,
    CURRENT,
    LIVE,
    PROMPT,
    REQUESTS,
    SCHEME,
)
from mcp_context_proxy.server.notifications import Watches
from mcp_context_proxy.server.questions import check_prompt
from mcp_context_proxy.server.skills import Skills
from mcp_context_proxy.server.tools_list import encoded_list
from mcp_context_proxy.system.threads import in_thread, in_thread_if
from mcp_context_proxy.trust import reaches

COMPLETIONS, COMPLETION_CHARACTERS = 100, 1_000
"""Values of a completion that pass, as many as the protocol allows, and the length of one."""

DOCUMENT_SCHEMES = tuple(f"{kind}://" for kind in DOCUMENT_KINDS)

REQUESTS_LISTED = 50
"""Request contexts in the resource that lists them, the latest: as many as a person looks through."""

URI_SHOWN = 100
"""Characters of a client's URI that a refusal repeats."""

SUBSCRIPTIONS, SUBSCRIPTIONS_BYTES = 1000, 256 * 1024
"""Resources that one session, or one subscription of the modern era, may be subscribed to."""

TOO_MANY = f"more than {SUBSCRIPTIONS:,} resources, or {SUBSCRIPTIONS_BYTES:,} bytes of URIs, at once"

RESOURCES_COMPARED, COMPARED_IN_LOOP, COMPARED_CHARACTERS = 1_000, 50, 300
"""Resources that a query is compared with, those on the event loop, and the characters of each text of them:
one of thousands of words would have those of any query."""

RESOURCES_NAMED, URI_NAMED, DESCRIBED, BLOBS_OF_PAGE = 3, 200, 100, 20
"""Resources that an answer names, the characters of their URIs at most, and of what is said about them; and
the images and files on a page of one that a model reads."""

LEAST_SHARED, SHARED = 2, 0.6
"""Words of a query that a resource has at least, and their share: a tool is nearer to any other query."""

SHOWN_IMAGES = frozenset(f"image/{kind}" for kind in ("gif", "jpeg", "png", "webp"))
"""Images that models see; one of another kind, such as a drawing in SVG, would end a conversation."""

PRIORITY_SCALE = 999
"""Number of the last priority of a document, which is 0 in the protocol; the first is 1 there."""


@contextmanager
def _unknown_as_invalid() -> Iterator[None]:
    """Turn errors about what a request names into those of its parameters."""
    try:
        yield
    except UnknownItemError as error:
        raise RequestError(INVALID_PARAMS, str(error)) from None


class Resources(Struct, frozen=True, kw_only=True, eq=False):
    """Answers the ``resources/*`` methods."""

    catalog: Catalog
    watches: Watches
    forwarder: Forwarder
    contexts: ContextEngine
    handles: Handles
    skills: Skills
    fleet: Fleet
    links: ResourceLinks
    was_read: Callable[[Document], None] | None = None
    """Counts the documents that are read; None to count none."""

    async def list(self, params: Members, caller: Caller) -> Members:
        snapshot = self.catalog.snapshot
        # A file of a skill is listed with its skill.
        hidden = self.skills.sources(snapshot)
        foreign = (one for uri, one in snapshot.resources.items() if (one.server, uri) not in hidden)
        items: list[Document | Resource | dict[str, Any]]
        items = [*snapshot.documents.values(), *CONTEXT_RESOURCES, *foreign]
        return {"resources": await encoded_list((), _definition, items)}

    async def templates(self, params: Members, caller: Caller) -> Members:
        foreign = self.catalog.snapshot.templates.values()
        listed = await encoded_list((CONTEXT_TEMPLATE,), definitions.resource_definition, foreign)
        return {"resourceTemplates": listed}

    async def read(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``resources/read``, fitted to the caller's era."""
        return (await self._read(params, caller))[0]

    async def _read(self, params: Members, caller: Caller) -> tuple[bytes, str]:
        """Return what `read` returns, and the server that gave it; empty if that is the proxy itself."""
        uri = envelope.text(params["uri"]) or ""
        snapshot = self.catalog.snapshot
        document = snapshot.document(uri)
        if document is None and uri.startswith(DOCUMENT_SCHEMES):
            # Models and hosts also write a name as people read it, without escapes.
            document = next(filter(None, map(snapshot.document, uris_meant(uri))), None)
        if document is not None and self.was_read is not None:
            self.was_read(document)
        if (skill_file := await self.skills.read(uri, params, caller)) is not None:
            return skill_file
        if document is not None and not document.server:
            own: tuple[str, str] | None = "text/markdown", document.text
        else:
            own = await self._read_context(uri, caller) if uri.startswith(SCHEME) else None
        if own is not None:
            content = {"uri": uri, "mimeType": own[0], "text": own[1]}
            body = envelope.encode({"contents": [content]})
            return eras.fit_result_to_client("resources/read", body, caller.era), ""
        client, subject = self.owner(uri, caller.era, caller.owner), f"resource {uri!r}"
        judge = partial(self.raise_if_other, uri, client.name, caller.era, caller.owner)
        with _refusing(caller.era, uri):
            name = getattr(snapshot.owner_of(uri), "uri", None)
            read = self.forwarder.read
            return await read(client, "resources/read", params, caller, subject, judge, name), client.name

    async def read_by_model(self, uri: str, page: int, caller: Caller) -> bytes:
        """Return a page of a resource as the result of a tool: its text, images, and other data as it is."""
        try:
            body, server = await self._read({"uri": envelope.raw(uri)}, caller)
        except RequestError as error:
            return failure(bounded(str(error)))
        client = self.fleet.clients.get(server)
        spotlit = server if client is not None and client.config.spotlight else ""
        return await in_thread_if(len(body) > envelope.TAKEN_APART_BYTES, _as_result, body, page, spotlit)

    async def fitting(self, query: str, wanted: SearchFilters) -> str:
        """Return a sentence that names the resources with most words of a query; empty if there are none."""
        snapshot = self.catalog.snapshot  # a thread costs more than to compare a few
        many = len(snapshot.resources) + len(snapshot.templates) > COMPARED_IN_LOOP
        return await in_thread_if(many, self._fitting, query, wanted)

    def _fitting(self, query: str, wanted: SearchFilters) -> str:
        if wanted.category or wanted.tags or wanted.any_tags or wanted.language:
            return ""
        snapshot, found = self.catalog.snapshot, list[tuple[float, str]]()
        asked, hidden = frozenset(terms(query)) - {"server", "resourc"}, self.skills.sources(snapshot)
        every = *snapshot.resources.items(), *snapshot.templates.items()
        off = {name for name, one in self.fleet.clients.items() if one.config.include is IncludeMode.MANUAL}
        compared, servers = Counter[str](), {one.server for _, one in every}
        for uri, one in every:
            is_meant = one.listed and one.server not in off and wanted.server in (None, one.server)
            # No server takes the room of another.
            if not is_meant or compared[one.server] >= RESOURCES_COMPARED // len(servers):
                continue
            compared[one.server] += 1
            told, has = _told(one)
            is_fit = len(asked & has) >= max(LEAST_SHARED, SHARED * len(asked))
            if is_fit and (one.server, uri) not in hidden:
                said = f" ({quoted(told)})" if told else ""
                found.append((-len(asked & has), f"{uri} of {one.server}{said}"))
        names = [name for _, name in sorted(found)[:RESOURCES_NAMED]]
        fit, one_of = ("Resources that fit", "one") if len(names) > 1 else ("A resource that fits", "it")
        uri = "the URI, all in {} filled in," if "{" in "".join(names) else "the URI"
        how = f"Read {one_of} through {CALL_READ_ONLY}, with {uri} as its name."
        return f"{fit}: {', '.join(names)}. {how}" if names else ""

    async def _read_context(self, uri: str, caller: Caller) -> tuple[str, str] | None:
        """Return media type and text of a ``context://`` resource; None if there is no such resource."""
        session = handle_of(caller.meta, self.handles, caller.principal) or caller.session
        if uri == CURRENT:
            # For the query of the request, else for the session's latest, else the items of every session.
            query = envelope.text(caller.meta.get(eras.QUERY_KEY))
            if query is None and session is not None:
                query = session.query
            snapshot, told = self.catalog.snapshot, tuple[ToldDocument, ...]()
            if query is not None and query.strip():
                selected = await self.contexts.select(
                    query, session, scope=Scope(DOCUMENT_KINDS), remember=False, deliver="prompt"
                )
                context, snapshot, told = selected.context, selected.found.snapshot, selected.told
            else:
                context = await self.contexts.standing(session, DOCUMENT_KINDS)
            messages = rendering.document_messages(context, snapshot, told)
            return "text/markdown", "\n\n".join(messages)
        if uri == REQUESTS:
            if session is None:
                latest = await self.contexts.records.latest_of(caller.principal, REQUESTS_LISTED)
            else:
                latest = await self.contexts.requests(session.id, REQUESTS_LISTED)
            return "application/json", envelope.encode([as_data(one) for one in latest]).decode()
        found = await self.contexts.request(uri.removeprefix(REQUESTS + "/"))
        if found is None or found.owner != caller.principal:
            return None
        return "application/json", envelope.encode(as_data(found)).decode()

    async def subscribe(self, params: Members, caller: Caller) -> bytes:
        uri, session = envelope.text(params["uri"]) or "", caller.session
        if session is None or uri in session.subscriptions:
            return b"{}"
        if too_many((*session.subscriptions, uri)):
            raise RequestError(INVALID_PARAMS, TOO_MANY)
        if self.catalog.snapshot.document(uri) is None and uri not in LIVE:
            owner = self.owner(uri, caller.era)
            outgoing = Outgoing(
                subject=f"resource {uri!r}",
                timeout=owner.config.call_timeout,
                capabilities=caller.capabilities,
                party=session.party,
            )
            with _refusing(caller.era, uri):
                await owner.watch(uri, params, outgoing)
            if uri in session.subscriptions:
                # The client asked twice at once.
                owner.subscriptions.unwatch(uri)
            else:
                self.watches.add(session, uri, owner.name)
        session.subscriptions.add(uri)
        return b"{}"

    async def unsubscribe(self, params: Members, caller: Caller) -> bytes:
        uri = envelope.text(params["uri"]) or ""
        if caller.session is not None and uri in caller.session.subscriptions:
            caller.session.subscriptions.discard(uri)
            self.watches.remove(caller.session, uri)
        return b"{}"

    def end(self, session: Session) -> None:
        for uri in session.subscriptions:
            self.watches.remove(session, uri)
        session.subscriptions.clear()
        self.links.forget(session.id)

    @asynccontextmanager
    async def watching(self, uris: Iterable[str]) -> AsyncIterator[None]:
        """Subscribe to resources meanwhile; to one that nobody has yet, once somebody has it."""
        wanted, watcher = tuple(dict.fromkeys(uris)), object()
        try:
            found = {uri: self.watches.add(watcher, uri) for uri in wanted}
            watched = {uri: client for uri, client in found.items() if client is not None}
            for client in set(watched.values()):
                await client.wake()
            async with anyio.create_task_group() as group:
                for uri, client in watched.items():
                    group.start_soon(client.subscriptions.wait_confirmed, uri)
            yield
        finally:
            for uri in wanted:
                self.watches.remove(watcher, uri)

    def exists(self, uri: str) -> bool:
        """Return whether a URI leads to anything that the principal may reach for whom this is done."""
        snapshot = self.catalog.snapshot
        return is_own(uri) or snapshot.document(uri) is not None or snapshot.owner_of(uri) is not None

    @_unknown_as_invalid()
    def owner(self, uri: str, era: Era, reader: str | None = None) -> DownstreamClient:
        """Return the client of the server that has a resource, or has linked to it for its reader.

        Raises `RequestError` if nobody has it.
        """
        if (size := len(uri.encode("utf-8", "surrogatepass"))) > URI_BYTES:
            long = f"the URI {uri[:URI_SHOWN]!r}... has {size:,} bytes; {URI_BYTES:,} are allowed"
            raise RequestError(INVALID_PARAMS, long)
        resource = None if is_own(uri) else self.catalog.snapshot.owner_of(uri)
        if resource is not None and resource.withheld == OF_TWO:
            raise RequestError(INVALID_PARAMS, f"resource {uri!r} is withheld: {OF_TWO}")
        if resource is not None and resource.withheld:
            kind, reason = "resource template", resource.withheld
            raise WithheldError(kind=kind, name=resource.uri, server=resource.server, reason=reason)
        client = None if resource is None else self.watches.owner(uri)
        if resource is None and reader is not None and not is_own(uri):
            client = self._linking(uri, reader)
        if client is None:
            code = error_code(RESOURCE_NOT_FOUND, era)
            raise RequestError(code, f"unknown resource {uri!r}", {"uri": uri})
        return client

    def _linking(self, uri: str, reader: str) -> DownstreamClient | None:
        """Return the client of the server that has linked to a resource, if it says that it has any.

        A page is never linked to: the tool names it. Nor is the skill of another.

        Raises:
            RequestError: two of them have.
        """
        found = [
            client
            for server in self.links.servers_of(uri, reader)
            if not is_page(uri)
            and skill_claim(uri, server, self.fleet.clients) is None
            and (client := self.fleet.clients.get(server)) is not None
            and client.introduction is not None
            and client.introduction.offers("resources")
            and reaches(server)
        ]
        if len(found) > 1:
            names = " and ".join(repr(client.name) for client in found[:2])
            told = f"servers {names} have both linked to it, and one would answer for the other"
            raise RequestError(INVALID_PARAMS, f"resource {uri!r} is withheld: {told}")
        return found[0] if found else None

    def raise_if_other(self, uri: str, server: str, era: Era, reader: str | None = None) -> None:
        """Raise `RequestError` unless a URI, or that of a template, still leads to this server."""
        template = self.catalog.snapshot.templates.get(uri)
        if (self.owner(uri, era, reader).name if template is None else template.server) != server:
            raise RequestError(INVALID_PARAMS, f"resource {uri!r} is that of another server now")


@lru_cache(maxsize=RESOURCES_COMPARED)
def _told(resource: Resource) -> tuple[str, frozenset[str]]:
    """Return what a resource says about itself, on a line, and the terms of all that is known of it.

    It has none if it is no resource for models: a page, one for people alone, or one whose URI could be the
    name of a tool or is as long as a text.
    """
    members, uri = envelope.members(resource.definition), resource.uri
    annotations = envelope.value_or_none(members.get("annotations", b"null"))
    for_people = isinstance(annotations, dict) and annotations.get("audience") == ["user"]
    if for_people or is_page(uri) or "://" not in uri or len(uri) > URI_NAMED:
        return "", frozenset()
    name, title, described = (
        (envelope.text(members.get(key)) or "")[:COMPARED_CHARACTERS]
        for key in ("name", "title", "description")
    )
    known = f"{resource.server} {uri} {name} {title} {described}"
    return one_line(described or title or name, DESCRIBED).rstrip("."), frozenset(terms(known))


def _as_result(body: bytes, page: int, spotlit: str) -> bytes:
    """Return a page of what was read as the result of a tool, marked as data of the server to spotlight."""
    try:
        contents = [*map(envelope.members, envelope.elements(envelope.members(body)["contents"]))]
    except (KeyError, msgspec.DecodeError):
        return failure("the server has given no contents of this resource, or asks the user first")
    texts = [text for one in contents if (text := envelope.text(one.get("text"))) is not None]
    blobs = [one for one in contents if envelope.text(one.get("blob")) is not None]
    pages = paged("\n\n".join(texts)) if texts else []
    last = max(len(pages), -(-len(blobs) // BLOBS_OF_PAGE), 1)
    if page > last:
        return failure(f"there is no page {page:,}; the last one is {last:,}")
    blocks = [{"type": "text", "text": text} for text in pages[page - 1 : page]]
    blocks += map(_block, blobs[(page - 1) * BLOBS_OF_PAGE : page * BLOBS_OF_PAGE])
    result = envelope.encode({"content": blocks})
    result = mark_untrusted(spotlit, result) if spotlit else result
    return with_note(result, f"[page {page} of {last}]") if last > 1 else result


def _block(content: Members) -> dict[str, Any]:
    """Return binary content of a resource as a block of a result, without all else that stands beside it."""
    media, uri = ((envelope.text(content.get(key)) or "")[:LINK_CHARACTERS] for key in ("mimeType", "uri"))
    if media in SHOWN_IMAGES or media.startswith("audio/"):
        return {"type": media.partition("/")[0], "data": content["blob"], "mimeType": media}
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media, "blob": content["blob"]}}


def _definition(item: Document | Resource | dict[str, Any]) -> Raw | dict[str, Any]:
    if isinstance(item, dict):
        return item
    if isinstance(item, Resource):
        return definitions.resource_definition(item)
    return {
        "uri": item.uri,
        # That of a server's skill is a file of the skill, whose name is the folder's.
        "name": item.uri.split("/")[-2] if item.server else item.name,
        "description": item.description,
        "mimeType": "text/markdown",
        "annotations": {"priority": round(1 - item.priority / PRIORITY_SCALE, 3)},
    }


def too_many(uris: Collection[str]) -> bool:
    """Return whether these are more resources than one client may be subscribed to."""
    return len(uris) > SUBSCRIPTIONS or sum(map(len, uris)) > SUBSCRIPTIONS_BYTES


@contextmanager
def _refusing(era: Era, uri: str) -> Iterator[None]:
    """Turn errors of the downstream server into errors of the caller's era."""
    try:
        with downstream_errors(era):
            yield
    except RequestError as error:
        # In the modern era a resource that is not found is an invalid parameter, named in the data.
        names_uri = isinstance(error.data, Raw) and envelope.value_or_none(error.data) == {"uri": uri}
        if era is Era.HANDSHAKE and error.code == INVALID_PARAMS and names_uri:
            error.code = RESOURCE_NOT_FOUND
        raise


class Prompts(Struct, frozen=True, kw_only=True, eq=False):
    """Answers the ``prompts/*`` methods and ``completion/complete``."""

    catalog: Catalog
    fleet: Fleet
    forwarder: Forwarder
    resources: Resources
    contexts: ContextEngine
    handles: Handles
    catch_up: Callable[[], Awaitable[None]]
    """Waits for the catalog, if a server has just become ready."""

    async def list(self, params: Members, caller: Caller) -> Members:
        prompts = self.catalog.snapshot.prompts.values()
        return {"prompts": await encoded_list((), definitions.prompt_definition, prompts, (PROMPT,))}

    async def get(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``prompts/get``, fitted to the caller's era."""
        name = envelope.text(params["name"]) or ""
        if name == CONTEXT_PROMPT:
            return eras.fit_result_to_client(
                "prompts/get", await self._with_context(params, caller), caller.era
            )
        prompt = await self._resolve(name, caller)
        client = self.fleet.clients[prompt.server]
        if client.connected is None:
            # It is known from before, and may not be what it was.
            await client.wait_connected(partial(tell_waiting, params, caller.notify))
            prompt = await self._resolve(name, caller)
        sent = {**params, "name": envelope.raw(prompt.name)}
        judge = partial(self._raise_if_other, prompt)
        subject = f"prompt {prompt.name!r}"
        with downstream_errors(caller.era):
            client = self.fleet.clients[prompt.server]
            read = self.forwarder.read
            result = await read(client, "prompts/get", sent, caller, subject, judge, prompt.name)
            await in_thread_if(len(result) > envelope.TAKEN_APART_BYTES, check_prompt, prompt.server, result)
        return result

    async def complete(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``completion/complete``, fitted to the caller's era."""
        reference = envelope.members(params["ref"])
        if (odd := envelope.misread(reference)) is not None:
            raise RequestError(INVALID_PARAMS, f"ref has {quoted(odd[0])}, which some read as {odd[1]!r}")
        of_prompt = envelope.text(reference.get("type")) == "ref/prompt"
        name, uri = (envelope.text(reference.get(key)) or "" for key in ("name", "uri"))
        if name == CONTEXT_PROMPT if of_prompt else uri.startswith(SCHEME):
            # There are no completions for the proxy's own prompt and resources.
            result = envelope.encode({"completion": {"values": [], "total": 0, "hasMore": False}})
            return eras.fit_result_to_client("completion/complete", result, caller.era)
        judge: Callable[[], None]
        if of_prompt:
            prompt = await self._resolve(name, caller)
            server, reference = prompt.server, {**reference, "name": envelope.raw(prompt.name)}
            judge = partial(self._raise_if_other, prompt)
        else:
            template = self.catalog.snapshot.templates.get(uri)
            # The URI is a parameter here, so an unknown one is an invalid parameter in either era.
            server = self.resources.owner(uri, Era.MODERN).name if template is None else template.server
            judge = partial(self.resources.raise_if_other, uri, server, Era.MODERN)
        sent = {**params, "ref": envelope.raw(reference)}
        with downstream_errors(caller.era):
            client, method = self.fleet.clients[server], "completion/complete"
            result = await self.forwarder.forward(client, method, sent, caller, "a completion", judge)
        large = len(result) > envelope.TAKEN_APART_BYTES
        return await in_thread_if(large, shown_completions, result, client.redact.json)

    async def _with_context(self, params: Members, caller: Caller) -> bytes:
        """Return the query's rules and references, one message each, then its tools, then the query."""
        given = params.get("arguments", Raw(b"{}"))
        if len(given) > envelope.TAKEN_APART_BYTES:
            text = f"arguments of prompt {CONTEXT_PROMPT!r} have {len(given):,} bytes"
            raise RequestError(INVALID_PARAMS, f"{text}; {envelope.TAKEN_APART_BYTES:,} are allowed")
        query = envelope.text(envelope.members_of(given).get("query"))
        if query is None or not query.strip():
            raise RequestError(
                INVALID_PARAMS, f"prompt {CONTEXT_PROMPT!r} needs a query: what you want to do"
            )
        query = query[:QUERY_CHARACTERS]
        session = handle_of(caller.meta, self.handles, caller.principal) or caller.session
        name = eras.name_of(caller.client_info)
        selected = await self.contexts.select(
            query, session, introduced=name, owner=caller.principal, deliver="prompt"
        )
        context, snapshot = selected.context, selected.found.snapshot
        texts = rendering.document_messages(context, snapshot, selected.told)
        if tools := rendering.tools_text(context, snapshot, caller.name_of):
            texts.append(tools)
        if selected.recalled:
            texts.append(rendering.recalled_text(selected.recalled))
        messages = [{"role": "user", "content": {"type": "text", "text": text}} for text in (*texts, query)]
        return envelope.encode({"description": f"Context for: {query}", "messages": messages})

    async def _resolve(self, name: str, caller: Caller) -> Prompt:
        """Return the prompt that a request names; `catalog.names` tells which names a prompt has."""
        snapshot = self.catalog.snapshot
        prompt = names.by_full_name(snapshot.prompts, name, snapshot.servers)
        if prompt is None:
            await self.catch_up()
            snapshot = self.catalog.snapshot
            prompt = names.by_full_name(snapshot.prompts, name, snapshot.servers)
        with _unknown_as_invalid():
            if prompt is None:
                with downstream_errors(caller.era):
                    self.fleet.raise_if_unavailable(names.owner(name, snapshot.servers))
                self._raise_if_withheld(name)
                compared = names.COMPARED_IN_THREAD
                near = await in_thread(names.suggested, snapshot.prompts, name, snapshot.servers, compared)
                raise UnknownItemError("prompt", name, near)
            if not names.is_full(name):
                self._raise_if_withheld(name)
                if session := handle_of(caller.meta, self.handles, caller.principal) or caller.session:
                    session.means("prompt", name, prompt.server)
        return prompt

    def _raise_if_withheld(self, name: str) -> None:
        snapshot = self.catalog.snapshot
        names.raise_if_withheld("prompt", snapshot.withheld_prompts, name, snapshot.servers)

    @_unknown_as_invalid()
    def _raise_if_other(self, prompt: Prompt) -> None:
        now = self.catalog.snapshot.prompts.get(prompt.exposed_name)
        if now is None or now.definition != prompt.definition:
            self._raise_if_withheld(prompt.exposed_name)
            said = f"prompt {prompt.exposed_name!r} changed while the request waited"
            raise RequestError(INVALID_PARAMS, said)


def shown_completions(result: bytes, redact: Callable[[bytes], bytes]) -> bytes:
    """Return a completion as a person may be shown it, to choose a value: few, short, and hiding nothing.

    A value that hides something is left out, because it would be sent back as another one.
    """
    parts = envelope.members(stranger_json(result, redact))
    try:
        completion = envelope.members(parts["completion"])
        given = envelope.members(envelope.members(result)["completion"])["values"]
        values = [envelope.value_or_none(each) for each in msgspec.json.decode(given, type=list[Raw])]
    except (KeyError, msgspec.DecodeError):
        return envelope.encode(parts)
    shown = [one for one in values if isinstance(one, str) and unmarked(one_line(one)) == one.strip()]
    kept = [one for one in shown if len(one) <= COMPLETION_CHARACTERS][:COMPLETIONS]
    return envelope.encode({**parts, "completion": {**completion, "values": kept}})
