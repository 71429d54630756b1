"""One downstream server as the rest of the proxy knows it: what it offers, how it is doing, and calls to it.

A single task (`DownstreamClient.run`) owns all that is open. Everybody else only calls. What fails here is
told to the callers of this server and to nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.redaction import Redactor
from mcp_context_proxy.config.secrets import secrets_of
from mcp_context_proxy.downstream.announcements import Announcements, OnEvent
from mcp_context_proxy.downstream.condition import Condition, State
from mcp_context_proxy.downstream.connection import Connection
from mcp_context_proxy.downstream.lanes import Lanes
from mcp_context_proxy.downstream.link import PLAIN, Link, Outgoing, Party
from mcp_context_proxy.downstream.listing import Listing
from mcp_context_proxy.downstream.lists import STALE, Lists
from mcp_context_proxy.downstream.memory import Memory
from mcp_context_proxy.downstream.negotiation import Introduction
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.requests import Requests
from mcp_context_proxy.downstream.rest import Rest
from mcp_context_proxy.downstream.starts import Starts
from mcp_context_proxy.downstream.wishes import Wishes
from mcp_context_proxy.errors import ServerUnavailableError
from mcp_context_proxy.items import IndexedChunk
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.era import Era


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
        self.wishes = Wishes()
        """What clients want of the server beside answers."""
        redact = Redactor(secrets_of(config))
        self._output = Output(config.name, limits, redact)
        self._condition = Condition(config.name, limits, self._output, on_change)
        self._lists = Lists(config.name, limits, redact, on_change)
        self._rest = Rest(config)
        announcements = Announcements(self._lists, redact, on_event)
        self._lanes = Lanes(config, limits, redact, announcements.on_lane)
        self._requests = Requests(config, limits, redact, self._condition, self._rest, self._lanes)
        self._connection = Connection(
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
    def state(self) -> State:
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
    def listing(self) -> Listing:
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

    async def run(self, starts: Starts) -> None:
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
            self._condition.enter(State.STOPPED)
            self._condition.settled.set()

    def _in_use(self) -> bool:
        return self._requests.under_way > 0 or bool(self.wishes.watched) or self._lanes.kept
