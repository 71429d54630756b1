"""Hosts of different profile beside each other over one shared proxy, and a person's choices by commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import PATIENCE, forked_command, real_command
from support.ledger import LOOK_SECONDS
from support.servers import Workshop, tool

from mcp_context_proxy.bridge import ask, running
from mcp_context_proxy.bridge.meeting import meeting

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


class Bridge:
    """A host that has started ``serve`` with some options."""

    def __init__(self, config: Path, environment: dict[str, str], name: str, *options: str) -> None:
        self._number = 0
        self.process = subprocess.Popen(
            real_command("--config", config, "serve", *options, shared=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        info = {"name": name, "version": "1"}
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        self.instructions = self.request("initialize", **about)["instructions"]
        self.write({"method": "notifications/initialized"})

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.process.stdout is not None
        self._number += 1
        self.write({"id": self._number, "method": method, "params": params})
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == self._number:
                return message
        raise AssertionError("the proxy has ended")

    def request(self, method: str, **params: Any) -> Any:
        return self.answer(method, **params)["result"]

    def call(self, name: str, arguments: Any = None) -> str:
        return json.dumps(self.request("tools/call", name=name, arguments=arguments or {}))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


class Desk:
    """A machine with a coding host, a chat host and a person at the command line."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.config = config
        own = {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder / "home"), "COLUMNS": "200"}
        self.environment = {**os.environ, **own, "XDG_DATA_HOME": str(folder / "home")}
        self.hosts: list[Bridge] = []
        self.coding = self.host("Claude-Code")
        self.chat = self.host("any", "--profile", "chat")

    def host(self, name: str, *options: str) -> Bridge:
        self.hosts.append(Bridge(self.config, self.environment, name, *options))
        return self.hosts[-1]

    def run(self, *words: str) -> str:
        """What a command of the person prints, on either stream."""
        done = subprocess.run(
            forked_command("--config", self.config, *words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.stdout + done.stderr

    def session_of(self, host: str) -> str:
        return next(
            str(one["id"])
            for one in json.loads(self.run("session", "list", "--json"))["sessions"]
            if one["host"] == host
        )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    workshop = Workshop(tmp_path_factory.mktemp("desk"))
    workshop.server("code", instructions="About commits.", tools=[tool("commit"), tool("revert")])
    hidden = {"tools": {"burn": {"include": "manual"}}}
    workshop.server("notes", settings=hidden, tools=[tool("jot"), tool("burn")])
    config = workshop.config(
        expose={"list_all_below": 0},
        store={"path": str(workshop.folder / "store.db")},
        context={"manage_tool": True},
        clients={"coding": {"client": ["claude-*"], "servers": ["code"]}, "chat": {"servers": ["notes"]}},
    )
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="mcp-"))
    made = Desk(config, folder)
    try:
        yield made
    finally:
        (socket,) = running(config, made.environment)
        process = ask(socket, "GET", "/status", seconds=PATIENCE)["pid"]
        for host in made.hosts:
            host.close()
        os.kill(process, signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)
        workshop.close()


def test_two_hosts_share_one_proxy_and_see_different_servers(desk: Desk) -> None:
    (socket,) = running(desk.config, desk.environment)
    assert len(ask(socket, "GET", "/status", seconds=PATIENCE)["hosts"]) == len(desk.hosts)
    query: Any = {"query": "commit or jot something", "top_n": 50}
    to_code, to_chat = (host.call("search_available_tools", query) for host in (desk.coding, desk.chat))

    assert "code__commit" in to_code
    assert "jot" not in to_code.replace("commit or jot something", "")
    assert "notes__jot" in to_chat
    assert "code__" not in to_chat
    # A server that connects after the session has begun is introduced with the first answer.
    assert "About commits" in desk.coding.instructions + to_code
    assert "About commits" not in desk.chat.instructions + to_chat
    assert "unknown tool" in desk.chat.call("code__commit")
    assert "unknown tool" not in desk.coding.call("code__commit")


def test_the_session_of_a_host_that_has_gone_is_not_listed(desk: Desk) -> None:
    before = json.loads(desk.run("session", "list", "--json"))["sessions"]
    gone = desk.host("gone")
    session = desk.session_of("gone")
    gone.close()
    desk.hosts.remove(gone)
    (socket,) = running(desk.config, desk.environment)
    while len(ask(socket, "GET", "/status", seconds=PATIENCE)["hosts"]) > len(desk.hosts):
        time.sleep(LOOK_SECONDS)
    after = json.loads(desk.run("session", "list", "--json"))["sessions"]

    assert session not in {one["id"] for one in after}
    assert len(after) == len(before)


def test_options_about_one_host_do_not_part_hosts(desk: Desk) -> None:
    arguments = ["--config", str(desk.config), "serve"]
    plain = meeting(arguments, desk.environment)
    limited = meeting([*arguments, "--profile", "chat", "--preset=x"], desk.environment)

    assert (limited.socket, limited.command) == (plain.socket, plain.command)


def test_a_host_with_an_unknown_profile_gets_a_sentence_and_nothing_else(desk: Desk) -> None:
    refused = desk.host("lost", "--profile=typo").answer("tools/list")

    assert "there is no profile 'typo'" in refused["error"]["message"]
    own = desk.run("serve", "--own", "--profile", "typo")
    assert "--profile: there is no table [clients.typo]; there are: coding, chat" in own


def test_a_person_chooses_by_commands_and_saves_it(desk: Desk) -> None:
    session = desk.session_of("any")
    asked = desk.run("session", "add", "notes__burn")
    added = desk.run("session", "add", "notes__burn", "--session", session)
    options = desk.run("session", "options", "--preset", "aggressive", "--session", session)
    tight = desk.run("session", "options", "--max-tokens", "5", "--session", session)
    budget = desk.run("session", "options", "--max-tokens", "3000", "--session", session)
    saved = desk.run("session", "save", "burning", "--session", session)
    listed = desk.run("session", "presets")
    removed = desk.run("session", "remove", "notes__jot", "--session", session)
    later = desk.host("later", "--profile", "chat", "--preset", "burning")
    later.call("manage_context", {"action": "add", "type": "tool", "name": "notes__jot"})
    later.call("search_available_tools", {"query": "put the old\nnotes away"})
    shown = desk.run("session", "list")
    again = desk.run("session", "save", "kept", "--session", desk.session_of("later"))

    assert "sessions; choose one with --session" in asked
    assert "notes__burn" in added
    assert "by you" in added
    assert "profile chat" in added
    assert "tools preset aggressive" in options
    assert "so 5 leave no room for what queries find" in " ".join(tight.split())
    assert "leave no room" not in budget
    assert "Options: max_tokens 3000, tools preset aggressive, documents preset aggressive" in budget
    assert "Saved as preset burning: 1 item added, 0 removed, 3 options." in saved
    assert "burning" in listed
    assert "removed, by you" in removed
    assert "begun with burning" in shown
    assert "asked last: put the old notes away" in shown
    assert "Options of presets: max_tokens 3000, tools preset aggressive" in shown
    assert "by hand, by the model" in shown
    assert "Saved as preset kept: 1 item added, 0 removed, 3 options." in again
    assert "notes__burn" in json.dumps(later.request("tools/list"))
    assert "Claude-Code" in shown
    assert "unknown tool" in desk.run("session", "add", "code__commit", "--session", session)
    assert desk.run("session", "remove", "notes__nothing", "--session", session).count("unknown tool") == 1
    assert "is no item: write --session" in desk.run("session", "add", session, "x", "--session", session)
    assert "there is no session 'zzz'" in desk.run("session", "add", "x", "--session", "zzz")
    assert "kept" in desk.run("session", "presets", "--forget", "burning")
    assert "No preset is saved." in desk.run("session", "presets", "--forget", "kept")
