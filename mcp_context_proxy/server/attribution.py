"""Which query a successful call was made for, and what that teaches. The only module that decides it.

A call that says its goal was made for that. Otherwise it belongs to a recent request of its session, and
without a session to the latest one that showed the tool. What cannot be attributed teaches nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.handles import Handles
from mcp_context_proxy.context.query import handle_of
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.request import RequestContext
from mcp_context_proxy.context.session import SessionContext
from mcp_context_proxy.items import IncludeMode, Kind, Tool
from mcp_context_proxy.learning.recorder import Recorder
from mcp_context_proxy.learning.signals import Signal, Use
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members, RequestError

WINDOW_SECONDS: Final = 600.0
"""How long after a request a call may still be made for it."""

MOST_BYTES: Final = 1024 * 1024
"""Of a result that is looked into; a larger one is taken for a success."""


class Attribution:
    """Tells the learned tier of successful calls."""

    def __init__(
        self,
        recorder: Recorder,
        records: RequestRecords,
        handles: Handles,
        catalog: Catalog,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._recorder, self._records, self._handles = recorder, records, handles
        self._catalog, self._clock = catalog, clock

    def called(self, tool: Tool, params: Members, caller: Caller, result: bytes, goal: str | None) -> None:
        """A call was answered. Does not block."""
        if not _succeeded(result):
            return
        session = self._session(params, caller)
        context = self._context(tool, session)
        shows = context is not None and _shows(context, tool)
        query = goal or (context.query if context is not None else None)
        if not query or not query.strip():
            return
        self._recorder.learn(
            Use(
                query=query,
                tool=(tool.server, tool.name),
                signal=_signal(context) if context is not None and shows else Signal.UNLISTED,
                session=_who(session, context, caller),
                shown=tuple(self._shown(context)) if context is not None and query == context.query else (),
            )
        )

    def _session(self, params: Members, caller: Caller) -> SessionContext | None:
        try:
            return handle_of(params, self._handles, caller.principal) or caller.session
        except RequestError:
            return caller.session

    def _context(self, tool: Tool, session: SessionContext | None) -> RequestContext | None:
        since = self._clock() - WINDOW_SECONDS
        of_session = None if session is None else session.id
        recent = [one for one in self._records.recent() if one.time >= since and one.session == of_session]
        showing = next((one for one in recent if _shows(one, tool)), None)
        if showing is not None or session is None:
            return showing
        # Used though nothing had selected it: for what the session asked last, unless it is always there.
        return recent[0] if recent and not self._always_listed(tool) else None

    def _always_listed(self, tool: Tool) -> bool:
        return tool.include is not IncludeMode.AGENT

    def _shown(self, context: RequestContext) -> Iterator[tuple[str, str]]:
        tools = self._catalog.snapshot.tools
        for item in context.of(Kind.TOOL):
            if (tool := tools.get(item.name)) is not None:
                yield tool.server, tool.name


def _shows(context: RequestContext, tool: Tool) -> bool:
    return any(item.name == tool.exposed_name and item.score is not None for item in context.of(Kind.TOOL))


def _signal(context: RequestContext) -> Signal:
    return Signal.FOUND if context.origin == "search" else Signal.LISTED


def _who(session: SessionContext | None, context: RequestContext | None, caller: Caller) -> str:
    """Who is counted once: the session; without one, the request."""
    if session is not None:
        return session.id
    return f"request {context.id}" if context is not None else f"principal {caller.principal}"


def _succeeded(result: bytes) -> bool:
    """Whether a tool did what it was asked: not an error, and not a question in return."""
    if len(result) > MOST_BYTES:
        return True
    try:
        members = envelope.members(result)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bytes(members.get("isError", b"false")) != b"true" and era.result_type(members) != "input_required"
