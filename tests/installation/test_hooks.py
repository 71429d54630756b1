"""Prompt hooks in hosts' settings, added and removed in place."""

import json
from pathlib import Path

import pytest

from mcp_context_proxy.installation.journal import HOOK_PLACES, is_ours_alone, planned, write

COMMAND = ["/opt/bin/mcp-context-proxy", "hook", "run", "HOST"]

THEIRS = """{
  // mine
  "model": "large",
  "hooks": {
    "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}],
    "EVENT": [{"hooks": [{"type": "command", "command": "git status"}]}]
  }
}
"""


@pytest.mark.parametrize("host", HOOK_PLACES)
def test_a_hook_stands_in_a_new_file_in_the_form_of_its_host(tmp_path: Path, host: str) -> None:
    place = HOOK_PLACES[host]
    change = planned(place, place.path({"HOME": str(tmp_path)}), COMMAND)
    assert change is not None
    data = json.loads(change.after)
    (entry,) = data["hooks"][place.event]
    hook = entry["hooks"][0] if place.grouped else entry
    assert hook["command"] == "/opt/bin/mcp-context-proxy hook run HOST"
    assert data.get("version") == (1 if host == "cursor" else None)
    assert is_ours_alone(place, change.after)


@pytest.mark.parametrize("host", HOOK_PLACES)
def test_hooks_of_others_and_comments_stay_and_ours_is_added_once(tmp_path: Path, host: str) -> None:
    place = HOOK_PLACES[host]
    file = place.path({"HOME": str(tmp_path)})
    file.parent.mkdir()
    before = THEIRS.replace("EVENT", place.event)
    file.write_text(before, encoding="utf-8")
    change = planned(place, place.path({"HOME": str(tmp_path)}), COMMAND)
    assert change is not None
    write(change)
    assert planned(place, place.path({"HOME": str(tmp_path)}), COMMAND) is None
    now = file.read_text(encoding="utf-8")
    assert "// mine" in now
    assert "say done" in now
    assert "git status" in now
    back = planned(place, place.path({"HOME": str(tmp_path)}), None)
    assert back is not None
    assert "hook run" not in back.after
    assert "git status" in back.after


def test_a_removed_hook_leaves_the_same_bytes_if_nothing_else_has_changed(tmp_path: Path) -> None:
    place = HOOK_PLACES["claude-code"]
    file = place.path({"HOME": str(tmp_path)})
    file.parent.mkdir()
    before = '{"hooks" : {"Stop":[] },   "model": "large" }'
    file.write_text(before, encoding="utf-8")
    change = planned(place, place.path({"HOME": str(tmp_path)}), COMMAND)
    assert change is not None
    file.with_name(file.name + ".before-hook").write_text(before, encoding="utf-8")
    write(change)
    back = planned(place, place.path({"HOME": str(tmp_path)}), None)
    assert back is not None
    assert back.after == before


@pytest.mark.parametrize(
    ("host", "variable", "name"),
    [
        ("codex", "CODEX_HOME", "hooks.json"),
        ("claude-code", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("gemini-cli", "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ],
)
def test_the_file_is_where_the_variable_of_the_host_says(
    tmp_path: Path, host: str, variable: str, name: str
) -> None:
    assert HOOK_PLACES[host].path({variable: str(tmp_path)}) == tmp_path / name
    assert HOOK_PLACES[host].path({}).is_relative_to(Path.home())


@pytest.mark.parametrize("host", HOOK_PLACES)
def test_odd_hooks_of_others_stay_as_they_are(tmp_path: Path, host: str) -> None:
    place = HOOK_PLACES[host]
    file = tmp_path / "settings.json"
    odd = ["x", None, {"hooks": None}, {"matcher": 1}, {"hooks": [{"command": "y"}, None]}]
    file.write_text(json.dumps({"hooks": {place.event: odd}}), encoding="utf-8")
    change = planned(place, file, COMMAND)
    assert change is not None
    write(change)
    assert json.loads(file.read_text("utf-8"))["hooks"][place.event][:-1] == odd
    back = planned(place, file, None)
    assert back is not None
    assert json.loads(back.after)["hooks"] == {place.event: odd}
