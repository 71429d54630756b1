"""Builds fake servers and the configuration of a proxy in front of them."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from support.ledger import Ledger

PROGRAM = Path(__file__).with_name("fake_server") / "__main__.py"
"""The program of a fake server. By its file it starts quicker than by its folder."""
TOOLS = Path(__file__).parent.parent / "data" / "tools"


def tool(name: str, description: str = "", **more: Any) -> dict[str, Any]:
    """A tool definition with an object schema."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": name, "description": description or f"Does {name}", "inputSchema": schema} | more


class Server:
    """One fake server: its specification in a file, its ledger, and its settings for a proxy."""

    def __init__(self, folder: Path, name: str, spec: dict[str, Any], settings: dict[str, Any]) -> None:
        self.name, self._folder = name, folder
        self.ledger = Ledger(folder / f"{name}.ledger")
        self.path = folder / f"{name}.json"
        self.path.write_text(
            json.dumps({"name": name, "ledger": str(self.ledger.path)} | spec), encoding="utf-8"
        )
        self.command = [sys.executable, "-I", "-S", str(PROGRAM), str(self.path)]
        self.settings = {"command": self.command[0], "args": self.command[1:]} | settings

    def respecify(self, **spec: Any) -> None:
        """Change its specification, for its next start."""
        self.path.write_text(json.dumps(json.loads(self.path.read_text()) | spec))


class Workshop:
    """Makes servers in one folder, writes their configuration, and ends those that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: dict[str, Server] = {}
        self._stack = ExitStack()

    def server(self, name: str, *, settings: dict[str, Any] | None = None, **spec: Any) -> Server:
        """A server on standard streams. `spec` is described in `fake_server`, `settings` go to the proxy."""
        made = self.servers[name] = Server(self.folder, name, spec, settings or {})
        return made

    def http_server(self, name: str, *, settings: dict[str, Any] | None = None, **spec: Any) -> Server:
        """A running server on a loopback port."""
        return self._at_a_url(self.server(name, settings=settings, **spec), "--http", settings or {})

    def sse_server(self, name: str, *, settings: dict[str, Any] | None = None, **spec: Any) -> Server:
        """A running server on a loopback port that speaks HTTP+SSE."""
        made = self.server(name, settings=settings, **spec)
        return self._at_a_url(made, "--sse", {"transport": "sse"} | (settings or {}))

    def _at_a_url(self, made: Server, option: str, settings: dict[str, Any]) -> Server:
        url = self._stack.enter_context(_running(made, option))
        made.settings = {"url": url} | settings
        return made

    def flag(self, name: str) -> Path:
        """A file that a server waits for, or that marks something as done once."""
        return self.folder / name

    def config(self, file: str = "config.toml", /, **tables: Any) -> Path:
        """Write the configuration: the servers, and other tables as given. The store is in memory."""
        # Search results must not depend on how fast the machine is.
        patient = {"limits": {"indexing_wait_seconds": 60.0, **tables.pop("limits", {})}}
        data = {"store": {"path": "memory"}, **patient, **tables}
        data["servers"] = {name: server.settings for name, server in self.servers.items()}
        path = self.folder / file
        path.write_text("\n".join(_toml(data)), encoding="utf-8")
        return path

    def close(self) -> None:
        self._stack.close()


@contextmanager
def _running(server: Server, option: str) -> Iterator[str]:
    with subprocess.Popen([*server.command, option], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


_BARE = re.compile(r"[\w-]+", re.ASCII)


def _toml(data: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Tables as TOML: JSON's strings, numbers, booleans and arrays are TOML's, too."""
    tables = {key: value for key, value in data.items() if isinstance(value, dict) and key != "env"}
    lists = {
        key: value
        for key, value in data.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    for key, value in data.items():
        if key not in tables and key not in lists:
            yield f"{key} = {_toml_value(value)}"
    for key, value in tables.items():
        # A quoted key, such as a glob, is written as JSON writes a string.
        table = prefix + (key if _BARE.fullmatch(key) else json.dumps(key))
        yield f"[{table}]"
        yield from _toml(value, f"{table}.")
    for key, entries in lists.items():
        for entry in entries:
            yield f"[[{prefix}{key}]]"
            yield from _toml(entry, f"{prefix}{key}.")


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(str(value) if isinstance(value, Path) else value)


@cache
def real_lists() -> dict[str, list[dict[str, Any]]]:
    """The tools of real servers, by server."""
    found = {
        path.name.removesuffix(".json.gz"): json.loads(gzip.decompress(path.read_bytes()))["tools"]
        for path in sorted(TOOLS.glob("*.json.gz"))
    }
    assert found
    assert all(found.values())
    return found
