"""``check --pin`` writes the versions that ran, and nothing else, into the configuration."""

import json
import shlex
from pathlib import Path

import pytest
from support.servers import PROGRAM, Server, Workshop, tool
from support.tables import each

from mcp_context_proxy.cli.pins import pin, unpinned, version_that_runs, write_keeping
from mcp_context_proxy.config import ServerConfig, load

from .conftest import Run

TEXT = """# My servers
[servers.node]   # from npm
command = 'npx'
args = ['-y', '@scope/desk@latest', "@scope/desk@latest"]

[servers.python]
command = "uvx"
args = [
  "--from",
  "some-desk",  # no version
  "desk",
]
"""


def run_by(server: Server, folder: Path, runner: str, package: str, program: Path) -> None:
    """Have a runner start a server from its cache, as `npx` and `uvx` do."""
    program.parent.mkdir(parents=True)
    text = f"import runpy\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    program.write_text(text, encoding="utf-8")
    command = [server.command[0], "-I", "-S", str(program), str(server.path)]
    script = folder / runner
    script.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n", encoding="utf-8")
    script.chmod(0o755)
    server.settings = {"command": str(script), "args": ["-y", package] if runner == "npx" else [package]}


@pytest.fixture
def runners(workshop: Workshop) -> Workshop:
    """A server from npm and one from PyPI, both without a version, and one of which nothing is known."""
    npx, uvx = workshop.folder / "cache" / "_npx" / "0a1b", workshop.folder / "cache" / "archive-v0" / "x"
    info = {"serverInfo": {"name": "liar", "version": "9.9.9"}}
    node = workshop.server("node", tools=[tool("a")], **info)
    run_by(node, workshop.folder, "npx", "@scope/desk@latest", npx / "node_modules" / ".bin" / "desk")
    described = npx / "node_modules" / "@scope" / "desk" / "package.json"
    described.parent.mkdir(parents=True)
    described.write_text(json.dumps({"name": "@scope/desk", "version": "2026.8.31"}), encoding="utf-8")
    python = workshop.server("python", tools=[tool("b")], **info)
    run_by(python, workshop.folder, "uvx", "some-desk", uvx / "bin" / "desk")
    (uvx / "lib" / "python3.12" / "site-packages" / "some_desk-1.4.0.dist-info").mkdir(parents=True)
    (workshop.folder / "other").mkdir()
    other = workshop.server("other", tools=[tool("c")], **info)
    run_by(other, workshop.folder / "other", "npx", "unknown", workshop.folder / "elsewhere" / "desk")
    return workshop


def test_check_tells_what_is_not_pinned_in_one_line_and_pins_what_ran(run: Run, runners: Workshop) -> None:
    config = runners.config()
    before = config.read_text(encoding="utf-8")
    warned = run("check", "--config", config, COLUMNS="1000")
    pinned = run("check", "--config", config, "--pin", COLUMNS="1000")

    told = "the newest version runs at each start: node (now 2026.8.31), python (now 1.4.0), other"
    assert told in warned.stdout, warned.stdout
    assert warned.stdout.count("pinned,") == 1
    after = before.replace("@scope/desk@latest", "@scope/desk@2026.8.31").replace(
        "some-desk", "some-desk==1.4.0"
    )
    assert config.read_text(encoding="utf-8") == after
    assert config.with_name("config.toml.bak").read_text(encoding="utf-8") == before
    assert '+args = ["-y", "@scope/desk@2026.8.31"]' in pinned.stdout
    assert "at each start: other" in pinned.stdout
    assert "9.9.9" not in warned.stdout + pinned.stdout


def test_a_pinned_server_is_searched_before_it_has_run_again(run: Run, runners: Workshop) -> None:
    config = runners.config(store={"path": "store.sqlite3"})
    run("check", "--config", config, "--pin")
    (runners.folder / "npx").unlink()
    (runners.folder / "uvx").unlink()
    listed = json.loads(run("tools", "--config", config, "--json").stdout)

    assert {one["name"] for one in listed["tools"]} >= {"node__a", "python__b"}, listed


def test_a_server_that_was_just_pinned_has_the_time_of_a_first_start(run: Run, runners: Workshop) -> None:
    """A runner keeps each version apart, so the next start downloads the pinned one."""
    config = runners.config(
        store={"path": "store.sqlite3"}, limits={"connect_seconds": 0.2, "first_start_seconds": 60.0}
    )
    pinned = run("check", "--config", config, "--pin")
    for runner in ("npx", "uvx"):
        script = runners.folder / runner
        script.write_text(
            script.read_text(encoding="utf-8").replace("exec", "sleep 0.6\nexec"), encoding="utf-8"
        )
    again = run("check", "--config", config)

    assert "+args" in pinned.stdout, pinned.stdout
    assert "ok       node: " in again.stdout, again.stdout
    assert "ok       python: " in again.stdout, again.stdout


def test_the_file_of_a_host_is_pinned_only_if_that_is_said(run: Run, runners: Workshop) -> None:
    config = runners.folder / "mcp.json"
    settings = runners.servers["node"].settings | {"env": {"LEVEL": "v4lue-0f-a-variable"}}
    text = json.dumps({"mcpServers": {"My Node": settings}, "theme": "dark"})
    config.write_text(text, encoding="utf-8")
    shown = run("check", "--config", config, "--pin", COLUMNS="1000")
    untouched = config.read_text(encoding="utf-8")
    run("check", "--config", config, "--pin", "--host-file", COLUMNS="1000")

    assert untouched == text
    assert "@scope/desk@2026.8.31" in shown.stdout
    assert "v4lue-0f-a-variable" not in shown.stdout
    assert "belongs to a host: nothing written" in shown.stdout
    assert config.read_text(encoding="utf-8") == text.replace("@latest", "@2026.8.31")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_comments_quotes_and_other_strings_stay_as_they_are(tmp_path: Path, newline: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(TEXT.replace("\n", newline).encode())
    file.chmod(0o600)
    pins = {
        name: (found, one, "1.2.3")
        for name, one in load(file, {}).servers.items()
        if (found := unpinned(one))
    }
    change = pin(file, pins).change
    backup = write_keeping(change)
    file.write_bytes(backup.read_bytes())
    again = write_keeping(change)

    wanted = TEXT.replace("'@scope/desk@latest'", "'@scope/desk@1.2.3'").replace(
        '"some-desk"', '"some-desk==1.2.3"'
    )
    assert file.read_bytes() == wanted.replace("\n", newline).encode()
    assert [place.name for place in (backup, again)] == ["config.toml.bak", "config.toml.bak2"]
    assert {place.stat().st_mode & 0o777 for place in (file, backup, again)} == {0o600}


def test_an_argument_with_a_variable_is_left_to_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[servers.s]\ncommand = 'npx'\nargs = ['${PACKAGE}']\n", encoding="utf-8")
    server = load(file, {"PACKAGE": "desk"}).servers["s"]
    found = unpinned(server)
    assert found is not None
    pinning = pin(file, {"s": (found, server, "1.0.0")})

    assert (pinning.change.after, pinning.by_hand) == (pinning.change.before, ("s",))
    assert version_that_runs(server, found, None) is None


@each(
    ("command", "args", "package"),
    [
        ("npx", ["-y", "@scope/server"], "@scope/server"),
        ("npx", ["-y", "@scope/server@latest"], "@scope/server"),
        ("npx", ["-p", "server", "run"], "server"),
        ("/usr/bin/npx", ["--package=server", "run"], "server"),
        ("uvx", ["some-server"], "some-server"),
        ("uvx", ["--python", "3.12", "some-server>=1"], "some-server"),
        ("npx", ["-y", "@scope/server@^1.0"], "@scope/server"),
        ("npx", ["-y", "@scope/server@1.2.3"], None),
        ("uvx", ["some-server==1.2"], None),
        ("uvx", ["--from", "git+https://example.com/x", "x"], None),
        ("npx", ["./here"], None),
        ("node", ["server.js"], None),
        ("npm", ["exec", "-y", "server"], "server"),
        ("npm", ["run", "server"], None),
        ("pnpm", ["dlx", "server"], "server"),
        ("pnpx", ["server"], "server"),
        ("cmd", ["/c", "npx", "-y", "server"], "server"),
        ("cmd.exe", ["/C", "npx.cmd", "server"], "server"),
        ("cmd", ["/c", "npx", "server@1.2.3"], None),
        ("uv", ["tool", "run", "some-server"], "some-server"),
        ("uv", ["run", "server.py"], None),
        ("pipx", ["run", "some-server==1.2"], None),
        ("docker", ["run", "-i", "--rm", "-e", "TOKEN", "ghcr.io/owner/server"], "ghcr.io/owner/server"),
        ("docker", ["run", "-it", "--init", "--name", "x", "server:latest", "serve"], "server"),
        ("docker", ["run", "--network=host", "localhost:5000/server"], "localhost:5000/server"),
        ("docker", ["run", "-i", "--rm", "server:1.2"], None),
        ("docker", ["run", "-v", "/a:/b:ro", "server@sha256:0123"], None),
        ("docker", ["run", "localhost:5000/server:v1"], None),
        ("docker", ["exec", "-i", "container", "server"], None),
        ("docker", ["run", "--help"], None),
    ],
)
def test_a_runner_without_a_version_and_an_image_without_a_tag_are_warned_about(
    command: str, args: list[str], package: str | None
) -> None:
    found = unpinned(ServerConfig(name="s", command=command, args=tuple(args)))

    assert (found is None) == (package is None)
    assert found is None or found.package == package
