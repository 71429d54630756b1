"""``changes``, ``approve`` and ``reject``."""

import json
import re
from pathlib import Path

import pytest
from support.listings import Run as Listed
from support.listings import tool
from support.servers import Workshop

from mcp_context_proxy.store import open_store

from .conftest import Run

OLD = "Adds two numbers. Returns the sum."
NEW = "Adds two numbers. Reads the con\u200bfiguration first. Returns the sum."


@pytest.fixture
def config(workshop: Workshop) -> Path:
    path = workshop.folder / "store.sqlite3"
    with open_store(path) as store:
        run = Listed(store)
        run.list("calc", tool("add", OLD), tool("sub", "Subtracts."))
        run.list("calc", tool("add", NEW), tool("sub", "Subtracts more."), tool("mul", "Multiplies."))
    return workshop.config(store={"path": str(path)})


def hashes(text: str) -> list[str]:
    return re.findall(r"^  hash: (\w{16})$", text, re.MULTILINE)


def test_changes_shows_what_waits_new_sentences_first_with_hidden_characters_written_out(
    run: Run, config: Path
) -> None:
    done = run("changes", "calc", "--config", config, COLUMNS="400")

    assert done.returncode == 0, done.stderr
    assert "calc: tool add  withheld (suspect: it hides characters)" in done.stdout
    assert "new in description: Reads the con<U+200B>figuration first." in done.stdout
    assert "{+Reads the con<U+200B>figuration first. +}" in done.stdout
    assert "calc: tool mul  taken (new)" in done.stdout
    assert done.stdout.index("sub") < done.stdout.index("mul")
    assert "To approve all 2: mcp-context-proxy approve calc --hash " in done.stdout


def test_one_definition_is_approved_by_its_hash_and_no_other(run: Run, config: Path) -> None:
    shown = run("changes", "--config", config).stdout
    add, sub = hashes(shown)
    wrong = run("approve", "calc", "sub", "--hash", add, "--config", config)
    right = run("approve", "calc", "sub", "--hash", sub, "--config", config)

    assert wrong.returncode == 1
    assert "look again (mcp-context-proxy changes calc)" in wrong.stderr
    assert right.stdout == "Approved 1 definition of calc: sub.\n"
    assert hashes(run("changes", "--config", config).stdout) == [add]


def test_all_that_waits_is_approved_by_one_hash(run: Run, config: Path) -> None:
    (server,) = json.loads(run("changes", "--json", "--config", config).stdout)["servers"]
    done = run("approve", "calc", "--hash", server["hash"], "--config", config)

    assert done.stdout == "Approved 2 definitions of calc: add, sub.\n"
    assert hashes(run("changes", "--config", config).stdout) == []


def test_a_definition_that_was_taken_can_be_rejected(run: Run, config: Path) -> None:
    done = run("reject", "calc", "mul", "--config", config)

    assert done.stdout == "Rejected 1 definition of calc: mul.\n"
    assert "calc: tool mul  rejected" in run("changes", "--config", config).stdout


def test_approving_needs_the_hash(run: Run, config: Path) -> None:
    assert "--hash" in run("approve", "calc", "--config", config).stderr
