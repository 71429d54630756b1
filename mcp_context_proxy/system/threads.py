"""Runs what blocks in a thread, and waits for one where the system has none left to give.

What limits processes, for a user or a container, limits threads: servers that start may take the last of
them. To fail then would end whatever owns the work, at worst the proxy; a moment later there may be one.

Imports the SDK once, off the event loop, and never in two threads at the same time.

Its packages import each other in a circle: two threads that meet in it fail. It also costs half a second,
which a process that only lists or checks need not pay, and which servers can use to start.

Reads the certificates that encrypted connections trust: once for all clients, and off the event loop.

An HTTP client that is given none reads them by itself, each anew: 30 ms and more during which nothing else is
served, with every connection to a server.
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
"""Before it is tried again to have a thread."""

TELL_SECONDS = 600.0
"""Between two lines of the log that say so."""

SPARE = 2
"""Threads that a library may need at once: one more than the watcher of files starts."""

_told_at = -TELL_SECONDS


async def in_thread(
    function: Callable[[*Args], T],
    *arguments: *Args,
    abandon_on_cancel: bool = False,
    limiter: anyio.CapacityLimiter | None = None,
) -> T:
    """What a function returns that is called in a thread; see `anyio.to_thread.run_sync`."""
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
async def cancellation_told() -> AsyncIterator[anyio.Event]:
    """An event that is set when what is done within is cancelled: a thread hears of it by nothing else."""
    cancelled = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_set_when_cancelled, cancelled)
        yield cancelled
        group.cancel_scope.cancel()


async def _set_when_cancelled(event: anyio.Event) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        event.set()


async def until_spare() -> None:
    """Wait until there are threads to be had, for a library that ends the process where there are none."""
    while not _can_start():
        await _wait()


def _can_start() -> bool:
    enough = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(SPARE):
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
    global _told_at  # noqa: PLW0603 - one process, one limit
    if time.monotonic() - _told_at >= TELL_SECONDS:
        _told_at = time.monotonic()
        logger.warning(
            "the system allows no more threads, so some work waits for one; raise the limit on processes "
            "(ulimit -u, or that of the container)"
        )
    await anyio.sleep(RETRY_SECONDS)


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


async def trusted() -> ssl.SSLContext:
    """What every HTTP client of the proxy verifies its peers with."""
    return await in_thread(_trusted)


def _trusted() -> ssl.SSLContext:
    with _lock:
        return _read()


@functools.cache
def _read() -> ssl.SSLContext:
    import httpx2  # noqa: PLC0415 - a proxy of programs needs none of this

    return httpx2.create_ssl_context()
