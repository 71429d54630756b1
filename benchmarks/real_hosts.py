"""Real hosts with a scripted model: the parts of our answers that reach the model, host by host; run by hand.

    python benchmarks/real_hosts.py FOLDER [HOST ...] [--keep]

FOLDER has the programs of the hosts:

    npm install --prefix FOLDER @anthropic-ai/claude-code @openai/codex @google/gemini-cli opencode-ai \
        @github/copilot @continuedev/cli cline @qwen-code/qwen-code

Each host gets a fresh home folder, the proxy in its own settings as `install` writes it there, and a model on
loopback that searches, reads a document and a file of a skill, calls tools, has a large result shortened, and
reads on. No real model is asked. Beside that, everything between host and proxy is recorded. The proxy is the
one that hosts share. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from scripted_model import Api, Model, Request

SECONDS = 180
"""Time for everything that a host does."""

RULE = "Dates are written as year, month, day, whoever asks."
FLIGHT = "The owl of the north wing flies at seven."
CRATES = "Crates are counted in dozens."
INTRODUCTION = "Ask the forms server before you fill in anything."
TEXT, DATA = "said as text", "said as data"
VARIABLE = "DESK_TOKEN"
"""A variable that only the shell of the user has, and one server needs."""

SERVER = """
import json, os, sys
TOOLS = [
    {"name": "two_forms", "description": "Answers in two forms. " + "It is described at length. " * 150,
     "inputSchema": {"type": "object", "properties": {}}, "annotations": {"readOnlyHint": True}},
    {"name": "many_lines", "description": "Lists ten thousand lines of the ledger of forms.",
     "inputSchema": {"type": "object", "properties": {}}, "annotations": {"readOnlyHint": True}},
]
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "forms", "version": "1"}, "instructions": "INTRODUCTION"}
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif method == "tools/call" and params["name"] == "two_forms":
        result = {"content": [{"type": "text", "text": "TEXT " + os.environ.get("DESK_TOKEN", "")}],
                  "structuredContent": {"form": "DATA"}}
    elif method == "tools/call":
        text = "\\n".join(f"line {n} of the ledger" for n in range(10_000))
        result = {"content": [{"type": "text", "text": text}]}
    else:
        result = None
    reply = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
"""

TEE = """
import json, os, subprocess, sys, threading
record = open(sys.argv[1], "ab", buffering=0)
record.write(json.dumps({"environment": sorted(os.environ), "folder": os.getcwd()}).encode() + b"\\n")
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def copy(source, target, mark):
    while data := os.read(source, 1 << 20):
        record.write(json.dumps({mark: data.decode("utf-8", "replace")}).encode() + b"\\n")
        os.write(target, data) if len(data) < 4096 else [os.write(target, data[n:n + 4096])
            for n in range(0, len(data), 4096)]
    os.close(target)
back = threading.Thread(target=copy, args=(child.stdout.fileno(), 1, "proxy"), daemon=True)
back.start()
copy(0, child.stdin.fileno(), "host")
child.wait(20)
back.join(5)
"""


@dataclass(frozen=True)
class Host:
    """How one host is set up and run."""

    name: str
    """As `install` calls it."""
    program: str
    settings: Callable[[list[str], str], dict[str, str]]
    """Files below the home folder, given the command of the server and the address of the model."""
    command: Callable[[str, str], list[str]]
    """Runs a prompt, given the program and the prompt."""
    variables: Callable[[str], dict[str, str]] = lambda _address: {}


def _claude_code(server: list[str], _address: str) -> dict[str, str]:
    entry = {"type": "stdio", "command": server[0], "args": server[1:], "env": {VARIABLE: f"${{{VARIABLE}}}"}}
    return {
        ".claude.json": json.dumps({"hasCompletedOnboarding": True, "mcpServers": {"forms": entry}}, indent=2)
    }


def _codex(server: list[str], address: str) -> dict[str, str]:
    text = f"""
model = "scripted"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{address}/v1"
wire_api = "responses"

[mcp_servers.forms]
command = {json.dumps(server[0])}
args = {json.dumps(server[1:])}
env_vars = ["{VARIABLE}"]
"""
    return {".codex/config.toml": text}


def _gemini_cli(server: list[str], _address: str) -> dict[str, str]:
    entry = {"command": server[0], "args": server[1:], "env": {VARIABLE: f"${VARIABLE}"}}
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "mcpServers": {"forms": entry}}
    return {".gemini/settings.json": json.dumps(settings, indent=2)}


def _qwen_code(server: list[str], _address: str) -> dict[str, str]:
    entry = {"command": server[0], "args": server[1:], "env": {VARIABLE: f"${VARIABLE}"}}
    return {".qwen/settings.json": json.dumps({"mcpServers": {"forms": entry}}, indent=2)}


def _opencode(server: list[str], address: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{address}/v1", "apiKey": "none"},
        "models": {"scripted": {"name": "scripted"}},
    }
    entry = {"type": "local", "command": server, "environment": {VARIABLE: f"{{env:{VARIABLE}}}"}}
    settings = {"model": "scripted/scripted", "provider": {"scripted": provider}, "mcp": {"forms": entry}}
    return {".config/opencode/opencode.json": json.dumps(settings, indent=2)}


def _copilot_cli(server: list[str], _address: str) -> dict[str, str]:
    entry = {"type": "local", "command": server[0], "args": server[1:], "tools": ["*"]}
    return {".copilot/mcp-config.json": json.dumps({"mcpServers": {"forms": entry}}, indent=2)}


def _continue(server: list[str], address: str) -> dict[str, str]:
    text = f"""name: scripted
version: 1.0.0
schema: v1
models:
  - name: scripted
    provider: openai
    model: scripted
    apiBase: {address}/v1
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
mcpServers:
  - name: forms
    command: {json.dumps(server[0])}
    args: {json.dumps(server[1:])}
    env:
      {VARIABLE}: t-4711
"""
    return {".continue/config.yaml": text}


def _cline(server: list[str], address: str) -> dict[str, str]:
    transport = {"type": "stdio", "command": server[0], "args": server[1:], "env": {VARIABLE: "t-4711"}}
    settings = {"mcpServers": {"forms": {"transport": transport}}}
    provider = {"provider": "openai-compatible", "apiKey": "none", "model": "scripted"}
    provider["baseUrl"] = f"{address}/v1"
    providers = {
        "version": 1,
        "lastUsedProvider": "openai-compatible",
        "modes": {},
        "providers": {
            "openai-compatible": {
                "settings": provider,
                "updatedAt": "2026-11-28T00:00:00.000Z",
                "tokenSource": "manual",
            }
        },
    }
    folder = ".cline/data/settings"
    return {
        f"{folder}/cline_mcp_settings.json": json.dumps(settings, indent=2),
        f"{folder}/providers.json": json.dumps(providers),
    }


HOSTS = (
    Host(
        "claude-code",
        "claude",
        _claude_code,
        lambda program, prompt: [program, "-p", prompt, "--allowedTools", "mcp__context-proxy"],
        lambda address: {
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    ),
    Host(
        "codex",
        "codex",
        _codex,
        lambda program, prompt: [
            *(program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            # Stands for the person who trusts our hook on the page /hooks.
            *("--dangerously-bypass-hook-trust", prompt),
        ],
    ),
    Host(
        "gemini-cli",
        "gemini",
        _gemini_cli,
        lambda program, prompt: [program, "-m", "gemini-2.5-flash", "--yolo", "-p", prompt],
        lambda address: {
            "GEMINI_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": address,
            # In a folder that nobody has said to trust it starts no server.
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
    ),
    Host(
        "qwen-code",
        "qwen",
        _qwen_code,
        lambda program, prompt: [program, "--auth-type", "openai", "--yolo", "-p", prompt],
        lambda address: {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "scripted",
        },
    ),
    Host(
        "copilot-cli",
        "copilot",
        _copilot_cli,
        lambda program, prompt: [
            *(program, "-p", prompt, "--allow-all-tools", "--no-auto-update"),
            # Without it, the instructions of servers are kept from the model.
            "--allow-all-mcp-server-instructions",
        ],
        lambda address: {
            "COPILOT_PROVIDER_BASE_URL": f"{address}/v1",
            "COPILOT_PROVIDER_API_KEY": "none",
            "COPILOT_MODEL": "scripted",
        },
    ),
    Host(
        "continue",
        "cn",
        _continue,
        lambda program, prompt: [program, "--auto", "-p", prompt],
        lambda _address: {"CONTINUE_TELEMETRY_ENABLED": "0"},
    ),
    Host("cline", "cline", _cline, lambda program, prompt: [program, prompt]),
    Host("opencode", "opencode", _opencode, lambda program, prompt: [program, "run", prompt]),
)


@dataclass
class Visit:
    """Everything that one host did."""

    host: Host
    version: str
    model: Model
    wire: list[dict[str, Any]]
    ended: str


def visit(host: Host, programs: Path, folder: Path) -> Visit:
    """Set a host up in a fresh home folder, install the proxy, and run it once."""
    home, work = folder / "home", folder / "work"
    for one in (home, work, folder / "run"):
        one.mkdir(parents=True, mode=0o700)
    server = folder / "forms.py"
    words = {"INTRODUCTION": INTRODUCTION, "TEXT": TEXT, "DATA": DATA}
    text = SERVER
    for mark, said in words.items():
        text = text.replace(mark, said)
    server.write_text(text, "utf-8")
    model = Model()
    handler = type("Bound", (Api,), {"model": model})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{http.server_port}"
    keep = ("PATH", "LANG", "TERM", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
    environ = {name: os.environ[name] for name in keep if name in os.environ} | {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        VARIABLE: "t-4711",
        **host.variables(address),
    }
    for path, text in host.settings([sys.executable, str(server)], address).items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text, "utf-8")
    _configure(home, folder)
    ours = shutil.which("mcp-context-proxy", path=str(Path(sys.executable).parent))
    assert ours is not None
    told = [
        _run([ours, *words], environ)
        for words in (["install", host.name, "--yes"], ["hook", "install", host.name])
    ]
    (folder / "install.txt").write_text("".join(told), "utf-8")
    record = folder / "wire.jsonl"
    tee = folder / "mcp-context-proxy"
    (folder / "tee.py").write_text(TEE, "utf-8")
    tee.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/tee.py {record} {ours} "$@"\n', "utf-8")
    tee.chmod(0o755)
    files = [home / path for path in host.settings([""], "")]
    if not any(ours in file.read_text("utf-8") for file in files):
        raise SystemExit(f"{host.name} was not connected:\n{''.join(told)}")
    for file in files:
        file.write_text(file.read_text("utf-8").replace(ours, str(tee)), "utf-8")
    program = programs / "node_modules" / ".bin" / host.program
    version = _run([str(program), "--version"], environ)
    with (folder / "host.txt").open("wb") as output:
        child = subprocess.Popen(
            host.command(str(program), "Fill in the form about the owl."),
            env=environ,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            ended = str(child.wait(SECONDS))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            ended = f"killed after {SECONDS} s"
    _run([ours, "stop"], environ)
    http.shutdown()
    wire = [json.loads(line) for line in record.read_bytes().splitlines()] if record.exists() else []
    return Visit(host, version.split("\n")[0], model, wire, ended)


def _run(words: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(words, check=False, env=environ, capture_output=True, text=True)
    return done.stdout + done.stderr


def _configure(home: Path, folder: Path) -> None:
    """Write a configuration with example servers and documents, in whose place `install` adds the server."""
    documents = folder / "documents"
    skill = documents / "skills" / "warehouse"
    skill.mkdir(parents=True)
    (documents / "rules").mkdir()
    (documents / "rules" / "dates.md").write_text(f"---\ninclude: always\n---\n# Dates\n\n{RULE}\n", "utf-8")
    sections = "".join(f"\n## Wing {n}\n\n{'Feathers are counted and noted. ' * 40}\n" for n in range(20))
    (documents / "aviary.md").write_text(f"# Aviary\n{sections}\n## Flight times\n\n{FLIGHT}\n", "utf-8")
    (skill / "SKILL.md").write_text(
        "---\nname: warehouse\ndescription: How to count crates\n---\n# Count\n\nSee crates.md.\n",
        "utf-8",
    )
    (skill / "crates.md").write_text(f"# Crates\n\n{CRATES}\n", "utf-8")
    lines = [
        f'[[documents]]\npath = "{documents}/rules"\nkind = "rule"',
        f'[[documents]]\npath = "{documents}/aviary.md"\nkind = "reference"',
        f'[[documents]]\npath = "{documents}/skills"',
        '[expose]\nmode = "search"',
    ]
    lines += [
        f"[servers.{name}]\ncommand = {json.dumps(sys.executable)}\n"
        f'args = ["-m", "mcp_context_proxy.examples", "{name}"]\n'
        f'env = {{ MCP_EXAMPLE_DATA = "{folder}/data" }}'
        for name in ("calculator", "calendar", "clock", "issues", "notes", "text")
    ]
    file = home / ".config" / "mcp-context-proxy" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("\n\n".join(lines) + "\n", "utf-8")


def facts(done: Visit) -> dict[str, str]:
    """Row of the table for one host."""
    sent = "".join(part["host"] for part in done.wire if "host" in part)
    began = ('"initialize"', '"server/discover"')
    opening: dict[str, Any] = next(
        (json.loads(line) for line in sent.splitlines() if any(one in line for one in began)), {}
    )
    params = opening.get("params", {})
    params |= {key.rpartition("/")[2]: value for key, value in params.get("_meta", {}).items()}
    requests = done.model.requests
    last = requests[-1] if requests else Request({}, "", [])
    first = requests[0] if requests else last
    search = next((name for name in first.tools if name.endswith("search_available_tools")), "-")
    got = [*last.results, *[""] * 6]
    environment: list[str] = next((part["environment"] for part in done.wire if "environment" in part), [])
    form = {
        (True, False): "the text",
        (False, True): "the data",
        (True, True): "both",
        (False, False): "nothing",
    }
    told = {
        "our instructions, with a line of a server": "Not all tools are listed" in first.said
        and INTRODUCTION in first.said,
        "an `always` rule": RULE in first.said or RULE in got[0],
        "the text of the prompt hook": "forms__" in first.said,
        "a search answer": "forms__" in got[0],
        "a section of a long document": FLIGHT in got[2],
        "a file of a skill": CRATES in got[3],
        "a shortened result with its note": "Shortened by the proxy" in got[4],
        "a line of the rest of it, by `read_result`": "line 4999 of the ledger" in got[5],
    }
    return {
        "version": done.version,
        "client": f"{params.get('clientInfo', {}).get('name', '-')}, {params.get('protocolVersion', '-')}",
        "name of the search": f"`{search}`",
        "hands over the variable that a server needs": "yes" if VARIABLE in environment else "no",
        **{f"its model reads {what}": "yes" if is_there else "no" for what, is_there in told.items()},
        "of a result in two forms it reads": form[TEXT in got[1], DATA in got[1]],
        "ended": done.ended,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", type=Path)
    parser.add_argument("hosts", nargs="*")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep all that was said")
    given = parser.parse_args()
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="hosts-", ignore_cleanup_errors=True) as temporary:
        for host in HOSTS:
            if given.hosts and host.name not in given.hosts:
                continue
            folder = (given.keep or Path(temporary)).resolve() / host.name
            done = visit(host, given.programs.resolve(), folder)
            found[host.name] = facts(done)
            if given.keep:
                told = [vars(one) for one in done.model.requests]
                (folder / "model.json").write_text(json.dumps([told, done.model.others], indent=1), "utf-8")
    print("| | " + " | ".join(found) + " |\n|---|" + "---|" * len(found))
    for fact in next(iter(found.values())):
        print(f"| {fact} | " + " | ".join(one[fact] for one in found.values()) + " |")


if __name__ == "__main__":
    main()
