"""The proxy's client to one downstream server: its listing, its state, and requests to it.

A single task, `DownstreamClient.run`, owns every connection. All other methods only use them. A failure of
the server is reported to the callers of this server alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio
from msgspec import Raw

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor, secrets_of
from mcp_context_proxy.downstream.connect import Connected
from mcp_context_proxy.downstream.dedicated import DedicatedConnections
from mcp_context_proxy.downstream.era_negotiation import Introduction
from mcp_context_proxy.downstream.inbound import (
    CAPABILITY_OF,
    Inbound,
    OnEvent,
    ServerNotifications,
    answer,
    party_of,
    redacted_params,
)
from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.downstream.lifecycle import ServerLifecycle, ServerState, StartLimiter
from mcp_context_proxy.downstream.link import PLAIN, Link, Notify, Outgoing, Party
from mcp_context_proxy.downstream.listing import STALE, Lists, ServerListing
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.subscriptions import ClientSubscriptions
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    DisconnectedError,
    DownstreamError,
    RemoteError,
    ServerUnavailableError,
)
from mcp_context_proxy.items import IndexedChunk
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.validation import nests_deeper
from mcp_context_proxy.store import ListingStore
from mcp_context_proxy.system.threads import in_thread

PENDING_SHARE = 2
"""Divisor of the largest message size that bounds the params of all pending requests to one server.

Each is held as it came, and once more as it is sent. A server that does not read, or is slow, must not fill
the memory with them."""

REDACTED_IN_LOOP_BYTES = 256 * 1024
"""Size up to which a result is redacted on the event loop: each secret has some forty forms to look for."""


class DownstreamClient:
    """The proxy's client to one downstream server."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        on_change: Callable[[], None],
        on_event: OnEvent | None = None,
        store: ListingStore | None = None,
    ) -> None:
        """Prepare a client; nothing is started until `run`.

        `on_change` is called, without blocking, whenever the listing changed. `on_event` takes notifications
        that belong to no request, such as an updated resource. The store remembers the listings of lazy
        servers, and the servers not to be probed.
        """
        self.config, self.name, self._limits = config, config.name, limits
        self.tool_embeddings: dict[str, list[IndexedChunk]] = {}
        """Chunks of this server's tools, by tool name. Filled just in time, gone with this client."""
        self.subscriptions = ClientSubscriptions()
        """Log level and resource subscriptions requested by clients."""
        self._redact = Redactor(secrets_of(config))
        self._output = Output(config.name, limits, self._redact)
        self._lists = Lists(config.name, limits, self._redact, on_change)
        self._notifications = ServerNotifications(self._lists.take_change_notice, self._redact, on_event)
        self._dedicated = DedicatedConnections(config, limits, self._redact, self._notifications)
        self._lifecycle = ServerLifecycle(
            config,
            limits,
            output=self._output,
            redact=self._redact,
            lists=self._lists,
            subscriptions=self.subscriptions,
            inbound=Inbound(self._take_notification, self._answer),
            in_use=self._in_use,
            store=store,
        )
        self._pending, self._pending_bytes = 0, 0
        """Requests without a response, and the size of their params."""
        self._none_pending = anyio.Event()
        self._stop = anyio.Event()

    @property
    def state(self) -> ServerState:
        """State of the shared connection."""
        return self._lifecycle.state

    @property
    def cause(self) -> str:
        """Cause of the latest failure of the connection; empty once the server is ready."""
        return self._lifecycle.cause

    @property
    def introduction(self) -> Introduction | None:
        """Introduction of the server; None before it was ever connected."""
        return self._lifecycle.introduction

    @property
    def era(self) -> Era | None:
        """Era that the server speaks; None before it was ever connected."""
        introduction = self._lifecycle.introduction
        return None if introduction is None else introduction.era

    @property
    def link(self) -> Link | None:
        """The shared connection; None while there is none."""
        connected = self._lifecycle.connected
        return None if connected is None else connected.link

    @property
    def restarts(self) -> int:
        """Number of times that the server was connected again."""
        return self._lifecycle.restarts

    @property
    def listing(self) -> ServerListing:
        """Everything that the server offers; the last known listing while the connection is down."""
        return self._lists.current

    @property
    def stale(self) -> bool:
        """True while the listing has changed and cannot be fetched, so that the last known is offered."""
        return STALE in self.listing.findings

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines the server wrote to stderr, oldest first."""
        return self._lifecycle.stderr

    @property
    def strays(self) -> tuple[str, ...]:
        """The first lines the server wrote to stdout that are no messages, oldest first."""
        return self._output.strays.lines

    def unavailable(self) -> ServerUnavailableError:
        """Return the error of a call while there is no connection: state, cause and last output."""
        return self._lifecycle.unavailable()

    async def load_listing(self) -> None:
        """Restore the cached listing of a lazy server, which then need not be started to be searched."""
        await self._lifecycle.load()

    async def run(self, starts: StartLimiter) -> None:
        """Own the connections until `stop`."""
        try:
            await self.load_listing()
            async with anyio.create_task_group() as group:
                group.start_soon(self._lifecycle.run, starts)
                group.start_soon(self._dedicated.run)
                await self._stop.wait()
                group.cancel_scope.cancel()
        finally:
            self._lifecycle.transition(ServerState.STOPPED)

    async def wait_first_connect(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed."""
        await self._lifecycle.first_attempt_over.wait()

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration with the same connection settings; open connections stay open."""
        self.config, self._limits = config, limits
        self._lists.configure(limits)
        self._dedicated.configure(config, limits)
        self._lifecycle.configure(config, limits)

    async def drain(self, seconds: float) -> None:
        """Wait until no request is pending or the client is stopped, no longer than `seconds`."""
        with anyio.move_on_after(seconds):
            while self._pending and not self._stop.is_set():
                self._none_pending = anyio.Event()
                await self._none_pending.wait()

    def stop(self) -> None:
        """Ask the owner task to close the connections and return."""
        self._stop.set()
        self._none_pending.set()

    async def call(self, method: str, params: Members, outgoing: Outgoing = PLAIN) -> bytes:
        """Send one request and return its encoded result unchanged, except for secrets in an error.

        A request that the server may have read is never sent again.

        Raises:
            DownstreamError: see `Link.request`; or too much is pending.
        """
        limits = self._limits
        if self._pending >= limits.in_flight_per_server:
            raise ServerUnavailableError(
                self.name, "busy", f"{self._pending} requests are under way; try again"
            )
        size = sum(len(raw) for raw in params.values())
        if self._pending_bytes and self._pending_bytes + size > limits.message_bytes // PENDING_SHARE:
            waiting = f"{self._pending_bytes:,} bytes of requests are under way; try again"
            raise ServerUnavailableError(self.name, "busy", waiting)
        outgoing = replace(
            outgoing,
            timeout=self.config.call_timeout if outgoing.timeout is None else outgoing.timeout,
            on_notification=self._redacting(outgoing.on_notification),
        )
        self._pending, self._pending_bytes = self._pending + 1, self._pending_bytes + size
        if outgoing.on_counted is not None:
            outgoing.on_counted()
        try:
            connected = self._lifecycle.connected or await self._connected()
            try:
                result = await self._send(connected, method, params, outgoing)
            except DisconnectedError:
                # The request was not sent, or was refused because its session had expired.
                if self._is_shared(connected, outgoing):
                    with anyio.move_on_after(self.config.connect_timeout):
                        await self._lifecycle.wait_lost(connected)
                    connected = await self._connected()
                result = await self._send(connected, method, params, outgoing)
            self._lifecycle.has_answered = True
            if nests_deeper(result, limits.nesting_results):
                reason = f"with a result nested deeper than {limits.nesting_results} levels"
                raise BadAnswerError(self.name, reason)
            return await self._redacted_result(result) if b'"isError"' in result else result
        except DownstreamError as error:
            raise redacted(error, self._redact) from None
        finally:
            self._pending, self._pending_bytes = self._pending - 1, self._pending_bytes - size
            self._lifecycle.idle.last_used = anyio.current_time()
            if not self._pending:
                self._none_pending.set()

    async def _connected(self) -> Connected:
        """Return the shared connection; wait for the attempt to connect, if there is one to wait for."""
        if self._lifecycle.connected is None:
            await self._lifecycle.wake(self.config.connect_timeout)
        if self._lifecycle.connected is None:
            raise self._lifecycle.unavailable()
        return self._lifecycle.connected

    def _is_shared(self, connected: Connected, outgoing: Outgoing) -> bool:
        """Return whether a request goes over the connection that all share."""
        if connected.introduction.era is not Era.HANDSHAKE or not self._dedicated.may_be_needed:
            return True
        return not self._dedicated.needed_by(outgoing)

    async def _send(self, connected: Connected, method: str, params: Members, outgoing: Outgoing) -> bytes:
        if self._is_shared(connected, outgoing):
            return await connected.link.request(method, params, outgoing)
        async with self._dedicated.acquire(outgoing) as link:
            return await link.request(method, params, outgoing)

    def _redacting(self, take: Notify | None) -> Notify | None:
        if take is None:
            return None
        return lambda method, params: take(method, redacted_params(params, self._redact))

    async def _redacted_result(self, result: bytes) -> bytes:
        """Remove secrets from a result that reports an error, as a URL with its key may be in one.

        Any other result is left alone: a proxy that edits data gets it wrong sooner or later.
        """
        if bytes(envelope.members(result).get("isError", b"")) != b"true":
            return result
        if len(result) < REDACTED_IN_LOOP_BYTES:
            return self._redact.json(result)
        return await in_thread(self._redact.json, result)

    async def watch(self, uri: str, params: Members, outgoing: Outgoing) -> None:
        """Subscribe a session to updates of a resource.

        Raises:
            DownstreamError: the server refuses, or cannot be reached.
        """
        handshake = self.era is Era.HANDSHAKE
        if handshake and self._dedicated.needed_by(outgoing):
            await self.call("resources/subscribe", params, outgoing)
        send = handshake and uri not in self.subscriptions.watched
        if send:
            await self.call("resources/subscribe", params, replace(outgoing, party=None))
        self.subscriptions.watch(uri, send)
        await self.wake()
        await self.subscriptions.wait_confirmed(uri)

    async def wake(self) -> None:
        """Have a sleeping server connected, without waiting for it."""
        await self._lifecycle.wake(0)

    async def notify(self, party: Party, method: str) -> None:
        """Pass a client's notification on, over the connections that serve the client's session alone."""
        if self._dedicated.keeps_shared(party) and self.link is not None:
            await self.link.notify(method)
        await self._dedicated.notify(party, method)

    def end(self, party: Party) -> None:
        """Close the connections of a session that has ended."""
        self._dedicated.end(party)

    def _in_use(self) -> bool:
        return self._pending > 0 or bool(self.subscriptions.watched) or self._dedicated.kept

    def _take_notification(self, method: str, params: Members) -> None:
        link = self.link
        self._notifications.take(method, params, () if link is None else link.in_flight)

    async def _answer(self, peer: Peer, method: str, params: Members) -> bytes:
        if method in CAPABILITY_OF:
            self._dedicated.note_asked(method, party_of(peer.in_flight))
        return await answer(peer, method, params, None)


def redacted(error: DownstreamError, redact: Redactor) -> DownstreamError:
    """Return the same error without the secrets that the server's own words may hold."""
    match error:
        case RemoteError():
            data = Raw(redact.json(bytes(error.data))) if isinstance(error.data, Raw) else error.data
            return RemoteError(error.server, error.code, redact(error.remote_message), data)
        case BadAnswerError():
            return BadAnswerError(error.server, redact(error.what), error.http_status)
        case CallInterruptedError():
            return CallInterruptedError(error.server, error.subject, redact(error.cause))
        case ServerUnavailableError():
            return ServerUnavailableError(error.server, error.state, redact(error.cause), error.stderr)
    return error
