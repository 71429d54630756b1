"""What is remembered of servers: what those that sleep said and listed, and which are not to be probed.

It is kept by a digest of how a server is connected, so that a server that is configured differently is
another one. What cannot be read, for whatever reason, was never remembered. All methods block.

In which era a server is addressed first: asked which it speaks, unless that is known to be a waste.

Most old servers answer the question with an error at once. Some die of it, and some say nothing, which costs
`limits.probe_seconds` at each start: those are remembered, and greeted with the handshake, for a day. Who
answers it late, such as a program that is being downloaded, was only slow and is asked again. So is, at its
next start, what says that it is another version than it was, or is found to be modern.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.reload import connection_key
from mcp_context_proxy.downstream.era_negotiation import Introduction
from mcp_context_proxy.downstream.listing import ServerListing
from mcp_context_proxy.errors import BadAnswerError, CallInterruptedError, RemoteError, StoreError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.store import ListingStore
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

STALE_SECONDS = 24 * 3600.0
"""A listing that is older is fetched again once, in the background: programs are updated behind our back."""


UNPROBED = ":unprobed"
"""Beside the digest of a server, the key under which it is kept that a probe is wasted on it."""


class _Kept(msgspec.Struct, frozen=True):
    introduction: Introduction
    listing: ServerListing


@dataclass(frozen=True, slots=True)
class CachedListing:
    """One server as it was when it was last connected."""

    introduction: Introduction
    listing: ServerListing
    stale: bool
    """Old enough to be fetched again."""


class ListingCache:
    """Remembers servers in a store."""

    def __init__(self, store: ListingStore, clock: Callable[[], float] = time_of_day) -> None:
        self._store, self._clock = store, clock

    def recall(self, config: ServerConfig) -> CachedListing | None:
        """The server as it is connected by this configuration; None when it was not yet, or long ago."""
        try:
            found = self._store.get(connection_key(config))
            if found is None:
                return None
            kept = msgspec.msgpack.decode(found[1], type=_Kept)
        except (StoreError, msgspec.DecodeError) as error:
            logger.debug("server %s: nothing is remembered: %s", config.name, error)
            return None
        age = self._clock() - found[0]
        # A clock that was set back makes no listing fresh.
        return CachedListing(kept.introduction, kept.listing, not 0 <= age < STALE_SECONDS)

    def unprobed(self, config: ServerConfig) -> str | None:
        """As which version the server said to be when a probe was last wasted on it; None long after that."""
        try:
            found = self._store.get(connection_key(config) + UNPROBED)
        except StoreError as error:
            logger.debug("server %s: nothing is remembered: %s", config.name, error)
            return None
        lately = found is not None and 0 <= self._clock() - found[0] < STALE_SECONDS
        return found[1].decode("utf-8", "replace") if found is not None and lately else None

    def keep_unprobed(self, config: ServerConfig, version: str) -> None:
        """Remember that a probe was wasted on the server; when that fails another one will be."""
        try:
            said = version.encode("utf-8", "replace")
            self._store.put(connection_key(config) + UNPROBED, self._clock(), said)
        except StoreError as error:
            logger.debug("server %s is not remembered: %s", config.name, error)

    def forget_unprobed(self, config: ServerConfig) -> None:
        """Have the server probed by the next proxy; when that fails it will be in a day."""
        try:
            self._store.forget(connection_key(config) + UNPROBED)
        except StoreError as error:
            logger.debug("server %s is not forgotten: %s", config.name, error)

    def keep(self, config: ServerConfig, introduction: Introduction, listing: ServerListing) -> None:
        """Remember the server; when that fails it will be asked again next time."""
        try:
            encoded = msgspec.msgpack.encode(_Kept(introduction, listing))
            self._store.put(connection_key(config), self._clock(), encoded)
        except StoreError as error:
            logger.debug("server %s is not remembered: %s", config.name, error)


class EraProbe:
    """What one server taught about how to address it."""

    def __init__(self, memory: ListingCache | None) -> None:
        self._memory = memory
        self._learned: Era | None = None
        self._version: str | None = None
        """As which it has introduced itself in the handshake, in this run or the one that remembered it."""
        self._remembered, self._died = False, False

    async def recall(self, config: ServerConfig) -> None:
        """Begin with what an earlier run found out."""
        if self._memory is None or config.era != "auto" or self._learned is not None:
            return
        version = await in_thread(self._memory.unprobed, config)
        if version is not None:
            self._learned, self._version, self._remembered = Era.HANDSHAKE, version, True

    def applied_to(self, config: ServerConfig) -> ServerConfig:
        """The configuration, with the era named in which the server is to be addressed."""
        if self._learned is Era.HANDSHAKE and config.era == "auto":
            return config.model_copy(update={"era": "handshake"})
        return config

    def failed(self, error: BaseException) -> None:
        """Learn from a connection that did not come about, or was lost."""
        if isinstance(error, CallInterruptedError) and error.subject == "server/discover":
            # Some old servers die on a request they do not know: the next start skips it.
            self._learned, self._died = Era.HANDSHAKE, True
        elif isinstance(error, RemoteError | BadAnswerError):
            # It was updated, or had died of something else: it is asked anew what it speaks.
            self._learned, self._died = None, False

    async def succeeded(self, config: ServerConfig, introduction: Introduction) -> None:
        """Learn from how the server introduced itself, and remember it where that saves something."""
        said, version = introduction.server_info, self._version
        self._learned = None if introduction.slow else introduction.era
        self._version = f"{said.get('name')} {said.get('version')}"
        if introduction.era is Era.MODERN or introduction.slow or version not in (None, self._version):
            if introduction.era is not Era.MODERN:
                self._learned = None
            await self._forget(config)
        elif self._died or introduction.ignores_probe:
            await self._remember(config, self._version)
        self._died = False

    async def _remember(self, config: ServerConfig, version: str) -> None:
        if self._memory is not None:
            self._remembered = True
            await in_thread(partial(self._memory.keep_unprobed, config, version))

    async def _forget(self, config: ServerConfig) -> None:
        if self._memory is not None and self._remembered:
            self._remembered = False
            await in_thread(self._memory.forget_unprobed, config)
