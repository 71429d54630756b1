"""Waits for the exit of a child: told by the kernel where that is possible, found by looking elsewhere.

Hundreds of children that do nothing must cost nothing; to look at each twice a second is percents of a core.
"""

from __future__ import annotations

import os
import subprocess
import sys

import anyio

from mcp_context_proxy.descriptors import shortage

FIRST_LOOK_SECONDS = 0.0025
"""Before the first look; each further one takes twice as long, up to what is asked for."""


async def exited(process: subprocess.Popen[bytes], look_seconds: float) -> None:
    """Wait until a child has exited.

    Args:
        process: The child.
        look_seconds: How often it is looked at, at most, where that has to be.
    """
    if process.poll() is not None:
        return
    descriptor = _descriptor(process.pid)
    if descriptor is None:
        delay = FIRST_LOOK_SECONDS
        while process.poll() is None:
            await anyio.sleep(delay)
            delay = min(2 * delay, look_seconds)
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    process.wait()


def _descriptor(pid: int) -> int | None:
    """Becomes readable when the child exits; None where there is no such thing, or none is left for this."""
    if sys.platform != "linux" or shortage():
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
