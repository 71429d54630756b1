"""Meta tools: the tools of the proxy itself, and how calls of them are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw

from mcp_context_proxy.context.background_indexing import OnProgress
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import DomainOverrides, Overrides
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.search_filters import SearchFilters
from mcp_context_proxy.context.session import Handle, Handles, SessionContext, handle_of
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.link import Ask, Notify
from mcp_context_proxy.errors import DownstreamError, StoreError, UnknownFilterError, UnknownItemError
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members, RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.rerank.reranker_model import RerankerModel, SamplingRerankerModel
from mcp_context_proxy.server import meta_definitions
from mcp_context_proxy.server.after_call import InteractionLog, agent_of
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.forwarding import tell_waiting
from mcp_context_proxy.server.meta_definitions import (
    MANAGE,
    RECALL,
    RESERVED,
    SEARCH,
    SET_CONTEXT,
    CallArguments,
    ContextArguments,
    ManageArguments,
    RecallArguments,
    SearchArguments,
)
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.server.pending_input import PendingInput
from mcp_context_proxy.server.questions import ask_client, client_capabilities
from mcp_context_proxy.server.rendering import recall_result, search_result
from mcp_context_proxy.server.tools_call import ToolCalls, failure, unknown
from mcp_context_proxy.system.threads import in_thread

Arguments = TypeVar("Arguments", bound=msgspec.Struct)

Search = Callable[[RerankerModel | None, Notify], Awaitable[bytes]]
"""A search; takes the client's model, if it may be asked, and the channel for notifications."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetaTools:
    """Answers ``tools/call`` for the meta tools."""

    fleet: Fleet
    contexts: ContextEngine
    calls: ToolCalls
    handles: Handles
    changes: ChangeNotifier
    pending_input: PendingInput
    asks_clients: bool
    """True to let the client's own model rerank searches."""
    manage: Callable[[], bool]
    """Returns whether models may change contexts by hand."""
    recorder: InteractionRecorder | None = None
    """Interactions that models may recall; None if they may not."""
    log: InteractionLog | None = None
    """Remembers searches; None to remember none."""

    async def call(self, name: str, params: Members, caller: Caller) -> bytes:
        """Return the result of a meta tool, not yet fitted to an era."""
        raw = params.get("arguments", Raw(b"{}"))
        try:
            if name in (SEARCH, SET_CONTEXT):
                kind: type[SearchArguments | ContextArguments]
                kind = SearchArguments if name == SEARCH else ContextArguments
                wanted = _arguments(raw, kind)
                search = partial(self._search, wanted, params, caller)
                return await self._with_sampling(params, caller, search)
            if name == MANAGE:
                return await self._manage(_arguments(raw, ManageArguments), params, caller)
            if name == RECALL:
                return await self._recall(_arguments(raw, RecallArguments))
            return await self._call(_arguments(raw, CallArguments), params, caller)
        except _UnusableArgumentsError as error:
            return failure(f"{name}: {error}")

    async def _with_sampling(self, params: Members, caller: Caller, search: Search) -> bytes:
        """Run a search that may ask the client's model for the order of the best tools.

        A handshake-era client is asked by a request. In the modern era the question is the result of the
        call: the search is parked until the client calls again with the answer, or goes on without it after
        a timeout.
        """
        if not self.asks_clients or "sampling" not in client_capabilities(caller):
            return await search(None, caller.notify)

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
        handle, query = self._handle(wanted.context_id, params, caller), wanted.query
        overrides, scope = Overrides(), None
        if isinstance(wanted, SearchArguments):
            kinds = None if wanted.kinds is None else frozenset(map(Kind, wanted.kinds))
            scope = Scope(kinds, msgspec.convert(wanted, SearchFilters, from_attributes=True))
            number = DomainOverrides(top_n=wanted.top_n)
            overrides = Overrides(number, number)
        else:
            handle = handle or self.handles.create(caller.principal)
            query = query if wanted.intent is None else f"{query}\n{wanted.intent}"
        try:
            answer = await self.contexts.select(
                query,
                handle or caller.session,
                overrides,
                origin="search" if isinstance(wanted, SearchArguments) else "set_context",
                scope=scope,
                on_progress=_progress(params, notify),
                on_wait=partial(tell_waiting, params, notify),
                client=client,
                listed=None if caller.session is None else tuple(caller.session.shown),
                owner=caller.principal,
            )
        except UnknownFilterError as error:
            raise _UnusableArgumentsError(str(error)) from None
        if self.log is not None:
            self.log.searched(answer.context.query, agent_of(caller.client_info))
        if caller.session is not None:
            caller.session.query = answer.context.query
            self.changes.show(caller.session, sorted(answer.tool_names))
        if isinstance(wanted, SearchArguments):
            return search_result(answer, self.fleet, wanted.include_schema)
        assert handle is not None
        handle.shown = dict.fromkeys(answer.tool_names)
        return search_result(answer, self.fleet, True, handle.secret)

    async def _manage(self, wanted: ManageArguments, params: Members, caller: Caller) -> bytes:
        if not self.manage():
            return failure(f"{MANAGE} is switched off; [context] manage_tool switches it on")
        session: SessionContext | None = self._handle(wanted.context_id, params, caller) or caller.session
        if session is None:
            session = self.handles.create(caller.principal)
        if wanted.action != "list":
            if wanted.type is None or wanted.name is None:
                raise _UnusableArgumentsError(f"to {wanted.action} an item, give its type and name")
            change = self.contexts.add if wanted.action == "add" else self.contexts.remove
            watched = nullcontext() if caller.session is None else self.changes.watching(caller.session)
            try:
                with watched:
                    change(session, Kind(wanted.type), wanted.name, wanted.server)
            except UnknownItemError as error:
                raise _UnusableArgumentsError(str(error)) from error
        items = await self.contexts.items(session)
        context_id = {"context_id": session.secret} if isinstance(session, Handle) else {}
        lines = [f"- {item.type} {item.name} ({item.include_mode})" for item in items]
        text = "\n".join(["In the context of every request:", *lines] if lines else ["The context is empty."])
        data = {"items": items, **context_id}
        return envelope.encode({"content": [{"type": "text", "text": text}], "structuredContent": data})

    async def _recall(self, wanted: RecallArguments) -> bytes:
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
            )
            return recall_result(wanted.query, await in_thread(search, abandon_on_cancel=True))
        except StoreError as error:
            return failure(f"nothing can be recalled now: {error}")

    async def _call(self, wanted: CallArguments, params: Members, caller: Caller) -> bytes:
        arguments = Raw(b"{}") if wanted.arguments is UNSET else wanted.arguments
        sent = {**params, "arguments": arguments}
        if wanted.name in RESERVED - {meta_definitions.CALL}:
            return await self.call(wanted.name, sent, caller)
        try:
            if wanted.context_id is not None:
                # In the _meta, where every call has its context; no server sees it.
                self._handle(wanted.context_id, sent, caller)
                meta = {**eras.meta_of(params), eras.CONTEXT_KEY: envelope.raw(wanted.context_id)}
                sent["_meta"] = envelope.raw(meta)
            tool = await self.calls.resolve(wanted.name, sent, caller)
            return await self.calls.call_tool(tool, sent, caller, wanted.goal)
        except UnknownItemError as error:
            return unknown(error)
        except (DownstreamError, RequestError) as error:
            return failure(str(error))

    def _handle(self, context_id: str | None, params: Members, caller: Caller) -> Handle | None:
        """Return the context that a call names; a model can read the error about an unknown `context_id`."""
        if context_id is None:
            return handle_of(params, self.handles, caller.principal)
        handle = self.handles.get(context_id, caller.principal)
        if handle is None:
            raise _UnusableArgumentsError(f"unknown or expired context_id; {SET_CONTEXT} gives one")
        return handle


class _UnusableArgumentsError(Exception):
    """The arguments of a meta tool cannot be used; the message tells the model why."""


def _arguments(raw: Raw, kind: type[Arguments]) -> Arguments:
    """Decode arguments, leniently: models send JSON as a string, and null for missing values."""
    try:
        if envelope.starts_with(raw, b'"'):
            raw = Raw((envelope.text(raw) or "").encode())
        if b"null" in bytes(raw):
            given = {name: value for name, value in envelope.members(raw).items() if bytes(value) != b"null"}
            raw = envelope.raw(given)
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise _UnusableArgumentsError(f"these arguments cannot be used: {error}") from None


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
