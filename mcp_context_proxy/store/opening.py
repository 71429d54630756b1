"""Opens the store, and copies one into another.

Opening never fails: a damaged file is set aside, an unusable one replaced by memory. A copy goes from
a file into PostgreSQL, for example, or back: in parts, in the order of the keys, and a row that is there
is replaced by the same. So a copy that was interrupted is begun again. Then both are compared, row by row.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from mcp_context_proxy.config import StoreConfig
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.database import (
    MEMORY,
    Database,
    ReopeningConnection,
    SqliteDatabase,
    StoreDamagedError,
    StoreUnavailableError,
    immediate,
    translating_errors,
)
from mcp_context_proxy.store.memory import InteractionStore, LearnedStore, WorkingSetStore
from mcp_context_proxy.store.migrations import OLDEST_SQLITE_VERSION, SQLITE_VERSION, sqlite_migration
from mcp_context_proxy.store.statistics import StatisticsStore
from mcp_context_proxy.store.tables import (
    ApprovalStore,
    LeaseStore,
    ListingStore,
    RequestStore,
    ToolSessionStore,
    VectorStore,
)
from mcp_context_proxy.system import Closing, make_private, make_private_folder
from mcp_context_proxy.system.later import platformdirs

logger = logging.getLogger(__name__)

IN_MEMORY: Final = "memory"
"""The path of a store that keeps nothing after it is closed."""
ATTEMPTS: Final = 3
"""Attempts to open before memory is used: the first, one after a damaged file was set aside, and one more in
case another process did that at the same moment."""
COMPANIONS: Final = ("-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside a database."""
KEPT_ASIDE: Final = 3
"""Damaged files that are kept, the latest, for whoever wants to save some of their content."""
SAVED: Final = {
    "approvals": "decisions",
    "approved_definitions": "definitions",
    "approved_versions": "versions of servers",
    "credentials": "logins",
    "learned": "learned pairs",
}
"""Tables of which a new store gets what can be read of a damaged one, with the names of their rows for a
person: what somebody rejected is not served again, and the rest cannot be made anew."""

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

MOST_IN_MEMORY: Final = 256 * 1024 * 1024
"""Largest file whose content is used from memory if it cannot be written."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class Store(Closing):
    """An open store: its tables, and its path."""

    def __init__(self, database: Database, path: Path | None = None, warning: str | None = None) -> None:
        self.database, self.path = database, path
        """The path is None when nothing is kept."""
        self._warning = warning
        self.vectors = VectorStore(database)
        self.requests = RequestStore(database)
        self.listings = ListingStore(database)
        self.learned = LearnedStore(database)
        self.statistics = StatisticsStore(database)
        self.tool_sessions = ToolSessionStore(database)
        self.interactions = InteractionStore(database)
        self.approvals = ApprovalStore(database)
        self.working_sets = WorkingSetStore(database)
        self.leases = LeaseStore(database)

    @property
    def warning(self) -> str | None:
        """A problem of this store, for a person; None when all is well. Already logged."""
        return self._warning or self.database.problem

    @property
    def place(self) -> str | None:
        """The file or the address without its secrets; None when nothing is kept."""
        return self.database.place if self.path is None else str(self.path)

    def close(self) -> None:
        self.database.close()


def default_path() -> Path:
    """Return the path of the store in the user's data folder."""
    return Path(platformdirs.user_data_dir("mcp-context-proxy", appauthor=False)) / "store.sqlite3"


def open_store(place: StoreConfig | Path | Literal["memory"] | None = None) -> Store:
    """Open the store, at the default path if no place is given. Blocking.

    A damaged file is moved aside and a new one created. A file that another process holds, or for which there
    is no room on the disk, is retried whenever it is needed. When there can be no file, the store is in
    memory. A database that is away is retried, too, and never replaced by memory. Raises nothing but
    `StoreError`, if the package for PostgreSQL is not installed.
    """
    if isinstance(place, StoreConfig):
        if place.url is not None:
            return _in_postgres(place, place.url)
        path: Path | Literal["memory"] | None = None if place.path is None else Path(place.path)
        path = "memory" if place.path == IN_MEMORY else path
    else:
        path = place
    if path == IN_MEMORY:
        return _in_memory(None)
    file = Path(path) if path is not None else default_path()
    opener = _Opener(file)
    writing = ReopeningConnection(file, opener)
    reading = ReopeningConnection(file, partial(opener, check=False))
    try:
        writing.open()
    except StoreUnavailableError as e:
        opener.warning = f"store {file} cannot be used now: {e.reason}. It is tried again when it is needed"
        logger.warning("%s.", opener.warning)
    except StoreError as e:
        warning = f"store {file} cannot be used: {e.reason}. Nothing is kept after this run"
        logger.warning("%s.", warning)
        return _in_memory(warning, file)
    return Store(SqliteDatabase(writing, reading, partial(_read, file)), file, opener.warning)


def _in_postgres(config: StoreConfig, url: str) -> Store:
    try:
        from mcp_context_proxy.store.postgres import PostgresDatabase  # noqa: PLC0415
    except ImportError as error:
        remedy = "install it: pip install 'mcp-context-proxy[postgres]'"
        raise StoreError("postgresql", f"its driver cannot be loaded ({error}); {remedy}") from None
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # its warnings are of errors that it raises as well
    database = PostgresDatabase(
        url,
        schema=config.namespace,
        pool=config.pool,
        timeout_seconds=config.timeout_seconds,
        migrate=config.migrate,
        listen_url=config.listen_url,
        replica=config.replica or "",
    )
    # A database that is away is no reason not to serve.
    with contextlib.suppress(StoreError):
        database.changes()
    return Store(database)


def _in_memory(warning: str | None, file: Path | None = None) -> Store:
    """Open a store in memory, with the content of a file that cannot be written, if it can be read."""

    def connect() -> sqlite3.Connection:
        if file is not None and _may_be_copied(file):
            with contextlib.suppress(StoreError), _reading(file) as content:
                return open_connection(MEMORY, content=content)
        return open_connection(MEMORY)

    connection = ReopeningConnection(MEMORY, connect)
    return Store(SqliteDatabase(connection, connection, partial(_read, MEMORY)), warning=warning)


def _may_be_copied(file: Path) -> bool:
    """Return whether a file is small enough to be in memory, and that of nobody else."""
    with contextlib.suppress(OSError):
        status = file.stat()
        ours = not hasattr(os, "geteuid") or status.st_uid in (0, os.geteuid())
        return ours and stat.S_ISREG(status.st_mode) and status.st_size <= MOST_IN_MEMORY
    return False


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a file that no connection can open which may write, as on a full disk or a read-only one."""
    # Without a log nothing is locked and nothing made. With one that cannot be used, the file has what was
    # moved into it before.
    log = file.with_name(file.name + COMPANIONS[0])
    ways = ["mode=ro"] if log.is_file() and log.stat().st_size else []
    with translating_errors(file), contextlib.ExitStack() as opened:
        for way in (*ways, "immutable=1"):
            address = f"{file.absolute().as_uri()}?{way}"
            connection = opened.enter_context(
                contextlib.closing(sqlite3.connect(address, timeout=0, uri=True))
            )
            try:
                connection.execute("SELECT count(*) FROM sqlite_master")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                    raise  # somebody else changes the file
        yield connection


def _read(file: Path, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with _reading(file) as connection:
        return connection.execute(statement, parameters).fetchall()


class _Opener:
    """Opens the file, now and whenever it has to be reopened; sets a damaged one aside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = False
        self.warning: str | None = None
        """A problem of the latest attempt, for a person; already logged."""

    def __call__(self, check: bool = True) -> sqlite3.Connection:
        aside: Path | None = None
        for attempt in range(1, ATTEMPTS + 1):
            identity = self._create(expected=self._opened and attempt == 1)
            try:
                connection = open_connection(self._path, check)
            except StoreDamagedError as e:
                if attempt == ATTEMPTS:
                    raise
                aside, reason = _set_aside(self._path, identity), e.reason
                continue
            if aside is not None:
                self.warning = (
                    f"store {self._path} was damaged ({reason}); it was moved to {aside.name} and a new one "
                    f"created, {_save(aside, connection)}"
                )
                logger.warning("%s.", self.warning)
            self._opened = True
            return connection
        raise AssertionError("unreachable")

    def _create(self, expected: bool) -> int:
        """Make sure there is a file that only its owner may read; return its inode."""
        path = self._path
        try:
            make_private_folder(path.parent)
            # Only a new file may be opened here: closing an existing one would drop the locks that another
            # connection of this process has on it.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
                if expected:
                    logger.warning("store %s was removed; a new one has been created.", path)
            status = path.stat()
        except OSError as e:
            kind = StoreUnavailableError if e.errno in _NO_ROOM else StoreError
            raise kind(path, e.strerror or str(e)) from e
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(path, "it is not a regular file")
        if not os.access(path, os.R_OK | os.W_OK):
            raise StoreError(path, "it cannot be read and written by this user")
        # A copied file may be readable by others.
        for suffix in ("", *COMPANIONS):
            make_private(path.with_name(path.name + suffix))
        return status.st_ino


def open_connection(
    path: Path, check: bool = True, content: sqlite3.Connection | None = None
) -> sqlite3.Connection:
    """Open or create an SQLite file, check it if asked to, and migrate it to the current schema.

    A database in memory begins with the `content`. Raises `StoreDamagedError`, `StoreUnavailableError`, or
    `StoreError` for another reason.
    """
    with translating_errors(path), contextlib.ExitStack() as undo:
        connection = sqlite3.connect(
            path, timeout=OPENING_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        undo.callback(connection.close)
        if content is not None:
            content.backup(connection)
        if check:
            _check(connection, path)
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


def _check(connection: sqlite3.Connection, path: Path) -> None:
    deadline = time.monotonic() + CHECK_BUDGET_S
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), CHECK_STEPS)
    try:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as e:
        if e.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        verdict = "ok"
    finally:
        connection.set_progress_handler(None, 0)
    if verdict != "ok":
        raise StoreDamagedError(path, " ".join(str(verdict).split()))


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    def schema_version() -> int:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])

    if schema_version() == SQLITE_VERSION:
        return
    with immediate(connection):
        # Read again, now that nobody else can write: another process may have been faster.
        version = schema_version()
        if version > SQLITE_VERSION:
            newer = f"a newer version wrote it (schema {version}, this one knows {SQLITE_VERSION})"
            raise StoreError(path, newer)
        damage = f"its tables are not those of schema {version}"
        if 0 < version < OLDEST_SQLITE_VERSION:
            raise StoreDamagedError(path, f"{damage}, which no released version wrote")
        try:
            for statement in sqlite_migration(version):
                connection.execute(statement)
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise StoreDamagedError(path, f"{damage}: {e}") from e
        connection.execute(f"PRAGMA user_version = {SQLITE_VERSION}")


def _set_aside(path: Path, identity: int) -> Path | None:
    """Rename the damaged file and its companions, unless another process has done so already."""
    if not path.exists() or path.stat().st_ino != identity:
        return None
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.stem}.corrupt-{moment}")
    path.rename(aside)
    for suffix in COMPANIONS:
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(aside.with_name(aside.name + suffix))
    for old in sorted(path.parent.glob(f"{glob.escape(path.stem)}.corrupt-*Z"))[:-KEPT_ASIDE]:
        for suffix in ("", *COMPANIONS):
            old.with_name(old.name + suffix).unlink(missing_ok=True)
    return aside


def _save(aside: Path, connection: sqlite3.Connection) -> str:
    """Copy what can be read of a damaged store into a new one; return what that is, for a person."""
    saved, whole = dict[str, int](), False
    with contextlib.suppress(StoreError), _reading(aside) as damaged, immediate(connection):
        whole = True
        for table in ("areas", *SAVED):
            found = [column for _, column, *_ in connection.execute(f"PRAGMA table_info({table})")]
            columns, rows = ", ".join(found), set[tuple[Any, ...]]()
            # A damaged page ends a reading, so the table is then read from its other end, and by its key.
            for order in ("", "ORDER BY rowid DESC", "ORDER BY 1", "ORDER BY 1 DESC"):
                try:
                    for row in damaged.execute(f"SELECT {columns} FROM {table} {order}"):
                        rows.add(row)
                    break
                except (sqlite3.Error, UnicodeDecodeError):
                    whole = False
            marks = ", ".join("?" * len(found))
            connection.executemany(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", rows)
            if rows and table in SAVED:
                saved[table] = len(rows)
    if not saved:
        return "empty" if whole else "without its decisions about tools, its logins and its learned pairs"
    listed = ", ".join(f"{SAVED[table]} ({count:,})" for table, count in saved.items())
    return f"with {'its' if whole else 'what could be read of its'} {listed}"


ROWS_AT_ONCE: Final = 500
"""Rows in one transaction, a megabyte of vectors."""

OF_PROCESSES: Final = frozenset({"leases", "writers"})
"""Tables that say what processes do now."""

OnCopied = Callable[[str, int], None]
"""Takes the name of a table and the number of its rows copied so far."""


class StoredTable(Struct, frozen=True):
    """A table with its columns, which it has on every database."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


class Copied(Struct, frozen=True):
    """The result of a copy."""

    rows: dict[str, int]
    """Number of rows by table."""
    different: tuple[str, ...]
    """Tables whose content is not equal: the target had something else, or one of the two is in use."""


def tables() -> list[StoredTable]:
    """Return the tables of a store, those first that others refer to."""
    with open_store("memory") as empty:
        names = empty.database.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        found = []
        for (name,) in names:
            columns = empty.database.rows("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,))
            key = sorted((place, column) for column, place in columns if place)
            found.append(
                StoredTable(name, tuple(column for column, _ in columns), tuple(each for _, each in key))
            )
    return sorted(found, key=lambda table: table.name == "interaction_vectors")


def copy(source: Store, target: Store, on_copied: OnCopied = lambda _table, _rows: None) -> Copied:
    """Copy everything, and compare. Blocks; may be called again after a break.

    Raises `StoreError` if one of the stores cannot be used; rows copied so far stay.
    """
    rows, different = dict[str, int](), []
    for table in tables():
        if table.name in OF_PROCESSES:
            continue
        done = 0
        for part in _parts(source.database, table):
            with target.database.transaction() as transaction:
                transaction.put(table.name, table.columns, table.key, part)
            done += len(part)
            on_copied(table.name, done)
        rows[table.name] = done
    target.database.go_on_counting()
    for table in tables():
        if table.name not in OF_PROCESSES and digest(source, table) != digest(target, table):
            different.append(table.name)
    return Copied(rows, tuple(different))


def digest(store: Store, table: StoredTable) -> tuple[int, int]:
    """Return the number of rows of a table and the sum of their hashes, whatever their order."""
    count = total = 0
    for part in _parts(store.database, table):
        for row in part:
            told = repr(tuple(map(_without_nul, row))).encode("utf-8", "replace")
            total += int.from_bytes(hashlib.sha256(told).digest(), "big")
        count += len(part)
    return count, total % 2**256


def _without_nul(value: Any) -> Any:
    # PostgreSQL has no NUL in a text.
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _parts(database: Database, table: StoredTable) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table in the order of their keys."""
    columns, key = ", ".join(table.columns), ", ".join(table.key)
    places = [table.columns.index(column) for column in table.key]
    marks = ", ".join("?" * len(places))
    where, after = "", tuple[Any, ...]()
    while part := database.rows(
        f"SELECT {columns} FROM {table.name}{where} ORDER BY {key} LIMIT {ROWS_AT_ONCE}", after
    ):
        yield part
        where = f" WHERE ({key}) > ({marks})"
        after = tuple(part[-1][place] for place in places)
