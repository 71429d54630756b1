"""Keeps a subscription to what a modern server announces: changes of its lists and of watched resources.

A subscription cannot be changed: another wish opens a new one, and the old one ends when that is taken.
Nothing is replayed to a new subscription, so with the first one, and after a loss, all lists are suspect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.connect import Connected
from mcp_context_proxy.downstream.link import Notify, Outgoing
from mcp_context_proxy.downstream.negotiation import CLIENT_INFO
from mcp_context_proxy.downstream.wishes import Wishes
from mcp_context_proxy.errors import DownstreamError, RemoteError
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import Members

logger = logging.getLogger(__name__)

WANTED: dict[str, Any] = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
"""What a modern server is asked to announce, beside watched resources."""

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class Subscription:
    """The subscription of one server."""

    def __init__(
        self, limits: Limits, wishes: Wishes, on_notification: Notify, suspect_lists: Callable[[], None]
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
