"""Connections to one server that are not shared: a lane of its own for whoever must not meet others there.

A handshake-era server says neither whom it asks nor whose log it writes. On a lane there is no doubt: it
serves one session for as long as that lasts, or one modern request at a time. Lanes are opened when they are
first needed, bounded in number, and closed with their session or when idle.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.connect import Connected, Inbound, connect, describe
from mcp_context_proxy.downstream.link import Link, Outgoing, Party
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.server_requests import CAPABILITY_OF
from mcp_context_proxy.errors import DownstreamError, ServerUnavailableError, SessionForgottenError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members

logger = logging.getLogger(__name__)

DECLARED = (*CAPABILITY_OF.values(), "experimental")
"""Capabilities of a client that its lane declares as they are; others speak of another hop or era."""


@dataclass(slots=True, eq=False)
class DedicatedConnection:
    """One connection and the requests that use it."""

    key: Hashable
    party: Party
    """Of the session it serves, or of the latest modern request."""
    outgoing: Outgoing
    """The latest request: it knows how its client is asked."""
    exclusive: bool
    """One request at a time: it belongs to no session, and may ask."""
    expired: bool = False
    """The server has forgotten its session; it ends by itself when all that is under way is answered."""
    users: int = 0
    idle_since: float = 0.0
    log_level: bytes | None = None
    connected: Connected | None = None
    failure: str = ""
    settled: anyio.Event = field(default_factory=anyio.Event)
    ending: anyio.Event = field(default_factory=anyio.Event)

    @property
    def usable(self) -> bool:
        """Neither on its way out nor lost."""
        lost = self.connected is not None and self.connected.loss.happened.is_set()
        return not (lost or self.expired or self.ending.is_set())


class DedicatedConnections:
    """The lanes to one server, and who needs one."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        redact: Redactor,
        inbound: Callable[[DedicatedConnection], Inbound],
    ) -> None:
        """Have no lane yet.

        Args:
            config: Of the server.
            limits: Bounds on number and time.
            redact: Takes secrets out of a text, and learns those of a connection.
            inbound: What becomes of what the server sends on a lane.
        """
        self._redact, self._inbound = redact, inbound
        self.configure(config, limits)
        self._lanes: list[DedicatedConnection] = []
        self._group: TaskGroup | None = None
        self._asked: set[str] = set()
        self._keeper: Party | None = None

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration; lanes that are open stay as they are."""
        # A lane is only ever needed to a server that was found to speak the handshake.
        self._config = config.model_copy(update={"era": "handshake"})
        self._limits = limits

    async def run(self) -> None:
        """Own the lanes until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                await self._close_idle()
        finally:
            self._group = None

    def note_asked(self, method: str, party: Party | None) -> None:
        """The server asked over the shared connection, on behalf of `party` if that is known.

        A session that is found out so keeps the connection, and with it what the server knows of it;
        everybody else gets one of their own.
        """
        if self._config.isolation == "auto":
            self._asked.add(CAPABILITY_OF.get(method, method))
            if self._keeper is None and party is not None and party.lasting:
                self._keeper = party

    def needed_by(self, outgoing: Outgoing) -> bool:
        """Whether a request must not go over the shared connection."""
        party = outgoing.party
        if party is None or self._config.isolation == "shared":
            return False
        if self._config.isolation == "session":
            return True
        if self._keeper is not None:
            return party is not self._keeper
        return bool(self._asked) and not self._asked.isdisjoint(declared_by(outgoing))

    @asynccontextmanager
    async def lent(self, outgoing: Outgoing) -> AsyncIterator[Link]:
        """A lane for the length of one request.

        Raises:
            ServerUnavailableError: it cannot be opened, or there are too many.
        """
        party = outgoing.party
        assert party is not None
        lane = self._lane_for(party, outgoing)
        lane.users += 1
        lane.party, lane.outgoing = party, outgoing
        try:
            await lane.settled.wait()
            if lane.connected is None:
                raise ServerUnavailableError(self._config.name, "no connection of its own", lane.failure)
            await _set_level(lane, lane.connected, outgoing.log_level)
            yield lane.connected.link
        except SessionForgottenError:
            self._retire(lane)
            raise
        finally:
            lane.users -= 1
            lane.idle_since = anyio.current_time()

    def _retire(self, forgotten: DedicatedConnection) -> None:
        """A server that has forgotten one session has forgotten those that rested beside it."""
        forgotten.expired = True
        for lane in self._lanes:
            if lane.key == forgotten.key and not lane.users:
                lane.ending.set()

    @property
    def kept(self) -> bool:
        """Whether a session keeps the shared connection as its own, or somebody has another one."""
        return self._keeper is not None or bool(self._lanes)

    def keeps(self, party: Party) -> bool:
        """Whether this session does."""
        return self._keeper is party

    async def notify(self, party: Party, method: str) -> None:
        """Tell the lane of a session something that its client announced."""
        for lane in tuple(self._lanes):
            if lane.key is party and lane.connected is not None:
                await lane.connected.link.notify(method)

    def end(self, party: Party) -> None:
        """The session has ended, and with it its lane."""
        if self._keeper is party:
            self._keeper = None
        for lane in self._lanes:
            if lane.key is party:
                lane.ending.set()

    def _lane_for(self, party: Party, outgoing: Outgoing) -> DedicatedConnection:
        key: Hashable = party if party.lasting else (party.principal, bytes(outgoing.capabilities or b"{}"))
        fitting = [lane for lane in self._lanes if lane.key == key and lane.usable]
        # The one used last: its server is the likeliest to remember what went before.
        fitting.sort(key=lambda lane: lane.idle_since, reverse=True)
        for lane in fitting:
            if not (lane.exclusive and lane.users):
                return lane
        return self._open(
            DedicatedConnection(
                key, party, outgoing, exclusive=not party.lasting and bool(declared_by(outgoing))
            )
        )

    def _open(self, lane: DedicatedConnection) -> DedicatedConnection:
        name = self._config.name
        if self._group is None:
            raise ServerUnavailableError(name, "stopped")
        if len(self._lanes) >= self._limits.lanes_per_server:
            idle = [each for each in self._lanes if not each.users]
            if not idle:
                raise ServerUnavailableError(
                    name, "busy", f"{len(self._lanes)} connections are in use; try again"
                )
            oldest = min(idle, key=lambda each: each.idle_since)
            self._lanes.remove(oldest)
            oldest.ending.set()
        self._lanes.append(lane)
        self._group.start_soon(self._own, lane)
        return lane

    async def _own(self, lane: DedicatedConnection) -> None:
        """Open the connection of a lane, keep it while it is wanted, and close it."""
        output = Output(self._config.name, self._limits, self._redact)
        seconds = self._config.connect_timeout
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
                async with connect(
                    self._config, self._limits, output, self._redact, self._inbound(lane)
                ) as connected:
                    await connected.settled(self._limits.probe_seconds)
                    scope.deadline = float("inf")
                    lane.connected = connected
                    lane.settled.set()
                    await _first(lane.ending, connected.loss.happened)
                    lane.failure = self._redact(f"it {connected.loss.cause or 'was stopped'}")
            if scope.cancelled_caught:
                lane.failure = f"it was not ready within {seconds:g} s"
        except Exception as error:
            # boundary: whatever a downstream server or its transport does stays with this lane
            lane.failure = self._redact(describe(error))
        finally:
            lane.connected = None
            lane.settled.set()
            with suppress(ValueError):
                self._lanes.remove(lane)

    async def _close_idle(self) -> None:
        while True:
            await anyio.sleep(self._limits.lane_idle_seconds / 2)
            horizon = anyio.current_time() - self._limits.lane_idle_seconds
            for lane in self._lanes:
                if not lane.party.lasting and not lane.users and lane.idle_since < horizon:
                    lane.ending.set()


def capabilities_of(outgoing: Outgoing) -> Mapping[str, Any]:
    """What a lane declares for the client that it serves."""
    raw = outgoing.capabilities
    capabilities = envelope.value(raw) if raw is not None else {}
    return {name: capabilities[name] for name in DECLARED if isinstance(capabilities.get(name), dict)}


def declared_by(outgoing: Outgoing) -> set[str]:
    """What the client of a request said it can be asked."""
    return set(capabilities_of(outgoing)) & set(CAPABILITY_OF.values())


async def _set_level(lane: DedicatedConnection, connected: Connected, wanted: Raw | None) -> None:
    """Have the server log on this lane what its client wants to hear of."""
    if wanted is None or bytes(wanted) == lane.log_level or not connected.introduction.offers("logging"):
        return
    lane.log_level = bytes(wanted)
    params: Members = {"level": wanted}
    try:
        await connected.link.request("logging/setLevel", params, Outgoing(subject="logging/setLevel"))
    except DownstreamError as error:
        logger.debug("%s", error)


async def _first(*events: anyio.Event) -> None:
    async with anyio.create_task_group() as group:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        for event in events:
            group.start_soon(wait, event)
