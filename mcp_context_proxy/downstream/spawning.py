"""Starts the programs of servers, the first ones while the proxy itself is still being imported.

Most of the first second of a proxy is its import on one core and the start of its servers on the others. So
`serve` starts the first servers as soon as it knows its configuration, and the connection to each takes the
process that is there. What it has written until then waits in its pipes.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.config.programs import downloads, environment_of
from mcp_context_proxy.errors import Fault, StartError
from mcp_context_proxy.system.process import (
    descriptor_shortage,
    group_installs,
    group_started,
    guard_groups,
    raise_file_limit,
    starting_group,
)

_ahead: dict[str, tuple[ServerConfig, subprocess.Popen[bytes]]] = {}
"""Processes that no connection has taken yet, by the name of the server."""


def start_ahead(config: Config) -> None:
    """Start as many servers as may start at once, in their order. Blocking."""
    if sys.platform == "win32":  # its servers are started by the SDK
        return
    raise_file_limit()
    first = (server for server in config.servers.values() if server.enabled)
    for server in islice(first, config.limits.starts_at_once):
        # Of a lazy server, enough may be known.
        if server.transport == "stdio" and server.start == "eager":
            with suppress(StartError):  # the connection tries it again, and tells
                _ahead[server.name] = server, spawn(server)


def taken(config: ServerConfig) -> subprocess.Popen[bytes] | None:
    """Return the process that was started ahead for a connection, once; None if there is none."""
    ahead = _ahead.pop(config.name, None)
    return None if ahead is None else ahead[1]


def spawn(config: ServerConfig) -> subprocess.Popen[bytes]:
    """Start the program of a server in a process group of its own. Blocking.

    Raises:
        StartError: it cannot be started; the message says why and what to do.
    """
    environment = environment_of(config, os.environ)
    command, folder = config.command or "", _folder(config)
    program = _program(command, environment.get("PATH"), folder)
    if program is None:
        raise _no_program(command, folder)
    if refusal := descriptor_shortage():
        raise StartError(Fault.NO_START, f"cannot start {program}: {refusal}")
    guard_groups()
    stdin, writing = os.pipe()
    try:
        with starting_group(stdin):
            process = subprocess.Popen(
                [program, *config.args],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=environment,
                bufsize=0,
                start_new_session=True,
            )
            group_started(process.pid)
            if downloads(config):
                group_installs(process.pid)
    except OSError as error:
        os.close(writing)
        reason = error.strerror or type(error).__name__
        raise StartError(Fault.NOT_RUNNABLE, f"cannot start {program}: {reason}") from error
    finally:
        os.close(stdin)
    process.stdin = os.fdopen(writing, "wb", 0)
    return process


def _folder(config: ServerConfig) -> Path:
    try:
        folder = config.folder
    except OSError as error:
        message = f"cannot start: the folder in which the proxy was started cannot be used: {error.strerror}"
        raise StartError(Fault.NO_START, message) from error
    try:
        there = stat.S_ISDIR(folder.stat().st_mode)
    except PermissionError:
        message = f"cannot start: the folder {str(folder)!r} may not be entered; allow it or correct 'cwd'"
        raise StartError(Fault.NO_START, message) from None
    except OSError:
        there = False
    if not there:
        message = f"cannot start: there is no folder {str(folder)!r}; create it or correct 'cwd'"
        raise StartError(Fault.NO_START, message)
    return folder


def _no_program(command: str, folder: Path) -> StartError:
    """Return the error about a command that leads to no program; a path says more than a name."""
    if Path(command).name == command:
        reason = f"no program {command!r} on its PATH; install it or give its full path as 'command'"
        return StartError(Fault.NO_PROGRAM, f"cannot start: {reason}")
    program = folder / command
    try:
        mode = program.stat().st_mode
    except PermissionError:
        reason = f"{program} lies in a folder that may not be entered; allow it or correct 'command'"
        return StartError(Fault.NO_ACCESS, f"cannot start: {reason}")
    except (OSError, ValueError):
        reason = f"there is no program {program}; install it or correct 'command'"
        return StartError(Fault.NO_PROGRAM, f"cannot start: {reason}")
    if stat.S_ISDIR(mode):
        return StartError(Fault.NO_START, f"cannot start: {program} is a folder; correct 'command'")
    return StartError(Fault.NOT_RUNNABLE, f"cannot start: {program} is no file that you may run")


def _program(command: str, path: str | None, folder: Path) -> str | None:
    """Return the path of a program, or None; relative paths count from the working folder of the server.

    `shutil.which` alone would try them in the folder in which the proxy was started.
    """
    if Path(command).name != command:
        return shutil.which(folder / command)
    places = os.defpath if path is None else path
    entries = [str(folder / entry) for entry in places.split(os.pathsep)]
    return shutil.which(command, path=os.pathsep.join(entries))
