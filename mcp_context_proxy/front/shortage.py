"""Says once in a while that connections cannot be accepted, where asyncio says so thousands of times.

It tries as often as connections may be waiting, each second, and writes a traceback for each: that takes a
processor, and a disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)

TELL_SECONDS = 60.0
"""Between two lines of the log that say so."""

_MESSAGE = "socket.accept() out of system resource"
"""Asyncio's own words: there is nothing else to know it by."""


@contextmanager
def told_seldom() -> Iterator[None]:
    """While it is entered, the event loop reports it here."""
    loop, told_at = asyncio.get_running_loop(), -TELL_SECONDS

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told_at
        if context.get("message") != _MESSAGE:
            loop.default_exception_handler(context)
        elif time.monotonic() - told_at >= TELL_SECONDS:
            told_at = time.monotonic()
            logger.warning("hosts have to wait to be connected: %s", context.get("exception"))

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(None)
