"""Runs blocking work in threads, away from the event loop.

The system may have no thread left: a limit on processes, for a user or a container, counts threads, too, and
servers that start may take the last of them. The work then waits and is tried again; an error would end the
owner of the work, at worst the proxy, although a thread may be free a moment later.

Two slow, process-wide loads are here as well, each done once and in a thread: the import of the MCP SDK and
the trusted certificates.
"""

from __future__ import annotations

import functools
import importlib
import logging
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")
Args = TypeVarTuple("Args")

RETRY_SECONDS = 0.1
"""Wait before another attempt to start a thread."""

WARN_AGAIN_SECONDS = 600.0
"""Time between two warnings that threads are short."""

SPARE_THREADS = 2
"""Threads that a library may need at once: one more than the file watcher starts."""

_warned_at = -WARN_AGAIN_SECONDS


async def in_thread(
    function: Callable[[*Args], T],
    *arguments: *Args,
    abandon_on_cancel: bool = False,
    limiter: anyio.CapacityLimiter | None = None,
) -> T:
    """Call a function in a thread and return its result; see `anyio.to_thread.run_sync`."""
    begun = False

    def call() -> T:
        nonlocal begun
        begun = True
        return function(*arguments)

    while True:
        try:
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
        except RuntimeError as error:
            if begun or not _is_shortage(error):
                raise
        await _wait()


@asynccontextmanager
async def cancellation_event() -> AsyncIterator[anyio.Event]:
    """Provide an event that is set on cancellation, because a thread cannot notice it otherwise."""
    cancelled = anyio.Event()

    async def set_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async with anyio.create_task_group() as group:
        group.start_soon(set_when_cancelled)
        yield cancelled
        group.cancel_scope.cancel()


async def wait_for_spare_threads() -> None:
    """Wait until threads can be started, for a library that ends the process when they cannot."""
    while not _can_start_threads():
        await _wait()


def _can_start_threads() -> bool:
    enough = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(SPARE_THREADS):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        if not _is_shortage(error):
            raise
        return False
    finally:
        enough.set()
        for thread in started:
            thread.join()
    return True


def _is_shortage(error: RuntimeError) -> bool:
    return "start new thread" in str(error)


async def _wait() -> None:
    global _warned_at  # noqa: PLW0603 - one process, one limit
    if time.monotonic() - _warned_at >= WARN_AGAIN_SECONDS:
        _warned_at = time.monotonic()
        logger.warning(
            "the system allows no more threads, so some work has to wait; raise the limit on processes "
            "(ulimit -u, or the limit of the container)"
        )
    await anyio.sleep(RETRY_SECONDS)


_lock = threading.Lock()


async def load_sdk() -> None:
    """Import the MCP SDK, if it is not imported yet; modules that need it can be imported afterwards.

    The import takes half a second. A process that only lists or checks does not pay it, and servers use the
    time to start.
    """
    await in_thread(_load, "mcp.server.lowlevel")


async def load_oauth() -> None:
    """Import the SDK's OAuth client, too: it takes as long again and is seldom needed."""
    await in_thread(_load, "mcp.client.auth.extensions.client_credentials")


def _load(name: str) -> None:
    # The packages of the SDK import each other in a circle, so an import in two threads at once fails.
    with _lock:
        importlib.import_module("mcp")
        importlib.import_module(name)


async def trusted_certificates() -> ssl.SSLContext:
    """Return the TLS context that every HTTP client of the proxy verifies its peers with.

    A client without one would read all certificates by itself, and hold the event loop for 30 ms or more.
    """
    return await in_thread(_trusted)


def _trusted() -> ssl.SSLContext:
    with _lock:
        return _read_certificates()


@functools.cache
def _read_certificates() -> ssl.SSLContext:
    import httpx2  # noqa: PLC0415 - a proxy of local programs does not need it

    return httpx2.create_ssl_context()
