"""Data of the example servers: a private folder, the files that they share in it, and tables in SQLite."""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar, cast

from mcp_context_proxy.examples import DATA_VARIABLE
from mcp_context_proxy.examples.functions import ToolError

BUSY_SECONDS = 10
"""Time that a call waits for another process that is writing."""

MAX_BYTES = 8 << 20
"""Largest file that is read: it is read whole into memory."""

Row = TypeVar("Row", bound=Any)


def data_folder() -> Path:
    """The folder of all data, created if it does not exist yet."""
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


def shared_files() -> list[Path]:
    """The files in the shared folder and the folders below it, without links."""
    places = sorted(shared_folder().rglob("*"))
    return [place for place in places if place.is_file() and not place.is_symlink()]


def locate(path: str, *, new: bool = False) -> Path:
    """The place of ``path`` in the shared folder, where a file may be or not.

    A path is relative, has no ``..`` and passes through no link; its target must still be inside after the
    operating system has resolved it. Nothing may be at a ``new`` one, whose parent folder is created.
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
    if new and place.exists():
        raise ToolError(f"{path!r} exists already; delete it first or choose another path")
    if new:
        place.parent.mkdir(parents=True, exist_ok=True)
    return place


def existing(path: str) -> Path:
    """The file or folder at ``path``; an error if there is none."""
    place = locate(path)
    if not place.exists():
        raise ToolError(f"{path!r} does not exist; list_folder and find_files show the paths that do")
    return place


def read_text(path: str) -> str:
    """The text of the file at ``path``; an error if it is too large or not UTF-8."""
    place = existing(path)
    if not place.is_file():
        raise ToolError(f"{path!r} is not a file")
    if place.stat().st_size > MAX_BYTES:
        raise ToolError(f"{path!r} is larger than {MAX_BYTES} bytes")
    try:
        return place.read_bytes().decode("utf-8")
    except UnicodeDecodeError as e:
        raise ToolError(f"{path!r} is not UTF-8 text") from e


def relative(place: Path) -> str:
    """The path of ``place`` as tools show and accept it."""
    return place.relative_to(shared_folder()).as_posix()


class Table(Generic[Row]):
    """A table in a SQLite file of the data folder, with a column for each key of a typed dictionary.

    The first key is the number of a row. The table sets ``created`` and ``updated``, and stores lists of
    words as JSON. Each call opens the file anew, so that threads and processes may share it.
    """

    def __init__(self, file: str, name: str, row: type[Row]) -> None:
        self._file, self._name = file, name
        self._key, *self._columns = row.__annotations__
        self._lists = [column for column, kind in row.__annotations__.items() if kind == list[str]]

    def select(self, condition: str, *values: object) -> list[Row]:
        """The rows that meet the rest of a ``SELECT`` statement, such as ``WHERE title = ? ORDER BY id``."""
        with self._open() as connection:
            cursor = connection.execute(f"SELECT * FROM {self._name} {condition}", values)
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        for row in rows:
            row.update({name: json.loads(row[name]) for name in self._lists})
        return cast("list[Row]", rows)

    def search(self, query: str, columns: str, order: str, limit: int) -> list[Row]:
        """The rows that have every word of ``query`` in one of the columns."""
        text, words = columns.replace(",", " || ' ' ||"), query.split()
        condition = " AND ".join(f"instr(lower({text}), lower(?))" for _ in words) or "1"
        return self.select(f"WHERE {condition} ORDER BY {order} LIMIT ?", *words, limit)

    def get(self, number: int) -> Row:
        """The row with this number; an error if there is none."""
        found = self.select(f"WHERE {self._key} = ?", number)
        if not found:
            raise ToolError(f"the {self._name} have no number {number}; list or search them to find it")
        return found[0]

    def add(self, **values: object) -> Row:
        """Insert a row and return it with its number."""
        values |= {column: _now() for column in ("created", "updated") if column in self._columns}
        marks = ", ".join("?" for _ in values)
        sql = f"INSERT INTO {self._name} ({', '.join(values)}) VALUES ({marks})"
        with self._open() as connection:
            number = connection.execute(sql, (*values.values(),)).lastrowid or 0
        return self.get(number)

    @contextmanager
    def edit(self, number: int) -> Iterator[Row]:
        """A row to change: its new values are stored when the block ends, and dropped when it raises."""
        assignments = ", ".join(f"{column} = ?" for column in self._columns)
        with self._open() as connection:
            # The lock comes first, so that the row is still the same when it is written.
            connection.execute("BEGIN IMMEDIATE")
            row = self.get(number)
            yield row
            if "updated" in self._columns:
                row["updated"] = _now()
            values = [row[column] for column in self._columns]
            sql = f"UPDATE {self._name} SET {assignments} WHERE {self._key} = ?"
            connection.execute(sql, (*values, number))

    def change(self, number: int, **values: object) -> Row:
        """Set columns of a row, those with a value of None excepted, and return it."""
        with self.edit(number) as row:
            row.update({column: value for column, value in values.items() if value is not None})
        return row

    def remove(self, number: int) -> Row:
        """Delete a row and return it."""
        row = self.get(number)
        with self._open() as connection:
            connection.execute(f"DELETE FROM {self._name} WHERE {self._key} = ?", (number,))
        return row

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are committed when the block ends, and undone when it raises."""
        path = data_folder() / f"{self._file}.sqlite"
        columns = f"{self._key} INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(self._columns)}"
        with closing(sqlite3.connect(path, BUSY_SECONDS)) as connection, connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._name} ({columns})")
            yield connection


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def words(texts: Sequence[str] | None) -> list[str]:
    """Tags and labels as they are stored: lower case, each once, sorted."""
    return sorted({text.strip().lower() for text in texts or () if text.strip()})


for kind in (list, dict):
    sqlite3.register_adapter(kind, lambda value: json.dumps(value, ensure_ascii=False))
