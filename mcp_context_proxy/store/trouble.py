"""Says that the store fails, to a person: once in a while, not with everything that fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from mcp_context_proxy.errors import StoreError

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 600.0
"""Between two warnings: a disk stays full until a person has read that it is."""


CONSEQUENCE: Final = "What would be kept waits in memory, the latest of it, until that is over"


class Trouble:
    """What there is to say of a store that fails."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Have nothing to say yet; `clock` has seconds, of any kind."""
        self._clock = clock
        self._lock = threading.Lock()
        self._told_at: float | None = None
        self._lasting: StoreError | None = None

    def tell(self, error: StoreError) -> None:
        """It has failed."""
        with self._lock:
            now, self._lasting = self._clock(), error
            lately = self._told_at is not None and now - self._told_at < AGAIN_SECONDS
            if not lately:
                self._told_at = now
        logger.log(logging.DEBUG if lately else logging.WARNING, "%s. %s.", error, CONSEQUENCE)

    def over(self) -> None:
        """Something was written."""
        if self._lasting is not None:
            with self._lock:
                lasted, self._lasting = self._lasting, None
            if lasted is not None:
                logger.info("store %s can be written again", lasted.path)
