"""Imports the SDK once, off the event loop, and never in two threads at the same time.

Its packages import each other in a circle: two threads that meet in it fail. It also costs half a second,
which a process that only lists or checks need not pay, and which servers can use to start.
"""

from __future__ import annotations

import importlib
import threading

import anyio.to_thread

_lock = threading.Lock()


async def load_sdk() -> None:
    """Make sure that the SDK is imported; modules that need it may be imported after this."""
    await anyio.to_thread.run_sync(_load)


def _load() -> None:
    with _lock:
        importlib.import_module("mcp")
        importlib.import_module("mcp.server.lowlevel")
