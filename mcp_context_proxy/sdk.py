"""Imports the SDK once, off the event loop, and never in two threads at the same time.

Its packages import each other in a circle: two threads that meet in it fail. It also costs half a second,
which a process that only lists or checks need not pay, and which servers can use to start.
"""

from __future__ import annotations

import importlib
import threading

from mcp_context_proxy.threads import in_thread

_lock = threading.Lock()


async def load_sdk() -> None:
    """Make sure that the SDK is imported; modules that need it may be imported after this."""
    await in_thread(_load)


async def load_oauth() -> None:
    """The same for what logs in to servers, which costs as much again and is seldom needed."""
    await in_thread(_load, ("mcp.client.auth.extensions.client_credentials",))


def _load(more: tuple[str, ...] = ("mcp.server.lowlevel",)) -> None:
    with _lock:
        for name in ("mcp", *more):
            importlib.import_module(name)
