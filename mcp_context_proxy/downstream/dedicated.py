"""Dedicated connections: those that serve one session, or one modern request at a time.

A handshake-era server does not say which client a request or a log message of its own is meant for. On a
dedicated connection there is no doubt. Such connections are opened when they are first needed, as
`inbound.Isolation` says, bounded in number, and closed with their session or when idle.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import Link, Outgoing, Party, describe
from mcp_context_proxy.downstream.connections import Connected, connect
from mcp_context_proxy.downstream.inbound import Route, answer, capabilities_to_ask
from mcp_context_proxy.downstream.jsonrpc import Inbound, Peer
from mcp_context_proxy.downstream.stdio import Output
from mcp_context_proxy.errors import DownstreamError, ServerUnavailableError, SessionForgottenError
from mcp_context_proxy.oauth import Logins
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import CAPABILITY_OF
from mcp_context_proxy.system.threads import alongside
from mcp_context_proxy.trust import ACTING

logger = logging.getLogger(__name__)

DECLARED = (*CAPABILITY_OF.values(), "experimental")
"""Capabilities of a client that its connection declares unchanged; others belong to another hop or era."""


class DedicatedConnection(Struct, eq=False):
    """One connection and the requests that use it."""

    key: Hashable
    party: Party
    """The session that it serves, or the party of the latest modern request."""
    outgoing: Outgoing
    """The latest request, which says how its client can be asked."""
    exclusive: bool
    """True for one request at a time: it belongs to no session, and its client may be asked."""
    person: str | None
    """The person whose request has opened it; see `Principal.person`."""
    expired: bool = False
    """True once the server has forgotten its session; it ends when every pending request is answered."""
    users: int = 0
    idle_since: float = 0.0
    log_level: bytes | None = None
    connected: Connected | None = None
    failure: str = ""
    opened: anyio.Event = field(default_factory=anyio.Event)
    """Set once the connection is open or has failed."""
    ending: anyio.Event = field(default_factory=anyio.Event)

    @property
    def usable(self) -> bool:
        """True while it is neither on its way out nor lost."""
        lost = self.connected is not None and self.connected.loss.happened.is_set()
        return not (lost or self.expired or self.ending.is_set())


class DedicatedConnections:
    """The dedicated connections to one server."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        *,
        redact: Redactor,
        route: Route,
        logins: Logins,
        group: TaskGroup,
    ) -> None:
        """Prepare; `group` has the tasks that own the connections."""
        self._redact, self._route, self._logins, self._group = redact, route, logins, group
        self.open: list[DedicatedConnection] = []
        self._told = False
        """True once the log has said that there are many."""
        self.configure(config, limits)
        group.start_soon(self._close_idle)

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration; open connections stay as they are."""
        # Dedicated connections are only needed to a server that was found to speak the handshake.
        self._config, self._limits = replace(config, era="handshake"), limits

    async def _close_idle(self) -> None:
        while True:
            await anyio.sleep(self._limits.lane_idle_seconds / 2)
            horizon = anyio.current_time() - self._limits.lane_idle_seconds
            for each in self.open:
                if not each.party.lasting and not each.users and each.idle_since < horizon:
                    each.ending.set()

    @asynccontextmanager
    async def acquire(self, outgoing: Outgoing) -> AsyncIterator[Link]:
        """Use a dedicated connection for the length of one request.

        Raises `ServerUnavailableError` if it cannot be opened, or there are too many.
        """
        party = outgoing.party
        assert party is not None
        dedicated = self._find(party, outgoing)
        dedicated.users += 1
        dedicated.party, dedicated.outgoing = party, outgoing
        try:
            await dedicated.opened.wait()
            if dedicated.connected is None:
                raise ServerUnavailableError(self._config.name, "no connection of its own", dedicated.failure)
            await _set_level(dedicated, dedicated.connected, outgoing.log_level)
            yield dedicated.connected.link
        except SessionForgottenError:
            self.forget(dedicated.connected.link if dedicated.connected else None)
            raise
        finally:
            dedicated.users -= 1
            dedicated.idle_since = anyio.current_time()

    def forget(self, link: Link | None) -> None:
        """Use a connection no more, if it is one of these: its server has forgotten the session."""
        for each in self.open:
            if each.connected is not None and each.connected.link is link:
                each.expired = True
                # With it, it has forgotten those that were idle beside it.
                for other in self.open:
                    if other.key == each.key and not other.users:
                        other.ending.set()

    def _find(self, party: Party, outgoing: Outgoing) -> DedicatedConnection:
        """Return a free connection for the party, or open one."""
        key: Hashable = party if party.lasting else (party.principal, bytes(outgoing.capabilities or b"{}"))
        fitting = [each for each in self.open if each.key == key and each.usable]
        # The one used last: its server is the likeliest to remember what went before.
        fitting.sort(key=lambda each: each.idle_since, reverse=True)
        for each in fitting:
            if not (each.exclusive and each.users):
                return each
        name = self._config.name
        most, rights = self._limits.lanes_per_server, ACTING.get()
        taken = [each for each in self.open if each.person == rights.person]
        # Whoever has many of their own makes room with those, and not with those of others.
        crowded = len(taken) >= rights.share(most)
        taken = taken if crowded else self.open
        if crowded or len(taken) >= most:
            idle = [each for each in taken if not each.users]
            if not idle:
                raise ServerUnavailableError(name, "busy", f"{len(taken)} connections are in use; try again")
            oldest = min(idle, key=lambda each: each.idle_since)
            self.open.remove(oldest)
            oldest.ending.set()
        exclusive = not party.lasting and bool(capabilities_to_ask(outgoing))
        opened = DedicatedConnection(key, party, outgoing, exclusive, rights.person)
        self.open.append(opened)
        self._note_many()
        self._group.start_soon(self._own, opened)
        return opened

    def _note_many(self) -> None:
        """Say once in the log that half of the connections that are allowed are open."""
        open_now, most = len(self.open), self._limits.lanes_per_server
        if self._told or 2 * open_now < most:
            return
        self._told = True
        each = ", and each a process" if self._config.command is not None else ""
        logger.warning(
            "server %s: %d dedicated connections, one for each client that it may ask%s; "
            "limits.lanes_per_server allows %d",
            *(self._config.name, open_now, each, most),
        )

    async def _own(self, dedicated: DedicatedConnection) -> None:
        """Open a connection, keep it while it is wanted, and close it."""
        output = Output(server=self._config.name, limits=self._limits, redact=self._redact)
        inbound = self._inbound(dedicated)
        seconds = self._config.connect_timeout

        async def end_when_lost(connected: Connected) -> None:
            await connected.loss.happened.wait()
            dedicated.ending.set()

        try:
            with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
                async with connect(
                    self._config, self._limits, output, self._redact, inbound, self._logins
                ) as connected:
                    await connected.wait_for_first_requests(self._limits.probe_seconds)
                    scope.deadline = float("inf")
                    dedicated.connected = connected
                    dedicated.opened.set()
                    async with alongside(partial(end_when_lost, connected)):
                        await dedicated.ending.wait()
                    dedicated.failure = self._redact(f"it {connected.loss.cause or 'was stopped'}")
            if scope.cancelled_caught:
                dedicated.failure = f"it was not ready within {seconds:g} s"
        except Exception as error:
            # boundary: a server and its transport can raise anything, which stays with this connection
            dedicated.failure = self._redact(describe(error))
        finally:
            dedicated.connected = None
            dedicated.opened.set()
            with suppress(ValueError):
                self.open.remove(dedicated)

    def _inbound(self, dedicated: DedicatedConnection) -> Inbound:
        def on_notification(method: str, params: Members) -> None:
            in_flight = () if dedicated.connected is None else dedicated.connected.link.in_flight
            self._route(method, params, in_flight, dedicated.party)

        async def answer_party(peer: Peer, method: str, params: Members) -> bytes:
            return await answer(peer, method, params, dedicated.outgoing)

        return Inbound(on_notification, answer_party, declared_capabilities(dedicated.outgoing))

    async def notify(self, party: Party, method: str) -> None:
        """Send a client's notification to the server over the dedicated connections of its session."""
        for each in tuple(self.open):
            if each.key is party and each.connected is not None:
                await each.connected.link.notify(method)

    def end(self, party: Party) -> None:
        """Close the connections of a session that has ended."""
        for each in self.open:
            if each.key is party:
                each.ending.set()


def declared_capabilities(outgoing: Outgoing) -> Mapping[str, Any]:
    """Return the capabilities to declare on a connection for the client of a request."""
    capabilities = envelope.object_of(outgoing.capabilities)
    return {name: capabilities[name] for name in DECLARED if isinstance(capabilities.get(name), dict)}


async def _set_level(dedicated: DedicatedConnection, connected: Connected, wanted: Raw | None) -> None:
    if wanted is None or bytes(wanted) == dedicated.log_level or not connected.introduction.offers("logging"):
        return
    dedicated.log_level = bytes(wanted)
    params: Members = {"level": wanted}
    try:
        await connected.link.request("logging/setLevel", params, Outgoing(subject="logging/setLevel"))
    except DownstreamError as error:
        logger.debug("%s", error)
