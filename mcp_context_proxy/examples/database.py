"""A SQLite file in the data folder, opened anew for each call: any thread, any number of processes."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from mcp_context_proxy.examples.data import data_folder

BUSY_SECONDS = 10
"""How long a call waits for another process that is writing."""


class Database:
    """One database file and the tables it must have."""

    def __init__(self, name: str, tables: str) -> None:
        self._name, self._tables = name, tables

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """A connection; what was written is kept when the block ends well, and undone when it raises."""
        path = data_folder() / f"{self._name}.sqlite"
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA foreign_keys = ON")
            connection.executescript(self._tables)
            with connection:
                # Immediate, so that what a call reads is still true when it writes.
                connection.execute("BEGIN IMMEDIATE")
                yield connection


def matching(columns: tuple[str, ...], query: str) -> tuple[str, list[str]]:
    """A condition that is true where every word of ``query`` is in one of the columns, and its values."""
    words = [word.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") for word in query.split()]
    text = " || ' ' || ".join(columns)
    clauses = [f"({text}) LIKE ? ESCAPE '\\'" for _ in words]
    return " AND ".join(clauses) or "1", [f"%{word}%" for word in words]
