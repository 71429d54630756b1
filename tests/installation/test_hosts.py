"""Installing in each host and undoing it, over many forms of its file."""

import json
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.nobody import NOBODY
from support.tables import each

from mcp_context_proxy.config import load
from mcp_context_proxy.installation import HOST_PLACES, hosts_here, read_text
from mcp_context_proxy.installation.editing import EditError, entries
from mcp_context_proxy.installation.plan import Configuration, plan

from .conftest import COMMAND, Machine, Place
from .hosts import AWKWARD, PROGRAM, SETTINGS, URL

FORMS: dict[str, Callable[[str], bytes]] = {
    "as its documents show it": lambda text: text.encode(),
    "with a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "with line ends of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "without an end of the last line": lambda text: text.rstrip("\n").encode(),
    "with empty lines at the end": lambda text: text.encode() + b"\n\n\n",
    "with names in other scripts": lambda text: (
        text.replace("dark", "тёмная 🌙").replace("mine", "mín").encode()
    ),
}
COMMENTED: dict[str, Callable[[str], str]] = {
    "json": lambda text: "// mine\n" + text.replace('"last": [', '/* {"a": 1,} */ "last": [ // here, too\n'),
    "toml": lambda text: "# mine\n" + text.replace("[tui]", "# [mcp_servers.other]\n[tui]"),
    "yaml": lambda text: "# mine\n" + text.replace("desk:\n", "desk: # the desk\n"),
}


@pytest.mark.each_value
@pytest.mark.parametrize("form", [*FORMS, "with comments"])
@pytest.mark.parametrize("host", SETTINGS)
def test_install_then_uninstall_changes_nothing(host: str, form: str, put: Place, machine: Machine) -> None:
    text = SETTINGS[host]
    data = COMMENTED[HOST_PLACES[host].form](text).encode() if form == "with comments" else FORMS[form](text)
    file = put(host, data)

    done = machine.install(host)

    left = entries(HOST_PLACES[host].form, file.read_bytes().decode(), HOST_PLACES[host].place)
    assert "context-proxy" in left
    assert not {"desk", "remote"} & left.keys()
    assert done.names == {"desk": "desk", "remote": "remote"}
    config = load(machine.file, environ=machine.environ)
    assert (config.servers["desk"].command, config.servers["desk"].args) == (PROGRAM, ("--stdio",))
    assert config.servers["desk"].env == {"DESK_KEY": "k-0123456789"}
    assert (config.servers["remote"].url, config.servers["remote"].transport) == (URL, "http")
    assert config.servers["remote"].headers == {"Authorization": "Bearer t-0123456789"}
    assert machine.uninstall() == [True]
    assert file.read_bytes() == data


REFUSED = {
    ("cursor", "control characters in text"),
    ("cursor", "duplicate mcpServers"),
    ("cursor", "list servers"),
    ("goose", "flow all"),
}
"""Files that are left alone, because they cannot be read in one way or edited in place."""


@pytest.mark.each_value
@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("case", AWKWARD, ids=" ".join)
def test_any_file_is_left_alone_or_comes_back(
    case: tuple[str, str], start: str, put: Place, machine: Machine
) -> None:
    """Byte for byte, and after another change of the file with the same servers."""
    host, text = case[0], start + AWKWARD[case]
    file = put(host, text.encode())
    if case in REFUSED:
        with pytest.raises(EditError):
            machine.install(host)
        assert file.read_bytes() == text.encode()
        return
    done = machine.install(host)
    place, form = done.place, HOST_PLACES[host].form
    before, after = (entries(form, one, place) for one in (text, file.read_bytes().decode()))
    assert done.names.keys() | done.staying.keys() == before.keys()
    assert (len(after), "context-proxy" in after) == (len(done.staying) + 1, True)
    kept = {path: path.read_bytes() for path in machine.journal.folder.iterdir()}

    mark = {"json": "// changed\n", "toml": "# changed\n", "yaml": "# changed\n"}[form]
    written = file.read_bytes()
    file.write_text(start + mark + written.decode().removeprefix(start), "utf-8", newline="")
    assert machine.uninstall() == [False]
    assert entries(form, file.read_bytes().decode(), place) == before

    for path, data in kept.items():
        path.write_bytes(data)
    file.write_bytes(written)
    assert machine.uninstall() == [True]
    assert file.read_bytes() == text.encode()


def test_array_of_tables_after_a_server_stays(put: Place, machine: Machine) -> None:
    file = put("codex", b'[mcp_servers.a]\ncommand = "x"\n\n[[hooks]]\nname = "y"\n')
    machine.install("codex")
    assert tomllib.loads(file.read_text("utf-8"))["hooks"] == [{"name": "y"}]


def test_lines_that_stay_keep_their_ends(put: Place, machine: Machine) -> None:
    file = put("cursor", AWKWARD["cursor", "mixed line ends"].encode())
    machine.install("cursor")
    assert b'{\r\n  "theme": "x",\n  "mcpServers": {\n' in file.read_bytes()


def test_values_of_yaml_are_those_that_the_host_reads(put: Place, machine: Machine) -> None:
    """YAML 1.2, in which yes is a text and 0123 no octal number."""
    put("goose", AWKWARD["goose", "yaml 1.1 booleans"].encode())
    machine.install("goose")
    servers = tomllib.loads(machine.file.read_text("utf-8"))["servers"]
    assert servers["on"]["env"] == {"A": "yes", "B": "0123", "C": "1_000"}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ('{"command": "x", "args": [1]}', "args[0]: must be text in quotes"),
        ('{"command": "x", "url": "https://example.com"}', "both a command and a url"),
        ('{"command": "x", "cwd": "./d"}', "cwd: ./d counts from the folder"),
        ('{"command": "./x"}', "command: ./x counts from the folder"),
        ('{"type": "ws", "url": "https://example.com"}', "transport: must be stdio, http or sse"),
        ('{"command": "x", "env": {"A": "${file:/a}"}}', "env.A: only its host knows ${file:/a}"),
    ],
)
def test_server_that_would_be_off_behind_the_proxy_stays(
    entry: str, reason: str, put: Place, machine: Machine
) -> None:
    put("cursor", f'{{"mcpServers": {{"a": {entry}}}}}'.encode())
    assert reason in machine.install("cursor").staying["a"]


def test_variables_of_editors_with_one_meaning_are_replaced(put: Place, machine: Machine) -> None:
    put("vscode", b'{"servers": {"a": {"command": "${userHome}/a", "args": ["b${/}c"]}}}')
    machine.install("vscode")
    server = load(machine.file, environ=machine.environ).servers["a"]
    assert (server.command, server.args) == (f"{Path.home()}/a", ("b/c",))


def test_servers_of_cline_move_from_the_transport_in_which_it_writes_them(
    put: Place, machine: Machine
) -> None:
    put("cline", AWKWARD["cline", "transport inside"].encode())
    assert machine.install("cline").names == {"a": "a", "h": "h"}
    servers = load(machine.file, environ=machine.environ).servers
    assert (servers["a"].command, servers["a"].args, servers["a"].enabled) == ("x", ("y",), False)
    assert (servers["h"].url, servers["h"].headers) == ("https://example.com/mcp", {"A": "b"})


def test_servers_of_opencode_move_from_the_place_of_its_version(put: Place, machine: Machine) -> None:
    text = AWKWARD["opencode", "v2"]
    file = put("opencode", text.encode())
    assert machine.install("opencode").names == {"a": "a"}
    ours = entries("json", file.read_text("utf-8"), ("mcp", "servers"))
    assert ours == {"context-proxy": {"type": "local", "command": COMMAND}}
    server = load(machine.file, environ=machine.environ).servers["a"]
    assert (server.command, server.args, server.enabled) == ("npx", ("-y", "x"), False)


def test_servers_of_a_project_keep_its_folder_and_their_switches(put: Place, machine: Machine) -> None:
    project = {"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}, "disabledMcpServers": ["b"]}
    file = put("claude-code", json.dumps({"projects": {"/code/shop": project}}).encode())
    configuration = Configuration(machine.file, None)
    place = ("projects", "/code/shop", "mcpServers")
    host, text = HOST_PLACES["claude-code"], read_text(file)
    plan(host, file, text, configuration, COMMAND, machine.environ, place)
    assert configuration.servers == {
        "a": {"command": "x", "cwd": "/code/shop"},
        "b": {"command": "y", "cwd": "/code/shop", "enabled": False},
    }


@each(
    ("host", "variable", "name"),
    [("codex", "CODEX_HOME", "config.toml"), ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json")],
)
def test_settings_are_where_the_variable_of_the_host_says(
    host: str, variable: str, name: str, environ: dict[str, str], tmp_path: Path
) -> None:
    assert HOST_PLACES[host].file({**environ, variable: str(tmp_path)}) == tmp_path / name


@pytest.mark.parametrize("host", SETTINGS)
def test_host_without_a_file_gets_one_and_loses_it_again(host: str, put: Place, machine: Machine) -> None:
    file = put(host, None)
    machine.install(host)
    assert list(entries(HOST_PLACES[host].form, file.read_text("utf-8"), HOST_PLACES[host].place)) == [
        "context-proxy"
    ]
    assert machine.uninstall() == [True]
    assert not file.exists()


def test_new_file_of_continue_has_what_it_demands(put: Place, machine: Machine) -> None:
    file = put("continue", None)
    machine.install("continue")
    found = yaml.safe_load(file.read_text("utf-8"))
    assert {"name", "version", "schema"} < found.keys()
    assert [one["name"] for one in found["mcpServers"]] == ["context-proxy"]


def test_old_settings_of_continue_are_not_hidden_by_a_new_file(environ: dict[str, str]) -> None:
    folder = Path(environ["HOME"]) / ".continue"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert "continue" not in {host.name for host in hosts_here(environ)}
    (folder / "config.yaml").write_text("name: mine\n")
    assert "continue" in {host.name for host in hosts_here(environ)}


@pytest.mark.parametrize("host", SETTINGS)
def test_file_changed_since_keeps_the_change_and_gets_its_servers_back(
    host: str, put: Place, machine: Machine
) -> None:
    file = put(host, SETTINGS[host].encode())
    before = entries(HOST_PLACES[host].form, SETTINGS[host], HOST_PLACES[host].place)
    machine.install(host)
    text = file.read_text("utf-8")
    mark = {"json": "// changed\n", "toml": "# changed\n", "yaml": "# changed\n"}[HOST_PLACES[host].form]
    file.write_text(mark + text, "utf-8")

    assert machine.uninstall() == [False]

    after = file.read_text("utf-8")
    assert after.startswith(mark)
    assert entries(HOST_PLACES[host].form, after, HOST_PLACES[host].place) == before


@pytest.mark.parametrize("host", SETTINGS)
def test_second_install_finds_everything_in_place(host: str, put: Place, machine: Machine) -> None:
    file = put(host, SETTINGS[host].encode())
    machine.install(host)
    once, configuration = file.read_bytes(), machine.file.read_bytes()
    assert machine.install(host).change is None
    assert (file.read_bytes(), machine.file.read_bytes()) == (once, configuration)


def test_same_servers_of_all_hosts_are_configured_once(put: Place, machine: Machine) -> None:
    for host, text in SETTINGS.items():
        put(host, text.encode())
        machine.install(host)
    servers = tomllib.loads(machine.file.read_text("utf-8"))["servers"]
    assert servers.keys() == {"desk", "remote"}
    assert all(machine.uninstall())
    for host, text in SETTINGS.items():
        assert HOST_PLACES[host].file(machine.environ).read_text("utf-8") == text


def test_server_that_hosts_wait_for_differently_long_is_configured_once_with_the_longest_time(
    put: Place, machine: Machine
) -> None:
    put("codex", b'[mcp_servers.desk]\ncommand = "desk"\ntool_timeout_sec = 20\nstartup_timeout_sec = 45\n')
    put("goose", b"extensions:\n  desk: {type: stdio, cmd: desk, args: [], timeout: 300, enabled: true}\n")
    put("cursor", b'{"mcpServers": {"desk": {"command": "desk"}}}')
    machine.file.parent.mkdir(parents=True, exist_ok=True)
    machine.file.write_text('[servers.desk] # mine\ncommand = "desk"\n', "utf-8")
    for host in ("codex", "goose", "cursor"):
        machine.install(host)

    assert machine.file.read_text("utf-8") == (
        '[servers.desk] # mine\ncall_timeout = 300\nconnect_timeout = 45\ncommand = "desk"\n'
    )


def test_other_server_of_the_same_name_gets_the_name_of_its_host(put: Place, machine: Machine) -> None:
    put("cursor", SETTINGS["cursor"].encode())
    put("windsurf", SETTINGS["windsurf"].replace("--stdio", "--other").encode())
    machine.install("cursor")
    assert machine.install("windsurf").names == {"desk": "desk-windsurf", "remote": "remote"}


def test_server_that_only_its_host_can_start_stays(put: Place, machine: Machine) -> None:
    text = """{"mcpServers": {
      "here": {"command": "${workspaceFolder}/run"},
      "asks": {"command": "x", "env": {"KEY": "${input:key}"}},
      "file": {"command": "x", "envFile": ".env"},
      "wrong": {"args": ["x"]},
      "line": {"command": "npx -y @desk/server"},
      "fine": {"command": "/bin/fine", "timeout": 5, "alwaysAllow": ["look"]}}}"""
    file = put("cursor", text.encode())
    done = machine.install("cursor")
    assert set(done.staying) == {"here", "asks", "file", "wrong", "line"}
    assert done.staying["line"].startswith("command: it is the program alone")
    assert "workspaceFolder" in done.staying["here"]
    assert any("timeout" in note for note in done.notes)
    assert any("look" in note for note in done.notes)
    assert set(entries("json", file.read_text(), ("mcpServers",))) == {"context-proxy", *done.staying}


def test_server_that_its_host_runs_in_a_sandbox_or_logs_in_to_in_a_way_of_its_own_stays(
    put: Place, machine: Machine
) -> None:
    text = """{"servers": {
      "caged": {"command": "x", "sandboxEnabled": true, "sandbox": {"network": {}}},
      "slack": {"url": "https://a.example/mcp", "oauth": {"clientId": "1.2", "callbackPort": 3118}},
      "sheets": {"url": "https://b.example/mcp", "auth": {"CLIENT_ID": "3", "CLIENT_SECRET": "s"}},
      "signed": {"url": "https://d.example/mcp", "headersHelper": "/opt/headers.sh"},
      "free": {"command": "y", "sandboxEnabled": false},
      "plain": {"url": "https://c.example/mcp", "oauth": {"callbackPort": 3118}}}}"""
    put("vscode", text.encode())
    done = machine.install("vscode")
    assert set(done.staying) == {"caged", "slack", "sheets", "signed"}
    assert "sandbox" in done.staying["caged"]
    assert "[servers.NAME.oauth]" in done.staying["slack"]


def test_server_that_runs_on_another_machine_or_has_a_client_at_its_top_stays(
    put: Place, machine: Machine
) -> None:
    put(
        "codex",
        b"""[mcp_servers.far]
command = "x"
experimental_environment = "remote"
[mcp_servers.near]
command = "y"
experimental_environment = "local"
""",
    )
    assert set(machine.install("codex").staying) == {"far"}
    put("copilot-cli", b'{"mcpServers": {"corp": {"url": "https://a.example/mcp", "oauthClientId": "1"}}}')
    assert "client of its own" in machine.install("copilot-cli").staying["corp"]


def test_key_of_continue_becomes_the_header_that_it_sends(put: Place, machine: Machine) -> None:
    text = """mcpServers:
  - name: given
    type: streamable-http
    url: https://a.example/mcp
    apiKey: k-0123456789
  - name: looked-up
    type: sse
    url: https://b.example/sse
    apiKey: ${{ secrets.B }}
"""
    put("continue", text.encode())
    assert set(machine.install("continue").staying) == {"looked-up"}
    servers = tomllib.loads(machine.file.read_text("utf-8"))["servers"]
    assert servers["given"]["headers"] == {"Authorization": "Bearer k-0123456789"}


@pytest.mark.parametrize(
    ("host", "settings", "rules"),
    [
        (
            "claude-code",
            {},
            {
                "permissions": {
                    "deny": ["mcp__my_desk__wipe", "mcp__*__drop_*", "Bash(rm *)"],
                    "ask": ["mcp__my_desk__send"],
                    "allow": ["mcp__my_desk", "Bash(ls)"],
                }
            },
        ),
        ("opencode", {"tools": {"my desk_wipe": False, "*_drop_*": False, "bash": False}}, {}),
        (
            "opencode",
            {"permission": {"*": "ask", "my_desk_wip?": "deny", "*_drop_*": "deny", "bash": {"*": "deny"}}},
            {},
        ),
        (
            "zed",
            {
                "agent": {
                    "tool_permissions": {
                        "tools": {
                            "mcp:my desk:wipe": {"default": "deny"},
                            "mcp:my desk:drop_*": {"default": "deny"},
                        }
                    }
                }
            },
            {},
        ),
    ],
    ids=["claude-code", "opencode-tools", "opencode-permission", "zed"],
)
def test_tools_that_rules_of_a_host_deny_stay_off(
    host: str, settings: dict[str, Any], rules: dict[str, Any], put: Place, machine: Machine
) -> None:
    place = HOST_PLACES[host].place[0]
    servers = {"my desk": {"command": "/bin/desk"}, "other": {"command": "/bin/other"}}
    file = put(host, json.dumps({place: servers, **settings}).encode())
    if rules:
        beside = file.parent / ".claude" / "settings.json"
        beside.parent.mkdir()
        beside.write_text(json.dumps(rules), "utf-8")
    done = machine.install(host)
    ours = tomllib.loads(machine.file.read_text("utf-8"))["servers"]
    denied = set(ours["my-desk"]["deny"])
    assert "drop_*" in denied
    assert denied & {"wipe", "wip*"}
    assert "wipe" not in ours["other"].get("deny", [])
    assert any("carried over as deny: wip" in note for note in done.notes)
    told = [note for note in done.notes if "permissions.a" in note]
    assert [note.rpartition(": ")[2] for note in told] == (["send", "*"] if rules else [])


@pytest.mark.parametrize("host", ["claude-code", "opencode"])
def test_rules_count_for_a_server_whose_name_has_other_letters(
    host: str, put: Place, machine: Machine
) -> None:
    """Hosts write only letters of ASCII, digits, hyphens and underscores in the name of a tool."""
    place = HOST_PLACES[host].place[0]
    settings = {"tools": {"B_ro_wipe": False}} if host == "opencode" else {}
    file = put(host, json.dumps({place: {"B\u00fcro": {"command": "/bin/desk"}}, **settings}).encode())
    (file.parent / ".claude").mkdir(exist_ok=True)
    rules = {"permissions": {"deny": ["mcp__B_ro__wipe"]}}
    (file.parent / ".claude" / "settings.json").write_text(json.dumps(rules), "utf-8")
    machine.install(host)
    (ours,) = tomllib.loads(machine.file.read_text("utf-8"))["servers"].values()
    assert ours["deny"] == ["wipe"]


def test_server_whose_tools_a_rule_denies_altogether_stays(put: Place, machine: Machine) -> None:
    settings = {
        "mcp": {name: {"type": "local", "command": ["/bin/x"]} for name in ("desk", "lamp")},
        "permission": {"desk*": "deny", "lamp_*": "deny", "lamp*": "allow"},
    }
    put("opencode", json.dumps(settings).encode())
    done = machine.install("opencode")
    # The last rule for a tool counts.
    assert (set(done.staying), set(done.names)) == ({"desk"}, {"lamp"})


@pytest.mark.parametrize(
    ("host", "name", "switches"),
    [
        ("copilot-cli", "settings.json", {"disabledMcpServers": ["Desk"]}),
        ("gemini-cli", "mcp-server-enablement.json", {"desk": {"enabled": False}, "lamp": {"enabled": True}}),
    ],
)
def test_server_that_a_host_has_turned_off_in_another_file_stays_off(
    host: str, name: str, switches: dict[str, Any], put: Place, machine: Machine
) -> None:
    """The files are those that ``copilot mcp disable`` and ``gemini mcp disable`` write."""
    servers = {"Desk": {"command": "/bin/desk"}, "lamp": {"command": "/bin/lamp"}}
    file = put(host, json.dumps({"mcpServers": servers}).encode())
    file.with_name(name).write_text(json.dumps(switches), "utf-8")
    machine.install(host)
    ours = tomllib.loads(machine.file.read_text("utf-8"))["servers"]
    assert {name: one.get("enabled", True) for name, one in ours.items()} == {"Desk": False, "lamp": True}


def test_settings_of_another_host_that_look_like_rules_are_none(put: Place, machine: Machine) -> None:
    put("codex", b'[tools]\nweb_search = false\n[mcp_servers.web]\ncommand = "/bin/web"\n')
    machine.install("codex")
    assert tomllib.loads(machine.file.read_text("utf-8"))["servers"] == {"web": {"command": "/bin/web"}}
    put("kiro", b'{"mcpServers": {"lamp": {"command": "/bin/lamp"}}, "projects": [1]}')
    assert machine.install("kiro").names == {"lamp": "lamp"}


def test_another_place_for_servers_in_the_file_hides_none_of_them(put: Place, machine: Machine) -> None:
    put("vscode", b'{"mcpServers": {}, "servers": {"desk": {"command": "/bin/desk"}}}')
    assert machine.install("vscode").names == {"desk": "desk"}


def test_rules_that_cannot_be_read_leave_the_host_alone(put: Place, machine: Machine) -> None:
    file = put("claude-code", b'{"mcpServers": {"desk": {"command": "/bin/desk"}}}')
    (file.parent / ".claude").mkdir()
    (file.parent / ".claude" / "settings.json").write_text('{"permissions": ', "utf-8")
    with pytest.raises(EditError, match=r"settings\.json: it is not valid JSON"):
        machine.install("claude-code")
    (file.parent / ".claude" / "settings.json").unlink()
    os.mkfifo(file.parent / ".claude" / "settings.json")
    with pytest.raises(EditError, match=r"settings\.json: it is not a regular file"):
        machine.install("claude-code")


def test_host_that_lists_the_servers_it_may_start_may_start_ours(put: Place, machine: Machine) -> None:
    before = b"""{
  // only these
  "mcp": {"allowed": ["desk"]},
  "mcpServers": {"desk": {"command": "/bin/desk"}, "lamp": {"command": "/bin/lamp"}}
}
"""
    file = put("gemini-cli", before)
    machine.install("gemini-cli")
    assert entries("json", file.read_text("utf-8"), ("mcp",)) == {"allowed": ["desk", "context-proxy"]}
    servers = tomllib.loads(machine.file.read_text("utf-8"))["servers"]
    assert [name for name, server in servers.items() if server.get("enabled", True)] == ["desk"]
    assert machine.install("gemini-cli").change is None
    assert all(machine.uninstall())
    assert file.read_bytes() == before


def test_server_that_a_project_turns_off_is_told_since_it_is_on_there(put: Place, machine: Machine) -> None:
    text = """{"mcpServers": {"desk": {"command": "/bin/desk"}},
      "projects": {"/src/a": {"disabledMcpServers": ["desk"]}, "/src/b": {"disabledMcpServers": 1}}}"""
    put("claude-code", text.encode())
    assert any(
        "desk: turned off in the project /src/a" in note for note in machine.install("claude-code").notes
    )


def test_further_files_of_a_host_are_known(environ: dict[str, str], put: Place) -> None:
    chosen = put("vscode", b"{}")
    profile = chosen.parent / "profiles" / "1a2b" / "mcp.json"
    profile.parent.mkdir(parents=True)
    profile.write_text("{}", "utf-8")
    assert HOST_PLACES["vscode"].others(environ) == [profile]
    assert HOST_PLACES["cursor"].others(environ) == []


def test_tools_that_codex_asks_about_are_told_since_it_asks_no_longer(put: Place, machine: Machine) -> None:
    text = """[mcp_servers.figma]
command = "x"
[mcp_servers.figma.tools.get_design]
approval_mode = "prompt"
"""
    put("codex", text.encode())
    done = machine.install("codex")
    assert done.names == {"figma": "figma"}
    assert any("not carried over" in note and "get_design" in note for note in done.notes)


def test_variable_that_is_not_set_is_told(put: Place, machine: Machine) -> None:
    put("cursor", b'{"mcpServers": {"a": {"command": "x", "env": {"K": "${env:DESK_KEY}"}}}}')
    assert any("DESK_KEY is not set" in note for note in machine.install("cursor").notes)


@pytest.mark.parametrize(
    ("host", "handed_over"),
    [
        ("codex", {"env_vars": ["DESK_KEY", "OTHER"]}),
        ("gemini-cli", {"env": {"DESK_KEY": "$DESK_KEY"}}),
        ("opencode", {}),
    ],
)
def test_host_that_keeps_its_variables_hands_over_those_that_servers_need(
    host: str, handed_over: dict[str, Any], put: Place, machine: Machine
) -> None:
    file = put(host, SETTINGS[host].encode())
    machine.install(host)

    def ours() -> dict[str, Any]:
        text = file.read_text("utf-8")
        found: dict[str, Any] = entries(HOST_PLACES[host].form, text, HOST_PLACES[host].place)[
            "context-proxy"
        ]
        return found

    before = ours()
    machine.install(host, DESK_KEY=True, OTHER=False)
    assert ours() == before | handed_over
    assert machine.install(host, DESK_KEY=True, OTHER=False).change is None
    machine.uninstall()
    assert file.read_text("utf-8") == SETTINGS[host]


def test_tool_lists_and_switches_are_carried_over(put: Place, machine: Machine) -> None:
    put(
        "gemini-cli",
        b'{"mcpServers": {"a": {"command": "x", "includeTools": ["one"], "env": {"K": "$HOME"}},'
        b' "b": {"command": "y", "disabled": true}}, "mcp": {"excluded": ["a"]}}',
    )
    machine.install("gemini-cli")
    config = load(machine.file, environ=machine.environ)
    assert (config.servers["a"].allow, config.servers["a"].enabled) == (("one",), False)
    assert tomllib.loads(machine.file.read_text("utf-8"))["servers"]["a"]["env"] == {"K": "${HOME}"}
    assert not config.servers["b"].enabled


@pytest.mark.parametrize("host", SETTINGS)
@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"{ not :: [valid", b"\x00"])
def test_damaged_file_is_left_alone_with_a_reason(
    host: str, data: bytes, put: Place, machine: Machine
) -> None:
    file = put(host, data)
    with pytest.raises(EditError):
        machine.install(host)
    assert file.read_bytes() == data
    assert machine.journal.installations() == []


def test_link_stays_a_link_and_rights_stay(put: Place, machine: Machine, home: Path) -> None:
    real = home / "dotfiles.json"
    real.write_text(SETTINGS["cursor"], "utf-8")
    real.chmod(0o640)
    file = put("cursor", None)
    file.symlink_to(real)
    machine.install("cursor")
    assert file.is_symlink()
    assert "context-proxy" in real.read_text("utf-8")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert machine.uninstall() == [True]
    assert real.read_text("utf-8") == SETTINGS["cursor"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root can write everything")
def test_read_only_file_is_left_alone(put: Place, machine: Machine) -> None:
    file = put("cursor", SETTINGS["cursor"].encode())
    file.chmod(0o400)
    with pytest.raises(EditError, match="read-only"):
        machine.install("cursor")
    assert machine.journal.installations() == []


def test_file_that_changes_while_it_is_planned_is_not_overwritten(put: Place, machine: Machine) -> None:
    file = put("cursor", SETTINGS["cursor"].encode())
    configuration = Configuration(machine.file, None)
    one = plan(HOST_PLACES["cursor"], file, read_text(file), configuration, COMMAND, machine.environ)
    file.write_text("{}", "utf-8")
    with pytest.raises(EditError, match="changed in the meantime"):
        machine.journal.install(one)
    assert file.read_text("utf-8") == "{}"
    assert machine.journal.installations() == []


@pytest.mark.parametrize("changed", [False, True])
def test_servers_come_back_without_the_copy_of_the_file(changed: bool, put: Place, machine: Machine) -> None:
    """Somebody has cleaned up."""
    file = put("cursor", SETTINGS["cursor"].encode())
    before = entries("json", SETTINGS["cursor"], ("mcpServers",))
    machine.install("cursor")
    for copy in machine.journal.folder.glob("*.before"):
        copy.unlink()
    if changed:
        file.write_text("// changed\n" + file.read_text("utf-8"), "utf-8")
    assert machine.uninstall() == [False]
    assert entries("json", file.read_text("utf-8"), ("mcpServers",)) == before
    assert list(machine.journal.folder.iterdir()) == []


def test_installations_are_undone_in_their_order_after_the_clock_was_set_back(
    put: Place, machine: Machine
) -> None:
    text = '{"mcpServers": {"a": {"command": "x"}}}'
    file = put("cursor", text.encode())
    machine.install("cursor")
    for path in [*machine.journal.folder.iterdir()]:
        # As it is called if the clock was ten years ahead.
        name = f"{int(path.name[:20]) + 10 * 365 * 86_400 * 10**9:020d}{path.name[20:]}"
        record = path.read_text("utf-8").replace(path.name[:20], name[:20])
        path.unlink()
        path.with_name(name).write_text(record, "utf-8")
    first = file.read_text("utf-8")
    file.write_text(first.replace('"mcpServers": {', '"mcpServers": {"b": {"command": "y"},'), "utf-8")
    machine.install("cursor")
    assert machine.uninstall() == [True, False]
    assert entries("json", file.read_text("utf-8"), ("mcpServers",)).keys() == {"a", "b"}


@pytest.mark.parametrize("text", ["\\ud83d", "a\\udc00b"])
def test_server_with_half_of_a_character_stays(text: str, put: Place, machine: Machine) -> None:
    file = put("cursor", f'{{"mcpServers": {{"a": {{"command": "x", "env": {{"A": "{text}"}}}}}}}}'.encode())
    assert "half of a character" in machine.install("cursor").staying["a"]
    assert text in file.read_text("utf-8")


def test_server_without_a_name_in_a_list_stays(put: Place, machine: Machine) -> None:
    put("continue", b"mcpServers:\n  - command: x\n  - name: b\n    command: y\n")
    done = machine.install("continue")
    assert (done.staying, done.names) == ({"server 1": "it has no name"}, {"b": "b"})


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_files_stay_those_of_their_person_when_root_installs(
    put: Place, machine: Machine, home: Path
) -> None:
    """``sudo`` keeps the home folder on some systems: the host could not read its own file any more."""
    file = put("cursor", SETTINGS["cursor"].encode())
    for path in (home, file.parent, file):
        os.chown(path, NOBODY, NOBODY)
    machine.install("cursor")
    machine.install("codex")
    made = [one for one in home.rglob("*") if one.stat().st_uid != NOBODY]
    assert made == []
    machine.uninstall()
    assert file.stat().st_uid == NOBODY


def test_file_that_a_killed_installation_has_left_is_removed_later(put: Place, machine: Machine) -> None:
    """It has what the host's file has, such as secrets."""
    file = put("cursor", SETTINGS["cursor"].encode())
    left, new, other = (
        file.with_name(f".mcp.json.{end}") for end in ("x1.mcp-context-proxy", "x2.mcp-context-proxy", "tmp")
    )
    for path in (left, new, other):
        path.write_text("x", "utf-8")
    os.utime(left, (1.0, 1.0))
    os.utime(other, (1.0, 1.0))
    machine.install("cursor")
    assert [path.exists() for path in (left, new, other)] == [False, True, True]


def test_copies_and_configuration_are_private(put: Place, machine: Machine) -> None:
    put("cursor", SETTINGS["cursor"].encode())
    machine.install("cursor")
    files = [machine.file, *machine.journal.folder.iterdir()]
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@pytest.mark.parametrize(
    ("host", "folder"), [("vscode", ".config/Code - Insiders/User"), ("cline", ".cline/data/settings")]
)
def test_first_file_of_a_host_is_made_for_the_edition_that_is_there(
    host: str, folder: str, home: Path, environ: dict[str, str]
) -> None:
    (home / folder).mkdir(parents=True)
    assert HOST_PLACES[host].file(environ, "linux").parent == home / folder
    assert HOST_PLACES[host].is_here(environ)


def test_hosts_are_found_by_their_files_and_folders(home: Path, environ: dict[str, str], put: Place) -> None:
    assert hosts_here(environ) == []
    put("codex", None)
    put("goose", b"")
    (home / ".claude").mkdir()
    assert {host.name for host in hosts_here(environ)} == {"claude-code", "codex", "goose"}


@each("platform", ["linux", "darwin", "win32"])
@each("host", SETTINGS)
def test_each_host_has_a_place_on_each_platform(host: str, platform: str, environ: dict[str, str]) -> None:
    file = HOST_PLACES[host].file(environ, platform)
    assert file.is_relative_to(environ["HOME"])
    assert "{" not in str(file)
