import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import forked_command

from .conftest import PATIENCE, environment_of, run_in

pytestmark = pytest.mark.slow

OTHERS = [pytest.param(name, marks=pytest.mark.full_cross) for name in ("SIGTERM", "SIGHUP")]
SIGNALS = ["SIGINT", *OTHERS]
"""Ctrl-C, and what a shell or a closed terminal sends; each takes a demo of its own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """The command, as it is found on the PATH."""
    found = folder / "bin" / "mcp-context-proxy"
    found.parent.mkdir()
    found.touch(mode=0o755)
    return found


@pytest.fixture(scope="module")
def done(folder: Path, program: Path) -> subprocess.CompletedProcess[str]:
    """The demo, run to its end."""
    (folder / "tmp").mkdir()
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return run_in(environment_of(str(folder)))("demo", TMPDIR=str(folder / "tmp"), PATH=path)


def test_the_demo_shows_servers_lists_searches_and_calls(
    done: subprocess.CompletedProcess[str], folder: Path, program: Path
) -> None:
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
    assert list((folder / "tmp").glob("mcp-*")) == []


def test_without_a_terminal_the_output_is_plain_text_of_80_columns(
    done: subprocess.CompletedProcess[str], program: Path
) -> None:
    lines = done.stdout.splitlines()

    assert "\x1b" not in done.stdout
    # A path stays whole, so that it can be copied.
    assert [line for line in lines if len(line) > 80 and str(program.parent.parent) not in line] == []


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("name", SIGNALS)
def test_ctrl_c_or_a_closed_terminal_ends_it_quietly_and_leaves_nothing_behind(
    environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    with subprocess.Popen(
        forked_command("demo"),
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
