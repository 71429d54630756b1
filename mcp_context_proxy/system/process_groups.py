"""Process groups of the servers that this process has started, to end them when there is no time for order.

One small guardian process is told of each group and ends those that are left if this process is killed.
Without it, they would only see the end of their input, and some servers ignore that.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

logger = logging.getLogger(__name__)

GUARDIAN = Path(__file__).with_name("guardian.py")

LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Environment variables that Python itself may need to start."""

DISMISSAL_SECONDS = 0.5
"""Time for the guardian to exit when no group is left."""

_running: set[int] = set()
_installing: set[int] = set()
"""Those of them that may be installing a package, which must not be killed halfway."""
_lock = threading.Lock()
_guardian: subprocess.Popen[bytes] | None = None


def guard() -> None:
    """Start the guardian unless it runs. Call this before a server starts; blocks until it is started."""
    global _guardian  # noqa: PLW0603 - one for the whole process, like what it guards
    with _lock:
        if _guardian is not None and _guardian.poll() is None:
            return
        try:
            _guardian = subprocess.Popen(
                # Neither the user's environment nor site packages: it starts in a moment and runs for long.
                [sys.executable, "-I", "-S", str(GUARDIAN)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in LIBRARIES if name in os.environ},
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            logger.debug("servers have no guardian: %s", error)
            _guardian = None
            return
        os.set_blocking(_pipe(_guardian).fileno(), False)
        _tell(b"".join(b"+%d\n" % group for group in _running))
        _tell(b"".join(b"~%d\n" % group for group in _installing))


@contextmanager
def starting(stdin: int) -> Iterator[None]:
    """Name the standard input, a pipe, of a process that is about to start; call `started` inside the block.

    A proxy that is killed in between cannot tell the id of the process; the guardian finds it by the pipe.
    """
    pipe = os.fstat(stdin).st_ino
    with _lock:
        _tell(b"?%d\n" % pipe)
    try:
        yield
    finally:
        with _lock:
            _tell(b"!%d\n" % pipe)


def started(group: int) -> None:
    """Record a process that was started as the leader of its group."""
    with _lock:
        _running.add(group)
        _tell(b"+%d\n" % group)


def installs(group: int) -> None:
    """Record that a group may be installing a package, until `installed` or `ended`."""
    with _lock:
        _installing.add(group)
        _tell(b"~%d\n" % group)


def installed(group: int) -> None:
    """Record that a group is done with it."""
    with _lock:
        if group in _installing:
            _installing.discard(group)
            _tell(b"=%d\n" % group)


def ended(group: int) -> None:
    """Remove a group that has ended."""
    installed(group)
    with _lock:
        _running.discard(group)
        _tell(b"-%d\n" % group)


def kill_all() -> None:
    """Kill every group now; those that install a package are asked to end, and left to the guardian."""
    if sys.platform == "win32":
        return
    for group in tuple(_running):
        polite = group in _installing and _guardian is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM if polite else signal.SIGKILL)


@atexit.register
def dismiss() -> None:
    """Close the guardian's input, so that it ends the groups that are left and exits."""
    global _guardian  # noqa: PLW0603 - as above
    with _lock:
        if _guardian is not None:
            _pipe(_guardian).close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                _guardian.wait(DISMISSAL_SECONDS)
            _guardian = None


def _tell(lines: bytes) -> None:
    """Write to the guardian; one that does not read is replaced when the next server starts."""
    global _guardian  # noqa: PLW0603 - as above
    if _guardian is None:
        return
    try:
        heard = _pipe(_guardian).write(lines) == len(lines)
    except OSError as error:
        logger.debug("the guardian of the servers is gone: %s", error)
        heard = False
    if not heard:
        _guardian.kill()
        _guardian.wait()
        _pipe(_guardian).close()
        _guardian = None


def _pipe(guardian: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", guardian.stdin)
