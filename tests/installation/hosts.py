"""Settings of each host as its documents show them: with a program, with a URL, and with other entries."""

import json
from pathlib import Path
from typing import Any, Final

import yaml

PROGRAM: Final = "/opt/desk/bin/desk"
URL: Final = "https://example.com/mcp"

COMMON: Final[dict[str, Any]] = {
    "desk": {"command": PROGRAM, "args": ["--stdio"], "env": {"DESK_KEY": "k-0123456789"}},
    "remote": {"url": URL, "headers": {"Authorization": "Bearer t-0123456789"}},
}


def _json(place: tuple[str, ...], servers: Any) -> str:
    for key in reversed(place):
        servers = {key: servers}
    return json.dumps({"theme": "dark", **servers, "last": [1, {"a": None}]}, indent=2) + "\n"


CODEX: Final = f"""model = "o"
# what I work with
[mcp_servers.desk]
command = "{PROGRAM}"
args = ["--stdio"]
env = {{ DESK_KEY = "k-0123456789" }}

[mcp_servers.remote]
url = "{URL}"
http_headers = {{ Authorization = "Bearer t-0123456789" }}

[tui]
theme = "dark" # kept
"""
GOOSE: Final = yaml.safe_dump(
    {
        "GOOSE_MODEL": "x",
        "extensions": {
            "developer": {"type": "builtin", "enabled": True},
            "desk": {
                "type": "stdio",
                "cmd": PROGRAM,
                "args": ["--stdio"],
                "envs": {"DESK_KEY": "k-0123456789"},
            },
            "remote": {
                "type": "streamable_http",
                "uri": URL,
                "headers": {"Authorization": "Bearer t-0123456789"},
            },
        },
    },
    sort_keys=False,
)
CONTINUE: Final = yaml.safe_dump(
    {
        "name": "mine",
        "mcpServers": [
            {"name": "desk", "command": PROGRAM, "args": ["--stdio"], "env": {"DESK_KEY": "k-0123456789"}},
            {
                "name": "remote",
                "type": "streamable-http",
                "url": URL,
                "requestOptions": {"headers": {"Authorization": "Bearer t-0123456789"}},
            },
        ],
        "models": [],
    },
    sort_keys=False,
)

OPENCODE: Final = _json(
    ("mcp",),
    {
        "desk": {
            "type": "local",
            "command": [PROGRAM, "--stdio"],
            "environment": {"DESK_KEY": "k-0123456789"},
            "enabled": True,
        },
        "remote": {"type": "remote", **COMMON["remote"]},
    },
)
TYPED: Final = {
    name: {"type": "stdio" if "command" in one else "http", **one} for name, one in COMMON.items()
}

SETTINGS: Final[dict[str, str]] = {
    "claude-desktop": _json(("mcpServers",), COMMON),
    "claude-code": _json(("mcpServers",), TYPED),
    "cursor": _json(("mcpServers",), COMMON),
    "vscode": _json(("servers",), TYPED),
    "windsurf": _json(
        ("mcpServers",),
        {"desk": COMMON["desk"], "remote": {"serverUrl": URL, "headers": COMMON["remote"]["headers"]}},
    ),
    "codex": CODEX,
    "gemini-cli": _json(
        ("mcpServers",),
        {"desk": COMMON["desk"], "remote": {"httpUrl": URL, "headers": COMMON["remote"]["headers"]}},
    ),
    "qwen-code": _json(
        ("mcpServers",),
        {"desk": COMMON["desk"], "remote": {"httpUrl": URL, "headers": COMMON["remote"]["headers"]}},
    ),
    "zed": _json(
        ("context_servers",),
        {
            "desk": {"source": "custom", **COMMON["desk"]},
            "remote": COMMON["remote"],
            "own": {"settings": {"a": 1}},
        },
    ),
    "opencode": OPENCODE,
    "cline": _json(
        ("mcpServers",),
        {
            name: {"type": "stdio" if "command" in one else "streamableHttp", **one, "autoApprove": ["look"]}
            for name, one in COMMON.items()
        },
    ),
    "goose": GOOSE,
    "lm-studio": _json(("mcpServers",), COMMON),
    "continue": CONTINUE,
    "copilot-cli": _json(
        ("mcpServers",),
        {
            "desk": {"type": "local", **COMMON["desk"], "tools": ["*"]},
            "remote": {"type": "http", **COMMON["remote"], "tools": ["*"]},
        },
    ),
    "jetbrains": _json(("servers",), COMMON),
    "kiro": _json(("mcpServers",), COMMON),
    "antigravity": _json(
        ("mcpServers",),
        {"desk": COMMON["desk"], "remote": {"serverUrl": URL, "headers": COMMON["remote"]["headers"]}},
    ),
    "amp": _json(("amp.mcpServers",), COMMON),
    "crush": _json(("mcp",), TYPED),
    "droid": _json(("mcpServers",), {name: {**one, "disabled": False} for name, one in TYPED.items()}),
    "kilo-code": OPENCODE,
    "roo-code": _json(("mcpServers",), TYPED),
    "warp": _json(("mcpServers",), COMMON),
}
"""Settings by host; all of them have the same two servers."""

_FILES: Final[dict[str, dict[str, str]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "host_files.json").read_text("utf-8")
)
AWKWARD: Final = {(host, what): text for host, files in _FILES.items() for what, text in files.items()}
"""Settings by host and by the thing that is odd about them, after files of people and documents of hosts."""
