"""Ends what a killed proxy leaves behind. A program of its own, with nothing but the standard library.

Its standard input tells which process groups run: ``+ID`` for one that was started, ``-ID`` for one that
has ended. The end of the input is the end of the proxy, however that came. Groups that are left then are
ended: they have seen the end of their own input; SIGTERM and SIGKILL follow.
"""

from __future__ import annotations

import os
import signal
import sys
import time

INPUT_SECONDS = 2.0
"""For servers to go by themselves, because their input has ended."""

TERM_SECONDS = 1.0
"""For those that did not to go on SIGTERM."""

LOOK_SECONDS = 0.05
"""Between two looks whether they have gone."""


def main() -> None:
    """Wait for the end of the proxy; end what it leaves."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left: set[int] = set()
    for line in sys.stdin.buffer:
        change = left.add if line.startswith(b"+") else left.discard
        change(int(line[1:]))
    for step, seconds in ((0, INPUT_SECONDS), (signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, 0.0)):
        left = {group for group in left if _signal(group, step)}
        until = time.monotonic() + seconds
        while left and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            left = {group for group in left if _signal(group, 0)}


def _signal(group: int, number: int) -> bool:
    """Whether the group was there to take it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
