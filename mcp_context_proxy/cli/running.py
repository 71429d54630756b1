"""Runs a command's asynchronous part: a failure comes out as itself, not wrapped by the tasks it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


def run(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run to the end; Ctrl-C cancels, cleans up, and is raised again.

    Raises:
        BaseException: whatever the function raised.
    """
    try:
        return anyio.run(function, *args)
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
