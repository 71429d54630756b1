"""What is remembered of servers: what those that sleep said and listed, and which are not to be probed.

It is kept by a digest of how a server is connected, so that a server that is configured differently is
another one. What cannot be read, for whatever reason, was never remembered. All methods block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.difference import connection_key
from mcp_context_proxy.downstream.listing import Listing
from mcp_context_proxy.downstream.negotiation import Introduction
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store import ListingStore

logger = logging.getLogger(__name__)

STALE_SECONDS = 24 * 3600.0
"""A listing that is older is fetched again once, in the background: programs are updated behind our back."""


UNPROBED = ":unprobed"
"""Beside the digest of a server, the key under which it is kept that a probe is wasted on it."""


class _Kept(msgspec.Struct, frozen=True):
    introduction: Introduction
    listing: Listing


@dataclass(frozen=True, slots=True)
class Remembered:
    """One server as it was when it was last connected."""

    introduction: Introduction
    listing: Listing
    stale: bool
    """Old enough to be fetched again."""


class Memory:
    """Remembers servers in a store."""

    def __init__(self, store: ListingStore, clock: Callable[[], float] = time_of_day) -> None:
        self._store, self._clock = store, clock

    def recall(self, config: ServerConfig) -> Remembered | None:
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
        return Remembered(kept.introduction, kept.listing, not 0 <= age < STALE_SECONDS)

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

    def keep(self, config: ServerConfig, introduction: Introduction, listing: Listing) -> None:
        """Remember the server; when that fails it will be asked again next time."""
        try:
            encoded = msgspec.msgpack.encode(_Kept(introduction, listing))
            self._store.put(connection_key(config), self._clock(), encoded)
        except StoreError as error:
            logger.debug("server %s is not remembered: %s", config.name, error)
