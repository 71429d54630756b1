"""A connection to one SQLite file that several processes write: checked, and of the current schema.

Every sqlite3 error leaves here as a `StoreError`; damage to the file as its subclass `StoreDamagedError`,
what will pass by itself as `StoreHinderedError`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.migrations import MIGRATIONS

OPENING_TIMEOUT_S = 1.0
"""How long to wait for another process while the file is opened: the proxy does not serve before that."""
CHECK_BUDGET_S = 0.5
"""For the integrity check at the start. A store too large to check in this time is used as it is: damage that
was not seen is found, at the latest, when it is read."""
CACHE_KIB = 512
"""Of each connection, which fills and stays: what is read again is in the system's cache. By itself SQLite
takes 2 MiB."""
CHECK_STEPS = 5_000
"""SQLite instructions between two looks at the clock: a fraction of a millisecond."""
MEMORY = Path(":memory:")
"""SQLite's name for a database without a file."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_FULL}
_NO_ROOM_TO_BEGIN = sqlite3.SQLITE_IOERR_SHMSIZE
"""What a full disk looks like to a connection that is opened."""


class StoreDamagedError(StoreError):
    """The file is there, but it is not, or no longer, a sound database."""


class StoreHinderedError(StoreError):
    """It cannot be used for the moment: another process holds it, or the disk is full."""


def connected(
    path: Path, check: bool = True, clock: Callable[[], float] = time.monotonic
) -> sqlite3.Connection:
    """Open or create the file, check it if asked to, and bring it to the current schema.

    Raises:
        StoreDamagedError: the file is not a sound database.
        StoreHinderedError: it cannot be used for the moment.
        StoreError: the file cannot be used for another reason.
    """
    with translated(path), contextlib.ExitStack() as undo:
        connection = sqlite3.connect(
            path, timeout=OPENING_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        undo.callback(connection.close)
        if check:
            _check(connection, path, clock)
        _configure(connection)
        _migrate(connection, path)
        undo.pop_all()
    return connection


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn sqlite3's errors into ours."""
    try:
        yield
    except sqlite3.Error as e:
        raise _kind(getattr(e, "sqlite_errorcode", 0))(path, str(e)) from e
    except UnicodeDecodeError as e:
        # SQLite's own words quote what is in the file.
        raise StoreDamagedError(path, "there are bytes in it where only text can be") from e


def _kind(extended: int) -> type[StoreError]:
    """By SQLite's code; an error raised by the module itself has none."""
    primary = extended & 0xFF
    if primary in _DAMAGE:
        return StoreDamagedError
    return StoreHinderedError if primary in _PASSING or extended == _NO_ROOM_TO_BEGIN else StoreError


@contextlib.contextmanager
def immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """Write; all or nothing."""
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


def _configure(connection: sqlite3.Connection) -> None:
    # The mode stays with the file. Two processes that create it may collide here; the other one sets it then.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    # What is forgotten is overwritten, not merely unlinked: queries and interactions are somebody's words.
    connection.execute("PRAGMA secure_delete = ON")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection) == len(MIGRATIONS):
        return
    with immediate(connection):
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
