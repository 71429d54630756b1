"""Tables of vectors, listings of servers, request contexts, and sessions by tool."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from mcp_context_proxy.items import ToolKey, Vector
from mcp_context_proxy.store.database import LISTINGS, Tables
from mcp_context_proxy.system.later import np

STORED: Final = "<f4"
"""Type of each number, little-endian everywhere, so that a store can move between machines."""
STORED_BYTES: Final = 4


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
        """Forget all vectors."""
        with self._database.transaction() as transaction:
            transaction.execute("DELETE FROM vectors")


def _checksum(model_id: str, key: bytes | None, blob: bytes) -> int:
    """Cover the key, too: a vector beside another text is as wrong as a changed one."""
    return zlib.crc32(blob, zlib.crc32(key or b"", zlib.crc32(model_id.encode())))


def is_vector(blob: object) -> bool:
    """Return whether a blob is an array of float32."""
    return isinstance(blob, bytes) and len(blob) % STORED_BYTES == 0


def encoded_vector(vector: Vector) -> bytes:
    """Return a vector as a blob."""
    return vector.astype(STORED).tobytes()


def decoded_vector(blob: bytes) -> Vector:
    """Return the vector in a blob."""
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
        """Forget a listing."""
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


class RequestStore(Tables):
    """Request contexts, the latest of all processes that share the store."""

    def put(self, rows: Iterable[RequestRow], keep: int, since: float) -> None:
        """Keep rows, all or none. Whoever does the upkeep then forgets old ones, as `forget_old` does."""
        tidies = self.does_upkeep()
        with self._database.transaction() as transaction:
            transaction.put_rows("requests", ("id",), rows)
            if tidies and transaction.does_upkeep():
                transaction.forget_old("requests", ("id",), before=since, keep=keep)

    def forget_old(self, keep: int, since: float) -> None:
        """Forget all but the latest ``keep``, and all before ``since``, as the upkeep."""
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
        query = (
            f"SELECT id FROM requests WHERE {where} AND time >= ? AND time <= ? ORDER BY time DESC LIMIT ?"
        )
        return [id_ for (id_,) in self._database.rows(query, [*whose, since, moment, limit])]

    def of_ids(self, ids: Sequence[str]) -> list[RequestRow]:
        """Return the request contexts with some ids that are there."""
        columns = ", ".join(RequestRow.__struct_fields__)
        query = f"SELECT {columns} FROM requests WHERE id IN"
        return [RequestRow(*row) for row in self._database.rows_of_keys(query, ids)]

    def _latest(self, where: str, parameters: Sequence[object]) -> list[RequestRow]:
        rest = f"FROM requests {where} ORDER BY time DESC, id DESC LIMIT ?"
        return self._database.read(RequestRow, rest, parameters)


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
        """Server and own name of the tool."""
        return self.server, self.tool


class ToolSessionStore(Tables):
    """Sessions in which each tool was used."""

    def add(self, rows: Iterable[ToolSession], since: float, keep: int) -> None:
        """Keep uses, all or none, one a session.

        Whoever does the upkeep then forgets all before ``since``, and all but ``keep``.
        """
        key, tidies = ("server", "tool", "session"), self.does_upkeep()
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
        """Return every tool that was used in a session."""
        rows = self._database.rows("SELECT DISTINCT server, tool FROM tool_sessions ORDER BY 1, 2")
        return [(server, tool) for server, tool in rows]

    def forget(self, tools: Iterable[ToolKey]) -> None:
        """Forget the sessions of some tools."""
        with self._database.transaction() as transaction:
            transaction.executemany("DELETE FROM tool_sessions WHERE server = ? AND tool = ?", list(tools))
            # So is what was chosen from them today.
            transaction.execute("DELETE FROM working_sets")
