"""One downstream server as the rest of the proxy knows it: what it offers, how it is doing, and calls to it.

A single task (`DownstreamClient.run`) owns all that is open. Everybody else only calls. What fails here is
told to the callers of this server and to nobody else.

Sends requests to one server: a bounded number at a time, each once, over the connection it belongs to.

What comes back is passed as it is; failures come without the server's secrets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor, secrets_of
from mcp_context_proxy.downstream.connect import Connected
from mcp_context_proxy.downstream.dedicated import DedicatedConnections
from mcp_context_proxy.downstream.era_negotiation import Introduction
from mcp_context_proxy.downstream.lifecycle import (
    Idling,
    ServerLifecycle,
    ServerState,
    ServerStatus,
    StartLimiter,
)
from mcp_context_proxy.downstream.link import PLAIN, Link, Outgoing, Party
from mcp_context_proxy.downstream.listing import STALE, Lists, ServerListing
from mcp_context_proxy.downstream.listing_cache import ListingCache
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.server_notifications import (
    OnEvent,
    ServerNotifications,
    redacted,
    redacted_params,
    redacted_result,
)
from mcp_context_proxy.downstream.subscriptions import ClientSubscriptions
from mcp_context_proxy.errors import (
    BadAnswerError,
    DisconnectedError,
    DownstreamError,
    ServerUnavailableError,
)
from mcp_context_proxy.items import IndexedChunk
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.validation import nests_deeper

WAITING_SHARE = 2
"""Of the size of the largest message, what all requests to one server may take together: each is held as it
came, and once more as it goes. One that does not read, or is slow, must not fill the memory with them."""


class Requests:
    """The requests to one server that are under way."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        redact: Redactor,
        condition: ServerStatus,
        rest: Idling,
        lanes: DedicatedConnections,
    ) -> None:
        """Have none under way.

        Args:
            config: Of the server.
            limits: Bounds on number, time and nesting.
            redact: Takes the server's secrets out of a failure.
            condition: Knows the connection.
            rest: Wakes a server that sleeps.
            lanes: Connections that are not shared.
        """
        self._redact, self._condition, self._rest, self._lanes = redact, condition, rest, lanes
        self.configure(config, limits)
        self.under_way, self._bytes = 0, 0
        """Requests without an answer yet, and what their params take."""
        self._all_done = anyio.Event()
        self._given_up = False

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration, from the next request on."""
        self._config, self._limits = config, limits

    async def send(self, method: str, params: Members, outgoing: Outgoing) -> bytes:
        """Send one request and return its result as it came. What may have been read is never sent again.

        Raises:
            DownstreamError: see `Link.request`.
        """
        name, limits = self._config.name, self._limits
        if self.under_way >= limits.in_flight_per_server:
            raise ServerUnavailableError(name, "busy", f"{self.under_way} requests are under way; try again")
        if outgoing.timeout is None:
            outgoing = replace(outgoing, timeout=self._config.call_timeout)
        outgoing = self._told_without_secrets(outgoing)
        size = sum(len(raw) for raw in params.values())
        if self._bytes and self._bytes + size > limits.message_bytes // WAITING_SHARE:
            waiting = f"{self._bytes:,} bytes of requests are under way; try again"
            raise ServerUnavailableError(name, "busy", waiting)
        self.under_way, self._bytes = self.under_way + 1, self._bytes + size
        if outgoing.on_counted is not None:
            outgoing.on_counted()
        try:
            result = await self._sent_once(method, params, outgoing)
            self._condition.useful = True
            if nests_deeper(result, limits.nesting_results):
                what = f"with a result nested deeper than {limits.nesting_results} levels"
                raise BadAnswerError(name, what)
            return await redacted_result(result, self._redact)
        except DownstreamError as error:
            raise redacted(error, self._redact) from None
        finally:
            self.under_way, self._bytes = self.under_way - 1, self._bytes - size
            self._rest.used()
            if not self.under_way:
                self._all_done.set()

    def _told_without_secrets(self, outgoing: Outgoing) -> Outgoing:
        take = outgoing.on_notification
        if take is None:
            return outgoing

        def told(method: str, params: Members) -> None:
            take(method, redacted_params(params, self._redact))

        return replace(outgoing, on_notification=told)

    async def drain(self, seconds: float) -> None:
        """Wait until none is under way or they are given up, no longer than `seconds`."""
        with anyio.move_on_after(seconds):
            while self.under_way and not self._given_up:
                self._all_done = anyio.Event()
                await self._all_done.wait()

    def give_up(self) -> None:
        """Nobody is to wait for those that are under way."""
        self._given_up = True
        self._all_done.set()

    async def _connected(self) -> Connected:
        if self._condition.connected is None:
            await self._rest.wake(self._config.connect_timeout)
        if self._condition.connected is None:
            raise self._condition.unavailable()
        return self._condition.connected

    async def _sent_once(self, method: str, params: Members, outgoing: Outgoing) -> bytes:
        """A request that was not sent, or was refused as its session had expired, goes over the next one."""
        connected = await self._connected()
        try:
            return await self._sent(connected, method, params, outgoing)
        except DisconnectedError:
            if self._is_shared(connected, outgoing):
                connected = await self._connected_after(connected)
            return await self._sent(connected, method, params, outgoing)

    async def _connected_after(self, lost: Connected) -> Connected:
        with anyio.move_on_after(self._config.connect_timeout):
            await self._condition.lost(lost)
        return await self._connected()

    def _is_shared(self, connected: Connected, outgoing: Outgoing) -> bool:
        """Whether a request goes over the connection that all share."""
        return connected.introduction.era is not Era.HANDSHAKE or not self._lanes.needed_by(outgoing)

    async def _sent(self, connected: Connected, method: str, params: Members, outgoing: Outgoing) -> bytes:
        if self._is_shared(connected, outgoing):
            return await connected.link.request(method, params, outgoing)
        async with self._lanes.lent(outgoing) as link:
            return await link.request(method, params, outgoing)


class DownstreamClient:
    """The proxy's client to one downstream server."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        on_change: Callable[[], None],
        on_event: OnEvent | None = None,
        memory: ListingCache | None = None,
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
        self.wishes = ClientSubscriptions()
        """What clients want of the server beside answers."""
        redact = Redactor(secrets_of(config))
        self._output = Output(config.name, limits, redact)
        self._condition = ServerStatus(config.name, limits, self._output, on_change)
        self._lists = Lists(config.name, limits, redact, on_change)
        self._rest = Idling(config)
        announcements = ServerNotifications(self._lists, redact, on_event)
        self._lanes = DedicatedConnections(config, limits, redact, announcements.on_lane)
        self._requests = Requests(config, limits, redact, self._condition, self._rest, self._lanes)
        self._connection = ServerLifecycle(
            config,
            limits,
            self._condition,
            self._lists,
            self._rest,
            self.wishes,
            self._output,
            memory,
            redact,
            announcements.on_shared(lambda: self.link, self._lanes),
            self._in_use,
        )
        self._stop = anyio.Event()

    @property
    def state(self) -> ServerState:
        """Where the connection stands."""
        return self._condition.state

    @property
    def cause(self) -> str:
        """Why the connection failed last; empty while there is nothing to say."""
        return self._condition.cause

    @property
    def introduction(self) -> Introduction | None:
        """What the server said of itself; None before it was ever connected."""
        return self._condition.introduction

    @property
    def era(self) -> Era | None:
        """The era the server speaks; None before it was ever connected."""
        return None if self.introduction is None else self.introduction.era

    @property
    def link(self) -> Link | None:
        """The open connection; None while there is none."""
        connected = self._condition.connected
        return None if connected is None else connected.link

    @property
    def restarts(self) -> int:
        """How often it was connected again."""
        return self._connection.restarts

    @property
    def listing(self) -> ServerListing:
        """What the server offers; the last known while the connection is down."""
        return self._lists.current

    @property
    def stale(self) -> bool:
        """Whether what it offers has changed and cannot be had, so that the last known is offered."""
        return STALE in self.listing.findings

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines the server wrote to stderr, oldest first."""
        return self._condition.stderr

    @property
    def strays(self) -> tuple[str, ...]:
        """The first lines the server wrote to stdout that are no messages, oldest first."""
        return self._output.strays.lines

    async def settled(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed."""
        await self._condition.settled.wait()

    def stop(self) -> None:
        """Ask the owner task to close the connection and return."""
        self._stop.set()
        self._requests.give_up()

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration whose connection is the same; what is open stays open."""
        self.config = config
        self._lists.configure(limits)
        self._condition.configure(limits)
        self._rest.configure(config)
        self._lanes.configure(config, limits)
        self._requests.configure(config, limits)
        self._connection.configure(config, limits)

    async def drain(self, seconds: float) -> None:
        """Wait until no request is under way or the client is stopped, no longer than `seconds`."""
        await self._requests.drain(seconds)

    async def call(self, method: str, params: Members, outgoing: Outgoing = PLAIN) -> bytes:
        """Send one request and return its result as it came. It is never sent twice.

        Raises:
            DownstreamError: see `Link.request`.
        """
        return await self._requests.send(method, params, outgoing)

    async def watch(self, uri: str, params: Members, outgoing: Outgoing) -> None:
        """Have a session told of updates of a resource.

        Raises:
            DownstreamError: the server refuses, or cannot be asked.
        """
        if self.era is Era.HANDSHAKE and self._lanes.needed_by(outgoing):
            await self.call("resources/subscribe", params, outgoing)
        told = self.era is Era.HANDSHAKE and uri not in self.wishes.watched
        if told:
            await self.call("resources/subscribe", params, replace(outgoing, party=None))
        self.wishes.watch(uri, told)
        await self.wake()
        await self.wishes.heard(uri)

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
        return self._condition.unavailable()

    async def recall(self) -> None:
        """Begin with what is remembered of a lazy server, so that it need not be started to be searched."""
        await self._connection.recall()

    async def run(self, starts: StartLimiter) -> None:
        """Own the connection until `stop`: connect, list, watch, and connect again after a failure.

        Args:
            starts: Bounds how many servers are being started at a time.
        """
        try:
            await self.recall()
            async with anyio.create_task_group() as group:
                group.start_soon(self._connection.keep, starts)
                group.start_soon(self._lanes.run)
                await self._stop.wait()
                group.cancel_scope.cancel()
        finally:
            self._condition.enter(ServerState.STOPPED)
            self._condition.settled.set()

    def _in_use(self) -> bool:
        return self._requests.under_way > 0 or bool(self.wishes.watched) or self._lanes.kept
