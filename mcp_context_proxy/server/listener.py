"""Passes on what a server tells about a request while it is under way, to a client that asked for it.

Progress is thinned: what comes too fast waits, and the newest replaces what waited. The last is never lost:
it goes out before the answer. Progress that goes backwards is left out. What stands still is passed on, as a
sign of life that a client may prolong its patience by.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

from mcp_context_proxy.downstream.rate import Bucket
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.levels import reaches

PROGRESS_PER_SECOND = 10
"""Of one call, and as many at once, so 20 in any second: more shows nobody anything."""


class Listener:
    """Takes the notifications of one request. A context manager: leave it when the answer is there."""

    def __init__(self, caller: Caller, params: Members) -> None:
        """Listen for a request as its client sent it."""
        meta = era.meta_of(params)
        self._caller = caller
        self._token, self._level = meta.get("progressToken"), envelope.text(meta.get(era.LOG_LEVEL_KEY))
        self._rate = Bucket(PROGRESS_PER_SECOND, PROGRESS_PER_SECOND)
        self._waiting: Members | None = None
        self._reached = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def __call__(self, method: str, params: Members) -> None:
        """Take a notification."""
        if self._over:
            return
        if method == "notifications/progress" and self._token is not None and self._goes_on(params):
            self._waiting = {**params, "progressToken": self._token}
            if self._timer is None:
                self._tell_progress()
        elif method == "notifications/message":
            said, session = envelope.text(params.get("level")), self._caller.session
            if session.wants_level(said) if session is not None else reaches(said, self._level):
                self._caller.notify(method, params)

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        # Nobody waits for the progress of what was cancelled.
        if kind is None or issubclass(kind, Exception):
            self._deliver()

    def _goes_on(self, params: Members) -> bool:
        progress = envelope.number(params.get("progress"))
        if progress is None or progress < self._reached:
            return False
        self._reached = progress
        return True

    def _tell_progress(self) -> None:
        self._timer = None
        if self._waiting is None:
            return
        if self._rate.take():
            self._deliver()
        else:
            later = 1 / PROGRESS_PER_SECOND
            self._timer = asyncio.get_running_loop().call_later(later, self._tell_progress)

    def _deliver(self) -> None:
        if self._waiting is not None:
            self._caller.notify("notifications/progress", self._waiting)
            self._waiting = None
