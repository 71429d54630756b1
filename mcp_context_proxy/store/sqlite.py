"""SQLite connections to the store file, which several processes may write at the same time.

Reads do not wait for writes: there is a connection for each. A connection reopens when its file is replaced,
deleted or corrupt. Every `sqlite3.Error` is raised as a `StoreError`, and logged, but not each time.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.migrations import MIGRATIONS

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEYS_PER_QUERY: Final = 500
"""SQLite's oldest limit on parameters is 999."""

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

WARN_AGAIN_SECONDS: Final = 600.0
"""Time between two warnings: a disk stays full until a person has read that it is."""
CONSEQUENCE: Final = "New data waits in memory, the latest of it, until the store works again"

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_FULL}
_NO_ROOM_TO_BEGIN = sqlite3.SQLITE_IOERR_SHMSIZE
"""The code with which a connection fails to open on a full disk."""


class StoreDamagedError(StoreError):
    """The file is not a sound database, or no longer one."""


class StoreUnavailableError(StoreError):
    """The store cannot be used for the moment: another process holds it, or the disk is full."""


class StoreDatabase:
    """An open store of the current schema. Blocking and thread-safe."""

    def __init__(self, writing: ReopeningConnection, reading: ReopeningConnection) -> None:
        """Use two connections, which are the same one for a database in memory."""
        self._writing, self._reading = writing, reading
        self._failures = FailureLog()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of one query."""
        with self._logging_failures(), self._reading.acquire() as connection:
            return connection.execute(statement, parameters).fetchall()

    def read(self, row: type[T], rest: str, parameters: Sequence[Any] = ()) -> list[T]:
        """Return rows as objects of a dataclass whose fields are the columns: ``SELECT fields {rest}``."""
        columns = ", ".join(_columns(row))
        return [row(*values) for values in self.rows(f"SELECT {columns} {rest}", parameters)]

    def rows_of_keys(
        self, statement: str, keys: Sequence[Any], parameters: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return all rows of a query that ends with ``IN``, for any number of keys."""
        found = []
        for start in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(some))
            found += self.rows(f"{statement} ({marks})", (*parameters, *some))
        return found

    def number(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Return the number that a query selects."""
        return int(self.rows(statement, parameters)[0][0])

    def version(self) -> int:
        """Return a number that changes when another process has written."""
        with self._logging_failures(), self._writing.acquire() as connection:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write, all or nothing. Nothing else may use the database inside the block."""
        with self._logging_failures(), self._writing.acquire() as connection, _immediate(connection):
            yield connection
        self._failures.recovered()

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


class Tables:
    """Some tables of the store. Blocking and thread-safe; every method raises `StoreError` when it fails."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    def version(self) -> int:
        """Return a number that changes when another process has changed the store."""
        return self._database.version()


def put_rows(connection: sqlite3.Connection, table: str, rows: Iterable[Any]) -> None:
    """Write objects of a dataclass, whose fields are the columns; a row of the same key is replaced."""
    written = list(rows)
    if written:
        columns = _columns(type(written[0]))
        marks = ", ".join("?" * len(columns))
        connection.executemany(
            f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})",
            map(attrgetter(*columns), written),
        )


def forget_old(
    connection: sqlite3.Connection, table: str, *, by: str = "time", before: float = 0.0, keep: int
) -> None:
    """Delete the rows before a moment, and all but the latest ``keep``; `by` is the column of the time."""
    connection.execute(f"DELETE FROM {table} WHERE {by} < ?", (before,))
    connection.execute(
        f"DELETE FROM {table} WHERE rowid IN "
        f"(SELECT rowid FROM {table} ORDER BY {by} DESC, rowid DESC LIMIT -1 OFFSET ?)",
        (keep,),
    )


def _columns(row: type[Any]) -> list[str]:
    return [column.name for column in fields(row)]


class FailureLog:
    """Logs that the store fails: at most one warning in ten minutes, and each time that it works again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._warned_at: float | None = None
        self._lasting: StoreError | None = None

    def failed(self, error: StoreError) -> None:
        """Log a failure: a warning, or a debug message soon after one."""
        with self._lock:
            now, self._lasting = self._clock(), error
            lately = self._warned_at is not None and now - self._warned_at < WARN_AGAIN_SECONDS
            if not lately:
                self._warned_at = now
        logger.log(logging.DEBUG if lately else logging.WARNING, "%s. %s.", error, CONSEQUENCE)

    def recovered(self) -> None:
        """Log that something was written, if the last attempt had failed."""
        if self._lasting is not None:
            with self._lock:
                lasted, self._lasting = self._lasting, None
            if lasted is not None:
                logger.info("store %s can be written again", lasted.path)


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
