"""What a server writes beside its messages: to stderr, and to stdout where only messages belong.

What a server writes to stderr: always drained, its end kept, a bounded share of it logged.

Nothing is decoded, cleaned or redacted before somebody reads it, so that a flood costs a copy and no more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.settings import KIB
from mcp_context_proxy.protocol.text import clean

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


logger = logging.getLogger(__name__)

STRAYS_KEPT = 5
"""Lines that are no messages are common (banners, stray prints); more than a few tell nothing new."""

STRAY_CHARACTERS = 120
"""Of such a line: its beginning, where a help text or an error says what it is."""

STRAY_BYTES = 16 * KIB
"""That are looked at of a line of megabytes: enough for a secret to be recognized whole."""


class Strays:
    """The first lines on a server's stdout that are no messages; those it repeats at each start once."""

    def __init__(self, server: str, redact: Callable[[str], str] = str) -> None:
        """Hold none; `redact` takes secrets out."""
        self._server, self._redact = server, redact
        self._lines: list[str] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """They, oldest first."""
        return tuple(self._lines)

    def add(self, line: bytes) -> None:
        """Keep one, if it is among the first."""
        if len(self._lines) >= STRAYS_KEPT:
            return
        text = self._redact(line[:STRAY_BYTES].decode("utf-8", "replace"))
        shown = " ".join(clean(text).split())[:STRAY_CHARACTERS]
        if shown and shown not in self._lines:
            self._lines.append(shown)
            logger.warning("%s: skipped a line that is not a message: %r", self._server, shown)


class Output:
    """Both, of one server."""

    def __init__(self, server: str, limits: Limits, redact: Callable[[str], str] = str) -> None:
        """Hold nothing yet; `redact` takes secrets out."""
        self.stderr = StderrTail(server, limits, redact)
        self.strays = Strays(server, redact)
