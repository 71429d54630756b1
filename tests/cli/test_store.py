"""``store`` checks, copies and prunes the store of the configuration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import Workshop
from support.stores import MODEL, NOW, add, key, vector

from mcp_context_proxy.store.memory import Interaction, Pair, UseRow
from mcp_context_proxy.store.opening import Store, open_store, tables
from mcp_context_proxy.store.statistics import DocumentUsage, SearchRow, SearchUsage, ToolUsage, UsageSlot
from mcp_context_proxy.store.tables import RequestRow

from .conftest import Run


@pytest.fixture
def config(workshop: Workshop) -> Path:
    path = workshop.folder / "store.sqlite3"
    with open_store(path) as store:
        add(store, range(5))
    return workshop.config(store={"path": str(path)})


def test_a_copy_has_the_same_content_and_is_checked(run: Run, config: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.sqlite3"
    copied = run("store", "copy", "configured", target, "--config", config)
    again = run("store", "copy", "configured", target, "--config", config)
    shown = json.loads(run("store", "check", "--json", "--config", config).stdout)

    assert "Both have the same content." in copied.stdout
    assert again.stdout == copied.stdout
    assert (shown["problem"], shown["rows"]["learned"]) == (None, 5)
    with open_store(target) as store:
        assert store.learned.count() == 5
        store.listings.put("other", NOW, b"listing")
    refused = run("store", "copy", "configured", target, "--config", config)
    assert refused.returncode == 1
    assert "not equal in listings" in refused.stderr


def test_pruning_keeps_what_the_configuration_keeps(run: Run, config: Path) -> None:
    pruned = run("store", "prune", "--config", config)

    assert pruned.returncode == 0
    assert pruned.stdout.startswith("Deleted ")
    assert "is at" in run("store", "migrate", "--config", config).stdout


def add_of(store: Store, owner: str, n: int) -> None:
    """Put a row of an owner into every table that has owners."""
    slot, rule = UsageSlot.of(NOW, owner=owner), DocumentUsage("rule", "tone", 1, 1, 1, NOW)
    pair = Pair(key(n), ("s", "t"), f"query {n}", vector(n), MODEL, 0.5, 1, NOW, NOW, owner)
    store.learned.teach(UseRow(f"u{n}", NOW, owner, "s", ("s", "t")), 0, lambda *_: ((pair,), key(n)))
    store.requests.put([RequestRow(f"r{n}", NOW, "s", b'{"n":1}', owner)], 10_000, 0.0)
    search = SearchRow(f"r{n}", NOW, key(n), "q", "search", 1, "t", None, None, 1.0, False, owner=owner)
    calls = ToolUsage("s", "t", 1, 0, 1, 2.0, 3, NOW, {1: 1})
    store.statistics.add([(slot, calls)], {slot: SearchUsage(1)}, [search], documents=[(slot, rule)])
    store.interactions.put([Interaction("agent", "message", "said", NOW, owner=owner)], NOW, 10_000, 0.0)


def test_everything_of_a_person_is_printed_and_erased_and_nothing_of_others(
    run: Run, workshop: Workshop
) -> None:
    file = workshop.folder / "persons.sqlite3"
    config = workshop.config(store={"path": str(file)})
    own, others = {"a_1", "a_1 profile:chat"}, {"", "a", "a_1x", "ax1 profile:chat"}
    owned = [table.name for table in tables() if "owner" in table.columns]

    def rows(store: Store) -> dict[str, set[str]]:
        return {name: {one for (one,) in store.database.rows(f"SELECT owner FROM {name}")} for name in owned}

    with open_store(file) as store:
        for number, owner in enumerate(sorted(own | others)):
            add_of(store, owner, number)
        assert rows(store) == dict.fromkeys(owned, own | others)
        revision = store.learned.revision()
    shown = run("store", "person", "a_1", "--config", config)
    erased = run("store", "person", "a_1", "--erase", "--config", config)
    again = run("store", "person", "a_1", "--config", config)

    printed = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {(row["table"], row["owner"]) for row in printed} == {(name, one) for name in owned for one in own}
    assert {row["context"]["n"] for row in printed if row["table"] == "requests"} == {1}
    assert shown.stdout == erased.stdout
    assert f"Deleted {len(printed)} rows of a_1." in erased.stderr
    assert (again.stdout, again.returncode) == ("", 0)
    with open_store(file) as store:
        assert rows(store) == dict.fromkeys(owned, others)
        assert {owner for owner, _ in store.learned.changes(revision).gone} == own


def test_a_database_that_is_away_is_named_without_its_password(run: Run, workshop: Workshop) -> None:
    pytest.importorskip("psycopg")
    url = "postgresql://proxy:a-long-password@127.0.0.1:1/proxy"
    done = run("store", "check", "--config", workshop.config(store={"url": url}))

    assert done.returncode == 1
    assert "postgresql://127.0.0.1:1/proxy" in done.stdout
    assert "a-long-password" not in done.stdout + done.stderr
    assert "waits in memory" in done.stderr


LAPTOP = """
import sys
from pathlib import Path
import mcp_context_proxy.app.build, mcp_context_proxy.front.http, mcp_context_proxy.cli.store
from mcp_context_proxy.store.opening import open_store
with open_store(Path(sys.argv[1])) as store:
    store.learned.all()
assert not [name for name in sys.modules if name.startswith(("psycopg", "mcp_context_proxy.store.postgres"))]
"""


def test_a_laptop_loads_nothing_of_postgresql(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LAPTOP, str(tmp_path / "store")], check=True, timeout=60)
