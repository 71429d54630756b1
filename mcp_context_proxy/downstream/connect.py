"""Opens a link to a downstream server over whatever transport its configuration names."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import era_negotiation
from mcp_context_proxy.downstream.era_negotiation import Introduction
from mcp_context_proxy.downstream.jsonrpc import Peer
from mcp_context_proxy.downstream.link import Link, Notify, OpenChannel, Outgoing
from mcp_context_proxy.downstream.output import Output
from mcp_context_proxy.downstream.server_requests import CANCELLED, Answer, ServerRequests
from mcp_context_proxy.downstream.stdio import open_stdio
from mcp_context_proxy.errors import (
    AuthorizationError,
    BadAnswerError,
    CallInterruptedError,
    CallTimeoutError,
    DownstreamError,
    RemoteError,
    ServerUnavailableError,
)
from mcp_context_proxy.protocol.envelope import Members, RequestId
from mcp_context_proxy.system.threads import load_sdk

if TYPE_CHECKING:
    import httpx2


logger = logging.getLogger(__name__)

CREDENTIALS_WANTED = frozenset({401, 403, 407})
"""HTTP statuses that speak of who is asking."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """Where what a server sends on its own accord goes, and what it is told that it may ask."""

    on_notification: Notify
    answer: Answer
    capabilities: Mapping[str, Any] = field(default_factory=lambda: era_negotiation.SHARED_CAPABILITIES)
    """Declared in the handshake; the modern era declares with each request."""


@dataclass(slots=True)
class Loss:
    """How a connection ended: `cause` is the verb of a sentence, filled in before the event is set."""

    happened: anyio.Event = field(default_factory=anyio.Event)
    cause: str = ""
    of_itself: bool = False
    """Nobody killed the server, and no call of a client was under way."""


@dataclass(frozen=True, slots=True)
class Connected:
    """An open, negotiated connection."""

    link: Link
    introduction: Introduction
    loss: Loss
    questions: ServerRequests | None = None
    """What the server asks; None where it cannot ask."""

    async def settled(self, seconds: float) -> None:
        """Wait, no longer than `seconds`, until the server has asked what it wants to know first.

        Many ask for the roots as soon as they are greeted, and must have them before they are called. The
        answer to a ping comes after what was asked before it, and is given after what was answered.
        """
        known = 0
        with anyio.move_on_after(seconds):
            while self.questions is not None:
                with contextlib.suppress(RemoteError, BadAnswerError):
                    await self.link.request("ping", {}, Outgoing(subject="ping", timeout=seconds))
                await self.questions.all_answered()
                if self.questions.taken == known:
                    break
                known = self.questions.taken


@asynccontextmanager
async def connect(
    config: ServerConfig, limits: Limits, output: Output, redact: Redactor, inbound: Inbound
) -> AsyncIterator[Connected]:
    """Open the connection and negotiate; close it on the way out.

    Enter and leave it in one task. What is a secret about it, such as a token, `redact` learns.

    Raises:
        Exception: the transport's or the server's failure, possibly in an exception group.
    """
    auth = None
    if config.transport != "stdio" or sys.platform == "win32":
        await load_sdk()
    if config.transport != "stdio":
        from mcp_context_proxy.oauth.bearer import authorization  # noqa: PLC0415 - imports the SDK

        auth = authorization(config, redact.learn)
    if config.transport == "http" and config.era == "modern":
        opening = _connect_modern(config, limits, auth, inbound, limits.connect_seconds)
    elif config.transport == "http" and config.era == "auto":
        opening = _connect_in_its_era(config, limits, output, auth, inbound)
    else:
        opening = _connect_duplex(config, limits, output, auth, inbound)
    async with opening as connected:
        yield connected


@asynccontextmanager
async def _connect_in_its_era(
    config: ServerConfig, limits: Limits, output: Output, auth: httpx2.Auth | None, inbound: Inbound
) -> AsyncIterator[Connected]:
    """Connect to a server at a URL that may be of either era, and may be slow to say of which."""
    async with AsyncExitStack() as stack:
        late = False
        try:
            modern = _connect_modern(config, limits, auth, inbound, limits.probe_seconds)
            connected = await stack.enter_async_context(modern)
        except (RemoteError, BadAnswerError, CallTimeoutError) as error:
            if _refuses_us(error):
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
            if not late or not isinstance(refused, RemoteError | BadAnswerError) or _refuses_us(refused):
                raise
            # It is modern, then, and was too slow for the probe.
            modern = _connect_modern(config, limits, auth, inbound, limits.connect_seconds)
            connected = await stack.enter_async_context(modern)
        else:
            if late:
                slow = await _answers_now(config, limits, auth)
                introduction = replace(connected.introduction, ignores_probe=not slow, slow=slow)
                connected = replace(connected, introduction=introduction)
        yield connected


@asynccontextmanager
async def _connect_modern(
    config: ServerConfig, limits: Limits, auth: httpx2.Auth | None, inbound: Inbound, seconds: float
) -> AsyncIterator[Connected]:
    from mcp_context_proxy.downstream.http_modern import open_modern_http  # noqa: PLC0415 - imports the SDK

    async with open_modern_http(config, limits, auth, inbound.on_notification) as link:
        yield Connected(link, await era_negotiation.discover(link, seconds), Loss())


async def _answers_now(config: ServerConfig, limits: Limits, auth: httpx2.Auth | None) -> bool:
    """Whether a server at a URL that ignored the probe was only slow: asked again, it answers."""
    from mcp_context_proxy.downstream.http_modern import open_modern_http  # noqa: PLC0415 - imports the SDK

    async with open_modern_http(config, limits, auth, lambda method, params: None) as link:
        try:
            await era_negotiation.discover(link, limits.probe_seconds)
        except (RemoteError, BadAnswerError):
            return True
        except DownstreamError:
            return False
        return True


@asynccontextmanager
async def _connect_duplex(
    config: ServerConfig, limits: Limits, output: Output, auth: httpx2.Auth | None, inbound: Inbound
) -> AsyncIterator[Connected]:
    async with anyio.create_task_group() as group:
        questions = ServerRequests(group, inbound.answer, limits.ask_seconds)

        def on_request(request_id: RequestId, method: str, params: Members) -> None:
            questions.take(peer, request_id, method, params)

        def on_notification(method: str, params: Members) -> None:
            if method == CANCELLED:
                questions.withdraw(params)
            else:
                inbound.on_notification(method, params)

        peer = Peer(
            config.name,
            call_seconds=config.call_timeout,
            call_max_seconds=limits.call_max_seconds,
            on_request=on_request,
            on_notification=on_notification,
            strays=output.strays,
        )
        loss = Loss()

        async def watch(channel: OpenChannel) -> None:
            await channel.until_ended()
            idle = all(sent.party is None for sent in peer.in_flight)
            loss.cause = await channel.wait_closed()
            loss.of_itself = idle and not channel.killed
            peer.close(loss.cause)
            loss.happened.set()

        try:
            async with _open_channel(config, limits, output, auth, peer) as channel:
                peer.attach(channel)
                group.start_soon(watch, channel)
                introduction = await _negotiate(peer, config, limits, inbound.capabilities)
                if hasattr(channel, "version"):
                    channel.version = introduction.version
                yield Connected(peer, introduction, loss, questions)
        finally:
            peer.close("was stopped")
            group.cancel_scope.cancel()


def _open_channel(
    config: ServerConfig, limits: Limits, output: Output, auth: httpx2.Auth | None, peer: Peer
) -> AbstractAsyncContextManager[OpenChannel]:
    if config.transport == "stdio" and sys.platform != "win32":
        return open_stdio(config, limits, output, peer.receive)
    if config.transport == "http":
        from mcp_context_proxy.downstream.http_session import open_session_http  # noqa: PLC0415 - as below

        return open_session_http(config, limits, auth, peer)
    if config.transport == "sse":
        from mcp_context_proxy.downstream.sse import open_sse  # noqa: PLC0415 - imports the SDK

        return open_sse(config, limits, auth, peer)
    from mcp_context_proxy.downstream.sdk_stdio import open_sdk_channel  # noqa: PLC0415 - imports the SDK

    return open_sdk_channel(config, peer.receive)


async def _negotiate(
    peer: Peer, config: ServerConfig, limits: Limits, capabilities: Mapping[str, Any]
) -> Introduction:
    if config.transport == "http":
        # The modern probe was a plain POST; this transport is for the handshake only.
        return await era_negotiation.initialize(peer, limits, capabilities)
    return await era_negotiation.negotiate(peer, config, limits, capabilities)


def _refuses_us(error: Exception) -> bool:
    """Whether the server wants credentials it was not given: no other era would change that."""
    return isinstance(error, BadAnswerError) and error.http_status in CREDENTIALS_WANTED


def innermost(error: BaseException) -> BaseException:
    """An error itself, out of the exception groups that it came in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> str:
    """The cause of a failed connection in one line, unwrapped from exception groups."""
    error = innermost(error)
    if isinstance(error, CallInterruptedError):
        return f"it {error.cause}"
    if isinstance(error, ServerUnavailableError | AuthorizationError):
        return error.cause
    if isinstance(error, RemoteError):
        return f"it answered with error {error.code}: {error.remote_message}"
    if isinstance(error, BadAnswerError):
        return f"it answered {error.what}"
    return str(error) or type(error).__name__
