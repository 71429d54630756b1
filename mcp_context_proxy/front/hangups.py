"""What ``SIGHUP`` says to a process that serves: read the configuration again, or your terminal was closed.

Imports next to nothing: a signal may come while the rest is still being imported.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

HANGUP = getattr(signal, "SIGHUP", None)
"""Asks to read the configuration again; Windows has no such signal."""


def outlast_hangups() -> None:
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
