"""A repository in which a host starts the proxy decides nothing about the programs that run."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.proxies import inside
from support.servers import Server, Workshop, tool
from support.wires import stdio

from mcp_context_proxy.config import load
from mcp_context_proxy.config.programs import folder_of
from mcp_context_proxy.config.settings import ServerConfig


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hostile repository, opened by a person: the host starts the proxy in it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    trap = f"import pathlib; pathlib.Path({str(folder / 'trapped')!r}).touch()\n"
    for module in ("json", "typing_extensions", "honest", "sitecustomize", "encodings"):
        (folder / f"{module}.py").write_text(trap, encoding="utf-8")
    executable(folder / "tool", "touch trapped")
    executable(folder / "bin" / "tool", "touch trapped")
    (folder / ".npmrc").write_text("touch trapped", encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """Servers, configured in a folder of the person's own."""
    folder = tmp_path / "person"
    folder.mkdir()
    return Workshop(folder)


def executable(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def run_of(server: Server) -> str:
    return "exec " + " ".join(f"'{each}'" for each in server.command)


def started_in(process: int) -> Path:
    return Path(f"/proc/{process}/cwd").readlink()


async def start(workshop: Workshop, repository: Path) -> Path:
    """Start all servers, and return the folder in which the first of them runs."""
    async with inside(workshop.config()) as proxy:
        client = next(iter(proxy.fleet.clients.values()))
        assert client.cause == ""
        process = next(iter(workshop.servers.values())).ledger.entries("start")[-1]["pid"]
        folder = started_in(process)
    assert not (repository / "trapped").exists() or folder == repository
    return folder


async def test_a_server_starts_in_the_folder_of_the_configuration(
    workshop: Workshop, repository: Path
) -> None:
    workshop.server("plain", tools=[tool("go")])

    assert await start(workshop, repository) == workshop.folder


async def test_npx_does_not_read_the_settings_of_the_opened_repository(
    workshop: Workshop, repository: Path, tmp_path: Path
) -> None:
    server = workshop.server("node", tools=[tool("go")])
    executable(tmp_path / "programs" / "npx", f"[ -f .npmrc ] && . ./.npmrc\n{run_of(server)}")
    path = f"{tmp_path / 'programs'}:{os.environ['PATH']}"
    server.settings = {"command": "npx", "args": ["-y", "x"], "env": {"PATH": path}}

    assert await start(workshop, repository) == workshop.folder


async def test_python_does_not_import_modules_of_the_opened_repository(
    workshop: Workshop, repository: Path
) -> None:
    server = workshop.server("python", tools=[tool("go")])
    program, *options = server.command
    module = f"import json, os, sys; os.execv(sys.executable, {[program, *options]!r})\n"
    (workshop.folder / "honest.py").write_text(module, encoding="utf-8")
    server.settings = {"command": sys.executable, "args": ["-S", "-m", "honest"]}

    assert await start(workshop, repository) == workshop.folder


@pytest.mark.parametrize("command", ["./tool", "bin/tool", "bin/../tool"])
async def test_a_relative_command_counts_from_the_configuration(
    workshop: Workshop, repository: Path, command: str, tmp_path: Path
) -> None:
    server = workshop.server("own", tools=[tool("go")])
    for name in ("tool", "bin/tool"):
        executable(workshop.folder / name, run_of(server))
    # Also if the program starts elsewhere.
    server.settings = {"command": command, "cwd": str(tmp_path)}

    assert await start(workshop, repository) == tmp_path


@pytest.mark.parametrize("path", [".", "", "bin", "./bin"])
async def test_a_relative_folder_on_the_path_counts_from_the_configuration(
    workshop: Workshop, repository: Path, path: str
) -> None:
    server = workshop.server("own", tools=[tool("go")])
    for name in ("tool", "bin/tool"):
        executable(workshop.folder / name, run_of(server))
    server.settings = {"command": "tool", "env": {"PATH": f"{path}:{os.environ['PATH']}"}}

    assert await start(workshop, repository) == workshop.folder


@pytest.mark.parametrize("cwd", ["", ".", "${NO_SUCH_VARIABLE:-}", "../person"])
async def test_a_relative_folder_counts_from_the_configuration(
    workshop: Workshop, repository: Path, cwd: str
) -> None:
    workshop.server("plain", tools=[tool("go")], settings={"cwd": cwd})

    assert (await start(workshop, repository)).resolve() == workshop.folder


async def test_launch_names_the_folder_in_which_the_host_starts_the_proxy(
    workshop: Workshop, repository: Path
) -> None:
    workshop.server("plain", tools=[tool("go")], settings={"cwd": "launch"})

    assert await start(workshop, repository) == repository


async def test_servers_of_a_hosts_file_start_in_its_folder(workshop: Workshop, repository: Path) -> None:
    server = workshop.server("plain", tools=[tool("go")])
    file = workshop.folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"plain": server.settings}}), encoding="utf-8")

    assert folder_of(load(file).servers["plain"]) == workshop.folder


def test_a_server_that_no_file_configures_starts_in_the_home_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(name="plain", command="tool")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder_of(config) == tmp_path
    monkeypatch.setenv("HOME", "not/a/home")
    assert folder_of(config) == Path("/")


async def test_a_folder_that_does_not_exist_is_named(workshop: Workshop, repository: Path) -> None:
    workshop.server("plain", tools=[tool("go")], settings={"cwd": "no/such/folder"})
    async with inside(workshop.config()) as proxy:
        cause = proxy.fleet.clients["plain"].cause

    assert f"there is no folder '{workshop.folder}/no/such/folder'; create it or correct 'cwd'" in cause


async def test_a_launch_folder_that_is_gone_is_reported(workshop: Workshop, repository: Path) -> None:
    workshop.server("plain", tools=[tool("go")], settings={"cwd": "launch"})
    (gone := repository / "gone").mkdir()
    os.chdir(gone)
    gone.rmdir()
    async with inside(workshop.config()) as proxy:
        cause = proxy.fleet.clients["plain"].cause

    assert "the folder in which the proxy was started cannot be used" in cause


WATCHED = """
import os, sys
folder = sys.argv.pop(1)
seen = open(sys.argv.pop(1), "w", buffering=1)

def watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.chdir", "subprocess.Popen", "sqlite3.connect"):
        path = "." if arguments[0] is None else arguments[0]
        if not isinstance(path, int) and os.fsdecode(path) != ":memory:":
            path = os.path.normpath(os.path.join(folder, os.fsdecode(path)))
            if os.path.commonpath([folder, path]) == folder:
                seen.write(f"{event} {path}\\n")

sys.addaudithook(watch)
from mcp_context_proxy.cli import main
main()
"""


async def test_the_proxy_opens_nothing_in_the_folder_where_it_is_started(
    workshop: Workshop, repository: Path, tmp_path: Path
) -> None:
    workshop.server("plain", tools=[tool("go")])
    names = ("config.toml", ".env", ".mcp.json", "mcp.json", "pyproject.toml", "AGENTS.md", "CLAUDE.md")
    for name in (*names, ".netrc", "setup.cfg", "uv.toml", "logging.ini", ".cursorrules"):
        (repository / name).write_text("trap = 1\n", encoding="utf-8")
    program, seen = tmp_path / "watched.py", tmp_path / "seen"
    program.write_text(WATCHED, encoding="utf-8")
    command = [sys.executable, program, repository, seen, "--config", workshop.config(), "serve"]
    async with stdio([str(part) for part in command]) as client:
        await client.until_listed("plain__go")
        await client.call("search_available_tools", {"query": "go"})
        await client.call("plain__go")

    assert seen.read_text(encoding="utf-8") == ""
    assert not (repository / "trapped").exists()
