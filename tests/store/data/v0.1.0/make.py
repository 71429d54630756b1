"""The script that made the files beside it, by the commands of version 0.1.0; no other version may run it.

    python tests/store/data/v0.1.0/make.py

``store.sqlite3.gz`` is the store, ``user`` the rest of the user's data folder, and ``expected.json`` has the
answers of the commands at that time.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from locked import URL, locked

from mcp_context_proxy import Interactions, __version__

HERE = Path(__file__).parent
CONFIG = """\
[store]
path = "store.sqlite3"
[limits]
indexing_wait_seconds = 60.0
[expose]
mode = "search"
[interactions]
enabled = true
[learning]
working_set_tokens = 300
[servers.desk]
command = "desk-of-the-old-store"
"""
LAZY = f'{CONFIG}start = "lazy"\n'.replace('"search"', '"all"')
LOCKED = f'[store]\npath = "memory"\n[servers.locked]\nurl = "{URL}"\n'

USED = [
    ("tell the others that I shall be late", "desk__post_message", {"channel": "team", "text": "late"}),
    ("the printer does not print", "desk__create_ticket", {"title": "printer"}),
    ("how did we sell in the summer", "desk__report", {"quarter": "2026-Q3"}),
    ("the machine does not answer any more", "desk__fails", {"machine": "m1"}),
]
SAID = [("planner", "message", "We ship on Friday."), ("coder", "note", "Two tests of the parser fail.")]

COMMANDS = {
    "pairs": ["learning", "export"],
    "learning": ["learning", "stats", "--json"],
    "statistics": ["stats", "--json"],
    "requests": ["requests", "--json"],
    "interactions": ["interactions", "stats", "--json"],
    "recall": ["recall", "when do we ship", "--decay", "1", "--json"],
    "tools": ["tools", "--json"],
    "search": ["search", "let them know that I am late", "--explain", "--json"],
}


class Place:
    """A home of its own, and a program for the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "bin" / "desk-of-the-old-store"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -I -S "{HERE / "desk.py"}"\n', encoding="utf-8"
        )
        program.chmod(0o755)
        home = str(folder / "home")
        self.env = {**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": f"{home}/data"}
        self.env |= {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONIOENCODING": "utf-8"}
        for name, text in {"search": CONFIG, "lazy": LAZY, "locked": LOCKED}.items():
            (folder / f"{name}.toml").write_text(text, encoding="utf-8")

    def command(self, config: str, *words: str) -> list[str]:
        path = str(self.folder / f"{config}.toml")
        return [sys.executable, "-m", "mcp_context_proxy", "--config", path, *words]

    def run(self, config: str, *words: str) -> str:
        done = subprocess.run(
            self.command(config, *words), env=self.env, capture_output=True, encoding="utf-8", check=True
        )
        return done.stdout


def session(place: Place, config: str, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Calls of the proxy's tools in a session of a host."""
    process = subprocess.Popen(
        place.command(config), env=place.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(number: int, method: str, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        print(json.dumps(message), file=process.stdin, flush=True)
        while True:
            answer = json.loads(process.stdout.readline())
            if answer.get("id") == number:
                return answer["result"]

    told = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "host", "version": "1"},
    }
    ask(1, "initialize", told)
    print(
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}), file=process.stdin, flush=True
    )
    results = [
        ask(at, "tools/call", {"name": name, "arguments": given}) for at, (name, given) in enumerate(calls, 2)
    ]
    process.stdin.close()
    assert process.wait(60) == 0
    return results


def use(place: Place) -> None:
    """Three sessions, the first of which does most."""
    calls = []
    for query, tool, arguments in USED:
        calls.append(("search_available_tools", {"query": query}))
        calls.append(("call_tool", {"name": tool, "arguments": arguments}))
    calls.append(
        ("call_tool", {"name": "desk__find_file", "arguments": {"name": "plan"}, "goal": "find the plan"})
    )
    calls.append(("set_context", {"query": "reserve a room", "intent": "to meet"}))
    session(place, "search", calls)
    for _ in range(2):
        session(place, "search", calls[:2])
    session(place, "lazy", [])
    with Interactions(place.folder / "store.sqlite3") as interactions:
        for agent, kind, content in SAID:
            interactions.record(agent, kind, content)
    place.run("search", "backfill")


def log_in(place: Place) -> None:
    with locked() as server:
        process = subprocess.Popen(
            place.command("locked", "login", "locked", "--no-browser"),
            env=place.env, stdout=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+/authorize\S+", line):
                urllib.request.urlopen(found[0]).close()
        assert process.wait() == 0
        assert server.granted == ["authorization_code"]


def make_token(place: Place) -> None:
    """As the first start with an HTTP front does."""
    process = subprocess.Popen(
        place.command("locked", "--log-level", "warning", "serve", "--http", "--port", "0"),
        env=place.env, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    assert process.stderr is not None
    while "http://" not in process.stderr.readline():
        pass
    process.terminate()
    process.communicate()


def main() -> None:
    assert __version__ == "0.1.0"
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name))
        use(place)
        log_in(place)
        make_token(place)
        made = time.time()
        said = {key: place.run("search", *words) for key, words in COMMANDS.items()}
        expected: dict[str, Any] = {key: json.loads(text) for key, text in said.items() if key != "pairs"}
        expected["pairs"] = [json.loads(line) for line in said["pairs"].splitlines()]
        store = place.folder / "store.sqlite3"
        with sqlite3.connect(store) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with sqlite3.connect(store) as database:
            database.execute("VACUUM")
        packed = gzip.compress(store.read_bytes(), mtime=0)
        (HERE / "store.sqlite3.gz").write_bytes(packed)
        (HERE / "expected.json").write_text(
            json.dumps({"made": made, **expected}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        shutil.rmtree(HERE / "user", ignore_errors=True)
        kept = place.folder / "home" / "data" / "mcp-context-proxy"
        shutil.copytree(kept, HERE / "user", ignore=shutil.ignore_patterns("*.lock"))


if __name__ == "__main__":
    main()
