"""The database that holds the tables: SQLite here, PostgreSQL in `store.postgres`, behind the same classes.

The tables write one dialect that both know, with ``?`` for parameters. A change that others have to notice
belongs to an area: it is made in a transaction of that area, one after the other, and gets the area's next
revision. So revisions are in the order of the commits, and a reader that goes on after the last one that it
has seen skips nothing.

Several processes may write an SQLite file at the same time. Reads do not wait for writes: there is a
connection for each. A connection reopens when its file is replaced, deleted or corrupt. Every `sqlite3.Error`
is raised as a `StoreError`, and logged, but not each time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from mcp_context_proxy.errors import NOTICE, StoreError
from mcp_context_proxy.system import process

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Struct)

Rows: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Returns all rows of one query."""

KEYS_PER_QUERY: Final = 500
"""SQLite's oldest limit on parameters is 999."""

ALL_ROWS: Final = 2**62
"""Limit that limits nothing: SQLite needs one before an offset, and PostgreSQL takes no negative one."""

WARN_AGAIN_SECONDS: Final = 600.0
"""Time between two warnings for one reason: a disk stays full until a person has read that it is."""
MOST_REASONS: Final = 5
"""Reasons that are logged in that time: a store that comes and goes has some more."""
CONSEQUENCE: Final = "New data waits in memory, the latest of it, until the store works again"


class StoreUnavailableError(StoreError):
    """The store cannot be used for the moment: another process holds it, the disk is full, it is away."""


class ReadOnlyStoreError(StoreError):
    """The store can be read, and takes no writes."""


class Cursor(Protocol):
    """The rows of a statement, as both drivers return them."""

    @property
    def rowcount(self) -> int:
        """Number of rows that it has changed."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""


class Queries(ABC):
    """Queries of a database, or of a transaction on it. Every method raises `StoreError` when it fails."""

    @abstractmethod
    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of one query."""

    def rows_of_keys(
        self, statement: str, keys: Sequence[Any], parameters: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return all rows of a query that ends with ``IN``, for any number of keys."""
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(some))
            found += self.rows(f"{statement} ({marks})", (*parameters, *some))
        return found

    def read(self, row: type[T], rest: str, parameters: Sequence[Any] = ()) -> list[T]:
        """Return rows as objects whose fields are the columns: ``SELECT fields {rest}``."""
        columns = ", ".join(row.__struct_fields__)
        return [row(*values) for values in self.rows(f"SELECT {columns} {rest}", parameters)]

    def read_of_keys(self, row: type[T], rest: str, keys: Sequence[Any]) -> list[T]:
        """Return rows as `read` does, for a query as in `rows_of_keys`."""
        columns = ", ".join(row.__struct_fields__)
        return [row(*values) for values in self.rows_of_keys(f"SELECT {columns} {rest}", keys)]

    def number(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Return the number that a query selects; 0 for none, where damage has taken its row away."""
        rows = self.rows(statement, parameters)
        return int(rows[0][0]) if rows else 0

    def revision(self, area: str) -> int:
        """Return a number that grows whenever something in an area is changed."""
        return self.number("SELECT revision FROM areas WHERE area = ?", (area,))


class Transaction(Queries):
    """A write transaction: all of it is kept, or nothing."""

    holding = ""
    """End of a query for a row that must stay as it is until the end of the transaction."""

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run one statement."""

    @abstractmethod
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of parameters, in their order."""

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.execute(statement, parameters).fetchall()

    def put(self, table: str, columns: Sequence[str], key: Sequence[str], rows: Iterable[Any]) -> None:
        """Write rows; one of the same key is replaced."""
        marks = ", ".join("?" * len(columns))
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
        conflict = f"({', '.join(key)}) DO UPDATE SET {changes}" if changes else "DO NOTHING"
        self.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT {conflict}", rows
        )

    def put_rows(self, table: str, key: Sequence[str], rows: Iterable[Struct]) -> None:
        """Write objects, whose fields are the columns; a row of the same key is replaced."""
        if written := list(rows):
            columns = written[0].__struct_fields__
            self.put(table, columns, key, [*map(attrgetter(*columns), written)])

    def forget_old(
        self, table: str, key: Sequence[str], *, by: str = "time", before: float | None = None, keep: int
    ) -> None:
        """Delete rows before a moment, and all but the latest ``keep``; `by` is the column of the time."""
        if before is not None:
            self.execute(f"DELETE FROM {table} WHERE {by} < ?", (before,))
        names, order = ", ".join(key), ", ".join(f"{name} DESC" for name in (by, *key))
        self.execute(
            f"DELETE FROM {table} WHERE ({names}) IN "
            f"(SELECT {names} FROM {table} ORDER BY {order} LIMIT {ALL_ROWS} OFFSET ?)",
            (keep,),
        )

    def next_revision(self, area: str) -> int:
        # Damage may have taken the row away.
        self.execute(
            "INSERT INTO areas (area, revision) VALUES (?, 1) "
            "ON CONFLICT (area) DO UPDATE SET revision = areas.revision + 1",
            (area,),
        )
        return self.revision(area)

    def is_new(self, writer: str, area: str, batch: int, now: float) -> bool:
        """Return whether a batch of a writer is not in the store yet, and note that it is in it now.

        A writer that did not hear whether a batch was written sends it again, under the same number.
        """
        noted = self.execute(
            "INSERT INTO writers (writer, area, batch, time) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (writer, area) DO UPDATE SET batch = excluded.batch, time = excluded.time "
            "WHERE writers.batch < excluded.batch",
            (writer, area, batch, now),
        )
        return noted.rowcount > 0

    def holds(self, job: str, token: int) -> bool:
        """Return whether a lease is the latest of its job: nobody has taken the job over since."""
        return self.number(f"SELECT token FROM leases WHERE job = ?{self.holding}", (job,)) == token

    def does_upkeep(self) -> bool:
        """Return whether this process still does the upkeep: nobody else takes it over before the end."""
        return True


class Database(Queries):
    """An open database of the current schema. Blocking and thread-safe; methods raise `StoreError`."""

    def __init__(self, replica: str = "") -> None:
        """Name the rows of this process; those of all processes that share a file are one."""
        self.replica = replica
        self.place: str | None = None
        """Address of the database, without its secrets; None for a file, and in memory."""
        self.writer = secrets.token_hex(16)
        """Id of this process in the batches that it writes."""
        self.lag = 0, 0.0  # see `tables.lag_of`
        self.lack: str | None = None
        """Reason why nobody should be sent here before it is used for the first time."""

    @property
    def problem(self) -> str | None:
        """A problem of the database now, for a person; None when all is well."""
        return None

    @abstractmethod
    def transaction(
        self, area: str | None = None, *, shared: bool = False
    ) -> AbstractContextManager[Transaction]:
        """Write, all or nothing. Nothing else may use the database inside the block.

        Of an area there is one transaction at a time, or several that are `shared`.
        """

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Write with one statement; return the number of rows that it has changed."""
        with self.transaction() as transaction:
            return transaction.execute(statement, parameters).rowcount

    def lead_to(self, url: str, listen_url: str | None) -> None:
        """Connect from now on with the user and password of these addresses of the same database."""

    def may_have_changed(self, area: str) -> bool:
        """Return whether an area may have changed since this was asked before; in doubt, it may."""
        return True

    @abstractmethod
    def now(self) -> float:
        """Return the time on the clock of the database, in seconds since 1970: all replicas share it."""

    def does_upkeep(self) -> bool:
        """Return whether this process is the one that deletes old rows and sums up statistics.

        Of several replicas one does it at a time. Processes that share a file all do, each with its writes.
        """
        return True

    def take_upkeep_over(self) -> None:
        """Do the upkeep from now on, whoever did it before."""

    def migrate(self) -> tuple[int, int]:
        """Bring the schema to this version; return the version before and after."""
        version = self.schema_version()
        return version, version

    @abstractmethod
    def schema_version(self) -> int:
        """Return the version of the schema."""

    def go_on_counting(self) -> None:
        """Have ids go on after the greatest, when rows with ids were written."""

    @abstractmethod
    def overwrite_deleted(self) -> None:
        """Remove the remains of deleted rows, as far as that is possible now."""

    @abstractmethod
    def close(self) -> None:
        """Close it; may be called twice."""

    def changes(self) -> dict[str, int]:
        return dict(self.rows("SELECT area, revision FROM areas"))


class Tables:
    """Some tables of the store. Blocking and thread-safe; every method raises `StoreError` when it fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> float:
        """Return the time by which leases end and replicas are alive."""
        return self._database.now()

    def may_have_changed(self, area: str) -> bool:
        """Return whether looking at an area is worth while since this was asked before."""
        return self._database.may_have_changed(area)

    def does_upkeep(self) -> bool:
        """Return whether this process is the one that deletes old rows and sums up statistics."""
        return self._database.does_upkeep()

    @contextmanager
    def _upkeep(self, area: str | None = None) -> Iterator[Transaction | None]:
        """Begin a transaction of the upkeep; None where another process does that, or has taken it over."""
        if not self.does_upkeep():
            yield None
            return
        with self._database.transaction(area) as transaction:
            yield transaction if transaction.does_upkeep() else None


class FailureLog:
    """Logs that the store fails: once in ten minutes for each reason, and each time that it works again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._warned_at: dict[str, float] = {}
        """Time of the latest warning of each reason."""
        self.lasting: StoreError | None = None
        """The latest failure, until something is written."""
        self._warned = False
        """True if a person was told of the lasting failure."""
        self.ended = False
        """True once the store is being closed: what still asks it was told to end, and is not missed."""

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self.failed(error)
            raise

    def failed(self, error: StoreError) -> None:
        """Log a failure: a warning, or a debug message soon after one."""
        with self._lock:
            now, self.lasting = self._clock(), error
            last = {reason: at for reason, at in self._warned_at.items() if now - at < WARN_AGAIN_SECONDS}
            quiet = error.reason in last or len(last) == MOST_REASONS or self.ended
            self._warned_at = last if quiet else {**last, error.reason: now}
            self._warned = self._warned or not quiet
        logger.log(logging.DEBUG if quiet else logging.WARNING, "%s. %s.", error, CONSEQUENCE)

    def recovered(self) -> None:
        """Log that something was written, if the last attempt had failed."""
        if self.lasting is not None:
            with self._lock:
                lasted, self.lasting = self.lasting, None
                level, self._warned = NOTICE if self._warned else logging.INFO, False
            if lasted is not None:
                logger.log(level, "store %s can be written again", lasted.place)


MEMORY: Final = Path(":memory:")
"""SQLite's name for a database without a file."""

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
        return self._connection.execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(statement, rows)


class SqliteDatabase(Database):
    """An open SQLite database of the current schema. Blocking and thread-safe."""

    def __init__(self, writing: ReopeningConnection, reading: ReopeningConnection, spare: Rows) -> None:
        """Use two connections, the same one for a database in memory; `spare` reads where neither can."""
        super().__init__()
        self._writing, self._reading, self._spare = writing, reading, spare
        self._failures = FailureLog()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._failures.logged(), self._reading.acquire() as connection:
                return connection.execute(statement, parameters).fetchall()
        except StoreUnavailableError:
            # What a person has decided about a definition counts on a full disk, too.
            return self._spare(statement, parameters)

    def schema_version(self) -> int:
        return self.number("PRAGMA user_version")

    def now(self) -> float:
        """Return the time of the machine, on which all who use the file are."""
        return process.time_of_day()

    @contextlib.contextmanager
    def transaction(self, area: str | None = None, *, shared: bool = False) -> Iterator[Transaction]:
        with self._failures.logged(), self._writing.acquire() as connection, immediate(connection):
            yield SqliteTransaction(connection)
        self._failures.recovered()

    def overwrite_deleted(self) -> None:
        """Empty the write-ahead log, which still has the text of deleted rows.

        While another process reads, the next checkpoint removes it.
        """
        with contextlib.suppress(StoreError):
            self.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._failures.ended = True
        self._reading.close()
        self._writing.close()


class ReopeningConnection:
    """A SQLite connection, for one thread at a time, that reopens when its file is replaced or damaged.

    The first thread that finds the file locked by another process waits for `BUSY_TIMEOUT_S`. Until a wait
    succeeds, the next ones give up after `BUSY_AGAIN_S`.
    """

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        """Open nothing yet; `connect` opens or creates the file, and raises `StoreError` or `OSError`."""
        self._path, self._connect = path, connect
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int, int] | None = None
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
            with translating_errors(self._path):
                yield self._usable()
        except StoreUnavailableError:
            self._set_patient(False)
            raise
        except StoreDamagedError:
            if self._path != MEMORY and time.monotonic() >= self._retry_damaged_at:
                self._retry_damaged_at = time.monotonic() + REOPEN_DAMAGED_SECONDS
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
            if self._failure is not None and time.monotonic() < self._retry_at:
                raise self._failure.with_traceback(None)
            try:
                self._connection, self._failure = self._connect(), None
            except (StoreError, OSError) as error:
                failure = error
                if not isinstance(failure, StoreError):
                    failure = StoreError(self._path, failure.strerror or str(failure))
                self._failure, self._retry_at = failure, time.monotonic() + REOPEN_SECONDS
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


@contextlib.contextmanager
def immediate(connection: sqlite3.Connection) -> Iterator[None]:
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
def translating_errors(path: Path) -> Iterator[None]:
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


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # A forked process needs a connection of its own.
    return status.st_dev, status.st_ino, os.getpid()
