"""``store`` checks, copies and prunes the store of the configuration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import Workshop
from support.stores import NOW, add

from mcp_context_proxy.store.opening import open_store

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
