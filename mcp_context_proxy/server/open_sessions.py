"""The handshake-era sessions that are open, how each is reached, and what has to end with it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator

from mcp_context_proxy.context.session import Session
from mcp_context_proxy.wire.envelope import Members

logger = logging.getLogger(__name__)

Send = Callable[[str, Members], Awaitable[None]]
"""Sends a notification to one session: method, params."""


class OpenSessions:
    """All open sessions, of every front."""

    def __init__(self) -> None:
        self._sends: dict[Session, Send] = {}
        self._on_end: list[Callable[[Session], None]] = []

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sends))

    def open(self, session: Session, send: Send) -> None:
        """A session has begun; `send` reaches it beside its requests."""
        self._sends[session] = send

    def end(self, session: Session) -> None:
        """A session has ended."""
        if self._sends.pop(session, None) is not None:
            for ended in self._on_end:
                ended(session)

    def when_ended(self, ended: Callable[[Session], None]) -> None:
        """Call `ended`, which must not block, for each session that ends."""
        self._on_end.append(ended)

    async def send(self, session: Session, method: str, params: Members) -> None:
        """Notify one session; nothing happens when it cannot be reached."""
        send = self._sends.get(session)
        if send is None:
            return
        try:
            await send(method, params)
        except Exception:
            # boundary: one client that cannot be reached is not another's problem
            logger.debug("a session could not be told of %s", method, exc_info=True)
