"""Connections to downstream servers: opened over their transport, in the era that is negotiated.

The modern probe, `server/discover`, comes first, with a short timeout of its own: a server that does not
know it answers with an error at once. Only positive evidence makes a server modern; any other gets the
handshake.

Some old servers die of the probe, and some ignore it, which costs `limits.probe_seconds` at each start. Those
are remembered for a day and connected with the handshake alone. A server that answers the probe late, such as
a program that is still being downloaded, is only slow and is probed again. A server is also probed again at
its next start when it reports another version than before, or turns out to be modern.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy import __version__
from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.reload import connection_key
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream import Channel, Link, Outgoing
from mcp_context_proxy.downstream.jsonrpc import Inbound, Peer, ServerRequests
from mcp_context_proxy.downstream.stdio import QUOTED_LINES, Output, open_sdk_channel, open_stdio
from mcp_context_proxy.errors import (
    BadAnswerError,
    CallInterruptedError,
    CallTimeoutError,
    DownstreamError,
    RemoteError,
    StoreError,
    innermost,
)
from mcp_context_proxy.items import JSON
from mcp_context_proxy.oauth import Logins
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.strangers import quoted
from mcp_context_proxy.store.tables import ListingStore
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread, load

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)

CREDENTIALS_WANTED = frozenset({401, 403, 407})
"""HTTP statuses about the credentials of the client."""

CLIENT_INFO = {"name": "mcp-context-proxy", "version": __version__}

SHARED_CAPABILITIES: Mapping[str, Any] = {"sampling": {}, "elicitation": {}, "roots": {}}
"""Capabilities declared on a shared handshake-era connection: everything that any client might be asked.

A request of the server is passed on to the client whose call is pending, if that client supports it; a
request for roots on connecting, when there is no client yet, is answered with none.
"""

UNPROBED_KEY = ":unprobed"
"""Appended to the key of a server in the store where it is remembered as not to be probed."""

LATE_KEY = ":late"
"""Appended to the key of a server for which searches have waited in vain."""

REMEMBERED_SECONDS = 24 * 3600.0
"""Time for which either is remembered of a server."""


class Introduction(Struct, frozen=True):
    """Self-description of a server when the connection was opened."""

    era: Era
    version: str
    server_info: Mapping[str, JSON]
    capabilities: Mapping[str, JSON]
    instructions: str
    ignores_probe: bool = False
    """True if the server did not answer `server/discover`, and then answered the handshake."""
    slow: bool = False
    """True if it answered `server/discover` late, so that its era has to be probed again."""

    def offers(self, capability: str) -> bool:
        """Return whether the server declared `capability`, such as ``tools``, in whatever form.

        An empty object is an empty list in PHP and Lua.
        """
        return self.capabilities.get(capability) not in (None, False)

    def extension(self, name: str) -> Mapping[str, JSON] | None:
        """Return the settings of an extension that the server declared; None if it did not."""
        extensions = self.capabilities.get("extensions")
        settings = extensions.get(name) if isinstance(extensions, dict) else None
        return settings if isinstance(settings, dict) else None


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
                        introduction = await initialize(peer, limits, inbound.capabilities)
                    else:
                        introduction = await negotiate(peer, config, limits, inbound.capabilities)
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
            yield Connected(link, await discover(link, seconds), Loss())

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


async def negotiate(
    link: Link, config: ServerConfig, limits: Limits, capabilities: Mapping[str, Any]
) -> Introduction:
    """Open the conversation on a duplex link, in the configured era or the one that the server speaks.

    The probe stays pending beside the handshake, because a slow server answers both. Raises `DownstreamError`
    if the server refuses both eras, or does not answer in time.
    """
    if config.era == "handshake":
        return await initialize(link, limits, capabilities)
    if config.era == "modern":
        return await discover(link, limits.connect_seconds)
    probe = _Probe()
    async with anyio.create_task_group() as group:
        group.start_soon(probe.run, link, limits.connect_seconds)
        with anyio.move_on_after(limits.probe_seconds):
            await probe.answered.wait()
        in_time = probe.answered.is_set()
        found = probe.introduction
        if found is None and probe.failure is None:
            # In a task of the group, its errors would come out in an exception group.
            found = await _shake_hands(probe, link, limits, capabilities)
        group.cancel_scope.cancel()
    if found is None:
        assert probe.failure is not None
        raise probe.failure
    # Probe and handshake may have been pending together, and the last to be sent set the era of the link.
    link.era = found.era
    answered = probe.answered.is_set()
    return replace(found, ignores_probe=not answered, slow=answered and not in_time)


class _Probe:
    """A `server/discover` request and its outcome."""

    def __init__(self) -> None:
        self.introduction: Introduction | None = None
        self.failure: DownstreamError | None = None
        """The loss of the connection, once it is lost."""
        self.answered = anyio.Event()

    async def run(self, link: Link, seconds: float) -> None:
        try:
            self.introduction = await discover(link, seconds)
        except CallTimeoutError:
            return
        except (RemoteError, BadAnswerError) as error:
            logger.debug("server %s is not modern: %s", link.server, error)
        except DownstreamError as error:
            self.failure = error
        self.answered.set()


async def _shake_hands(
    probe: _Probe, link: Link, limits: Limits, capabilities: Mapping[str, Any]
) -> Introduction | None:
    """Initialize a server that has not shown itself modern; an error is noted as the failure of the probe."""
    try:
        try:
            return await initialize(link, limits, capabilities)
        except RemoteError as error:
            # A modern server that started too slowly for the probe answers that too, in any order.
            with anyio.move_on_after(limits.probe_seconds):
                await probe.answered.wait()
            if probe.introduction is not None:
                return probe.introduction
            if error.code != eras.UNSUPPORTED_VERSION:
                raise
            return await discover(link, limits.connect_seconds)
    except DownstreamError as error:
        # A server that dies with the probe unanswered may have died of the probe: that failure comes first.
        probe.failure = probe.failure or error
        return None


async def discover(link: Link, seconds: float) -> Introduction:
    """Ask a modern server to introduce itself.

    Raises `DownstreamError` if it is not modern, shares no revision, or does not answer in time.
    """
    link.era = Era.MODERN
    outgoing = Outgoing(subject="server/discover", timeout=seconds, client_info=envelope.raw(CLIENT_INFO))
    try:
        answer = await link.request("server/discover", {}, outgoing)
    except RemoteError as error:
        if not _offers_modern(error) or link.era is not Era.MODERN:
            raise
        # It is modern, and named our revision among its own: once more with that.
        answer = await link.request("server/discover", {}, outgoing)
    result = _read(link, answer)
    supported = result.get("supportedVersions")
    if not isinstance(supported, list) or eras.MODERN_VERSION not in supported:
        raise RemoteError(
            link.server, eras.UNSUPPORTED_VERSION, f"it speaks {supported}, not {eras.MODERN_VERSION}"
        )
    meta = result.get("_meta")
    info = meta.get(eras.SERVER_INFO_KEY) if isinstance(meta, dict) else None
    return _introduction(Era.MODERN, eras.MODERN_VERSION, info, result)


def _offers_modern(error: RemoteError) -> bool:
    """Return whether a refusal of our revision lists that revision as one that the server speaks."""
    if error.code != eras.UNSUPPORTED_VERSION or error.data is None:
        return False
    supported = envelope.object_of(envelope.encode(error.data)).get("supported")
    return isinstance(supported, list) and eras.MODERN_VERSION in supported


async def initialize(link: Link, limits: Limits, capabilities: Mapping[str, Any]) -> Introduction:
    """Shake hands with a server of the handshake era.

    Raises `DownstreamError` if it refuses, or does not answer in time.
    """
    link.era = Era.HANDSHAKE
    params = {
        "protocolVersion": envelope.raw(eras.HANDSHAKE_VERSION),
        "capabilities": envelope.raw(capabilities),
        "clientInfo": envelope.raw(CLIENT_INFO),
    }
    outgoing = Outgoing(subject="initialize", timeout=limits.connect_seconds)
    result = _read(link, await link.request("initialize", params, outgoing))
    version = result.get("protocolVersion")
    if not isinstance(version, str):
        raise RemoteError(
            link.server, envelope.INVALID_REQUEST, "its initialize result names no protocolVersion"
        )
    if version not in eras.HANDSHAKE_VERSIONS:
        known = ", ".join(sorted(eras.HANDSHAKE_VERSIONS))
        raise BadAnswerError(
            link.server, f"initialize with protocol version {quoted(version)}, not one of {known}"
        )
    await link.notify("notifications/initialized")
    return _introduction(Era.HANDSHAKE, version, result.get("serverInfo"), result)


def _read(link: Link, answer: bytes) -> dict[str, JSON]:
    """Decode the words by which a server introduces itself.

    Raises `BadAnswerError` if they have a number or a depth that cannot be read.
    """
    result = envelope.value_or_none(answer)
    if not isinstance(result, dict):
        raise BadAnswerError(link.server, "with an introduction that cannot be read")
    return result


def _introduction(spoken: Era, version: str, info: JSON, result: Mapping[str, JSON]) -> Introduction:
    capabilities, instructions = result.get("capabilities"), result.get("instructions")
    return Introduction(
        era=spoken,
        version=version,
        server_info=info if isinstance(info, dict) else {},
        # One that cannot say what it offers has tools, as nearly all do, or an error that names the fault.
        capabilities=capabilities if isinstance(capabilities, dict) else {"tools": {}},
        instructions=instructions if isinstance(instructions, str) else "",
    )


class ServerMemory:
    """A text about each of some servers, in the store and in memory, for a day."""

    def __init__(self, store: ListingStore, suffix: str) -> None:
        """Take the store, and the ending of its keys of these texts."""
        self._store, self._suffix = store, suffix
        self._known: dict[str, tuple[float, bytes]] = {}

    async def load(self) -> None:
        """Read the remembered servers from the store, once, before any server is started."""
        try:
            self._known = await in_thread(self._store.ending_with, self._suffix)
        except StoreError as error:
            logger.debug("no server is remembered: %s", error)

    def get(self, config: ServerConfig) -> str | None:
        """Return the text about a server; None if there is none."""
        found = self._known.get(self._key(config))
        if found is None or not 0 <= time_of_day() - found[0] < REMEMBERED_SECONDS:
            return None
        return found[1].decode("utf-8", "replace")

    async def put(self, config: ServerConfig, text: str = "") -> None:
        key, entry = self._key(config), (time_of_day(), text.encode("utf-8", "replace"))
        self._known[key] = entry
        await self._try(config, self._store.put, key, *entry)

    async def discard(self, config: ServerConfig) -> None:
        if self._known.pop(self._key(config), None) is not None:
            await self._try(config, self._store.forget, self._key(config))

    def _key(self, config: ServerConfig) -> str:
        return connection_key(config) + self._suffix

    async def _try(self, config: ServerConfig, write: Callable[..., None], *arguments: Any) -> None:
        """Write to the store; if that fails, the next start only takes longer than needed."""
        try:
            await in_thread(write, *arguments)
        except StoreError as error:
            logger.debug("server %s: the store cannot be written: %s", config.name, error)


class EraMemory:
    """Remembers about one server whether to probe it."""

    def __init__(self, config: ServerConfig, unprobed: ServerMemory) -> None:
        """Take the names and versions of the servers that are not to be probed."""
        self._config, self._unprobed = config, unprobed
        self._era: Era | None = None
        """The era to connect in; None to probe."""
        self._version: str | None = None
        """Name and version from the latest handshake, of this process or of the one that remembered it."""
        self._died = False

    def load(self) -> None:
        """Begin with the findings of an earlier connection."""
        if self._config.era == "auto" and self._era is None:
            self._version = self._unprobed.get(self._config)
            self._era = None if self._version is None else Era.HANDSHAKE

    def applied_to(self, config: ServerConfig) -> ServerConfig:
        """Return the configuration with the era named in which to connect."""
        if self._era is Era.HANDSHAKE and config.era == "auto":
            return replace(config, era="handshake")
        return config

    def failed(self, error: BaseException) -> None:
        """Learn from a connection that was not established, or was lost."""
        if isinstance(error, CallInterruptedError) and error.subject == "server/discover":
            # Some old servers die on a request they do not know: the next start skips it.
            self._era, self._died = Era.HANDSHAKE, True
        elif isinstance(error, RemoteError | BadAnswerError):
            # The server was updated, or had died of something else: it is probed again.
            self._era, self._died = None, False

    async def succeeded(self, introduction: Introduction) -> None:
        """Learn from the introduction of the server; store that it is not to be probed where that helps."""
        info, version = introduction.server_info, self._version
        self._era = None if introduction.slow else introduction.era
        self._version = f"{info.get('name')} {info.get('version')}"
        if introduction.era is Era.MODERN or introduction.slow or version not in (None, self._version):
            if introduction.era is not Era.MODERN:
                self._era = None
            await self._unprobed.discard(self._config)
        elif self._config.era == "auto" and (self._died or introduction.ignores_probe):
            await self._unprobed.put(self._config, self._version)
        self._died = False
