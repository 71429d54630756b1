"""The proxy without what Windows lacks, as `support/windows.py` runs it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import PATIENCE
from support.servers import Workshop, tool
from support.wires import stdio

from mcp_context_proxy.config.source import TRUST_VARIABLE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it lacks them itself")

WINDOWS = [sys.executable, str(Path(__file__).parents[1] / "support" / "windows.py")]
TRUSTED = {TRUST_VARIABLE: "1"}


async def test_a_host_lists_and_calls_there(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("echo")])
    command = [*WINDOWS, "--config", str(workshop.config()), "serve"]
    async with stdio(command, env=TRUSTED) as host:
        await host.until_listed("work__echo")
        assert "isError" not in await host.call("work__echo", {"text": "x"})


def test_check_starts_the_program_that_windows_can_run_and_has_a_remedy_for_a_missing_one(
    workshop: Workshop, tmp_path: Path
) -> None:
    work = workshop.server("work", tools=[tool("echo")])
    for name, does in (("node", "exit 3"), ("node.CMD", f"echo stray; exec {shlex.join(work.command)}")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o700)
    work.settings = {"command": "node", "env": {"PATH": str(tmp_path)}}
    workshop.server("gone").settings = {"command": "no-such-program"}
    done = subprocess.run(
        [*WINDOWS, "check", "--config", str(workshop.config())],
        env={**os.environ, **TRUSTED, "PATHEXT": ".EXE;.CMD"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "work: 1 tool" in done.stdout
    assert "gone: cannot start: no program 'no-such-program' on its PATH" in done.stdout
    assert done.stderr == ""
