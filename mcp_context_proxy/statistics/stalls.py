"""Notices when the event loop does not get its turn: whatever keeps it busy then keeps everyone waiting."""

from __future__ import annotations

import time
from typing import Final

import anyio

TICK_SECONDS: Final = 0.25
"""Between two looks; a stall is seen for certain from this length on, a shorter one only by chance."""

STALL_SECONDS: Final = 0.1
"""Of lateness that counts: less is what a busy machine does to everyone."""


class Stalls:
    """Stalls since `run` began."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            before = time.perf_counter()
            await anyio.sleep(TICK_SECONDS)
            self.late(time.perf_counter() - before - TICK_SECONDS)

    def late(self, seconds: float) -> None:
        """Take how late a look was."""
        if seconds >= STALL_SECONDS:
            self.count += 1
            self.seconds += seconds
