"""An installation that is killed, or meets a host that writes, loses nothing of a file; rights stay."""

import os
import resource
import signal
import stat
import sys
import tomllib
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.nobody import NOBODY

from mcp_context_proxy.installation import HOST_PLACES, read_text
from mcp_context_proxy.installation.editing import EditError, entries
from mcp_context_proxy.installation.plan import Configuration, plan

from .conftest import COMMAND, Machine, Place
from .hosts import SETTINGS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="acts in a copy of this process")
def test_what_the_host_writes_while_its_file_is_replaced_stays(put: Place, machine: Machine) -> None:
    file = put("cursor", SETTINGS["cursor"].encode())
    machine.file.write_text("", "utf-8")

    def write_as_the_host(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.chmod" and isinstance(arguments[0], int):
            file.write_text("{}", "utf-8")

    def install() -> None:
        sys.addaudithook(write_as_the_host)
        with pytest.raises(EditError, match="changed in the meantime"):
            machine.install("cursor")

    assert os.WEXITSTATUS(in_copy(install)) == 0
    assert file.read_text("utf-8") == "{}"
    assert machine.journal.installations() == []


@pytest.mark.skipif(not hasattr(os, "fork") or os.geteuid() != 0, reason="only root can give files away")
def test_no_program_of_a_person_gets_a_file_of_root_while_root_installs(
    put: Place, machine: Machine, tmp_path: Path
) -> None:
    """It puts a link to that file in place of the one that root has just made in its folder."""
    file, victim = put("cursor", SETTINGS["cursor"].encode()), tmp_path / "of-root"
    victim.write_text("", "utf-8")
    victim.chmod(0o600)
    for path in (file.parent, file):
        os.chown(path, NOBODY, NOBODY)
    file.chmod(0o644)

    def put_a_link(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.chown", "os.chmod"):
            for made in file.parent.glob(".mcp.json.*"):
                made.unlink()
                made.symlink_to(victim)

    def install() -> None:
        sys.addaudithook(put_a_link)
        machine.install("cursor")

    in_copy(install)
    status = victim.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o600)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="acts in a copy of this process")
def test_copy_of_a_hosts_file_that_finds_no_room_leaves_nothing(put: Place, machine: Machine) -> None:
    text = SETTINGS["cursor"] + "\n" * 40_000
    file = put("cursor", text.encode())

    def install() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        with pytest.raises(OSError, match="File too large"):
            machine.install("cursor")

    assert os.WEXITSTATUS(in_copy(install)) == 0
    assert file.read_text("utf-8") == text
    assert [*machine.journal.folder.iterdir()] == []


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


def test_link_stays_a_link_and_rights_stay(put: Place, machine: Machine, home: Path) -> None:
    real = home / "dotfiles.json"
    real.write_text(SETTINGS["cursor"], "utf-8")
    real.chmod(0o640)
    file = put("cursor", None)
    file.symlink_to(real)
    machine.install("cursor")
    assert file.is_symlink()
    assert "context-proxy" in real.read_text("utf-8")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert machine.uninstall() == [True]
    assert real.read_text("utf-8") == SETTINGS["cursor"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root can write everything")
def test_read_only_file_is_left_alone(put: Place, machine: Machine) -> None:
    file = put("cursor", SETTINGS["cursor"].encode())
    file.chmod(0o400)
    with pytest.raises(EditError, match="read-only"):
        machine.install("cursor")
    assert machine.journal.installations() == []


def test_file_that_changes_while_it_is_planned_is_not_overwritten(put: Place, machine: Machine) -> None:
    file = put("cursor", SETTINGS["cursor"].encode())
    configuration = Configuration(machine.file, None)
    one = plan(HOST_PLACES["cursor"], file, read_text(file), configuration, COMMAND, machine.environ)
    file.write_text("{}", "utf-8")
    with pytest.raises(EditError, match="changed in the meantime"):
        machine.journal.install(one)
    assert file.read_text("utf-8") == "{}"
    assert machine.journal.installations() == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_files_stay_those_of_their_person_when_root_installs(
    put: Place, machine: Machine, home: Path
) -> None:
    """``sudo`` keeps the home folder on some systems: the host could not read its own file any more."""
    file = put("cursor", SETTINGS["cursor"].encode())
    for path in (home, file.parent, file):
        os.chown(path, NOBODY, NOBODY)
    machine.install("cursor")
    machine.install("codex")
    made = [one for one in home.rglob("*") if one.stat().st_uid != NOBODY]
    assert made == []
    machine.uninstall()
    assert file.stat().st_uid == NOBODY


def test_file_that_a_killed_installation_has_left_is_removed_later(put: Place, machine: Machine) -> None:
    """It has what the host's file has, such as secrets."""
    file = put("cursor", SETTINGS["cursor"].encode())
    left, new, other = (
        file.with_name(f".mcp.json.{end}") for end in ("x1.mcp-context-proxy", "x2.mcp-context-proxy", "tmp")
    )
    for path in (left, new, other):
        path.write_text("x", "utf-8")
    os.utime(left, (1.0, 1.0))
    os.utime(other, (1.0, 1.0))
    machine.install("cursor")
    assert [path.exists() for path in (left, new, other)] == [False, True, True]


def test_copies_and_configuration_are_private(put: Place, machine: Machine) -> None:
    put("cursor", SETTINGS["cursor"].encode())
    machine.install("cursor")
    files = [machine.file, *machine.journal.folder.iterdir()]
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
