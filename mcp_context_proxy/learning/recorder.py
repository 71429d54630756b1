"""Teaches the learned tier what calls say, off the event loop and one after another; no call waits for it.

Remembers in which sessions tools were used: a write now and then, off the loop; no call waits for it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import anyio

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError, StoreError
from mcp_context_proxy.learning.pairs import SECONDS_A_DAY, ToolKey, Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.learning.working_set import WINDOW_DAYS
from mcp_context_proxy.store import ToolSession, ToolSessionStore
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

WAITING: Final = 1_000
"""Uses that wait to be learned; of more, the oldest are not."""

REFRESH_SECONDS: Final = 2.0
"""Between two looks at what other processes that share the store have learned or forgotten."""

LAST_SECONDS: Final = 2.0
"""For what still waits when the proxy stops."""


class Recorder:
    """Takes in uses. Its `run` owns the work."""

    def __init__(self, tier: LearnedTier) -> None:
        self._tier = tier
        self._waiting: deque[Use] = deque(maxlen=WAITING)
        self._wake = anyio.Event()
        self._idle = anyio.Event()

    def learn(self, use: Use) -> None:
        """Learn of a use, soon. Does not block."""
        self._waiting.append(use)
        self._idle = anyio.Event()
        self._wake.set()

    async def settled(self) -> None:
        """Wait until everything given so far is learned."""
        if self._waiting:
            await self._idle.wait()

    async def run(self) -> None:
        """Learn what comes, until cancelled; then what is left."""
        try:
            while True:
                with anyio.move_on_after(REFRESH_SECONDS):
                    await self._wake.wait()
                self._wake = anyio.Event()
                await in_thread(self._tier.refresh)
                await self._learn_all()
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self._learn_all()

    async def _learn_all(self) -> None:
        while self._waiting:
            use = self._waiting[0]
            try:
                await in_thread(self._tier.learn, use, abandon_on_cancel=True)
            except (ModelError, EmbeddingCancelledError) as error:
                logger.debug("nothing was learned: %s", error)
            except Exception:
                # boundary: what cannot be learned must not end learning
                logger.exception("a use could not be learned")
            self._waiting.popleft()
        self._idle.set()


BATCH_SECONDS: Final = 0.5
"""In which uses are gathered to one write."""

MOST_KEPT: Final = 20_000
"""Uses, one for each tool and session: a month of 60 sessions a day with ten tools each, 2 MB."""

UNWRITTEN_KEPT: Final = 10_000
"""Of those that the store refuses, the latest."""

SEEN_KEPT: Final = 2_000
"""Uses that are known to be written, 350 bytes each: in one session a tool is called often, and counts once.
One that is forgotten here is written once more."""


class SessionRecorder:
    """Takes in uses of tools. Its `run` owns the work."""

    def __init__(self, store: ToolSessionStore, clock: Callable[[], float] = time_of_day) -> None:
        self._store, self._clock = store, clock
        self._fresh: list[ToolSession] = []
        self._unwritten: list[ToolSession] = []
        """That the store has refused; they go with the next ones."""
        self._seen: OrderedDict[tuple[ToolKey, str], None] = OrderedDict()
        self._wake = anyio.Event()

    def used(self, tool: ToolKey, session: str | None) -> None:
        """A tool did what it was asked in a session; without one, the day counts as such. Does not block."""
        now = self._clock()
        of_session = session or f"day {datetime.fromtimestamp(now, UTC).date().isoformat()}"
        if (tool, of_session) in self._seen:
            return
        self._seen[tool, of_session] = None
        if len(self._seen) > SEEN_KEPT:
            self._seen.popitem(last=False)
        self._fresh.append(ToolSession(*tool, of_session, now))
        self._wake.set()

    async def run(self) -> None:
        """Write what comes, until cancelled; then what is left."""
        try:
            while True:
                await self._wake.wait()
                await anyio.sleep(BATCH_SECONDS)
                self._wake = anyio.Event()
                await self.flush()
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self.flush()

    async def flush(self) -> None:
        """Write what has come so far."""
        fresh, self._fresh = self._unwritten + self._fresh, []
        self._unwritten = []
        if fresh:
            with anyio.CancelScope(shield=True):
                await in_thread(self._write, fresh)

    def _write(self, rows: list[ToolSession]) -> None:
        try:
            self._store.add(rows, self._clock() - WINDOW_DAYS * SECONDS_A_DAY, MOST_KEPT)
        except StoreError:
            self._unwritten = rows[-UNWRITTEN_KEPT:]
