"""Data of the example servers: a private folder, the files that they share in it, and tables in SQLite."""

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Generic, TypeVar, cast

from mcp_context_proxy.examples import DATA_VARIABLE
from mcp_context_proxy.examples.functions import ToolError

BUSY_SECONDS = 10
"""Time that a call waits for another process that is writing."""

Row = TypeVar("Row")


def data_folder() -> Path:
    """The folder of all data, created if it does not exist yet.

    Raises:
        ToolError: The default folder under the system's temporary one belongs to another user.
    """
    if configured := os.environ.get(DATA_VARIABLE):
        folder = Path(configured)
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve()
    import tempfile  # noqa: PLC0415 - for the default folder only

    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(tempfile.gettempdir()) / f"mcp-context-proxy-examples-{owner}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # The temporary folder is everybody's: another user may have made this one, or a link, before us.
    if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
        raise ToolError(f"{folder} belongs to somebody else; set {DATA_VARIABLE} to a folder of your own")
    return folder.resolve()


def shared_folder() -> Path:
    """The one folder in which the servers may touch files."""
    folder = data_folder() / "files"
    folder.mkdir(exist_ok=True)
    return folder


def locate(path: str) -> Path:
    """The place of ``path`` in the shared folder, where a file may be or not.

    A path is relative, has no ``..`` and passes through no link; its target must still be inside after the
    operating system has resolved it.

    Raises:
        ToolError: The path leaves the folder or passes through a link.
    """
    root, pure = shared_folder(), PurePath(path)
    if pure.anchor or ".." in pure.parts or "\0" in path:
        raise ToolError(f"{path!r} is outside the folder; give a path relative to it, without '..'")
    place = root
    for part in pure.parts:
        place /= part
        if place.is_symlink():
            raise ToolError(f"{path!r} passes through a link, and links are not followed")
    if not place.resolve().is_relative_to(root):
        raise ToolError(f"{path!r} is outside the folder")
    return place


def existing_file(path: str) -> Path:
    """The file at ``path``.

    Raises:
        ToolError: There is none, or the path leaves the folder.
    """
    place = locate(path)
    if not place.is_file():
        problem = "is a folder, not a file" if place.is_dir() else "does not exist"
        raise ToolError(f"{path!r} {problem}; list_folder and find_files show what is there")
    return place


def relative(place: Path) -> str:
    """The path of ``place`` as tools show and accept it."""
    return place.relative_to(shared_folder()).as_posix()


class Database:
    """A SQLite file in the data folder, opened anew for each call by any thread of any process."""

    def __init__(self, name: str, schema: str) -> None:
        self._name, self._schema = name, schema

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """A connection with a transaction: committed when the block ends, undone when it raises."""
        path = data_folder() / f"{self._name}.sqlite"
        with closing(sqlite3.connect(path, BUSY_SECONDS, sqlite3.PARSE_COLNAMES)) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.executescript(self._schema)
            with connection:
                # Immediate, so that what a call reads is still true when it writes.
                connection.execute("BEGIN IMMEDIATE")
                yield connection


class SqlTable(Generic[Row]):
    """A table whose rows become typed dictionaries; SQL in its parameters comes from the servers' own code.

    Args:
        database: The file that has the table.
        name: The table's name.
        columns: Selected columns, in the order of the dictionaries. ``x AS "x [words]"`` gives a list of
            words that is stored as JSON.
        missing: Error message about a number that no row has, with ``{}`` in place of the number.
        key: Column with the number.
    """

    def __init__(
        self, database: Database, name: str, columns: str, missing: str = "", key: str = "id"
    ) -> None:
        self.database, self.name, self.columns, self.missing, self.key = database, name, columns, missing, key

    @contextmanager
    def open(self) -> Iterator["Rows[Row]"]:
        """The rows of the table in a transaction of their own."""
        with self.database.open() as connection:
            yield Rows(self, connection)


class Rows(Generic[Row]):
    """The rows of a table in a transaction."""

    def __init__(self, table: SqlTable[Row], connection: sqlite3.Connection) -> None:
        self._table, self.connection = table, connection

    def select(self, condition: str, *values: object) -> list[Row]:
        """The rows that meet the rest of a ``SELECT`` statement, such as ``WHERE title = ? ORDER BY id``."""
        sql = f"SELECT {self._table.columns} FROM {self._table.name} {condition}"
        cursor = self.connection.execute(sql, values)
        names = [column[0] for column in cursor.description]
        return [cast(Row, dict(zip(names, row, strict=True))) for row in cursor]

    def search(self, query: str, columns: str, order: str, limit: int) -> list[Row]:
        """The rows that have every word of ``query`` in one of the columns."""
        text = columns.replace(",", " || ' ' ||")
        words = [re.sub(r"([\\%_])", r"\\\1", word) for word in query.split()]
        condition = " AND ".join(f"({text}) LIKE ? ESCAPE '\\'" for _ in words) or "1"
        patterns = [f"%{word}%" for word in words]
        return self.select(f"WHERE {condition} ORDER BY {order} LIMIT ?", *patterns, limit)

    def get(self, number: int) -> Row:
        """One row.

        Raises:
            ToolError: No row has this number.
        """
        found = self.select(f"WHERE {self._table.key} = ?", number)
        if not found:
            raise ToolError(self._table.missing.format(number))
        return found[0]

    def add(self, **values: object) -> Row:
        """Insert a row and return it with its number."""
        marks = ", ".join("?" for _ in values)
        sql = f"INSERT INTO {self._table.name} ({', '.join(values)}) VALUES ({marks})"
        return self.get(self.connection.execute(sql, (*values.values(),)).lastrowid or 0)

    def change(self, number: int, **values: object) -> Row:
        """Set columns of a row, those with a value of None excepted, and return it."""
        kept = {column: value for column, value in values.items() if value is not None}
        if kept:
            assignments = ", ".join(f"{column} = ?" for column in kept)
            sql = f"UPDATE {self._table.name} SET {assignments} WHERE {self._table.key} = ?"
            self.connection.execute(sql, (*kept.values(), number))
        return self.get(number)

    def remove(self, number: int) -> Row:
        """Delete a row and return it."""
        row = self.get(number)
        self.connection.execute(f"DELETE FROM {self._table.name} WHERE {self._table.key} = ?", (number,))
        return row


def now() -> str:
    """The time that rows are stamped with: UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def words(texts: Sequence[str] | None) -> list[str]:
    """Tags and labels as they are stored: lower case, each once, sorted."""
    return sorted({text.strip().lower() for text in texts or () if text.strip()})


sqlite3.register_adapter(list, lambda items: json.dumps(items, ensure_ascii=False))
sqlite3.register_converter("words", json.loads)
