"""Tables of vectors, listings of servers, request contexts, sessions by tool, approvals, and leases."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import ToolKey, Vector
from mcp_context_proxy.store.database import Database, Queries, Tables, Transaction
from mcp_context_proxy.store.migrations import APPROVALS, LISTINGS
from mcp_context_proxy.system.later import np
from mcp_context_proxy.system.process import time_of_day

STORED: Final = "<f4"
"""Type of each number, little-endian everywhere, so that a store can move between machines."""
STORED_BYTES: Final = 4

LATEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the request contexts that are read as the latest: some thousand, or ten of a thousand items."""


class VectorStore(Tables):
    """Vectors by model and content hash."""

    def get(self, model_id: str, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors of ``keys`` that are there and have the checksum with which they were put."""
        rows = self._database.rows_of_keys(
            "SELECT key, vector, checksum FROM vectors WHERE model_id = ? AND key IN", keys, [model_id]
        )
        return {
            key: decoded_vector(blob)
            for key, blob, checksum in rows
            if is_vector(blob) and checksum in (None, _checksum(model_id, key, blob))
        }

    def put(self, model_id: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors, all or none; another one under the same key is replaced."""
        blobs = [(key, encoded_vector(vector)) for key, vector in vectors.items()]
        rows = [(model_id, key, blob, _checksum(model_id, key, blob)) for key, blob in blobs]
        # In one order, so that no two writers wait for each other.
        rows.sort(key=lambda row: row[1] or b"")
        with self._database.transaction() as transaction:
            # A vector that is there already is not written again.
            transaction.executemany(
                "INSERT INTO vectors (model_id, key, vector, checksum) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (model_id, key) DO UPDATE SET vector = excluded.vector, "
                "checksum = excluded.checksum "
                "WHERE vectors.vector <> excluded.vector OR vectors.checksum IS NULL "
                "OR vectors.checksum <> excluded.checksum",
                rows,
            )

    def clear(self) -> None:
        self._database.change("DELETE FROM vectors")


def _checksum(model_id: str, key: bytes | None, blob: bytes) -> int:
    """Cover the key, too: a vector beside another text is as wrong as a changed one."""
    return zlib.crc32(blob, zlib.crc32(key or b"", zlib.crc32(model_id.encode())))


def is_vector(blob: object) -> bool:
    return isinstance(blob, bytes) and len(blob) % STORED_BYTES == 0


def encoded_vector(vector: Vector) -> bytes:
    return vector.astype(STORED).tobytes()


def decoded_vector(blob: bytes) -> Vector:
    return np.frombuffer(blob, STORED).astype(np.float32)


LISTINGS_KEPT: Final = 1_000
"""Listings, one a server; the oldest ones make room."""


class ListingStore(Tables):
    """Listings of servers, by a digest of how each is connected."""

    def get(self, key: str) -> tuple[float, bytes] | None:
        """Return a listing and its time, in seconds since 1970; None if unknown or damaged."""
        rows = self._database.rows("SELECT time, digest, listing FROM listings WHERE key = ?", (key,))
        if not rows:
            return None
        time, digest, listing = rows[0]
        sound = isinstance(listing, bytes) and isinstance(time, float) and _digest(key, listing) == digest
        return (time, listing) if sound else None

    def ending_with(self, suffix: str) -> dict[str, tuple[float, bytes]]:
        """Return the entries whose keys end so, as `get` does, by key."""
        keys = [key for (key,) in self._database.rows("SELECT key FROM listings") if key.endswith(suffix)]
        return {key: found for key in keys if (found := self.get(key)) is not None}

    def put(self, key: str, time: float, listing: bytes) -> None:
        """Keep a listing in place of the former one."""
        row = key, time, _digest(key, listing), listing
        with self._database.transaction(LISTINGS) as transaction:
            transaction.put("listings", ("key", "time", "digest", "listing"), ("key",), [row])
            transaction.forget_old("listings", ("key",), keep=LISTINGS_KEPT)
            transaction.next_revision(LISTINGS)

    def forget(self, key: str) -> None:
        with self._database.transaction(LISTINGS) as transaction:
            transaction.execute("DELETE FROM listings WHERE key = ?", (key,))
            transaction.next_revision(LISTINGS)


def _digest(key: str, listing: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + listing).digest()


class RequestRow(Struct, frozen=True):
    """A request context."""

    id: str
    time: float
    """Seconds since 1970."""
    session: str | None
    """Public id of the session it belongs to."""
    context: bytes
    """Encoded; the store does not read it."""
    owner: str | None = None
    """Digest of the client's credentials; None without any."""


DAY_SECONDS: Final = 24 * 3600

DAYS_AT_ONCE: Final = 7
"""Days by which the entries of the store grow older with one day of its use."""

_AGED, _USED = "aged", "used"
"""Rows beside the areas: the day up to which entries have grown older, and the last day of use."""


def lag_of(database: Database, *, leap: bool = False) -> float:
    """Return the seconds by which the clock has leapt ahead of the days on which the store was used.

    With a clock that is years ahead at a start, everything that is remembered would be too old to keep. So
    ages count up to a day that follows the clock by a week for each day of use. With `leap` a person trusts
    the clock.
    """
    today = int(time_of_day() // DAY_SECONDS)
    if leap or database.lag[0] != today:
        query = "SELECT area, revision FROM areas WHERE area IN (?, ?)"
        noted = dict[str, int](database.rows(query, (_AGED, _USED)))
        aged = min(today, int(noted.get(_AGED, today)))
        if leap or noted.get(_USED) != today:
            # Once a day: a search may wait for this, and a write can wait for another process.
            aged = today if leap else min(today, aged + DAYS_AT_ONCE)
            with database.transaction() as transaction:
                transaction.put("areas", ("area", "revision"), ("area",), [(_AGED, aged), (_USED, today)])
        database.lag = today, float((today - aged) * DAY_SECONDS)
    return database.lag[1]


class RequestStore(Tables):
    """Request contexts, the latest of all processes that share the store."""

    def put(self, rows: Iterable[RequestRow], keep: int, since: float) -> None:
        """Keep rows, all or none. Whoever does the upkeep then forgets old ones, as `forget_old` does."""
        if tidies := self.does_upkeep():
            since -= lag_of(self._database)
        with self._database.transaction() as transaction:
            transaction.put_rows("requests", ("id",), rows)
            if tidies and transaction.does_upkeep():
                transaction.forget_old("requests", ("id",), before=since, keep=keep)

    def forget_old(self, keep: int, since: float) -> None:
        """Forget all but the latest ``keep``, and all before ``since``, as the upkeep."""
        since -= lag_of(self._database)
        with self._upkeep() as transaction:
            if transaction is not None:
                transaction.forget_old("requests", ("id",), before=since, keep=keep)

    def get(self, request_id: str) -> RequestRow | None:
        """Return the request context by an id; None when it is unknown or forgotten."""
        return next(iter(self._database.read(RequestRow, "FROM requests WHERE id = ?", [request_id])), None)

    def latest(self, limit: int, session: str | None = None) -> list[RequestRow]:
        """Return the latest, of one session or of all, newest first."""
        where, parameters = ("WHERE session = ?", [session]) if session is not None else ("", [])
        return self._latest(where, [*parameters, limit])

    def latest_of(self, owner: str | None, limit: int) -> list[RequestRow]:
        """Return the latest of one client, newest first."""
        if owner is None:
            return self._latest("WHERE owner IS NULL", [limit])
        return self._latest("WHERE owner = ?", [owner, limit])

    def ids_between(
        self, since: float, moment: float, limit: int, session: str | None, owner: str | None
    ) -> list[str]:
        """Return the ids of the latest between two moments of one session, or of one client without one."""
        if session is not None:
            where, whose = "session = ?", [session]
        else:
            where, whose = ("owner IS NULL", []) if owner is None else ("owner = ?", [owner])
        query = f"SELECT id FROM requests WHERE {where} AND time BETWEEN ? AND ? ORDER BY time DESC LIMIT ?"
        return [id_ for (id_,) in self._database.rows(query, [*whose, since, moment, limit])]

    def of_ids(self, ids: Sequence[str]) -> list[RequestRow]:
        return self._database.read_of_keys(RequestRow, "FROM requests WHERE id IN", ids)

    def _latest(self, where: str, parameters: Sequence[object]) -> list[RequestRow]:
        """Return the latest: as many as have `LATEST_BYTES` together, and the one that goes beyond."""
        sizes = f"SELECT id, LENGTH(context) FROM requests {where} ORDER BY time DESC, id DESC LIMIT ?"
        ids, left = list[str](), LATEST_BYTES
        for id_, size in self._database.rows(sizes, parameters):
            if left > 0:
                ids.append(id_)
            left -= size
        found = {row.id: row for row in self.of_ids(ids)}
        return [found[id_] for id_ in ids if id_ in found]


class ToolSession(Struct, frozen=True):
    """A session in which a tool was used."""

    server: str
    tool: str
    """The name the server itself uses."""
    session: str
    time: float
    """Time of the first use that was written, in seconds since 1970."""


class ToolSessions(Struct, frozen=True):
    """The number of sessions in which a tool was used."""

    server: str
    tool: str
    sessions: int
    last: float
    """Time of the latest of them, in seconds since 1970."""

    @property
    def key(self) -> ToolKey:
        return self.server, self.tool


class ToolSessionStore(Tables):
    """Sessions in which each tool was used."""

    def add(self, rows: Iterable[ToolSession], since: float, keep: int) -> None:
        """Keep uses, all or none, one a session.

        Whoever does the upkeep then forgets all before ``since``, and all but ``keep``.
        """
        key = "server", "tool", "session"
        if tidies := self.does_upkeep():
            since -= lag_of(self._database)
        with self._database.transaction() as transaction:
            transaction.put_rows("tool_sessions", key, rows)
            if tidies and transaction.does_upkeep():
                transaction.forget_old("tool_sessions", key, before=since, keep=keep)

    def counted(self, since: float) -> list[ToolSessions]:
        """Return the number of sessions since a time in which each tool was used."""
        rows = self._database.rows(
            "SELECT server, tool, COUNT(*), MAX(time) FROM tool_sessions WHERE time >= ? "
            "GROUP BY server, tool ORDER BY server, tool",
            (since,),
        )
        return [ToolSessions(*row) for row in rows]

    def tools(self) -> list[ToolKey]:
        query = "SELECT DISTINCT server, tool FROM tool_sessions ORDER BY 1, 2"
        return [(server, tool) for server, tool in self._database.rows(query)]

    def forget(self, tools: Iterable[ToolKey]) -> None:
        with self._database.transaction() as transaction:
            transaction.executemany("DELETE FROM tool_sessions WHERE server = ? AND tool = ?", list(tools))
            # So is what was chosen from them today.
            transaction.execute("DELETE FROM working_sets")


DEFINITIONS_PER_NAME: Final = 8
"""Definitions of one name that are kept, to go back to, beside the first and the last with each decision."""

VERSIONS_PER_SERVER: Final = 200
"""Versions of one server that are kept for each kind of definition, the latest."""

APPROVED: Final = "approved"
REJECTED: Final = "rejected"
"""States of a definition that is served, and of one that a person has refused."""


class ApprovalRow(msgspec.Struct, frozen=True, gc=False):
    """One definition of a server, and the decision about it."""

    server: str
    kind: str
    name: str
    seen: bytes
    rest: bytes
    state: str
    event: str
    """Event that brought it to the state."""
    reason: str
    """Sign for which it is suspected; empty without one."""
    hints: str
    version: str
    """Version of the server's package that listed it first; empty where that is not known."""
    decided: str
    """Who decided: a mode, or a person by a command or on the page."""
    time: float
    """Time of the decision, in seconds since 1970."""
    revision: int = 0
    """Position in the order of decisions; given when the row is written."""

    @property
    def key(self) -> bytes:
        """Digest under which its definition is kept."""
        of_server = f"{self.server}\0{self.kind}\0".encode()
        return hashlib.sha256(of_server + self.seen + self.rest).digest()

    @property
    def checksum(self) -> int:
        """CRC-32 over everything that decides about calls."""
        facts = f"{self.server}\0{self.kind}\0{self.name}\0{self.state}\0{self.event}\0{self.hints}"
        return zlib.crc32(self.seen, zlib.crc32(self.rest, zlib.crc32(facts.encode("utf-8", "replace"))))


_COLUMNS: Final = ApprovalRow.__struct_fields__
_KEY: Final = ("server", "kind", "name", "seen", "rest")
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)}, checksum FROM approvals"


class VersionRow(Struct, frozen=True):
    """A version in which a server was seen to list definitions of one kind."""

    server: str
    kind: str
    connection: str
    version: str
    time: float
    digest: bytes = b""
    """Digest of a list in which all was approved, as long as nothing was decided since; empty without one."""


class ApprovalRecord(Struct, frozen=True):
    """Everything that is kept about one server."""

    rows: tuple[ApprovalRow, ...] = ()
    """Oldest first."""
    versions: tuple[VersionRow, ...] = ()
    damaged: int = 0
    """Rows that cannot be read; they count as missing."""


class Additions(Struct, frozen=True):
    """Rows to write, the definitions of those that are new by their key, and versions."""

    rows: tuple[ApprovalRow, ...] = ()
    definitions: Mapping[bytes, bytes] = field(default_factory=dict)
    versions: tuple[VersionRow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows or self.versions)


Decide = Callable[[ApprovalRecord], Additions]
"""Decides what to add to the record of a server. Called inside a transaction, so it must be quick."""


class ApprovalStore(Tables):
    """Decisions about definitions. Two processes never decide about one server at the same time."""

    @property
    def is_remote(self) -> bool:
        """True for a database, which others have, and which may be away for a while."""
        return self._database.place is not None

    def revision(self) -> int:
        return self._database.number("SELECT COALESCE(MAX(revision), 0) FROM approvals")

    def decided_since(self, revision: int) -> list[ApprovalRow]:
        """Return the rows that were decided after a revision and are sound, the oldest first."""
        found = self._database.rows(f"{_SELECT} WHERE revision > ?", (revision,))
        return list(_record(found, ()).rows)

    def servers(self) -> list[str]:
        return [name for (name,) in self._database.rows("SELECT DISTINCT server FROM approvals ORDER BY 1")]

    def first_seen(self) -> dict[ToolKey, float]:
        """Return the time at which each server and each of its tools was first seen; see `Snapshot`."""
        servers = "SELECT server, '', MIN(time) FROM approved_versions GROUP BY server"
        tools = "SELECT server, name, MIN(time) FROM approvals WHERE kind = 'tool' GROUP BY server, name"
        found = self._database.rows(f"{servers} UNION ALL {tools}")
        return {(server, name): time for server, name, time in found}

    def record(self, server: str) -> ApprovalRecord:
        return _read(self._database, server)

    def approved_digest(self, server: str, kind: str, connection: str, version: str) -> bytes:
        """Return the digest of a list of which all was approved; empty if none is known."""
        where = "WHERE server = ? AND kind = ? AND connection = ? AND version = ?"
        query = f"SELECT digest FROM approved_versions {where}"
        rows = self._database.rows(query, (server, kind, connection, version))
        return bytes(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else b""

    def definitions(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the definitions with these keys, as they were received."""
        query = "SELECT key, definition FROM approved_definitions WHERE key IN"
        return dict(self._database.rows_of_keys(query, list(keys)))

    def decide(self, server: str, decide: Decide) -> ApprovalRecord:
        """Write the additions of ``decide`` to the present record of a server; return the new record."""
        with self._database.transaction(APPROVALS) as transaction:
            before = _read(transaction, server)
            additions = decide(before)
            if not additions:
                return before
            latest = transaction.number("SELECT COALESCE(MAX(revision), 0) FROM approvals")
            values = [
                (*(getattr(row, each) for each in _COLUMNS[:-1]), latest + 1 + at, row.checksum)
                for at, row in enumerate(additions.rows)
            ]
            transaction.put("approvals", (*_COLUMNS, "checksum"), _KEY, values)
            definitions = additions.definitions.items()
            transaction.executemany(
                "INSERT INTO approved_definitions (key, definition) VALUES (?, ?) ON CONFLICT DO NOTHING",
                definitions,
            )
            if additions.rows:
                transaction.next_revision(APPROVALS)
                forget = "UPDATE approved_versions SET digest = ? WHERE server = ?"
                transaction.execute(forget, (b"", server))
            # The time stays that of the first sight, by which servers are younger or older.
            transaction.executemany(
                "INSERT INTO approved_versions (server, kind, connection, version, time, digest) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (server, kind, connection, version) "
                "DO UPDATE SET digest = excluded.digest",
                [
                    (row.server, row.kind, row.connection, row.version, row.time, row.digest)
                    for row in additions.versions
                ],
            )
            after = _read(transaction, server)
            old = list(_superseded(after.rows, {(row.kind, row.name) for row in additions.rows}))
            transaction.executemany(
                "DELETE FROM approvals WHERE server = ? AND kind = ? AND name = ? AND seen = ? AND rest = ?",
                [(server, row.kind, row.name, row.seen, row.rest) for row in old],
            )
            transaction.executemany(
                "DELETE FROM approved_definitions WHERE key = ?", [(row.key,) for row in old]
            )
            transaction.execute(
                "DELETE FROM approved_versions WHERE server = ? AND (kind, connection, version) NOT IN "
                "(SELECT kind, connection, version FROM approved_versions WHERE server = ? "
                "ORDER BY time DESC, kind, connection, version LIMIT ?) "
                "AND time > (SELECT MIN(time) FROM approved_versions WHERE server = ?)",
                (server, server, VERSIONS_PER_SERVER, server),
            )
            return _read(transaction, server) if old else after


def _read(queries: Queries, server: str) -> ApprovalRecord:
    found = queries.rows(f"{_SELECT} WHERE server = ?", (server,))
    return _record(found, queries.read(VersionRow, "FROM approved_versions WHERE server = ?", (server,)))


def _record(found: Iterable[tuple[Any, ...]], versions: Iterable[VersionRow]) -> ApprovalRecord:
    rows, damaged = list[ApprovalRow](), 0
    for *values, checksum in found:
        row = ApprovalRow(*values)
        try:
            sound = row.checksum == checksum
        except TypeError:
            sound = False
        if sound:
            rows.append(row)
        else:
            damaged += 1
    return ApprovalRecord(tuple(sorted(rows, key=lambda row: row.revision)), tuple(versions), damaged)


def _superseded(rows: Iterable[ApprovalRow], names: Collection[tuple[str, str]]) -> Iterator[ApprovalRow]:
    """Yield the older of too many definitions of a name, but not the first, nor the last with a decision."""
    by_name: dict[tuple[str, str], list[ApprovalRow]] = defaultdict(list)
    for row in rows:
        if (row.kind, row.name) in names:
            by_name[row.kind, row.name].append(row)
    for of_name in by_name.values():
        last, first = {row.state: row for row in of_name}, min(of_name, key=lambda row: row.time)
        others = [row for row in of_name if row not in (first, last.get(APPROVED), last.get(REJECTED))]
        yield from others[: max(0, len(others) - DEFINITIONS_PER_NAME)]


class Lease(Struct, frozen=True):
    """The right to do a job until a moment."""

    job: str
    token: int
    """Number of the lease: a later one of the same job has a greater one."""
    until: float
    """Seconds since 1970, on the clock of the database."""


LONGEST_LEASE: Final = 3600.0
"""Seconds beyond any lease, and beyond small corrections of the clock."""


class LeaseStore(Tables):
    """Leases: which process does a job that one of them should do."""

    def take(self, job: str, seconds: float, *, over: bool = False) -> Lease | None:
        """Take or renew the lease of a job; None while another process has it, unless it is taken over."""
        database = self._database
        now = database.now()
        with database.transaction() as transaction:
            # Writing first makes the others wait, so that only one of them finds the lease free.
            transaction.execute(
                "INSERT INTO leases (job, holder, token, until) VALUES (?, ?, 0, 0) "
                "ON CONFLICT (job) DO UPDATE SET until = leases.until",
                (job, ""),
            )
            query = "SELECT holder, token, until FROM leases WHERE job = ?"
            holder, token, until = transaction.execute(query, (job,)).fetchone()
            # One that ends later was taken when the clock was ahead, perhaps by a process that is gone.
            held = now < until <= now + LONGEST_LEASE
            if holder != database.writer and held and not over:
                return None
            if holder != database.writer or until <= now:
                token += 1
            transaction.execute(
                "UPDATE leases SET holder = ?, token = ?, until = ? WHERE job = ?",
                (database.writer, token, now + seconds, job),
            )
        return Lease(job, token, now + seconds)

    def give_back(self, lease: Lease) -> None:
        """End a lease, so that another process can take it at once."""
        statement = "UPDATE leases SET until = 0 WHERE job = ? AND token = ?"
        self._database.change(statement, (lease.job, lease.token))

    def held(self) -> list[tuple[str, str, float]]:
        query = "SELECT job, holder, until FROM leases WHERE until > ? ORDER BY job"
        return [(job, holder, until) for job, holder, until in self._database.rows(query, [self.now()])]


UPKEEP: Final = "upkeep"
"""Job of deleting old rows and summing up statistics."""

UPKEEP_SECONDS: Final = 60.0
"""Time after which another process takes the job over from one that was lost."""


class Upkeep:
    """The job of deleting old rows, which one of several processes does. Blocking and thread-safe."""

    def __init__(self, leases: LeaseStore, clock: Callable[[], float] = monotonic) -> None:
        self._leases, self._clock = leases, clock
        self._lease: Lease | None = None
        self._asked = -UPKEEP_SECONDS
        self._asking = threading.Lock()

    def is_ours(self) -> bool:
        """Return whether this process does the job. The lease is taken or renewed if it is time."""
        with self._asking:
            now = self._clock()
            if now - self._asked >= UPKEEP_SECONDS / 2:
                self._asked = now
                try:
                    self._lease = self._leases.take(UPKEEP, UPKEEP_SECONDS)
                except StoreError:
                    self._lease = None  # logged by the store
            return self._lease is not None

    def take_over(self) -> None:
        """Do the job from now on, and have whoever did it before refused.

        Raises `StoreError` if the store cannot be written.
        """
        with self._asking:
            self._lease, self._asked = self._leases.take(UPKEEP, UPKEEP_SECONDS, over=True), self._clock()

    def is_still_ours(self, transaction: Transaction) -> bool:
        """Return whether nobody has taken the job over since `is_ours` was asked."""
        lease = self._lease
        return lease is not None and transaction.holds(lease.job, lease.token)

    def end(self) -> None:
        with self._asking:
            lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._leases.give_back(lease)
            except StoreError:
                return  # it ends by itself
