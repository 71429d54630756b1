import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PATIENCE, Run

pytestmark = pytest.mark.slow


def test_the_demo_shows_servers_lists_searches_and_calls(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = bin_folder / "mcp-context-proxy"
    program.touch(mode=0o755)
    done = run("demo", TMPDIR=str(folder), PATH=f"{bin_folder}{os.pathsep}{os.environ['PATH']}")

    out = done.stdout
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [line[0] for line in out.splitlines() if re.match(r"\d  ", line)] == ["1", "2", "3", "4"]
    assert "calculator" in out
    full, short = (int(number.replace(",", "")) for number in re.findall(r"about ([\d,]+) tokens", out))
    assert short < full / 5
    assert "estimates" in out
    assert json.dumps(str(program)) in out.replace("\n", ""), "hosts often do not know the PATH of a shell"
    assert out.count("   1  ") == 3
    assert out.count("why: ") >= 6
    assert re.search(r"call_tool \{.*?\n     -> \{", out, re.DOTALL)
    assert re.search(r"calculator__loan_payment \{.*?\n     -> \{", out, re.DOTALL)
    assert "mcp-context-proxy check" in out
    assert list(folder.glob("mcp-*")) == []


def test_without_a_terminal_the_output_is_plain_text_of_80_columns(run: Run) -> None:
    out = run("demo").stdout

    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ctrl_c_or_a_closed_terminal_ends_it_quietly_and_leaves_nothing_behind(
    environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "mcp_context_proxy", "demo"],
        env={**environment, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        # The first section is shown when the proxy and the example servers are up.
        assert any(line.startswith("1  ") for line in iter(demo.stdout.readline, ""))
        demo.send_signal(signal.Signals[name])
        _, complaints = demo.communicate(timeout=PATIENCE)

    assert demo.returncode == 130
    assert complaints == ""
    assert list(folder.glob("mcp-*")) == []
    assert _running_in(folder) == []


def _running_in(folder: Path) -> list[str]:
    """Processes that have their working directory below a folder, where the system can tell."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = str((process / "cwd").readlink())
        except OSError:
            continue
        if where.startswith(str(folder)):
            found.append(process.name)
    return found
