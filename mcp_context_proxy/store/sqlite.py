"""SQLite connections to the store file, which several processes may write at the same time.

Reads do not wait for writes: there is a connection for each. A connection reopens when its file is replaced,
deleted or corrupt. Every `sqlite3.Error` is raised as a `StoreError`, and logged, but not each time.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.database import Database, FailureLog, StoreUnavailableError, Transaction
from mcp_context_proxy.store.migrations import MIGRATIONS
from mcp_context_proxy.system import process

MEMORY: Final = Path(":memory:")
"""SQLite's name for a database without a file."""

OPENING_TIMEOUT_S: Final = 1.0
"""Timeout for another process while the file is opened: the proxy does not serve before that."""
CHECK_BUDGET_S: Final = 0.5
"""For the integrity check at the start. A store too large to check in this time is used as it is: damage that
was not seen is found, at the latest, when it is read."""
CHECK_STEPS: Final = 5_000
"""SQLite instructions between two looks at the clock: a fraction of a millisecond."""
CACHE_KIB: Final = 512
"""Page cache of each connection, which fills and stays; pages that are read again are in the system's cache,
too. SQLite's default is 2 MiB."""

BUSY_TIMEOUT_S: Final = 5.0
"""Timeout for another process's transaction; ours take milliseconds."""
BUSY_AGAIN_S: Final = 0.05
"""The timeout after one wait was in vain: requests must not wait for a lock that is held for minutes."""
REOPEN_SECONDS: Final = 1.0
"""Time between two attempts to open a file that cannot be opened."""
REOPEN_DAMAGED_SECONDS: Final = 60.0
"""Time between two attempts to reopen a damaged file: each costs a check, which may not find the damage."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_FULL}
_NO_ROOM_TO_BEGIN = sqlite3.SQLITE_IOERR_SHMSIZE
"""The code with which a connection fails to open on a full disk."""


class StoreDamagedError(StoreError):
    """The file is not a sound database, or no longer one."""


class SqliteTransaction(Transaction):
    """A write transaction of SQLite, which has one at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._connection.execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of parameters, in their order."""
        self._connection.executemany(statement, rows)


class SqliteDatabase(Database):
    """An open SQLite database of the current schema. Blocking and thread-safe."""

    def __init__(self, writing: ReopeningConnection, reading: ReopeningConnection) -> None:
        """Use two connections, which are the same one for a database in memory."""
        super().__init__()
        self._writing, self._reading = writing, reading
        self._failures = FailureLog()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of one query."""
        with self._logging_failures(), self._reading.acquire() as connection:
            return connection.execute(statement, parameters).fetchall()

    def schema_version(self) -> int:
        """Return the version of the schema."""
        return self.number("PRAGMA user_version")

    def now(self) -> float:
        """Return the time of the machine, on which all who use the file are."""
        return process.time_of_day()

    @contextlib.contextmanager
    def transaction(self, area: str | None = None, *, shared: bool = False) -> Iterator[Transaction]:
        """Write, all or nothing. Nothing else may use the database inside the block."""
        with self._logging_failures(), self._writing.acquire() as connection, _immediate(connection):
            yield SqliteTransaction(connection)
        self._failures.recovered()

    def overwrite_deleted(self) -> None:
        """Empty the write-ahead log, which still has the text of deleted rows.

        While another process reads, the next checkpoint removes it.
        """
        with contextlib.suppress(StoreError):
            self.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._reading.close()
        self._writing.close()

    @contextlib.contextmanager
    def _logging_failures(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._failures.failed(error)
            raise


class ReopeningConnection:
    """A SQLite connection, for one thread at a time, that reopens when its file is replaced or damaged.

    The first thread that finds the file locked by another process waits for `BUSY_TIMEOUT_S`. Until a wait
    succeeds, the next ones give up after `BUSY_AGAIN_S`.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[], sqlite3.Connection],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet; `connect` opens or creates the file, and raises `StoreError` or `OSError`."""
        self._path, self._connect, self._clock = path, connect, clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._failure: StoreError | None = None
        self._retry_at = self._retry_damaged_at = 0.0
        self._patient = True
        self._closed = False

    def open(self) -> None:
        """Open the file now; raises `StoreError` if it cannot be used."""
        with self._lock:
            self._usable()

    @contextlib.contextmanager
    def acquire(self) -> Iterator[sqlite3.Connection]:
        """Use the connection alone, until the end of the block; raises `StoreError`."""
        if not self._lock.acquire(timeout=-1 if self._patient else BUSY_AGAIN_S):
            raise StoreUnavailableError(self._path, "another thread is waiting for it")
        try:
            with _translating_errors(self._path):
                yield self._usable()
        except StoreUnavailableError:
            self._set_patient(False)
            raise
        except StoreDamagedError:
            if self._path != MEMORY and self._clock() >= self._retry_damaged_at:
                self._retry_damaged_at = self._clock() + REOPEN_DAMAGED_SECONDS
                self._drop()
            raise
        else:
            self._set_patient(True)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the file for good; may be called twice."""
        with self._lock:
            self._closed = True
            self._drop()

    def _usable(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(self._path, "it is closed")
        if self._connection is not None and self._identity != _identity(self._path):
            self._drop()
        if self._connection is None:
            if self._failure is not None and self._clock() < self._retry_at:
                raise self._failure.with_traceback(None)
            try:
                self._connection, self._failure = self._connect(), None
            except (StoreError, OSError) as error:
                failure = error
                if not isinstance(failure, StoreError):
                    failure = StoreError(self._path, failure.strerror or str(failure))
                self._failure, self._retry_at = failure, self._clock() + REOPEN_SECONDS
                raise failure from error
            self._identity = _identity(self._path)
            self._patient = False
            self._set_patient(True)
        return self._connection

    def _set_patient(self, patient: bool) -> None:
        if self._connection is not None and patient is not self._patient:
            self._patient = patient
            seconds = BUSY_TIMEOUT_S if patient else BUSY_AGAIN_S
            self._connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # SQLite itself notices that the file was moved, and does not touch the log of the new one.
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def open_connection(
    path: Path, check: bool = True, clock: Callable[[], float] = time.monotonic
) -> sqlite3.Connection:
    """Open or create the file, check it if asked to, and migrate it to the current schema.

    Raises `StoreDamagedError`, `StoreUnavailableError`, or `StoreError` for another reason.
    """
    with _translating_errors(path), contextlib.ExitStack() as undo:
        connection = sqlite3.connect(
            path, timeout=OPENING_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        undo.callback(connection.close)
        if check:
            _check(connection, path, clock)
        # The mode stays with the file. Two processes that create it may collide here; one of them sets it.
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        # Deleted rows are overwritten, not merely unlinked: queries and interactions are somebody's words.
        connection.execute("PRAGMA secure_delete = ON")
        _migrate(connection, path)
        undo.pop_all()
    return connection


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


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    def schema_version() -> int:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])

    if schema_version() == len(MIGRATIONS):
        return
    with _immediate(connection):
        # Read again, now that nobody else can write: another process may have been faster.
        version = schema_version()
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
            raise StoreDamagedError(path, f"its tables are not those of schema {version}: {e}") from e
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


@contextlib.contextmanager
def _immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a write transaction: all or nothing."""
    # IMMEDIATE: a transaction that begins as a reader cannot wait for the write lock, it fails.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _translating_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as e:
        # An error that the module raises by itself has no code.
        code = getattr(e, "sqlite_errorcode", 0)
        if code & 0xFF in _DAMAGE:
            raise StoreDamagedError(path, str(e)) from e
        if code & 0xFF in _PASSING or code == _NO_ROOM_TO_BEGIN:
            raise StoreUnavailableError(path, str(e)) from e
        raise StoreError(path, str(e)) from e
    except UnicodeDecodeError as e:
        # SQLite's own message quotes the file.
        raise StoreDamagedError(path, "it has bytes that are not text where only text can be") from e


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
