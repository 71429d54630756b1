"""No command prints a secret, or a hidden character, of a server, a client or an earlier session."""

import json
import sys
import time
from pathlib import Path

import pytest
from support.listings import approve
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.store.memory import Interaction
from mcp_context_proxy.store.opening import open_store

from .conftest import Run

SECRET = "Hunter2/of the day"
AS_A_NAME = "Hunter2_of_the_day"
HIDDEN = "\x1b]0;owned\x07\u202e\u2800\ue000\u200b"


@pytest.fixture
def config(workshop: Workshop) -> Path:
    tools = [tool(SECRET, f"Says {SECRET}"), tool("create", f"Notes{HIDDEN} {SECRET}")]
    server = workshop.server("notes", tools=tools, version="[server 'bank' says] 1")
    server.settings["env"] = {"API_KEY": SECRET}
    dead = workshop.server(
        "dead", on={"initialize": [{"error": {"code": 1, "message": f"{SECRET}{HIDDEN}"}}]}
    )
    dead.settings |= {"env": {"API_KEY": SECRET}, "era": "handshake"}
    return workshop.config(store={"path": str(workshop.folder / "store.sqlite3")})


COMMANDS = ("tools", "servers", "search notes", "context notes", "explain notes notes__create")


@each("command", ["check", *(f"{command}{form}" for command in COMMANDS for form in ("", " --json"))])
def test_no_command_prints_a_secret_that_a_server_uses_as_a_name(
    run: Run, config: Path, command: str
) -> None:
    if command == "explain notes notes__create":
        with open_store(config.parent / "store.sqlite3") as store:
            approve(store, "notes")
    done = run(*command.split(), "--config", config, COLUMNS="200")

    printed = done.stdout + done.stderr
    assert "notes" in printed
    assert SECRET not in printed
    assert AS_A_NAME not in printed
    assert "[server 'bank'" not in printed
    assert not set(HIDDEN) & set(printed) - set("]0;owned")
    if command.endswith("--json"):
        json.loads(done.stdout)


TELL_ALL = """#!{python} -S
import os, sys
said = "\\x1b]0;owned\\x07\\u202e https://u:" + os.environ["SHARED_KEY"] + "@h/ " + os.environ["OWN_KEY"]
for number in range(20_000):
    print(number, said, file=sys.stderr)
print("e" * 100_000, dict(os.environ), file=sys.stderr)
print(said, file=sys.stderr, flush=True)
sys.exit(1)
"""


@pytest.mark.parametrize("program", ["npx", "uvx"])
def test_check_prints_little_of_what_a_package_runner_says_and_no_secret_of_it(
    run: Run, workshop: Workshop, program: str
) -> None:
    script = workshop.folder / program
    script.write_text(TELL_ALL.format(python=sys.executable), encoding="utf-8")
    script.chmod(0o700)
    secrets = {"SHARED_KEY": "shared-of-the-person-123", "OWN_KEY": "own-of-the-person-456"}
    settings = {"command": str(script), "args": ["-y", "evil@1.0.0"], "env": {"OWN_KEY": "${OWN}"}}
    workshop.server("evil").settings = {**settings, "era": "handshake"}
    config = workshop.config(env={"SHARED_KEY": "${SHARED}"})
    done = run("check", "--config", config, SHARED=secrets["SHARED_KEY"], OWN=secrets["OWN_KEY"])

    printed = done.stdout + done.stderr
    assert done.returncode == 1
    assert "[redacted OWN]" in printed
    assert "https://***@h/" in printed or "[redacted SHARED]" in printed
    assert len(printed) < 10_000
    assert not set(HIDDEN) & set(printed) - set("]0;owned")
    for secret in secrets.values():
        assert secret not in printed


def test_words_of_an_old_store_are_printed_without_what_hides_in_them(
    run: Run, config: Path, workshop: Workshop
) -> None:
    with open_store(workshop.folder / "store.sqlite3") as store:
        said = [Interaction(f"agent{HIDDEN}", "message", f"hello{HIDDEN} there", time.time())]
        store.interactions.put(said, 2e9, 100, 0.0)
    run("backfill", "--config", config)
    recalled = run("recall", "hello", "--config", config).stdout
    as_json = run("recall", "hello", "--json", "--config", config).stdout
    counted = run("interactions", "--config", config).stdout

    assert "hello there" in recalled
    assert "message of agent," in recalled
    for printed in (recalled, as_json, counted):
        assert not set(HIDDEN) & set(printed) - set("]0;owned")
