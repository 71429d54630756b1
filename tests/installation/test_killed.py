"""An installation that is killed, or that a host writes into, loses nothing of the host's file."""

import os
import signal
import sys
import tomllib
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mcp_context_proxy.installation.editing import EditError, entries

from .conftest import Machine, Place
from .hosts import SETTINGS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="acts in a copy of this process")
def test_what_the_host_writes_while_its_file_is_replaced_stays(put: Place, machine: Machine) -> None:
    file = put("cursor", SETTINGS["cursor"].encode())
    machine.file.write_text("", "utf-8")

    def write_as_the_host(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.chmod" and file.name in str(arguments[0]):
            file.write_text("{}", "utf-8")

    def install() -> None:
        sys.addaudithook(write_as_the_host)
        with pytest.raises(EditError, match="changed in the meantime"):
            machine.install("cursor")

    assert os.WEXITSTATUS(in_copy(install)) == 0
    assert file.read_text("utf-8") == "{}"
    assert machine.journal.installations() == []


def in_copy(act: Callable[[], object]) -> int:
    """Act in a copy of this process, and return how it ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        with suppress(BaseException):
            act()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of this process")
def test_installation_that_is_killed_anywhere_loses_nothing(put: Place, machine: Machine, home: Path) -> None:
    """At each step that changes a file, of an installation and of its end."""
    text = SETTINGS["cursor"]
    file = put("cursor", text.encode())
    changing = {"os.mkdir", "os.rename", "os.remove", "os.chmod", "os.chown", "tempfile.mkstemp", "os.utime"}

    def killed(step: int, act: Callable[[], object]) -> bool:
        """Act in a copy of this process that is killed before a step; return whether it came so far."""
        left = step

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
            if event in changing or writes:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        def watched() -> None:
            sys.addaudithook(count)
            act()

        status = in_copy(watched)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)

    def whole() -> None:
        there = set(entries("json", file.read_text("utf-8"), ("mcpServers",)))
        moved = (
            set(tomllib.loads(machine.file.read_text("utf-8"))["servers"]) if machine.file.exists() else set()
        )
        assert there | moved >= {"desk", "remote"}
        assert ("context-proxy" in there) or SETTINGS["cursor"] == file.read_text("utf-8")

    for act in (lambda: machine.install("cursor"), machine.uninstall):
        step = 1
        while killed(step, act):
            whole()
            step += 1
        assert step > 5
        if act == machine.uninstall:
            assert file.read_text("utf-8") == text
        for path in [*file.parent.glob(".*.mcp-context-proxy"), *home.glob(".*.mcp-context-proxy")]:
            path.unlink()
    machine.install("cursor")
    machine.uninstall()
    assert file.read_text("utf-8") == text
    assert entries("json", text, ("mcpServers",)).keys() == {"desk", "remote"}
