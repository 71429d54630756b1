"""Carries out the Dockerfile without Docker: builds, serves, asks for health, stops.

The container's paths become folders of one temporary folder; everything else (commands, variables, user,
signal) is taken from the Dockerfile as it stands. Only root can change the user: without it, or where the
image's user can run no Python, the present one is used.

Usage: ``python3 .ci/image.py FOLDER``; the folder keeps the installed proxy.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dockerfile import ROOT, Stage, let_through, stages

HEALTHY_SECONDS = 60
STOPPED_SECONDS = 10
"""What `docker stop` waits before it kills."""

PATHS = re.compile(r"(?<![\w.-])/(?:src|dist|opt/build|opt/venv|data|config)\b")
"""Of the container, wherever one begins."""

CONFIG = """\
[servers.clock]
command = "python"
args = ["-m", "mcp_context_proxy.examples", "clock"]
"""
URL = "http://127.0.0.1:8765/mcp"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "ci", "version": "1"},
    },
}


class Box:
    """A folder that stands for the container's file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def inside(self, text: str) -> str:
        """A text with the container's paths replaced."""
        return PATHS.sub(lambda match: f"{self.folder}{match[0]}", text)

    def path(self, text: str) -> Path:
        """A path of the container."""
        return Path(self.inside(text))


def identity(user: int, group: int) -> dict[str, Any]:
    """Arguments that start a process as that user; empty when only root could."""
    return {"user": user, "group": group, "extra_groups": []} if os.getuid() == 0 else {}


def python_for(owner: dict[str, Any]) -> str | None:
    """A Python that the user can run and make environments with: one under /root is out of its reach."""
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            code = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
            if subprocess.run([python, "-c", code], cwd="/", check=False, **owner).returncode == 0:
                return python
    return None


def build(stage: Stage, box: Box, python: str) -> None:
    """The build stage: the files that .dockerignore lets through, and every RUN on them."""
    source = box.path(stage.only("WORKDIR"))
    source.mkdir(parents=True)
    for name in let_through((ROOT / ".dockerignore").read_text(encoding="utf-8")):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    for command in stage.all("RUN"):
        say(command)
        line = box.inside(re.sub("^python ", f"{python} ", command))
        subprocess.run(["sh", "-ec", line], cwd=source, check=True)


def furnish(stage: Stage, box: Box, owner: dict[str, Any]) -> None:
    """A read-only configuration, and a data folder of the proxy's user."""
    file = box.path(stage.environment["MCP_CONTEXT_PROXY_CONFIG"])
    file.parent.mkdir()
    file.write_text(CONFIG, encoding="utf-8")
    file.chmod(0o444)
    file.parent.chmod(0o555)
    (data,) = json.loads(stage.only("VOLUME"))
    box.path(data).mkdir(mode=0o700)
    if owner:
        os.chown(box.path(data), owner["user"], owner["group"])


def start(
    stage: Stage, box: Box, owner: dict[str, Any], command: Sequence[str], stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Run a command as the container would: its variables and no others, its user, its folder."""
    environment = {name: box.inside(value) for name, value in stage.environment.items()}
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise SystemExit(f"{command[0]} is not on the PATH of the image")
    return subprocess.Popen(
        [program, *command[1:]],
        cwd=box.path(stage.only("WORKDIR")),
        env=environment,
        stderr=stderr,
        **owner,
    )


def wait_until_healthy(stage: Stage, box: Box, owner: dict[str, Any], proxy: subprocess.Popen[bytes]) -> None:
    """Ask with the very command of HEALTHCHECK until it succeeds."""
    deadline = time.monotonic() + HEALTHY_SECONDS
    while proxy.poll() is None and time.monotonic() < deadline:
        check = start(stage, box, owner, stage.health_check, stderr=subprocess.DEVNULL)
        if check.wait(timeout=HEALTHY_SECONDS) == 0:
            return
        time.sleep(0.5)
    raise SystemExit(f"not healthy; the proxy's exit code is {proxy.poll()}")


def status_of_initialize(token: str | None) -> int:
    """The HTTP status of a client's first request."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(URL, json.dumps(INITIALIZE).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def left_behind(user: int) -> Iterator[str]:
    """Command lines of the processes that still run as `user`."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == user:
                yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def expect(what: str, found: object, wanted: object) -> None:
    """Go on only if it is as wanted."""
    if found != wanted:
        raise SystemExit(f"{what}: {found!r}, but {wanted!r} was expected")
    say(f"{what}: {found}")


def say(text: str) -> None:
    """Name the step that is done."""
    sys.stdout.write(f"  {text}\n")
    sys.stdout.flush()


def main() -> None:
    """Prove the image."""
    builder, image, *_ = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    box = Box(Path(sys.argv[1]).resolve())
    owner = identity(*image.owner)
    python = python_for(owner)
    if python is None:
        say(f"user {image.owner[0]} can run no Python here: the proxy runs as the present user")
        owner, python = {}, sys.executable
    build(builder, box, python)
    furnish(image, box, owner)
    say(" ".join(image.command) + f"   (as user {owner.get('user', os.getuid())})")
    proxy = start(image, box, owner, image.command)
    try:
        wait_until_healthy(image, box, owner, proxy)
        say("the HEALTHCHECK command succeeds")
        token = box.path("/data/mcp-context-proxy/token").read_text(encoding="utf-8").strip()
        expect("initialize without the token", status_of_initialize(None), 401)
        expect("initialize with the token from /data", status_of_initialize(token), 200)
        expect("the store is in /data", box.path("/data/mcp-context-proxy/store.sqlite3").exists(), True)
        stop = getattr(signal, image.only("STOPSIGNAL"))
        proxy.send_signal(stop)
        expect(f"exit code after {stop.name}", proxy.wait(timeout=STOPPED_SECONDS), 0)
        if owner:
            expect("processes left behind", list(left_behind(owner["user"])), [])
    finally:
        proxy.kill()


if __name__ == "__main__":
    main()
