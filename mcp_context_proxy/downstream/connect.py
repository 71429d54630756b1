"""Opens a connection to a downstream server over the transport that its configuration names."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import era_negotiation
from mcp_context_proxy.downstream.era_negotiation import Introduction
from mcp_context_proxy.downstream.inbound import Output
from mcp_context_proxy.downstream.jsonrpc import Inbound, Peer, ServerRequests
from mcp_context_proxy.downstream.link import Channel, Link, Outgoing
from mcp_context_proxy.downstream.stdio import open_sdk_channel, open_stdio
from mcp_context_proxy.errors import (
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
)
from mcp_context_proxy.oauth.credentials import Logins
from mcp_context_proxy.system.threads import load_sdk

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)

CREDENTIALS_WANTED = frozenset({401, 403, 407})
"""HTTP statuses about the credentials of the client."""


class Loss(Struct):
    """The end of a connection; the fields are filled in before the event is set."""

    happened: anyio.Event = field(default_factory=anyio.Event)
    cause: str = ""
    """The verb of a sentence, such as ``exited (code 1)``."""
    while_idle: bool = False
    """True if nobody killed the server and no call of a client was pending that it could have died of."""


class Connected(Struct, frozen=True):
    """An open connection whose era is negotiated."""

    link: Link
    introduction: Introduction
    loss: Loss
    server_requests: ServerRequests | None = None
    """Open requests of the server; None where it cannot make any."""
    process_group: int | None = None
    """See `Channel`."""
    version: str = ""
    """Name and version of the server's package; empty where they cannot be told."""

    async def wait_for_first_requests(self, seconds: float) -> None:
        """Wait, no longer than `seconds`, until the server's requests on connecting are answered.

        Many servers ask for the roots right after the handshake, and need them before they are called. The
        response to a ping comes after the requests that the server made before, so another round without
        a new request shows that there are no more.
        """
        known = 0
        with anyio.move_on_after(seconds):
            while self.server_requests is not None:
                with contextlib.suppress(RemoteError, BadAnswerError):
                    await self.link.request("ping", {}, Outgoing(subject="ping", timeout=seconds))
                await self.server_requests.wait_all_answered()
                if self.server_requests.taken == known:
                    break
                known = self.server_requests.taken


@asynccontextmanager
async def connect(
    config: ServerConfig, limits: Limits, output: Output, redact: Redactor, inbound: Inbound, logins: Logins
) -> AsyncIterator[Connected]:
    """Open the connection and negotiate; close it on the way out.

    Enter and leave it in one task. Secrets of the connection, such as a token, are added to `redact`.

    Raises:
        Exception: the transport's or the server's failure, possibly in an exception group.
    """
    auth = None
    # Also for the handshake: a server that is still being downloaded answers it late.
    limits = limits.model_copy(update={"connect_seconds": config.connect_timeout})
    if config.transport != "stdio" or sys.platform == "win32":
        await load_sdk()
    if config.transport != "stdio":
        from mcp_context_proxy.oauth.bearer import authorization  # noqa: PLC0415 - imports the SDK

        auth = authorization(config, redact.learn, logins.of(config))
    if config.transport == "http" and config.era == "modern":
        opening = _connect_modern(config, limits, auth, inbound, limits.connect_seconds)
    elif config.transport == "http" and config.era == "auto":
        opening = _connect_in_its_era(config, limits, output, auth, inbound)
    else:
        opening = _connect_duplex(config, limits, output, auth, inbound)
    async with opening as connected:
        yield connected


@asynccontextmanager
async def _connect_duplex(
    config: ServerConfig, limits: Limits, output: Output, auth: httpx2.Auth | None, inbound: Inbound
) -> AsyncIterator[Connected]:
    """Connect over a transport on which both sides send at any time."""
    async with anyio.create_task_group() as group:
        peer = Peer(config=config, limits=limits, group=group, inbound=inbound, on_stray=output.add_stray)
        loss = Loss()

        async def watch(channel: Channel) -> None:
            await channel.until_ended()
            # Before the pending requests are failed: afterwards none is pending.
            idle = all(sent.party is None for sent in peer.in_flight)
            loss.cause = await channel.wait_closed()
            loss.while_idle = idle and not channel.killed
            peer.close(loss.cause)
            loss.happened.set()

        try:
            async with _open_channel(config, limits, output, auth, peer) as channel:
                peer.attach(channel)
                group.start_soon(watch, channel)
                if config.transport == "http":
                    # The modern probe was a plain POST; this transport is for the handshake only.
                    introduction = await era_negotiation.initialize(peer, limits, inbound.capabilities)
                else:
                    introduction = await era_negotiation.negotiate(peer, config, limits, inbound.capabilities)
                channel.version = introduction.version
                yield Connected(peer, introduction, loss, peer.server_requests, channel.process_group)
        finally:
            peer.close("was stopped")
            group.cancel_scope.cancel()


def _open_channel(
    config: ServerConfig, limits: Limits, output: Output, auth: httpx2.Auth | None, peer: Peer
) -> AbstractAsyncContextManager[Channel]:
    if config.transport == "http":
        from mcp_context_proxy.downstream.http_session import open_session_http  # noqa: PLC0415 - as below

        return open_session_http(config, limits, auth, peer)
    if config.transport == "sse":
        from mcp_context_proxy.downstream.http_session import open_sse  # noqa: PLC0415 - imports the SDK

        return open_sse(config, limits, auth, peer)
    if sys.platform == "win32":
        return open_sdk_channel(config, peer.receive)
    return open_stdio(config, limits, output, peer)


@asynccontextmanager
async def _connect_modern(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, inbound: Inbound, seconds: float
) -> AsyncIterator[Connected]:
    from mcp_context_proxy.downstream.http_client import client_of  # noqa: PLC0415 - as below
    from mcp_context_proxy.downstream.http_modern import ModernHttp  # noqa: PLC0415 - imports the HTTP client

    async with await client_of(config, limits, auth) as client:
        link = ModernHttp(config, limits, client, inbound.on_notification)
        yield Connected(link, await era_negotiation.discover(link, seconds), Loss())


@asynccontextmanager
async def _connect_in_its_era(
    config: ServerConfig, limits: Limits, output: Output, auth: httpx2.Auth | None, inbound: Inbound
) -> AsyncIterator[Connected]:
    """Connect to a server at a URL that may be of either era, and may be slow to show which.

    The modern probe comes first and the handshake second. A server that was too slow for the probe and then
    refuses the handshake is modern after all, and gets a second probe with more time.
    """
    async with AsyncExitStack() as stack:
        late = False
        try:
            modern = _connect_modern(config, limits, auth, inbound, limits.probe_seconds)
            connected = await stack.enter_async_context(modern)
        except (RemoteError, BadAnswerError, CallTimeoutError) as error:
            if _wants_credentials(error):
                raise
            logger.debug("server %s: %s", config.name, error)
            late = isinstance(error, CallTimeoutError)
        else:
            yield connected
            return
        try:
            duplex = _connect_duplex(config, limits, output, auth, inbound)
            connected = await stack.enter_async_context(duplex)
        except Exception as error:
            refused = innermost(error)
            refusal = isinstance(refused, RemoteError | BadAnswerError) and not _wants_credentials(refused)
            if not (late and refusal):
                raise
            modern = _connect_modern(config, limits, auth, inbound, limits.connect_seconds)
            connected = await stack.enter_async_context(modern)
        else:
            if late:
                slow = await _answers_probe_now(config, limits, auth, inbound)
                introduction = replace(connected.introduction, ignores_probe=not slow, slow=slow)
                connected = replace(connected, introduction=introduction)
        yield connected


async def _answers_probe_now(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, inbound: Inbound
) -> bool:
    """Probe a server at a URL again; return whether it was only slow before."""
    try:
        async with _connect_modern(config, limits, auth, inbound, limits.probe_seconds):
            return True
    except (RemoteError, BadAnswerError):
        return True
    except DownstreamError:
        return False


def _wants_credentials(error: Exception) -> bool:
    """Return whether the server refuses our credentials, which another era would not change."""
    return isinstance(error, BadAnswerError) and error.http_status in CREDENTIALS_WANTED


def innermost(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups, or an error that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def fault_of(error: BaseException) -> Fault:
    """Return the kind of a failed connection."""
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
    return str(error) or type(error).__name__
