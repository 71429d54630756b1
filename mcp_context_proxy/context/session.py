"""What lasts beyond one request: handshake-era sessions, and the handles that stand in for them elsewhere.

The modern era knows no sessions, on no transport: there, what outlives a request is a handle that the
client carries itself. Nothing here is ever keyed to a modern connection.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

HANDLE_BYTES = 24
"""192 random bits: the protocol asks for 128 where a handle is all that identifies its owner."""

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of the protocol, least severe first."""


@dataclass(slots=True, eq=False)
class Session:
    """One handshake-era session."""

    query: str | None = None
    """The latest query; None until the session searches or sets its context."""
    shown: dict[str, None] = field(default_factory=dict)
    """Exposed names of the tools that were selected so far. Only grows, so that what a model has seen keeps
    its place in the list."""
    log_level: str = "debug"
    """The least severe level the client wants to hear of."""
    subscriptions: set[str] = field(default_factory=set)
    """URIs of resources whose updates the client wants to hear of."""

    def wants_level(self, level: str | None) -> bool:
        """Whether a log message of that level is to be passed on; an unknown level is."""
        if level not in LOG_LEVELS:
            return True
        return LOG_LEVELS.index(level) >= LOG_LEVELS.index(self.log_level)


@dataclass(frozen=True, slots=True)
class Handle:
    """What a handle stands for."""

    query: str
    shown: tuple[str, ...]
    """Exposed names of the tools that were selected for the query."""


class Handles:
    """Handles by their secret: bounded in number, and forgotten when idle."""

    def __init__(self, limit: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Hold at most `limit` handles, each until it was not used for `idle_seconds`."""
        self._limit, self._idle_seconds, self._clock = limit, idle_seconds, clock
        self._handles: OrderedDict[str, tuple[float, Handle]] = OrderedDict()

    def create(self, handle: Handle) -> str:
        """Keep a handle and return its unguessable id."""
        self._forget_idle()
        if len(self._handles) >= self._limit:
            self._handles.popitem(last=False)
        context_id = secrets.token_urlsafe(HANDLE_BYTES)
        self._handles[context_id] = (self._clock(), handle)
        return context_id

    def get(self, context_id: str) -> Handle | None:
        """The handle by that id; None when it is unknown or forgotten."""
        self._forget_idle()
        found = self._handles.get(context_id)
        if found is None:
            return None
        self._handles[context_id] = (self._clock(), found[1])
        self._handles.move_to_end(context_id)
        return found[1]

    def _forget_idle(self) -> None:
        horizon = self._clock() - self._idle_seconds
        while self._handles and next(iter(self._handles.values()))[0] < horizon:
            self._handles.popitem(last=False)
