"""Which request a successful call was made for, and what that teaches. The only module that decides it.

A call that says its goal was made for that. Otherwise it belongs to a recent request of its session, and
without a session to the latest one that showed the tool. What cannot be attributed teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.context.handles import Handles
from mcp_context_proxy.context.query import handle_of
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.request import RequestContext
from mcp_context_proxy.context.session import SessionContext
from mcp_context_proxy.items import IncludeMode, Kind, Tool
from mcp_context_proxy.learning.signals import Signal, Use
from mcp_context_proxy.learning.working_set import WorkingSet
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.wire.envelope import Members, RequestError

WINDOW_SECONDS: Final = 600.0
"""How long after a request a call may still be made for it."""

Learn = Callable[[Use], None]
"""Takes what a call teaches."""

Used = Callable[[RequestContext, Tool], None]
"""Takes a request, and a tool it had selected that was called for it."""

InSession = Callable[[tuple[str, str], str | None], None]
"""Takes server and own name of a tool that did what it was asked, and the id of the session, if any."""


class Attribution:
    """Tells whoever learns and whoever counts what successful calls were made for."""

    def __init__(
        self,
        records: RequestRecords,
        handles: Handles,
        catalog: Catalog,
        learn: Learn | None = None,
        used: Used | None = None,
        in_session: InSession | None = None,
        working_set: WorkingSet | None = None,
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        self._records, self._handles = records, handles
        self._catalog, self._learn, self._used, self._clock = catalog, learn, used, clock
        self._in_session, self._working_set = in_session, working_set or WorkingSet()

    def succeeded(self, tool: Tool, params: Members, caller: Caller, goal: str | None) -> None:
        """A call was answered, and is no failure. Does not block."""
        if self._learn is None and self._used is None:
            return
        session = self._session(params, caller)
        if self._in_session is not None:
            self._in_session((tool.server, tool.name), None if session is None else session.id)
        context = self._context(tool, session)
        shows = context is not None and _shows(context, tool)
        if self._used is not None and context is not None and shows:
            self._used(context, tool)
        query = goal or (context.query if context is not None else None)
        if self._learn is None or not query or not query.strip():
            return
        self._learn(
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
        return tool.include is not IncludeMode.AGENT or self._working_set.why(tool) is not None

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
