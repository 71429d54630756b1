"""Subjects of measurements: the proxy, the bare SDK proxy and no proxy, in front of the same servers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from catalogs import LISTS, lists_in
from raw_clients import FailureError, StdioClient

HERE = Path(__file__).parent
SERVERS, TOOLS = 10, 50
SUBJECTS = ("direct", "proxy", "bare SDK")

LIST_SERVER = """
import json, sys
tools = json.load(open(sys.argv[1]))
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        about = {"name": "recorded", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    else:
        result = {"tools": tools}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
"""A server that has the tools of a recorded list, and no more."""

# A measured session has a proxy of its own; `sharing.py` measures the shared one.
os.environ["MCP_CONTEXT_PROXY_OWN"] = "1"


class Workbench:
    """Makes configurations in a folder and starts subjects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0

    def config(
        self,
        tools: int = TOOLS,
        *,
        servers: int = SERVERS,
        modern: bool = False,
        hanging: int = 0,
        store: Path | None = None,
        **tables: Any,
    ) -> Path:
        """A configuration with so many healthy servers and some that never answer."""
        self._made += 1
        entries: dict[str, Any] = {f"s{n}": child(n, tools, modern) for n in range(servers)}
        for number in range(hanging):
            entries[f"h{number}"] = child(number, tools, modern, "--hang")
        settings = {"store": {"path": str(store or "memory")}, **tables, "servers": entries}
        path = self.folder / f"config-{self._made}.toml"
        path.write_text("\n".join(_toml(settings)), encoding="utf-8")
        return path

    def proxy(self, config: Path, era: str = "handshake") -> StdioClient:
        """The proxy over stdio, just started."""
        return StdioClient([*proxy_command(config), "serve", "--own"], era, self.folder / "proxy.log")

    def bare(self, era: str = "handshake", tools: int = TOOLS) -> StdioClient:
        """The bare SDK proxy over stdio, just started."""
        return StdioClient(bare_command(SERVERS, tools, era == "modern"), era, self.folder / "bare.log")

    def direct(self, era: str = "handshake") -> StdioClient:
        """One of the servers."""
        spec = child(0, TOOLS, era == "modern")
        return StdioClient([spec["command"], *spec["args"]], era)

    @contextmanager
    def trio(self, era: str) -> Iterator[dict[str, StdioClient]]:
        """All three, connected and with every server ready."""
        clients = {
            "direct": self.direct(era),
            "proxy": self.proxy(self.config(modern=era == "modern"), era),
            "bare SDK": self.bare(era),
        }
        try:
            for client in clients.values():
                client.open()
            for name, client in clients.items():
                client.until(partial(answers, tool_name(name)))
            yield clients
        finally:
            for client in clients.values():
                client.close()


def answers(tool: str, client: StdioClient) -> bool:
    """Return whether a tool can be called already."""
    with suppress(FailureError):
        client.call(tool)
        return True
    return False


def tool_name(subject: str, server: int = 0) -> str:
    """The name of the same tool for a subject's clients."""
    return "create_issue" if subject == "direct" else f"s{server}__create_issue"


def child(number: int, tools: int, modern: bool = False, *flags: str) -> dict[str, Any]:
    """Settings of one tiny server: without site packages, as little as Python can be."""
    more = ["--modern"] if modern else []
    program = str(HERE / "tool_server.py")
    return {"command": sys.executable, "args": ["-S", "-E", program, str(number), str(tools), *more, *flags]}


def recorded(folder: Path, store: Path, copies: int = 1, *, prefix: str = "") -> Path:
    """Write the recorded lists, a server for each copy of one, and the configuration, whose path is returned.

    Vectors come with the package for tools as they were published: not under other names of servers.
    """
    program = folder / "list_server.py"
    program.write_text(LIST_SERVER, encoding="utf-8")
    servers: dict[str, Any] = {}
    for copy in range(copies):
        for name, tools in lists_in(LISTS).items():
            listed = folder / f"{name}-{copy}.json"
            variant = f" Variant {copy}." if copy else ""
            described = [{**tool, "description": f"{tool.get('description', '')}{variant}"} for tool in tools]
            listed.write_text(json.dumps(described), encoding="utf-8")
            key = f"{prefix}{name}-{copy}" if copies > 1 or prefix else name
            servers[key] = {"command": sys.executable, "args": ["-S", "-E", str(program), str(listed)]}
    path = folder / "recorded.toml"
    path.write_text("\n".join(_toml({"store": {"path": str(store)}, "servers": servers})), encoding="utf-8")
    return path


def proxy_command(config: Path, python: str = sys.executable) -> list[str]:
    """The proxy that is installed for an interpreter; without ``-P``, one in the working folder would run."""
    return [python, "-P", "-m", "mcp_context_proxy", "--config", str(config)]


def bare_command(servers: int, tools: int, modern: bool) -> list[str]:
    program = str(HERE / "bare_sdk_proxy.py")
    return [sys.executable, program, str(servers), str(tools), *(["--modern"] if modern else [])]


@contextmanager
def listening(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves HTTP on a port, from when it accepts connections."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(2000):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.01)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def processor_seconds(pid: int) -> float:
    """Processor time of a process without its children, in the system's steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _toml(data: dict[str, Any], prefix: str = "") -> Iterator[str]:
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    for key, value in data.items():
        if key not in tables:
            yield f"{key} = {json.dumps(value)}"
    for key, value in tables.items():
        yield f"[{prefix}{key}]"
        yield from _toml(value, f"{prefix}{key}.")
