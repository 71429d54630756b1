"""The process groups that this process has started, to end them where there is no time to do it in order."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_running: set[int] = set()


def started(group: int) -> None:
    """A process has been started as the leader of its group."""
    _running.add(group)


def ended(group: int) -> None:
    """The group has been ended."""
    _running.discard(group)


def kill_all() -> None:
    """End every group at once."""
    if sys.platform == "win32":
        return
    for group in _running:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
