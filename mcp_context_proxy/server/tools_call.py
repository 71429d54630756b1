"""Calls of downstream tools: finds the tool, forwards the call, and hands the ended call on.

Every tool in the catalog can be called, listed or not; one that is turned off is not in it. Results pass byte
for byte, unless they are too large for a model (`results`), or the configuration asks for the results of a
server to be marked as untrusted data (`mark_untrusted`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.catalog import names
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.definitions import SEPARATOR
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search_filters import OnWait
from mcp_context_proxy.context.session import Handles, SessionContext, handle_of
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import DownstreamError, RemoteError, TurnedOffError, UnknownItemError
from mcp_context_proxy.items import Kind, Tool
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members, RequestError
from mcp_context_proxy.protocol.eras import Outcome, outcome_of
from mcp_context_proxy.protocol.strangers import bounded, mark_untrusted
from mcp_context_proxy.results import SMALL_BYTES, LargeResults
from mcp_context_proxy.results.shortening import Call
from mcp_context_proxy.server import meta_definitions
from mcp_context_proxy.server.after_call import EndedCalls
from mcp_context_proxy.server.consent import Consent
from mcp_context_proxy.server.forwarding import Forwarder, request_error, tell_waiting
from mcp_context_proxy.server.profiles import Caller
from mcp_context_proxy.system.threads import in_task, in_thread


class ToolCalls(Struct, frozen=True, kw_only=True, eq=False):
    """Answers ``tools/call`` for downstream tools."""

    catalog: Catalog
    fleet: Fleet
    forwarder: Forwarder
    contexts: ContextEngine
    handles: Handles
    wait_for_server: Callable[[str | None, OnWait | None], Awaitable[None]]
    answered: Counter[str]
    """Number of answered calls of each server."""
    ended: EndedCalls
    consent: Consent
    results: LargeResults
    when_kept: Callable[[Caller], None]
    """Called when a result was shortened, and its caller may read the whole."""

    async def call(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``tools/call`` for a downstream tool, fitted to the caller's era.

        Failures on the way are results that the model can read and act on; so is an unknown name, as the
        SDKs' own servers answer it.

        Raises:
            RequestError: the server answered with an error of its own.
        """
        try:
            name = envelope.text(params["name"]) or ""
            tool = await self.resolve(name, params, caller)
            # A host decides by what it has listed, and under this name only.
            listed = caller.name_of(tool) if tool.wider_names else tool.exposed_name
            through = None if name == listed else name
            return await self.call_tool(tool, params, caller, through=through)
        except RemoteError as error:
            raise request_error(error, caller.era) from error
        except UnknownItemError as error:
            return eras.fit_result_to_client("tools/call", unknown(error), caller.era)
        except DownstreamError as error:
            return eras.fit_result_to_client("tools/call", failure(str(error)), caller.era)

    async def resolve(self, name: str, params: Members, caller: Caller) -> Tool:
        """Return the tool that a request names; `catalog.names` tells which names a tool has.

        Raises:
            UnknownItemError: no tool has that name, it is turned off, or it cannot be told which is meant.
            ServerUnavailableError: the name belongs to a server of which nothing is known yet.
        """
        catalog = self.catalog
        snapshot = (catalog if caller.rights.limited else catalog.whole).snapshot
        tool = snapshot.tools.get(name) or snapshot.wider.get(name)
        if tool is None:
            await in_task()
            # A host may remember a tool from last time and call it before its server is up.
            server = names.owner(name, self.catalog.snapshot.servers)
            if server is not None or not names.is_full(name):
                await self.wait_for_server(server, partial(tell_waiting, params, caller.notify))
            snapshot = self.catalog.snapshot
            self.fleet.raise_if_unavailable(names.owner(name, snapshot.servers))
            compared = names.COMPARED_IN_THREAD
            find = partial(names.tool_named, snapshot, name, compared=compared, name_of=caller.name_of)
            try:
                tool = await in_thread(find)
            except TurnedOffError as error:
                self.ended.not_found(error.name, caller, error.reason)
                raise
        if SEPARATOR not in name and (session := self._session_of(params, caller)) is not None:
            session.means(Kind.TOOL, name, tool.server)
        return tool

    async def call_tool(
        self,
        tool: Tool,
        params: Members,
        caller: Caller,
        *,
        goal: str | None = None,
        through: str | None = None,
    ) -> bytes:
        """Call a tool with the params of a ``tools/call`` and return its result, fitted to the caller's era.

        Every call of a tool passes here, so this is where a person is asked for consent, if it needs any.

        Args:
            tool: The tool.
            params: Params of the call; its name and arguments are fitted.
            caller: The client.
            goal: Purpose of the call in the model's words; the server never sees it.
            through: Name that was called, if it is not the listed one of the tool.

        Raises:
            DownstreamError: see `Link.request`.
            RequestError: the call continues one that nobody knows.
        """
        if self.fleet.clients[tool.server].connected is None:
            tool = await self._as_listed(tool, params, caller)
        sent = {**params, "name": envelope.raw(tool.name)}
        arguments = params.get("arguments")
        if arguments is not None and envelope.starts_with(arguments, b'"'):
            large = len(arguments) > envelope.TAKEN_APART_BYTES
            sent["arguments"] = (
                await in_thread(_object_in_text, arguments) if large else _object_in_text(arguments)
            )
        elif arguments is not None and envelope.starts_with(arguments, b"n"):
            del sent["arguments"]
        asks, rule = bool(tool.asked_by) or (tool.interactive and through is not None), None
        if asks:
            await in_task()
            rule = tool.asked_by or "interactive"
            try:
                # Nobody is asked about a call that is refused in any case.
                await self.fleet.clients[tool.server].refuse_secrets(sent, f"tool {tool.name!r}")
            except DownstreamError as error:
                self.ended.failed(tool, params, caller, error, 0.0, rule)
                raise
            agreed = await self.consent.obtain(tool, sent, caller, self._session_of(params, caller), through)
            if isinstance(agreed, bytes):
                if outcome_of(agreed) is not Outcome.ASKS:
                    self.ended.refused(tool, params, caller, rule)
                return eras.fit_result_to_client("tools/call", agreed, caller.era)
            sent = agreed
        began = time.perf_counter()
        try:
            client = self.fleet.clients[tool.server]
            result = await self.forwarder.forward(client, "tools/call", sent, caller, f"tool {tool.name!r}")
        except DownstreamError as error:
            self.ended.failed(tool, params, caller, error, time.perf_counter() - began, rule)
            raise
        seconds = time.perf_counter() - began
        if asks:
            self.consent.remember(tool, sent, caller, result)
        self.answered[tool.server] += 1
        session = self._session_of(params, caller)
        if session is not None:
            session.called(tool, result, self.contexts.result_reading)
        self.ended.answered(
            tool, params, caller, session, goal=goal, result=result, seconds=seconds, rule=rule
        )
        # Nearly every result is small and in one form, and ends here.
        if len(result) > SMALL_BYTES or b'"structuredContent"' in result:
            return await self._fitted(tool, params, caller, result, direct=through is None)
        return mark_untrusted(tool.server, result) if client.config.spotlight else result

    async def _as_listed(self, tool: Tool, params: Members, caller: Caller) -> Tool:
        """Wait for the server of a tool that is known from before, and return the tool as it is now.

        Raises:
            UnknownItemError: the tool is gone, or waits for a person's approval, because it has changed.
        """
        client = self.fleet.clients[tool.server]
        await client.wait_connected(partial(tell_waiting, params, caller.notify))
        if client.connected is None:
            # It cannot be called now, and the call says why.
            return tool
        snapshot = self.catalog.snapshot
        found = snapshot.tools.get(tool.exposed_name)
        if found is None or (found.server, found.name) != (tool.server, tool.name):
            found = names.tool_named(snapshot, tool.name, tool.server, name_of=caller.name_of)
        return found

    async def _fitted(
        self, tool: Tool, params: Members, caller: Caller, result: bytes, direct: bool
    ) -> bytes:
        """Return a result as its caller gets it: shortened if it is too large, marked where that is asked."""
        config = self.fleet.clients[tool.server].config
        call = Call(
            tool=tool,
            server=config,
            params=params,
            client_info=caller.client_info,
            owner=caller.owner,
            direct=direct,
        )
        mark = partial(mark_untrusted, tool.server) if config.spotlight else None
        owned = self.results.kept.owns(caller.owner)
        fitted = await self.results.fitted(call, result, mark)
        if not owned and self.results.kept.owns(caller.owner):
            self.when_kept(caller)
        return fitted

    def _session_of(self, params: Members, caller: Caller) -> SessionContext | None:
        try:
            return handle_of(params, self.handles, caller.principal) or caller.session
        except RequestError:  # an expired handle is no reason to fail the call
            return caller.session


def failure(text: str) -> bytes:
    """Return a tool result that names the failure, for the model to act on."""
    return envelope.encode({"content": [{"type": "text", "text": text}], "isError": True})


def unknown(error: UnknownItemError) -> bytes:
    """Return a tool result that says that there is no such tool, and how to find those that exist."""
    return failure(f"{bounded(str(error))}\n{meta_definitions.SEARCH} finds tools by what they do.")


def _object_in_text(arguments: Raw) -> Raw:
    """Return arguments that a model sent as a string of JSON as the object in it."""
    text = (envelope.text(arguments) or "").strip()
    try:
        envelope.members(text.encode())
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return Raw(text.encode())
