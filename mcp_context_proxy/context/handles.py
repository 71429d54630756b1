"""Context handles: sessions that a client carries itself, by an id that nobody can guess.

Bounded in number, forgotten when idle, and bound to the principal that created them, where there is one.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from mcp_context_proxy.context.session import SessionContext, Sessions

HANDLE_BYTES = 24
"""192 random bits: the protocol asks for 128 where a handle is all that identifies its owner."""


@dataclass(slots=True, eq=False)
class Handle(SessionContext):
    """The session that a handle stands for."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(HANDLE_BYTES), repr=False)
    """Its unguessable id, which the client carries."""
    principal: str | None = None
    """Who created it; None where callers have no names. Nobody else may use it."""

    @property
    def kind(self) -> str:
        """What keeps it."""
        return "handle"


class Handles:
    """Handles by their secret."""

    def __init__(
        self,
        limit: int,
        idle_seconds: float,
        sessions: Sessions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold at most `limit` handles, each until it was not used for `idle_seconds`."""
        self._limit, self._idle_seconds, self._sessions, self._clock = limit, idle_seconds, sessions, clock
        self._handles: OrderedDict[str, tuple[float, Handle]] = OrderedDict()

    def create(self, principal: str | None = None) -> Handle:
        """A new handle; the longest idle one makes room."""
        self._forget_idle()
        if len(self._handles) >= self._limit:
            self._handles.popitem(last=False)
        handle = Handle(principal=principal)
        self._handles[handle.secret] = (self._clock(), handle)
        self._sessions.register(handle)
        return handle

    def get(self, context_id: str, principal: str | None = None) -> Handle | None:
        """The handle by its id; None when it is unknown, forgotten, or somebody else's."""
        self._forget_idle()
        found = self._handles.get(context_id)
        if found is None or found[1].principal != principal:
            return None
        self._handles[context_id] = (self._clock(), found[1])
        self._handles.move_to_end(context_id)
        return found[1]

    def _forget_idle(self) -> None:
        horizon = self._clock() - self._idle_seconds
        while self._handles and next(iter(self._handles.values()))[0] < horizon:
            self._handles.popitem(last=False)
