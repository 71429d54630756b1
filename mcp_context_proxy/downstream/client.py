"""One downstream server: its connection, its state, what it offers, and its tools' embeddings.

A single task (`DownstreamClient.run`) owns the connection: it alone opens and closes it, restarts it with
back-off and keeps the lists. Everybody else only calls. What fails here is told to the callers of this
server and to nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial

import anyio
import anyio.to_thread
from msgspec import Raw

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor, secrets_of
from mcp_context_proxy.downstream import questions
from mcp_context_proxy.downstream.connect import Connected, Inbound, connect, describe
from mcp_context_proxy.downstream.lanes import Lane, Lanes, capabilities_of
from mcp_context_proxy.downstream.link import PLAIN, Link, Outgoing, Party
from mcp_context_proxy.downstream.listing import Listing
from mcp_context_proxy.downstream.lists import Lists
from mcp_context_proxy.downstream.memory import Memory
from mcp_context_proxy.downstream.negotiation import Introduction
from mcp_context_proxy.downstream.peer import Peer
from mcp_context_proxy.downstream.rate import Bucket
from mcp_context_proxy.downstream.redaction import redacted, redacted_result
from mcp_context_proxy.downstream.rest import Rest
from mcp_context_proxy.downstream.restarts import Restarts
from mcp_context_proxy.downstream.stderr import StderrTail
from mcp_context_proxy.downstream.subscription import Subscription
from mcp_context_proxy.downstream.wishes import Wishes
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    DownstreamError,
    ServerUnavailableError,
)
from mcp_context_proxy.items import IndexedChunk
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.era import Era
from mcp_context_proxy.wire.nesting import nests_deeper
from mcp_context_proxy.wire.text import clean

logger = logging.getLogger(__name__)

OnEvent = Callable[[str, Members, frozenset[Party]], None]
"""Takes what a server announced: method, params, and whom it concerns; nobody in particular if empty."""

SLOT_SECONDS = 5.0
"""How long a server that is being started keeps others waiting: one that hangs must not hold them up."""

LOGS_PER_SECOND, LOGS_AT_ONCE = 100, 500
"""Log messages of one server that are passed on to clients; a flood would only be skimmed anyway."""

QUOTED_STDERR_LINES = 5
"""Lines of a server's stderr that an error message quotes."""


class State(StrEnum):
    """Where a connection stands."""

    WAITING = "waiting to start"
    ASLEEP = "asleep"
    STARTING = "still starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class DownstreamClient:
    """The proxy's client to one downstream server."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        on_change: Callable[[], None],
        on_event: OnEvent | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Prepare a client; nothing is started until `run`.

        Args:
            config: Of this server.
            limits: Bounds on time and size.
            on_change: Called, without blocking, whenever the listing or the state changed.
            on_event: Takes what the server announces that belongs to no request, such as an updated resource.
            memory: Remembers what a lazy server lists.
        """
        self.config = config
        self.name = config.name
        self.tool_embeddings: dict[str, list[IndexedChunk]] = {}
        """Chunks of this server's tools, by tool name. Filled just in time, gone with this client."""
        self.state = State.WAITING
        self.introduction: Introduction | None = None
        self.cause = ""
        """Why the connection failed last; empty while there is nothing to say."""
        self.restarts = 0
        self._restarts = Restarts(limits)
        self._limits = limits
        self._on_change = on_change
        self._on_event = on_event or (lambda method, params, parties: None)
        self._redact = Redactor(secrets_of(config))
        self._logs = Bucket(LOGS_PER_SECOND, LOGS_AT_ONCE)
        self._stderr = StderrTail(config.name, limits, self._redact)
        self._connected: Connected | None = None
        self._lists = Lists(config.name, limits, on_change)
        self.wishes = Wishes()
        """What clients want of the server beside answers."""
        self._subscription = Subscription(limits, self.wishes, self._on_notification, self._lists.suspect_all)
        self._lanes = Lanes(config, limits, self._redact, self._lane_inbound)
        self._stop = anyio.Event()
        self._settled = anyio.Event()
        self._in_flight = 0
        self._idle = anyio.Event()
        self._learned_era: Era | None = None
        self._memory = memory
        self._rest = Rest(config)
        self._recalled = False

    @property
    def listing(self) -> Listing:
        """What the server offers; the last known while the connection is down."""
        return self._lists.current

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines the server wrote to stderr, oldest first."""
        return self._stderr.lines()

    @property
    def era(self) -> Era | None:
        """The era the server speaks; None before it was ever connected."""
        return None if self.introduction is None else self.introduction.era

    @property
    def link(self) -> Link | None:
        """The open connection; None while there is none."""
        return None if self._connected is None else self._connected.link

    async def settled(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed."""
        await self._settled.wait()

    def stop(self) -> None:
        """Ask the owner task to close the connection and return."""
        self._stop.set()
        self._idle.set()

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration whose connection is the same; what is open stays open."""
        self.config, self._limits = config, limits
        self._lists.configure(limits)
        self._restarts.configure(limits)
        self._rest.configure(config)
        self._lanes.configure(config, limits)

    async def drain(self, seconds: float) -> None:
        """Wait until no request is under way or the client is stopped, no longer than `seconds`."""
        with anyio.move_on_after(seconds):
            while self._in_flight and not self._stop.is_set():
                self._idle = anyio.Event()
                await self._idle.wait()

    async def call(self, method: str, params: Members, outgoing: Outgoing = PLAIN) -> Raw:
        """Send one request and return its result as it came. It is never sent twice.

        Raises:
            DownstreamError: see `Link.request`.
        """
        if self._in_flight >= self._limits.in_flight_per_server:
            raise ServerUnavailableError(
                self.name, "busy", f"{self._in_flight} requests are under way; try again"
            )
        if outgoing.timeout is None:
            outgoing = replace(outgoing, timeout=self.config.call_timeout)
        self._in_flight += 1
        try:
            if self._connected is None:
                await self._rest.wake(self.config.connect_timeout)
            if self._connected is None:
                raise self.unavailable()
            result = await self._send(self._connected, method, params, outgoing)
            if nests_deeper(bytes(result), self._limits.nesting_results):
                raise BadAnswerError(
                    self.name, f"with a result nested deeper than {self._limits.nesting_results} levels"
                )
            return redacted_result(result, self._redact)
        except DownstreamError as error:
            raise redacted(error, self._redact) from None
        finally:
            self._in_flight -= 1
            self._rest.used()
            if not self._in_flight:
                self._idle.set()

    async def _send(self, connected: Connected, method: str, params: Members, outgoing: Outgoing) -> Raw:
        """Send a request over the connection that all share, or over one that is not shared."""
        if connected.introduction.era is Era.HANDSHAKE and self._lanes.needed_by(outgoing):
            async with self._lanes.lent(outgoing) as link:
                return await link.request(method, params, outgoing)
        return await connected.link.request(method, params, outgoing)

    async def watch(self, uri: str, params: Members, outgoing: Outgoing) -> None:
        """Have a session told of updates of a resource.

        Raises:
            DownstreamError: the server refuses, or cannot be asked.
        """
        if self.era is Era.HANDSHAKE and self._lanes.needed_by(outgoing):
            await self.call("resources/subscribe", params, outgoing)
        told = self.era is Era.HANDSHAKE and uri not in self.wishes.watched
        if told:
            await self.call("resources/subscribe", params, outgoing)
        self.wishes.watch(uri, told)
        await self.wake()

    async def wake(self) -> None:
        """Have a server that sleeps connected, without waiting for it: somebody wants to hear of it."""
        await self._rest.wake(0)

    async def announce(self, party: Party, method: str) -> None:
        """Tell the server what the client of a session announced, where the session has a connection."""
        if self._lanes.keeps(party) and self.link is not None:
            await self.link.notify(method)
        await self._lanes.notify(party, method)

    def end(self, party: Party) -> None:
        """A session has ended."""
        self._lanes.end(party)

    def unavailable(self) -> ServerUnavailableError:
        """The error of a call while there is no connection: the state, the cause, the server's last words."""
        state: str = self.state
        if self.state is State.FAILED and self._restarts.left_alone:
            state = (
                f"{state} {self._restarts.failures} times in a row, tried again every "
                f"{self._limits.breaker_seconds:g} s"
            )
        return ServerUnavailableError(self.name, state, self.cause, self.stderr[-QUOTED_STDERR_LINES:])

    async def run(self, starting: anyio.Semaphore) -> None:
        """Own the connection until `stop`: connect, list, watch, and connect again after a failure.

        Args:
            starting: Bounds how many servers are being started at a time.
        """
        try:
            await self.recall()
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_connected, starting)
                group.start_soon(self._lanes.run)
                await self._stop.wait()
                group.cancel_scope.cancel()
        finally:
            self._set_state(State.STOPPED)
            self._settled.set()

    async def recall(self) -> None:
        """Begin with what is remembered of a lazy server, so that it need not be started to be searched."""
        if self._recalled or self._memory is None or self.config.start != "lazy":
            return
        self._recalled = True
        known = await anyio.to_thread.run_sync(self._memory.recall, self.config)
        if known is not None:
            self.introduction = known.introduction
            self._learned_era = known.introduction.era
            self._lists.recall(known.listing)
            self._rest.refresh_first = known.stale
            self._sleep()

    def _sleep(self) -> None:
        self._rest.fall_asleep()
        self._settled.set()
        self._set_state(State.ASLEEP)

    async def _keep_connected(self, starting: anyio.Semaphore) -> None:
        while True:
            if self._rest.allowed and self.introduction is not None:
                self._rest.begin()
                await self._rest.until_called()
            lasted = await self._connect_once(starting)
            if self.state is State.ASLEEP:
                continue
            seconds = self._restarts.wait_seconds(lasted)
            if self._restarts.left_alone:
                logger.info("server %s: failed %d times in a row", self.name, self._restarts.failures)
            await anyio.sleep(seconds)
            self.restarts += 1

    async def _connect_once(self, starting: anyio.Semaphore) -> float:
        """Connect and stay so until the connection is lost; return for how many seconds it was ready."""
        ready_at: float | None = None
        slot = _Slot(starting)
        try:
            await slot.take()
            self._set_state(State.STARTING)
            # One scope with a movable deadline: a time limit must not end inside the contexts it guards.
            with anyio.CancelScope(deadline=anyio.current_time() + self.config.connect_timeout) as scope:
                async with connect(
                    self._config_for_era(), self._limits, self._stderr, self._inbound()
                ) as connected:
                    await self._list(connected)
                    scope.deadline = float("inf")
                    slot.free()
                    ready_at = anyio.current_time()
                    self._become_ready(connected)
                    await self._serve(connected)
            if self._connected is None and self.state is State.ASLEEP:
                logger.debug("server %s sleeps", self.name)
            elif scope.cancelled_caught:
                self._fail(f"it was not ready within {self.config.connect_timeout:g} s")
            else:
                self._fail(f"it {connected.loss.cause}")
        except Exception as error:
            # boundary: whatever a downstream server or its transport does stays with this server
            self._note_brittle_probe(error)
            self._fail(describe(error))
        finally:
            slot.free()
            self._connected = None
            self._settled.set()
            if self.state is not State.ASLEEP:
                self._rest.end()
        return 0.0 if ready_at is None else anyio.current_time() - ready_at

    def _config_for_era(self) -> ServerConfig:
        """The configuration, with the era named that was learned, so that it is not probed again."""
        if self._learned_era is Era.HANDSHAKE and self.config.era == "auto":
            return self.config.model_copy(update={"era": "handshake"})
        return self.config

    def _note_brittle_probe(self, error: BaseException) -> None:
        """Some old servers die on a request they do not know: the next start skips the modern probe."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, CallInterruptedError) and error.subject == "server/discover":
            self._learned_era = Era.HANDSHAKE

    async def _list(self, connected: Connected) -> None:
        """Know what there is; a caller who waits need not wait for lists that were known before."""
        if self._rest.awaited and self.introduction is not None:
            self._lists.resume(connected)
        else:
            await self._lists.fetch(connected)
            await self._remember(connected)

    async def _remember(self, connected: Connected) -> None:
        if self._memory is not None and self.config.start == "lazy":
            facts = (self.config, connected.introduction, self.listing)
            await anyio.to_thread.run_sync(self._memory.keep, *facts)

    def _become_ready(self, connected: Connected) -> None:
        self.introduction = connected.introduction
        self._learned_era = connected.introduction.era
        self._connected = connected
        self.cause = ""
        self._settled.set()
        self._set_state(State.READY)
        self._rest.end()

    async def _serve(self, connected: Connected) -> None:
        """Keep the lists current until the connection is lost."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._lists.refresh, connected, partial(self._remember, connected))
            group.start_soon(self._sleep_when_idle, connected)
            group.start_soon(self.wishes.tell, connected)
            if connected.introduction.era is Era.MODERN:
                group.start_soon(self._subscription.keep, connected)
            await connected.loss.happened.wait()
            group.cancel_scope.cancel()

    async def _sleep_when_idle(self, connected: Connected) -> None:
        """End the connection once nobody needs it. From then on callers wait for the next one."""
        while True:
            await self._rest.until_idle()
            if not self._in_use():
                break
            self._rest.used()
        self._connected = None
        self._sleep()
        connected.loss.happened.set()

    def _in_use(self) -> bool:
        return self._in_flight > 0 or bool(self.wishes.watched) or self._lanes.kept

    def _inbound(self) -> Inbound:
        return Inbound(self._on_notification, self._answer)

    def _lane_inbound(self, lane: Lane) -> Inbound:
        async def answer(peer: Peer, method: str, params: Members) -> bytes:
            return await questions.answer(peer, method, params, lane.outgoing)

        def on_notification(method: str, params: Members) -> None:
            if not self._lists.take_notice(method):
                parties = frozenset({lane.party})
                in_flight = _in_flight(None if lane.connected is None else lane.connected.link)
                self._pass_on(in_flight, method, params, parties)

        return Inbound(on_notification, answer, capabilities_of(lane.outgoing))

    def _on_notification(self, method: str, params: Members) -> None:
        if not self._lists.take_notice(method):
            in_flight = _in_flight(self.link)
            parties = frozenset(sent.party for sent in in_flight if sent.party is not None)
            self._pass_on(in_flight, method, params, parties)

    def _pass_on(
        self, in_flight: Sequence[Outgoing], method: str, params: Members, parties: frozenset[Party]
    ) -> None:
        """A log message names no request: it is of those whose calls are under way.

        If that is one alone, it belongs to the latest of its calls.
        """
        if method == "notifications/message":
            if not self._logs.take():
                return
            params = {name: Raw(self._redact.json(bytes(raw))) for name, raw in params.items()}
        takers = [
            sent.on_notification for sent in in_flight if sent.party in parties and sent.on_notification
        ]
        if method == "notifications/message" and len(parties) == 1 and takers:
            takers[-1](method, params)
        else:
            self._on_event(method, params, parties)

    async def _answer(self, peer: Peer, method: str, params: Members) -> bytes:
        """Answer what the server asks on the connection that all share."""
        if method in questions.CAPABILITY_OF:
            self._lanes.note_asked(method, questions.party_of(peer.in_flight))
        return await questions.answer(peer, method, params, None)

    def _fail(self, cause: str) -> None:
        cause = clean(self._redact(cause))
        if cause != self.cause:
            logger.warning("server %s: %s", self.name, cause)
        self.cause = cause
        self._connected = None
        self._set_state(State.FAILED)

    def _set_state(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._on_change()


def _in_flight(link: Link | None) -> list[Outgoing]:
    return link.in_flight if isinstance(link, Peer) else []


class _Slot:
    """One of the places for servers that are being started; freed once, by whoever comes first."""

    def __init__(self, starting: anyio.Semaphore) -> None:
        self._starting = starting
        self._taken = False

    async def take(self) -> None:
        await self._starting.acquire()
        self._taken = True
        asyncio.get_running_loop().call_later(SLOT_SECONDS, self.free)

    def free(self) -> None:
        if self._taken:
            self._taken = False
            self._starting.release()
