"""Log level and resource subscriptions requested by clients; sent to the server again after a reconnect.

A handshake-era server is sent one request for each change. A modern server has one subscription, to changes
of its lists and of the watched resources, which cannot be changed: a new one is opened, and the old one ends
when the server has acknowledged it. Nothing is replayed to a new subscription, so after the first one, and
after a loss, all lists are fetched again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import anyio
from msgspec import Struct, field

from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.connections import Connected
from mcp_context_proxy.downstream.era_negotiation import CLIENT_INFO
from mcp_context_proxy.downstream.link import Notify, Outgoing
from mcp_context_proxy.errors import DownstreamError, RemoteError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import URI_CHARACTERS, Era, covers, most_verbose

logger = logging.getLogger(__name__)

CONFIRM_SECONDS = 2.0
"""Time for a server to confirm a subscription; then its client is answered anyway."""

WATCHED = 10_000
"""Resources of one server that clients may be subscribed to; further ones are refused."""

LIST_CHANGES: dict[str, Any] = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}
"""Changes that a modern server is asked to announce, beside watched resources."""

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class ClientSubscriptions:
    """The log level and the watched resources of one server, over all clients."""

    def __init__(self) -> None:
        self._level: str | None = None
        """The level that all sessions together need."""
        self._least_level: str | None = None
        """The most verbose level that a request has asked for."""
        self._wanted_level: str | None = None
        self._watchers: Counter[str] = Counter()
        self._sent: set[str] = set()
        """URIs that the handshake-era server was sent on this connection."""
        self._confirmed: set[str] | None = None
        """URIs that the server has responded to; None while no server can respond."""
        self._changed, self._responded = anyio.Event(), anyio.Event()

    @property
    def watched(self) -> frozenset[str]:
        """URIs of the resources that a client has subscribed to."""
        return frozenset(self._watchers)

    def covers(self, uri: str | None) -> bool:
        """Return whether a client has subscribed to a resource, or to one that contains it."""
        return uri is not None and covers(self._watchers, uri)

    def has_room_for(self, uri: str) -> bool:
        """Return whether one more client can watch a resource."""
        return uri in self._watchers or (len(self._watchers) < WATCHED and len(uri) <= URI_CHARACTERS)

    def set_log_level(self, level: str | None) -> None:
        """Set the level that all sessions together need."""
        self._level = level
        self._wake()

    def include_log_level(self, level: str) -> None:
        """Never log less than this from now on: a request asked for it, and the next one may, too."""
        least = most_verbose((self._least_level, level))
        if least != self._least_level:
            self._least_level = least
            self._wake()

    def watch(self, uri: str, sent: bool = False) -> None:
        """Add a client to the watchers of a resource; `sent` if the server has been told already."""
        self._watchers[uri] += 1
        if sent:
            self._sent.add(uri)
            self._confirm([uri])
        if self._watchers[uri] == 1:
            self._wake()

    def unwatch(self, uri: str) -> None:
        """Remove a client from the watchers of a resource."""
        self._watchers[uri] -= 1
        if self._watchers[uri] <= 0:
            del self._watchers[uri]
            if self._confirmed is not None:
                self._confirmed.discard(uri)
            self._wake()

    def take_over(self, other: ClientSubscriptions) -> None:
        """Add everything that was requested of a predecessor."""
        self._level = other._level
        self._least_level = most_verbose((self._least_level, other._least_level))
        self._watchers.update(other._watchers)
        self._wake()

    async def wait_confirmed(self, uri: str) -> None:
        """Wait, for a bounded time, until the server has confirmed the subscription to a resource."""
        with anyio.move_on_after(CONFIRM_SECONDS):
            while self._confirmed is not None and uri in self._watchers and uri not in self._confirmed:
                await self._responded.wait()

    async def keep_sent(
        self,
        connected: Connected,
        limits: Limits,
        on_notification: Notify,
        mark_lists_stale: Callable[[], None],
    ) -> None:
        """Keep the server of a new connection informed, until cancelled.

        `on_notification` takes the notifications of a modern server's subscription, and `mark_lists_stale`
        is called when changes of the lists may have gone unnoticed.
        """
        self._confirmed = set()
        try:
            if connected.introduction.era is Era.MODERN:
                subscription = partial(_Subscription, connected, limits, on_notification, mark_lists_stale)
                await self._keep_subscribed(subscription, limits.probe_seconds)
            else:
                await self._keep_requesting(connected)
        finally:
            self._confirmed = None
            self._notify_waiting()

    async def _keep_requesting(self, connected: Connected) -> None:
        """Send a handshake-era server a request for each change."""

        async def send(method: str, member: str, value: str) -> None:
            try:
                await connected.link.request(method, {member: envelope.raw(value)}, Outgoing(subject=method))
            except DownstreamError as error:
                logger.debug("%s", error)

        sent_level, self._sent = None, set()
        while True:
            changed = self._changed
            level = self._wanted_level
            if level != sent_level and level is not None and connected.introduction.offers("logging"):
                sent_level = level
                await send("logging/setLevel", "level", level)
            for uri in self._sent - self.watched:
                self._sent.discard(uri)
                await send("resources/unsubscribe", "uri", uri)
            for uri in self.watched - self._sent:
                self._sent.add(uri)
                await send("resources/subscribe", "uri", uri)
                self._confirm([uri])
            await changed.wait()

    async def _keep_subscribed(
        self, subscription: Callable[[frozenset[str], bool], _Subscription], probe_seconds: float
    ) -> None:
        """Keep a modern server subscribed to, or return if it announces nothing."""
        old: _Subscription | None = None
        async with anyio.create_task_group() as group:
            while True:
                wanted = self.watched
                new = subscription(wanted, old is None)
                group.start_soon(new.listen)
                with anyio.move_on_after(probe_seconds):
                    await new.settled.wait()
                if old is not None:
                    old.scope.cancel()
                if new.refused:
                    return
                self._confirm(wanted)
                old = new
                while self.watched == wanted:
                    await self._changed.wait()

    def _confirm(self, uris: Iterable[str]) -> None:
        if self._confirmed is not None:
            self._confirmed.update(uris)
        self._notify_waiting()

    def _notify_waiting(self) -> None:
        self._responded.set()
        self._responded = anyio.Event()

    def _wake(self) -> None:
        self._wanted_level = most_verbose((self._level, self._least_level))
        self._changed.set()
        self._changed = anyio.Event()


class _Subscription(Struct, eq=False):
    """One subscription to a modern server."""

    connected: Connected
    limits: Limits
    on_notification: Notify
    mark_lists_stale: Callable[[], None]
    uris: frozenset[str]
    missed_changes: bool
    """True for the first subscription of a connection, and after a loss."""
    refused: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: anyio.Event = field(default_factory=anyio.Event)
    """Set when the server has acknowledged or refused it."""

    async def listen(self) -> None:
        """Subscribe, and again after each loss, until cancelled or refused."""
        watched = {"resourceSubscriptions": sorted(self.uris)} if self.uris else {}
        params = {"notifications": envelope.raw(LIST_CHANGES | watched)}
        outgoing = Outgoing(
            subject="subscriptions/listen",
            timeout=float("inf"),
            client_info=envelope.raw(CLIENT_INFO),
            on_notification=self._take,
        )
        link = self.connected.link
        with self.scope:
            while True:
                try:
                    await link.request("subscriptions/listen", params, outgoing)
                except RemoteError as error:
                    logger.debug("server %s does not announce changes: %s", link.server, error)
                    self.refused = True
                    break
                except DownstreamError as error:
                    logger.debug("server %s: subscription lost: %s", link.server, error)
                self.missed_changes = True
                await anyio.sleep(self.limits.backoff_first_seconds)
        self.settled.set()

    def _take(self, method: str, params: Members) -> None:
        if method != ACKNOWLEDGED:
            self.on_notification(method, params)
            return
        self.settled.set()
        if self.missed_changes:
            self.mark_lists_stale()
