import json
import sqlite3
from pathlib import Path

import pytest
from support.servers import Workshop, tool

from .conftest import Run


@pytest.fixture
def store(workshop: Workshop) -> Path:
    return workshop.folder / "store.sqlite3"


@pytest.fixture
def config(workshop: Workshop, store: Path) -> Path:
    workshop.server("desk", tools=[tool("create_note", "Write a note"), tool("delete_note", "Delete a note")])
    return workshop.config(store={"path": str(store)})


def keys(store: Path) -> int:
    connection = sqlite3.connect(store)
    try:
        (count,) = connection.execute("SELECT count(*) FROM vectors").fetchone()
        return int(count)
    finally:
        connection.close()


def test_everything_is_indexed_and_kept_for_the_first_search(run: Run, config: Path, store: Path) -> None:
    done = run("index", "--config", config)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Indexed 2 tools and 0 documents in ")
    assert keys(store) == 2


def test_check_indexes_the_tools_of_the_servers_it_has_started(run: Run, config: Path, store: Path) -> None:
    assert run("check", "--config", config).returncode == 0
    assert keys(store) == 2


def test_a_rebuild_forgets_outdated_vectors(run: Run, config: Path, store: Path) -> None:
    run("index", "--config", config)
    connection = sqlite3.connect(store)
    with connection:
        connection.execute("INSERT INTO vectors (model_id, key, vector) VALUES ('old', x'00', x'00000000')")
    connection.close()

    done = run("index", "--rebuild", "--json", "--config", config)

    facts = json.loads(done.stdout)
    assert (facts["tools"], facts["documents"], facts["failed"]) == (2, 0, {})
    assert facts["store"] == str(store)
    assert keys(store) == 2


def test_a_failed_server_is_reported_and_the_command_fails(run: Run, workshop: Workshop, store: Path) -> None:
    config = workshop.folder / "config.toml"
    config.write_text('[store]\npath = "memory"\n[servers.gone]\ncommand = "no-such-program"\n', "utf-8")
    done = run("index", "--config", config)

    assert done.returncode == 1
    assert "Server gone has failed and was not indexed" in done.stdout
