"""What clients want of a shared connection beside answers: how much is logged, which resources are watched.

Wishes outlast connections: a server that was restarted is told them again.

Keeps a subscription to what a modern server announces: changes of its lists and of watched resources.

A subscription cannot be changed: another wish opens a new one, and the old one ends when that is taken.
Nothing is replayed to a new subscription, so with the first one, and after a loss, all lists are suspect.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio

from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.connect import Connected
from mcp_context_proxy.downstream.era_negotiation import CLIENT_INFO
from mcp_context_proxy.downstream.link import Notify, Outgoing
from mcp_context_proxy.errors import DownstreamError, RemoteError
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.validation import most_verbose

logger = logging.getLogger(__name__)

HEARD_SECONDS = 2.0
"""For a server to say that it will tell of a resource; then who asked for that is answered anyway."""


class ClientSubscriptions:
    """The wishes of all clients of one server."""

    def __init__(self) -> None:
        self._level: str | None = None
        self._least_level: str | None = None
        self._watched: Counter[str] = Counter()
        self._told_level: str | None = None
        self._told: set[str] = set()
        self._heard: set[str] | None = None
        """Resources that the server was asked for, and has answered; None where there is nobody to ask."""
        self._changed, self._answered = anyio.Event(), anyio.Event()

    @property
    def watched(self) -> frozenset[str]:
        """URIs of the resources that somebody wants to hear of."""
        return frozenset(self._watched)

    def set_log_level(self, level: str | None) -> None:
        """Log this and above: what the sessions that said so want together."""
        self._level = level
        self._change()

    def include_log_level(self, level: str) -> None:
        """Never log less than this: a request asked for it, and the next one may, too."""
        least = most_verbose((self._least_level, level))
        if least != self._least_level:
            self._least_level = least
            self._change()

    def watch(self, uri: str, told: bool = False) -> None:
        """One more wants to hear of a resource; `told` when the server knows it already."""
        self._watched[uri] += 1
        if told:
            self._told.add(uri)
            self.hear([uri])
        if self._watched[uri] == 1:
            self._change()

    def unwatch(self, uri: str) -> None:
        """One less wants to hear of a resource."""
        self._watched[uri] -= 1
        if self._watched[uri] <= 0:
            del self._watched[uri]
            if self._heard is not None:
                self._heard.discard(uri)
            self._change()

    def take_over(self, other: ClientSubscriptions) -> None:
        """Wish what was wished of a predecessor."""
        self._level = other._level
        self._least_level = most_verbose((self._least_level, other._least_level))
        self._watched.update(other._watched)
        self._change()

    def ask(self) -> None:
        """A server that can be asked has been connected, and knows of nothing."""
        self._heard = set()

    def hear(self, uris: Iterable[str]) -> None:
        """The server has been asked for these resources, and has answered."""
        if self._heard is not None:
            self._heard.update(uris)
        self._notify()

    def ask_no_more(self) -> None:
        """The server is gone, or announces nothing: there is no answer to wait for."""
        self._heard = None
        self._notify()

    async def heard(self, uri: str) -> None:
        """Wait, for a bounded time, until the server tells of a resource, if it ever does."""
        with anyio.move_on_after(HEARD_SECONDS):
            while self._heard is not None and uri in self._watched and uri not in self._heard:
                await self._answered.wait()

    async def changed(self) -> None:
        """Wait until there is another wish."""
        await self._changed.wait()

    async def tell(self, connected: Connected) -> None:
        """Keep a handshake-era server told, on a new connection, until cancelled."""
        self._told_level, self._told = None, set()
        introduction = connected.introduction
        if introduction.era is Era.MODERN:
            return
        self.ask()
        try:
            await self._keep_told(connected)
        finally:
            self.ask_no_more()

    async def _keep_told(self, connected: Connected) -> None:
        introduction = connected.introduction
        while True:
            changed = self._changed
            level = most_verbose((self._level, self._least_level))
            if level != self._told_level and level is not None and introduction.offers("logging"):
                self._told_level = level
                await self._say(connected, "logging/setLevel", "level", level)
            for uri in self._told - self.watched:
                self._told.discard(uri)
                await self._say(connected, "resources/unsubscribe", "uri", uri)
            for uri in self.watched - self._told:
                self._told.add(uri)
                await self._say(connected, "resources/subscribe", "uri", uri)
                self.hear([uri])
            await changed.wait()

    async def _say(self, connected: Connected, method: str, member: str, value: str) -> None:
        try:
            await connected.link.request(method, {member: envelope.raw(value)}, Outgoing(subject=method))
        except DownstreamError as error:
            logger.debug("%s", error)

    def _notify(self) -> None:
        self._answered.set()
        self._answered = anyio.Event()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


WANTED: dict[str, Any] = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
"""What a modern server is asked to announce, beside watched resources."""

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class Subscription:
    """The subscription of one server."""

    def __init__(
        self,
        limits: Limits,
        wishes: ClientSubscriptions,
        on_notification: Notify,
        suspect_lists: Callable[[], None],
    ) -> None:
        self._limits, self._wishes = limits, wishes
        self._on_notification, self._suspect_lists = on_notification, suspect_lists

    async def keep(self, connected: Connected) -> None:
        """Stay subscribed until cancelled, or until it turns out that the server announces nothing."""
        self._wishes.ask()
        try:
            await self._follow_wishes(connected)
        finally:
            self._wishes.ask_no_more()

    async def _follow_wishes(self, connected: Connected) -> None:
        old: _Stream | None = None
        async with anyio.create_task_group() as group:
            while True:
                wanted, changed = self._wishes.watched, self._wishes.changed
                stream = _Stream(wanted)
                group.start_soon(self._listen, connected, stream, old is None)
                with anyio.move_on_after(self._limits.probe_seconds):
                    await stream.settled.wait()
                if old is not None:
                    old.scope.cancel()
                if stream.refused:
                    return
                self._wishes.hear(wanted)
                old = stream
                while self._wishes.watched == wanted:
                    await changed()

    async def _listen(self, connected: Connected, stream: _Stream, suspect: bool) -> None:
        """Listen, and again after each loss, until cancelled or refused."""

        def on_notification(method: str, params: Members) -> None:
            if method != ACKNOWLEDGED:
                self._on_notification(method, params)
                return
            stream.settled.set()
            if suspect:
                self._suspect_lists()

        link = connected.link
        with stream.scope:
            while True:
                try:
                    await link.request(
                        "subscriptions/listen", _params(stream.uris), _outgoing(on_notification)
                    )
                except RemoteError as error:
                    logger.debug("server %s does not announce changes: %s", link.server, error)
                    stream.refused = True
                    break
                except DownstreamError as error:
                    logger.debug("server %s: subscription lost: %s", link.server, error)
                suspect = True
                await anyio.sleep(self._limits.backoff_first_seconds)
        stream.settled.set()


@dataclass(slots=True, eq=False)
class _Stream:
    """One subscription: to what, and whether the server has taken it."""

    uris: frozenset[str]
    refused: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: anyio.Event = field(default_factory=anyio.Event)


def _params(uris: frozenset[str]) -> Members:
    watched = {"resourceSubscriptions": sorted(uris)} if uris else {}
    return {"notifications": envelope.raw(WANTED | watched)}


def _outgoing(on_notification: Notify) -> Outgoing:
    return Outgoing(
        subject="subscriptions/listen",
        timeout=float("inf"),
        client_info=envelope.raw(CLIENT_INFO),
        capabilities=envelope.raw({}),
        on_notification=on_notification,
    )
