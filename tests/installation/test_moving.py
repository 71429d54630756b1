"""Servers of hosts as they move to our configuration: which do, in which form, and which stay."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tables import each

from mcp_context_proxy.config import load
from mcp_context_proxy.installation import HOST_PLACES, read_text
from mcp_context_proxy.installation.editing import EditError, entries
from mcp_context_proxy.installation.plan import Configuration, plan

from .conftest import COMMAND, Machine, Place
from .hosts import AWKWARD, SETTINGS


@each(
    ("host", "text", "servers"),
    [
        (  # YAML 1.2, in which yes is a text and 0123 no octal number.
            "goose",
            AWKWARD["goose", "yaml 1.1 booleans"],
            {"on": {"command": "x", "env": {"A": "yes", "B": "0123", "C": "1_000"}}},
        ),
        (
            "vscode",
            '{"servers": {"a": {"command": "${userHome}/a", "args": ["b${/}c"]}}}',
            {"a": {"command": f"{Path.home()}/a", "args": ["b/c"]}},
        ),
        (
            "cline",
            AWKWARD["cline", "transport inside"],
            {
                "a": {"command": "x", "args": ["y"], "enabled": False},
                "h": {"url": "https://example.com/mcp", "headers": {"A": "b"}},
            },
        ),
        (
            "opencode",
            AWKWARD["opencode", "v2"],
            {"a": {"command": "npx", "args": ["-y", "x"], "enabled": False}},
        ),
        (
            "continue",
            """mcpServers:
  - name: given
    type: streamable-http
    url: https://a.example/mcp
    apiKey: k-0123456789
  - name: looked-up
    type: sse
    url: https://b.example/sse
    apiKey: ${{ secrets.B }}
""",
            {
                "given": {
                    "url": "https://a.example/mcp",
                    "headers": {"Authorization": "Bearer k-0123456789"},
                }
            },
        ),
        (
            "gemini-cli",
            """{"mcpServers": {"a": {"command": "x", "includeTools": ["one"], "env": {"K": "$HOME"}},
              "b": {"command": "y", "disabled": true}}, "mcp": {"excluded": ["a"]}}""",
            {
                "a": {"command": "x", "allow": ["one"], "env": {"K": "${HOME}"}, "enabled": False},
                "b": {"command": "y", "enabled": False},
            },
        ),
        (  # Goose puts its variables, and no others, into the address and the headers.
            "goose",
            """extensions:
  a: {type: streamable_http, uri: "https://a.example/mcp?k=$KEY", envs: {TOKEN: t-0123456789},
      env_keys: [KEY], headers: {Authorization: Bearer $TOKEN, Other: "${KEY} $NONE"}}
""",
            {
                "a": {
                    "url": "https://a.example/mcp?k=${KEY}",
                    "headers": {"Authorization": "Bearer t-0123456789", "Other": "${KEY} $NONE"},
                }
            },
        ),
        # Settings that would be rules, switches or another place for servers in another host's file.
        (
            "codex",
            '[tools]\nweb_search = false\n[mcp_servers.web]\ncommand = "/bin/web"\n',
            {"web": {"command": "/bin/web"}},
        ),
        (
            "kiro",
            '{"mcpServers": {"lamp": {"command": "/bin/lamp"}}, "projects": [1]}',
            {"lamp": {"command": "/bin/lamp"}},
        ),
        (
            "vscode",
            '{"mcpServers": {}, "servers": {"desk": {"command": "/bin/desk"}}}',
            {"desk": {"command": "/bin/desk"}},
        ),
    ],
)
def test_servers_move_as_their_host_reads_them(
    host: str, text: str, servers: dict[str, Any], put: Place, machine: Machine
) -> None:
    put(host, text.encode())
    names = machine.install(host).names
    ours = tomllib.loads(machine.file.read_text("utf-8"))["servers"]
    assert {name: ours[names[name]] for name in names} == servers
    load(machine.file, environ=machine.environ)


def test_our_entry_takes_the_form_of_the_version_of_opencode(put: Place, machine: Machine) -> None:
    file = put("opencode", AWKWARD["opencode", "v2"].encode())
    machine.install("opencode")
    ours = entries("json", file.read_text("utf-8"), ("mcp", "servers"))
    assert ours == {"context-proxy": {"type": "local", "command": COMMAND}}


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


def test_other_server_of_the_same_name_gets_the_name_of_its_host(put: Place, machine: Machine) -> None:
    put("cursor", SETTINGS["cursor"].encode())
    put("windsurf", SETTINGS["windsurf"].replace("--stdio", "--other").encode())
    machine.install("cursor")
    assert machine.install("windsurf").names == {"desk": "desk-windsurf", "remote": "remote"}


@each(
    ("host", "text", "staying"),
    [
        (
            "cursor",
            """{"mcpServers": {
              "here": {"command": "${workspaceFolder}/run"},
              "asks": {"command": "x", "env": {"KEY": "${input:key}"}},
              "file": {"command": "x", "envFile": ".env"},
              "read": {"command": "x", "env": {"A": "${file:/a}"}},
              "wrong": {"args": ["x"]},
              "line": {"command": "npx -y @desk/server"},
              "args": {"command": "x", "args": [1]},
              "both": {"command": "x", "url": "https://example.com"},
              "cwd": {"command": "x", "cwd": "./d"},
              "path": {"command": "./x"},
              "dot": {"command": "npx", "args": ["-y", "server-filesystem", "."]},
              "data": {"command": "x", "args": ["--db=../d.db"], "env": {"A": "${UNSET_THERE}"}},
              "named": {"command": "x", "args": ["${workspaceFolder:shop}"]},
              "ws": {"type": "ws", "url": "https://example.com"},
              "half": {"command": "x", "env": {"A": "\\ud83d"}},
              "other half": {"command": "x", "env": {"A": "a\\udc00b"}},
              "hidden": {"command": "/bin/to\\u200bol"},
              "turned": {"command": "x", "args": ["--safe\\u202e"]},
              "set": {"command": "x", "args": ["./a"], "cwd": "/srv"},
              "fine": {"command": "/bin/fine", "args": [".c", "...", "-e", "a/.."]}}}""",
            {
                "here": "workspaceFolder",
                "asks": "",
                "file": "",
                "read": "env.A: only its host knows ${file:/a}",
                "wrong": "",
                "line": "command: it is the program alone",
                "args": "args[0]: must be text in quotes",
                "both": "both a command and a url",
                "cwd": "cwd: ./d counts from the folder",
                "path": "command: ./x counts from the folder",
                "dot": "args[2]: . counts from the folder",
                "data": "args[0]: --db=../d.db counts from the folder",
                "named": "only the editor knows ${workspaceFolder:shop}",
                "ws": "transport: must be stdio, http or sse",
                "half": "half of a character",
                "other half": "half of a character",
                "hidden": "hides characters",
                "turned": "hides characters",
            },
        ),
        (
            "vscode",
            """{"servers": {
              "caged": {"command": "x", "sandboxEnabled": true, "sandbox": {"network": {}}},
              "slack": {"url": "https://a.example/mcp", "oauth": {"clientId": "1.2", "callbackPort": 3118}},
              "sheets": {"url": "https://b.example/mcp", "auth": {"CLIENT_ID": "3", "CLIENT_SECRET": "s"}},
              "signed": {"url": "https://d.example/mcp", "headersHelper": "/opt/headers.sh"},
              "free": {"command": "y", "sandboxEnabled": false},
              "plain": {"url": "https://c.example/mcp", "oauth": {"callbackPort": 3118}}}}""",
            {"caged": "sandbox", "slack": "[servers.NAME.oauth]", "sheets": "", "signed": ""},
        ),
        (
            "codex",
            """[mcp_servers.far]
command = "x"
experimental_environment = "remote"
[mcp_servers.near]
command = "y"
experimental_environment = "local"
[mcp_servers.further]
command = "x"
environment_id = "cloud"
[mcp_servers.signed]
url = "https://a.example/mcp"
http_headers_helper = "/opt/headers.sh"
[mcp_servers.account]
url = "https://b.example/mcp"
auth = "chatgpt"
[mcp_servers.login]
url = "https://c.example/mcp"
auth = "oauth"
""",
            {"far": "", "further": "another machine", "signed": "for its headers", "account": "credentials"},
        ),
        (
            "zed",
            """{"context_servers": {"far": {"command": "x", "remote": true},
              "near": {"command": "x", "remote": false},
              "person": {"url": "https://a.example/mcp", "headers": {"X": "{{USER_ID}}"}}}}""",
            {"far": "another machine", "person": "only its host knows {{USER_ID}}"},
        ),
        (
            "goose",
            "extensions:\n  a: {type: streamable_http, uri: 'http://a.example/mcp', socket: '@a.sock'}\n"
            "  b: {type: stdio, cmd: x, args: [], socket: ''}\n",
            {"a": "socket"},
        ),
        (
            "cline",
            '{"mcpServers": {"corp": {"url": "https://a.example/mcp", "oauthClient": {"clientId": "1"}}}}',
            {"corp": "client of its own"},
        ),
        (
            "copilot-cli",
            '{"mcpServers": {"corp": {"url": "https://a.example/mcp", "oauthClientId": "1"}}}',
            {"corp": "client of its own"},
        ),
        (  # The last rule for a tool counts.
            "opencode",
            """{"mcp": {"desk": {"type": "local", "command": ["/bin/x"]},
              "lamp": {"type": "local", "command": ["/bin/x"]}},
              "permission": {"desk*": "deny", "lamp_*": "deny", "lamp*": "allow"}}""",
            {"desk": ""},
        ),
        (
            "continue",
            "mcpServers:\n  - command: x\n  - name: b\n    command: y\n",
            {"server 1": "it has no name"},
        ),
    ],
)
def test_server_that_would_not_work_behind_the_proxy_stays(
    host: str, text: str, staying: dict[str, str], put: Place, machine: Machine
) -> None:
    """Only its host can start it, or gives it something of its own, or starts it elsewhere."""
    form, place = HOST_PLACES[host].form, HOST_PLACES[host].place
    file, before = put(host, text.encode()), entries(form, text, place)
    done = machine.install(host)
    assert done.staying.keys() == staying.keys()
    assert done.names.keys() == before.keys() - staying.keys()
    assert all(reason in done.staying[name] for name, reason in staying.items())
    assert not any("is not set here" in note for note in done.notes)
    after = entries(form, file.read_text("utf-8"), place)
    assert "context-proxy" in after
    others = [one for name, one in after.items() if name != "context-proxy"]
    assert others == [one for name, one in before.items() if name in staying]


DENIED_BY_ZED = {f"mcp:my desk:{name}": {"default": "deny"} for name in ("wipe", "drop_*")}


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
            {"agent": {"tool_permissions": {"tools": DENIED_BY_ZED}}},
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


@pytest.mark.parametrize(
    ("host", "entry"),
    [
        ("cursor", {"command": "/bin/desk", "excludeTools": 7}),
        ("cursor", {"command": "/bin/desk", "disabledTools": True}),
        ("goose", {"cmd": "/bin/desk", "type": {"a": 1}}),
        ("goose", {"cmd": "/bin/desk", "type": ["builtin"]}),
        ("goose", {"type": "streamable_http", "uri": "https://example.com/$KEY", "env": ["KEY"]}),
    ],
)
def test_server_with_a_value_of_another_kind_stays_and_the_others_move(
    host: str, entry: dict[str, Any], put: Place, machine: Machine
) -> None:
    lamp = {"cmd" if host == "goose" else "command": "/bin/lamp"}
    write = yaml.safe_dump if host == "goose" else json.dumps
    put(host, write({HOST_PLACES[host].place[0]: {"desk": entry, "lamp": lamp}}).encode())
    done = machine.install(host)
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
    machine.install("gemini-cli")
    file.write_bytes(file.read_bytes().replace(b"// only these", b"// these alone"))
    assert not any(machine.uninstall())
    assert entries("json", file.read_text("utf-8"), ("mcp",)) == {"allowed": ["desk"]}


@each(
    ("host", "text", "told"),
    [
        (
            "cursor",
            """{"mcpServers": {"a": {"command": "x", "timeout": 5, "alwaysAllow": ["look"],
              "env": {"K": "${env:DESK_KEY}"}}}}""",
            ["timeout", "look", "DESK_KEY is not set"],
        ),
        (
            "claude-code",
            """{"mcpServers": {"desk": {"command": "/bin/desk"}},
              "projects": {"/a": {"disabledMcpServers": ["desk"]}, "/b": {"disabledMcpServers": 1}}}""",
            ["desk: turned off in the project /a"],
        ),
        (  # Codex asked before it called that one.
            "codex",
            """[mcp_servers.figma]
command = "x"
[mcp_servers.figma.tools.get_design]
approval_mode = "prompt"
""",
            ["get_design"],
        ),
    ],
)
def test_settings_that_have_no_effect_behind_the_proxy_are_told(
    host: str, text: str, told: list[str], put: Place, machine: Machine
) -> None:
    put(host, text.encode())
    done = machine.install(host)
    assert len(done.names) == 1
    assert [word for word in told if not any(word in note for note in done.notes)] == []


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


def test_variables_that_servers_inherit_are_needed_like_those_that_values_refer_to() -> None:
    text = """inherit = ["DESK_USER", "*"]
[servers.a]
command = "a"
inherit = ["AWS_*", "GONE", "PATH"]
env = { KEY = "${DESK_KEY}" }
"""
    environ = {"AWS_PROFILE": "p", "AWS_REGION": "r", "DESK_USER": "u", "PATH": "/bin", "EDITOR": "ed"}

    assert Configuration(Path("config.toml"), text).variables(environ) == {
        **{"AWS_PROFILE": True, "AWS_REGION": True, "DESK_KEY": False, "DESK_USER": True, "GONE": False}
    }


def test_server_that_hosts_wait_for_differently_long_is_configured_once_with_the_longest_time(
    put: Place, machine: Machine
) -> None:
    hasty = '[mcp_servers.{0}]\ncommand = "{0}"\ntool_timeout_sec = 20\nstartup_timeout_sec = 45\n'
    put("codex", "".join(map(hasty.format, ("desk", "lamp"))).encode())
    put("goose", b"extensions:\n  desk: {type: stdio, cmd: desk, args: [], timeout: 300, enabled: true}\n")
    put("cursor", b'{"mcpServers": {"desk": {"command": "desk"}, "lamp": {"command": "lamp"}}}')
    machine.file.parent.mkdir(parents=True, exist_ok=True)
    machine.file.write_text('[servers.desk] # mine\ncommand = "desk"\n', "utf-8")
    machine.install("codex", "goose", "cursor")

    configured = machine.file.read_text("utf-8")
    assert configured == (
        '[servers.desk] # mine\ncall_timeout = 300\nconnect_timeout = 45\ncommand = "desk"\n\n'
        '[servers.lamp]\ncommand = "lamp"\nconnect_timeout = 45\ncall_timeout = 60.0\n'
    )
    # A shorter time that a person has written stays, unless a host states a longer one.
    machine.file.write_text(written := configured.replace("60.0", "5"), "utf-8")
    put("cursor", b'{"mcpServers": {"lamp": {"command": "lamp"}}}')
    machine.install("cursor")
    assert machine.file.read_text("utf-8") == written


def test_variable_in_the_notation_of_editors_makes_no_other_server(put: Place, machine: Machine) -> None:
    entry = '{"mcpServers": {"desk": {"command": "desk", "env": {"K": "%s"}, "args": ["%s"]}}}'
    put("claude-code", (entry % ("${DESK_KEY}", "${DESK:-d} $${env:X}")).encode())
    put("cursor", (entry % ("${env:DESK_KEY}", "${env:DESK:-d} $${env:X}")).encode())
    machine.install("claude-code", "cursor")
    assert tomllib.loads(machine.file.read_text("utf-8"))["servers"] == {
        "desk": {"command": "desk", "args": ["${DESK:-d} $${env:X}"], "env": {"K": "${DESK_KEY}"}}
    }


def test_a_server_that_one_host_hands_a_variable_by_name_and_another_as_a_value_is_configured_once(
    put: Place, machine: Machine
) -> None:
    put("claude-code", b'{"mcpServers": {"desk": {"command": "desk", "env": {"DESK_KEY": "${DESK_KEY}"}}}}')
    put("codex", b'[mcp_servers.desk]\ncommand = "desk"\nenv_vars = ["DESK_KEY"]\n')
    machine.install("claude-code", "codex")
    assert list(tomllib.loads(machine.file.read_text("utf-8"))["servers"]) == ["desk"]


@each(
    ("written", "configured", "same"),
    [
        ('"args": ["-y", "@a/b"]', 'args = ["-y", "@a/b@2.1.0"]', True),
        ('"args": ["-y", "@a/b@latest"]', 'args = ["-y", "@a/b@2.1.0"]', True),
        ('"args": ["--from", "b", "c"]', 'args = ["--from", "b==2.1", "c"]', True),
        ('"args": ["-y", "@a/b@1.0.0"]', 'args = ["-y", "@a/b@2.1.0"]', False),
        ('"args": ["-y", "@a/b"]', 'args = ["-y", "@a/c@2.1.0"]', False),
        ('"args": ["-y"]', 'args = ["-y", "x"]', False),
        ('"args": ["x"]', 'args = ["x"]\nenabled = false', True),
        ('"args": ["x"]', 'args = ["x"]\ntags = ["t"]\ntools.erase.enabled = false', True),
        ('"args": ["x"], "disabledTools": ["y"]', 'args = ["x"]', False),
        ('"args": ["x"], "env": {"A": "b"}', 'args = ["x"]', False),
        ('"args": ["x"]', 'args = ["x"]\nenv = { A = "b" }', False),
        ('"args": ["x"]', 'args = ["x"]\ncwd = "/b"', False),
    ],
)
def test_server_that_the_configuration_had_before_stays_as_a_person_has_set_it(
    written: str, configured: str, same: bool, put: Place, machine: Machine
) -> None:
    put("cursor", f'{{"mcpServers": {{"desk": {{"command": "npx", {written}}}}}}}'.encode())
    before = f'[servers.desk]\ncommand = "npx"\n{configured}\n'
    machine.file.parent.mkdir(parents=True, exist_ok=True)
    machine.file.write_text(before, "utf-8")
    done = machine.install("cursor")
    assert done.names == {"desk": "desk" if same else "desk-cursor"}
    assert (machine.file.read_text("utf-8") == before) is same
    off = same and "enabled" in configured
    assert any("stays as the configuration has it" in note for note in done.notes) is off


def test_tools_that_only_one_of_two_hosts_turns_off_are_told(put: Place, machine: Machine) -> None:
    entry = '{{"mcpServers": {{"desk": {{"command": "desk"{}}}}}}}'
    put("cursor", entry.format(', "disabledTools": ["erase"]').encode())
    put("windsurf", entry.format(', "env": {"A": "b"}').encode())
    assert not any("runs the same" in note for note in machine.install("cursor").notes)
    done = machine.install("windsurf")
    assert done.names == {"desk": "desk-windsurf"}
    assert [note for note in done.notes if note.startswith("desk: desk runs the same with other tools")]
