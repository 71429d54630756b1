"""Batched writes to the store, off the event loop: whoever adds an entry pays for an append."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import anyio

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")

LAST_SECONDS: Final = 2.0
"""Time for the entries that are unwritten when the proxy stops."""


class BatchWriter(Generic[T]):
    """Gathers entries for a moment and writes them together, in a thread.

    Entries that the store refuses are kept, and written with the next ones. A killed process loses the
    entries since the last write began: those of `seconds` and of the time that a write takes.
    """

    def __init__(
        self, write: Callable[[list[T]], None], *, seconds: float, limit: int, at_once: int | None = None
    ) -> None:
        """Write nothing yet: `run` does.

        `write` is called in a thread, one call at a time, with `at_once` entries at most, gathered for some
        `seconds`. It raises `StoreError` where they are to be kept for another attempt. Of more than `limit`
        entries that wait, the oldest are dropped.
        """
        self._write, self._seconds, self._at_once = write, seconds, at_once
        self._waiting: deque[T] = deque(maxlen=limit)
        self._in_flight: list[T] = []
        self._wake, self._writing = anyio.Event(), anyio.Lock()

    def add(self, entry: T) -> None:
        """Have an entry written soon. Does not block."""
        self._waiting.append(entry)
        self._wake.set()

    @property
    def unwritten(self) -> list[T]:
        """The entries that are not in the store yet, oldest first."""
        return [*self._in_flight, *self._waiting]

    async def run(self) -> None:
        """Write until cancelled, and then the entries that are left."""
        try:
            while True:
                await self._wake.wait()
                await anyio.sleep(self._seconds)
                self._wake = anyio.Event()
                await self.flush()
        finally:
            with anyio.move_on_after(LAST_SECONDS, shield=True):
                await self.flush()

    async def flush(self) -> None:
        """Write every entry that was added before, unless the store refuses."""
        async with self._writing:
            left = len(self._waiting)
            while left > 0:
                count = min(left, self._at_once or left)
                self._in_flight = [self._waiting.popleft() for _ in range(count)]
                # Not abandoned when cancelled: the store must not get the same entries twice.
                with anyio.CancelScope(shield=True):
                    written = await in_thread(self._attempt, self._in_flight)
                if not written:
                    self._waiting = deque(self.unwritten, self._waiting.maxlen)
                self._in_flight, left = [], left - count if written else 0

    def _attempt(self, entries: list[T]) -> bool:
        try:
            self._write(entries)
        except StoreError:
            return False  # logged by the store
        except Exception:
            # boundary: entries that cannot be written must not end the task, nor be tried for ever
            logger.exception("%d entries could not be written to the store and are lost", len(entries))
        return True
