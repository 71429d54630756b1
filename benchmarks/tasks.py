"""The same tasks through this proxy and through others, in front of the same ten servers; run by hand.

    python benchmarks/tasks.py FOLDER [PEER ...]

FOLDER has the servers and the other proxies:

    npm install --prefix FOLDER @modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory \
        @modelcontextprotocol/server-everything @modelcontextprotocol/server-sequential-thinking \
        @antv/mcp-server-chart @playwright/mcp
    python -m venv FOLDER/servers
    FOLDER/servers/bin/pip install 'mcp<2' mcp-server-git mcp-server-time mcp-server-fetch mcp-server-sqlite
    for peer in mcp-compressor fastmcp pmcp lazy-mcp; do
        python -m venv FOLDER/$peer && FOLDER/$peer/bin/pip install $peer
    done
    npm install --prefix FOLDER/slop-mcp @standardbeagle/slop-mcp

The host is raw JSON-RPC over stdio, and can be asked by servers. Tokens are characters divided by four.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

SEARCHES = {
    "write a note down in a file": "write_file",
    "what time is it in Tokyo": "get_current_time",
    "who changed the readme last": "git_log",
    "open a web page and take a picture of it": "browser_take_screenshot",
    "remember that Ann works at Acme": "create_relations",
    "run a query against the database": "read_query",
    "draw a pie chart of these numbers": "generate_pie_chart",
    "which folders are there": "list_directory",
}
ANSWERS: dict[str, dict[str, Any]] = {
    "roots/list": {"roots": [{"uri": "file:///srv/project", "name": "project"}]},
    "sampling/createMessage": {
        "role": "assistant", "content": {"type": "text", "text": "sampled"}, "model": "m",
    },
    "elicitation/create": {"action": "accept", "content": {"name": "Ann", "check": True}},
    "ping": {},
}  # fmt: skip
FASTMCP = """
import json, sys
from fastmcp.server import create_proxy
from fastmcp.server.transforms.search import BM25SearchTransform
proxy = create_proxy(json.load(open(sys.argv[1])))
proxy.add_transform(BM25SearchTransform())
proxy.run(show_banner=False)
"""
PAGES = """
from mcp_context_proxy.examples import Core, Pipe, serve_stdio
PAGE = "ui://dice/page"
class Dice(Core):
    def tools(self):
        return [{"name": "roll_dice", "description": "Roll dice and show them.",
                 "inputSchema": {"type": "object"}, "_meta": {"ui": {"resourceUri": PAGE}}}]
    def call(self, request):
        return {"content": [{"type": "text", "text": "4"}]}
    def capabilities(self):
        return {"tools": {}, "resources": {}}
server = Dice({"name": "dice", "version": "1"})
page = {"uri": PAGE, "name": "dice", "mimeType": "text/html;profile=mcp-app"}
server.handlers["resources/list"] = lambda request: {"resources": [page]}
server.handlers["resources/read"] = lambda request: {"contents": [page | {"text": "<p>dice</p>"}]}
serve_stdio(server, Pipe())
"""
"""A server with a page for hosts that show MCP Apps."""
REASON = "no database at /srv/none"
BROKEN = f"import sys; sys.exit({REASON!r})"
CALLS: dict[str, Callable[[str, str, Any], tuple[str, Any]]] = {
    "this proxy": lambda server, tool, given: _call("call_tool", name=f"{server}__{tool}", arguments=given),
    "mcp-compressor": lambda server, tool, given: _call(
        f"{server}_invoke_tool", tool_name=tool, tool_input=given
    ),
    "fastmcp": lambda server, tool, given: _call("call_tool", name=f"{server}_{tool}", arguments=given),
    "pmcp": lambda server, tool, given: _call("gateway.invoke", tool_id=f"{server}::{tool}", arguments=given),
    "lazy-mcp": lambda server, tool, given: _call(
        "invoke_command", server=server, command_name=tool, parameters=given
    ),
    "slop-mcp": lambda server, tool, given: _call(
        "execute_tool", mcp_name=server, tool_name=tool, parameters=given
    ),
}
SEARCH = {
    "this proxy": "search_available_tools", "fastmcp": "search_tools", "pmcp": "gateway.catalog_search",
    "slop-mcp": "search_tools",
}  # fmt: skip
DESCRIBE: dict[str, tuple[str, dict[str, Any]]] = {
    "this proxy": (
        "search_available_tools",
        {"query": "git__git_log", "include_schema": True, "top_n": 1},
    ),
    "mcp-compressor": ("git_get_tool_schema", {"tool_name": "git_log"}),
    "fastmcp": ("search_tools", {"query": "git_log"}),
    "pmcp": ("gateway.describe", {"tool_id": "git::git_log"}),
    "lazy-mcp": ("describe_commands", {"server": "git", "command_names": ["git_log"]}),
    "slop-mcp": ("get_metadata", {"mcp_name": "git", "tool_name": "git_log"}),
}
PATIENCE = 90.0
"""Seconds for an answer."""


def _call(meta_tool: str, **arguments: Any) -> tuple[str, Any]:
    return meta_tool, arguments


class Host:
    """A host with roots, a model and a person."""

    def __init__(self, command: list[str], home: Path) -> None:
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment, cwd=home,
        )  # fmt: skip
        self.told: list[str] = []
        """Methods of what came unasked."""
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = threading.Condition()
        self._number, self._ended = 0, False
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "method" in message:
                self.told.append(message["method"])
                if "id" in message:
                    self.send(id=message["id"], result=ANSWERS.get(message["method"], {}))
                continue
            with self._arrived:
                self._answers[message["id"]] = message
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def begin(self, method: str, **params: Any) -> int:
        self._number += 1
        self.send(id=self._number, method=method, params=params)
        return self._number

    def end(self, number: int, patience: float = PATIENCE) -> dict[str, Any]:
        with self._arrived:
            self._arrived.wait_for(lambda: number in self._answers or self._ended, patience)
            return self._answers.pop(number, {"error": {"message": "no answer"}})

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.end(self.begin(method, **params))

    def call(self, name: str, arguments: Any, **params: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=name, arguments=arguments, **params)

    def open(self) -> None:
        page = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
        capabilities: dict[str, Any] = {
            "roots": {}, "sampling": {}, "elicitation": {"form": {}}, "extensions": page,
        }  # fmt: skip
        self.ask("initialize", protocolVersion="2025-11-25", capabilities=capabilities,
                 clientInfo={"name": "tasks", "version": "1"})  # fmt: skip
        self.send(method="notifications/initialized")

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()


def text(answer: dict[str, Any]) -> str:
    """What a model reads of an answer."""
    if "error" in answer:
        return json.dumps(answer["error"])
    content = answer["result"].get("content", [])
    return "\n".join(each.get("text") or f"<{each['type']}>" for each in content)


def tokens(value: Any) -> int:
    return len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) // 4


def failed(answer: dict[str, Any]) -> bool:
    """Return whether a call failed, whichever way a peer says so."""
    said = text(answer)
    return (
        "error" in answer
        or bool(answer["result"].get("isError"))
        or '"ok": false' in said
        or ('"isError": true' in said)
    )


def processes(program: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and program in (entry / "cmdline").read_text(errors="replace"):
                yield int(entry.name)
        except OSError:
            continue


def memory(process: int, programs: Iterable[str]) -> float:
    """Return the MiB (PSS) of a process and its children, without the servers and theirs."""
    entry = Path("/proc") / str(process)
    started = (entry / "cmdline").read_text(errors="replace")
    if any(program in started for program in programs):
        return 0
    kib = re.search(r"^Pss: +(\d+)", (entry / "smaps_rollup").read_text(), re.MULTILINE)
    children = [child for task in entry.glob("task/*/children") for child in task.read_text().split()]
    return int(kib[1] if kib else 0) / 1024 + sum(memory(int(child), programs) for child in children)


def servers(folder: Path, home: Path) -> dict[str, dict[str, Any]]:
    npm, pip = folder / "node_modules" / ".bin", folder / "servers" / "bin"
    return {
        "filesystem": {"command": f"{npm}/mcp-server-filesystem", "args": [str(home)]},
        "memory": {"command": f"{npm}/mcp-server-memory", "args": []},
        "everything": {"command": f"{npm}/mcp-server-everything", "args": []},
        "thinking": {"command": f"{npm}/mcp-server-sequential-thinking", "args": []},
        "chart": {"command": f"{npm}/mcp-server-chart", "args": []},
        "playwright": {"command": f"{npm}/playwright-mcp", "args": ["--headless"]},
        "git": {"command": f"{pip}/mcp-server-git", "args": ["--repository", str(home / "repo")]},
        "time": {"command": f"{pip}/mcp-server-time", "args": []},
        "fetch": {"command": f"{pip}/mcp-server-fetch", "args": []},
        "sqlite": {"command": f"{pip}/mcp-server-sqlite", "args": ["--db-path", str(home / "db.sqlite")]},
    }


def command(peer: str, folder: Path, home: Path, config: Path) -> list[str]:
    if peer == "this proxy":
        return [sys.executable, "-m", "mcp_context_proxy", "--config", str(config), "serve", "--own"]
    if peer == "fastmcp":
        return [str(folder / "fastmcp" / "bin" / "python"), "-c", FASTMCP, str(config)]
    if peer == "slop-mcp":
        return [str(folder / peer / "node_modules" / ".bin" / peer), "serve"]
    program = str(folder / peer / "bin" / peer)
    return [program, "-c" if peer == "pmcp" else "--config", str(config)] + (
        ["--lock-dir", str(home)] if peer == "pmcp" else []
    )


def write(peer: str, config: Path, entries: dict[str, dict[str, Any]]) -> None:
    written: dict[str, Any] = {"mcpServers": entries}
    if peer == "slop-mcp":
        kdl = (
            f"mcp {json.dumps(name)} {{\n"
            f"    command {json.dumps(entry['command'])}\n"
            + (f"    args {' '.join(map(json.dumps, entry['args']))}\n" if entry["args"] else "")
            + "}\n"
            for name, entry in entries.items()
        )
        (config.parent / ".slop-mcp.kdl").write_text("".join(kdl), encoding="utf-8")
        return
    if peer == "lazy-mcp":
        listed = [
            {"name": name, "description": name, "command": [entry["command"], *entry["args"]]}
            for name, entry in entries.items()
        ]
        written = {"servers": listed}
    config.write_text(json.dumps(written), encoding="utf-8")


def tried(peer: str, folder: Path, home: Path) -> dict[str, str]:
    """Return what came of each task."""
    repo, config, entries = home / "repo", home / "servers.json", servers(folder, home)
    author = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    subprocess.run(
        ["git", "-C", str(repo), *author, "commit", "-q", "--allow-empty", "-m", "first"], check=True
    )
    (home / "large.txt").write_text("".join(f"line {number} of a long file\n" for number in range(20_000)))
    later = {"clock": entries["time"]}
    write(peer, config, entries)
    host, found = Host(command(peer, folder, home, config), home), {}

    def call(server: str, tool: str, given: Any, **params: Any) -> dict[str, Any]:
        return host.call(*CALLS[peer](server, tool, given), **params)

    def yes(is_so: bool) -> str:
        return "yes" if is_so else "**no**"

    host.open()
    listed = host.ask("tools/list")["result"]["tools"]
    found["first list, s"] = f"{time.monotonic() - host.started:.1f}"
    found["standing list, tokens"] = f"{tokens(listed):,}"
    query, right_tool = next(iter(SEARCHES.items()))
    found["first search, s after the start"] = "no search"
    if peer in SEARCH:
        answer = text(host.call(SEARCH[peer], {"query": query}))
        miss = "" if right_tool in answer else ", not the right tool"
        found["first search, s after the start"] = f"{time.monotonic() - host.started:.1f}{miss}"
    time.sleep(5)
    for server in entries:
        connect(peer, host, server)
    if peer in SEARCH:
        answers = {tool: text(host.call(SEARCH[peer], {"query": query})) for query, tool in SEARCHES.items()}
        right = sum(tool in answer for tool, answer in answers.items())
        found["search: right tool in the answer"] = f"{right} of {len(SEARCHES)}"
        found["search: tokens"] = f"{sum(map(tokens, answers.values())) // len(answers):,}"
    else:
        found["search: right tool in the answer"] = found["search: tokens"] = "no search"
    found["memory without the servers, MiB"] = (
        f"{memory(host.process.pid, {entry['command'] for entry in entries.values()}):,.0f}"
    )
    name, given = DESCRIBE[peer]
    found["one definition, tokens"] = f"{tokens(text(host.call(name, given))):,}"
    log = call("git", "git_log", {"repo_path": str(repo)})
    found["a call"] = yes("first" in text(log))
    wrong = text(call("git", "git_log", {"path": str(repo)}))
    found["a wrong argument: the right ones are named"] = yes("max_count" in wrong)
    misspelled = text(call("git", "git_logs", {}))
    found["a misspelled tool: the right one is named"] = yes(re.search(r"git_log\b", misspelled) is not None)
    large = call("filesystem", "read_text_file", {"path": str(home / "large.txt")})
    found["a result of 130,000 tokens, tokens"] = f"{tokens(text(large)):,}"
    found["an image is one"] = yes("<image>" in text(call("everything", "get-tiny-image", {})))
    missing = call("filesystem", "read_text_file", {"path": str(home / "none.txt")})
    found["an error is one"] = yes("error" in missing or bool(missing["result"].get("isError")))
    call(
        "everything",
        "trigger-long-running-operation",
        {"duration": 1, "steps": 2},
        _meta={"progressToken": 1},
    )
    found["progress"] = yes("notifications/progress" in host.told)
    uri = "demo://resource/static/document/features.md"
    uris = [each["uri"] for each in host.ask("resources/list").get("result", {}).get("resources", [])]
    read = next((each for each in uris if each.endswith("features.md")), uri)
    found["a resource"] = yes("result" in host.ask("resources/read", uri=read))
    prompts = host.ask("prompts/list").get("result", {}).get("prompts", [])
    simple = next((each["name"] for each in prompts if "simple" in each["name"]), "simple-prompt")
    found["a prompt"] = yes("result" in host.ask("prompts/get", name=simple))
    call("everything", "trigger-elicitation-request", {})
    call("everything", "trigger-sampling-request", {"prompt": "hello", "maxTokens": 20})
    found["questions to the person and to the model"] = yes(
        {"elicitation/create", "sampling/createMessage"} <= {*host.told}
    )
    task = text(call("everything", "simulate-research-query", {"topic": "tea"}))
    found["a tool that runs as a task only"] = yes("Research Report" in task)
    found["roots"] = yes("/srv/project" in text(call("everything", "get-roots-list", {})))
    found["logging level"] = yes("result" in host.ask("logging/setLevel", level="debug"))
    for process in processes(entries["time"]["command"]):
        os.kill(process, signal.SIGKILL)
    call("time", "get_current_time", {"timezone": "Asia/Tokyo"})
    time.sleep(3)
    again = call("time", "get_current_time", {"timezone": "Asia/Tokyo"})
    found["a killed server comes back"] = yes(not failed(again))
    write(peer, config, entries | later)
    time.sleep(10)
    found["a server added while it runs"] = yes(
        not failed(call("clock", "get_current_time", {"timezone": "UTC"}))
    )
    host.close()
    ended = tried_beside(peer, folder, home, {"command": sys.executable, "args": ["-c", BROKEN]})
    absent = tried_beside(peer, folder, home, {"command": "/srv/no-such-program", "args": []})
    healthy = tried_beside(peer, folder, home, entries["thinking"])
    found["a server ends at its start: others work"] = ended["others work"]
    found["its error is said"] = ended["said"]
    found["the program of a server is missing: others work"] = absent["others work"]
    found["a page of a server (MCP Apps)"] = healthy["a page"]
    return found


def connect(peer: str, host: Host, server: str) -> str:
    """Have a proxy look at a server that it would otherwise know nothing of; return what it says."""
    if peer == "pmcp":
        return text(host.call("gateway.connect_server", {"server_name": server}))
    if peer == "lazy-mcp":
        return text(host.call("list_commands", {"server": server}))
    if peer == "slop-mcp":
        return text(host.call("manage_mcps", {"action": "status"}))
    return ""


def tried_beside(peer: str, folder: Path, home: Path, broken: dict[str, Any]) -> dict[str, str]:
    """Return what came of a server that does not start, and of a page, beside a server that works."""
    config, entries = home / "three.json", {
        "time": servers(folder, home)["time"],
        "dice": {"command": sys.executable, "args": ["-c", PAGES]},
        "broken": broken,
    }  # fmt: skip
    write(peer, config, entries)
    host = Host(command(peer, folder, home, config), home)
    host.open()
    listed = host.ask("tools/list").get("result", {}).get("tools", [])
    said = "".join(connect(peer, host, server) for server in entries)
    listed += host.ask("tools/list").get("result", {}).get("tools", [])
    call = CALLS[peer]
    said += text(host.call(*call("broken", "read_rows", {})))
    works = not failed(host.call(*call("time", "get_current_time", {"timezone": "UTC"})))
    pages = {each.get("_meta", {}).get("ui", {}).get("resourceUri") for each in listed} - {None}
    read = [host.ask("resources/read", uri=page).get("result", {}).get("contents", []) for page in pages]
    host.close()
    tried = {"others work": works, "said": REASON in said, "a page": "<p>dice</p>" in json.dumps(read)}
    return {name: "yes" if is_so else "**no**" for name, is_so in tried.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(CALLS))
    given = parser.parse_args()
    peers, rows = given.peers or list(CALLS), []
    for peer in peers:
        with tempfile.TemporaryDirectory() as home:
            rows.append(tried(peer, given.folder.resolve(), Path(home)))
    print("| |", " | ".join(peers), "|")
    print("|---|" + "---|" * len(peers))
    for task in rows[0]:
        print(f"| {task} |", " | ".join(row[task] for row in rows), "|")


if __name__ == "__main__":
    main()
