"""Passes on what servers say of their own accord: to the sessions that it concerns, or to all.

While calls are under way on a connection, what comes over it concerns those whose calls they are; else it
concerns every session. Log messages below a session's level are left out. The modern era has no such channel.
"""

from __future__ import annotations

from mcp_context_proxy.downstream.link import Party
from mcp_context_proxy.server.open_sessions import OpenSessions
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members

MESSAGE = "notifications/message"

ELICITED = "notifications/elicitation/complete"
"""What was asked by a URL has been done there."""

PASSED_ON = frozenset({MESSAGE, ELICITED})


class Broadcast:
    """Decides who hears of what a server says."""

    def __init__(self, sessions: OpenSessions) -> None:
        self._sessions = sessions

    def take(self, method: str, params: Members, parties: frozenset[Party]) -> None:
        """Pass a notification on soon, if it is one that clients are told of."""
        if method not in PASSED_ON:
            return
        level, told = envelope.text(params.get("level")), era.without_subscription(params)
        for session in self._sessions:
            concerned = not parties or session.party in parties
            if concerned and (method != MESSAGE or session.wants_level(level)):
                self._sessions.tell(session, method, told)
