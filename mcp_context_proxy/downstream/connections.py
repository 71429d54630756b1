"""Opens connections to downstream servers over their transport, and tells why one could not be opened."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.programs import environment_of
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import Channel, era_negotiation, in_words
from mcp_context_proxy.downstream.era_negotiation import Connected, Loss
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
    StartError,
    innermost,
    some_of,
)
from mcp_context_proxy.oauth import Logins
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import load

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
