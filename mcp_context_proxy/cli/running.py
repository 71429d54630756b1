"""Runs a command's asynchronous part: it cleans up whatever ends it, and a failure comes out as itself."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

T = TypeVar("T")

STOPPED_BY: Final = () if sys.platform == "win32" else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a command from outside: servers it has started must not outlive it. Ctrl-C as well, because
asyncio cancels for that only once, and whatever happens to swallow that lets the command go on."""


def run(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run to the end; Ctrl-C or a signal cancels and cleans up first.

    Raises:
        KeyboardInterrupt: it was ended from outside.
        BaseException: whatever the function raised, not wrapped by the tasks it ended.
    """
    try:
        return anyio.run(_stoppable, function, args)
    except BaseExceptionGroup as group:
        raise _first(group) from None


async def _stoppable(function: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> T:
    results: list[T] = []
    async with anyio.create_task_group() as group:
        if STOPPED_BY:
            group.start_soon(_cancel_on_signal, group.cancel_scope)
        results.append(await function(*args))
        group.cancel_scope.cancel()
    if not results:
        raise KeyboardInterrupt
    return results[0]


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(*STOPPED_BY) as signals:
        async for _ in signals:
            scope.cancel()
            return


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
