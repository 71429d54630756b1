"""The proxy's client to one downstream server: its listing, its state, and requests to it.

A single task, `DownstreamClient.run`, owns every connection. All other methods only use them. A failure of
the server is reported to the callers of this server alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import PLAIN, Ask, Link, Outgoing, Party
from mcp_context_proxy.downstream.connections import SHARED_CAPABILITIES, Connected
from mcp_context_proxy.downstream.dedicated import DedicatedConnections
from mcp_context_proxy.downstream.inbound import (
    ELICITATION_COMPLETE,
    LOG_MESSAGE,
    PROGRESS,
    RESOURCE_UPDATED,
    WATCHED,
    Admission,
    Isolation,
    answer,
    others_before,
    party_of,
    shown_params,
    waiting_facts,
)
from mcp_context_proxy.downstream.jsonrpc import Inbound, Peer
from mcp_context_proxy.downstream.lifecycle import ServerLifecycle, ServerState, Shared
from mcp_context_proxy.downstream.listing import STALE, ServerListing
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    DisconnectedError,
    DownstreamError,
    RemoteError,
    SecretRefusedError,
    ServerUnavailableError,
    SessionForgottenError,
)
from mcp_context_proxy.protocol import envelope, eras, without_strings
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Members,
    RequestError,
    nests_deeper,
)
from mcp_context_proxy.protocol.eras import CAPABILITY_OF, HANDSHAKE, Era
from mcp_context_proxy.protocol.strangers import stranger_data, stranger_json, stranger_text
from mcp_context_proxy.results.shortening import with_note
from mcp_context_proxy.system.threads import (
    Repeating,
    in_task,
    in_thread,
    in_thread_if,
    keep_latest,
)
from mcp_context_proxy.trust import ACTING, Principal
from mcp_context_proxy.trust.guard import KnownSecret

logger = logging.getLogger(__name__)

_NOTHING = (0, 0)

PENDING_SHARE = 2
"""Divisor of the largest message size that bounds the params of all pending requests to one server.

Each is held as it came, and once more as it is sent. A server that does not read, or is slow, must not fill
the memory with them."""

WAITING_TOLD_SECONDS = 1.0
"""Time between two progress messages to a caller that waits for a connection."""

TASKS_KEPT, TASK_SECONDS = 1_000, 3600.0
"""Tasks for which a server is kept awake, and the time for which it is after each question how one stands."""

REDACTED_IN_LOOP_BYTES = 8 * 1024
"""Size up to which a result is redacted on the event loop: each secret has some forty forms to look for, and
each string that hides something is decoded on its own."""

REDACTED_NOTE = (
    "[note of the proxy: known secrets were removed from this result, because the configuration says so]"
)


class DownstreamClient(ServerLifecycle):
    """The proxy's client to one downstream server."""

    def __init__(self, config: ServerConfig, limits: Limits, shared: Shared) -> None:
        """Prepare a client; nothing is started until `run`."""
        inbound = Inbound(self._take_notification, self._answer, SHARED_CAPABILITIES)
        super().__init__(config, limits, shared, inbound)
        self._isolation = Isolation(config)
        self._dedicated: DedicatedConnections | None = None
        """Made for the first request that needs a connection of its own."""
        self._group: TaskGroup | None = None
        """Has the tasks of these connections while `run` does."""
        self._on_event, self._known = shared.on_event, shared.known
        self.redact.on_learned = partial(shared.known.learn, config.name)
        self._admission = Admission(config.name)
        self._pending, self._pending_bytes = 0, 0
        self._pending_of: dict[str | None, tuple[int, int]] = {}
        """Number and bytes of the requests of each person, but for administrators."""
        self._tasks: dict[str, float] = {}
        """Times until which tasks keep the server awake, by their ids."""
        self._none_pending: anyio.Event | None = None
        """Set when no request is pending; None while nobody waits for that."""
        self._running = anyio.CancelScope()
        """Cancelled once it is to stop."""

    @property
    def era(self) -> Era | None:
        """Era that the server speaks; None before it was ever connected."""
        return None if self.introduction is None else self.introduction.era

    @property
    def link(self) -> Link | None:
        """The shared connection; None while there is none."""
        return None if self.connected is None else self.connected.link

    @property
    def listing(self) -> ServerListing:
        """Everything that the server offers; the last known listing while the connection is down."""
        return self.lists.current

    @property
    def stale(self) -> bool:
        """True while the listing has changed and cannot be fetched, so that the last known is offered."""
        return STALE in self.listing.findings

    @property
    def in_use(self) -> bool:
        has_task = any(until > time.monotonic() for until in self._tasks.values())
        has_dedicated = self._dedicated is not None and bool(self._dedicated.open)
        is_kept = self._isolation.keeper is not None or has_dedicated
        return self._pending > 0 or has_task or is_kept or super().in_use

    async def run(self) -> None:
        """Own the connections until `stop`."""
        try:
            with self._running:
                await self.load_listing()
                async with anyio.create_task_group() as self._group:
                    await self.keep_connected()
        finally:
            self._group = None
            self._transition(ServerState.STOPPED)

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        super().configure(config, limits)
        self._isolation.configure(config)
        if self._dedicated is not None:
            self._dedicated.configure(config, limits)

    async def drain(self, seconds: float) -> None:
        """Wait until no request is pending or the client is stopped, no longer than `seconds`."""
        with anyio.move_on_after(seconds):
            while self._pending and not self._running.cancel_called:
                self._none_pending = anyio.Event()
                await self._none_pending.wait()

    def stop(self) -> None:
        """Ask the owner task to close the connections and return."""
        self._running.cancel()
        if self._none_pending is not None:
            self._none_pending.set()

    async def call(self, method: str, params: Members, outgoing: Outgoing = PLAIN) -> bytes:
        """Send one request and return its encoded result as it came, unless it reports an error.

        A request that the server may have read is never sent again. Raises `DownstreamError` as
        `Link.request` does, and if too much is pending, and `RequestError` if the server may not be able to
        read it.
        """
        limits = self.limits
        size = sum(map(len, params.values()))
        # First, because it may wait for a thread: nothing may come between the bounds and the count.
        large = size > REDACTED_IN_LOOP_BYTES
        fault = await in_thread(_unsendable, params, limits) if large else _unsendable(params, limits)
        if fault is not None:
            raise RequestError(INVALID_PARAMS, f"{outgoing.subject} was not sent to {self.name!r}: {fault}")
        if large:
            await self.refuse_secrets(params, outgoing.subject)
        elif (secret := self._known.in_params(self.name, params)) is not None:
            raise self._refused(secret, outgoing.subject)
        counts = outgoing.link is None
        acting = self._count(size) if counts else None
        if outgoing.on_counted is not None:
            outgoing.on_counted()
        try:
            connected = self.connected or await self._connected(outgoing)
            try:
                if (link := outgoing.link) is not None or self._is_shared(connected, outgoing):
                    result = await (link or connected.link).request(method, params, outgoing)
                else:
                    result = await self._send_apart(method, params, outgoing)
            except DisconnectedError as error:
                # The request was not sent, or was refused because its session had expired.
                if outgoing.link is not None and self.config.command is not None and method != "tools/call":
                    # What it is about has ended with the process.
                    raise CallInterruptedError(self.name, outgoing.subject, error.cause) from None
                if isinstance(error, SessionForgottenError) and self._dedicated is not None:
                    self._dedicated.forget(outgoing.link)
                outgoing.link = None
                await in_task()
                if self._is_shared(connected, outgoing):
                    with anyio.move_on_after(self.config.connect_timeout):
                        await self._wait_lost(connected)
                    connected = await self._connected(outgoing)
                    outgoing.judge()
                    result = await connected.link.request(method, params, outgoing)
                else:
                    result = await self._send_apart(method, params, outgoing)
            self._has_answered = True
            large = len(result) > envelope.LARGE_MESSAGE_BYTES or (
                len(result) > envelope.TAKEN_APART_BYTES
                and len(without_strings(result)) > envelope.TAKEN_APART_BYTES
            )
            examined = await in_thread(_examined, result, limits) if large else _examined(result, limits)
            fault, may_fail = examined
            if fault is not None:
                raise BadAnswerError(self.name, fault)
            if self._known.redacts_results:
                result = await self._without_secrets(method, result)
            if not may_fail:
                return result
            shown = await in_thread_if(len(result) >= REDACTED_IN_LOOP_BYTES, self._shown_failure, result)
            if shown is not result:
                self._isolation.note_failed(outgoing)
            return shown
        except DownstreamError as error:
            self._isolation.note_failed(outgoing)
            if isinstance(error, RemoteError) and error.code == eras.URL_ELICITATION_REQUIRED:
                self._admission.expect_completions(error.data, outgoing.party)
            raise await self._shown_error(error) from None
        finally:
            if counts:
                self._count_out(size, acting)

    @asynccontextmanager
    async def kept(self, outgoing: Outgoing) -> AsyncIterator[None]:
        """Keep a connection for requests that belong together, which count as one that is pending.

        Raises `DownstreamError` as `call` does.
        """
        await in_task()
        acting = self._count(0)
        if outgoing.on_counted is not None:
            outgoing.on_counted()
        try:
            async with AsyncExitStack() as stack:
                try:
                    connected = self.connected or await self._connected(outgoing)
                    if self._is_shared(connected, outgoing):
                        outgoing.link = connected.link
                    else:
                        outgoing.link = await stack.enter_async_context(self._acquire_dedicated(outgoing))
                        outgoing.judge()
                except DownstreamError as error:
                    raise await self._shown_error(error) from None
                yield
        finally:
            outgoing.link = None
            self._count_out(0, acting)

    def _count(self, size: int) -> Principal | None:
        """Count a request of so many bytes as pending; return for whom, or None if it is for nobody alone.

        Raises `ServerUnavailableError` if too much is pending.
        """
        limits, rights = self.limits, ACTING.get()
        # Administrators, who own nothing of their own, may take all of it.
        own = self._pending_of.get(rights.person, _NOTHING) if rights.owner else None
        if self._pending >= limits.in_flight_per_server:
            raise ServerUnavailableError(
                self.name, "busy", f"{self._pending} requests are under way; try again"
            )
        if self._pending_bytes and self._pending_bytes + size > limits.message_bytes // PENDING_SHARE:
            waiting = f"{self._pending_bytes:,} bytes of requests are under way; try again"
            raise ServerUnavailableError(self.name, "busy", waiting)
        if own is not None:
            share = rights.share(limits.message_bytes // PENDING_SHARE)
            if own[0] >= rights.share(limits.in_flight_per_server) or (own[1] and own[1] + size > share):
                told = f"{own[0]} of your requests, with {own[1]:,} bytes, are under way; try again"
                raise ServerUnavailableError(self.name, "busy", told)
            self._pending_of[rights.person] = own[0] + 1, own[1] + size
        self._pending, self._pending_bytes = self._pending + 1, self._pending_bytes + size
        return None if own is None else rights

    def _count_out(self, size: int, acting: Principal | None) -> None:
        """Count a request as pending no more."""
        self._pending, self._pending_bytes = self._pending - 1, self._pending_bytes - size
        if acting is not None:
            count, held = self._pending_of.pop(acting.person)
            if count > 1:
                self._pending_of[acting.person] = count - 1, held - size
        self._idle.last_used = time.monotonic()
        if not self._pending and self._none_pending is not None:
            self._none_pending.set()

    async def _shown_error(self, error: DownstreamError) -> DownstreamError:
        data = error.data if isinstance(error, RemoteError) and isinstance(error.data, Raw) else b""
        large = len(str(error)) + len(bytes(data)) > REDACTED_IN_LOOP_BYTES
        return await in_thread_if(large, redacted, error, self.redact)

    def note_task(self, task_id: str, *, ended: bool = False) -> None:
        """Keep the server awake for a task that its client asks for by itself, until it has ended."""
        keep_latest(self._tasks, task_id, 0.0 if ended else time.monotonic() + TASK_SECONDS, TASKS_KEPT)

    async def refuse_secrets(self, params: Members, subject: str) -> None:
        """Raise `SecretRefusedError` for a message with a secret that this server was not given."""
        large = sum(map(len, params.values())) > REDACTED_IN_LOOP_BYTES
        if (secret := await in_thread_if(large, self._known.in_params, self.name, params)) is not None:
            raise self._refused(secret, subject)

    def _refused(self, secret: KnownSecret, subject: str) -> SecretRefusedError:
        subject = self._known.without(subject)
        logger.warning("%s was not sent to server %s: it has the value of %s", subject, self.name, secret)
        return SecretRefusedError(self.name, subject, str(secret))

    async def asked(self, ask: Ask, party: Party | None, method: str, params: Members) -> bytes:
        """Ask a client for this server by `ask`, and return the answer, which may be told to it.

        Raises `RequestError` if the client refuses, the server may not be able to read its answer, or was not
        given a secret in it.
        """
        self._admission.expect_completion(envelope.text(params.get(eras.ELICITATION_ID)), party)
        try:
            answer = await ask(method, params)
        except RequestError as error:
            data = {} if error.data is None else {"data": envelope.raw(error.data)}
            await self._check_answer(method, {"message": envelope.raw(error.message), **data})
            raise
        await self._check_answer(method, {"answer": Raw(answer)})
        return answer

    async def _check_answer(self, method: str, sent: Members) -> None:
        large = sum(map(len, sent.values())) > REDACTED_IN_LOOP_BYTES
        if (fault := await in_thread_if(large, _unsendable, sent, self.limits)) is not None:
            raise RequestError(INTERNAL_ERROR, f"the answer was not sent: {fault}")
        try:
            await self.refuse_secrets(sent, f"the answer to {method}")
        except SecretRefusedError as error:
            raise RequestError(INTERNAL_ERROR, "the answer has a secret of the user") from error

    async def _without_secrets(self, method: str, result: bytes) -> bytes:
        """Return a result without known secrets; that of a tool says that something was removed."""
        large = len(result) > REDACTED_IN_LOOP_BYTES
        redacted, had_one = await in_thread_if(large, self._known.redacted, result)
        return with_note(redacted, REDACTED_NOTE) if had_one and method == "tools/call" else redacted

    async def _connected(self, outgoing: Outgoing) -> Connected:
        """Return the shared connection; wait for the attempt to connect, if there is one to wait for.

        A caller that wants progress is told once a second that it waits.
        """
        if self.connected is None:
            notify = outgoing.on_notification if outgoing.wants_progress else None

            def tell(seconds: float, standing: str) -> None:
                if notify is not None:
                    notify(PROGRESS, waiting_facts(seconds, standing))

            await self.wait_connected(tell)
            outgoing.judge()
        if self.connected is None:
            raise self.unavailable()
        return self.connected

    async def wait_connected(self, on_wait: Callable[[float, str], None]) -> None:
        """Wake the server if it sleeps, and wait for the attempt to connect, if there is one.

        ``on_wait`` is called once a second with the seconds so far and where the server stands.
        """
        await in_task()
        began = anyio.current_time()

        def tell() -> None:
            on_wait(anyio.current_time() - began, f"{self.name}: {self.standing}")

        with Repeating(WAITING_TOLD_SECONDS, tell):
            await self.wake(self.config.connect_timeout)

    def _is_shared(self, connected: Connected, outgoing: Outgoing) -> bool:
        """Return whether a request goes over the connection that all share."""
        if connected.introduction.era is not HANDSHAKE or not self._isolation.may_be_needed:
            return True
        return not self._isolation.needed_by(outgoing)

    def _acquire_dedicated(self, outgoing: Outgoing) -> AbstractAsyncContextManager[Link]:
        if self._group is None:
            raise ServerUnavailableError(self.name, "stopped")
        if self._dedicated is None:
            self._dedicated = DedicatedConnections(
                self.config,
                self.limits,
                redact=self.redact,
                route=self._route,
                logins=self._shared.logins,
                group=self._group,
            )
        return self._dedicated.acquire(outgoing)

    async def _send_apart(self, method: str, params: Members, outgoing: Outgoing) -> bytes:
        """Send over a connection that serves the party of a request alone."""
        await in_task()
        async with self._acquire_dedicated(outgoing) as link:
            outgoing.judge()
            return await link.request(method, params, outgoing)

    def admitted(self, method: str, params: Members) -> Members | None:
        """Return the params of a notification as its reader may see them; None if it is not passed on."""
        if not self._admission.admits(method, params):
            return None
        # The copies do not keep the whole message in memory.
        return shown_params(self.name, method, params, self.redact)

    def shown_state(self, parts: Members) -> Members:
        """Return the state of a task as its reader may see it.

        Its id is replaced elsewhere, and its questions are checked there. Its result is changed only if that
        reports an error.
        """
        own = {name: parts[name] for name in ("taskId", "result", "inputRequests") if name in parts}
        said = {name: each for name, each in parts.items() if name not in own}
        if envelope.starts_with(own.get("result", b""), b"{"):
            own["result"] = Raw(self._shown_failure(bytes(own["result"])))
        return shown_params(self.name, "tasks/get", said, self.redact) | own

    def _shown_failure(self, result: bytes) -> bytes:
        """Remove secrets, hidden characters and words for others from a result that reports an error.

        Any other result is left alone: a proxy that edits data gets it wrong sooner or later.
        """
        if bytes(envelope.members(result).get("isError", b"false")) in (b"false", b"null"):
            return result
        parts = envelope.members(stranger_json(result, self.redact.json))
        own = eras.own_words(eras.meta_of(parts))
        parts.pop("_meta", None)
        return envelope.encode(parts | {"_meta": envelope.raw(own)} if own else parts)

    def can_watch(self, uri: str) -> bool:
        """Return whether a subscription may be passed on: there is room, and the URI has no secret in it."""
        if not self.subscriptions.has_room_for(uri):
            return False
        return self._known.in_params(self.name, {"uri": envelope.raw(uri)}) is None

    async def watch(self, uri: str, params: Members, outgoing: Outgoing) -> None:
        """Subscribe a session to updates of a resource.

        Raises `DownstreamError` if the server refuses, or cannot be reached.
        """
        await self.refuse_secrets({"uri": envelope.raw(uri)}, outgoing.subject)
        handshake = self.era is HANDSHAKE
        if not self.subscriptions.has_room_for(uri):
            raise ServerUnavailableError(self.name, "busy", f"{WATCHED:,} of its resources are subscribed to")
        if handshake and self._isolation.needed_by(outgoing):
            await self.call("resources/subscribe", params, outgoing)
        send = handshake and uri not in self.subscriptions.watched
        if send:
            shared = Outgoing(outgoing.subject, outgoing.timeout, capabilities=outgoing.capabilities)
            await self.call("resources/subscribe", params, shared)
        self.subscriptions.watch(uri, send)
        await self.wake()
        await self.subscriptions.wait_confirmed(uri)

    async def notify(self, party: Party, method: str) -> None:
        """Pass a client's notification on, over the connections that serve the client's session alone."""
        if self._isolation.keeper is party and self.link is not None:
            await self.link.notify(method)
        if self._dedicated is not None:
            await self._dedicated.notify(party, method)

    def end(self, party: Party) -> None:
        """Close the connections of a session that has ended."""
        if self._isolation.keeper is party:
            self._isolation.keeper = None
        if self._dedicated is not None:
            self._dedicated.end(party)
        self._admission.end(party)

    def _take_notification(self, method: str, params: Members) -> None:
        link = self.link
        self._route(method, params, () if link is None else link.in_flight, None, link)

    def _route(
        self,
        method: str,
        params: Members,
        in_flight: Sequence[Outgoing],
        owner: Party | None = None,
        shared: Link | None = None,
    ) -> None:
        """Route a notification of a connection with these pending requests: an owner's, or a shared one."""
        if self.lists.take_change_notice(method):
            self._on_event(self.name, method, {}, frozenset())
            return
        if method not in (LOG_MESSAGE, RESOURCE_UPDATED, ELICITATION_COMPLETE):
            return
        if owner is not None:
            parties = frozenset({owner})
        else:
            parties = frozenset(sent.party for sent in in_flight if sent.party is not None)
        if method == LOG_MESSAGE:
            if shared is not None and len(parties) == 1:
                parties |= others_before(shared, next(iter(parties)))
            takers = [
                sent.on_notification for sent in in_flight if sent.party in parties and sent.on_notification
            ]
            if len(parties) == 1 and takers:
                # A log message of one party alone belongs to the latest of its calls.
                takers[-1](method, params)
                return
        if method == ELICITATION_COMPLETE:
            asked = self._admission.completed(params)
            if asked is None:
                return
            parties = frozenset({asked})
        if (shown := self.admitted(method, params)) is not None:
            self._on_event(self.name, method, shown, parties)

    async def _answer(self, peer: Peer, method: str, params: Members) -> bytes:
        unsupported = False
        if method in CAPABILITY_OF:
            party = party_of(peer.in_flight)
            calls = [sent for sent in peer.in_flight if sent.party is not None]
            # The shared connection is left to one session only if it is the one that was meant.
            meant = None if others_before(peer, party) else party
            unsupported = self._isolation.note_asked(method, meant, calls)
        try:
            return await answer(peer, method, params, None)
        except RequestError as error:
            if not unsupported:
                raise
            # The server may hand this on to the model.
            hint = "If the call fails because of that, call again: the server knows it then"
            raise RequestError(error.code, f"{error.message}. {hint}", error.data) from error


def redacted(error: DownstreamError, redact: Redactor) -> DownstreamError:
    """Return the same error with the server's own words as they may be shown."""
    match error:
        case RemoteError():
            data = error.data
            if isinstance(data, Raw):
                # Addresses to which it sends a person stay whole: `questions.checked_error` redacts the rest.
                is_way = error.code == eras.URL_ELICITATION_REQUIRED
                data = Raw(stranger_data(bytes(data), bytes if is_way else redact.json))
            return RemoteError(error.server, error.code, stranger_text(error.remote_message, redact), data)
        case BadAnswerError():
            return BadAnswerError(error.server, stranger_text(error.what, redact), error.http_status)
        case CallInterruptedError():
            cause = stranger_text(error.cause, redact)
            return CallInterruptedError(error.server, error.subject, cause, error.stderr)
        case ServerUnavailableError():
            return ServerUnavailableError(
                error.server, error.state, stranger_text(error.cause, redact), error.stderr
            )
        case _:  # whatever another error says may be the server's own words
            error.args = (stranger_text(str(error), redact),)
            return error


def _unsendable(params: Members, limits: Limits) -> str | None:
    """Return why a server may end over a request, and with it those of others; None if it can be read."""
    # Side by side, values are as deep as each of them, and are looked at once.
    return envelope.unreadable(without_strings(b",".join(params.values())), limits.nesting_results)


def _examined(result: bytes, limits: Limits) -> tuple[str | None, bool]:
    """Return why a result is not taken, None if it is, and whether it may report an error."""
    bare, fault = without_strings(result), None
    if nests_deeper(bare, limits.nesting_results):
        fault = f"with a result nested deeper than {limits.nesting_results} levels"
    elif envelope.holds_a_flood(bare):
        fault = f"with a result of more than {envelope.MOST_ENTRIES:,} members"
    elif envelope.overflows(bare):
        fault = "with a result that has a number too large to be read"
    # In nearly all this is False, without parsing them: the name of the member can be written in no other way
    # than with the escape of a Latin letter.
    return fault, result.find(b'"isError"') >= 0 or result.find(b"\\u00") >= 0
