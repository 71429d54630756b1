"""What the proxy's own tools do when they are called."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from mcp_context_proxy.context.background import OnProgress
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.handles import Handle, Handles
from mcp_context_proxy.context.options import DomainOverrides, Overrides
from mcp_context_proxy.context.query import handle_of
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.selection import Selected
from mcp_context_proxy.context.session import Session, SessionContext
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.link import Notify
from mcp_context_proxy.errors import DownstreamError, StoreError, UnknownFilterError, UnknownItemError
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.items import Kind
from mcp_context_proxy.rerank.judge import Judge
from mcp_context_proxy.server import meta_arguments, meta_tools, recall
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.changes import Changes
from mcp_context_proxy.server.interaction_log import InteractionLog, agent_of
from mcp_context_proxy.server.sampling import Sampling
from mcp_context_proxy.server.search_answer import search_answer
from mcp_context_proxy.server.tool_calls import ToolCalls, failure, unknown
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members, RequestError

logger = logging.getLogger(__name__)

Arguments = TypeVar("Arguments")


class OwnTools:
    """Answers ``tools/call`` for the meta tools."""

    def __init__(
        self,
        fleet: Fleet,
        contexts: ContextEngine,
        calls: ToolCalls,
        handles: Handles,
        changes: Changes,
        sampling: Sampling,
        manage: Callable[[], bool],
        recorder: InteractionRecorder | None = None,
        log: InteractionLog | None = None,
    ) -> None:
        """Prepare to answer.

        Args:
            fleet: The downstream servers.
            contexts: The one door to contexts.
            calls: Passes calls on.
            handles: Of contexts that clients carry themselves.
            changes: Tells sessions that their list has changed.
            sampling: Asks the client's model for those that a search needs it for.
            manage: Whether models may change contexts by hand.
            recorder: Has what models may recall; None where they may not.
            log: Notes what is searched for; None where it is not remembered.
        """
        self._fleet, self._contexts, self._calls = fleet, contexts, calls
        self._handles, self._changes, self._with_manage = handles, changes, manage
        self._sampling, self._recorder, self._log = sampling, recorder, log

    async def call(self, name: str, params: Members, caller: Caller) -> bytes:
        """The result of calling the meta tool `name`, not yet fitted to an era."""
        raw = params.get("arguments", Raw(b"{}"))
        try:
            if name == meta_tools.SEARCH:
                search = partial(
                    self._search, _arguments(raw, meta_arguments.SearchArguments), params, caller
                )
                return await self._sampling.answered(params, caller, search)
            if name == meta_tools.SET_CONTEXT:
                selection = _arguments(raw, meta_arguments.ContextArguments)
                search = partial(self._set_context, selection, params, caller)
                return await self._sampling.answered(params, caller, search)
            if name == meta_tools.MANAGE:
                return await self._manage(_arguments(raw, meta_arguments.ManageArguments), params, caller)
            if name == meta_tools.RECALL:
                return await self._recall(_arguments(raw, meta_arguments.RecallArguments))
            return await self._call(_arguments(raw, meta_arguments.CallArguments), params, caller)
        except _UnusableArgumentsError as error:
            return failure(f"{name}: {error}")

    async def _search(
        self,
        wanted: meta_arguments.SearchArguments,
        params: Members,
        caller: Caller,
        client: Judge | None,
        notify: Notify,
    ) -> bytes:
        kinds = None if wanted.kinds is None else frozenset(Kind(kind) for kind in wanted.kinds)
        number = DomainOverrides(top_n=wanted.top_n)
        try:
            selected = await self._contexts.select(
                wanted.query,
                self._handle(wanted.context_id, params, caller) or caller.session,
                Overrides(number, number),
                origin="search",
                scope=Scope(kinds, wanted.constraints()),
                on_progress=_progress(params, notify),
                client=client,
                listed=None if caller.session is None else tuple(caller.session.shown),
                owner=caller.principal,
            )
        except UnknownFilterError as error:
            raise _UnusableArgumentsError(str(error)) from None
        self._note(wanted.query, caller)
        self._show(caller.session, selected)
        return search_answer(selected, self._fleet, wanted.include_schema)

    async def _set_context(
        self,
        wanted: meta_arguments.ContextArguments,
        params: Members,
        caller: Caller,
        client: Judge | None,
        notify: Notify,
    ) -> bytes:
        query = wanted.query if wanted.intent is None else f"{wanted.query}\n{wanted.intent}"
        handle = self._handle(wanted.context_id, params, caller) or self._handles.create(caller.principal)
        selected = await self._contexts.select(
            query,
            handle,
            origin="set_context",
            on_progress=_progress(params, notify),
            client=client,
            listed=None if caller.session is None else tuple(caller.session.shown),
            owner=caller.principal,
        )
        self._note(query, caller)
        handle.shown = dict.fromkeys(selected.tool_names)
        self._show(caller.session, selected)
        return search_answer(selected, self._fleet, True, handle.secret)

    async def _manage(self, wanted: meta_arguments.ManageArguments, params: Members, caller: Caller) -> bytes:
        """Add or remove an item of the caller's session by hand, and say what is in it then."""
        if not self._with_manage():
            return failure(f"{meta_tools.MANAGE} is switched off; [context] manage_tool switches it on")
        session = self._handle(wanted.context_id, params, caller) or caller.session
        if session is None:
            session = self._handles.create(caller.principal)
        if wanted.action != "list":
            self._change(wanted, session, caller.session)
        items = await self._contexts.items(session)
        context_id = {"context_id": session.secret} if isinstance(session, Handle) else {}
        lines = [f"- {item.type} {item.name} ({item.include_mode})" for item in items]
        text = "\n".join(["In the context of every request:", *lines] if lines else ["The context is empty."])
        data = {"items": items, **context_id}
        return envelope.encode({"content": [{"type": "text", "text": text}], "structuredContent": data})

    def _change(
        self, wanted: meta_arguments.ManageArguments, session: SessionContext, shown_to: Session | None
    ) -> None:
        if wanted.type is None or wanted.name is None:
            raise _UnusableArgumentsError(f"to {wanted.action} an item, give its type and name")
        change = self._contexts.add if wanted.action == "add" else self._contexts.remove
        watched = nullcontext() if shown_to is None else self._changes.watching(shown_to)
        try:
            with watched:
                change(session, Kind(wanted.type), wanted.name, wanted.server)
        except UnknownItemError as error:
            raise _UnusableArgumentsError(str(error)) from error

    async def _recall(self, wanted: meta_arguments.RecallArguments) -> bytes:
        if self._recorder is None:
            return failure(f"{meta_tools.RECALL} is switched off; [interactions] recall_tool switches it on")
        try:
            return await recall.recalled(self._recorder, wanted)
        except StoreError as error:
            return failure(f"nothing can be recalled now: {error}")

    def _note(self, query: str, caller: Caller) -> None:
        if self._log is not None:
            self._log.searched(query, agent_of(caller.client_info))

    def _handle(self, context_id: str | None, params: Members, caller: Caller) -> Handle | None:
        """The context that a call names; what a model gave is answered in words that it can act on."""
        if context_id is None:
            return handle_of(params, self._handles, caller.principal)
        handle = self._handles.get(context_id, caller.principal)
        if handle is None:
            raise _UnusableArgumentsError(
                f"unknown or expired context_id; {meta_tools.SET_CONTEXT} gives one"
            )
        return handle

    def _in_context(self, context_id: str | None, params: Members, caller: Caller) -> Members:
        """Params that name a context in their ``_meta``, where everybody looks for it; no server sees it."""
        if context_id is None:
            return params
        self._handle(context_id, params, caller)
        meta = {**era.meta_of(params), era.CONTEXT_KEY: envelope.raw(context_id)}
        return {**params, "_meta": envelope.raw(meta)}

    async def _call(self, wanted: meta_arguments.CallArguments, params: Members, caller: Caller) -> bytes:
        if wanted.name in meta_tools.RESERVED - {meta_tools.CALL}:
            return await self.call(wanted.name, {**params, "arguments": _or_empty(wanted.arguments)}, caller)
        try:
            tool = await self._calls.resolve(wanted.name)
            sent = {**params, "arguments": _or_empty(wanted.arguments)}
            sent = self._in_context(wanted.context_id, sent, caller)
            return await self._calls.call_tool(tool, sent, caller, wanted.goal)
        except UnknownItemError as error:
            return unknown(error)
        except (DownstreamError, RequestError) as error:
            return failure(str(error))

    def _show(self, session: Session | None, selected: Selected) -> None:
        """A handshake-era session lists from now on what was selected for it; only the list can grow."""
        if session is None:
            return
        session.query = selected.context.query
        self._changes.show(session, sorted(selected.tool_names))


class _UnusableArgumentsError(Exception):
    """The model sent arguments that cannot be used; the text tells it what to send."""


def _arguments(raw: Raw, kind: type[Arguments]) -> Arguments:
    try:
        if envelope.starts_with(raw, b'"'):
            raw = Raw((envelope.text(raw) or "").encode())
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise _UnusableArgumentsError(f"these arguments cannot be used: {error}") from None


def _or_empty(arguments: Any) -> Raw:
    return Raw(b"{}") if arguments is UNSET or bytes(arguments) == b"null" else arguments


def _progress(params: Members, notify: Notify) -> OnProgress | None:
    """Tells a client that asked for progress how far indexing is."""
    token = era.meta_of(params).get("progressToken")
    if token is None:
        return None

    def report(done: int, total: int) -> None:
        notify(
            "notifications/progress",
            {
                "progressToken": token,
                "progress": envelope.raw(done),
                "total": envelope.raw(total),
                "message": envelope.raw("indexing tools"),
            },
        )

    return report
