"""Approvals: the definitions of each server with the decisions about them, and the versions seen of it."""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from mcp_context_proxy.store.database import APPROVALS, Tables, Transaction

DEFINITIONS_PER_NAME: Final = 8
"""Definitions of one name that are kept, to go back to, beside the latest approved and rejected ones."""

VERSIONS_PER_SERVER: Final = 200
"""Versions of one server that are kept for each kind of definition, the latest."""

APPROVED: Final = "approved"
"""State of a definition that is served."""

REJECTED: Final = "rejected"
"""State of a definition that a person has refused."""


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

    def revision(self) -> int:
        """Return a number that grows whenever a process has decided something."""
        return self._database.number("SELECT COALESCE(MAX(revision), 0) FROM approvals")

    def decided_since(self, revision: int) -> list[ApprovalRow]:
        """Return the rows that were decided after a revision and are sound, the oldest first."""
        found = self._database.rows(f"{_SELECT} WHERE revision > ?", (revision,))
        return list(_record(found, ()).rows)

    def servers(self) -> list[str]:
        """Return the names of all servers with definitions, in order."""
        return [name for (name,) in self._database.rows("SELECT DISTINCT server FROM approvals ORDER BY 1")]

    def first_seen(self) -> dict[str, float]:
        """Return the time at which each server was first seen, in seconds since 1970."""
        return dict(self._database.rows("SELECT server, MIN(time) FROM approved_versions GROUP BY server"))

    def record(self, server: str) -> ApprovalRecord:
        """Return the record of a server."""
        found = self._database.rows(f"{_SELECT} WHERE server = ?", (server,))
        versions = self._database.read(VersionRow, "FROM approved_versions WHERE server = ?", (server,))
        return _record(found, versions)

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
        """Write what ``decide`` adds to the present record of a server; return the new record."""
        with self._database.transaction(APPROVALS) as transaction:
            before = _read(transaction, server)
            additions = decide(before)
            if not additions:
                return before
            (latest,) = transaction.execute("SELECT COALESCE(MAX(revision), 0) FROM approvals").fetchone()
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
                "ORDER BY time DESC, kind, connection, version LIMIT ?)",
                (server, server, VERSIONS_PER_SERVER),
            )
            return _read(transaction, server) if old else after


def _read(transaction: Transaction, server: str) -> ApprovalRecord:
    found = transaction.execute(f"{_SELECT} WHERE server = ?", (server,)).fetchall()
    columns = ", ".join(VersionRow.__struct_fields__)
    query = f"SELECT {columns} FROM approved_versions WHERE server = ?"
    versions = transaction.execute(query, (server,)).fetchall()
    return _record(found, [VersionRow(*values) for values in versions])


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
    """Yield the oldest of too many definitions of some names, never the last approved or rejected one."""
    by_name: dict[tuple[str, str], list[ApprovalRow]] = defaultdict(list)
    for row in rows:
        if (row.kind, row.name) in names:
            by_name[row.kind, row.name].append(row)
    for of_name in by_name.values():
        last = {row.state: row for row in of_name}
        others = [row for row in of_name if row not in (last.get(APPROVED), last.get(REJECTED))]
        yield from others[: max(0, len(others) - DEFINITIONS_PER_NAME)]
