"""What a server writes beside its messages: to stderr, and to stdout where only messages belong."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.limits import KIB
from mcp_context_proxy.downstream.stderr import StderrTail
from mcp_context_proxy.wire.text import clean

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
