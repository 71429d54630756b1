"""Servers and tools are turned on and off in the configuration file, in place."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcp_context_proxy.config import load
from mcp_context_proxy.installation.editing import EditError
from mcp_context_proxy.installation.journal import KEPT_OF_SWITCHES, switch

TEXT = """# mine
[servers.a]  # the first
command = "a"   # stays
[servers.a.tools.x]
include = "always"

[servers.b]
command = "b"
enabled = true # for now
"""


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(TEXT, encoding="utf-8")
    return tmp_path / "config.toml"


@pytest.mark.parametrize(("server", "tool"), [("a", None), ("b", None), ("a", "x"), ("a", "new tool")])
def test_a_switch_changes_one_key_and_back_again(file: Path, server: str, tool: str | None) -> None:
    assert switch(file, server, tool, False).changed
    config = load(file).servers[server]
    assert (config.enabled if tool is None else config.tools[tool].enabled) is False
    assert {*TEXT.replace("true # for now", "").split("\n")} - {"enabled = "} <= {
        *file.read_text(encoding="utf-8").replace("false # for now", "").split("\n")
    }
    assert file.with_name(file.name + KEPT_OF_SWITCHES).read_text(encoding="utf-8") == TEXT
    assert not switch(file, server, tool, False).changed
    assert switch(file, server, tool, True).changed
    assert file.read_text(encoding="utf-8") == TEXT


def test_a_switch_back_keeps_what_was_written_meanwhile(file: Path) -> None:
    switch(file, "a", "x", False)
    file.write_text(file.read_text(encoding="utf-8") + "# new\n", encoding="utf-8")
    switch(file, "a", "x", True)

    assert file.read_text(encoding="utf-8").endswith("# new\n")


def test_of_switches_at_once_each_is_in_the_file(file: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        switched = [*threads.map(lambda number: switch(file, "a", f"t{number}", False), range(24))]

    assert all(one.changed for one in switched)
    assert {name for name, tool in load(file).servers["a"].tools.items() if tool.enabled is False} == {
        f"t{number}" for number in range(24)
    }


def test_a_tool_that_another_setting_turns_off_is_told(file: Path) -> None:
    file.write_text(TEXT.replace('command = "a"', 'command = "a"\ndeny = ["x"]'), encoding="utf-8")
    switch(file, "a", "x", False)
    note = switch(file, "a", "x", True).note
    assert note is not None
    assert "servers.a.deny" in note


def test_a_form_that_cannot_be_edited_in_place_is_left_alone(file: Path) -> None:
    text = 'servers = { a = { command = "a" } }\n'
    file.write_text(text, encoding="utf-8")
    with pytest.raises(EditError, match="cannot be edited in place"):
        switch(file, "a", None, False)
    assert file.read_text(encoding="utf-8") == text


def test_a_server_of_a_host_file_is_turned_off_there(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"a": {"command": "a"}}}', encoding="utf-8")
    switch(file, "a", None, False)
    assert not load(file).servers["a"].enabled
    switch(file, "a", None, True)
    assert load(file).servers["a"].enabled
