"""Commands that tests run by forking behave like processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import PATIENCE, forked_command, real_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    home = {name: str(tmp_path) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    return {**os.environ, **home}


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("arguments", [["--version"], ["unknown"], ["--config", "no/such/file", "check"]])
def test_a_forked_command_has_the_output_and_status_of_the_real_one(
    environment: dict[str, str], arguments: list[str]
) -> None:
    forked = run(forked_command(*arguments), environment)
    real = run(real_command(*arguments), environment)

    assert (forked.stdout, forked.stderr, forked.returncode) == (real.stdout, real.stderr, real.returncode)


def serving(folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A forked proxy over HTTP, once it serves."""
    (folder / "config.toml").write_text('[store]\npath = "memory"\n')
    command = forked_command("--config", "config.toml", "serve", "--http", "--port", "0", "--no-auth")
    process = subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "serving http://127.0.0.1" in process.stderr.readline()
    return process


def test_a_signal_reaches_the_forked_process(environment: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, environment) as process:
        process.terminate()

        assert process.wait(PATIENCE) == 0


def test_a_command_that_is_killed_ends_its_forked_process(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with serving(tmp_path, environment) as process:
        process.kill()
        assert process.stderr is not None

        # The forked process has the other end of the pipe as long as it runs.
        assert process.stderr.read() == ""
