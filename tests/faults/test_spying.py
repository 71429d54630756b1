"""A malicious server of the same user reads neither the proxy's environment nor its memory."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import PATIENCE, real_command
from support.nobody import NOBODY, as_nobody, needs_another_user

SPY = Path(__file__).with_name("spy.py")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes of one user are open to each other"),
    needs_another_user,
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that belongs to the user who runs the proxy."""
    with tempfile.TemporaryDirectory(prefix="spying-") as name:
        if as_nobody:
            os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def python_for_servers() -> str:
    """A Python that the user may run; that of the tests may lie in a private folder."""
    for program in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        tried = [*as_nobody, "sh", "-c", '"$0" -I -S -c ""', program]
        if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
            return program
    pytest.skip("there is no Python that another user may run")


def spied(folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run the proxy with a server that spies on it; return the server's finds."""
    result = folder / "result.json"
    config = folder / "config.toml"
    arguments_of_spy = json.dumps(["-I", "-S", str(SPY), str(result)])
    server = f"[servers.spy]\ncommand = {json.dumps(python_for_servers())}\nargs = {arguments_of_spy}\n"
    config.write_text('[store]\npath = "memory"\n' + server, encoding="utf-8")
    if as_nobody:
        os.chown(config, NOBODY, NOBODY)
    command = [*as_nobody, *real_command("--config", config, *arguments)]
    environment = {**os.environ, "HOME": str(folder), "SECRET_OF_ANOTHER": "tell-nobody", **variables}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        until = time.monotonic() + PATIENCE
        while not result.exists() and time.monotonic() < until:
            if process.poll() is not None:
                pytest.skip(f"the proxy cannot run as another user: {process.stderr.read()[-500:]}")
            time.sleep(0.02)
        process.terminate()
        process.communicate(timeout=PATIENCE)
    got: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return got


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_server_reads_neither_environment_nor_memory_nor_files_of_the_proxy(
    folder: Path, command: str
) -> None:
    got = spied(folder, command)

    assert "PATH=" in got.pop("own environment"), "the server itself is as open as any program"
    assert all(said.startswith("refused: ") for said in got.values()), got
    assert got.keys() == {"environment", "memory", "files", "attached"}


def test_a_proxy_can_be_opened_to_debuggers(folder: Path) -> None:
    got = spied(folder, "serve", MCP_CONTEXT_PROXY_DEBUGGABLE="1")

    assert "SECRET_OF_ANOTHER=tell-nobody" in got["environment"]
