"""A shared proxy answers commands and prompt hooks over its socket."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import PATIENCE, forked_command, real_command
from support.servers import Server, Workshop, tool

from mcp_context_proxy.bridge import AskError, ask, configuration_part, running

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")

OPENING = (
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "claude-code", "version": "2.1"},
        },
    },
    {"method": "notifications/initialized"},
)
TOOLS = [
    tool("create_note", "Write down a new note"),
    tool("delete_note", "Delete a note for good"),
    *(tool(f"measure_{n}", f"Measure the temperature of furnace number {n}") for n in range(12)),
]


class Desk:
    """A machine with one host, connected to a shared proxy with one server."""

    def __init__(self, config: Path, folder: Path, server: Server) -> None:
        self.config, self.server = config, server
        own = {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder / "home"), "COLUMNS": "200"}
        self.environment = {**os.environ, **own, "XDG_DATA_HOME": str(folder / "home")}
        self.host = self.opened("session-1")
        (self.socket,) = running(config, self.environment)

    def opened(self, session: str) -> subprocess.Popen[bytes]:
        """A host that has begun a session of its own."""
        host = subprocess.Popen(
            real_command("--config", self.config, "serve", shared=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**self.environment, "CLAUDE_CODE_SESSION_ID": session},
        )
        for message in OPENING:
            self.send(host, message)
        self.receive(host, 1)
        return host

    @contextmanager
    def another(self, session: str) -> Iterator[subprocess.Popen[bytes]]:
        """A second host, which leaves at the end."""
        with self.opened(session) as host:
            yield host
            assert host.stdin is not None
            host.stdin.close()

    def call(self, host: subprocess.Popen[bytes], request: int, name: str) -> None:
        """Call a tool that the list does not have, as a model does."""
        arguments = {"name": name, "arguments": {"text": "x"}}
        params = {"name": "call_tool", "arguments": arguments}
        self.send(host, {"id": request, "method": "tools/call", "params": params})
        assert "isError" not in self.receive(host, request)["result"]

    def send(self, host: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        assert host.stdin is not None
        host.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        host.stdin.flush()

    def receive(self, host: subprocess.Popen[bytes], request: int) -> dict[str, Any]:
        assert host.stdout is not None
        for line in host.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == request:
                return message
        raise AssertionError("the proxy has ended")

    def get(self, path: str) -> Any:
        return ask(self.socket, "GET", path, seconds=PATIENCE)

    def post(self, path: str, body: Any = None) -> Any:
        return ask(self.socket, "POST", path, body, seconds=PATIENCE)

    def run(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, "MCP_CONTEXT_PROXY_CONFIG": str(self.config), **env}
        # A hook is answered by a program of its own, which imports little.
        command = real_command(*words) if words[0] == "hook" else forked_command(*words)
        return subprocess.run(
            command,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="mcp-"))
    workshop = Workshop(tmp_path_factory.mktemp("desk"))
    server = workshop.server("desk", tools=TOOLS, settings={"env": {"DESK_KEY": "a-secret-of-many-letters"}})
    made = Desk(
        workshop.config(store={"path": str(folder / "store.db")}, expose={"mode": "search"}), folder, server
    )
    try:
        yield made
    finally:
        pid = made.get("/status")["pid"]
        with made.host:
            made.host.kill()
        os.kill(pid, signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


def test_status_shows_process_hosts_and_servers(desk: Desk) -> None:
    status = desk.get("/status")
    assert status["shared"] is True
    (host,) = status["hosts"]
    assert (host["name"], host["pid"]) == ("claude-code", desk.host.pid)
    (server,) = status["servers"]
    assert server["name"] == "desk"
    assert f"Process {status['pid']}" in desk.run("status").stdout


def test_a_server_in_the_status_fits_on_a_line_of_80_characters(desk: Desk) -> None:
    lines = desk.run("status", COLUMNS="80").stdout.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.split()[:1] == ["Server"])

    assert lines[head].split() == ["Server", "State", "Tools", "Calls", "Failed", "Memory", "Process"]
    assert lines[head + 1].split()[:2] == ["desk", "ready"]
    assert len(lines[head + 1]) <= 80
    assert lines[head + 2 :] == [] or "desk" not in lines[head + 2]


def test_commands_ask_the_proxy_that_runs_and_start_no_server(desk: Desk) -> None:
    before = len(desk.server.ledger.entries("started"))
    found = desk.run("search", "write a new note")
    assert "desk__create_note" in found.stdout
    assert "desk__create_note" in desk.run("tools", "--json").stdout
    assert json.loads(desk.run("servers", "--json").stdout)["servers"][0]["state"] == "ready"
    assert "is chosen" in desk.run("explain", "write a new note", "create_note").stdout
    assert len(desk.server.ledger.entries("started")) == before


def test_call_prints_the_result_and_is_in_the_status(desk: Desk) -> None:
    done = desk.run("call", "create_note", '{"text": "x"}')
    assert done.returncode == 0, done.stderr
    assert desk.server.ledger.calls("create_note")
    assert desk.get("/status")["servers"][0]["calls"] >= 1
    assert desk.run("call", "no_such_tool").returncode == 2


def test_restart_starts_the_server_again(desk: Desk) -> None:
    before = desk.get("/status")["servers"][0]["pid"]
    assert desk.run("restart", "desk").returncode == 0
    desk.post("/call", {"tool": "create_note"})
    assert desk.get("/status")["servers"][0]["pid"] != before


def test_switches_are_written_into_the_file_and_followed_at_once(desk: Desk) -> None:
    before = desk.config.read_bytes()
    assert "is turned off" in desk.run("disable", "delete_note").stdout
    assert b"delete_note" in desk.config.read_bytes()
    with pytest.raises(AskError, match="turned off"):
        desk.post("/call", {"tool": "delete_note"})
    assert "is turned on" in desk.run("enable", "delete_note").stdout
    assert "'nope' is no server and no tool. Servers: " in desk.run("enable", "nope").stderr
    assert desk.post("/call", {"tool": "delete_note"})["is_error"] is False
    desk.config.write_bytes(before)


def test_logs_are_kept_without_secrets(desk: Desk) -> None:
    assert "server desk ready" in desk.run("logs").stdout
    logs = [path.read_text(encoding="utf-8") for path in Path(desk.socket).parents[1].rglob("*.jsonl")]
    assert logs
    assert "a-secret-of-many-letters" not in "".join(logs)


def hooked(desk: Desk, host: str, **given: Any) -> subprocess.CompletedProcess[str]:
    return desk.run("hook", "run", host, stdin=json.dumps(given))


def test_a_prompt_hook_gives_the_tools_that_fit_in_the_form_of_its_host(desk: Desk) -> None:
    prompt = {"prompt": "please write down a new note", "session_id": "session-1"}
    for host, event in (("claude-code", "UserPromptSubmit"), ("gemini-cli", "BeforeAgent")):
        said = json.loads(hooked(desk, host, **prompt).stdout)["hookSpecificOutput"]
        assert said["hookEventName"] == event
        assert "desk__create_note(" in said["additionalContext"]
    cursor = json.loads(hooked(desk, "cursor", **prompt).stdout)
    assert cursor["continue"] is True
    assert "desk__create_note(" in cursor["additional_context"]
    assert "measure_" not in cursor["additional_context"], "tools that are far from the best are not named"


def test_a_session_that_its_host_tells_with_each_call_gets_its_own_prompts(desk: Desk) -> None:
    """As Codex does, of which two windows may be open in one folder."""
    with desk.another("") as one, desk.another("") as other:
        for host, session in ((one, "turn-1"), (other, "turn-2")):
            meta = {"x-codex-turn-metadata": {"session_id": session, "model": "x"}}
            params = {"name": "search_available_tools", "arguments": {"query": "a note"}, "_meta": meta}
            desk.send(host, {"id": 5, "method": "tools/call", "params": params})
            desk.receive(host, 5)
        sessions = {host["pid"]: host["session"] for host in desk.get("/status")["hosts"]}
        hooked(desk, "codex", prompt="jot a thought down in a note", session_id="turn-2")
        latest = desk.get(f"/requests?session={sessions[other.pid]}&limit=1")["requests"][0]
        assert latest["query"] == "jot a thought down in a note"


def test_a_call_after_a_prompt_is_attributed_to_it_and_teaches_the_words_of_the_user(
    desk: Desk, tmp_path: Path
) -> None:
    """From the hook's command over the host's own session to the learned pair and the statistics."""
    words = "put my shopping list on paper as a note"
    hooked(desk, "claude-code", prompt=words, session_id="session-1")
    with desk.another("session-2") as other:
        # A call of another session says nothing about this prompt.
        desk.call(other, 2, "desk__delete_note")
    desk.call(desk.host, 77, "desk__create_note")
    searches = desk.get("/statistics/searches?limit=50")["searches"]
    (prompt,) = [one for one in searches if one["query"] == words]
    (host,) = [one for one in desk.get("/status")["hosts"] if one["name"] == "claude-code"]

    assert (prompt["chosen"], prompt["origin"]) == ("desk__create_note", "context")
    assert prompt["rank"] is not None
    record = desk.get(f"/requests/{prompt['id']}")
    assert record["session"] == host["session"]
    pairs = tmp_path / "pairs.jsonl"
    until = time.monotonic() + PATIENCE
    learned: list[str] = []
    while not learned and time.monotonic() < until:
        desk.run("learning", "export", str(pairs))
        lines = [json.loads(line) for line in pairs.read_text(encoding="utf-8").splitlines()]
        learned = [one["tool"] for one in lines if one["query"] == words]
    assert learned == ["create_note"]


@pytest.mark.parametrize(
    "given", ["", "no JSON", "[]", '{"prompt": ""}', '{"prompt": "/clear"}', '{"prompt": "thanks"}']
)
def test_a_prompt_hook_says_nothing_where_nothing_fits_and_never_fails(desk: Desk, given: str) -> None:
    done = desk.run("hook", "run", "claude-code", stdin=given)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_prompt_hook_without_a_proxy_says_nothing_and_starts_none(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("", encoding="utf-8")
    config = ("--config", str(tmp_path / "config.toml"))
    done = desk.run("hook", "run", "codex", *config, stdin='{"prompt": "write down a note"}')
    assert (done.returncode, done.stdout) == (0, "")
    assert running(tmp_path / "config.toml", desk.environment) == []


def test_a_session_that_is_not_connected_here_is_asked_for_elsewhere(desk: Desk) -> None:
    wanted = {"prompt": "write down a new note", "session": "another", "connected": True}
    assert desk.post("/prompt", wanted)["request"] is None


def test_a_prompt_hook_finds_the_proxy_beside_the_socket_of_one_that_was_killed(desk: Desk) -> None:
    left = Path(desk.socket).with_name(f"{configuration_part(desk.config)}-0123456789ab.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(left))
    try:
        # Without a session that is known: with several proxies, that would belong to none.
        done = hooked(desk, "zed", prompt="please write down a new note", cwd="/")
        assert "desk__create_note(" in done.stdout
    finally:
        left.unlink()


def test_a_prompt_hook_imports_nothing_that_takes_long(desk: Desk) -> None:
    """A host waits for it at each prompt. Names are looked at, not times."""
    given = json.dumps({"prompt": "please write down a new note"})
    done = desk.run("hook", "run", "claude-code", stdin=given, PYTHONPROFILEIMPORTTIME="1")
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    # What Python imports at its start is not ours to choose.
    ours = names[names.index("mcp_context_proxy") :]
    assert "desk__create_note(" in done.stdout
    assert "mcp_context_proxy.bridge" in ours
    slow = {"pathlib", "typing", "hashlib", "socket", "subprocess", "threading", "urllib.parse", "logging"}
    assert slow.intersection(ours) == set()
    assert [one for one in ours if one.startswith("mcp_context_proxy")] == [
        "mcp_context_proxy",
        "mcp_context_proxy.bridge",
    ]
