"""PostgreSQL as the store of several replicas: a pool of connections, deadlines, a breaker, hints of changes.

Nothing here waits long for a server that is away: an operation has a deadline, after which a watchdog shuts
the socket of its connection, and after a failure all others fail at once for a while. There is no state in a
session of the server, so a pooler of transactions may stand in between.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, urlsplit

import psycopg
from psycopg import pq, sql

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.database import (
    Cursor,
    Database,
    FailureLog,
    ReadOnlyStoreError,
    StoreUnavailableError,
    Transaction,
)
from mcp_context_proxy.store.migrations import (
    AREAS,
    CLUSTER_TABLES,
    POSTGRES_VERSION,
    TABLES,
    postgres_migration,
)
from mcp_context_proxy.store.tables import LeaseStore, Upkeep

BREAK_SECONDS: Final = 1.0
"""Time after a failure in which nothing is tried. Then one operation is, and the others wait for it."""

LOCK_SHARE: Final = 0.8
"""Share of an operation's time for which it waits for another transaction: a server that has others wait is
not away."""

MIGRATION_SECONDS: Final = 120.0
"""Deadline of a migration, and of waiting for another replica that migrates."""

MIGRATION_LOCK: Final = 0x6D637063
"""Number of the advisory lock under which replicas migrate one after the other."""

POLL_SECONDS: Final = 30.0
"""Time after a look at an area after which it may have changed without a hint."""

LISTEN_SECONDS: Final = 0.5
"""Time between two sendings of hints: of many changes of an area, one hint is sent."""

AGAIN_SECONDS: Final = 2.0
"""Time after which a connection that was lost is opened again."""

MESSAGE: Final = "@"
"""Beginning of a hint that holds messages, and not the names of areas."""

MESSAGES_WAITING, MESSAGES_AT_ONCE, MESSAGE_CHARACTERS = 256, 4, 1800
"""Messages of one sending, messages of one hint, and the length of a message: a hint has 8,000 bytes."""

_TABLE: Final = re.compile(rf"\b(FROM|INTO|UPDATE|JOIN)\s+({'|'.join(TABLES | CLUSTER_TABLES)})\b")


class PostgresTransaction(Transaction):
    """A write transaction on a connection that has begun one."""

    holding = " FOR SHARE"
    """Another process that changes the row, such as one that takes a job over, waits for this transaction."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str, upkeep: Upkeep) -> None:
        self._connection, self._schema, self._upkeep = connection, schema, upkeep

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        return self._connection.execute(translated(statement, self._schema), adapted(parameters))

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        written = [adapted(row) for row in rows]
        if len(written) == 1:
            # Without the preparations for many, which cost more than one row does.
            self._connection.execute(translated(statement, self._schema), written[0])
        elif written:
            self._connection.cursor().executemany(translated(statement, self._schema), written)

    def does_upkeep(self) -> bool:
        return self._upkeep.is_still_ours(self)


class PostgresDatabase(Database):
    """A PostgreSQL database. Nothing is connected before it is needed. Blocking and thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        pool: int = 4,
        timeout_seconds: float = 2.0,
        migrate: Literal["auto", "check"] = "auto",
        listen_url: str | None = None,
        replica: str = "",
    ) -> None:
        """Use the database at an address, with as many connections as `pool` says, and one that listens."""
        super().__init__(replica)
        self.replica = replica or self.writer
        self.place: str = place_of(url)
        self._url, self._schema, self._migrate = url, schema, migrate
        self._timeout, self._size = timeout_seconds, pool
        self._room = threading.BoundedSemaphore(pool)
        self._idle: list[psycopg.Connection[Any]] = []
        self._changing = threading.Lock()
        self._closed, self.lack = False, "the database could not be used since the start"
        self._breaker = Breaker()
        self._watchdog = Watchdog()
        self._failures = FailureLog()
        self._upkeep = Upkeep(LeaseStore(self))
        self.hints = ChangeHints(listen_url or url, f"mcp_context_proxy_{schema}", self._connect_to)

    def lead_to(self, url: str, listen_url: str | None) -> None:
        self._url, self.hints.url = url, listen_url or url

    @property
    def problem(self) -> str | None:
        # One that does not pass, such as a right that is missing, is not over once something can be read.
        lasting = self._failures.lasting
        failure = self._breaker.failure or (None if isinstance(lasting, StoreUnavailableError) else lasting)
        return f"{failure}. Calls and searches go on; what is new waits in memory" if failure else None

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        query, values = translated(statement, self._schema), adapted(parameters)
        with self._failures.logged():
            with contextlib.suppress(_StaleConnectionError), self._connection() as connection:
                return connection.execute(query, values).fetchall()
            # The server was restarted since the connection was used last. Reading again does no harm.
            with self._connection() as connection:
                return connection.execute(query, values).fetchall()

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Write with one statement, which the server commits by itself: one exchange instead of three."""
        query, values = translated(statement, self._schema), adapted(parameters)
        with self._failures.logged(), self._connection() as connection:
            changed = connection.execute(query, values).rowcount
        self._failures.recovered()
        return changed

    @contextlib.contextmanager
    def transaction(self, area: str | None = None, *, shared: bool = False) -> Iterator[Transaction]:
        milliseconds = max(1, int(self._timeout * 1000))
        begin = (
            f"BEGIN; SET LOCAL lock_timeout = {max(1, int(milliseconds * LOCK_SHARE))}; "
            f"SET LOCAL statement_timeout = {milliseconds}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {2 * milliseconds}"
        )
        if area is not None:
            assert area in AREAS
            lock = "SHARE" if shared else "UPDATE"
            table = f"{_quoted(self._schema)}.areas"
            begin += f"; SELECT revision FROM {table} WHERE area = '{area}' FOR {lock}"
        with self._failures.logged(), self._connection() as connection:
            connection.execute(begin.encode())
            yield PostgresTransaction(connection, self._schema, self._upkeep)
            if connection.execute("COMMIT").statusmessage != "COMMIT":
                raise StoreError(self.place, "a transaction was not committed")
        self._failures.recovered()
        if area is not None:
            self.hints.changed(area)

    def now(self) -> float:
        """Return the time of the server, which all replicas share."""
        return float(self.rows("SELECT extract(epoch FROM clock_timestamp())")[0][0])

    def may_have_changed(self, area: str) -> bool:
        return self.hints.may_have_changed(area)

    def go_on_counting(self) -> None:
        with self.transaction() as transaction:
            for table, column in (("interactions", "id"), ("interaction_vectors", "seq")):
                name = f"{_quoted(self._schema)}.{table}"
                transaction.execute(
                    f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), "
                    f"(SELECT COALESCE(MAX({column}), 0) + 1 FROM {table}), false)"
                )

    def overwrite_deleted(self) -> None:
        """Do nothing: the server removes deleted rows by itself."""

    def does_upkeep(self) -> bool:
        return self._upkeep.is_ours()

    def take_upkeep_over(self) -> None:
        self._upkeep.take_over()

    def close(self) -> None:
        self._upkeep.end()
        self._closed = True
        self.hints.close()
        self._watchdog.close()
        self._drop_idle()

    def schema_version(self) -> int:
        with self._failures.logged(), self._connection(prepare=False) as connection:
            return self._version_on(connection)

    def migrate(self) -> tuple[int, int]:
        connected = self._connection(prepare=False, seconds=MIGRATION_SECONDS)
        with self._failures.logged(), connected as connection:
            return self._migrate_on(connection)

    @contextlib.contextmanager
    def _connection(
        self, *, prepare: bool = True, seconds: float | None = None
    ) -> Iterator[psycopg.Connection[Any]]:
        """Use a connection alone until the end of the block, which has a deadline."""
        if self._closed:
            raise StoreError(self.place, "it is closed")
        with self._breaker.trying():
            if not self._room.acquire(timeout=self._timeout):
                raise StoreUnavailableError(self.place, f"all of its {self._size} connections are in use")
            try:
                with self._translating_errors():
                    connection, was_idle = self._checked_out()
                try:
                    if prepare and self.lack:
                        with self._watched(connection, MIGRATION_SECONDS):
                            self._prepare(connection)
                    with self._watched(connection, seconds or self._timeout):
                        yield connection
                except (ServerAwayError, ReadOnlyStoreError) as error:
                    # The connections that are idle have gone with it, most likely, or lead to it as well.
                    self._drop_idle()
                    if isinstance(error, ReadOnlyStoreError):
                        connection.close()  # a new one may lead to the server that takes writes by now
                    elif was_idle and not isinstance(error, _OverdueError):
                        raise _StaleConnectionError(self.place, error.reason) from error
                    raise
                finally:
                    self._give_back(connection)
            finally:
                self._room.release()
        self.hints.start()

    @contextlib.contextmanager
    def _watched(self, connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
        """Give the work on a connection some seconds, and translate its errors."""
        with self._watchdog.watching(connection, seconds) as watched:
            try:
                with self._translating_errors():
                    yield
            except StoreUnavailableError as error:
                if watched.is_over:
                    raise _OverdueError(self.place, f"it did not answer within {seconds:g} s") from error
                raise

    def _checked_out(self) -> tuple[psycopg.Connection[Any], bool]:
        with self._changing:
            if self._idle:
                return self._idle.pop(), True
        return self._connect_to(self._url), False

    def _connect_to(self, url: str) -> psycopg.Connection[Any]:
        # Statements are not prepared: a pooler may give each transaction another session of the server.
        return psycopg.connect(
            url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=max(2, math.ceil(self._timeout)),  # the driver allows no less than 2 s
            application_name="mcp-context-proxy",
        )

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        status = connection.info.transaction_status
        if status is not pq.TransactionStatus.IDLE and not connection.closed:
            with contextlib.suppress(StoreError), self._watched(connection, self._timeout):
                connection.execute("ROLLBACK")
        with self._changing:
            usable = not (connection.closed or connection.broken or self._closed)
            if usable and connection.info.transaction_status is pq.TransactionStatus.IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._changing:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Bring the schema to this version, or refuse to use another one."""
        version, known = self._version_on(connection), POSTGRES_VERSION
        if version < known:
            if self._migrate == "check":
                raise StoreError(
                    self.place,
                    f"its schema is at version {version}, and this one needs {known}: run "
                    "mcp-context-proxy store migrate",
                )
            self._migrate_on(connection)
        elif version > known + 1:
            newer = f"a newer version wrote it (schema {version}, this one works with {known + 1})"
            raise StoreError(self.place, newer)
        self.lack = None

    def _version_on(self, connection: psycopg.Connection[Any]) -> int:
        table = f"{_quoted(self._schema)}.migrations"
        found = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
        if found is None or found[0] is None:
            return 0
        (version,) = connection.execute(f"SELECT MAX(version) FROM {table}".encode()).fetchone() or (0,)
        return int(version or 0)

    def _migrate_on(self, connection: psycopg.Connection[Any]) -> tuple[int, int]:
        schema = _quoted(self._schema)
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
            # Only the owner of the database may make a schema, and somebody else may have made it for us.
            known = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
            if connection.execute(known, (self._schema,)).fetchone() is None:
                connection.execute(f"CREATE SCHEMA {schema}".encode())
            connection.execute(f"SET LOCAL search_path TO {schema}".encode())
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations (version BIGINT PRIMARY KEY, "
                "applied TIMESTAMPTZ NOT NULL DEFAULT now())"
            )
            before = self._version_on(connection)
            if before < POSTGRES_VERSION:
                for statement in postgres_migration():
                    connection.execute(statement.encode())
                connection.execute("INSERT INTO migrations (version) VALUES (%s)", (POSTGRES_VERSION,))
        return before, max(before, POSTGRES_VERSION)

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            passing = isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable)
            # After a conflict with another transaction, this one can be tried again.
            passing = passing or (error.sqlstate or "").startswith("40")
            kind = StoreUnavailableError if passing else ServerAwayError
            raise kind(self.place, _first_line(error)) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise ReadOnlyStoreError(self.place, _first_line(error)) from error
        except (psycopg.Error, UnicodeError) as error:
            raise StoreError(self.place, _first_line(error)) from error


class ServerAwayError(StoreUnavailableError):
    """The server cannot be reached, or has ended the connection."""


class _OverdueError(ServerAwayError):
    """The server has not answered in time."""


class _StaleConnectionError(StoreUnavailableError):
    """A connection that was idle has turned out to be closed: the server may be there again."""


class Breaker:
    """Fails at once for a while after a failure; then lets one operation try."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.failure: StoreError | None = None
        """The failure that nothing has followed yet that worked."""
        self._until = 0.0
        self._is_tried = False

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Run an operation, unless one has failed a moment ago."""
        with self._lock:
            if (failure := self.failure) is not None:
                if self._is_tried or time.monotonic() < self._until:
                    raise failure.with_traceback(None)
                self._is_tried = True
        try:
            yield
        except ServerAwayError as error:
            self._ended(error)
            raise
        except BaseException:
            with self._lock:
                self._is_tried = False
            raise
        else:
            self._ended(None)

    def _ended(self, failure: StoreError | None) -> None:
        with self._lock:
            self._is_tried, self.failure = False, failure
            if failure is not None:
                self._until = time.monotonic() + BREAK_SECONDS


class _Watched:
    """An operation with a deadline."""

    __slots__ = ("deadline", "is_over", "number")

    def __init__(self, number: int, deadline: float) -> None:
        self.number, self.deadline, self.is_over = number, deadline, False


class Watchdog:
    """Shuts the socket of a connection whose operation is over its time. One thread, started when needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: set[_Watched] = set()
        self._thread: threading.Thread | None = None
        self._looks_at, self._closed = 0.0, False
        """Time at which the thread looks at the operations under way."""

    @contextlib.contextmanager
    def watching(self, connection: psycopg.Connection[Any], seconds: float) -> Iterator[_Watched]:
        watched = _Watched(connection.fileno(), time.monotonic() + seconds)
        with self._changed:
            self._watched.add(watched)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="store-watchdog", daemon=True)
                self._thread.start()
            elif watched.deadline < self._looks_at:
                self._looks_at = watched.deadline
                self._changed.notify()
        try:
            yield watched
        finally:
            with self._changed:
                self._watched.discard(watched)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                now, looks_at = time.monotonic(), math.inf
                for watched in self._watched:
                    if watched.is_over:
                        continue
                    if watched.deadline <= now:
                        watched.is_over = True
                        shut(watched.number)
                    else:
                        looks_at = min(looks_at, watched.deadline)
                # Operations that end before need not wake it: most take a thousandth of their time.
                self._looks_at = looks_at
                self._changed.wait(None if looks_at == math.inf else looks_at - now)


class ChangeHints:
    """Hints that an area of the store has changed, so that replicas need not ask all the time.

    A hint may be lost, and decides nothing: it only says that looking is worth while. Without a connection
    that listens, and half a minute after the last look in any case, everything may have changed. Hints are
    sent and taken by one thread, on a connection of its own.
    """

    def __init__(self, url: str, channel: str, connect: Callable[[str], psycopg.Connection[Any]]) -> None:
        """Connect nothing yet; ``url`` leads to the server itself, not to a pooler of transactions."""
        self.url, self._channel, self._connect = url, channel, connect
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._listening = False
        self._connected: int | None = None
        """File descriptor of the connection."""
        self._told: set[str] = set()
        self._to_tell: set[str] = set()
        self._looked: dict[str, float] = {}
        self._messages: dict[str, None] = {}
        self.heard: Callable[[str], None] | None = None
        """Takes each message of another process, in the thread of the hints; and an empty one whenever
        messages may have been lost."""

    def start(self) -> None:
        if self._thread is None and not self._closing.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="store-hints", daemon=True)
                    self._thread.start()

    def changed(self, area: str) -> None:
        """Tell the other replicas soon that an area has changed."""
        with self._lock:
            self._to_tell.add(area)

    def tell(self, message: str) -> None:
        """Send a message to the other processes soon; one that waits is not sent twice. It may be lost."""
        with self._lock:
            if len(self._messages) < MESSAGES_WAITING:
                self._messages[quote(message, safe="")[:MESSAGE_CHARACTERS]] = None

    def may_have_changed(self, area: str) -> bool:
        """Return whether an area may have changed since this was asked before."""
        now = time.monotonic()
        with self._lock:
            fresh = area in self._told or now - self._looked.get(area, -POLL_SECONDS) >= POLL_SECONDS
            if fresh or not self._listening:
                self._told.discard(area)
                self._looked[area] = now
                return True
            return False

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._connected is not None:
                shut(self._connected)
        if self._thread is not None:
            self._thread.join(2 * LISTEN_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(psycopg.Error, OSError):
                connection = self._connect(self.url)
                try:
                    self._listen(connection)
                finally:
                    with self._lock:
                        # What is told from now on is not heard.
                        self._listening, self._connected = False, None
                    connection.close()
            self._closing.wait(AGAIN_SECONDS)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        with self._lock:
            self._listening, self._connected = True, connection.fileno()
            self._looked.clear()
        if self.heard is not None:
            self.heard("")
        while not self._closing.is_set():
            for notice in connection.notifies(timeout=LISTEN_SECONDS):
                if notice.payload.startswith(MESSAGE):
                    # Sent by this process as well, which knows.
                    if notice.pid != connection.info.backend_pid and self.heard is not None:
                        for each in notice.payload[1:].split(","):
                            self.heard(unquote(each))
                    continue
                with self._lock:
                    self._told.update(notice.payload.split(","))
            with self._lock:
                telling, self._to_tell = self._to_tell, set()
                messages, self._messages = list(self._messages), {}
            if telling:
                connection.execute("SELECT pg_notify(%s, %s)", (self._channel, ",".join(sorted(telling))))
            for start in range(0, len(messages), MESSAGES_AT_ONCE):
                payload = MESSAGE + ",".join(messages[start : start + MESSAGES_AT_ONCE])
                connection.execute("SELECT pg_notify(%s, %s)", (self._channel, payload))


def shut(number: int) -> None:
    """Shut a socket down, so that whoever waits for it reads its end; the owner closes it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as other:
        other.shutdown(socket.SHUT_RDWR)


@lru_cache(maxsize=1_000)
def translated(statement: str, schema: str) -> Any:
    """Return a statement of the common dialect for PostgreSQL, with its tables in a schema."""
    placed = _TABLE.sub(lambda found: f"{found[1]} {_quoted(schema)}.{found[2]}", statement)
    return placed.replace("%", "%%").replace("?", "%s").encode()


def adapted(parameters: Sequence[Any]) -> tuple[Any, ...]:
    """Return parameters as the server takes them: it knows no NUL in a text, and no boolean for a number."""
    texts = (value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in parameters)
    return tuple(int(value) if isinstance(value, bool) else value for value in texts)


def place_of(url: str) -> str:
    """Return the address of a database without user, password and options."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "postgresql"
    return f"postgresql://{host}{port}{parts.path}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: BaseException) -> str:
    """Return the first line of an error; the others quote statements."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
