"""Guardian process: ends the servers that a killed proxy leaves behind.

It is a program of its own and needs only the standard library. Its standard input lists the process groups
that run: ``+ID`` when one has started, ``-ID`` when one has ended. While a process is being started, from
``?INODE`` to ``!INODE``, the input names the pipe that will be its standard input. From ``~ID`` to ``=ID`` a
group may be installing a package. The end of the input means that the proxy is gone. The servers have seen
the end of their own input by then; those that stay get SIGTERM, then SIGKILL: much later if they install
something, because a package that is there in part may never work again.
"""

from __future__ import annotations

import os
import signal
import sys
import time

INPUT_SECONDS = 2.0
"""Time for servers to exit by themselves, because their input has ended."""

TERM_SECONDS = 1.0
"""Time for the rest to exit on SIGTERM."""

INSTALL_SECONDS = 30.0
"""The same for groups that install a package, which have to undo or finish it."""

LOOK_SECONDS = 0.05
"""Time between two looks at the groups that are left."""


def main() -> None:
    """Wait for the end of the proxy, then end the process groups that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left, starting, installing = set[int](), set[int](), set[int]()
    changes = {
        **{b"+": left.add, b"-": left.discard},
        **{b"?": starting.add, b"!": starting.discard},
        **{b"~": installing.add, b"=": installing.discard},
    }
    for line in sys.stdin.buffer:
        changes[line[:1]](int(line[1:]))
    left |= _readers_of(starting)
    if starting:
        # Until it runs its own program, a new process is as closed to others as the proxy.
        time.sleep(LOOK_SECONDS)
        left |= _readers_of(starting)
    left = _step(left, 0, INPUT_SECONDS)
    left = _step(left, signal.SIGTERM, TERM_SECONDS)
    _step(left - installing, signal.SIGKILL, 0.0)
    left = _step(left & installing, 0, INSTALL_SECONDS)
    _step(left, signal.SIGKILL, 0.0)


def _step(groups: set[int], number: int, seconds: float) -> set[int]:
    """Send a signal to groups, and return those that are left after so many seconds."""
    left = {group for group in groups if _signal(group, number)}
    until = time.monotonic() + seconds
    while left and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        left = {group for group in left if _signal(group, 0)}
    return left


def _readers_of(pipes: set[int]) -> set[int]:
    """Return the processes whose standard input is one of these pipes, as far as the system tells."""
    names, found = {f"pipe:[{pipe}]" for pipe in pipes}, set[int]()
    # os.path and os.readlink, because importing pathlib would double the time that a guardian takes to start.
    for process in os.listdir("/proc") if names and os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208
        try:
            if process.isdigit() and os.readlink(f"/proc/{process}/fd/0") in names:  # noqa: PTH115
                found.add(int(process))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
