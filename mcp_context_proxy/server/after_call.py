"""What is done with a call that has ended: it is counted, remembered, and attributed if it succeeded.

What came of a call, told by its result; nothing else of the result is looked at.

Which request a successful call was made for, and what that teaches. The only module that decides it.

A call that says its goal was made for that. Otherwise it belongs to a recent request of its session, and
without a session to the latest one that showed the tool. What cannot be attributed teaches nothing.

Which searches and calls of hosts are remembered as interactions, and as whose. Nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final

import msgspec
from msgspec import Raw

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.records import RequestContext, RequestRecords
from mcp_context_proxy.context.session import Handles, SessionContext, handle_of
from mcp_context_proxy.errors import AuthorizationError, DownstreamError, ServerUnavailableError
from mcp_context_proxy.interactions import memory
from mcp_context_proxy.interactions.memory import CALL, SEARCH
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.items import IncludeMode, Kind, Tool
from mcp_context_proxy.learning.pairs import Signal, Use
from mcp_context_proxy.learning.working_set import WorkingSet
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members, RequestError
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.store import Interaction
from mcp_context_proxy.system.clock import time_of_day

MOST_BYTES: Final = 1024 * 1024
"""Of a result that is looked into; a larger one is taken for a success."""


class Outcome(Enum):
    """How a call ended."""

    SUCCEEDED = auto()
    FAILED = auto()
    """The tool says so, or what it says cannot be read."""
    ASKS = auto()
    """It asks something in return, and ends when that is answered."""


def outcome_of(result: bytes) -> Outcome:
    """How a call with this result ended."""
    if len(result) > MOST_BYTES:
        return Outcome.SUCCEEDED
    try:
        members = envelope.members(result)
    except (msgspec.DecodeError, RecursionError):
        return Outcome.FAILED
    if eras.result_type(members) == "input_required":
        return Outcome.ASKS
    return Outcome.FAILED if bytes(members.get("isError", b"false")) == b"true" else Outcome.SUCCEEDED


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


NO_ARGUMENTS: Final = Raw(b"{}")


class _ClientInfo(msgspec.Struct):
    """What is read of how a client introduces itself."""

    name: str = ""


class InteractionLog:
    """Notes what hosts do."""

    def __init__(self, recorder: InteractionRecorder, clock: Callable[[], float] = time_of_day) -> None:
        self._recorder, self._clock = recorder, clock

    def searched(self, query: str, agent_name: str | None) -> None:
        """Something was searched for. Does not block."""
        interaction = Interaction(agent_name or "", SEARCH, query, self._clock())
        self._recorder.note(lambda: interaction)

    def called(self, tool: Tool, params: Members, caller: Caller, goal: str | None) -> None:
        """A call was answered. Does not block, and looks at nothing yet."""
        now, client, arguments = self._clock(), caller.client_info, params.get("arguments", NO_ARGUMENTS)

        def told() -> Interaction:
            said = memory.call(tool.exposed_name, bytes(arguments), goal)
            return Interaction(agent_of(client) or "", CALL, said, now)

        self._recorder.note(told)


def agent_of(client_info: Raw | None) -> str | None:
    """The name of a client, as it introduces itself; None when it does not."""
    if client_info is None:
        return None
    try:
        return msgspec.json.decode(client_info, type=_ClientInfo).name or None
    except msgspec.MsgspecError:
        return None


NOT_SENT = (ServerUnavailableError, AuthorizationError)
"""Failures before the server had the call: they say nothing of how long it takes."""


class EndedCalls:
    """Takes calls that have ended. Does not block."""

    def __init__(
        self, attribution: Attribution, usage: UsageRecorder | None, log: InteractionLog | None = None
    ) -> None:
        """Prepare to take calls.

        Args:
            attribution: Knows what a call was made for.
            usage: Counts; None where nothing is counted.
            log: Remembers; None where nothing is remembered.
        """
        self._attribution, self._usage, self._log = attribution, usage, log

    def answered(
        self, tool: Tool, params: Members, caller: Caller, goal: str | None, result: bytes, seconds: float
    ) -> None:
        """A server has answered; a question in return is not the end."""
        outcome = outcome_of(result)
        if outcome is Outcome.ASKS:
            return
        if self._usage is not None:
            failed = outcome is Outcome.FAILED
            self._usage.called(tool.server, tool.name, seconds * 1000, failed, len(result))
        if self._log is not None:
            self._log.called(tool, params, caller, goal)
        if outcome is Outcome.SUCCEEDED:
            self._attribution.succeeded(tool, params, caller, goal)

    def failed(self, tool: Tool, error: DownstreamError, seconds: float) -> None:
        """There is no answer, or one that speaks of an error."""
        if self._usage is not None:
            ms = None if isinstance(error, NOT_SENT) else seconds * 1000
            self._usage.called(tool.server, tool.name, ms, True, 0)
