"""Versions of packages, as the files of installed ones have them, whichever way a server is started."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.programs import (
    SCRIPT_BYTES,
    package_version,
    requested_package,
    version_in_node,
    version_in_python,
)


def npm_package(modules: Path, name: str, version: str, program: str = "dist/index.js") -> Path:
    """A package as npm installs it; return its program."""
    script = modules / name / program
    script.parent.mkdir(parents=True)
    script.write_text("// a server\n", encoding="utf-8")
    described = {"name": name, "version": version, "bin": {"server": program}}
    (modules / name / "package.json").write_text(json.dumps(described), encoding="utf-8")
    return script


def python_package(prefix: Path, name: str, version: str, *, script: str = "", module: str = "") -> Path:
    """A package as pip installs it into an environment; return its script, or the interpreter."""
    packages = prefix / "lib" / "python3.12" / "site-packages"
    metadata = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (prefix / "bin").mkdir(exist_ok=True)
    if script:
        (metadata / "entry_points.txt").write_text(
            f"[console_scripts]\n{script} = x:main\n", encoding="utf-8"
        )
    (metadata / "RECORD").write_text(f"{module}/__init__.py,,\n" if module else "", encoding="utf-8")
    program = prefix / "bin" / (script or "python")
    program.write_text(f"#!{sys.executable}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def server(folder: Path, command: object, *args: object, **more: Any) -> ServerConfig:
    given = {"name": "s", "command": str(command), "args": tuple(map(str, args)), "cwd": folder, **more}
    return ServerConfig(**given)


@pytest.mark.parametrize(
    ("command", "args", "package"),
    [
        ("npx", ["-y", "@scope/server@1.2.3", "/tmp"], "@scope/server@1.2.3"),
        ("npx.cmd", ["--package=server", "other"], "server"),
        ("npx", ["-p", "server", "run-it"], "server"),
        ("npm", ["exec", "--", "server"], "server"),
        ("pnpm", ["dlx", "server@latest"], "server@latest"),
        ("bunx", ["server"], "server"),
        ("uvx", ["mcp-server-git==1.0"], "mcp-server-git==1.0"),
        ("uvx", ["--python", "3.12", "--from", "server[all]", "serve"], "server[all]"),
        ("uv", ["tool", "run", "server"], "server"),
        ("pipx", ["run", "server"], "server"),
        ("/usr/local/bin/uvx", ["server"], "server"),
        ("uv", ["run", "server.py"], None),
        ("node", ["server.js"], None),
        ("npx", ["-y"], None),
        ("npx", ["-p"], None),
    ],
)
def test_the_package_that_a_runner_downloads_is_found(
    tmp_path: Path, command: str, args: list[str], package: str | None
) -> None:
    found = requested_package(server(tmp_path, command, *args))

    assert (found and found[3]) == package


@pytest.mark.parametrize("package", ["plain-server", "@scope/server"])
def test_npx_has_the_version_of_the_package_in_its_cache(tmp_path: Path, package: str) -> None:
    modules = tmp_path / "_npx" / "0123456789abcdef" / "node_modules"
    script = npm_package(modules, package, "2.0.1-beta.3")
    npm_package(modules, "zod", "3.0.0")

    assert version_in_node(str(script), package) == "2.0.1-beta.3"
    link = modules / ".bin" / "server"
    link.parent.mkdir()
    link.symlink_to(script)
    assert version_in_node(str(link), package) == "2.0.1-beta.3"
    assert version_in_node(str(script), "zod-other") is None
    assert version_in_node("/usr/bin/node", package) is None


@pytest.mark.parametrize(
    "written", ["{", "[]", '{"version": 3}', '{"version": "latest"}', '{"version": "1 2"}']
)
def test_a_description_that_has_no_version_gives_none(tmp_path: Path, written: str) -> None:
    script = npm_package(tmp_path / "node_modules", "server", "1.0.0")
    (tmp_path / "node_modules" / "server" / "package.json").write_text(written, encoding="utf-8")

    assert version_in_node(str(script), "server") is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_in_place_of_a_description_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A server decides where it says that it is installed, and each start of it would take a thread."""
    script = npm_package(tmp_path / "node_modules", "server", "1.0.0")
    description = tmp_path / "node_modules" / "server" / "package.json"
    description.unlink()
    os.mkfifo(description)

    assert version_in_node(str(script), "server") is None


@pytest.mark.parametrize("asked", ["mcp-server-git", "MCP_Server.Git", "mcp-server-git[extra]"])
def test_uvx_and_pipx_have_the_version_in_their_environment(tmp_path: Path, asked: str) -> None:
    script = python_package(tmp_path, "mcp-server-git", "2025.9.25", script="mcp-server-git")
    python_package(tmp_path, "mcp-server-git-tools", "9.9", script="other")

    assert version_in_python(str(script), asked) == "2025.9.25"
    assert version_in_python(str(tmp_path / "mcp-server-git"), asked) is None
    assert version_in_python(str(script), "unknown") is None


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_a_runner_has_the_version_of_the_program_that_runs_in_its_group(tmp_path: Path) -> None:
    script = npm_package(tmp_path / "node_modules", "server", "1.2.3")
    with running(str(script)) as group:
        assert package_version(server(tmp_path, "npx", "-y", "server@^1"), group) == "server 1.2.3"
        assert package_version(server(tmp_path, "npx", "-y", "another"), group) == ""
    assert package_version(server(tmp_path, "npx", "-y", "server@^1"), None) == ""


def test_node_with_the_program_of_an_installed_package_has_its_version(tmp_path: Path) -> None:
    script = npm_package(tmp_path / "node_modules", "@scope/server", "4.5.6")

    assert (
        package_version(server(tmp_path, node(tmp_path), "--no-warnings", script), None)
        == "@scope/server 4.5.6"
    )


def test_a_script_under_development_has_the_digest_of_its_file_too(tmp_path: Path) -> None:
    script = tmp_path / "work" / "index.js"
    script.parent.mkdir()
    script.write_text("one", encoding="utf-8")
    (tmp_path / "work" / "package.json").write_text('{"name": "mine", "version": "0.1.0"}', encoding="utf-8")
    config = server(tmp_path, node(tmp_path), "work/index.js")
    before = package_version(config, None)
    script.write_text("two", encoding="utf-8")

    assert before.startswith("mine 0.1.0 ")
    assert package_version(config, None).startswith("mine 0.1.0 ")
    assert package_version(config, None) != before


def test_python_m_has_the_version_of_the_package_that_the_module_is_of(tmp_path: Path) -> None:
    python = python_package(tmp_path, "mcp-server-time", "2025.8.4", module="mcp_server_time")

    assert (
        package_version(server(tmp_path, python, "-m", "mcp_server_time.main"), None)
        == "mcp_server_time 2025.8.4"
    )
    assert package_version(server(tmp_path, python, "-u", "-m", "unknown"), None) == ""


def test_a_script_that_an_installation_has_made_has_the_version_of_its_package(tmp_path: Path) -> None:
    script = python_package(tmp_path, "mcp-server-time", "2025.8.4", script="mcp-server-time")

    assert package_version(server(tmp_path, script), None) == "mcp_server_time 2025.8.4"
    on_path = server(tmp_path, "mcp-server-time", env={"PATH": str(script.parent)})
    assert package_version(on_path, None) == "mcp_server_time 2025.8.4"


def test_a_program_of_its_own_has_the_digest_of_its_file_and_a_large_one_none(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_bytes(b"\x7fELF one")
    program.chmod(0o755)
    before = package_version(server(tmp_path, program), None)
    assert before.startswith("tool ")
    program.write_bytes(b"\x7fELF two")
    assert package_version(server(tmp_path, program), None) != before
    with program.open("r+b") as file:
        file.truncate(SCRIPT_BYTES + 1)
    assert package_version(server(tmp_path, program), None) == ""


def test_a_url_and_a_program_that_is_not_there_have_no_version(tmp_path: Path) -> None:
    assert package_version(ServerConfig(name="s", url="https://calc.example/mcp"), None) == ""
    assert package_version(server(tmp_path, "no-such-program-anywhere"), None) == ""
    assert package_version(server(tmp_path, "python", "-c", "pass"), None) == ""


@contextmanager
def running(script: str) -> Iterator[int]:
    """A process that has the path of a script among its arguments, as node has; yields its group."""
    waiting = [sys.executable, "-c", "input()", script]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, start_new_session=True) as process:
        # A program has no arguments yet in the moment in which it replaces the process that started it.
        while script not in Path(f"/proc/{process.pid}/cmdline").read_text(encoding="utf-8"):
            time.sleep(0.01)
        yield process.pid
        process.kill()


def node(folder: Path) -> Path:
    """A program that is called node, whether this machine has one or not."""
    program = folder / "bin" / "node"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    return program
