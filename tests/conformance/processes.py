"""Starts the servers that the conformance run needs, and ends them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 60
"""For a server to come up on a busy machine."""

SERVING = re.compile(r"serving (http://\S+/mcp)")


@contextmanager
def everything_server(folder: Path) -> Iterator[str]:
    """The SDK's everything server; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mcp_everything_server", "--port", str(port)]
    with _running(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}) as (process, log):
        while not _listens(port):
            _check(process, log)
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def proxy(
    servers: dict[str, dict[str, Any]],
    expose: dict[str, Any] | None = None,
    documents: Path | None = None,
) -> Iterator[str]:
    """A proxy over HTTP in front of servers and of a folder, once all servers are connected; its URL."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        own = "" if documents is None else f"\n[[documents]]\npath = {json.dumps(str(documents))}\n"
        config.write_text(_toml(servers, expose) + own, encoding="utf-8")
        command = [sys.executable, "-m", "mcp_context_proxy", "--config", str(config)]
        with _running([*command, "serve", "--http", "--port", "0", "--no-auth"]) as (process, log):
            while not (found := SERVING.search(log.read_text(encoding="utf-8"))):
                _check(process, log)
            _await_servers(found[1], process, log)
            yield found[1]


def write_config(path: Path, servers: dict[str, dict[str, Any]], expose: dict[str, Any]) -> Path:
    """The configuration of a proxy that keeps nothing."""
    path.write_text(_toml(servers, expose), encoding="utf-8")
    return path


def _toml(servers: dict[str, dict[str, Any]], expose: dict[str, Any] | None) -> str:
    shown = {"mode": "all", "prefix": False} if expose is None else expose
    # On a busy machine a modern server that is slow to answer must not be taken for an old one.
    patient = {"probe_seconds": 30.0}
    tables = {"store": {"path": "memory"}, "expose": shown, "limits": patient}
    tables |= {f"servers.{name}": settings for name, settings in servers.items()}
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)


@contextmanager
def _running(command: list[str], **more: Any) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **more
            )
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(SECONDS)
            finally:
                process.kill()


def _await_servers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until no server is starting any more: then the base list may be kept for a while."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/list",
    }
    request = urllib.request.Request(url, json.dumps(message).encode(), headers)
    while True:
        _check(process, log)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                if json.load(answer)["result"]["ttlMs"] > 0:
                    return
        except urllib.error.URLError:
            pass


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _check(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended: {log.read_text(encoding='utf-8', errors='replace')}")
    time.sleep(0.1)
