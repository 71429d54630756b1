"""What the proxy's own tools do when they are called.

The answer of the meta tool ``recall``: interactions for a model, as text and as data.

Lets a search ask the model of the client that searches, in the way that the client's era allows.

A handshake-era client is asked by a request. In the modern era the question is the result of the call, which
is parked until the client calls again with the answer, or goes on without it when its time is over.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw

from mcp_context_proxy.context.background_indexing import OnProgress
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import DomainOverrides, Overrides
from mcp_context_proxy.context.search import Scope
from mcp_context_proxy.context.selection import Selected
from mcp_context_proxy.context.session import Handle, Handles, Session, SessionContext, handle_of
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.link import Ask, Notify
from mcp_context_proxy.errors import DownstreamError, StoreError, UnknownFilterError, UnknownItemError
from mcp_context_proxy.interactions.memory import Recall, Recollection
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members, RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.rerank.reranker_model import RerankerModel, SamplingRerankerModel
from mcp_context_proxy.server import meta_definitions
from mcp_context_proxy.server.after_call import InteractionLog, agent_of
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.forwarding import ask_client, client_capabilities
from mcp_context_proxy.server.meta_definitions import RecallArguments
from mcp_context_proxy.server.notifications import ChangeNotifier
from mcp_context_proxy.server.pending_input import PendingInput
from mcp_context_proxy.server.rendering import search_answer
from mcp_context_proxy.server.tools_call import ToolCalls, failure, unknown
from mcp_context_proxy.system.threads import in_thread

SHOWN_CHARACTERS: Final = 500
"""Of one interaction in the text; the data has all of it."""


async def recalled(recorder: InteractionRecorder, wanted: RecallArguments) -> bytes:
    """The result of a call of ``recall``.

    Raises:
        StoreError: the store cannot be read.
    """
    await recorder.wait_for_recent()
    search = partial(
        recorder.memory.semantic_search_interactions,
        wanted.query,
        wanted.agent_name,
        wanted.top_k,
        wanted.time_decay_factor,
        wanted.interaction_type,
    )
    found = await in_thread(search, abandon_on_cancel=True)
    data = {"query": wanted.query, **as_data(found)}
    return envelope.encode({"content": [{"type": "text", "text": _text(found)}], "structuredContent": data})


def as_data(found: Recall) -> dict[str, Any]:
    """As JSON has it, in all places where it is told."""
    return {
        "method": found.method,
        "results": [_item(one) for one in found.results],
        "known": found.known,
        "without_embedding": found.without_embedding,
        "note": found.note,
    }


def _item(one: Recollection) -> dict[str, Any]:
    interaction = one.interaction
    return {
        "id": interaction.id,
        "agent_name": interaction.agent_name,
        "interaction_type": interaction.interaction_type,
        "content": interaction.content,
        "time": interaction.time,
        "score": None if one.score is None else round(one.score, 4),
        "cosine": None if one.cosine is None else round(one.cosine, 4),
    }


def _text(found: Recall) -> str:
    lines = [found.note] if found.note else []
    for one in found.results:
        interaction = one.interaction
        when = datetime.fromtimestamp(interaction.time, UTC).strftime("%Y-%m-%d %H:%M UTC")
        score = "" if one.score is None else f", score {one.score:.2f}"
        said = interaction.content[:SHOWN_CHARACTERS]
        lines.append(f"- {when}, {interaction.interaction_type} of {interaction.agent_name}{score}: {said}")
    return "\n".join(lines) or "Nothing like that is remembered."


Search = Callable[[RerankerModel | None, Notify], Awaitable[bytes]]
"""A search: the model it may ask, and where its notifications go in, its encoded result out."""


class Sampling:
    """Knows whether a caller's model may be asked, and how."""

    def __init__(self, parked: PendingInput, wanted: bool) -> None:
        """Ask by way of `parked` where that is needed, and nobody unless it is `wanted`."""
        self._parked, self._wanted = parked, wanted

    async def answered(self, params: Members, caller: Caller, search: Search) -> bytes:
        """What a search answers, or what the client has to answer first.

        Raises:
            RequestError: a modern client goes on with a search that is not known.
            Exception: what `search` raises.
        """
        if not self._wanted or "sampling" not in client_capabilities(caller):
            return await search(None, caller.notify)
        if caller.session is not None:
            return await search(_judge(caller, caller.ask, caller.session.id), caller.notify)
        if caller.era is Era.HANDSHAKE:
            return await search(None, caller.notify)

        async def work(ask: Ask, notify: Notify) -> bytes:
            return await search(_judge(caller, ask, f"of {caller.principal}"), notify)

        return await self._parked.call(caller.principal, "search", params, caller.notify, work)


def _judge(caller: Caller, ask: Ask, client: str) -> SamplingRerankerModel:
    return SamplingRerankerModel(partial(ask_client, caller, ask), client)


logger = logging.getLogger(__name__)

Arguments = TypeVar("Arguments")


class MetaTools:
    """Answers ``tools/call`` for the meta tools."""

    def __init__(
        self,
        fleet: Fleet,
        contexts: ContextEngine,
        calls: ToolCalls,
        handles: Handles,
        changes: ChangeNotifier,
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
            if name == meta_definitions.SEARCH:
                search = partial(
                    self._search, _arguments(raw, meta_definitions.SearchArguments), params, caller
                )
                return await self._sampling.answered(params, caller, search)
            if name == meta_definitions.SET_CONTEXT:
                selection = _arguments(raw, meta_definitions.ContextArguments)
                search = partial(self._set_context, selection, params, caller)
                return await self._sampling.answered(params, caller, search)
            if name == meta_definitions.MANAGE:
                return await self._manage(_arguments(raw, meta_definitions.ManageArguments), params, caller)
            if name == meta_definitions.RECALL:
                return await self._recall(_arguments(raw, meta_definitions.RecallArguments))
            return await self._call(_arguments(raw, meta_definitions.CallArguments), params, caller)
        except _UnusableArgumentsError as error:
            return failure(f"{name}: {error}")

    async def _search(
        self,
        wanted: meta_definitions.SearchArguments,
        params: Members,
        caller: Caller,
        client: RerankerModel | None,
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
        wanted: meta_definitions.ContextArguments,
        params: Members,
        caller: Caller,
        client: RerankerModel | None,
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

    async def _manage(
        self, wanted: meta_definitions.ManageArguments, params: Members, caller: Caller
    ) -> bytes:
        """Add or remove an item of the caller's session by hand, and say what is in it then."""
        if not self._with_manage():
            return failure(f"{meta_definitions.MANAGE} is switched off; [context] manage_tool switches it on")
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
        self, wanted: meta_definitions.ManageArguments, session: SessionContext, shown_to: Session | None
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

    async def _recall(self, wanted: meta_definitions.RecallArguments) -> bytes:
        if self._recorder is None:
            return failure(
                f"{meta_definitions.RECALL} is switched off; [interactions] recall_tool switches it on"
            )
        try:
            return await recalled(self._recorder, wanted)
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
                f"unknown or expired context_id; {meta_definitions.SET_CONTEXT} gives one"
            )
        return handle

    def _in_context(self, context_id: str | None, params: Members, caller: Caller) -> Members:
        """Params that name a context in their ``_meta``, where everybody looks for it; no server sees it."""
        if context_id is None:
            return params
        self._handle(context_id, params, caller)
        meta = {**eras.meta_of(params), eras.CONTEXT_KEY: envelope.raw(context_id)}
        return {**params, "_meta": envelope.raw(meta)}

    async def _call(self, wanted: meta_definitions.CallArguments, params: Members, caller: Caller) -> bytes:
        if wanted.name in meta_definitions.RESERVED - {meta_definitions.CALL}:
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
    token = eras.meta_of(params).get("progressToken")
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
