"""Says that the store fails, for one part that goes on without it: once in a while, not with every write."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from mcp_context_proxy.errors import StoreError

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 600.0
"""Between two warnings: a disk stays full until a person has read that it is."""


class Trouble:
    """What one part of the proxy has to say of a store that fails it."""

    def __init__(self, consequence: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Have nothing to say yet.

        Args:
            consequence: What it means for a person, as a sentence.
            clock: Seconds, of any kind.
        """
        self._consequence, self._clock = consequence, clock
        self._told_at: float | None = None
        self._lasting: StoreError | None = None

    def tell(self, error: StoreError) -> None:
        """It has failed."""
        now, self._lasting = self._clock(), error
        lately = self._told_at is not None and now - self._told_at < AGAIN_SECONDS
        if not lately:
            self._told_at = now
        logger.log(logging.DEBUG if lately else logging.WARNING, "%s. %s", error, self._consequence)

    def over(self) -> None:
        """Something was written."""
        if self._lasting is not None:
            logger.info("store %s can be written again", self._lasting.path)
            self._lasting = None
