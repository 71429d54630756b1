"""Passes on what servers say of their own accord: to the sessions that it concerns, or to all.

While calls are under way on a connection, what comes over it concerns those whose calls they are; else it
concerns every session. Log messages below a session's level are left out. The modern era has no such channel.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

import anyio

from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.server.open_sessions import OpenSessions
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members

logger = logging.getLogger(__name__)

QUEUED = 1024
"""Notifications that wait to be passed on; more are dropped, since nobody reads that fast."""

MESSAGE = "notifications/message"

ELICITED = "notifications/elicitation/complete"
"""What was asked by a URL has been done there."""

PASSED_ON = frozenset({MESSAGE, ELICITED})


_Told: TypeAlias = tuple[str, Members, frozenset[Party]]


class Broadcast:
    """Notifications on their way to sessions."""

    def __init__(self, sessions: OpenSessions) -> None:
        self._sessions = sessions
        self._send, self._queue = anyio.create_memory_object_stream[tuple[str, Members, frozenset[Party]]](
            QUEUED
        )

    def take(self, method: str, params: Members, parties: frozenset[Party]) -> None:
        """Pass a notification on soon, if it is one that clients are told of."""
        if method in PASSED_ON:
            try:
                self._send.send_nowait((method, era.without_subscription(params), parties))
            except anyio.WouldBlock:
                logger.debug("dropped %s: too many are waiting", method)

    async def run(self) -> None:
        """Pass on what was taken, until cancelled."""
        with self._send, self._queue:
            async for method, params, parties in self._queue:
                level = envelope.text(params.get("level"))
                for session in self._sessions:
                    concerned = not parties or session.party in parties
                    if concerned and (method != MESSAGE or session.wants_level(level)):
                        await self._sessions.send(session, method, params)
