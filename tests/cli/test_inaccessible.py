"""Whatever a configuration names, and nobody may look into, is a finding in words and never a traceback."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import PATIENCE, real_command
from support.nobody import NOBODY, as_nobody, needs_another_user

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX"),
    needs_another_user,
]

CONFIGURATIONS = {
    "programs and models": (
        '[embedding]\nmodel = "{closed}/inner"\n'
        '[rerank]\nmode = "always"\nmodel = "{closed}/inner"\n'
        '[servers.hidden]\ncommand = "{closed}/server"\n'
        '[servers.astray]\ncommand = "python3"\ncwd = "{closed}/inner"\n',
        (
            "hidden: cannot start: {closed}/server lies in a folder that may not be entered",
            "astray: cannot start: the folder '{closed}/inner' may not be entered",
            "embedding model {closed}/inner: cannot be read: Permission denied",
            "rerank: ",
            "3 problems to fix",
        ),
    ),
    "documents": (
        '[[documents]]\nkind = "rule"\npath = "{closed}/inner"\n',
        ("{closed}/inner: permission denied", "1 problem to fix"),
    ),
}
"""Tables of a configuration, and what is found."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the user who runs the proxy, and in it one that this user may not look into."""
    with tempfile.TemporaryDirectory(prefix="inaccessible-") as name:
        home = Path(name)
        closed = home / "closed"
        (closed / "inner").mkdir(parents=True)
        shutil.copy("/bin/true", closed / "server")
        closed.chmod(0)
        if as_nobody:
            os.chown(home, NOBODY, NOBODY)
        yield home
        closed.chmod(0o700)


def checked(folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(folder), "COLUMNS": "400", **variables}
    command = [*as_nobody, *real_command(*more)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if "No module named" in done.stderr or "Permission denied" in done.stderr.partition("\n")[0]:
        pytest.skip(f"the proxy cannot run as another user: {done.stderr[-300:]}")
    return done


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_what_nobody_may_look_into_is_a_finding_of_check(folder: Path, kind: str) -> None:
    template, findings = CONFIGURATIONS[kind]
    text = template.format(closed=folder / "closed")
    (folder / "config.toml").write_text(f'[store]\npath = "memory"\n{text}', encoding="utf-8")
    if as_nobody:
        os.chown(folder / "config.toml", NOBODY, NOBODY)
    done = checked(folder, "--config", str(folder / "config.toml"), "check")
    said = " ".join((done.stdout + done.stderr).split())

    assert "Traceback" not in said
    for finding in findings:
        assert finding.format(closed=folder / "closed") in said


def test_a_place_of_the_configuration_that_nobody_may_look_into_is_named(folder: Path) -> None:
    done = checked(folder, "check", XDG_CONFIG_HOME=str(folder / "closed"))
    said = " ".join((done.stdout + done.stderr).split())

    assert "Traceback" not in said
    assert f"{folder / 'closed'}/mcp-context-proxy/config.toml: cannot be read: Permission denied" in said
