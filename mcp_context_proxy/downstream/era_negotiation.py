"""Finds out which era a downstream server speaks and what it offers.

The modern probe comes first, with a short time limit of its own: a server that does not know it answers
with an error at once. Only positive evidence makes a server modern; anything else is the handshake.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio

from mcp_context_proxy import __version__
from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream.link import Link, Outgoing
from mcp_context_proxy.errors import BadAnswerError, CallTimeoutError, DownstreamError, RemoteError
from mcp_context_proxy.items import JSON
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.eras import Era

logger = logging.getLogger(__name__)

CLIENT_INFO = {"name": "mcp-context-proxy", "version": __version__}

SHARED_CAPABILITIES: Mapping[str, Any] = {"sampling": {}, "elicitation": {}, "roots": {}}
"""What a shared handshake-era connection declares: what any client might be asked.

What is then asked is passed on to the client whose call is under way, if it can be asked; a question for
roots on connecting, when there is no client yet, is answered with none.
"""

UNSUPPORTED_VERSION = -32022
"""The modern error that names the revisions a server speaks: itself evidence of a modern server."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a server said of itself when the connection was opened."""

    era: Era
    version: str
    """The protocol revision in use."""
    server_info: Mapping[str, JSON]
    capabilities: Mapping[str, JSON]
    instructions: str
    ignores_probe: bool = False
    """It said nothing to `server/discover`, and then answered the handshake."""
    slow: bool = False
    """It did answer `server/discover`, but late: which era it speaks is to be asked again."""

    def offers(self, capability: str) -> bool:
        """Whether the server declared `capability`, such as ``tools``."""
        return isinstance(self.capabilities.get(capability), dict)


async def negotiate(
    link: Link, config: ServerConfig, limits: Limits, capabilities: Mapping[str, Any]
) -> Introduction:
    """Open the conversation on a duplex link, in the era the server speaks or the configuration names.

    Args:
        link: To talk over.
        config: Of the server.
        limits: Bounds on time.
        capabilities: To declare in the handshake.

    Raises:
        DownstreamError: the server refuses both eras, or does not answer in time.
    """
    if config.era == "handshake":
        return await initialize(link, limits, capabilities)
    if config.era == "modern":
        return await discover(link, limits.connect_seconds)
    probe = _Probe()
    async with anyio.create_task_group() as group:
        group.start_soon(probe.ask, link, limits.connect_seconds)
        with anyio.move_on_after(limits.probe_seconds):
            await probe.answered.wait()
        in_time = probe.answered.is_set()
        found = probe.introduction
        if found is None and probe.failure is None:
            # In a task of the group, what it raises would come in a group of errors.
            found = await _shake_hands(probe, link, limits, capabilities)
        group.cancel_scope.cancel()
    if found is None:
        assert probe.failure is not None
        raise probe.failure
    # Probe and handshake may have been under way together, and the last to be sent named the era.
    link.era = found.era
    answered = probe.answered.is_set()
    return replace(found, ignores_probe=not answered, slow=answered and not in_time)


async def _shake_hands(
    probe: _Probe, link: Link, limits: Limits, capabilities: Mapping[str, Any]
) -> Introduction | None:
    """Greet a server that did not say that it is modern; what goes wrong is the failure of the probe."""
    try:
        try:
            return await initialize(link, limits, capabilities)
        except RemoteError as error:
            # A modern server that started too slowly for the probe: it answers that too, in any order.
            with anyio.move_on_after(limits.probe_seconds):
                await probe.answered.wait()
            if probe.introduction is not None:
                return probe.introduction
            if error.code != UNSUPPORTED_VERSION:
                raise
            return await discover(link, limits.connect_seconds)
    except DownstreamError as error:
        # Whoever dies with the probe unanswered may have died of it.
        probe.failure = probe.failure or error
        return None


class _Probe:
    """The question which era a server speaks. It stays open beside the handshake: the slow answer both."""

    def __init__(self) -> None:
        self.introduction: Introduction | None = None
        self.failure: DownstreamError | None = None
        """Why there is no connection any more."""
        self.answered = anyio.Event()

    async def ask(self, link: Link, seconds: float) -> None:
        """Ask, and note what is answered."""
        try:
            self.introduction = await discover(link, seconds)
        except CallTimeoutError:
            return
        except (RemoteError, BadAnswerError) as error:
            logger.debug("server %s is not modern: %s", link.server, error)
        except DownstreamError as error:
            self.failure = error
        self.answered.set()


async def discover(link: Link, seconds: float) -> Introduction:
    """Ask a modern server what it is.

    Raises:
        DownstreamError: it is not modern, shares no revision, or does not answer in time.
    """
    link.era = Era.MODERN
    outgoing = Outgoing(
        subject="server/discover",
        timeout=seconds,
        client_info=envelope.raw(CLIENT_INFO),
        capabilities=envelope.raw({}),
    )
    try:
        result = envelope.value(await link.request("server/discover", {}, outgoing))
    except RemoteError as error:
        if not _offers_modern(error) or link.era is not Era.MODERN:
            raise
        # It is modern, and named our revision among its own: once more with that.
        result = envelope.value(await link.request("server/discover", {}, outgoing))
    supported = result.get("supportedVersions")
    if not isinstance(supported, list) or eras.MODERN_VERSION not in supported:
        raise RemoteError(
            link.server, UNSUPPORTED_VERSION, f"it speaks {supported}, not {eras.MODERN_VERSION}"
        )
    meta = result.get("_meta")
    info = meta.get(eras.SERVER_INFO_KEY) if isinstance(meta, dict) else None
    return _introduction(Era.MODERN, eras.MODERN_VERSION, info, result)


def _offers_modern(error: RemoteError) -> bool:
    """Whether a refusal of our revision names it as one that the server speaks."""
    if error.code != UNSUPPORTED_VERSION or error.data is None:
        return False
    data = envelope.value(envelope.encode(error.data))
    return isinstance(data, dict) and eras.MODERN_VERSION in (data.get("supported") or ())


async def initialize(link: Link, limits: Limits, capabilities: Mapping[str, Any]) -> Introduction:
    """Shake hands with a server of the handshake era.

    Raises:
        DownstreamError: it refuses, or does not answer in time.
    """
    link.era = Era.HANDSHAKE
    params = {
        "protocolVersion": envelope.raw(eras.HANDSHAKE_VERSION),
        "capabilities": envelope.raw(capabilities),
        "clientInfo": envelope.raw(CLIENT_INFO),
    }
    outgoing = Outgoing(subject="initialize", timeout=limits.connect_seconds)
    result = envelope.value(await link.request("initialize", params, outgoing))
    version = result.get("protocolVersion")
    if not isinstance(version, str):
        raise RemoteError(
            link.server, envelope.INVALID_REQUEST, "its initialize result names no protocolVersion"
        )
    if version not in eras.HANDSHAKE_VERSIONS:
        known = ", ".join(sorted(eras.HANDSHAKE_VERSIONS))
        raise BadAnswerError(
            link.server, f"initialize with protocol version {version[:40]!r}, not one of {known}"
        )
    await link.notify("notifications/initialized")
    return _introduction(Era.HANDSHAKE, version, result.get("serverInfo"), result)


def _introduction(spoken: Era, version: str, info: JSON, result: Mapping[str, JSON]) -> Introduction:
    capabilities, instructions = result.get("capabilities"), result.get("instructions")
    return Introduction(
        era=spoken,
        version=version,
        server_info=info if isinstance(info, dict) else {},
        capabilities=capabilities if isinstance(capabilities, dict) else {},
        instructions=instructions if isinstance(instructions, str) else "",
    )
