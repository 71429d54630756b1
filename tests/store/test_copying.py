"""A store is copied whole, also after interruptions, whatever holds it."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from support.stores import MODEL, NOW, add, reads

from mcp_context_proxy.config import StoreConfig
from mcp_context_proxy.store.credentials import CredentialStore, SealedRow
from mcp_context_proxy.store.memory import Interaction, UseRow
from mcp_context_proxy.store.opening import OF_PROCESSES, Store, copy, digest, open_store, tables
from mcp_context_proxy.store.statistics import DocumentUsage, UsageSlot
from mcp_context_proxy.store.tables import Additions, ApprovalRow, VersionRow

ROWS = 520
"""More than are copied at once."""

_names = (f"copied{number}" for number in itertools.count())


class InterruptedCopyError(Exception):
    pass


@pytest.fixture(
    params=[
        "file to file",
        *(pytest.param(each, marks=pytest.mark.cluster) for each in ("file to postgres", "postgres to file")),
    ]
)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> list[StoreConfig]:
    def place(kind: str, name: str) -> StoreConfig:
        if kind == "file":
            return StoreConfig(path=str(tmp_path / name))
        return StoreConfig(url=request.getfixturevalue("postgres").url, namespace=next(_names))

    source, target = request.param.split(" to ")
    return [place(source, "source"), place(target, "target")]


def interrupted_after(count: int) -> Any:
    left = itertools.count(1)

    def on_copied(_table: str, _rows: int) -> None:
        if next(left) == count:
            raise InterruptedCopyError

    return on_copied


def contents(store: Store) -> dict[str, Any]:
    return {table.name: digest(store, table) for table in tables() if table.name not in OF_PROCESSES}


def fill(store: Store) -> None:
    """Put something into each table that `add` leaves empty."""
    store.interactions.forget_one(3)
    slot = UsageSlot.of(NOW, owner="ann")
    store.statistics.add([], {}, [], documents=[(slot, DocumentUsage("rule", "tone", 1, 2, 3, NOW))])
    store.learned.teach(
        UseRow("1", NOW, "ann", "session", ("s", "t1")), 0, lambda _changes, _taught: ([], None)
    )
    store.working_sets.choose("2026-01-01", 500, {("s", "t1"): "often"})
    row = ApprovalRow("s", "tool", "t1", b"1", b"2", "approved", "new", "", "", "1", "mode", NOW)
    version = VersionRow("s", "tool", "connection", "1", NOW)
    store.approvals.decide("s", lambda _: Additions((row,), {row.key: b"{}"}, (version,)))
    CredentialStore(store.database).put(SealedRow("login", "s", b"sealed", "mark", 0))


def test_a_copy_that_is_interrupted_twice_ends_with_equal_contents(places: list[StoreConfig]) -> None:
    with open_store(places[0]) as source, open_store(places[1]) as target:
        add(source, range(ROWS))
        fill(source)
        for parts in (2, 9):
            with pytest.raises(InterruptedCopyError):
                copy(source, target, interrupted_after(parts))
        copied = copy(source, target)

        assert copied.different == ()
        assert copied.rows["vectors"] == copied.rows["learned"] == ROWS
        assert [name for name, rows in copied.rows.items() if not rows] == []
        assert contents(target) == contents(source)
        some = range(0, ROWS, 7)
        assert [repr(read()) for read in reads(target, some)][6:] == [
            repr(read()) for read in reads(source, some)
        ][6:]
        (added,) = target.interactions.put([Interaction("a", "message", "new", NOW)], NOW, 10_000, 0.0)
        target.interactions.put_vectors(MODEL, {})
        assert added.id == ROWS + 1


def test_a_target_with_other_content_is_told(places: list[StoreConfig]) -> None:
    with open_store(places[0]) as source, open_store(places[1]) as target:
        add(source, range(3))
        target.listings.put("other", NOW, b"listing")

        assert copy(source, target).different == ("listings",)
