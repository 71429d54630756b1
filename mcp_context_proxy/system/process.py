"""What the process as a whole is told and allowed: signals to stop or to read again, open files, turns.

What ``SIGHUP`` says to a process that serves: read the configuration again, or your terminal was closed.

Imports next to nothing: a signal may come while the rest is still being imported.

Gives memory that is free back to the system, where the C library (glibc) would keep it.

What is freed between pieces that are still used stays with the process: after a thousand large requests at
once, or after reading thousands of tools, it would remain as large as it was then.

Shares out the file descriptors of the process: servers leave some to hosts and to files.

A host that finds none left is not even told.

What the proxy keeps is for its owner alone, whatever the umask says and whoever could read it before.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

from mcp_context_proxy.system import process_groups
from mcp_context_proxy.system.threads import in_thread

HANGUP = getattr(signal, "SIGHUP", None)
"""Asks to read the configuration again; Windows has no such signal."""


def ignore_sighup() -> None:
    """From here on ``SIGHUP`` does not end the process, unless its terminal was closed.

    For the time before `listen_for_signals`; what is configured has yet to be read then.
    """
    if HANGUP is None:
        return
    in_terminal = has_terminal()

    def on_hangup(number: int, frame: FrameType | None) -> None:
        del frame
        if in_terminal and not has_terminal():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(HANGUP, on_hangup)


def has_terminal() -> bool:
    """Whether there is a terminal, still, for what is said to people."""
    try:
        return os.isatty(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False


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
            process_groups.kill_all()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        logger.info("stopping on %s", number.name)
        asked.set()


def freeze_gc() -> None:
    """Have the garbage collector pass over what is there by now: it stays, and is not garbage.

    Modules and the catalog are some hundred thousand objects; a full collection would walk through them while
    every request waits.
    """
    gc.freeze()


def set_switch_interval() -> None:
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


GROWN_BYTES = 32 * 1024 * 1024
"""Since it was least: less is not worth looking for."""

USEFUL_BYTES = 4 * 1024 * 1024
"""Given back at once: with less, what has grown is in use."""

LOOK_SECONDS, LONGEST_SECONDS = 5.0, 600.0
"""Between two looks, and between two attempts where they are of no use."""

LARGE_BYTES = 1024 * 1024
"""Memory in one piece that the system gets back when it is free: that of large messages."""

MALLOC_MMAP_THRESHOLD, MALLOC_ARENA_MAX = -3, -8
"""What the C library calls the same; ``M_MMAP_THRESHOLD`` and ``M_ARENA_MAX`` in malloc.h."""

_STATM = Path("/proc/self/statm")


def limit_malloc_arenas() -> None:
    """Have the C library keep little of what is freed.

    By itself it takes the first large piece that is freed as a sign to keep such pieces from then on: they
    fall apart into what is small and stays, and the process grows with each. And it gives threads heaps of
    their own, eight for each core, of which each keeps what is free in it: after ten minutes of many calls
    12 MiB, with one heap for all 2. Those threads wait for the interpreter far more than for a heap.
    """
    configure = _from_c_library("mallopt")
    if configure is not None:
        configure(MALLOC_MMAP_THRESHOLD, LARGE_BYTES)
        configure(MALLOC_ARENA_MAX, 1)


def give_back() -> None:
    """Give back all that is free now. Takes some milliseconds, in which other threads go on."""
    trim = _from_c_library("malloc_trim")
    if trim is not None:
        trim(0)


async def trim_periodically() -> None:
    """Give back what is free from time to time, until cancelled."""
    if _from_c_library("malloc_trim") is None:
        return
    least, wait = _resident(), LOOK_SECONDS
    while True:
        await anyio.sleep(wait)
        before = _resident()
        least = min(least, before)
        if before - least < GROWN_BYTES:
            wait = LOOK_SECONDS
            continue
        # The interpreter is let go of meanwhile; who allocates in the same arena waits some milliseconds.
        await in_thread(give_back)
        after = _resident()
        wait = LOOK_SECONDS if before - after >= USEFUL_BYTES else min(2 * wait, LONGEST_SECONDS)


@cache
def _from_c_library(name: str) -> Any:
    """A function of glibc; None with another C library, or on another system."""
    if sys.platform != "linux":
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None


def _resident() -> int:
    """Bytes of memory that the process has."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


if sys.platform != "win32":
    import resource

OPEN_FILES = "/dev/fd"
"""Has an entry for each."""

SERVERS_SHARE = 2 / 3
"""Of all that the system allows; what is more is refused to a server that is to be started."""

HOSTS_SHARE = 1 / 6
"""For connections at the HTTP front; the rest is for files, and for servers that start at the same time."""


def shortage() -> str:
    """Why no further server may be started, for a person; empty where one may."""
    allowed = _allowed()
    if allowed is None:
        return ""
    try:
        used = len(os.listdir(OPEN_FILES))  # noqa: PTH208 - names alone, no path of each
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    if used < allowed * SERVERS_SHARE:
        return ""
    return (
        f"Too many open files: of the {allowed} that the process may have, some are kept for hosts; "
        "allow more (ulimit -n)"
    )


def for_hosts(wanted: int) -> int:
    """How many connections of hosts there may be, where `wanted` are configured."""
    allowed = _allowed()
    return wanted if allowed is None else max(1, min(wanted, int(allowed * HOSTS_SHARE)))


def _allowed() -> int | None:
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, of mode 0700; what is there already stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    # `mkdir(parents=True)` gives those above the mode of the umask: who may write there may replace it.
    for missing in [one for one in (*reversed(folder.parents), folder) if not one.exists()]:
        missing.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def close_to_others(file: Path) -> bool:
    """Let others neither read nor write a file; whether they could. Somebody else's stays as it is."""
    if sys.platform == "win32":
        return False
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & OTHERS:
            file.chmod(mode & stat.S_IRWXU)
            return True
    return False
