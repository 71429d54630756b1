"""Meta tools: the tools of the proxy itself, and how calls of them are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, DecodeError, Raw, Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog.document_reading import UnreadableDocumentError, read_part
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.context import NO_OVERRIDES, Delivery, DomainOverrides, Overrides
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.indexing import OnProgress
from mcp_context_proxy.context.search import (
    OnWait,
    Scope,
    asks_for_all,
    asks_which_work,
    may_mean,
    overviewed,
)
from mcp_context_proxy.context.search_filters import Figures, servers_with_off
from mcp_context_proxy.context.selection import SearchAnswer
from mcp_context_proxy.context.session import Handle, Handles, NotedClients, SessionContext, handle_of
from mcp_context_proxy.downstream import Ask, Notify
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import (
    DownstreamError,
    NotForModelsError,
    RemoteError,
    StoreError,
    UnknownFilterError,
    UnknownItemError,
    some_of,
)
from mcp_context_proxy.interactions import InteractionRecorder
from mcp_context_proxy.items import Document, Kind, NameOf, Tool, ToolClass, key_of
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members, RequestError
from mcp_context_proxy.protocol.eras import Era, client_capabilities
from mcp_context_proxy.protocol.strangers import clean
from mcp_context_proxy.results import FAILED, failure, mark_untrusted, outcome_of
from mcp_context_proxy.results.result_store import ReadError, read
from mcp_context_proxy.results.shortening import with_note
from mcp_context_proxy.retrieval.reranker import RerankerModel, SamplingRerankerModel
from mcp_context_proxy.server import Caller
from mcp_context_proxy.server.arguments import (
    UnusableArgumentsError,
    as_meant,
    details,
    in_words,
    is_null,
    misfit,
    otherwise,
)
from mcp_context_proxy.server.consent import PendingInput
from mcp_context_proxy.server.forwarding import NotAnObjectError, request_error, tell_waiting
from mcp_context_proxy.server.meta_definitions import (
    CALL,
    CALL_READ_ONLY,
    CALLS,
    MANAGE,
    READ_DOCUMENT,
    READ_ONLY,
    RECALL,
    RESERVED,
    SEARCH,
    SET_CONTEXT,
    CallArguments,
    ContextArguments,
    ManageArguments,
    PageArguments,
    ReadArguments,
    ReadResultArguments,
    RecallArguments,
    SearchArguments,
    no_servers,
    said_later,
)
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.server.questions import ask_client, sends_away
from mcp_context_proxy.server.rendering import (
    NO_FIGURES,
    figures_line,
    overview_text,
    part_text,
    recall_data,
    recall_text,
    search_data,
)
from mcp_context_proxy.server.resources import Resources
from mcp_context_proxy.server.search_answers import (
    ANSWER_TOKENS,
    UNFINISHED,
    Note,
    answer_tokens,
    current_name,
    search_notes,
    search_text,
)
from mcp_context_proxy.server.tools_call import NO_ARGUMENTS, InteractionLog, ToolCalls
from mcp_context_proxy.server.tools_list import ToolList
from mcp_context_proxy.system.threads import in_task, in_thread, in_thread_if
from mcp_context_proxy.trust import Role, reaches

T = TypeVar("T", bound=Struct)

Search = Callable[[RerankerModel | None, Notify], Awaitable[bytes]]
"""A search; takes the client's model, if it may be asked, and the channel for notifications."""


class MetaTools(Struct, frozen=True, kw_only=True, eq=False):
    """Answers ``tools/call`` for the meta tools."""

    fleet: Fleet
    contexts: ContextEngine
    calls: ToolCalls
    handles: Handles
    tools: ToolList
    changes: ChangeNotifier
    pending_input: PendingInput
    resources: Resources
    asks_clients: bool
    """True to let the client's own model rerank searches."""
    manage: Callable[[], bool]
    """Returns whether models may change contexts by hand."""
    document_bytes: Callable[[], int]
    """Returns the largest size of a skill's file that is read."""
    redact: Redactor
    """Removes secrets from the texts of servers about themselves."""
    noted: NotedClients
    """Servers of which clients without a session were told."""
    recorder: InteractionRecorder | None = None
    """Interactions that models may recall; None if they may not."""
    log: InteractionLog | None = None
    """Remembers searches; None to remember none."""
    figures: Callable[[], Figures] = dict
    """Returns the figures of the calls of tools."""
    was_read: Callable[[Document], None] | None = None
    """Counts the documents that are read; None to count none."""

    async def call(self, name: str, params: Members, caller: Caller) -> bytes:
        """Return the result of a meta tool that calls no other one, not yet fitted to an era."""
        raw = params.get("arguments", NO_ARGUMENTS)
        if len(raw) > envelope.TAKEN_APART_BYTES:
            most = envelope.TAKEN_APART_BYTES
            return failure(f"{name}: its arguments have {len(raw):,} bytes; {most:,} are allowed")
        try:
            _wants_data(caller)  # before anything is done
            if name in (SEARCH, SET_CONTEXT):
                kind: type[SearchArguments | ContextArguments]
                kind = SearchArguments if name == SEARCH else ContextArguments
                wanted = _decoded(raw, kind)
                search = partial(self._search, wanted, params, caller)
                return await self._with_sampling(params, caller, search)
            await in_task()
            if name == MANAGE:
                return await self._manage(_decoded(raw, ManageArguments), caller)
            if name == READ_DOCUMENT:
                return await self._read(_decoded(raw, ReadArguments), caller)
            if name == RECALL:
                return await self._recall(_decoded(raw, RecallArguments), caller)
            return await self._read_result(_decoded(raw, ReadResultArguments), caller)
        except UnusableArgumentsError as error:
            return failure(f"{name}: {error}")

    async def call_through(self, through: str, params: Members, caller: Caller) -> bytes:
        """Return the result of a tool that is called through a call tool, fitted to the caller's era.

        As a plain call, it has no task while it only waits for its server, and its result is fitted once.
        """
        raw, tool = params.get("arguments", NO_ARGUMENTS), None
        try:
            _wants_data(caller)  # before anything is done
            servers = frozenset(filter(caller.rights.reaches, self.fleet.clients))
            if large := len(raw) > envelope.TAKEN_APART_BYTES:  # those of the tool may be
                await in_task()
            wanted = await in_thread_if(large, _decoded, raw, CallArguments, servers)
            arguments = wanted.arguments
            if arguments is UNSET or is_null(arguments):
                arguments = NO_ARGUMENTS
            sent = {**params, "arguments": arguments}
            if wanted.name in CALLS:  # a call within a call: if either may only read, so may both
                return await self.call_through(through if wanted.name == CALL else wanted.name, sent, caller)
            if wanted.name in RESERVED:
                return await self._own_through(through, wanted.name, sent, caller)
            if wanted.context_id is not None:
                # In the _meta, where every call has its context; no server sees it.
                self._handle(wanted.context_id, caller)
                meta = eras.Meta({**caller.meta, eras.CONTEXT_KEY: envelope.raw(wanted.context_id)})
                sent["_meta"], caller = envelope.raw(meta), replace(caller, meta=meta)
            if "://" in wanted.name:
                page = _decoded(arguments, PageArguments).page
                result = await self.resources.read_by_model(wanted.name, page, caller)
                return eras.fit_result_to_client("tools/call", result, caller.era)
        except UnusableArgumentsError as error:
            return eras.fit_result_to_client("tools/call", failure(f"{through}: {error}"), caller.era)
        try:
            tool = self.calls.known(wanted.name, caller) or await self.calls.resolve(
                wanted.name, sent, caller
            )
            # By what it says now, and not by what is remembered of it.
            tool = await self.calls.as_listed(tool, sent, caller)
            if through != CALL_READ_ONLY or tool.tool_class is ToolClass.READ:
                arguments = sent["arguments"] = as_meant(tool, arguments)
                said = wanted.goal and self.redact(clean(wanted.goal))
                result = await self.calls.call_tool(tool, sent, caller, goal=said, through=through)
                fits = result.find(b'"isError"') < 0 or outcome_of(result) is not FAILED
                differs = "" if fits else misfit(tool, caller.name_of(tool), arguments)
                return with_note(result, differs) if differs else result
            self.calls.ended.refused(tool, sent, caller, CALL_READ_ONLY)
            result = _not_read_only(caller.name_of(tool), f"counts as {tool.tool_class}: {tool.class_reason}")
        except UnknownItemError as error:
            result = await self.calls.unknown(error, wanted.name, caller)
        except (DownstreamError, RequestError) as error:
            if isinstance(error, RemoteError) and caller.era is Era.HANDSHAKE and sends_away(error, caller):
                raise request_error(error, caller.era) from error
            judged = tool if isinstance(error, RemoteError | NotAnObjectError) else None
            differs = misfit(judged, caller.name_of(judged), arguments) if judged else ""
            result = failure("\n".join(filter(None, [str(error), self.redact(details(error)), differs])))
        return eras.fit_result_to_client("tools/call", result, caller.era)

    async def _own_through(self, through: str, name: str, params: Members, caller: Caller) -> bytes:
        """Return the result of a meta tool that is called through a call tool, fitted to the caller's era."""
        if through == CALL_READ_ONLY and name not in READ_ONLY:
            result = _not_read_only(name, "is none of them")
        else:
            result = await self.call(name, params, caller)
        return eras.fit_result_to_client("tools/call", result, caller.era)

    async def _with_sampling(self, params: Members, caller: Caller, search: Search) -> bytes:
        """Run a search that may ask the client's model for the order of the best tools.

        A handshake-era client is asked by a request. In the modern era the question is the result of the
        call: the search is parked until the client calls again with the answer, or goes on without it after
        a timeout.
        """
        if not self.asks_clients or "sampling" not in client_capabilities(caller.capabilities):
            return await search(None, caller.notify)
        await in_task()

        def model(ask: Ask, client: str) -> RerankerModel:
            return SamplingRerankerModel(partial(ask_client, caller, ask), client)

        if caller.session is not None:
            return await search(model(caller.ask, caller.session.id), caller.notify)
        if caller.era is Era.HANDSHAKE:
            return await search(None, caller.notify)

        async def parked(ask: Ask, notify: Notify) -> bytes:
            return await search(model(ask, f"of {caller.principal}"), notify)

        return await self.pending_input.call(caller.principal, "search", params, caller.notify, parked)

    async def _search(
        self,
        wanted: SearchArguments | ContextArguments,
        params: Members,
        caller: Caller,
        client: RerankerModel | None,
        notify: Notify,
    ) -> bytes:
        """Search for either meta tool; a handshake-era session lists the selected tools from now on."""
        if self.fleet.shared.changed:
            await self.fleet.wait_changed()
        handle, query = self._handle(wanted.context_id, caller), wanted.query
        overrides, scope, best = NO_OVERRIDES, None, False
        if isinstance(wanted, SearchArguments):
            best = wanted.best
            kinds = None if wanted.kinds is None else frozenset(map(Kind, wanted.kinds))
            scope = Scope(kinds, wanted.filters.before(wanted))
            if self.fleet.unlisted:
                self.fleet.hurry(scope.filters.server, partial(may_mean, query))
            if wanted.top_n is not None:
                number = DomainOverrides(top_n=wanted.top_n)
                overrides = Overrides(number, number)
            if not _wants_data(caller) and (kinds is None or Kind.TOOL in kinds):
                query = query.strip() or scope.filters.server or ""
                catalog = self.calls.catalog
                snapshot = (catalog if caller.rights.limited else catalog.whole).snapshot
                # Which tools there are matters for few queries.
                of_all = partial(asks_for_all, query, snapshot.servers, self.fleet.failed)
                if of_all() and await in_thread(of_all, snapshot.tools.values()):
                    known = self._noted(handle or caller.session, caller)
                    scope = overviewed(scope, query, self.fleet.clients, self.fleet.failed)
                    on_wait = partial(tell_waiting, params, notify)
                    return await self._overview(query, scope, caller, known, on_wait)
            if not query.strip():
                raise UnusableArgumentsError("query must not be empty")
        else:
            handle = handle or self._new_handle(caller)
            query = query if wanted.intent is None else f"{query}\n{wanted.intent}"
        written = None if _wants_data(caller) else self._writer(wanted, caller)
        try:
            answer = await self.contexts.select(
                query,
                handle or caller.session,
                overrides,
                origin="search" if isinstance(wanted, SearchArguments) else "set_context",
                scope=scope,
                on_progress=_progress(params, notify),
                on_wait=partial(tell_waiting, params, notify),
                rerank="always" if best else None,
                client=client,
                introduced=eras.name_of(caller.client_info),
                listed=None if caller.session is None else tuple(caller.session.shown),
                owner=caller.principal,
                deliver="answer",
                write=written,
                given=caller.given,
            )
        except UnknownFilterError as error:
            raise UnusableArgumentsError(str(error)) from None
        if self.log is not None:
            self.log.searched(answer.context.query, eras.name_of(caller.client_info), caller.rights.owner)
        if caller.session is not None:
            caller.session.query = answer.context.query
            if self.tools.show_found(caller.session, answer.tool_names):
                self.changes.tools_grew(caller.session)
            if caller.session.subscriptions:
                self.changes.context_changed(caller.session)
        noted = None if _wants_data(caller) else self._noted(handle or caller.session, caller)
        notes, context_id = self._notes(answer, noted, caller, best), None
        snapshot = answer.found.snapshot
        if (snapshot.resources or snapshot.templates) and (scope is None or scope.kinds is None):
            fit = await self.resources.fitting(query, answer.found.wanted)
            notes += [Note(fit, brief=fit)] if fit else []
        if handle is not None and isinstance(wanted, ContextArguments):
            handle.shown = dict.fromkeys(answer.tool_names)
            context_id = handle.secret
        if written is None:
            data = await in_thread(search_data, answer, notes, caller.name_of, self._figures(caller))
            return _data(data, context_id)
        if notes or answer.text is None:
            return _text(await in_thread(partial(written, answer, notes)), context_id)
        return _text(answer.text, context_id)

    def _notes(
        self, answer: SearchAnswer, noted: dict[str, frozenset[str]] | None, caller: Caller, best: bool
    ) -> list[Note]:
        """Return the notes of an answer: limits, a refused order, pages, what is off, servers told late."""
        notes, rerank = search_notes(answer, self.fleet, noted, caller.name_of), answer.context.rerank
        if best and rerank is not None and not rerank.used:
            notes.append(Note(f"No other model has ordered this: {rerank.reason.removeprefix('skipped: ')}."))
        if eras.shows_apps(caller.capabilities):
            notes += _note_of_pages(answer, caller.name_of, self.tools.with_pages(caller.session))
        if answer.found.snapshot.turned_off:
            notes += _note_of_turned_off(answer)
        if (session := caller.session) is not None:
            tools = (one.item for one in answer.found.results if isinstance(one.item, Tool))
            untold = dict.fromkeys(tool.server for tool in tools if tool.server not in session.introduced)
            clients = [*filter(None, map(self.fleet.clients.get, untold))]
            if any(one.introduction is not None and one.introduction.instructions for one in clients):
                notes += map(Note, said_later(clients, self.redact, session.introduced))
        return notes

    def _writer(self, wanted: SearchArguments | ContextArguments, caller: Caller) -> Callable[..., str]:
        """Return a function that writes the answer to a search, with the notes if it is given any."""
        whole, tokens = False, ANSWER_TOKENS
        if isinstance(wanted, SearchArguments):
            whole, tokens = wanted.include_schema, answer_tokens(wanted.top_n)
        return partial(
            search_text,
            count=self.contexts.costs.count,
            whole=whole,
            tokens=tokens,
            name_of=caller.name_of,
            about=partial(figures_line, figures=self._figures(caller)) if whole else None,
        )

    def _noted(self, session: SessionContext | None, caller: Caller) -> dict[str, frozenset[str]]:
        """Return the servers that earlier answers to a caller named, by note, to be kept up to date."""
        agent = eras.name_of(caller.client_info)
        return self.noted.of(caller.principal, agent) if session is None else session.noted

    async def _overview(
        self, query: str, scope: Scope, caller: Caller, noted: dict[str, frozenset[str]], on_wait: OnWait
    ) -> bytes:
        """Return an overview of the catalog, with all notes but that on indexing, which `noted` has then.

        Nothing is compared or chosen, so nothing is recorded or learned from.
        """
        try:
            answer = await self.contexts.select("", scope=scope, remember=False, on_wait=on_wait)
        except UnknownFilterError as error:
            raise UnusableArgumentsError(str(error)) from None
        snapshot, count = answer.found.snapshot, self.contexts.costs.count
        told: dict[str, frozenset[str]] = {}
        notes = [
            one for one in search_notes(answer, self.fleet, told, caller.name_of) if one.brief != UNFINISHED
        ]
        noted.update({note: names | noted.get(note, frozenset()) for note, names in told.items()})
        if not any(map(reaches, snapshot.servers)):
            notes = [Note(no_servers())]
        written = partial(overview_text, snapshot, scope, self.figures(), notes, count, caller.name_of)
        return _text(await in_thread(partial(written, of_state=asks_which_work(query))))

    def _figures(self, caller: Caller) -> Figures:
        """Return the figures of all calls; none for principals who may not see the calls of others."""
        return self.figures() if caller.rights.may(Role.VIEW) else NO_FIGURES

    async def _manage(self, wanted: ManageArguments, caller: Caller) -> bytes:
        if not self.manage():
            return failure(f"{MANAGE} is switched off; [context] manage_tool switches it on")
        session = self._handle(wanted.context_id, caller) or caller.session or self._new_handle(caller)
        if wanted.action != "list":
            if wanted.type is None or wanted.name is None:
                raise UnusableArgumentsError(f"to {wanted.action} an item, give its type and name")
            change = self.contexts.add if wanted.action == "add" else self.contexts.remove
            watched = nullcontext() if caller.session is None else self.changes.watching(caller.session)
            try:
                with watched:
                    change(session, Kind(wanted.type), wanted.name, wanted.server, by_model=True)
            except (UnknownItemError, NotForModelsError) as error:
                raise UnusableArgumentsError(str(error)) from error
        items = await self.contexts.items(session)
        context_id = session.secret if isinstance(session, Handle) else None
        snapshot = self.calls.catalog.snapshot
        named = [(item, current_name(item, snapshot, caller.name_of)) for item in items]
        lines = [f"- {item.type} {name} ({item.include_mode})" for item, name in named]
        if _wants_data(caller):
            return _data({"items": [replace(item, name=name) for item, name in named]}, context_id)
        text = "\n".join(["In the context of every request:", *lines] if lines else ["The context is empty."])
        return _text(text, context_id)

    def _new_handle(self, caller: Caller) -> Handle:
        """Create a handle; it knows the documents and notes that the client's session was given."""
        handle = self.handles.create(caller.principal)
        handle.rights = caller.rights
        if caller.session is not None:
            handle.delivered.update(caller.session.delivered)
            handle.noted.update(caller.session.noted)
        self.contexts.presets.begin(handle, caller.rights.all_presets)
        return handle

    async def _read(self, wanted: ReadArguments, caller: Caller) -> bytes:
        """Return a part of a document; one that is read whole is not given again in this session."""
        session: SessionContext | None = self._handle(wanted.context_id, caller) or caller.session
        most, snapshot = self.document_bytes(), self.calls.catalog.snapshot
        read = partial(read_part, snapshot, wanted.name, wanted.section, wanted.page, most)
        try:
            part = await self.contexts.in_turn(partial(read, self.contexts.costs.count))
        except UnknownItemError as error:
            return failure(f"{READ_DOCUMENT}: {error}\n{SEARCH} finds documents by what they are about.")
        except UnreadableDocumentError as error:
            return failure(f"{READ_DOCUMENT}: {error}")
        if self.was_read is not None:
            self.was_read(part.document)
        given = caller.given if session is None else session.delivered
        if part.is_whole and given is not None:
            given[key_of(part.document)] = (part.document.fingerprint, Delivery.WHOLE)
        if not _wants_data(caller):
            return _text(part_text(part))
        facts = {"uri": part.uri, "section": part.section, "page": part.page, "pages": part.pages}
        return _data({**facts, "text": part.text, "outline": part.outline, "folder": part.folder})

    async def _recall(self, wanted: RecallArguments, caller: Caller) -> bytes:
        rights = caller.rights
        if not rights.may(Role.VIEW) and rights.profile is None:
            return failure(
                f"{RECALL} searches what all agents did, so it needs the role view, as administrators have"
            )
        if self.recorder is None:
            return failure(f"{RECALL} is switched off; [interactions] recall_tool switches it on")
        try:
            await self.recorder.wait_for_recent()
            search = partial(
                self.recorder.memory.semantic_search_interactions,
                wanted.query,
                wanted.agent_name,
                wanted.top_k,
                wanted.time_decay_factor,
                wanted.interaction_type,
                None if rights.sees_all else rights.owner,
            )
            found = await self.contexts.in_turn(search)
            if _wants_data(caller):
                return _data({"query": wanted.query, **recall_data(found)})
            return _text(recall_text(found))
        except StoreError as error:
            return failure(f"nothing can be recalled now: {error}")

    async def _read_result(self, wanted: ReadResultArguments, caller: Caller) -> bytes:
        results = self.calls.results.kept
        kept = await results.get(caller.owner, wanted.id)
        if kept is None and results.is_elsewhere(wanted.id):
            raise UnusableArgumentsError(
                "the replica of the proxy that kept this result has ended, and the result with it: it cannot "
                "be read any more. Call the tool that gave it once more, with the same arguments"
            )
        if kept is None:
            # Without a session nothing but the id tells one caller from another.
            known = "" if caller.session is None else results.told(caller.owner)
            raise UnusableArgumentsError(
                "there is no result with this id: it was another session's, or is no longer kept; "
                + (f"those that are, the latest first: {known}" if known else "call its tool again")
            )
        asked = wanted.page, wanted.path, wanted.pattern, self.calls.results.page_bytes(caller.client_info)
        try:
            reading = await self.contexts.in_turn(partial(read, kept.text, *asked))
        except ReadError as error:
            raise UnusableArgumentsError(str(error)) from None
        result = envelope.encode({"content": [{"type": "text", "text": reading.text.decode()}]})
        client = self.fleet.clients.get(kept.server)
        if client is None or client.config.spotlight:
            result = mark_untrusted(kept.server, result)
        return with_note(result, reading.note)

    def _handle(self, context_id: str | None, caller: Caller) -> Handle | None:
        """Return the context that a call names; a model can read the error about an unknown `context_id`."""
        if context_id is None:
            return handle_of(caller.meta, self.handles, caller.principal)
        handle = self.handles.get(context_id, caller.principal)
        if handle is None:
            raise UnusableArgumentsError(f"unknown or expired context_id; {SET_CONTEXT} gives one")
        return handle


def _decoded(raw: Raw, kind: type[T], servers: Container[str] = ()) -> T:
    try:
        return envelope.decoded(raw, kind, partial(otherwise, kind=kind, servers=servers))
    except DecodeError as error:
        raise UnusableArgumentsError(in_words(error, kind)) from None


def _note_of_pages(answer: SearchAnswer, name_of: NameOf, listed: Collection[str]) -> list[Note]:
    """Return how to call the tools with a page, for a host that shows it if they are called by themselves.

    A host shows none of a tool that is not `listed`, by exposed name.
    """
    found = (one.item for one in answer.found.results)
    paged = (item for item in found if isinstance(item, Tool) and item.page)
    names = [name_of(item) for item in paged if item.exposed_name in listed]
    its, own = ("its page", "its own name") if len(names) == 1 else ("their pages", "their own names")
    return [Note(f"To show {its}, call {some_of(names)} by {own}, and not through {CALL}.")] if names else []


def _note_of_turned_off(answer: SearchAnswer) -> list[Note]:
    """Return that something is turned off; its name and its setting are for the person alone."""
    found = answer.found
    if not (servers := servers_with_off(answer.context.query, found.snapshot, found.wanted.server)):
        return []
    said = f"What may fit is turned off at {some_of(servers)}; only the user can turn it on."
    return [Note(said, brief=said)]


def _not_read_only(name: str, why: str) -> bytes:
    """Return the refusal of a tool that does more than read; ``why`` is the end of a sentence about it."""
    return failure(
        f"{name} was not run: {CALL_READ_ONLY} calls only tools that read, and {name} {why}. "
        f"Call it through {CALL}."
    )


def _wants_data(caller: Caller) -> bool:
    """Return whether a program asks for data instead of the text that models read."""
    wanted = caller.meta.get(eras.FORMAT_KEY)
    if wanted is None:
        return False
    if envelope.text(wanted) != "json":
        raise UnusableArgumentsError(f'{eras.FORMAT_KEY} in _meta can only be "json"')
    return True


def _text(text: str, context_id: str | None = None) -> bytes:
    """Return a result that a model reads: text alone, which many hosts drop beside structured content."""
    told = text if context_id is None else f"{text}\n\nGive later calls the context_id {context_id}"
    return envelope.encode({"content": [{"type": "text", "text": told}]})


def _data(data: Mapping[str, Any], context_id: str | None = None) -> bytes:
    """Return a result that a program reads: JSON, as structured content and as text."""
    whole = data if context_id is None else {**data, "context_id": context_id}
    content = [{"type": "text", "text": envelope.encode(whole).decode()}]
    return envelope.encode({"content": content, "structuredContent": whole})


def _progress(params: Members, notify: Notify) -> OnProgress | None:
    """Return a callback that reports the progress of indexing to a client that asked for it."""
    token = eras.meta_of(params).get("progressToken")
    if token is None:
        return None

    def report(done: int, total: int) -> None:
        if not done:
            # Progress has to grow, and the client may have been told that the search waits for servers.
            return
        facts = {"progress": done, "total": total, "message": "indexing tools"}
        raw = {name: envelope.raw(fact) for name, fact in facts.items()}
        notify("notifications/progress", {"progressToken": token, **raw})

    return report
