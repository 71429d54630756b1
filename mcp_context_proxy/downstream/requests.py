"""Sends requests to one server: a bounded number at a time, each once, over the connection it belongs to.

What comes back is passed as it is; failures come without the server's secrets.
"""

from __future__ import annotations

from dataclasses import replace

import anyio

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.redaction import Redactor
from mcp_context_proxy.downstream.condition import Condition
from mcp_context_proxy.downstream.connect import Connected
from mcp_context_proxy.downstream.lanes import Lanes
from mcp_context_proxy.downstream.link import Outgoing
from mcp_context_proxy.downstream.redaction import redacted, redacted_params, redacted_result
from mcp_context_proxy.downstream.rest import Rest
from mcp_context_proxy.errors import (
    BadAnswerError,
    DisconnectedError,
    DownstreamError,
    ServerUnavailableError,
)
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.era import Era
from mcp_context_proxy.wire.nesting import nests_deeper

WAITING_SHARE = 2
"""Of the size of the largest message, what all requests to one server may take together: each is held as it
came, and once more as it goes. One that does not read, or is slow, must not fill the memory with them."""


class Requests:
    """The requests to one server that are under way."""

    def __init__(
        self,
        config: ServerConfig,
        limits: Limits,
        redact: Redactor,
        condition: Condition,
        rest: Rest,
        lanes: Lanes,
    ) -> None:
        """Have none under way.

        Args:
            config: Of the server.
            limits: Bounds on number, time and nesting.
            redact: Takes the server's secrets out of a failure.
            condition: Knows the connection.
            rest: Wakes a server that sleeps.
            lanes: Connections that are not shared.
        """
        self._redact, self._condition, self._rest, self._lanes = redact, condition, rest, lanes
        self.configure(config, limits)
        self.under_way, self._bytes = 0, 0
        """Requests without an answer yet, and what their params take."""
        self._all_done = anyio.Event()
        self._given_up = False

    def configure(self, config: ServerConfig, limits: Limits) -> None:
        """Follow a configuration, from the next request on."""
        self._config, self._limits = config, limits

    async def send(self, method: str, params: Members, outgoing: Outgoing) -> bytes:
        """Send one request and return its result as it came. What may have been read is never sent again.

        Raises:
            DownstreamError: see `Link.request`.
        """
        name, limits = self._config.name, self._limits
        if self.under_way >= limits.in_flight_per_server:
            raise ServerUnavailableError(name, "busy", f"{self.under_way} requests are under way; try again")
        if outgoing.timeout is None:
            outgoing = replace(outgoing, timeout=self._config.call_timeout)
        outgoing = self._told_without_secrets(outgoing)
        size = sum(len(raw) for raw in params.values())
        if self._bytes and self._bytes + size > limits.message_bytes // WAITING_SHARE:
            waiting = f"{self._bytes:,} bytes of requests are under way; try again"
            raise ServerUnavailableError(name, "busy", waiting)
        self.under_way, self._bytes = self.under_way + 1, self._bytes + size
        if outgoing.on_counted is not None:
            outgoing.on_counted()
        try:
            result = await self._sent_once(method, params, outgoing)
            self._condition.useful = True
            if nests_deeper(result, limits.nesting_results):
                what = f"with a result nested deeper than {limits.nesting_results} levels"
                raise BadAnswerError(name, what)
            return await redacted_result(result, self._redact)
        except DownstreamError as error:
            raise redacted(error, self._redact) from None
        finally:
            self.under_way, self._bytes = self.under_way - 1, self._bytes - size
            self._rest.used()
            if not self.under_way:
                self._all_done.set()

    def _told_without_secrets(self, outgoing: Outgoing) -> Outgoing:
        take = outgoing.on_notification
        if take is None:
            return outgoing

        def told(method: str, params: Members) -> None:
            take(method, redacted_params(params, self._redact))

        return replace(outgoing, on_notification=told)

    async def drain(self, seconds: float) -> None:
        """Wait until none is under way or they are given up, no longer than `seconds`."""
        with anyio.move_on_after(seconds):
            while self.under_way and not self._given_up:
                self._all_done = anyio.Event()
                await self._all_done.wait()

    def give_up(self) -> None:
        """Nobody is to wait for those that are under way."""
        self._given_up = True
        self._all_done.set()

    async def _connected(self) -> Connected:
        if self._condition.connected is None:
            await self._rest.wake(self._config.connect_timeout)
        if self._condition.connected is None:
            raise self._condition.unavailable()
        return self._condition.connected

    async def _sent_once(self, method: str, params: Members, outgoing: Outgoing) -> bytes:
        """A request that was not sent, or was refused as its session had expired, goes over the next one."""
        connected = await self._connected()
        try:
            return await self._sent(connected, method, params, outgoing)
        except DisconnectedError:
            if self._is_shared(connected, outgoing):
                connected = await self._connected_after(connected)
            return await self._sent(connected, method, params, outgoing)

    async def _connected_after(self, lost: Connected) -> Connected:
        with anyio.move_on_after(self._config.connect_timeout):
            await self._condition.lost(lost)
        return await self._connected()

    def _is_shared(self, connected: Connected, outgoing: Outgoing) -> bool:
        """Whether a request goes over the connection that all share."""
        return connected.introduction.era is not Era.HANDSHAKE or not self._lanes.needed_by(outgoing)

    async def _sent(self, connected: Connected, method: str, params: Members, outgoing: Outgoing) -> bytes:
        if self._is_shared(connected, outgoing):
            return await connected.link.request(method, params, outgoing)
        async with self._lanes.lent(outgoing) as link:
            return await link.request(method, params, outgoing)
