"""Calls of downstream tools: forwarded, and once ended, counted, remembered and attributed to requests.

Attribution decides which request a successful call was made for, and so the pairs it teaches; no other module
does. A call that states a goal was made for that goal. Any other belongs to a recent request of its session
or, without a session, to the latest request that showed the tool. A call that cannot be attributed teaches
nothing. Nothing here blocks, and no caller waits for it.

Every tool in the catalog can be called, listed or not; one that is turned off is not in it. Results pass byte
for byte, unless they are too large for a model (`results`), or the configuration asks for the results of a
server to be marked as untrusted data (`mark_untrusted`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache, partial
from typing import Final

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from mcp_context_proxy.catalog import names
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.names import SEPARATOR
from mcp_context_proxy.context import RequestContext, RequestRecords
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search import OnWait
from mcp_context_proxy.context.session import Handles, Session, SessionContext, handle_of
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import (
    AuthorizationError,
    ChangedToolError,
    DownstreamError,
    RemoteError,
    SecretRefusedError,
    ServerUnavailableError,
    TurnedOffError,
    UnknownItemError,
)
from mcp_context_proxy.interactions import InteractionRecorder, call_content
from mcp_context_proxy.items import IncludeMode, Kind, Tool, ToolKey
from mcp_context_proxy.learning import Signal, Use, WorkingSet
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members, RequestError
from mcp_context_proxy.protocol.eras import HANDSHAKE
from mcp_context_proxy.protocol.framing import after_step
from mcp_context_proxy.results import (
    ASKS,
    FAILED,
    SUCCEEDED,
    TASK,
    Outcome,
    ResourceLinks,
    ending_of,
    failure,
    links_in,
    mark_untrusted,
    outcome_of,
)
from mcp_context_proxy.results.shortening import SMALL_BYTES, Call, LargeResults
from mcp_context_proxy.server import Caller, meta_definitions
from mcp_context_proxy.server.consent import Consent
from mcp_context_proxy.server.forwarding import Forwarder, object_in_text, request_error, tell_waiting
from mcp_context_proxy.server.search_answers import unknown
from mcp_context_proxy.server.tasks import Tasks
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.store.memory import CALL, SEARCH, Interaction
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_task, in_thread, in_thread_if, keep_latest
from mcp_context_proxy.trust import person_in
from mcp_context_proxy.trust.audit import AuditedCall, AuditLog

WINDOW_SECONDS: Final = 600.0
"""Time after a request in which a call may still be attributed to it."""

SETTLED_SECONDS: Final = 60.0
"""Time for which a call says nothing new where an equal one was attributed and no request came since."""
SETTLED_KEPT: Final = 1_000

NAMES_KNOWN: Final = 1_000
"""Names of tools that are not encoded anew for each call."""

NO_ARGUMENTS: Final = Raw(b"{}")

NOT_SENT = (ServerUnavailableError, AuthorizationError)
"""Failures before the server had the call: they say nothing about how long it takes."""


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
    _settled: dict[tuple[str, str | None, str | None, str, str | None], None] = field(default_factory=dict)
    """Calls that were attributed since `_settled_since`: tool, session, principal, owner and goal."""
    _settled_since: float = 0.0

    def answered(
        self, call: _Answered, session: SessionContext | None, outcome: Outcome, size: int, seconds: float
    ) -> None:
        """Take a call that its server has answered; one that asks for input, or goes on, has not ended.

        ``size`` is that of its result.
        """
        tool, caller, ms = call.tool, call.caller, seconds * 1000
        how, rule = outcome.name.lower(), call.rule
        self._audited(tool, call.params, caller, how, "allowed", rule, ms, session, size)
        if outcome in (ASKS, TASK):
            return
        if self.usage is not None:
            failed = outcome is FAILED
            self.usage.called(tool.server, tool.name, ms, failed, size, caller.rights.owner)
        if self.log is not None:
            self.log.called(tool, call.params, caller, call.goal)
        if outcome is SUCCEEDED:
            self._attribute(tool, session, caller, call.goal, seconds)

    def failed(
        self, tool: Tool, params: Members, caller: Caller, why: BaseException, took: float, rule: str | None
    ) -> None:
        """Take a call without a result, after some seconds; one that its client gave up may have run."""
        ms = None if isinstance(why, NOT_SENT) else took * 1000
        if isinstance(why, SecretRefusedError):
            # A call that was refused says nothing about its tool.
            self._audited(tool, params, caller, "not sent", "refused", "guards.secrets")
            return
        outcome = "failed" if ms is not None else "not sent"
        if isinstance(why, asyncio.CancelledError):
            outcome = "cancelled"
        elif isinstance(why, DownstreamError) and self.usage is not None:
            self.usage.called(tool.server, tool.name, ms, True, 0, caller.rights.owner)
        self._audited(tool, params, caller, outcome, "allowed", rule, ms)

    def refused(self, tool: Tool, params: Members, caller: Caller, rule: str) -> None:
        """Take a call that was not sent because a rule, or a person, did not allow it."""
        self._audited(tool, params, caller, "not sent", "refused", rule)

    def turned_off(self, error: TurnedOffError, caller: Caller) -> None:
        """Take a call of a tool that the configuration turns off."""
        if self.audit is not None:
            self.audit.note(
                "call",
                principal=caller.principal,
                session=None if caller.session is None else caller.session.id,
                server=error.server,
                tool=error.tool,
                decision="refused",
                rule=error.reason.removeprefix("by "),
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
        session: SessionContext | None = None,
        result_bytes: int | None = None,
    ) -> None:
        if self.audit is None:
            return
        session = session or caller.session
        call = AuditedCall(
            tool=tool,
            arguments=params.get("arguments"),
            outcome=outcome,
            decision=decision,
            rule=rule,
            principal=caller.principal,
            subject=caller.rights.label,
            client_info=caller.client_info,
            session=None if session is None else session.id,
            ms=ms,
            result_bytes=result_bytes,
        )
        self.audit.called(call)

    def _attribute(
        self, tool: Tool, session: SessionContext | None, caller: Caller, goal: str | None, seconds: float
    ) -> None:
        if self.learn is None and self.used is None:
            return
        # The uses of an administrator teach everybody's searches; those of others only their own, unless
        # their profile says otherwise.
        principal, owner = caller.principal, "" if caller.rights.teaches else caller.rights.owner
        call = (tool.exposed_name, None if session is None else session.id, principal, owner, goal)
        if self._is_settled(call):
            return
        connection = _connection(session, caller, owner)
        if self.in_session is not None and not owner:
            self.in_session((tool.server, tool.name), connection)
        # A connection counts once, however often it calls, and so does a person without one on each day.
        day = int(time_of_day() // DAY)
        counted_as = connection or f"day {day} of {person_in(principal) or 'the user'}"
        context = self._request_of(tool, session, principal)
        # A session is served by one replica. Of the requests of others, the latest may be another replica's.
        is_sure = context is not None and isinstance(session, Session)
        if self.elsewhere is not None and not is_sure and not goal:

            def attribute(found: Iterable[RequestContext]) -> None:
                context = self._best_of(found, tool, session)
                if context is not None:
                    self._teach(tool, context, counted_as, owner, goal)

            self.elsewhere(
                Unattributed(
                    session=None if session is None else session.id,
                    principal=principal,
                    began=time_of_day() - seconds,
                    attribute=attribute,
                )
            )
            return
        self._teach(tool, context, counted_as, owner, goal)

    def _is_settled(self, call: tuple[str, str | None, str | None, str, str | None]) -> bool:
        """Return whether an equal call was attributed already, and no request came since."""
        now = time.monotonic()
        if self.records.newest >= self._settled_since or now - self._settled_since > SETTLED_SECONDS:
            self._settled.clear()
            self._settled_since = now
        if call in self._settled:
            # A request of another replica may be newer than those that are known here.
            return self.elsewhere is None
        keep_latest(self._settled, call, None, SETTLED_KEPT)
        return False

    def _teach(
        self, tool: Tool, context: RequestContext | None, counted_as: str, owner: str, goal: str | None
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


def _connection(session: SessionContext | None, caller: Caller, owner: str) -> str | None:
    """Return the id of the connection that a use counts for; None if it counts for its person and the day.

    Handles and requests are made by models, as many as they like, and so are connections by whoever teaches
    everybody without being an administrator. Counted one by one, they would let one outvote all others.
    """
    counts = isinstance(session, Session) and (owner or caller.rights.is_admin)
    return session.id if session is not None and counts else None


def _shows(context: RequestContext, tool: Tool) -> bool:
    return any(item.name == tool.exposed_name and item.score is not None for item in context.of(Kind.TOOL))


class InteractionLog(Struct, frozen=True):
    """Records searches and calls of hosts as interactions, under the names of the hosts."""

    recorder: InteractionRecorder

    def searched(self, query: str, agent_name: str | None, owner: str) -> None:
        interaction = Interaction(agent_name or "", SEARCH, query, time_of_day(), owner=owner)
        self.recorder.note(lambda: interaction)

    def called(self, tool: Tool, params: Members, caller: Caller, goal: str | None) -> None:
        """Record a call; its arguments are decoded later, off the event loop."""
        now, client, arguments = time_of_day(), caller.client_info, params.get("arguments", NO_ARGUMENTS)
        owner = caller.rights.owner

        def interaction() -> Interaction:
            content = call_content(tool.exposed_name, bytes(arguments), goal)
            return Interaction(eras.name_of(client) or "", CALL, content, now, owner=owner)

        self.recorder.note(interaction)


class _Answered(Struct, frozen=True):
    """A call that its server has answered."""

    tool: Tool
    params: Members
    caller: Caller
    goal: str | None
    rule: str | None
    """The rule that allowed it, if it was not the default."""
    began: float
    direct: bool
    """True if the tool was called by its listed name."""


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
    tasks: Tasks
    results: LargeResults
    links: ResourceLinks
    when_kept: Callable[[Caller], None]
    """Called when a result was shortened, and its caller may read the whole."""

    async def call(self, name: str | None, params: Members, caller: Caller) -> bytes:
        """Return the result of ``tools/call`` for a downstream tool by this name, fitted to the caller's era.

        Failures on the way are results that the model can read and act on; so is an unknown name, as the
        SDKs' own servers answer it. Raises `RequestError` if the server answered with an error of its own.
        """
        try:
            name = name or ""
            tool = self.known(name, caller) or await self.resolve(name, params, caller)
            # A host decides by what it has listed, and under this name only.
            listed = caller.name_of(tool) if tool.wider_names else tool.exposed_name
            through = None if name == listed else name
            return await self.call_tool(tool, params, caller, through=through)
        except RemoteError as error:
            raise request_error(error, caller.era) from error
        except UnknownItemError as error:
            said = await self.unknown(error, name or "", caller)
            return eras.fit_result_to_client("tools/call", said, caller.era)
        except DownstreamError as error:
            return eras.fit_result_to_client("tools/call", failure(str(error)), caller.era)

    async def unknown(self, error: UnknownItemError, name: str, caller: Caller) -> bytes:
        """Return the answer for a model that has called a tool which does not exist."""
        await in_task()
        return await unknown(error, name, self.contexts, self.catalog.snapshot, caller.name_of)

    async def resolve(self, name: str, params: Members, caller: Caller) -> Tool:
        """Look for the tool that a request names; `catalog.names` tells which names a tool has.

        Raises `UnknownItemError` if no tool has that name, it is turned off, or it cannot be told which is
        meant, and `ServerUnavailableError` if the name belongs to a server of which nothing is known yet.
        """
        await in_task()
        # A host may remember a tool from last time and call it before its server is up.
        name, server = names.as_full(self.catalog.snapshot, name)
        if server is not None or not names.is_full(name):
            await self.wait_for_server(server, partial(tell_waiting, params, caller.notify))
        await self.fleet.wait_changed(called=True)
        snapshot, compared = self.catalog.snapshot, names.COMPARED_IN_THREAD
        self.fleet.raise_if_unavailable(names.owner(name, snapshot.servers))
        find = partial(names.tool_named, snapshot, name, compared=compared, name_of=caller.name_of)
        try:
            tool = await in_thread(find)
        except UnknownItemError as error:
            if isinstance(error, TurnedOffError):
                self.ended.turned_off(error, caller)
            if type(error) is UnknownItemError and self.fleet.look_again(server):
                return await self.resolve(name, params, caller)
            raise
        self._note_meant(name, tool, caller)
        return tool

    def known(self, name: str, caller: Caller) -> Tool | None:
        """Return the tool that a request names just as it is listed; None if it has to be looked for."""
        snapshot = (self.catalog if caller.rights.limited else self.catalog.whole).snapshot
        tool = snapshot.tools.get(name) or snapshot.wider.get(name)
        if tool is not None and SEPARATOR not in name:
            self._note_meant(name, tool, caller)
        return tool

    def _note_meant(self, name: str, tool: Tool, caller: Caller) -> None:
        if SEPARATOR not in name and (session := self._session_of(caller)) is not None:
            session.means(Kind.TOOL, name, tool.server)

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

        The server never sees `goal`, the purpose of the call in the model's words. `through` is the name that
        was called, if it is not the listed one of the tool. Raises `DownstreamError` as `Link.request` does,
        and `RequestError` if the call continues one that nobody knows.
        """
        client = self.fleet.clients[tool.server]
        if client.connected is None:
            tool = await self.as_listed(tool, params, caller)
        if eras.shows_apps(caller.capabilities) and (through in meta_definitions.CALLS or not tool.page):
            caller = caller.without_page()
        encoded, subject = _names_of(tool.name)
        sent = {**params, "name": encoded}
        arguments = params.get("arguments")
        if arguments is not None and not envelope.starts_with(arguments, b"{"):
            if envelope.starts_with(arguments, b"n"):
                del sent["arguments"]
            else:
                large = len(arguments) > envelope.TAKEN_APART_BYTES
                sent["arguments"] = await in_thread_if(large, object_in_text, arguments)
        asks, rule = bool(tool.asked_by) or (tool.interactive and through is not None), None
        if asks:
            await in_task()
            rule = tool.asked_by or "interactive"
            try:
                # Nobody is asked about a call that is refused in any case.
                await client.refuse_secrets(sent, subject)
            except DownstreamError as error:
                self.ended.failed(tool, params, caller, error, 0.0, rule)
                raise
            agreed = await self.consent.obtain(tool, sent, caller, self._session_of(caller), through)
            if isinstance(agreed, bytes):
                if outcome_of(agreed) is not ASKS:
                    self.ended.refused(tool, params, caller, rule)
                return eras.fit_result_to_client("tools/call", agreed, caller.era)
            sent = agreed
        began = time.perf_counter()
        try:
            if asks and caller.era is HANDSHAKE:
                # A client of the modern era calls again with the answer, so that all is looked at anew.
                await self.as_listed(tool, params, caller)
                self._raise_if_other(tool, caller)
                began = time.perf_counter()
            client = self.fleet.clients[tool.server]  # as it is now, after a person was asked
            judge = partial(self._raise_if_other, tool, caller)
            result = await self.forwarder.forward(
                client, "tools/call", sent, caller, subject, judge, as_task=tool.task_only
            )
        except (DownstreamError, RequestError, asyncio.CancelledError) as error:
            self.ended.failed(tool, params, caller, error, time.perf_counter() - began, rule)
            raise
        except UnknownItemError:
            self.ended.refused(tool, params, caller, rule or "approval")
            raise
        if asks:
            await self.consent.remember(tool, sent, caller, result)
        self.answered[tool.server] += 1
        made = _Answered(tool, params, caller, goal, rule, began, through is None)
        outcome, structured = self._take(made, result)
        if outcome is TASK:
            if sum(map(len, params.values())) > envelope.TAKEN_APART_BYTES:
                made = replace(made, params={"name": sent["name"]})  # it stays for as long as the task
            return await self.tasks.begun(tool, result, caller, subject, partial(self._finish, made))
        # Nearly every result is small and in one form, and ends here.
        if len(result) > SMALL_BYTES or structured:
            return await self._fitted(made, result)
        return mark_untrusted(tool.server, result) if client.config.spotlight else result

    def _take(self, made: _Answered, result: bytes) -> tuple[Outcome, bool]:
        """Take note of a result; return how its call ended, and whether it may have structured content."""
        tool, caller = made.tool, made.caller
        seconds, session = time.perf_counter() - made.began, self._session_of(caller)
        if session is not None:
            session.called(tool, result, self.contexts.result_reading)
        if uris := links_in(result):
            self.links.note(caller.owner, caller.rights.person, tool.server, uris)
        outcome, structured = ending_of(result)
        # When the answer is written: its caller does not wait for what follows.
        after_step(partial(self.ended.answered, made, session, outcome, len(result), seconds))
        return outcome, structured

    async def _finish(self, made: _Answered, result: bytes, first: bool) -> bytes:
        """Return the result of a call that went on as a task; take note of it the first time."""
        if first:
            self._take(made, result)
        return await self._fitted(made, result)

    async def as_listed(self, tool: Tool, params: Members, caller: Caller) -> Tool:
        """Wait for the server of a tool that is known from before, and return the tool as it is now.

        Raises `UnknownItemError` if the tool is gone, or waits for a person's approval, because it has
        changed.
        """
        if self.fleet.clients[tool.server].connected is not None:
            return tool
        client = self.fleet.clients[tool.server]
        await client.wait_connected(partial(tell_waiting, params, caller.notify))
        # If it cannot be called now, the call says why.
        return tool if client.connected is None else self._now(tool, caller)

    def _now(self, tool: Tool, caller: Caller) -> Tool:
        snapshot = self.catalog.snapshot
        found = snapshot.tools.get(tool.exposed_name)
        if found is None or (found.server, found.name) != (tool.server, tool.name):
            found = names.tool_named(snapshot, tool.name, tool.server, name_of=caller.name_of)
        return found

    def _raise_if_other(self, tool: Tool, caller: Caller) -> None:
        """Refuse a call whose tool became another one, or none, while it waited."""
        now = self._now(tool, caller)
        if now.fingerprint != tool.fingerprint or (now.asked_by and not tool.asked_by):
            raise ChangedToolError(caller.name_of(tool))

    async def _fitted(self, made: _Answered, result: bytes) -> bytes:
        """Return a result as its caller gets it: shortened if it is too large, marked where that is asked."""
        tool, caller = made.tool, made.caller
        config, owner = self.fleet.clients[tool.server].config, caller.owner
        call = Call(
            tool=tool,
            server=config,
            params=made.params,
            client_info=caller.client_info,
            owner=owner,
            direct=made.direct,
        )
        mark = partial(mark_untrusted, tool.server) if config.spotlight else None
        owned = self.results.kept.owns(owner)
        fitted = await self.results.fitted(call, result, mark)
        if not owned and self.results.kept.owns(owner):
            self.when_kept(caller)
        return fitted

    def _session_of(self, caller: Caller) -> SessionContext | None:
        if eras.CONTEXT_KEY not in caller.meta:
            return caller.session
        try:
            return handle_of(caller.meta, self.handles, caller.principal) or caller.session
        except RequestError:  # an expired handle is no reason to fail the call
            return caller.session


@lru_cache(maxsize=NAMES_KNOWN)
def _names_of(tool: str) -> tuple[Raw, str]:
    """Return the name of a tool as its server gets it, and as error messages call it."""
    return envelope.raw(tool), f"tool {tool!r}"
