"""Output of a server beside its messages: stderr, and stray lines on stdout.

Stderr is always drained; its end is kept for error messages, and a bounded share of it is logged. Nothing is
decoded, cleaned or redacted before it is read, so a flood costs no more than a copy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.settings import KIB
from mcp_context_proxy.protocol.text import clean

logger = logging.getLogger(__name__)

LINES_KEPT = 20
"""Lines of stderr that an error message or a command may quote."""

LINE_CHARACTERS = 300
"""Characters shown of the end of each line, where the reason usually stands."""


class StderrTail:
    """The end of a server's stderr, without secrets and without terminal control sequences."""

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
        """Add output that was read."""
        limit = self._limits.stderr_kept_bytes
        self._kept += data
        # Twice the bound before anything is moved: each byte is then moved once at most.
        if len(self._kept) > 2 * limit:
            del self._kept[:-limit]
        if logger.isEnabledFor(logging.DEBUG):
            self._log(data)

    def lines(self) -> tuple[str, ...]:
        """Return the last lines, oldest first, including one without a line end."""
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
        """Return whether one more line may be logged in this second; the rest is counted."""
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


STRAYS_KEPT = 5
"""Stray lines that are kept. Banners and stray prints are common, and more than a few tell nothing new."""

STRAY_CHARACTERS = 120
"""Characters shown of the beginning of such a line, which identifies a help text or an error."""

STRAY_BYTES = 16 * KIB
"""Bytes that are decoded of a line of megabytes: enough for a secret to be recognized whole."""


class Strays:
    """The first lines on a server's stdout that are no messages; a repeated line is kept once."""

    def __init__(self, server: str, redact: Callable[[str], str] = str) -> None:
        """Start empty; `redact` removes secrets."""
        self._server, self._redact = server, redact
        self._lines: list[str] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines that were kept, oldest first."""
        return tuple(self._lines)

    def add(self, line: bytes) -> None:
        """Keep a line if it is among the first."""
        if len(self._lines) >= STRAYS_KEPT:
            return
        text = self._redact(line[:STRAY_BYTES].decode("utf-8", "replace"))
        shown = " ".join(clean(text).split())[:STRAY_CHARACTERS]
        if shown and shown not in self._lines:
            self._lines.append(shown)
            logger.warning("%s: skipped a line that is not a message: %r", self._server, shown)


class Output:
    """Stderr and stray lines of one server."""

    def __init__(self, server: str, limits: Limits, redact: Callable[[str], str] = str) -> None:
        """Start empty; `redact` removes secrets."""
        self.stderr = StderrTail(server, limits, redact)
        self.strays = Strays(server, redact)
