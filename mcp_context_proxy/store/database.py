"""The seam between the tables and the database that holds them, which is SQLite or PostgreSQL.

The tables write one dialect that both know, with ``?`` for parameters. A change that others have to notice
belongs to an area: it is made in a transaction of that area, one after the other, and gets the area's next
revision. So revisions are in the order of the commits, and a reader that goes on after the last one that it
has seen skips nothing.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from mcp_context_proxy.errors import StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Struct)

KEYS_PER_QUERY: Final = 500
"""SQLite's oldest limit on parameters is 999."""

ALL_ROWS: Final = 2**62
"""Limit that limits nothing: SQLite needs one before an offset, and PostgreSQL takes no negative one."""

PAIRS: Final = "pairs"
USAGE: Final = "usage"
INTERACTIONS: Final = "interactions"
LISTINGS: Final = "listings"
WORKING_SET: Final = "working_set"
APPROVALS: Final = "approvals"
CREDENTIALS: Final = "credentials"

AREAS: Final = (PAIRS, USAGE, INTERACTIONS, LISTINGS, WORKING_SET, APPROVALS, CREDENTIALS)
"""Areas of the store; each has a revision, which grows with its changes."""

WARN_AGAIN_SECONDS: Final = 600.0
"""Time between two warnings: a disk stays full until a person has read that it is."""
CONSEQUENCE: Final = "New data waits in memory, the latest of it, until the store works again"


class StoreUnavailableError(StoreError):
    """The store cannot be used for the moment: another process holds it, the disk is full, it is away."""


class Cursor(Protocol):
    """The rows of a statement, as both drivers return them."""

    @property
    def rowcount(self) -> int:
        """Number of rows that it has changed."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""


class Transaction(ABC):
    """A write transaction: all of it is kept, or nothing."""

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run one statement."""

    @abstractmethod
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of parameters, in their order."""

    def rows_of_keys(
        self, statement: str, keys: Sequence[Any], parameters: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return all rows of a query that ends with ``IN``, for any number of keys."""
        return _rows_of_keys(lambda *query: self.execute(*query).fetchall(), statement, keys, parameters)

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
        """Return the revision of the changes of this transaction in its area."""
        self.execute("UPDATE areas SET revision = revision + 1 WHERE area = ?", (area,))
        return self.revision(area)

    def revision(self, area: str) -> int:
        """Return the revision of an area as it is now."""
        (revision,) = self.execute("SELECT revision FROM areas WHERE area = ?", (area,)).fetchone()
        return int(revision)

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
        held = self.execute("SELECT token FROM leases WHERE job = ?", (job,)).fetchone()
        return held is not None and held[0] == token

    def does_upkeep(self) -> bool:
        """Return whether this process still does the upkeep: nobody else takes it over before the end."""
        return True


class Database(ABC):
    """An open database of the current schema. Blocking and thread-safe; methods raise `StoreError`."""

    def __init__(self, replica: str = "") -> None:
        """Name the rows of this process; those of all processes that share a file are one."""
        self.replica = replica
        self.place: str | None = None
        """Address of the database, without its secrets; None for a file, and in memory."""
        self.writer = secrets.token_hex(16)
        """Id of this process in the batches that it writes."""

    @property
    def problem(self) -> str | None:
        """A problem of the database now, for a person; None when all is well."""
        return None

    @abstractmethod
    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of one query."""

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

    def take_upkeep_over(self) -> None:  # noqa: B027 - only replicas take turns
        """Do the upkeep from now on, whoever did it before."""

    def migrate(self) -> tuple[int, int]:
        """Bring the schema to this version; return the version before and after."""
        version = self.schema_version()
        return version, version

    @abstractmethod
    def schema_version(self) -> int:
        """Return the version of the schema."""

    def go_on_counting(self) -> None:  # noqa: B027 - only some databases need it
        """Have ids go on after the greatest, when rows with ids were written."""

    @abstractmethod
    def overwrite_deleted(self) -> None:
        """Remove the remains of deleted rows, as far as that is possible now."""

    @abstractmethod
    def close(self) -> None:
        """Close it; may be called twice."""

    def read(self, row: type[T], rest: str, parameters: Sequence[Any] = ()) -> list[T]:
        """Return rows as objects whose fields are the columns: ``SELECT fields {rest}``."""
        columns = ", ".join(row.__struct_fields__)
        return [row(*values) for values in self.rows(f"SELECT {columns} {rest}", parameters)]

    def rows_of_keys(
        self, statement: str, keys: Sequence[Any], parameters: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return all rows of a query that ends with ``IN``, for any number of keys."""
        return _rows_of_keys(self.rows, statement, keys, parameters)

    def number(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Return the number that a query selects."""
        return int(self.rows(statement, parameters)[0][0])

    def changes(self) -> dict[str, int]:
        """Return the revision of every area."""
        return dict(self.rows("SELECT area, revision FROM areas"))


class Tables:
    """Some tables of the store. Blocking and thread-safe; every method raises `StoreError` when it fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

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


def _rows_of_keys(
    rows: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]],
    statement: str,
    keys: Sequence[Any],
    parameters: Sequence[Any],
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for some in _in_parts(keys):
        marks = ",".join("?" * len(some))
        found += rows(f"{statement} ({marks})", (*parameters, *some))
    return found


def _in_parts(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(keys), KEYS_PER_QUERY):
        yield keys[start : start + KEYS_PER_QUERY]


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
                logger.info("store %s can be written again", lasted.place)
