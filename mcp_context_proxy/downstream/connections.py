"""Opens connections to downstream servers over the transport of their configuration, shared or dedicated.

A handshake-era server does not say which client a request or a log message of its own is meant for. On a
dedicated connection there is no doubt: it serves one session for as long as that lasts, or one modern request
at a time. Such connections are opened when they are first needed, bounded in number, and closed with their
session or when idle.

With ``isolation = "auto"`` all sessions share one connection until the server makes a request of a client.
From then on, the session it asked keeps the shared connection, and the others that can be asked the same get
dedicated ones. Once a call has failed because its client could not be asked, so do such clients: the shared
connection declares every capability, and a server may well do without one that a client lacks.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.programs import environment_of
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import Channel, Link, Outgoing, Party, era_negotiation, in_words
from mcp_context_proxy.downstream.era_negotiation import Connected, Loss
from mcp_context_proxy.downstream.inbound import Route, answer
from mcp_context_proxy.downstream.jsonrpc import Inbound, Peer
from mcp_context_proxy.downstream.stdio import QUOTED_LINES, Output, open_sdk_channel, open_stdio
from mcp_context_proxy.errors import (
    NAMED,
    AuthorizationError,
    BadAnswerError,
    CallInterruptedError,
    CallTimeoutError,
    DisconnectedError,
    DownstreamError,
    Fault,
    RemoteError,
    ServerUnavailableError,
    SessionForgottenError,
    StartError,
    innermost,
    some_of,
)
from mcp_context_proxy.oauth import Logins
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import CAPABILITY_OF, client_capabilities
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import alongside, load
from mcp_context_proxy.trust import ACTING

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)

CREDENTIALS_WANTED = frozenset({401, 403, 407})
"""HTTP statuses about the credentials of the client."""


@asynccontextmanager
async def connect(
    config: ServerConfig, limits: Limits, output: Output, redact: Redactor, inbound: Inbound, logins: Logins
) -> AsyncIterator[Connected]:
    """Open the connection and negotiate; close it on the way out.

    Enter and leave it in one task. Secrets of the connection, such as a token, are added to `redact`. A
    failure of the transport or the server is raised as it is, possibly in an exception group.
    """
    auth = None
    # Also for the handshake: a server that is still being downloaded answers it late.
    limits = replace(limits, connect_seconds=config.connect_timeout)
    if config.transport != "stdio":
        await load("mcp_context_proxy.downstream.http_session")
        from mcp_context_proxy.oauth.bearer import authorization  # noqa: PLC0415 - imports the HTTP client

        auth = authorization(config, redact.learn, logins.of(config))
    async with _Opening(config, limits, output, auth, inbound).opened() as connected:
        yield connected


class _Opening(Struct, frozen=True):
    """Opens one connection in the way that suits the transport and the era of its server."""

    config: ServerConfig
    limits: Limits
    output: Output
    auth: httpx2.Auth | None
    inbound: Inbound

    def opened(self) -> AbstractAsyncContextManager[Connected]:
        if self.config.transport == "http" and self.config.era == "modern":
            return self._modern(self.limits.connect_seconds)
        if self.config.transport == "http" and self.config.era == "auto":
            return self._in_its_era()
        return self._duplex()

    @asynccontextmanager
    async def _duplex(self) -> AsyncIterator[Connected]:
        """Connect over a transport on which both sides send at any time."""
        config, limits, inbound = self.config, self.limits, self.inbound
        async with anyio.create_task_group() as group:
            on_stray = self.output.add_stray
            peer = Peer(config=config, limits=limits, group=group, inbound=inbound, on_stray=on_stray)
            loss = Loss()

            async def watch(channel: Channel) -> None:
                await channel.until_ended()
                # Before the pending requests are failed: afterwards none is pending.
                idle = all(sent.party is None for sent in peer.in_flight)
                loss.cause = await channel.wait_closed()
                loss.while_idle = idle and not channel.killed
                peer.close(loss.cause, self.output.stderr_lines()[-QUOTED_LINES:])
                loss.happened.set()

            try:
                async with self._channel(peer) as channel:
                    peer.attach(channel)
                    group.start_soon(watch, channel)
                    if config.transport == "http":
                        # The modern probe was a plain POST; this transport is for the handshake only.
                        introduction = await era_negotiation.initialize(peer, limits, inbound.capabilities)
                    else:
                        introduction = await era_negotiation.negotiate(
                            peer, config, limits, inbound.capabilities
                        )
                    channel.version = introduction.version
                    requests = peer.server_requests
                    yield Connected(peer, introduction, loss, requests, channel.process_group)
            finally:
                peer.close("was stopped")
                group.cancel_scope.cancel()

    def _channel(self, peer: Peer) -> AbstractAsyncContextManager[Channel]:
        config = self.config
        if config.transport != "stdio":
            from mcp_context_proxy.downstream import http_session  # noqa: PLC0415 - imports the HTTP client

            if config.transport == "sse":
                return http_session.open_sse(config, self.limits, self.auth, peer)
            return http_session.open_session_http(config, self.limits, self.auth, peer)
        if sys.platform == "win32":
            return open_sdk_channel(config, peer.receive)
        return open_stdio(config, self.limits, self.output, peer)

    @asynccontextmanager
    async def _modern(self, seconds: float) -> AsyncIterator[Connected]:
        from mcp_context_proxy.downstream import http_client  # noqa: PLC0415 - imports the HTTP client

        async with await http_client.client_of(self.config, self.limits, self.auth) as client:
            link = http_client.ModernHttp(self.config, self.limits, client, self.inbound.on_notification)
            yield Connected(link, await era_negotiation.discover(link, seconds), Loss())

    @asynccontextmanager
    async def _in_its_era(self) -> AsyncIterator[Connected]:
        """Connect to a server at a URL that may be of either era, and may be slow to show which.

        The modern probe comes first and the handshake second. A server that was too slow for the probe and
        then refuses the handshake is modern after all, and gets a second probe with more time.
        """
        async with AsyncExitStack() as stack:
            late = False
            try:
                connected = await stack.enter_async_context(self._modern(self.limits.probe_seconds))
            except (RemoteError, BadAnswerError, CallTimeoutError) as error:
                if _wants_credentials(error):
                    raise
                logger.debug("server %s: %s", self.config.name, error)
                late = isinstance(error, CallTimeoutError)
            else:
                yield connected
                return
            try:
                connected = await stack.enter_async_context(self._duplex())
            except Exception as error:
                refused = innermost(error)
                is_refusal = isinstance(refused, RemoteError | BadAnswerError)
                if not (late and is_refusal) or _wants_credentials(refused):
                    raise
                connected = await stack.enter_async_context(self._modern(self.limits.connect_seconds))
            else:
                if late:
                    slow = await self._answers_probe_now()
                    introduction = replace(connected.introduction, ignores_probe=not slow, slow=slow)
                    connected = replace(connected, introduction=introduction)
            yield connected

    async def _answers_probe_now(self) -> bool:
        """Probe a server at a URL again; return whether it was only slow before."""
        try:
            async with self._modern(self.limits.probe_seconds):
                return True
        except (RemoteError, BadAnswerError):
            return True
        except DownstreamError:
            return False


def _wants_credentials(error: BaseException) -> bool:
    """Return whether the server refuses our credentials, which another era would not change."""
    return isinstance(error, BadAnswerError) and error.http_status in CREDENTIALS_WANTED


def fault_of(error: BaseException) -> Fault:
    match innermost(error):
        case StartError(fault=fault):
            return fault
        case CallInterruptedError() | DisconnectedError():
            return Fault.EXITED
        case CallTimeoutError():
            return Fault.SILENT
        case AuthorizationError():
            return Fault.LOGIN
        case RemoteError():
            return Fault.REFUSED
        case BadAnswerError():
            return Fault.NO_MCP
    return Fault.UNREACHABLE


def describe(error: BaseException) -> str:
    """Describe the cause of a failed connection in one line."""
    error = innermost(error)
    if isinstance(error, CallInterruptedError):
        return f"it {error.cause}"
    if isinstance(error, ServerUnavailableError | AuthorizationError):
        return error.cause
    if isinstance(error, RemoteError):
        return f"it answered with error {error.code}: {error.remote_message}"
    if isinstance(error, BadAnswerError):
        return f"it answered {error.what}"
    if isinstance(error, OSError) and error.strerror:
        # Without its number, which tells a person nothing.
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return in_words(str(error)) or type(error).__name__


def remedy_for_output(lines: Sequence[str], config: ServerConfig) -> str:
    """Return the remedy for a program that has ended, by its output; empty if that says nothing known."""
    output = "\n".join(lines)
    known = next((remedy for said, remedy in _REMEDIES if said.search(output)), "")
    if known or not (missing := _missing_variables(lines, config)):
        return known or (_ARGUMENTS_REMEDY if _ARGUMENTS.search(output) else "")
    names, quoted = some_of(missing), ", ".join(f'"{name}"' for name in missing[:NAMED])
    if all(map(os.environ.get, missing)):
        return (
            f"it does not get {names} of this environment: write inherit = [{quoted}] under "
            f"servers.{config.name}"
        )
    return f"set {names} in env under servers.{config.name}"


def _missing_variables(lines: Sequence[str], config: ServerConfig) -> list[str]:
    """Return the names of variables that a program says it needs, and that it was not given."""
    given, found = environment_of(config, os.environ), list[str]()
    for number, line in enumerate(lines):
        if _MISSING.search(line):
            found += _VARIABLE.findall(line) or _LISTED.findall("\n".join(lines[number + 1 : number + 5]))
    return [name for name in dict.fromkeys(found) if not given.get(name)]


_MISSING: Final = pattern(
    r"(?i:env(?:ironment)?[ _-]?var|\b(?:required|missing|please set|must be set|must set)\b"
    r"|\b(?:not|isn't|un)[ ]?(?:set|defined|provided|configured)\b)|^KeyError: '"
)
_VARIABLE: Final = pattern(r"(?<![\w./-])(?!ERR_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w/])")
_ARGUMENTS: Final = pattern(
    r"(?im)^(?:\[[^\]\n]{0,40}\] ?)?usage:|command[- ]line argument"
    r"|\b(?:unknown|missing|unrecognized|no such|required|too many|following) (?:required )?"
    r"(?:option|argument|parameter|flag)"
)
_ARGUMENTS_REMEDY: Final = "its args are wrong, or lack something that it needs: correct them by what it says"
_LISTED: Final = pattern(r"(?m)^\W{0,8}((?!ERR_)[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b")
"""The variables that a program needs, each on a line of its own."""

_REMEDIES: Final = (
    (
        pattern(r"EADDRINUSE|[Aa]ddress already in use"),
        "a port that it wants is taken, perhaps by another copy of it. Behind the proxy it should speak over "
        "stdio: look for an option such as --stdio or --transport stdio",
    ),
    (
        pattern(r"'\w*Server' object has no attribute|No module named 'mcp\.|from 'mcp(?:\.\w+)*'"),
        "it seems to be written for version 1 of the Python SDK of MCP and to run with version 2: with uvx, "
        'begin its args with "--with", "mcp<2"',
    ),
    (
        pattern(r"does not satisfy Python|requires a different Python|Requires-Python"),
        'it needs another version of Python: with uvx, begin its args with "--python", "3.13"',
    ),
    (
        pattern(r"npm (?:ERR!|error) (?:404|notarget)|not found in the package registry"),
        "its registry does not have this package, or no such version: check the name, or pin another version",
    ),
    (
        pattern(r"An executable named .* is not provided by package"),
        'with uvx, begin its args with "--from", the package, and the executable that is named above',
    ),
    (pattern(r"Cannot connect to the Docker daemon|error during connect: .*docker"), "start Docker"),
    (
        pattern(r"ENOTFOUND|EAI_AGAIN|Temporary failure in name resolution|[Nn]ame or service not known"),
        "it does not reach the network: check the connection, and whether this network needs HTTPS_PROXY",
    ),
    (
        pattern(r"ECONNREFUSED|[Cc]onnection refused"),
        "what it connects to does not run, or has another address: start that, or correct its args or env",
    ),
)
"""Texts in the output of a program that has ended, with the remedies; the first that fits counts."""

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
    """The dedicated connections to one server, and the decision who needs one."""

    def __init__(
        self, config: ServerConfig, limits: Limits, *, redact: Redactor, route: Route, logins: Logins
    ) -> None:
        self._redact, self._route, self._logins = redact, route, logins
        self._connections: list[DedicatedConnection] = []
        self._group: TaskGroup | None = None
        self._asked: set[str] = set()
        """Capabilities that the server has made use of."""
        self._unsupported: set[str] = set()
        """Those of them that the client of a failed call did not support."""
        self._told = False
        """True once the log has said that there are many."""
        self.keeper: Party | None = None
        """The session that keeps the shared connection as its own."""
        self.configure(config, limits)

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration; open connections stay as they are."""
        # Dedicated connections are only needed to a server that was found to speak the handshake.
        self._config = replace(config, era="handshake")
        self._limits = limits
        self._note_need()

    def _note_need(self) -> None:
        isolation = self._config.isolation
        self.may_be_needed = isolation == "session" or (isolation == "auto" and bool(self._asked))
        """False while every request goes over the shared connection."""

    async def run(self) -> None:
        """Own the connections until cancelled; close those that are idle."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                while True:
                    await anyio.sleep(self._limits.lane_idle_seconds / 2)
                    horizon = anyio.current_time() - self._limits.lane_idle_seconds
                    for each in self._connections:
                        if not each.party.lasting and not each.users and each.idle_since < horizon:
                            each.ending.set()
        finally:
            self._group = None

    def note_asked(self, method: str, party: Party | None, calls: Sequence[Outgoing]) -> bool:
        """Note that the server made a request over the shared connection, on behalf of `party` if known.

        A session that is identified this way keeps the connection, and with it the state that the server
        holds for the session; the others get connections of their own. Returns True if none of the clients
        whose `calls` are under way can be asked.
        """
        if self._config.isolation != "auto":
            return False
        capability = CAPABILITY_OF[method]
        unsupported = bool(calls) and all(capability not in capabilities_to_ask(call) for call in calls)
        if unsupported:
            for call in calls:
                call.lacked = capability
        elif self.keeper is None and party is not None and party.lasting:
            self.keeper = party
        self._asked.add(capability)
        self._note_need()
        return unsupported

    def note_failed(self, outgoing: Outgoing) -> None:
        """Note that a request has failed: for want of a capability, if its client was asked in vain."""
        if outgoing.lacked is not None:
            self._unsupported.add(outgoing.lacked)

    def needed_by(self, outgoing: Outgoing) -> bool:
        """Return whether a request must not go over the shared connection."""
        party = outgoing.party
        if party is None or self._config.isolation == "shared":
            return False
        if self._config.isolation == "session":
            return True
        if party is self.keeper:
            return False
        able = capabilities_to_ask(outgoing)
        return self.keeper is not None or not (self._asked.isdisjoint(able) and self._unsupported <= able)

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
        for each in self._connections:
            if each.connected is not None and each.connected.link is link:
                each.expired = True
                # With it, it has forgotten those that were idle beside it.
                for other in self._connections:
                    if other.key == each.key and not other.users:
                        other.ending.set()

    def _find(self, party: Party, outgoing: Outgoing) -> DedicatedConnection:
        """Return a free connection for the party, or open one."""
        key: Hashable = party if party.lasting else (party.principal, bytes(outgoing.capabilities or b"{}"))
        fitting = [each for each in self._connections if each.key == key and each.usable]
        # The one used last: its server is the likeliest to remember what went before.
        fitting.sort(key=lambda each: each.idle_since, reverse=True)
        for each in fitting:
            if not (each.exclusive and each.users):
                return each
        name = self._config.name
        if self._group is None:
            raise ServerUnavailableError(name, "stopped")
        most, rights = self._limits.lanes_per_server, ACTING.get()
        taken = [each for each in self._connections if each.person == rights.person]
        # Whoever has many of their own makes room with those, and not with those of others.
        crowded = len(taken) >= rights.share(most)
        taken = taken if crowded else self._connections
        if crowded or len(taken) >= most:
            idle = [each for each in taken if not each.users]
            if not idle:
                raise ServerUnavailableError(name, "busy", f"{len(taken)} connections are in use; try again")
            oldest = min(idle, key=lambda each: each.idle_since)
            self._connections.remove(oldest)
            oldest.ending.set()
        exclusive = not party.lasting and bool(capabilities_to_ask(outgoing))
        opened = DedicatedConnection(key, party, outgoing, exclusive, rights.person)
        self._connections.append(opened)
        self._note_many()
        self._group.start_soon(self._own, opened)
        return opened

    def _note_many(self) -> None:
        """Say once in the log that half of the connections that are allowed are open."""
        open_now, most = len(self._connections), self._limits.lanes_per_server
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
                self._connections.remove(dedicated)

    def _inbound(self, dedicated: DedicatedConnection) -> Inbound:
        def on_notification(method: str, params: Members) -> None:
            in_flight = () if dedicated.connected is None else dedicated.connected.link.in_flight
            self._route(method, params, in_flight, dedicated.party)

        async def answer_party(peer: Peer, method: str, params: Members) -> bytes:
            return await answer(peer, method, params, dedicated.outgoing)

        return Inbound(on_notification, answer_party, declared_capabilities(dedicated.outgoing))

    @property
    def kept(self) -> bool:
        """True while a session keeps the shared connection as its own, or there is a dedicated one."""
        return self.keeper is not None or bool(self._connections)

    async def notify(self, party: Party, method: str) -> None:
        """Send a client's notification to the server over the dedicated connections of its session."""
        for each in tuple(self._connections):
            if each.key is party and each.connected is not None:
                await each.connected.link.notify(method)

    def end(self, party: Party) -> None:
        """Close the connections of a session that has ended."""
        if self.keeper is party:
            self.keeper = None
        for each in self._connections:
            if each.key is party:
                each.ending.set()


def declared_capabilities(outgoing: Outgoing) -> Mapping[str, Any]:
    """Return the capabilities to declare on a connection for the client of a request."""
    capabilities = envelope.object_of(outgoing.capabilities)
    return {name: capabilities[name] for name in DECLARED if isinstance(capabilities.get(name), dict)}


def capabilities_to_ask(outgoing: Outgoing) -> set[str]:
    """Return the capabilities by which the client of a request can be asked for something."""
    return {*client_capabilities(outgoing.capabilities)}


async def _set_level(dedicated: DedicatedConnection, connected: Connected, wanted: Raw | None) -> None:
    if wanted is None or bytes(wanted) == dedicated.log_level or not connected.introduction.offers("logging"):
        return
    dedicated.log_level = bytes(wanted)
    params: Members = {"level": wanted}
    try:
        await connected.link.request("logging/setLevel", params, Outgoing(subject="logging/setLevel"))
    except DownstreamError as error:
        logger.debug("%s", error)
