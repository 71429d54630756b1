"""Hosts' own files work as they are."""

import json
import logging
from pathlib import Path

import pytest
from support.tables import each

from mcp_context_proxy.config.hosts import names_for

CLAUDE_DESKTOP = """{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/ada/Desktop"]
    },
    "Sequential Thinking": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-sequential-thinking"],
      "env": {"LEVEL": 3, "DEBUG": true, "NONE": null}
    }
  },
  "globalShortcut": "Ctrl+Space",
  "preferences": {"menuBarEnabled": false}
}"""

CLAUDE_CODE = """{
  "mcpServers": {
    "api-server": {
      "type": "http",
      "url": "${API_BASE_URL:-https://api.example.com}/mcp",
      "headers": {"Authorization": "Bearer ${API_KEY}"}
    },
    "events": {"type": "sse", "url": "https://mcp.example.com/events"},
    "local": {"type": "stdio", "command": "/usr/bin/tool", "args": [], "env": {}}
  }
}"""

CURSOR = """{
  "mcpServers": {
    "linear": {"url": "https://mcp.linear.app/sse"},
    "docs": {"url": "http://localhost:3000/mcp", "headers": {"API_KEY": "value"}},
    "local": {"command": "python", "args": ["server.py"], "disabled": true, "autoApprove": ["x"]}
  }
}"""

VS_CODE = """{
  // Servers of this workspace
  "inputs": [{"type": "promptString", "id": "key", "description": "API key", "password": true}],
  "servers": {
    "github": {"type": "http", "url": "https://api.example.com/mcp/"}, /* remote */
    "playwright": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "@microsoft/mcp-server-playwright",],
      "env": {"KEY": "${env:PLAYWRIGHT_KEY}"},
      "dev": {"watch": "src/**"},
    },
  },
}"""

VS_CODE_SETTINGS = """{
  "editor.fontSize": 12, // px
  "mcp": {"servers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}},
  "editor.rulers": [80, 120],
}"""

WINDSURF = '{"mcpServers": {"remote": {"serverUrl": "https://example.com/mcp", "disabledTools": []}}}'

CLINE = '{"mcpServers": {"r": {"type": "streamableHttp", "url": "https://e.com", "timeout": 60}}}'

CLAUDE_CODE_SETTINGS = """{
  "numStartups": 40,
  "projects": {"/home/ada/p": {"mcpServers": {"other": {"command": 5}}, "history": []}},
  "mcpServers": {"mine": {"type": "stdio", "command": "mine", "args": []}},
  "tipsHistory": {"a": 1, "a": 2}
}"""

ENVIRON = {"API_KEY": "k3y", "PLAYWRIGHT_KEY": "p1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            CLAUDE_DESKTOP, {"filesystem": "stdio", "Sequential-Thinking": "stdio"}, id="claude-desktop"
        ),
        pytest.param(
            CLAUDE_CODE, {"api-server": "http", "events": "sse", "local": "stdio"}, id="claude-code"
        ),
        pytest.param(CURSOR, {"linear": "sse", "docs": "http", "local": "stdio"}, id="cursor"),
        pytest.param(VS_CODE, {"github": "http", "playwright": "stdio"}, id="vs-code"),
        pytest.param(VS_CODE_SETTINGS, {"time": "stdio"}, id="vs-code-settings"),
        pytest.param(WINDSURF, {"remote": "http"}, id="windsurf"),
        pytest.param(CLINE, {"r": "http"}, id="cline"),
        pytest.param(CLAUDE_CODE_SETTINGS, {"mine": "stdio"}, id="claude-code-settings"),
        pytest.param('{"mcpServers": {}}', {}, id="no-servers"),
    ],
)
def test_the_servers_of_a_real_host_file_are_taken_over(load_text, text, expected):
    servers = load_text(text, "mcp.json", environ=ENVIRON).servers

    assert {name: server.transport for name, server in servers.items()} == expected


def test_every_supported_field_of_a_host_file_is_read(load_text):
    desktop = load_text(CLAUDE_DESKTOP, "a.json").servers
    code = load_text(CLAUDE_CODE, "b.json", environ=ENVIRON).servers
    cursor = load_text(CURSOR, "c.json").servers
    vs_code = load_text(VS_CODE, "d.json", environ=ENVIRON).servers

    assert desktop["filesystem"].args == (
        "-y",
        "@modelcontextprotocol/server-filesystem",
        "/Users/ada/Desktop",
    )
    assert desktop["Sequential-Thinking"].env == {"LEVEL": "3", "DEBUG": "true"}
    assert code["api-server"].url == "https://api.example.com/mcp"
    assert code["api-server"].headers == {"Authorization": "Bearer k3y"}
    assert code["api-server"].secrets == (("API_KEY", "k3y"),)
    assert [cursor[name].enabled for name in ("docs", "local")] == [True, False]
    assert vs_code["playwright"].args == ("-y", "@microsoft/mcp-server-playwright")
    assert vs_code["playwright"].env == {"KEY": "p1"}


def test_an_input_of_vs_code_is_named_in_the_problem(problems):
    text = '{"servers": {\n "a": {"command": "x",\n  "env": {"K": "${input:api-key}"}}}}'

    assert problems(text, "mcp.json") == [
        "3 servers.a.env.K: ${input:api-key} asks the user in VS Code, which is not possible here; "
        "put the value in an environment variable and write ${env:NAME}"
    ]


def test_errors_are_reported_under_the_keys_of_the_host_file(problems):
    text = """{"mcpServers": {
  "My Server": {
    "serverUrl": "htp://x"},
  "b": {"type": "websocket",
    "url": "https://x"},
  "c": [],
  "d": {"command": "x",
    "args": "y"},
  "e": {}
}}"""

    assert problems(text, "mcp.json") == [
        '3 mcpServers."My Server".serverUrl: must begin with http:// or https:// and name a host',
        "4 mcpServers.b.type: must be stdio, http or sse",
        "6 mcpServers.c: must be an object with a command or a url",
        "8 mcpServers.d.args: must be a list, not text",
        "9 mcpServers.e: has neither command nor url; a server needs one of them",
    ]


def test_a_host_may_not_configure_more_than_servers(load_text):
    """Keys of ours in a host's file are the host's own and mean something else."""
    config = load_text('{"mcpServers": {}, "http": {"port": "x"}, "limits": 5}', "mcp.json")

    assert config.http.port == 8765


@pytest.mark.parametrize(
    "entry",
    [
        '{"command": "mcp-context-proxy"}',
        '{"command": "/home/ada/.local/bin/mcp-context-proxy", "args": ["serve"]}',
        '{"command": "C:\\\\bin\\\\mcp-context-proxy.exe"}',
        '{"command": "uvx", "args": ["mcp-context-proxy@latest"]}',
        '{"command": "uvx", "args": ["--from", "git+https://example.com/a/mcp-context-proxy", "x"]}',
        '{"command": "python", "args": ["-m", "mcp_context_proxy"]}',
        '{"command": "docker", "args": ["run", "-i", "ghcr.io/a/mcp-context-proxy:1"]}',
    ],
)
def test_the_proxy_itself_is_skipped_with_a_warning(load_text, caplog, entry):
    """Otherwise the proxy would start itself without end."""
    with caplog.at_level(logging.WARNING):
        config = load_text(f'{{"mcpServers": {{"me": {entry}, "other": {{"command": "x"}}}}}}', "mcp.json")

    assert list(config.servers) == ["other"]
    assert "server 'me' is this proxy itself and is skipped" in caplog.text


def test_a_server_whose_arguments_mention_the_proxys_name_is_not_skipped(load_text, tmp_path: Path):
    folder = tmp_path / "mcp-context-proxy"
    folder.mkdir()
    text = f'{{"mcpServers": {{"a": {{"command": "x", "args": ["{folder}", "{folder}/tool.py"]}}}}}}'

    assert list(load_text(text, "mcp.json").servers) == ["a"]


def test_a_packaged_example_server_is_not_skipped(load_text):
    text = (
        '{"mcpServers": {"a": {"command": "python", "args": ["-m", "mcp_context_proxy.examples", "notes"]}}}'
    )

    assert list(load_text(text, "mcp.json").servers) == ["a"]


@each(
    ("written", "expected"),
    [
        ("github", "github"),
        ("Sequential Thinking", "Sequential-Thinking"),
        ("io.github/foo", "io-github-foo"),
        ("@scope/name", "scope-name"),
        ("a__b", "a_b"),
        ("x" * 40, "x" * 32),
    ],
)
def test_server_names_of_a_host_file_are_made_valid(written, expected):
    assert names_for([written]) == {written: expected}


def test_names_that_become_equal_stay_distinct_in_any_order():
    names = names_for(["a.b", "a/b", "a-b", "é", "ü"])
    turned = names_for(["ü", "é", "a-b", "a/b", "a.b"])

    assert names == turned
    assert names["a-b"] == "a-b"
    assert len(set(names.values())) == 5


def test_an_env_file_is_reported_because_it_is_not_read(load_text, caplog):
    with caplog.at_level(logging.WARNING):
        load_text('{"servers": {"a": {"command": "x", "envFile": ".env"}}}', "mcp.json")

    assert "server 'a': envFile is not read; name its variables in env" in caplog.text


GEMINI = """{
  "mcp": {"allowed": ["git", "notes", "old"], "excluded": ["old"]},
  "mcpServers": {
    "git": {"command": "git-mcp", "includeTools": ["get_issue", "get_repo"],
      "excludeTools": ["get_repo"]},
    "notes": {"command": "notes-mcp", "trust": true},
    "old": {"command": "old-mcp"},
    "other": {"command": "other-mcp"}
  }
}"""


@pytest.mark.parametrize(
    ("key", "names", "allow", "deny"),
    [
        pytest.param("includeTools", ["a"], ("a",), (), id="gemini-include"),
        pytest.param("excludeTools", ["a", "b"], None, ("a", "b"), id="gemini-exclude"),
        pytest.param("disabledTools", ["a"], None, ("a",), id="windsurf-and-roo"),
        pytest.param("disabled_tools", ["a"], None, ("a",), id="codex-disabled"),
        pytest.param("enabled_tools", ["a"], ("a",), (), id="codex-enabled"),
        pytest.param("enabled_tools", [], (), (), id="codex-none-enabled"),
        pytest.param("tools", ["a"], ("a",), (), id="copilot-cli"),
    ],
)
def test_the_tools_that_a_host_leaves_out_are_carried_over(load_text, key, names, allow, deny):
    text = f'{{"mcpServers": {{"x": {{"command": "x",\n"{key}": {json.dumps(names)}}}}}}}'
    server = load_text(text, "mcp.json").servers["x"]

    assert (server.allow, server.deny) == (allow, deny)
    ours = "allow" if allow is not None else "deny"
    told = ", ".join(names) or "no tool"
    assert server.remarks == (f"mcpServers.x.{key} (mcp.json:2) is carried over as {ours}: {told}",)


def test_tools_that_claude_code_denies_are_denied_and_its_other_decisions_are_told(load_text):
    tools = [{"name": name, "permission_policy": f"always_{name}"} for name in ("allow", "ask", "deny")]
    entry = {"type": "http", "url": "https://e.com", "tools": tools, "toolPermissions": {"wipe": "blocked"}}
    server = load_text(json.dumps({"mcpServers": {"x": entry}}), "mcp.json").servers["x"]

    assert (server.allow, server.deny) == (None, ("wipe", "deny"))
    carried, _ = server.remarks
    assert carried == "mcpServers.x.toolPermissions (mcp.json:1) is carried over as deny: wipe, deny"
    assert server.places["deny[0]"] == "mcpServers.x.toolPermissions (mcp.json:1)"
    assert [remark.rpartition(": ")[2] for remark in server.remarks] == ["wipe, deny", "allow, ask"]


@pytest.mark.parametrize(
    ("entry", "transport"),
    [({}, "sse"), ({"transportType": "http"}, "http"), ({"type": "streamableHttp"}, "http")],
)
def test_a_url_in_the_file_of_cline_is_one_of_sse_unless_it_says_otherwise(load_text, entry, transport):
    text = json.dumps({"mcpServers": {"x": {"url": "https://e.com/mcp", **entry}}})

    assert load_text(text, "cline_mcp_settings.json").servers["x"].transport == transport


def test_an_entry_may_have_an_empty_command_beside_its_url(load_text):
    entry = {"type": "http", "url": "https://e.com/mcp", "command": "", "args": [], "env": {}}

    assert load_text(json.dumps({"mcpServers": {"x": entry}}), "mcp.json").servers["x"].url == entry["url"]


def test_tools_that_amp_has_turned_off_stay_off(load_text):
    servers = {"gh": {"command": "x"}, "other": {"command": "y"}}
    off = ["mcp__gh__wipe", "drop_*", "builtin:Bash"]
    config = load_text(json.dumps({"amp.mcpServers": servers, "amp.tools.disable": off}), "settings.json")

    assert config.servers["gh"].deny == ("wipe", "drop_*")
    assert config.servers["other"].deny == ("drop_*",)


@pytest.mark.parametrize("given", ['"wipe"', '["wipe", 1]', '{"wipe": true}'])
def test_tools_that_a_host_has_turned_off_in_a_list_that_cannot_be_read_are_a_mistake(problems, given):
    text = f'{{"amp.mcpServers": {{"x": {{"command": "x"}}}},\n"amp.tools.disable": {given}}}'
    assert problems(text, "settings.json") == ['2 "amp.tools.disable": must be a list of names of tools']
    text = f'{{"mcpServers": {{"x": {{"command": "x"}}}}, "permissions": {{\n"deny": {given}}}}}'
    assert problems(text, "settings.json") == ["2 permissions.deny: must be a list of names of tools"]


def test_a_list_of_all_tools_leaves_out_none_or_all(load_text):
    server = load_text('{"mcpServers": {"x": {"command": "x", "tools": ["*"]}}}', "mcp.json").servers["x"]
    assert (server.allow, server.deny, server.remarks) == (None, (), ())
    text = '{"mcpServers": {"x": {"command": "x", "disabledTools": ["*"]}}}'
    server = load_text(text, "mcp.json").servers["x"]
    assert (server.allow, server.deny) == (None, ("*",))
    assert server.remarks == ("mcpServers.x.disabledTools (mcp.json:1) is carried over as deny: *",)


def test_each_carried_over_setting_keeps_its_place_in_the_file_of_the_host(load_text):
    servers = load_text(GEMINI, "settings.json").servers

    assert servers["git"].places == {
        "allow": "mcpServers.git.includeTools (settings.json:4)",
        "deny[0]": "mcpServers.git.excludeTools[0] (settings.json:5)",
    }
    assert servers["old"].places == {"enabled": "mcp.excluded[0] (settings.json:2)"}
    assert servers["other"].places == {"enabled": "mcp.allowed (settings.json:2)"}
    assert [name for name, server in servers.items() if server.enabled] == ["git", "notes"]


@pytest.mark.parametrize("key", ["allowed", "excluded"])
@pytest.mark.parametrize("given", ['"notes"', '["notes", 1]', '{"notes": true}'])
def test_a_list_of_servers_that_cannot_be_read_is_a_mistake_and_switches_none_off(load_text, key, given):
    config = load_text(
        f'{{"mcp": {{\n"{key}": {given}}}, "mcpServers": {{"x": {{"command": "x"}}}}}}', "mcp.json"
    )

    (mistake,) = config.mistakes
    assert (mistake.line, mistake.key) == (2, f"mcp.{key}")
    assert mistake.message == "must be a list of names of servers"
    assert config.servers["x"].enabled


@pytest.mark.parametrize(
    ("key", "off"), [("disabled", True), ("enabled", False), ("active", False), ("isActive", False)]
)
def test_a_server_that_the_host_has_disabled_stays_so_with_its_place(load_text, key, off):
    one, other = (json.dumps({"command": "x", key: value}) for value in (off, not off))
    servers = load_text(f'{{"mcpServers": {{"y": {other},\n "x": {one}}}}}', "mcp.json").servers

    assert [server.enabled for server in servers.values()] == [True, False]
    assert servers["x"].places == {"enabled": f"mcpServers.x.{key} (mcp.json:2)"}


def test_several_lists_of_tools_that_are_left_out_count_together(load_text):
    text = '{"mcpServers": {"x": {"command": "x", "disabledTools": ["a"],\n "excludeTools": ["b"]}}}'
    server = load_text(text, "mcp.json").servers["x"]

    assert sorted(server.deny) == ["a", "b"]
    assert sorted(server.places.values()) == [
        "mcpServers.x.disabledTools[0] (mcp.json:1)",
        "mcpServers.x.excludeTools[0] (mcp.json:2)",
    ]


def test_decisions_beside_a_list_that_cannot_be_read_are_a_mistake(problems):
    entry = {"command": "x", "toolPermissions": {"a": "blocked"}, "excludeTools": 3}
    (found,) = problems(json.dumps({"mcpServers": {"x": entry}}), "mcp.json")

    assert found.startswith("1 mcpServers.x.excludeTools: must be a list")


@pytest.mark.parametrize(("exclude", "disable"), [('["a"]', '"b"'), ('"b"', '["a"]')])
def test_a_list_beside_one_that_cannot_be_read_does_not_hide_the_mistake(problems, exclude, disable):
    lists = f'"excludeTools": {exclude},\n"disabledTools": {disable}'
    text = f'{{"mcpServers": {{"x": {{"command": "x",\n{lists}}}}}}}'
    unreadable = "2 mcpServers.x.excludeTools" if exclude == '"b"' else "3 mcpServers.x.disabledTools"

    assert problems(text, "mcp.json") == [f"{unreadable}: must be a list, not text"]


@pytest.mark.parametrize("key", ["alwaysAllow", "autoApprove"])
def test_tools_that_a_host_calls_without_asking_are_told_and_change_nothing(load_text, key):
    text = json.dumps({"mcpServers": {"x": {"command": "x", key: [f"t{number}" for number in range(7)]}}})
    server = load_text(text, "mcp.json").servers["x"]

    assert (server.allow, server.deny) == (None, ())
    (remark,) = server.remarks
    assert remark.startswith(
        f"mcpServers.x.{key} (mcp.json:1) is not carried over, because it is the host that"
    )
    assert remark.endswith(": t0, t1, t2, t3, t4 and 2 more")


def test_a_list_of_tools_that_cannot_be_read_is_a_mistake_and_not_ignored(problems):
    text = """{"mcpServers": {
  "x": {"command": "x",
    "excludeTools": "delete_repo"},
  "y": {"command": "y", "includeTools": ["a"],
    "enabled_tools": ["b"]}
}}"""

    assert problems(text, "mcp.json") == [
        "3 mcpServers.x.excludeTools: must be a list, not text",
        "5 mcpServers.y.enabled_tools: says the same as includeTools; keep one of them",
    ]


def test_a_list_of_tools_that_cannot_be_read_switches_off_its_server_alone(load_text):
    text = """{"mcpServers": {
  "x": {"command": "x",
    "excludeTools": "delete_repo"},
  "y": {"command": "y", "includeTools": ["a"],
    "enabled_tools": ["b"]},
  "z": {"command": "z", "excludeTools": ["c"]}
}}"""
    config = load_text(text, "mcp.json")

    assert [*config.servers] == ["z"]
    assert config.servers["z"].deny == ("c",)
    assert {name: off.problems[0].line for name, off in config.off.items()} == {"x": 3, "y": 5}
    assert str(config.off["y"]).startswith("enabled_tools: says the same as includeTools; keep one of them (")
