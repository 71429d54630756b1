"""What the process as a whole is told and allowed: signals to stop or to read again, open files, turns."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import anyio

from mcp_context_proxy.downstream import groups
from mcp_context_proxy.front.hangups import HANGUP, has_terminal

if sys.platform != "win32":
    import resource

logger = logging.getLogger(__name__)

SIGNALS = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None)
"""All that `listen_for_signals` is to be given."""

SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter while others wait for it. With Python's 5 ms each step of a request
waits as long for the thread that reads a catalog: the loop woke 10 ms late in the median, now 4, in as much
processor time."""

FILES = 65_536
"""Open at a time, where the system allows it: what 1,000 servers and their clients need, ten times over."""


async def listen_for_signals(
    signals: AsyncIterator[signal.Signals], asked: anyio.Event, hung_up: Callable[[], None]
) -> None:
    """Ask to stop in order on the first signal to stop; end everything at once on the second.

    ``SIGHUP`` is no such signal, unless it tells that the terminal was closed.
    """
    in_terminal = has_terminal()
    async for number in signals:
        if number is HANGUP:
            if in_terminal and not has_terminal():
                asked.set()
            elif not asked.is_set():
                hung_up()
            continue
        if asked.is_set():
            groups.kill_all()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        logger.info("stopping on %s", number.name)
        asked.set()


def spare_the_collector() -> None:
    """Have the garbage collector pass over what is there by now: it stays, and is not garbage.

    Modules and the catalog are some hundred thousand objects; a full collection would walk through them while
    every request waits.
    """
    gc.freeze()


def take_short_turns() -> None:
    """Have threads that work let the event loop in soon."""
    sys.setswitchinterval(SWITCH_SECONDS)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets us: each server takes four, each connection one."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
