"""Command lines that run the proxy, or a program that uses it, without the second of importing the package.

A fork server imports the package once for all tests and all workers of pytest-xdist. Tests of the start
itself, of memory and of a process that is killed use the real command; so does a system that cannot fork.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from mcp_context_proxy.__main__ import joins

PROGRAMS = Path(__file__).with_name("forking")
PATIENCE = 60
"""Seconds until a command that hangs is killed; far more than any takes."""
STARTING = 300
"""Seconds until the fork server serves, which compiles the package while all workers compile, too."""


def real_command(*arguments: str | Path, shared: bool = False) -> list[str]:
    """Return the command line of the proxy as people start it.

    One that serves over stdio has a proxy of its own unless it is ``shared``.
    """
    words = [*map(str, arguments)]
    if joins(words) and not shared:
        words += ["--own"] if "serve" in words else ["serve", "--own"]
    return [sys.executable, "-m", "mcp_context_proxy", *words]


def forked_command(*arguments: str | Path) -> list[str]:
    """Return the command line of a small process that has the proxy run in a forked one."""
    if sys.platform == "win32":
        return real_command(*arguments)
    return [sys.executable, "-I", "-S", str(PROGRAMS / "launch.py"), fork_server(), *map(str, arguments)]


def forked_program(program: str, *arguments: str | Path) -> list[str]:
    """Return the command line of a small process that has a program run in a forked one, as `python -c` does.

    All modules of the package have been imported before it.
    """
    words = ["-c", program, *map(str, arguments)]
    return [sys.executable, *words] if sys.platform == "win32" else forked_command(*words)


_running = ExitStack()
"""Holds the folder of the fork server, and what keeps the server alive."""
_started = list[subprocess.Popen[bytes]]()
"""The fork server, if this process has started it."""
_shared = list[Path]()
"""The folder of the fork server, if another process holds it."""


@cache
def held_fork_server() -> Path:
    """Make the folder of a fork server that ends when this process ends it, or ends itself."""
    folder = Path(_running.enter_context(tempfile.TemporaryDirectory(prefix="fork-")))
    _running.callback(_wait_for_its_end)
    os.mkfifo(folder / "held")
    # Open for reading, too, because opening it for writing alone would wait for the server.
    _running.callback(os.close, os.open(folder / "held", os.O_RDWR))
    return folder


def share_fork_server(folder: str) -> None:
    """Use the fork server in a folder that another process holds."""
    _shared.append(Path(folder))


@cache
def fork_server() -> str:
    """Start the fork server unless it runs, and return the path of its socket once it serves."""
    import fcntl  # not on Windows

    folder = _shared[0] if _shared else held_fork_server()
    path = folder / "socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second waits for the one who starts it
        if not path.is_socket():
            _start_fork_server(folder, path)
    return str(path)


def _start_fork_server(folder: Path, path: Path) -> None:
    # No library may start threads before a fork.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    # Newer Pythons warn of its thread, which does nothing that a forked process would miss.
    options = ["-W", "ignore::DeprecationWarning:__main__"]
    command = [sys.executable, *options, str(PROGRAMS / "server.py"), str(path)]
    with (folder / "held").open("rb") as held:  # it ends when its standard input does
        process = subprocess.Popen(command, stdin=held, env=environment, start_new_session=True)
    _started.append(process)
    until = time.monotonic() + STARTING
    while not path.is_socket():
        assert process.poll() is None, "the fork server has ended"
        assert time.monotonic() < until, "the fork server does not start"
        time.sleep(0.01)


def _wait_for_its_end() -> None:
    for process in _started:
        process.wait(PATIENCE)


def end_fork_server() -> None:
    """End the fork server that this process holds, if there is one, with all processes that it forked."""
    _running.close()
