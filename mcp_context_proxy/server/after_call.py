"""Follow-up of calls that have ended: they are counted, remembered, and attributed if they succeeded.

Attribution decides which request a successful call was made for, and so the pairs it teaches; no other module
does. A call that states a goal was made for that goal. Any other belongs to a recent request of its session
or, without a session, to the latest request that showed the tool. A call that cannot be attributed teaches
nothing. Nothing here blocks, and no caller waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.records import RequestContext, RequestRecords
from mcp_context_proxy.context.session import Session, SessionContext
from mcp_context_proxy.errors import (
    AuthorizationError,
    DownstreamError,
    SecretRefusedError,
    ServerUnavailableError,
)
from mcp_context_proxy.interactions import memory
from mcp_context_proxy.interactions.memory import CALL, SEARCH, InteractionRecorder
from mcp_context_proxy.items import IncludeMode, Kind, Tool, ToolKey
from mcp_context_proxy.learning.pairs import Signal, Use, WorkingSet
from mcp_context_proxy.protocol import eras
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import Outcome, outcome_of
from mcp_context_proxy.protocol.framing import after_step
from mcp_context_proxy.server.profiles import Caller
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.store import Interaction
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.trust.audit import AuditLog

WINDOW_SECONDS: Final = 600.0
"""Time after a request in which a call may still be attributed to it."""

SETTLED_SECONDS: Final = 60.0
"""Time for which a call says nothing new where an equal one was attributed and no request came since."""
SETTLED_KEPT: Final = 1_000

NO_ARGUMENTS: Final = Raw(b"{}")

NOT_SENT = (ServerUnavailableError, AuthorizationError)
"""Failures before the server had the call: they say nothing about how long it takes."""


class _Ended(msgspec.Struct, frozen=True, eq=False):
    """A call that its server has answered; see `EndedCalls.answered`."""

    tool: Tool
    params: Members
    caller: Caller
    session: SessionContext | None
    goal: str | None
    outcome: Outcome
    size: int
    seconds: float
    rule: str | None


class Unattributed(Struct, frozen=True, kw_only=True):
    """A call that may belong to a request that another replica has answered."""

    session: str | None
    """Public id of its session."""
    principal: str | None
    began: float
    """Time of the call, in seconds since 1970."""
    attribute: Callable[[Iterable[RequestContext]], None]
    """Attributes it to one of some requests, the most likely first, if it belongs to any."""


class EndedCalls(Struct, kw_only=True, eq=False):
    """Passes ended calls on to statistics, to the memory of interactions, and to learning.

    A part that is None is switched off.
    """

    records: RequestRecords
    catalog: Catalog
    usage: UsageRecorder | None = None
    log: InteractionLog | None = None
    learn: Callable[[Use], None] | None = None
    used: Callable[[RequestContext, Tool], None] | None = None
    """Takes a request, and a tool that it had selected and that was called for it."""
    audit: AuditLog | None = None
    in_session: Callable[[ToolKey, str | None], None] | None = None
    """Takes a tool that was used, and the id of the session, if any."""
    working_set: WorkingSet = field(default_factory=WorkingSet)
    """Always listed, so a use of one of its tools says nothing about a request."""
    elsewhere: Callable[[Unattributed], None] | None = None
    """Takes calls that may belong to a request of another replica; None where there is none."""
    _waiting: list[_Ended] = field(default_factory=list)
    """Answered calls until the end of this step of the event loop: callers do not wait for what follows."""
    _settled: set[tuple[str, str | None, str | None, str, str | None]] = field(default_factory=set)
    """Calls that were attributed since `_settled_since`: tool, session, principal, owner and goal."""
    _settled_since: float = 0.0

    def answered(
        self,
        tool: Tool,
        params: Members,
        caller: Caller,
        session: SessionContext | None,
        *,
        goal: str | None,
        result: bytes,
        seconds: float,
        rule: str | None = None,
    ) -> None:
        """Take a call that its server has answered; one that asks for input has not ended.

        ``rule`` is what allowed it, if it was not the default.
        """
        ended = _Ended(tool, params, caller, session, goal, outcome_of(result), len(result), seconds, rule)
        if not self._waiting:
            after_step(self._follow_up)
        self._waiting.append(ended)

    def _follow_up(self) -> None:
        """Take the calls of this step of the event loop: their answers are written."""
        waiting = self._waiting[:]
        self._waiting.clear()
        for ended in waiting:
            self._take(ended)

    def _take(self, ended: _Ended) -> None:
        tool, params, caller, outcome = ended.tool, ended.params, ended.caller, ended.outcome
        ms = ended.seconds * 1000
        self._audited(
            tool,
            params,
            caller,
            outcome.name.lower(),
            "allowed",
            ended.rule,
            ms,
            session=ended.session,
            result_bytes=ended.size,
        )
        if outcome is Outcome.ASKS:
            return
        if self.usage is not None:
            failed = outcome is Outcome.FAILED
            self.usage.called(tool.server, tool.name, ms, failed, ended.size, caller.rights.owner)
        if self.log is not None:
            self.log.called(tool, params, caller, ended.goal)
        if outcome is Outcome.SUCCEEDED:
            self._attribute(tool, ended.session, caller, ended.goal, ended.seconds)

    def failed(
        self,
        tool: Tool,
        params: Members,
        caller: Caller,
        error: DownstreamError,
        seconds: float,
        rule: str | None = None,
    ) -> None:
        """Take a call that has no result, or whose server answered with an error."""
        ms = None if isinstance(error, NOT_SENT) else seconds * 1000
        if isinstance(error, SecretRefusedError):
            # A call that was refused says nothing about its tool.
            self._audited(tool, params, caller, "not sent", "refused", "guards.secrets")
            return
        if self.usage is not None:
            self.usage.called(tool.server, tool.name, ms, True, 0, caller.rights.owner)
        self._audited(tool, params, caller, "failed" if ms is not None else "not sent", "allowed", rule, ms)

    def refused(self, tool: Tool, params: Members, caller: Caller, rule: str) -> None:
        """Take a call that was not sent because a rule, or a person, did not allow it."""
        self._audited(tool, params, caller, "not sent", "refused", rule)

    def not_found(self, name: str, caller: Caller, rule: str) -> None:
        """Take a call of a tool that the configuration turns off; `rule` is the setting."""
        if self.audit is not None:
            self.audit.note(
                "call",
                principal=caller.principal,
                session=None if caller.session is None else caller.session.id,
                tool=name,
                decision="refused",
                rule=rule,
                outcome="not sent",
            )

    def _audited(
        self,
        tool: Tool,
        params: Members,
        caller: Caller,
        outcome: str,
        decision: str,
        rule: str | None,
        ms: float | None = None,
        *,
        session: SessionContext | None = None,
        result_bytes: int | None = None,
    ) -> None:
        session = session or caller.session
        if self.audit is not None:
            self.audit.called(
                tool,
                params.get("arguments"),
                outcome,
                decision=decision,
                rule=rule,
                principal=caller.principal,
                subject=caller.rights.label,
                client_info=caller.client_info,
                session=None if session is None else session.id,
                ms=ms,
                result_bytes=result_bytes,
            )

    def _attribute(
        self, tool: Tool, session: SessionContext | None, caller: Caller, goal: str | None, seconds: float
    ) -> None:
        if self.learn is None and self.used is None:
            return
        # The uses of an administrator teach everybody's searches; those of others only their own, unless
        # their profile says otherwise.
        principal, owner = caller.principal, "" if caller.rights.teaches else caller.rights.owner
        if self.in_session is not None and not owner:
            self.in_session((tool.server, tool.name), None if session is None else session.id)
        call = (tool.exposed_name, None if session is None else session.id, principal, owner, goal)
        if self._is_settled(call):
            return
        context = self._request_of(tool, session, principal)
        # A session is served by one replica. Of the requests of others, the latest may be another replica's.
        is_sure = context is not None and isinstance(session, Session)
        if self.elsewhere is not None and not is_sure and not goal:

            def attribute(found: Iterable[RequestContext]) -> None:
                context = self._best_of(found, tool, session)
                if context is not None:
                    self._teach(tool, context, session, principal, owner, goal)

            self.elsewhere(
                Unattributed(
                    session=None if session is None else session.id,
                    principal=principal,
                    began=time_of_day() - seconds,
                    attribute=attribute,
                )
            )
            return
        self._teach(tool, context, session, principal, owner, goal)

    def _is_settled(self, call: tuple[str, str | None, str | None, str, str | None]) -> bool:
        """Return whether an equal call was attributed already, and no request came since."""
        now = time.monotonic()
        if self.records.newest >= self._settled_since or now - self._settled_since > SETTLED_SECONDS:
            self._settled.clear()
            self._settled_since = now
        if call in self._settled:
            # A request of another replica may be newer than those that are known here.
            return self.elsewhere is None
        if len(self._settled) >= SETTLED_KEPT:
            self._settled.clear()
        self._settled.add(call)
        return False

    def _teach(
        self,
        tool: Tool,
        context: RequestContext | None,
        session: SessionContext | None,
        principal: str | None,
        owner: str,
        goal: str | None,
    ) -> None:
        """Pass a use on to statistics and to learning; `context` is the request that it belongs to."""
        shows = context is not None and _shows(context, tool)
        if self.used is not None and context is not None and shows:
            self.used(context, tool)
        query = goal or (context.query if context is not None else None)
        if self.learn is None or not query or not query.strip():
            return
        signal, shown = (Signal.STATED if goal else Signal.UNLISTED), list[ToolKey]()
        if context is not None and shows:
            signal = Signal.FOUND if context.origin == "search" else Signal.LISTED
        if context is not None and query == context.query:
            tools = self.catalog.whole.snapshot.tools
            found = (tools.get(item.name) for item in context.of(Kind.TOOL))
            shown = [each.key for each in found if each is not None]
        # Each session counts once, however often it calls; without a session each request does.
        if session is not None:
            counted_as = session.id
        else:
            counted_as = f"request {context.id}" if context is not None else f"principal {principal}"
        self.learn(Use(query, tool.key, signal, counted_as, tuple(shown), owner))

    def _request_of(
        self, tool: Tool, session: SessionContext | None, principal: str | None
    ) -> RequestContext | None:
        """Return the request that a call belongs to, if any: one of the same session and the same owner."""
        if time.monotonic() - self.records.newest > WINDOW_SECONDS:
            return None
        belongs = (None if session is None else session.id), principal
        recent = [one for one in self.records.recent(WINDOW_SECONDS) if (one.session, one.owner) == belongs]
        return self._best_of(recent, tool, session)

    def _best_of(
        self, recent: Iterable[RequestContext], tool: Tool, session: SessionContext | None
    ) -> RequestContext | None:
        """Return that of some requests, the most likely first, for which a tool was used."""
        latest: RequestContext | None = None
        for one in recent:
            if _shows(one, tool):
                return one
            latest = latest or one
        if session is None:
            return None
        # No request had selected it, so it was used for the session's latest one, unless it is always listed.
        always_listed = tool.include is not IncludeMode.AGENT or self.working_set.why(tool) is not None
        return None if always_listed else latest


def _shows(context: RequestContext, tool: Tool) -> bool:
    return any(item.name == tool.exposed_name and item.score is not None for item in context.of(Kind.TOOL))


class InteractionLog(Struct, frozen=True):
    """Records searches and calls of hosts as interactions, under the names of the hosts."""

    recorder: InteractionRecorder

    def searched(self, query: str, agent_name: str | None, owner: str) -> None:
        """Record a search."""
        interaction = Interaction(agent_name or "", SEARCH, query, time_of_day(), owner=owner)
        self.recorder.note(lambda: interaction)

    def called(self, tool: Tool, params: Members, caller: Caller, goal: str | None) -> None:
        """Record a call; its arguments are decoded later, off the event loop."""
        now, client, arguments = time_of_day(), caller.client_info, params.get("arguments", NO_ARGUMENTS)
        owner = caller.rights.owner

        def interaction() -> Interaction:
            content = memory.call(tool.exposed_name, bytes(arguments), goal)
            return Interaction(eras.name_of(client) or "", CALL, content, now, owner=owner)

        self.recorder.note(interaction)
