"""Servers that a package runner downloads: time for the first start, gentle stops, and broken caches.

The runners are scripts with the name of a real one that wait for a file, as if they downloaded something.
"""

import logging
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, inside, real_command
from support.raw_client import text_of
from support.servers import Server, Workshop, tool
from support.tables import each

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.config import load
from mcp_context_proxy.config.programs import broken_npx_cache, downloads
from mcp_context_proxy.config.reload import connection_key
from mcp_context_proxy.config.settings import ServerConfig
from mcp_context_proxy.downstream import lifecycle
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.downstream.stdio import INSTALL_SECONDS
from mcp_context_proxy.errors import Fault

DOWNLOAD = """#!{python} -S
import os, signal, sys, time

def undo(*_):
    time.sleep({undoing})
    open({undone!r}, "w").close()
    sys.exit(1)

signal.signal(signal.SIGTERM, undo)
open({begun!r}, "a").write(f"{{os.getpid()}}\\n")
while not os.path.exists({downloaded!r}):
    time.sleep(0.01)
os.execv({python!r}, {command!r})
"""
"""A runner that undoes its download when it is asked to end, which takes a while."""


def runner(workshop: Workshop, program: str = "npx", *, undoing: float = 0.0, **spec: Any) -> Server:
    """A server that a script with the name of a package runner downloads first."""
    server = workshop.server("slow", tools=[tool("brew", "Brew a cup of coffee")], **spec)
    script = workshop.folder / program
    flags = {name: str(workshop.flag(name)) for name in ("begun", "undone", "downloaded")}
    script.write_text(
        DOWNLOAD.format(python=sys.executable, command=server.command, undoing=undoing, **flags)
    )
    script.chmod(stat.S_IRWXU)
    server.settings |= {"command": str(script), "args": ["-y", "coffee-server"]}
    return server


def runs(workshop: Workshop) -> list[int]:
    begun = workshop.flag("begun")
    return [int(line) for line in begun.read_text().split()] if begun.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that nobody has waited for yet is dead, too.
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def of_runner(command: str, *args: str) -> ServerConfig:
    return ServerConfig(name="it", command=command, args=args)


@each(
    "line",
    [
        *("npx -y pkg", "/usr/bin/npx pkg", "uvx pkg", "uv run server.py", "uv --directory /x run server.py"),
        *("pipx run pkg", "pnpm dlx pkg", "bunx pkg", "yarn dlx pkg", "npm exec pkg", "deno run npm:pkg"),
        *("docker run -i --rm image", "cmd /c npx -y pkg", "npx.cmd pkg"),
    ],
)
def test_a_program_that_downloads_what_it_runs_is_known(line: str) -> None:
    assert downloads(of_runner(*line.split()))


@each("line", ["node server.js", "python -m pip", "npm start", "my-npx x", "docker ps"])
def test_other_programs_download_nothing(line: str) -> None:
    assert not downloads(of_runner(*line.split()))


def test_a_first_start_of_a_runner_gets_five_minutes_or_the_configured_timeout_if_that_is_longer(
    workshop: Workshop,
) -> None:
    """A host's timeout that is carried over must not end a download, which leaves a broken cache behind."""
    runner(workshop)
    plain = workshop.server("plain")
    limits = load(workshop.config(), environ={}).servers
    assert (limits["slow"].first_connect_timeout, limits["slow"].connect_timeout) == (300.0, 30.0)
    assert limits["plain"].first_connect_timeout is None

    for configured, first in ((7.0, 300.0), (900.0, 900.0)):
        workshop.servers["slow"].settings["connect_timeout"] = configured
        slow = load(workshop.config(), environ={}).servers["slow"]
        assert (slow.first_connect_timeout, slow.connect_timeout) == (first, configured)
    assert plain.settings


async def test_a_download_may_take_longer_than_a_start_and_is_no_failure(workshop: Workshop) -> None:
    runner(workshop)
    limits = {"connect_seconds": 0.4, "probe_seconds": 0.1, "start_wait_seconds": 0.1}
    async with inside(workshop.config(limits=limits), settled=False) as proxy:
        client = proxy.fleet.clients["slow"]
        await until(lambda: (client.downloading or 0) > 1.0)
        host = Host(proxy, "modern")
        found = await host.data("search_available_tools", {"query": "coffee"})
        called = await host.call("slow__brew")
        workshop.flag("downloaded").touch()
        await until(lambda: client.state is ServerState.READY)

        assert re.search(r"slow \(downloading for \d+ s\)\.", found["note"])
        assert re.search(
            r"'slow' is not available \(downloading for \d+ s: call again in a while\)$", text_of(called)
        )
        assert len(runs(workshop)) == 1
        assert client.restarts == 0


async def test_after_a_start_has_succeeded_the_usual_timeout_counts_also_in_the_next_proxy(
    workshop: Workshop,
) -> None:
    runner(workshop)
    workshop.flag("downloaded").touch()
    limits = {"connect_seconds": 30.0, "backoff_first_seconds": 9000.0, "backoff_max_seconds": 9000.0}
    async with inside(workshop.config(store={"path": "store.db"}, limits=limits)) as proxy:
        client = proxy.fleet.clients["slow"]
        await until(lambda: proxy.store.listings.get(connection_key(client.config)))
        assert client.state is ServerState.READY
    workshop.flag("downloaded").unlink()
    limits["connect_seconds"] = 0.5
    async with inside(workshop.config(store={"path": "store.db"}, limits=limits)) as proxy:
        assert "not ready within 0.5 s" in proxy.fleet.clients["slow"].cause


async def test_a_later_start_that_takes_too_long_may_download_a_newer_version_in_the_next_attempt(
    workshop: Workshop,
) -> None:
    runner(workshop)
    workshop.flag("downloaded").touch()
    limits = {"connect_seconds": 30.0, "probe_seconds": 0.1, "backoff_first_seconds": 0.01}
    async with inside(workshop.config(store={"path": "store.db"}, limits=limits)) as proxy:
        client = proxy.fleet.clients["slow"]
        await until(lambda: proxy.store.listings.get(connection_key(client.config)))
    workshop.flag("downloaded").unlink()
    limits["connect_seconds"] = 0.5
    async with inside(workshop.config(store={"path": "store.db"}, limits=limits)) as proxy:
        client = proxy.fleet.clients["slow"]
        assert "not ready within 0.5 s" in client.cause
        # Longer than the usual timeout.
        await until(lambda: (client.downloading or 0) > 1.0)
        found = await Host(proxy, "modern").data("search_available_tools", {"query": "coffee"})
        workshop.flag("downloaded").touch()
        await until(lambda: client.state is ServerState.READY)

        assert re.search(r"slow \(downloading for \d+ s again; before that: it was not ready", found["note"])
        assert len(runs(workshop)) == 3


async def test_a_download_that_is_stopped_is_asked_to_end_and_has_time_to_undo(workshop: Workshop) -> None:
    runner(workshop, undoing=1.5)
    # SIGKILL would come long before the second half of the download is undone.
    limits = {"stop_seconds": 0.1}
    async with inside(workshop.config(limits=limits), settled=False):
        await until(lambda: runs(workshop))

    assert workshop.flag("undone").exists()
    assert not any(map(alive, runs(workshop)))


async def test_a_download_that_takes_too_long_is_undone_before_it_begins_again(workshop: Workshop) -> None:
    runner(workshop, undoing=0.5)
    limits = {"first_start_seconds": 0.5, "connect_seconds": 0.5, "stop_seconds": 0.1}
    again = {"backoff_first_seconds": 0.01, "backoff_max_seconds": 0.02}
    async with inside(workshop.config(limits=limits | again)) as proxy:
        assert "not ready within 0.5 s" in proxy.fleet.clients["slow"].cause
        await until(lambda: len(runs(workshop)) > 1)

        assert workshop.flag("undone").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the guardian of a killed proxy needs its pipes")
async def test_a_killed_proxy_leaves_a_download_time_to_undo_and_no_process(workshop: Workshop) -> None:
    # Longer than the guardian waits for any other server.
    runner(workshop, undoing=4.0)
    command = real_command(workshop.config(), "serve")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as proxy:  # noqa: ASYNC220
        await until(lambda: runs(workshop))
        proxy.kill()
        (pid,) = runs(workshop)
        await until(lambda: not alive(pid))

    assert workshop.flag("undone").exists()


async def test_a_server_that_was_downloaded_is_killed_if_it_does_not_end(workshop: Workshop) -> None:
    runner(workshop)
    workshop.flag("downloaded").touch()
    plain = workshop.server("plain")
    ends = {}
    for name in ("plain", "slow"):
        async with inside(workshop.config(limits={"stop_seconds": 0.2})) as proxy:
            assert proxy.fleet.clients["slow"].state is ServerState.READY
            pid = plain.ledger.entries("start")[-1]["pid"] if name == "plain" else runs(workshop)[-1]
            os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
        ends[name] = time.monotonic() - began

    # A stopped process reacts to nothing but SIGKILL, which comes as soon as for any other server.
    assert ends["slow"] < ends["plain"] + INSTALL_SECONDS / 2


async def test_the_log_tells_that_a_server_is_downloaded(
    workshop: Workshop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "DOWNLOAD_TOLD_SECONDS", 0.01)
    runner(workshop)
    with caplog.at_level(logging.INFO):
        async with inside(workshop.config(), settled=False):
            await until(lambda: caplog.text.count("server slow: downloading for ") > 2)


async def test_a_server_that_keeps_exiting_is_not_said_to_be_downloaded(workshop: Workshop) -> None:
    runner(workshop, at_start=[{"exit": 1}])
    workshop.flag("downloaded").touch()
    limits = {"backoff_first_seconds": 0.01, "backoff_max_seconds": 0.01}
    async with inside(workshop.config(limits=limits), settled=False) as proxy:
        client = proxy.fleet.clients["slow"]
        await until(lambda: client.failures >= 1)
        workshop.flag("downloaded").unlink()
        await until(lambda: client.state is ServerState.STARTING and client.failures >= 1)
        assert client.downloading is None
        assert "downloading" not in client.standing


async def test_a_command_that_waits_for_a_download_says_so(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.05)
    runner(workshop)
    said = ""

    async with inside(workshop.config(), settled=False) as proxy, anyio.create_task_group() as group:
        group.start_soon(terminal.settle, proxy)

        def told() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return "slow: downloading for " in said

        await until(told)
        workshop.flag("downloaded").touch()


DIGEST = "0123456789abcdef"
NODE = """node:internal/modules/cjs/loader:1244
Error: Cannot find module '{cache}/_npx/{digest}/node_modules/coffee/index.js'
  code: 'MODULE_NOT_FOUND',
"""
NPM = """npm error code ENOTEMPTY
npm error path {cache}/_npx/{digest}/node_modules/coffee
npm error ENOTEMPTY: directory not empty, rename '{cache}/_npx/{digest}/node_modules/coffee' -> '{cache}/x'
"""


@pytest.mark.parametrize("said", [NODE, NPM])
async def test_a_broken_npx_cache_is_named_with_the_folder_to_delete(workshop: Workshop, said: str) -> None:
    folder = workshop.folder / "my cache" / "_npx" / DIGEST
    folder.mkdir(parents=True)
    script = workshop.folder / "npx"
    stderr = said.format(cache=workshop.folder / "my cache", digest=DIGEST)
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{stderr}END\nexit 1\n")
    script.chmod(stat.S_IRWXU)
    workshop.server("broken").settings = {"command": str(script), "args": ["-y", "coffee"]}
    async with inside(workshop.config()) as proxy:
        client = proxy.fleet.clients["broken"]

        assert client.fault is Fault.BROKEN_CACHE
        assert f"the npx cache is broken, as after an interrupted download: delete the folder {folder}" in (
            str(client.unavailable())
        )


@each(
    "line",
    [
        "Cannot find module 'coffee'",
        "Cannot find module '/etc/_npx/../../x'",
        f"Cannot find module '/nowhere/_npx/{DIGEST}/x'",
        "starting /cache/_npx/0123456789abcdef/node_modules/x",
        f"Cannot find module '/{'x' * 300}/_npx/{DIGEST}/x'",
    ],
)
def test_nobody_is_told_to_delete_anything_but_a_folder_of_npx(line: str) -> None:
    assert broken_npx_cache(of_runner("npx", "coffee"), [line]) is None


def test_the_same_complaint_of_another_program_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "My Files" / "_npx" / DIGEST
    folder.mkdir(parents=True)
    line = f"Cannot find module '{folder}/node_modules/x'"

    assert broken_npx_cache(of_runner("npx", "coffee"), [line]) == folder
    assert broken_npx_cache(of_runner("node", "coffee.js"), [line]) is None
