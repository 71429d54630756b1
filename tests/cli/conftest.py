"""The command as a child process, with a home of its own."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import PATIENCE, forked_command

__all__ = ["PATIENCE", "Run", "environment_of", "flat", "run_in"]

Run = Callable[..., subprocess.CompletedProcess[str]]


def flat(text: str) -> str:
    """An output whose sentences stand on one line, however wide the terminal is."""
    return " ".join(text.split())


def environment_of(home: str) -> dict[str, str]:
    """An environment in which nothing of the user's is found or changed."""
    own = {"HOME": home, "USERPROFILE": home, "LOCALAPPDATA": home, "XDG_CONFIG_HOME": home}
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MCP_", "PYTHON", "XDG_"))
    }
    return {**kept, **own, "XDG_DATA_HOME": home, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return environment_of(str(tmp_path / "home"))


def run_in(environment: dict[str, str]) -> Run:
    """A way to run ``mcp-context-proxy`` with some arguments to its end."""

    def run(*args: str | Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            forked_command(*args),
            env={**environment, **env},
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )

    return run


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    return run_in(environment)
