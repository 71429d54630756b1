"""The kind of a failure is known apart from its words, and the words name the remedy."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.proxies import inside
from support.servers import Workshop

from mcp_context_proxy.downstream import describe
from mcp_context_proxy.errors import Fault


@pytest.fixture
def places(workshop: Workshop) -> dict[str, Path]:
    """A file that cannot be run, a folder, and nothing."""
    text = workshop.folder / "notes.txt"
    text.write_text("no program", encoding="utf-8")
    (workshop.folder / "folder").mkdir()
    return {"text": text, "folder": workshop.folder / "folder", "nothing": workshop.folder / "nothing"}


async def test_each_failure_to_start_has_its_kind_and_its_words(
    workshop: Workshop, places: dict[str, Path]
) -> None:
    cases: dict[str, tuple[dict[str, Any], Fault, str]] = {
        "name": (
            {"command": "no-such-program"},
            Fault.NO_PROGRAM,
            "no program 'no-such-program' on its PATH",
        ),
        "line": ({"command": "cat a b"}, Fault.NO_PROGRAM, "its arguments are 'args'"),
        "package": ({"command": "npx -y @a/b"}, Fault.NO_PROGRAM, "its arguments are 'args'"),
        "windows": (
            {"command": "C:\\Program Files\\npx.cmd"},
            Fault.NO_PROGRAM,
            "there is no program C:\\Program Files\\npx.cmd",
        ),
        "path": ({"command": str(places["nothing"])}, Fault.NO_PROGRAM, "there is no program "),
        "text": ({"command": str(places["text"])}, Fault.NOT_RUNNABLE, "is no file that you may run"),
        "folder": ({"command": str(places["folder"])}, Fault.NO_START, "is a folder; correct 'command'"),
        "cwd": ({"command": "cat", "cwd": str(places["nothing"])}, Fault.NO_START, "there is no folder"),
        "exits": ({"command": "sh", "args": ["-c", "exit 3"]}, Fault.EXITED, "it exited (code 3)"),
        "echoes": ({"command": "cat"}, Fault.NO_MCP, "it answered with what it was sent"),
        "mute": (
            {"command": "sleep", "args": ["60"], "connect_timeout": 0.2},
            Fault.SILENT,
            "it was not ready",
        ),
        "nobody": (
            {"url": "http://127.0.0.1:9/mcp"},
            Fault.UNREACHABLE,
            "http://127.0.0.1:9/mcp: nothing answers there",
        ),
        "events": (
            {"url": "http://127.0.0.1:9/sse"},
            Fault.UNREACHABLE,
            "http://127.0.0.1:9/sse: nothing answers there",
        ),
    }
    for name, (settings, _, _) in cases.items():
        workshop.server(name).settings = settings
    async with inside(workshop.config()) as proxy:
        found = {name: (client.fault, client.cause) for name, client in proxy.fleet.clients.items()}

    assert {name: fault for name, (fault, _) in found.items()} == {
        name: case[1] for name, case in cases.items()
    }
    for name, (_, _, words) in cases.items():
        assert words in found[name][1], name


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may enter every folder")
async def test_a_program_in_a_folder_that_may_not_be_entered_is_named(workshop: Workshop) -> None:
    closed = workshop.folder / "closed"
    closed.mkdir(mode=0o000)
    workshop.server("s").settings = {"command": str(closed / "program")}
    async with inside(workshop.config()) as proxy:
        client = proxy.fleet.clients["s"]

    assert client.fault is Fault.NO_ACCESS
    assert "lies in a folder that may not be entered" in client.cause


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/x"), OSError(24, "Too many open files")]
)
def test_a_cause_has_no_number_of_the_system(error: OSError) -> None:
    assert "Errno" not in describe(error)
    assert str(error.strerror) in describe(error)
