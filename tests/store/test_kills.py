"""Writers that are killed at any moment lose nothing that they acknowledged, and the store stays sound."""

import random
import sqlite3
import sys
import threading
from contextlib import closing

import numpy as np
import pytest
from support.stores import quick_folder
from support.writers import TOGETHER, writers

from mcp_context_proxy.store.opening import open_store

pytestmark = [
    pytest.mark.slow(times=10),
    pytest.mark.skipif(sys.platform == "win32", reason="needs processes that fork"),
]

KILLS = [
    pytest.param(50, marks=pytest.mark.smaller),
    pytest.param(200, marks=pytest.mark.full_cross),
    pytest.param(500, marks=pytest.mark.nightly),
]
LONGEST_SECONDS = 0.01
"""Time that a writer goes on after the next one has begun: some tens of transactions."""


@pytest.mark.parametrize("kills", KILLS)
def test_kills_while_another_writes_leave_a_sound_store_with_all_that_was_acknowledged(kills: int) -> None:
    moments = random.Random(20_261_122)
    with quick_folder() as folder:
        path = folder / "store.sqlite3"
        open_store(path).close()
        with writers(path) as started, closing(sqlite3.connect(path)) as connection:
            started.start("writer-0")
            for kill in range(kills):
                started.start(f"writer-{kill + 1}")
                # The moment itself is what is tried, so it is no wait for anything.
                threading.Event().wait(moments.uniform(0, LONGEST_SECONDS))
                name = f"writer-{kill}"
                acknowledged = started.kill(name)
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                rounds, calls, context = written(connection, name)
                # One more at most: written, and killed before it could say so.
                assert len(rounds) == 1
                assert acknowledged <= context <= calls <= min(rounds) <= acknowledged + 1
        with open_store(path) as store:
            assert store.warning is None
        assert not list(folder.glob("*corrupt*"))


def written(connection: sqlite3.Connection, name: str) -> tuple[set[float], int, int]:
    """Return the round that each table of a writer was last written in."""
    blobs = connection.execute("SELECT vector FROM vectors WHERE model_id = ?", (name,)).fetchall()
    assert len(blobs) == TOGETHER
    ((calls,),) = connection.execute("SELECT calls FROM tool_usage WHERE tool = ?", (name,)).fetchall()
    ((context,),) = connection.execute("SELECT context FROM requests WHERE id = ?", (name,)).fetchall()
    return {float(value) for (blob,) in blobs for value in np.frombuffer(blob, "<f4")}, calls, int(context)
