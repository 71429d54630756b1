"""A connection to one SQLite file that several processes write: checked, and of the current schema.

Every sqlite3 error leaves here as a `StoreError`; damage to the file as its subclass `StoreDamagedError`,
what will pass by itself as `StoreHinderedError`.

One connection to the store, for one thread at a time, that stands by what is at its path.

Where the file is replaced, deleted or damaged while it is open, it is opened anew. Whoever finds it held by
another process waits once; until that is over, the next ones hardly wait.

The database of a store: what reads does not wait for what writes, and what fails is told once in a while.

A part that writes keeps what is refused, within bounds, and writes it when that is over.

Says that the store fails, to a person: once in a while, not with everything that fails.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

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


BUSY_TIMEOUT_S: Final = 5.0
"""How long to wait for another process's transaction; ours take milliseconds."""
BUSY_AGAIN_S: Final = 0.05
"""... after that was in vain: what is served must not wait for a lock that somebody holds for minutes."""
REOPEN_SECONDS: Final = 1.0
"""Before a file that could not be opened is tried again."""
REOPEN_DAMAGED_SECONDS: Final = 60.0
"""Before a file is opened anew because it is damaged: that costs a check, which may not find the damage."""

Connect = Callable[[], sqlite3.Connection]


class ReopeningConnection:
    """A connection that is made when it is needed, and again when it is no good any more."""

    def __init__(self, path: Path, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        """Open nothing yet.

        Args:
            path: The file.
            connect: Opens it, or creates it; raises `StoreError` or `OSError`.
            clock: Seconds, of any kind.
        """
        self._path, self._connect, self._clock = path, connect, clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._failure: StoreError | None = None
        self._again_at = self._damaged_again_at = 0.0
        self._patient = True
        self._closed = False

    def open(self) -> None:
        """Open the file now.

        Raises:
            StoreError: it cannot be used.
        """
        with self._lock:
            self._usable()

    @contextlib.contextmanager
    def used(self) -> Iterator[sqlite3.Connection]:
        """Use the connection; nobody else does meanwhile.

        Raises:
            StoreError: it cannot be used.
        """
        if not self._lock.acquire(timeout=-1 if self._patient else BUSY_AGAIN_S):
            raise StoreHinderedError(self._path, "another thread waits for it")
        try:
            with translated(self._path):
                yield self._usable()
        except StoreHinderedError:
            self._be_patient(False)
            raise
        except StoreDamagedError:
            self._begin_anew_if_damaged()
            raise
        else:
            self._be_patient(True)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the file for good; harmless when done twice."""
        with self._lock:
            self._closed = True
            self._drop()

    def _usable(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(self._path, "it is closed")
        if self._connection is not None and self._identity != _identity(self._path):
            self._drop()
        if self._connection is None:
            self._connection = self._opened()
            self._identity = _identity(self._path)
            self._patient = False
            self._be_patient(True)
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        if self._failure is not None and self._clock() < self._again_at:
            raise self._failure.with_traceback(None)
        try:
            connection = self._connect()
        except (StoreError, OSError) as error:
            found = error if isinstance(error, StoreError) else StoreError(self._path, _words(error))
            self._failure, self._again_at = found, self._clock() + REOPEN_SECONDS
            raise found from error
        self._failure = None
        return connection

    def _be_patient(self, patient: bool) -> None:
        if self._connection is not None and patient is not self._patient:
            self._patient = patient
            seconds = BUSY_TIMEOUT_S if patient else BUSY_AGAIN_S
            self._connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _begin_anew_if_damaged(self) -> None:
        if self._path != MEMORY and self._clock() >= self._damaged_again_at:
            self._damaged_again_at = self._clock() + REOPEN_DAMAGED_SECONDS
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # SQLite itself sees that the file was moved, and leaves the log of what is there now alone.
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _words(error: OSError) -> str:
    return error.strerror or str(error)


logger = logging.getLogger(__name__)

WARN_AGAIN_SECONDS: Final = 600.0
"""Between two warnings: a disk stays full until a person has read that it is."""


CONSEQUENCE: Final = "What would be kept waits in memory, the latest of it, until that is over"


class FailureLog:
    """What there is to say of a store that fails."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Have nothing to say yet; `clock` has seconds, of any kind."""
        self._clock = clock
        self._lock = threading.Lock()
        self._told_at: float | None = None
        self._lasting: StoreError | None = None

    def tell(self, error: StoreError) -> None:
        """It has failed."""
        with self._lock:
            now, self._lasting = self._clock(), error
            lately = self._told_at is not None and now - self._told_at < WARN_AGAIN_SECONDS
            if not lately:
                self._told_at = now
        logger.log(logging.DEBUG if lately else logging.WARNING, "%s. %s.", error, CONSEQUENCE)

    def over(self) -> None:
        """Something was written."""
        if self._lasting is not None:
            with self._lock:
                lasted, self._lasting = self._lasting, None
            if lasted is not None:
                logger.info("store %s can be written again", lasted.path)


class StoreDatabase:
    """An open store of the current schema. Blocking and thread-safe."""

    def __init__(self, writing: ReopeningConnection, reading: ReopeningConnection) -> None:
        """Use two connections; one of a database in memory, which has only that."""
        self._writing, self._reading = writing, reading
        self._trouble = FailureLog()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one query."""
        with self._told(), self._reading.used() as connection:
            return connection.execute(statement, parameters).fetchall()

    def version(self) -> int:
        """Another number once another process has written."""
        with self._told(), self._writing.used() as connection:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write; all or nothing. Nothing else may use the database inside the block."""
        with self._told(), self._writing.used() as connection, immediate(connection):
            yield connection
        self._trouble.over()

    def close(self) -> None:
        """Close the file; harmless when done twice."""
        self._reading.close()
        self._writing.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._trouble.tell(error)
            raise
