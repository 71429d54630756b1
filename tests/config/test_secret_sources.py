"""Values of the configuration from the keyring, from commands and from files."""

import json
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support import fake_keyring
from support.fake_keyring import FakeKeyring
from support.tables import each

from mcp_context_proxy.config import Config, load, variables
from mcp_context_proxy.config.secrets import all_secrets_of
from mcp_context_proxy.config.variables import store_secret

ENVIRON = {"PATH": "/nowhere", "KNOWN": "from-the-environment"}


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> FakeKeyring:
    return fake_keyring.install(monkeypatch)


def loaded(folder: Path, env: dict[str, str], head: str = "", **more: Any) -> Config:
    """A configuration with one server that has these variables."""
    lines = [head, "[servers.s]", 'command = "x"', "[servers.s.env]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in env.items()]
    file = folder / "config.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    file.chmod(0o600)
    return load(file, ENVIRON, **more)


def printing(script: str) -> str:
    """A command that runs a Python program."""
    return f"${{cmd:{shlex.join([sys.executable, '-I', '-c', script])}}}"


ALLOWED = "[secrets]\ncommands = true"


def test_a_secret_of_the_keyring_is_a_value_and_is_redacted(keyring: FakeKeyring, tmp_path: Path) -> None:
    store_secret("github", "ghp_fr0m-the-keyring")
    config = loaded(tmp_path, {"A": "Bearer ${keyring:github}", "B": "${keyring:github}"})

    assert config.servers["s"].env == {"A": "Bearer ghp_fr0m-the-keyring", "B": "ghp_fr0m-the-keyring"}
    assert ("keyring:github", "ghp_fr0m-the-keyring") in all_secrets_of(config)
    assert keyring.asked.count("github") == 2  # stored once, read once


def test_a_secret_that_is_not_there_switches_its_server_off_and_says_what_to_do(
    keyring: FakeKeyring, tmp_path: Path
) -> None:
    config = loaded(tmp_path, {"A": "${keyring:gone}"})

    assert config.servers == {}
    assert "the keyring has no secret gone" in str(config.off["s"])
    assert config.off["s"].problems[0].remedy == "run: mcp-context-proxy secret set gone"


def test_without_the_package_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    problem = loaded(tmp_path, {"A": "${keyring:x}"}).off["s"].problems[0]

    assert problem.message == "the package keyring is not installed"
    assert problem.remedy == "run: pip install 'mcp-context-proxy[keyring]'"


def test_a_keyring_that_fails_is_asked_once_and_its_reason_is_told(
    keyring: FakeKeyring, tmp_path: Path
) -> None:
    keyring.error = RuntimeError("no\x1b[31m\nbackend")
    config = loaded(tmp_path, {"A": "${keyring:x}", "B": "${keyring:x}"})

    assert config.off["s"].problems[0].message == "the keyring cannot be used: no [31m backend"
    assert keyring.asked == ["x"]


def test_a_keyring_that_waits_for_a_person_does_not_keep_the_proxy_waiting(
    keyring: FakeKeyring, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unlocked = threading.Event()
    monkeypatch.setattr(keyring, "get_password", lambda service, user: unlocked.wait())
    monkeypatch.setattr(variables, "KEYRING_SECONDS", 0.05)
    problem = loaded(tmp_path, {"A": "${keyring:x}"}).off["s"].problems[0]
    unlocked.set()

    assert problem.message == "the keyring did not answer within 0.05 s"
    assert "unlock" in problem.remedy


@pytest.mark.parametrize("name", ["", ":names", "a b", "a/b", "x" * 65])
def test_a_name_that_no_secret_can_have_is_refused(keyring: FakeKeyring, tmp_path: Path, name: str) -> None:
    problem = loaded(tmp_path, {"A": f"${{keyring:{name}}}"}).off["s"].problems[0]

    assert problem.message == "the name of a secret is 1 to 64 of A-Z a-z 0-9 _ . -"
    assert keyring.asked == []


def test_the_output_of_a_command_is_a_value_and_is_redacted(tmp_path: Path) -> None:
    one = printing("import os; print('0ne-value-of', os.environ['KNOWN'])")
    two = printing("print('tw0-values')")
    config = loaded(tmp_path, {"A": one, "B": two}, ALLOWED)

    assert config.servers["s"].env == {"A": "0ne-value-of from-the-environment", "B": "tw0-values"}
    assert {"0ne-value-of from-the-environment", "tw0-values"} <= {
        value for _, value in all_secrets_of(config)
    }


@pytest.mark.parametrize("head", ["", "[secrets]\ncommands = false"])
def test_no_command_runs_unless_the_file_allows_it(tmp_path: Path, head: str) -> None:
    written = tmp_path / "written"
    command = printing(f"open({str(written)!r}, 'w')")
    config = loaded(tmp_path, {"A": command}, head, overrides={"secrets.commands": True})

    assert "${cmd:...} is off; commands = true under [secrets] allows it" in str(config.off["s"].problems[0])
    assert not written.exists()


def test_the_content_of_a_file_is_a_value_and_is_redacted(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0ne-key-of-a-file\n", encoding="utf-8")
    config = loaded(tmp_path, {"A": "${file:key}", "B": f"x ${{file:{tmp_path / 'key'}}}"})

    assert config.servers["s"].env == {"A": "0ne-key-of-a-file", "B": "x 0ne-key-of-a-file"}
    assert "0ne-key-of-a-file" in {value for _, value in all_secrets_of(config)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\n", "has nothing"),
        (b"\xff", "has something that is no text"),
        (b"x" * 70_000, "has more than 65,536 bytes"),
    ],
)
def test_a_file_without_a_value_switches_its_server_off_and_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    problem = loaded(tmp_path, {"A": "${file:key}"}).off["s"].problems[0]

    assert problem.message == f"{tmp_path / 'key'} {message}"


@each(
    ("path", "message"),
    [
        ("pipe", "it is not a regular file"),
        ("~nobody-has-this-name/key", "Could not determine home directory."),
        ("a\0b", ""),  # each Python has its own words
    ],
)
def test_a_path_that_leads_to_no_file_keeps_nobody_waiting(tmp_path: Path, path: str, message: str) -> None:
    if not (tmp_path / "pipe").exists():
        os.mkfifo(tmp_path / "pipe")
    problem = loaded(tmp_path, {"A": f"${{file:{path}}}"}).off["s"].problems[0]

    assert problem.message.startswith(f"{tmp_path / path} cannot be read: {message}")


@pytest.mark.parametrize("reference", ["${file:key}", "${keyring:KEY}"])
def test_no_file_and_no_keyring_is_read_for_the_file_of_a_host(tmp_path: Path, reference: str) -> None:
    (tmp_path / "key").write_text("0ne-key-of-a-file", encoding="utf-8")
    file = tmp_path / "mcp.json"
    servers = {"s": {"command": "x", "env": {"A": reference}}}
    file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    file.chmod(0o600)

    assert "nothing is read or run for the file of a host" in str(load(file, ENVIRON).off["s"])


def test_no_command_runs_for_the_file_of_a_host(tmp_path: Path) -> None:
    written = tmp_path / "written"
    server = {"command": "x", "env": {"A": printing(f"open({str(written)!r}, 'w')")}}
    file = tmp_path / "mcp.json"
    file.write_text(
        json.dumps({"mcpServers": {"s": server}, "secrets": {"commands": True}}), encoding="utf-8"
    )
    file.chmod(0o600)
    config = load(file, ENVIRON)

    assert "nothing is read or run for the file of a host" in str(config.off["s"])
    assert not written.exists()


@each(
    ("command", "message"),
    [
        ("${cmd:}", "${cmd:} names no program"),
        ("${cmd:'x}", "cannot be split into words"),
        ("${cmd:/nowhere/x y}", "${cmd:/nowhere/x ...} cannot be run: No such file"),
        (printing("pass"), "printed nothing"),
        (printing("print('x' * 70_000)"), "printed more than 65,536 bytes"),
        (printing("while True: print('x' * 1_000)"), "printed more than 65,536 bytes"),
        (
            printing("import sys; sys.stderr.write('no' * 1_000_000); sys.exit(3)"),
            "ended with exit code 3: nono",
        ),
        (printing("raise SystemExit('not\\nsigned in')"), "exit code 1: not signed in"),
        (printing("import sys; sys.stdout.buffer.write(bytes(range(256)))"), "that is no text"),
        (printing("print('a;b', '$KNOWN', '`id`', '|cat')"), ""),
    ],
)
def test_a_command_that_gives_no_value_is_told_with_its_reason(
    tmp_path: Path, command: str, message: str
) -> None:
    config = loaded(tmp_path, {"A": command}, ALLOWED)

    if message:
        assert message in str(config.off["s"])
    else:
        assert config.servers["s"].env["A"] == "a;b $KNOWN `id` |cat"


def test_a_command_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(variables, "COMMAND_SECONDS", 0.2)
    config = loaded(tmp_path, {"A": printing("input() if 0 else __import__('time').sleep(600)")}, ALLOWED)

    assert "did not end within 0.2 s" in str(config.off["s"])
