"""A proxy that serves one host answers commands over a socket of its own process, and no other hosts."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.commands import PATIENCE, real_command
from support.servers import Workshop

from mcp_context_proxy.bridge import ask, running

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")

OPENING = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"chat","version":"1"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)


def test_a_proxy_of_one_session_answers_commands_until_it_ends(workshop: Workshop) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="mcp-"))
    config = workshop.config(store={"path": str(folder / "store.db")})
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        real_command("--config", config, "serve"), stdin=pipe, stdout=pipe, env=environment
    ) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        host.stdin.write(OPENING)
        host.stdin.flush()
        assert json.loads(host.stdout.readline())["id"] == 1
        until = time.monotonic() + PATIENCE
        while not (found := running(config, environment)) and time.monotonic() < until:
            time.sleep(0.05)

        (path,) = map(Path, found)
        assert path.stat().st_mode & 0o777 == 0o600
        assert ask(path, "GET", "/status", seconds=PATIENCE)["shared"] is False
        (session,) = ask(path, "GET", "/sessions", seconds=PATIENCE)["sessions"]
        added = ask(path, "GET", f"/sessions/{session['id']}/context", seconds=PATIENCE)
        assert added["id"] == session["id"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as another:
            another.settimeout(PATIENCE)
            another.connect(str(path))
            another.sendall(OPENING)
            with contextlib.suppress(ConnectionResetError):
                assert another.recv(1) == b""
        stop = [sys.executable, "-m", "mcp_context_proxy", "--config", str(config), "stop"]
        said = subprocess.run(
            stop, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        assert "No shared proxy runs" in said.stdout
        assert host.poll() is None
        host.stdin.close()
        host.wait(PATIENCE)

    assert not path.exists()
    shutil.rmtree(folder, ignore_errors=True)
