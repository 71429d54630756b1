"""Teaches the learned tier what calls say, off the event loop and one after another; no call waits for it."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import anyio

from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.learning.signals import Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.threads import in_thread

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
