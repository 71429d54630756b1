"""Entries of this proxy that a host has already: which is taken, which comes back and what it serves."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_context_proxy.installation import HOST_PLACES
from mcp_context_proxy.installation.editing import EditError, edited, entries

from .conftest import COMMAND, Machine, Place


def test_entry_of_ours_that_a_person_has_written_comes_back(put: Place, machine: Machine) -> None:
    """Also after another change of the file, and where the entry has our usual name."""
    mine = '{"command": "/usr/bin/mcp-context-proxy", "args": ["serve"], "env": {"A": "b"}}'
    for name in ("mine", "context-proxy"):
        file = put("gemini-cli", f'{{"mcpServers": {{"{name}": {mine}, "a": {{"command": "x"}}}}}}'.encode())
        before = entries("json", file.read_text("utf-8"), ("mcpServers",))
        machine.install("gemini-cli", DESK_KEY=True)
        file.write_text("// changed\n" + file.read_text("utf-8"), "utf-8")
        assert machine.uninstall() == [False]
        assert entries("json", file.read_text("utf-8"), ("mcpServers",)) == before


def test_server_with_our_name_comes_back_after_another_change(put: Place, machine: Machine) -> None:
    file = put("cursor", b'{"mcpServers": {"context-proxy": {"command": "/bin/other"}}}')
    before = entries("json", file.read_text("utf-8"), ("mcpServers",))
    machine.install("cursor")
    file.write_text("// changed\n" + file.read_text("utf-8"), "utf-8")
    machine.uninstall()
    assert entries("json", file.read_text("utf-8"), ("mcpServers",)) == before


def test_entry_of_ours_under_another_name_stays_the_only_one(put: Place, machine: Machine) -> None:
    text = (
        '{"mcpServers": {"mine": {"command": "mcp-context-proxy", "args": ["serve"]}, "a": {"command": "x"}}}'
    )
    file = put("cursor", text.encode())
    done = machine.install("cursor")
    assert done.entry_name == "mine"
    assert list(entries("json", file.read_text(), ("mcpServers",))) == ["mine"]


def test_other_server_with_our_name_is_not_replaced(put: Place, machine: Machine) -> None:
    text = b'{"mcpServers": {"context-proxy": {"command": "${workspaceFolder}/x"}}}'
    file = put("cursor", text)
    with pytest.raises(EditError, match="context-proxy is the name of another server"):
        machine.install("cursor")
    assert file.read_bytes() == text


def served(*words: str, command: str = "mcp-context-proxy", **more: Any) -> bytes:
    entry = {"command": command, "args": [*words], **more}
    return json.dumps({"mcpServers": {"mine": entry, "a": {"command": "x"}}}).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (served("serve", "--config", "/team/config.toml"), "mine there serves /team/config.toml, and not"),
        (served("serve", "--config=/team/config.toml"), "install with --config /team/config.toml"),
        (served("serve", env={"MCP_CONTEXT_PROXY_CONFIG": "/team/config.toml"}), "/team/config.toml"),
        (served("run", "-i", "mcp-context-proxy", command="docker"), "starts the proxy elsewhere"),
        (served("desk", "mcp-context-proxy", "serve", command="/usr/bin/ssh"), "starts the proxy elsewhere"),
        (served("-c", "mcp-context-proxy serve --config x", command="sh"), "starts the proxy elsewhere"),
    ],
)
def test_no_server_moves_to_a_configuration_that_the_entry_of_ours_there_does_not_serve(
    data: bytes, reason: str, put: Place, machine: Machine
) -> None:
    file = put("cursor", data)
    with pytest.raises(EditError, match=reason):
        machine.install("cursor")
    assert file.read_bytes() == data


def test_of_two_entries_of_ours_the_one_that_serves_the_configuration_is_taken(
    put: Place, machine: Machine
) -> None:
    team = {"command": "mcp-context-proxy", "args": ["serve", "--config", "/team/config.toml"]}
    mine = {"command": "uvx", "args": ["mcp-context-proxy", "serve"]}
    text = json.dumps({"mcpServers": {"mine": mine, "team": team, "a": {"command": "x"}}})
    file = put("cursor", text.encode())
    assert machine.install("cursor").entry_name == "mine"
    assert entries("json", file.read_text(), ("mcpServers",)) == {"mine": mine, "team": team}


OLD = "/opt/gone-0.0.1/bin/mcp-context-proxy"


OPTIONS = ["serve", "--profile", "desk"]


@pytest.mark.parametrize(
    ("host", "old", "new"),
    [
        ("cursor", {"command": OLD, "args": OPTIONS, "env": {"A": "b"}}, {"env": {"A": "b"}}),
        ("cursor", {"command": "/opt/gone/python", "args": ["-m", "mcp_context_proxy", *OPTIONS]}, {}),
        ("cline", {"transport": {"type": "stdio", "command": OLD, "args": OPTIONS}}, None),
        ("zed", {"source": "custom", "command": {"path": OLD, "args": OPTIONS}}, None),
        ("opencode", {"type": "local", "command": [OLD, *OPTIONS]}, None),
        ("codex", {"command": OLD, "args": OPTIONS}, {}),
        ("goose", {"type": "stdio", "cmd": OLD, "args": OPTIONS, "timeout": 9}, None),
    ],
)
def test_entry_of_a_version_that_is_gone_starts_this_one_with_the_same_options(
    host: str, old: dict[str, Any], new: dict[str, Any] | None, put: Place, machine: Machine
) -> None:
    place = HOST_PLACES[host]
    file = put(host, edited(place.form, "", place.place, (), {"context-proxy": old}).encode())
    before = file.read_bytes()
    machine.install(host)
    found = entries(place.form, file.read_text("utf-8"), place.place)["context-proxy"]
    if new is None:
        assert found == json.loads(json.dumps(old).replace(OLD, COMMAND[0]))
    else:
        assert found == {"command": COMMAND[0], "args": OPTIONS, **new}
    machine.uninstall()
    assert file.read_bytes() == before


def test_entry_of_a_version_whose_python_is_gone_starts_this_one(
    put: Place, machine: Machine, tmp_path: Path
) -> None:
    venv, linked = tmp_path / "old" / "bin", tmp_path / "mcp-context-proxy"
    venv.mkdir(parents=True)
    (venv / "mcp-context-proxy").touch()
    (venv / "python").symlink_to("/opt/gone/python3")
    linked.symlink_to(venv / "mcp-context-proxy")
    entry = {"command": str(linked), "args": OPTIONS}
    file = put("cursor", json.dumps({"mcpServers": {"context-proxy": entry}}).encode())
    machine.install("cursor")
    assert entries("json", file.read_text("utf-8"), ("mcpServers",))["context-proxy"]["command"] == COMMAND[0]
