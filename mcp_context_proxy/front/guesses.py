"""Throttle of wrong bearer tokens, by the address of the client and for all together."""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

import anyio

from mcp_context_proxy.protocol.framing import Bucket

Client: TypeAlias = tuple[str, int]
"""Address and port of a client's end of a connection."""

WRONG_PER_SECOND, WRONG_AT_ONCE = 1.0, 20
"""Rate and burst of wrong tokens from one address: a client with an old token keeps trying, but slowly."""

ALL_WRONG_PER_SECOND, ALL_WRONG_AT_ONCE = 20.0, 200
"""Rate and burst of wrong tokens from all addresses together."""

HELD_SECONDS: Final = 1.0
"""Time that a token waits after too many wrong ones: the longest delay of a right one."""

MOST_HELD_OF_ADDRESS, MOST_HELD = 32, 128
"""Requests that wait at a time; further ones are refused unseen. Connections are left for everybody else."""

ADDRESSES_KEPT, CONNECTIONS_KEPT = 1024, 1024
"""Addresses with a count of their own, and connections known to have sent the right token."""

NETWORK_BITS: Final = 64
"""Length of the IPv6 prefix that counts as one address: a single machine has all the addresses in it."""


class Guesses:
    """Throttle of wrong bearer tokens: nobody tries many, and nobody keeps those out who have the right one.

    Wrong tokens are counted for each client address, and for all addresses together. Once an address has sent
    too many, each token from it is looked at only after a moment, a right one too: a guess that is refused at
    once and a hit that is served at once would be no throttle. Only a few can wait, so that the number of
    tokens that are looked at in a second is bounded. A connection that has sent the right token never waits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Bucket(ALL_WRONG_PER_SECOND, ALL_WRONG_AT_ONCE, clock)
        self._by_address: OrderedDict[str, Bucket] = OrderedDict()
        self._held: Counter[str] = Counter()
        """Number of requests that wait, by address."""
        self._proven: OrderedDict[Client, None] = OrderedDict()

    def delays(self, client: Client | None) -> bool:
        """Return whether a token that came over this connection waits."""
        if client in self._proven:
            return False
        bucket = self._by_address.get(address_of(client))
        return self._all.is_empty or (bucket is not None and bucket.is_empty)

    async def wait(self, client: Client | None) -> bool:
        """Wait until the token may be looked at; return False if too many wait already."""
        address = address_of(client)
        if self._held[address] >= MOST_HELD_OF_ADDRESS or self._held.total() >= MOST_HELD:
            return False
        self._held[address] += 1
        try:
            await anyio.sleep(HELD_SECONDS)
        finally:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]
        return True

    def right(self, client: Client | None) -> None:
        """Note that a connection has sent the right token."""
        if client is not None and client not in self._proven:
            self._proven[client] = None
            if len(self._proven) > CONNECTIONS_KEPT:
                self._proven.popitem(last=False)

    def wrong(self, client: Client | None) -> None:
        """Count a wrong token."""
        if client is not None:
            # The port may be that of an earlier connection by now.
            self._proven.pop(client, None)
        address = address_of(client)
        bucket = self._by_address.pop(address, None) or Bucket(WRONG_PER_SECOND, WRONG_AT_ONCE, self._clock)
        self._by_address[address] = bucket
        if len(self._by_address) > ADDRESSES_KEPT:
            self._by_address.popitem(last=False)
        bucket.take()
        self._all.take()


def address_of(client: Client | None) -> str:
    """Return the address that a client's guesses are counted for."""
    if client is None or ":" not in client[0]:
        return "" if client is None else client[0]
    try:
        return str(ipaddress.IPv6Network((client[0].partition("%")[0], NETWORK_BITS), strict=False))
    except ValueError:
        return client[0]
