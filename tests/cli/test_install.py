"""``install``, ``uninstall``, ``import``, ``add``, ``remove`` and ``init`` on a machine with hosts."""

import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from support.tables import each

from mcp_context_proxy.installation import HOST_PLACES
from mcp_context_proxy.installation.journal import HOOK_PLACES

from .conftest import Run

CALCULATOR = [sys.executable, "-m", "mcp_context_proxy.examples", "calculator"]


@pytest.fixture
def home(environment: dict[str, str]) -> Path:
    home = Path(environment["HOME"])
    (home / ".cursor").mkdir(parents=True)
    return home


@pytest.fixture
def cursor(home: Path) -> Path:
    file = home / ".cursor" / "mcp.json"
    entry = {"command": CALCULATOR[0], "args": CALCULATOR[1:], "env": {"DESK_KEY": "k-0123456789"}}
    file.write_text(json.dumps({"mcpServers": {"desk": entry}}, indent=2), "utf-8")
    return file


def configured(home: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((home / "mcp-context-proxy" / "config.toml").read_text("utf-8"))
    return found


def test_install_moves_servers_tries_them_and_uninstall_gives_the_file_back(
    run: Run, home: Path, cursor: Path
) -> None:
    before = cursor.read_bytes()
    done = run("install", "--yes")
    assert done.returncode == 0, done.stderr
    assert "k-0123456789" not in done.stdout + done.stderr
    assert "1 server behind the proxy, for 1 host\n" in done.stdout
    assert "Connected: Cursor" in done.stdout
    assert "ok       desk: " in done.stdout
    assert "  Cursor  restart it" in done.stdout
    assert "uninstall" in done.stdout
    assert list(json.loads(cursor.read_bytes())["mcpServers"]) == ["context-proxy"]
    assert "desk" in configured(home)["servers"]  # type: ignore[operator]
    back = run("uninstall", "--yes")
    assert (back.returncode, cursor.read_bytes()) == (0, before), back.stderr
    assert "as it was" in back.stdout


def test_uninstall_names_a_moved_server_whose_name_another_one_has_by_now(
    run: Run, home: Path, cursor: Path
) -> None:
    run("install", "--yes", "--no-check")
    settings = json.loads(cursor.read_bytes())
    settings["mcpServers"]["desk"] = {"command": "another"}
    cursor.write_text(json.dumps(settings), "utf-8")

    assert "desk stays, as it is there now." in " ".join(run("uninstall", "--yes").stdout.split())
    assert json.loads(cursor.read_bytes())["mcpServers"] == {"desk": {"command": "another"}}
    assert "desk" in configured(home)["servers"]  # type: ignore[operator]


def test_no_change_shows_a_secret_and_a_file_that_gets_one_is_private(
    run: Run, home: Path, cursor: Path
) -> None:
    """In whatever an entry has them, and in the lines around it, which are shown as well."""
    secrets = [
        *(
            "ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaa11",
            "sup3r-s3cret-neighbour",
            "hunter2hunter2",
            "k3y-1n-an-argument",
        ),
        *("t0k3n-1nline", "3nv-v4lue", "p4ssw0rd-url", "qu3ry-t0k3n", "h34der-value", 'qu0"te\\d'),
        *("st4ys-1n-1ts-host", "f0r-the-wh0le-host", "Zk9xQ2mP7vT4wB8nR1yL"),
    ]
    token, neighbour, comment, argument, inline, variable, password, query, header, quoted, *others = secrets
    url = f"https://u:{password}@example.com/s/{others[2]}/mcp?token={query}"
    entries = {
        "a": {"command": "x", "args": ["--api-key", argument, f"--token={inline}"], "env": {"A": variable}},
        "b": {"url": url, "headers": {"Authorization": f"Bearer {header}", "X": quoted}},
        "stays": {"command": "./x", "env": {"A": others[0]}},
    }
    settings = home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"env": {"A": others[1]}}), "utf-8")
    cursor.write_text(
        f'{{\n  // once {token}\n  "apiKey": "{neighbour}",\n  // old password: {comment}\n'
        f'  "mcpServers": {json.dumps(entries)}\n}}\n',
        "utf-8",
    )
    config = home / "mcp-context-proxy" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text("", "utf-8")
    config.chmod(0o644)
    shown = run("install", "cursor", "--yes", "--no-check").stdout + run("uninstall", "--dry-run").stdout
    shown += run("hook", "install", "claude-code", "--dry-run").stdout

    assert shown.count("[servers.a]") == 1
    assert ("stays stays: " in shown, "hook run claude-code" in shown) == (True, True)
    assert not [one for one in secrets if one in shown or json.dumps(one)[1:-1] in shown]
    assert config.stat().st_mode & 0o077 == 0


def test_a_setting_that_is_no_secret_is_shown_whatever_its_name(run: Run, tmp_path: Path) -> None:
    """VS Code marks an input as a password; the brackets after it belong to the file."""
    folder = tmp_path / ".config" / "Code" / "User"
    folder.mkdir(parents=True)
    line = '"inputs": [{"id": "key", "password": true}],'
    (folder / "mcp.json").write_text(f'{{\n  {line}\n  "servers": {{"a": {{"command": "x"}}}}\n}}\n')
    done = run(
        "install", "vscode", "--dry-run", HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / ".config")
    )

    assert line in done.stdout


@each(("written", "shown"), [("${DOCS_TOKEN}", "${DOCS_TOKEN}"), ("${DOCS_TOKEN:-abc}", "${DOCS_TOKEN:***}")])
def test_a_header_that_names_a_variable_is_shown_without_its_default(
    written: str, shown: str, run: Run, cursor: Path
) -> None:
    remote = {"url": "https://example.com/mcp", "headers": {"Authorization": f"Bearer {written}"}}
    cursor.write_text(json.dumps({"mcpServers": {"docs": remote}}), "utf-8")

    assert f'headers = {{ Authorization = "Bearer {shown}" }}' in run("install", "--dry-run").stdout


def test_no_name_in_a_file_writes_lines_of_its_own(run: Run, cursor: Path) -> None:
    """A file to import may come from a repository that somebody has cloned."""
    forged = "x\n\nNothing was changed."
    entries = {
        forged: {"command": "x"},
        f"{forged}.": {"command": "./x"},
        f"{forged} ": {"command": "y", "a\nNo": 1},
    }
    cursor.write_text(json.dumps({"mcpServers": entries}), "utf-8")
    commands = ["import", cursor, "--dry-run"], ["install", "--dry-run"]
    told = [run(*command, COLUMNS="1000").stdout for command in commands]

    assert [[line for line in text.splitlines() if line.startswith("No")][:-1] for text in told] == [[], []]


def test_moved_server_that_does_not_start_is_told_and_can_be_given_back(run: Run, cursor: Path) -> None:
    cursor.write_text('{"mcpServers": {"gone": {"command": "/no/such/program"}}}', "utf-8")
    before = cursor.read_bytes()
    done = run("install", "--yes")
    assert done.returncode == 1
    assert "PROBLEM  gone:" in done.stdout
    assert "0 of 1 server work" in done.stdout
    assert "uninstall" in done.stdout
    run("uninstall", "--yes")
    assert cursor.read_bytes() == before


@pytest.mark.parametrize(
    "command", [["install", "--yes"], ["import", "cursor"], ["add", "x", "--no-check", "--", "x"], ["init"]]
)
def test_place_that_cannot_be_written_is_said_in_a_sentence_and_no_host_changes(
    run: Run, home: Path, cursor: Path, command: list[str]
) -> None:
    """As on a disk that is full or read-only."""
    before = cursor.read_bytes()
    (home / "mcp-context-proxy").write_text("in the way", "utf-8")
    done = run(*command)
    assert done.returncode == 1
    assert "config.toml cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert cursor.read_bytes() == before


@pytest.mark.parametrize("folder", [".cache/uv/archive-v0/aB1/bin", ".cache/pipx/1f/bin"])
def test_no_host_is_told_to_start_a_program_that_its_runner_deletes(
    folder: str, run: Run, home: Path, cursor: Path
) -> None:
    program = home / folder / "mcp-context-proxy"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(0o755)
    before = cursor.read_bytes()
    done = run("install", "--yes", PATH=f"{program.parent}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "uv tool install mcp-context-proxy" in done.stderr
    assert cursor.read_bytes() == before
    assert not (home / "mcp-context-proxy" / "config.toml").exists()


def test_host_whose_copy_cannot_be_kept_is_not_changed_and_not_called_connected(
    run: Run, home: Path, cursor: Path
) -> None:
    before, file = cursor.read_bytes(), home / "file"
    file.write_text("", "utf-8")
    done = run("install", "--yes", "--no-check", XDG_DATA_HOME=str(file / "data"), COLUMNS="400")
    assert done.returncode == 1
    assert "Cursor: nothing was changed:" in done.stdout
    # The end of a line may be within a path, wherever the tests have their folders.
    assert str(file / "data") in done.stdout.replace("\n", "")
    assert "Connected" not in done.stdout
    assert "restart it" not in done.stdout
    assert cursor.read_bytes() == before


def test_host_whose_file_is_a_link_to_itself_is_told_in_a_sentence(run: Run, cursor: Path) -> None:
    cursor.unlink()
    cursor.symlink_to(cursor)
    done = run("install", "cursor", "--yes", "--no-check")

    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "Too many levels of symbolic links" in " ".join(done.stdout.split())


def test_dry_run_shows_the_change_and_makes_none(run: Run, home: Path, cursor: Path) -> None:
    before = cursor.read_bytes()
    done = run("install", "cursor", "--dry-run")
    assert '+    "context-proxy": {' in done.stdout
    assert "[servers.desk]" in done.stdout
    assert "k-0123456789" not in done.stdout
    assert cursor.read_bytes() == before
    assert not (home / "mcp-context-proxy").exists()


@pytest.mark.parametrize(("command", "hosts"), [("install", HOST_PLACES), ("hook install", HOOK_PLACES)])
def test_help_names_the_hosts(command: str, hosts: dict[str, object], run: Run) -> None:
    words = re.split(r"[,\s]+", run(*command.split(), "--help").stdout)
    assert set(hosts) <= set(words)


def test_without_a_terminal_nothing_is_changed_unasked(run: Run, cursor: Path) -> None:
    before = cursor.read_bytes()
    done = run("install")
    assert done.returncode == 1
    assert "--yes" in done.stderr
    assert cursor.read_bytes() == before


def test_damaged_host_does_not_keep_others_from_being_connected(run: Run, home: Path, cursor: Path) -> None:
    codex = home / ".codex" / "config.toml"
    codex.parent.mkdir()
    codex.write_bytes(b"a = '\xff'")
    done = run("install", "--yes", "--no-check")
    assert done.returncode == 1
    assert f"Codex: {codex}: it is not UTF-8 text" in " ".join(done.stdout.split())
    assert codex.read_bytes() == b"a = '\xff'"
    assert "context-proxy" in json.loads(cursor.read_bytes())["mcpServers"]


def test_host_that_keeps_its_variables_is_told_those_of_the_servers_of_all_hosts(
    run: Run, home: Path, cursor: Path
) -> None:
    cursor.write_text(
        '{"mcpServers": {"desk": {"command": "/bin/desk", "env": {"KEY": "${env:DESK_KEY}"}}}}', "utf-8"
    )
    codex = home / ".codex" / "config.toml"
    codex.parent.mkdir()
    before = '[mcp_servers.mail]\ncommand = "/bin/mail"\nenv_vars = ["MAIL_KEY"]\n'
    codex.write_text(before, "utf-8")
    run("install", "--yes", "--no-check")
    ours = tomllib.loads(codex.read_text("utf-8"))["mcp_servers"]["context-proxy"]
    assert ours["env_vars"] == ["DESK_KEY", "MAIL_KEY"]
    # Codex starts a server without a variable that is not set.
    assert '\ninherit = ["MAIL_KEY"]\n' in (home / "mcp-context-proxy" / "config.toml").read_text("utf-8")
    assert "env" not in json.loads(cursor.read_text("utf-8"))["mcpServers"]["context-proxy"]
    run("uninstall", "--yes")
    assert codex.read_text("utf-8") == before


def test_uninstall_tells_of_a_prompt_hook_that_stays(run: Run, home: Path, cursor: Path) -> None:
    run("install", "--yes", "--no-check")
    run("hook", "install", "cursor")
    done = run("uninstall", "--yes")
    assert "hook uninstall cursor" in done.stdout
    run("hook", "uninstall", "cursor")
    run("install", "--yes", "--no-check")
    assert "hook" not in run("uninstall", "--yes").stdout


def test_servers_of_a_host_that_cannot_be_changed_are_in_that_host_alone(
    run: Run, home: Path, cursor: Path
) -> None:
    goose = home / "goose" / "config.yaml"
    goose.parent.mkdir()
    goose.write_text("extensions: {lamp: {type: stdio, cmd: npx, args: [lamp], enabled: true}}\n", "utf-8")

    done = run("install", "cursor", "goose", "--yes", "--no-check")

    assert done.returncode == 1
    assert "its servers are written on one line" in done.stderr + done.stdout
    assert list(configured(home)["servers"]) == ["desk"]  # type: ignore[call-overload]


def test_servers_of_projects_move_when_they_are_asked_for(run: Run, home: Path) -> None:
    file = home / ".claude.json"
    entry = {"type": "stdio", "command": CALCULATOR[0], "args": CALCULATOR[1:], "env": {}}
    file.write_text(json.dumps({"projects": {"/p/one": {"mcpServers": {"desk": entry}}}}), "utf-8")
    before = file.read_bytes()
    assert "1 server of 1 project stay" in run("install", "claude-code", "--dry-run").stdout
    connected = run("install", "claude-code", "--yes").stdout
    assert "0 servers behind the proxy, for 1 host; 1 stays in its host" in connected
    assert "No server is behind the proxy yet: 'mcp-context-proxy install --project all'" in connected
    for hosts in (["claude-code"], ["cursor"]):
        wrong = run("install", *hosts, "--project", "/p/two", "--dry-run")
        assert wrong.returncode != 0
        assert "/p/two" in wrong.stderr
    assert run("install", "claude-code", "--project", "all", "--yes", "--no-check").returncode == 0
    after = json.loads(file.read_bytes())
    assert after["projects"]["/p/one"]["mcpServers"] == {}
    assert after["mcpServers"]["context-proxy"]["alwaysLoad"] is True
    run("uninstall", "--yes")
    assert file.read_bytes() == before


def test_import_names_the_file_of_a_host_that_it_cannot_read(run: Run, home: Path) -> None:
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"mcpServers": {"a": {}')
    done = run("import", "cursor")

    assert done.returncode == 1
    assert f"mcp-context-proxy: {file}: it is not valid JSON" in done.stderr


@pytest.mark.parametrize(
    ("name", "outer"),
    [
        ("opencode.json", ("mcp",)),
        ("settings.json", ("amp.mcpServers",)),
        ("devcontainer.json", ("customizations", "vscode", "mcp", "servers")),
        ("desk.code-workspace", ("settings", "mcp", "servers")),
    ],
)
def test_import_copies_from_a_file_of_any_host(
    name: str, outer: tuple[str, ...], run: Run, home: Path, tmp_path: Path
) -> None:
    file, settings = tmp_path / name, {"desk": {"type": "local", "command": CALCULATOR}}
    for key in reversed(outer):
        settings = {key: settings}
    file.write_text(json.dumps(settings), "utf-8")
    before = file.read_bytes()
    done = run("import", file)
    assert "desk: copied as desk" in done.stdout
    assert file.read_bytes() == before
    assert configured(home)["servers"] == {"desk": {"command": CALCULATOR[0], "args": CALCULATOR[1:]}}
    assert "there already" in run("import", file).stdout


@pytest.mark.parametrize(
    ("name", "text", "server"),
    [
        (
            "crush.json",
            '{"mcp": {"a": {"url": "https://example.com/mcp", "headers": {"X": "Bearer $PAT"}}, '
            '"b": {"url": "https://example.com/b", "headers": {"X": "$(pass show b)"}}}}',
            {"url": "https://example.com/mcp", "headers": {"X": "Bearer ${PAT}"}},
        ),
        (
            "settings.json",
            '{"$version": 4, "mcpServers": '
            '{"a": {"httpUrl": "https://example.com/mcp", "headers": {"X": "$PAT"}}}}',
            {"url": "https://example.com/mcp", "headers": {"X": "${PAT}"}},
        ),
        (
            "hermes.yaml",
            "mcp_servers:\n  a:\n    command: desk\n    env: {KEY: '${PAT}'}\n"
            "    tools: {include: [look], exclude: b}",
            {"command": "desk", "env": {"KEY": "${PAT}"}, "allow": ["look"], "deny": ["b"]},
        ),
        (
            "vibe.toml",
            '[[mcp_servers]]\nname = "a"\ntransport = "streamable-http"\nurl = "https://example.com/mcp"',
            {"url": "https://example.com/mcp"},
        ),
    ],
)
def test_import_reads_variables_and_lists_as_the_host_of_a_file_does(
    name: str, text: str, server: dict[str, object], run: Run, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text, "utf-8")

    assert run("import", file).returncode == 0
    assert configured(home)["servers"] == {"a": server}


def test_server_is_added_tried_and_removed(run: Run, home: Path) -> None:
    done = run("add", "desk", "--env", "DESK_KEY=${HOME}", "--", *CALCULATOR)
    assert done.returncode == 0, done.stderr
    assert "ok       desk: " in done.stdout
    assert configured(home)["servers"] == {
        "desk": {"command": CALCULATOR[0], "args": CALCULATOR[1:], "env": {"DESK_KEY": "${HOME}"}}
    }
    again = run("add", "desk", "--no-check", "--", "other")
    assert (again.returncode, "there is a server desk already" in again.stderr) == (1, True)
    file = home / "mcp-context-proxy" / "config.toml"
    file.write_text(f"{file.read_text('utf-8')}call_timeout = 5\n", "utf-8")
    again = run("add", "lamp", "--no-check", "--env", "DESK_KEY=${HOME}", "--", *CALCULATOR)
    assert (again.returncode, "the server desk in " in again.stderr) == (1, True), again.stderr
    assert run("remove", "desk").returncode == 0
    assert "servers" not in configured(home)
    assert "there is no server desk" in run("remove", "desk").stderr


def test_a_server_that_does_not_start_stays_in_the_configuration_and_the_command_fails(
    run: Run, home: Path
) -> None:
    done = run("add", "desk", "--", "no-such-program", "--flag")

    assert done.returncode == 1
    assert "no program 'no-such-program'" in done.stdout
    told = " ".join(done.stdout.split())
    assert "desk stays in the configuration although it does not work" in told
    assert "'mcp-context-proxy remove desk' removes it" in told
    assert configured(home)["servers"] == {"desk": {"command": "no-such-program", "args": ["--flag"]}}
    assert run("add", "other", "--no-check", "--", "no-such-program").returncode == 0


def test_url_is_added_with_its_headers(run: Run, home: Path) -> None:
    run("add", "remote", "https://example.com/mcp", "--header", "Authorization=Bearer ${TOKEN}", "--no-check")
    assert configured(home)["servers"] == {
        "remote": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}
    }


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("htp://example.com/mcp", "htp://example.com/mcp is no URL of a server: one begins with http:// or"),
        ("localhost:3000/mcp", "localhost:3000/mcp is no URL of a server: one begins with http:// or"),
        ("example.com/mcp", "example.com/mcp is no URL of a server: one begins with http:// or"),
        ("npx -y @a/b", "mcp-context-proxy add desk -- npx -y @a/b"),
    ],
)
def test_what_is_neither_a_url_nor_a_program_is_not_added(run: Run, home: Path, word: str, told: str) -> None:
    done = run("add", "desk", "--", word)

    assert done.returncode == 1
    assert told in done.stderr
    assert not (home / "mcp-context-proxy" / "config.toml").exists()


def test_init_writes_a_configuration_once(run: Run, home: Path) -> None:
    assert run("init").returncode == 0
    assert configured(home) == {}
    assert "is there already" in run("init").stderr
    refused = run("init", "--config", f"{home}/mcp.json")
    assert (refused.returncode, "is not a config.toml" in refused.stderr) == (1, True)
    assert not (home / "mcp.json").exists()


@each("command", ["install", "import", "add", "remove", "init"])
def test_help_of_a_command_that_writes_a_configuration_offers_no_file_of_a_host(
    run: Run, command: str
) -> None:
    told = " ".join(run(command, "--help").stdout.split())
    assert "The config.toml to write; a file of a host is refused." in told
    assert "JSON file" not in told


def test_purge_lists_and_removes_what_was_kept(run: Run, home: Path, cursor: Path) -> None:
    run("install", "--yes", "--no-check")
    done = run("uninstall", "--purge", "--yes")
    assert done.returncode == 0, done.stderr
    assert "Removed." in done.stdout
    assert "The configuration stays in " in done.stdout
    assert (home / "mcp-context-proxy" / "config.toml").exists()


def test_purge_leaves_no_empty_folder(run: Run, tmp_path: Path, cursor: Path) -> None:
    kept = tmp_path / "kept"
    run("install", "--yes", "--no-check", XDG_DATA_HOME=str(kept))
    assert list((kept / "mcp-context-proxy").iterdir())
    run("uninstall", "--purge", "--yes", XDG_DATA_HOME=str(kept))
    assert list(kept.iterdir()) == []
