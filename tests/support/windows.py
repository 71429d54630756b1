"""Runs a command of the proxy without what Windows lacks, as far as another system can show that.

The package gets modules of the standard library that have less in them; libraries are imported before.
"""

import _socket
import asyncio
import fcntl
import os
import select
import signal
import socket
import sys
import time
from types import ModuleType
from typing import NoReturn

import anyio._backends._asyncio  # noqa: F401
import httpx2  # noqa: F401
import mcp.client.stdio  # noqa: F401
import onnxruntime  # noqa: F401
import platformdirs  # noqa: F401
import rich.console  # noqa: F401
import uvicorn  # noqa: F401

MISSING = {
    os: "fchmod fchown fork getegid geteuid getpgid getuid killpg O_CLOEXEC O_DIRECTORY O_NOFOLLOW "
    "O_NONBLOCK pidfd_open register_at_fork sched_getaffinity set_blocking setsid statvfs sysconf uname",
    select: "epoll poll PIPE_BUF",
    signal: "alarm pthread_sigmask setitimer SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGUSR1",
    socket: "AF_UNIX MSG_DONTWAIT SO_REUSEPORT",
    _socket: "AF_UNIX",
    time: "clock_gettime CLOCK_MONOTONIC tzset",
    sys: "",
}


def refuse(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError


asyncio.SelectorEventLoop.add_signal_handler = refuse  # type: ignore[method-assign]
asyncio.SelectorEventLoop.create_unix_server = refuse  # type: ignore[method-assign]
for module, names in MISSING.items():
    less = ModuleType(module.__name__)
    vars(less).update((name, value) for name, value in vars(module).items() if name not in names.split())
    sys.modules[module.__name__] = less
sys.modules["sys"].platform = "win32"  # type: ignore[misc]
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))  # type: ignore[arg-type]
sys.modules["msvcrt"] = locks = ModuleType("msvcrt")
vars(locks)["LK_NBLCK"] = fcntl.LOCK_EX | fcntl.LOCK_NB
vars(locks)["locking"] = lambda descriptor, how, _bytes: fcntl.flock(descriptor, how)

from mcp_context_proxy.__main__ import main  # noqa: E402 - now that they are

main()
