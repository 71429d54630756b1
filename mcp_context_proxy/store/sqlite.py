"""One SQLite file, one connection, one lock: short transactions that other processes may interleave with.

Every sqlite3 error leaves here as a `StoreError`; damage to the file as its subclass `StoreDamagedError`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.migrations import MIGRATIONS

BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process's transaction; ours take milliseconds."""
CHECK_BUDGET_S = 0.5
"""For the integrity check at the start. A store too large to check in this time is used as it is: damage that
was not seen is found, at the latest, when it is read."""
CHECK_STEPS = 5_000
"""SQLite instructions between two looks at the clock: a fraction of a millisecond."""
MEMORY = ":memory:"
"""SQLite's name for a database without a file."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class StoreDamagedError(StoreError):
    """The file is there, but it is not, or no longer, a sound database."""


class Database:
    """An open store of the current schema. Blocking and thread-safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._lock = threading.Lock()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one query."""
        with self._lock, translated(self._path):
            return self._connection.execute(statement, parameters).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write; all or nothing. Nothing else may use the database inside the block."""
        with self._lock, translated(self._path), _immediate(self._connection):
            yield self._connection

    def close(self) -> None:
        """Close the file; harmless when done twice."""
        with self._lock:
            self._connection.close()


def open_database(path: Path | None, clock: Callable[[], float] = time.monotonic) -> Database:
    """Open or create the file, check it, and bring it to the current schema. None keeps it in memory.

    Raises:
        StoreDamagedError: the file is not a sound database.
        StoreError: the file cannot be used for another reason.
    """
    shown = path or Path(MEMORY)
    with translated(shown), contextlib.ExitStack() as undo:
        connection = sqlite3.connect(
            path or MEMORY, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        undo.callback(connection.close)
        _check(connection, shown, clock)
        _use_write_ahead_log(connection)
        _migrate(connection, shown)
        undo.pop_all()
    return Database(connection, shown)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn sqlite3's errors into ours."""
    try:
        yield
    except sqlite3.Error as e:
        # The low byte is the primary code; an error raised by the module itself has none.
        code = getattr(e, "sqlite_errorcode", 0) & 0xFF
        raise (StoreDamagedError if code in _DAMAGE else StoreError)(path, str(e)) from e
    except UnicodeDecodeError as e:
        # SQLite's own words quote what is in the file.
        raise StoreDamagedError(path, "there are bytes in it where only text can be") from e


@contextlib.contextmanager
def _immediate(connection: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE: a transaction that begins as a reader cannot wait for the write lock, it fails.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check(connection: sqlite3.Connection, path: Path, clock: Callable[[], float]) -> None:
    deadline = clock() + CHECK_BUDGET_S
    connection.set_progress_handler(lambda: int(clock() > deadline), CHECK_STEPS)
    try:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as e:
        if e.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        verdict = "ok"
    finally:
        connection.set_progress_handler(None, 0)
    if verdict != "ok":
        raise StoreDamagedError(path, str(verdict))


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # The mode stays with the file. Two processes that create it may collide here; the other one sets it then.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    # What is forgotten is overwritten, not merely unlinked: queries and interactions are somebody's words.
    connection.execute("PRAGMA secure_delete = ON")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection) == len(MIGRATIONS):
        return
    with _immediate(connection):
        # Again, now that nobody else can write: another process may have been faster.
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise StoreError(
                path, f"a newer version wrote it (schema {version}, this one knows {len(MIGRATIONS)})"
            )
        try:
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    connection.execute(statement)
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise StoreDamagedError(path, f"it is not what schema {version} says: {e}") from e
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
