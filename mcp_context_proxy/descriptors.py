"""Shares out the file descriptors of the process: servers leave some to hosts and to files.

A host that finds none left is not even told.
"""

from __future__ import annotations

import os
import sys

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
