"""Copies all of one store into another one, such as a file into PostgreSQL or back.

Rows are copied in parts, in the order of their keys, and one that is there already is replaced by the same: a
copy that was interrupted is begun again and ends with the same. Then both stores are compared, row by row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct

from mcp_context_proxy.store.database import Database
from mcp_context_proxy.store.opening import Store, open_store

ROWS_AT_ONCE: Final = 500
"""Rows in one transaction, a megabyte of vectors."""

OF_PROCESSES: Final = frozenset({"leases", "writers"})
"""Tables that say what processes do now."""

OnCopied = Callable[[str, int], None]
"""Takes the name of a table and the number of its rows copied so far."""


class StoredTable(Struct, frozen=True):
    """A table with its columns, which it has on every database."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


class Copied(Struct, frozen=True):
    """The result of a copy."""

    rows: dict[str, int]
    """Number of rows by table."""
    different: tuple[str, ...]
    """Tables whose content is not equal: the target had something else, or one of the two is in use."""


def tables() -> list[StoredTable]:
    """Return the tables of a store, those first that others refer to."""
    with open_store("memory") as empty:
        names = empty.database.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        found = []
        for (name,) in names:
            columns = empty.database.rows("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,))
            key = sorted((place, column) for column, place in columns if place)
            found.append(
                StoredTable(name, tuple(column for column, _ in columns), tuple(each for _, each in key))
            )
    return sorted(found, key=lambda table: table.name == "interaction_vectors")


def copy(source: Store, target: Store, on_copied: OnCopied = lambda _table, _rows: None) -> Copied:
    """Copy everything, and compare. Blocks; may be called again after a break.

    Raises:
        StoreError: one of the stores cannot be used; what was copied stays.
    """
    rows, different = dict[str, int](), []
    for table in tables():
        if table.name in OF_PROCESSES:
            continue
        done = 0
        for part in _parts(source.database, table):
            with target.database.transaction() as transaction:
                transaction.put(table.name, table.columns, table.key, part)
            done += len(part)
            on_copied(table.name, done)
        rows[table.name] = done
    target.database.go_on_counting()
    for table in tables():
        if table.name not in OF_PROCESSES and digest(source, table) != digest(target, table):
            different.append(table.name)
    return Copied(rows, tuple(different))


def digest(store: Store, table: StoredTable) -> tuple[int, int]:
    """Return the number of rows of a table and the sum of their hashes, whatever their order."""
    count = total = 0
    for part in _parts(store.database, table):
        for row in part:
            told = repr(tuple(map(_told, row))).encode("utf-8", "replace")
            total += int.from_bytes(hashlib.sha256(told).digest(), "big")
        count += len(part)
    return count, total % 2**256


def _told(value: Any) -> Any:
    # PostgreSQL has no NUL in a text.
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _parts(database: Database, table: StoredTable) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table in the order of their keys."""
    columns, key = ", ".join(table.columns), ", ".join(table.key)
    places = [table.columns.index(column) for column in table.key]
    marks = ", ".join("?" * len(places))
    where, after = "", tuple[Any, ...]()
    while part := database.rows(
        f"SELECT {columns} FROM {table.name}{where} ORDER BY {key} LIMIT {ROWS_AT_ONCE}", after
    ):
        yield part
        where = f" WHERE ({key}) > ({marks})"
        after = tuple(part[-1][place] for place in places)
