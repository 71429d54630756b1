"""What a server writes to stderr: always drained, its end kept, a bounded share of it logged.

Nothing is decoded, cleaned or redacted before somebody reads it, so that a flood costs a copy and no more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mcp_context_proxy.config import Limits
from mcp_context_proxy.wire.text import clean

logger = logging.getLogger(__name__)

LINES_KEPT = 20
"""Lines that an error message or a command may quote."""

LINE_CHARACTERS = 300
"""Of each line: its end, where the reason usually stands."""


class StderrTail:
    """The end of what a server wrote to stderr, without secrets and without what a terminal would obey."""

    def __init__(
        self,
        server: str,
        limits: Limits,
        redact: Callable[[str], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._limits, self._redact, self._clock = server, limits, redact, clock
        self._kept = bytearray()
        self._second, self._logged, self._skipped = 0, 0, 0
        self._unlogged = bytearray()

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        limit = self._limits.stderr_kept_bytes
        self._kept += data
        # Twice the bound before anything is moved: each byte is then moved once at most.
        if len(self._kept) > 2 * limit:
            del self._kept[:-limit]
        if logger.isEnabledFor(logging.DEBUG):
            self._log(data)

    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first, including one that is not ended yet."""
        limit = self._limits.stderr_kept_bytes
        lines = bytes(self._kept[-limit:]).split(b"\n")
        if len(self._kept) > limit and len(lines) > 1:
            del lines[0]
        shown = (self._shown(line) for line in lines)
        return tuple([line for line in shown if line][-LINES_KEPT:])

    def _shown(self, line: bytes) -> str:
        text = clean(self._redact(line.decode("utf-8", "replace").strip()))
        return "".join(char if char.isprintable() else " " for char in text)[-LINE_CHARACTERS:].strip()

    def _log(self, data: bytes) -> None:
        self._unlogged += data
        *lines, self._unlogged = self._unlogged.split(b"\n")
        del self._unlogged[: -self._limits.stderr_kept_bytes]
        for line in lines:
            if self._may_log() and (text := self._shown(bytes(line))):
                logger.debug("%s: %s", self._server, text)

    def _may_log(self) -> bool:
        """Whether this second has room for one more line; the rest is counted and told in the next."""
        second = int(self._clock())
        if second != self._second:
            if self._skipped:
                logger.debug("%s: %d more lines were not logged", self._server, self._skipped)
            self._second, self._logged, self._skipped = second, 0, 0
        if self._logged >= self._limits.stderr_lines_per_second:
            self._skipped += 1
            return False
        self._logged += 1
        return True
