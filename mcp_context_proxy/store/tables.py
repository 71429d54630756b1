"""Vectors in SQLite: float32, little-endian, by model and content hash.

Learned pairs in SQLite.

What servers listed, in SQLite: by a digest of how they are connected, each with a digest of its own.

Request contexts in SQLite: the latest of all processes that share the store.

In which sessions each tool was used, in SQLite.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mcp_context_proxy.items import Vector
from mcp_context_proxy.store.rows import LearnedRow, RequestRow, ToolSession, ToolSessions
from mcp_context_proxy.store.sqlite import StoreDatabase

KEYS_PER_QUERY = 500
"""SQLite's oldest limit on parameters is 999."""
STORED = np.dtype("<f4")
"""Little-endian everywhere, so that a store can move between machines."""

_UPSERT = """
INSERT INTO vectors (model_id, key, vector, checksum) VALUES (?, ?, ?, ?)
ON CONFLICT (model_id, key) DO UPDATE SET vector = excluded.vector, checksum = excluded.checksum
WHERE vector <> excluded.vector OR checksum IS NOT excluded.checksum
"""


class SqliteVectors:
    """The vector table of a store."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    def get(self, model_id: str, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Those of ``keys`` that are known; one that is not what was put there is not."""
        found: dict[bytes, Vector] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(some))
            rows = self._database.rows(
                f"SELECT key, vector, checksum FROM vectors WHERE model_id = ? AND key IN ({marks})",
                (model_id, *some),
            )
            found |= {
                key: decoded_vector(blob)
                for key, blob, checksum in rows
                if is_vector(blob) and checksum in (None, _checksum(model_id, key, blob))
            }
        return found

    def put(self, model_id: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep the vectors in one transaction."""
        blobs = [(key, vector.astype(STORED).tobytes()) for key, vector in vectors.items()]
        rows = [(model_id, key, blob, _checksum(model_id, key, blob)) for key, blob in blobs]
        with self._database.transaction() as connection:
            connection.executemany(_UPSERT, rows)

    def clear(self) -> None:
        """Forget all of them."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM vectors")


def _checksum(model_id: str, key: bytes | None, blob: bytes) -> int:
    """Of a vector in its place: one that was put beside another text is as wrong as one that was changed."""
    return zlib.crc32(blob, zlib.crc32(key or b"", zlib.crc32(model_id.encode())))


def is_vector(blob: object) -> bool:
    """Whether a blob is an array of float32."""
    return isinstance(blob, bytes) and len(blob) % STORED.itemsize == 0


def decoded_vector(blob: bytes) -> Vector:
    """The array that a blob is."""
    return np.frombuffer(blob, STORED).astype(np.float32)


_PAIR_COLUMNS = "key, server, tool, query, model_id, vector, confidence, uses, first, last"


class SqliteLearned:
    """The table of learned pairs of a store."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    def all(self) -> list[LearnedRow]:
        """Every pair, oldest first; a row with a damaged vector is left out."""
        rows = self._database.rows(f"SELECT {_PAIR_COLUMNS} FROM learned ORDER BY first, key, server, tool")
        return [
            LearnedRow(key, server, tool, query, model_id, decoded_vector(vector), *numbers)
            for key, server, tool, query, model_id, vector, *numbers in rows
            if is_vector(vector)
        ]

    def count(self) -> int:
        """How many pairs there are."""
        return int(self._database.rows("SELECT COUNT(*) FROM learned")[0][0])

    def version(self) -> int:
        """Changes whenever another process has changed the store."""
        return self._database.version()

    def put(self, rows: Iterable[LearnedRow]) -> None:
        """Keep the pairs, all or none; one under the same key, server and tool is replaced."""
        values = [
            (
                row.key,
                row.server,
                row.tool,
                row.query,
                row.model_id,
                row.vector.astype(STORED).tobytes(),
                row.confidence,
                row.uses,
                row.first,
                row.last,
            )
            for row in rows
        ]
        with self._database.transaction() as connection:
            connection.executemany(
                f"INSERT OR REPLACE INTO learned ({_PAIR_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )

    def remove(self, keys: Sequence[tuple[bytes, str, str]]) -> None:
        """Forget pairs, by key, server and tool."""
        with self._database.transaction() as connection:
            connection.executemany("DELETE FROM learned WHERE key = ? AND server = ? AND tool = ?", keys)


KEPT = 1_000
"""Servers; those that were listed longest ago make room."""


class SqliteListings:
    """The table of listings of a store."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    def get(self, key: str) -> tuple[float, bytes] | None:
        """When it was kept, and what; None when nothing is, or when it is not what was kept."""
        rows = self._database.rows("SELECT time, digest, listing FROM listings WHERE key = ?", (key,))
        if not rows:
            return None
        time, digest, listing = rows[0]
        sound = isinstance(listing, bytes) and isinstance(time, float) and _digest(key, listing) == digest
        return (time, listing) if sound else None

    def put(self, key: str, time: float, listing: bytes) -> None:
        """Keep a listing in the place of the one before it."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO listings (key, time, digest, listing) VALUES (?, ?, ?, ?)",
                (key, time, _digest(key, listing), listing),
            )
            connection.execute(
                "DELETE FROM listings WHERE key IN "
                "(SELECT key FROM listings ORDER BY time DESC LIMIT -1 OFFSET ?)",
                (KEPT,),
            )

    def forget(self, key: str) -> None:
        """Keep nothing by that key."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM listings WHERE key = ?", (key,))


def _digest(key: str, listing: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + listing).digest()


_REQUEST_COLUMNS = "id, time, session, context, owner"


class SqliteRequests:
    """The table of request contexts of a store."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    def put(self, rows: Iterable[RequestRow], keep: int, since: float) -> None:
        """Keep the rows, then only the latest ``keep`` of all and none before ``since``."""
        values = [(row.id, row.time, row.session, row.context, row.owner) for row in rows]
        with self._database.transaction() as connection:
            connection.executemany(
                f"INSERT OR REPLACE INTO requests ({_REQUEST_COLUMNS}) VALUES (?, ?, ?, ?, ?)", values
            )
            connection.execute("DELETE FROM requests WHERE time < ?", (since,))
            connection.execute(
                "DELETE FROM requests WHERE rowid IN "
                "(SELECT rowid FROM requests ORDER BY time DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (keep,),
            )

    def get(self, request_id: str) -> RequestRow | None:
        """The one by that id."""
        rows = self._database.rows(f"SELECT {_REQUEST_COLUMNS} FROM requests WHERE id = ?", (request_id,))
        return RequestRow(*rows[0]) if rows else None

    def latest(self, limit: int, session: str | None = None) -> list[RequestRow]:
        """The latest, newest first."""
        where, parameters = ("WHERE session = ?", [session]) if session is not None else ("", [])
        rows = self._database.rows(
            f"SELECT {_REQUEST_COLUMNS} FROM requests {where} ORDER BY time DESC, rowid DESC LIMIT ?",
            [*parameters, limit],
        )
        return [RequestRow(*row) for row in rows]

    def latest_of(self, owner: str | None, limit: int) -> list[RequestRow]:
        """The latest of one who asked, newest first."""
        rows = self._database.rows(
            f"SELECT {_REQUEST_COLUMNS} FROM requests WHERE owner IS ?"
            " ORDER BY time DESC, rowid DESC LIMIT ?",
            (owner, limit),
        )
        return [RequestRow(*row) for row in rows]


class SqliteToolSessions:
    """The table of sessions by tool of a store."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    def add(self, rows: Iterable[ToolSession], since: float, keep: int) -> None:
        """Keep uses, all or none, one a session; then forget those before ``since``, and all but ``keep``."""
        values = [(row.server, row.tool, row.session, row.time) for row in rows]
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO tool_sessions (server, tool, session, time) VALUES (?, ?, ?, ?)",
                values,
            )
            connection.execute("DELETE FROM tool_sessions WHERE time < ?", (since,))
            connection.execute(
                "DELETE FROM tool_sessions WHERE rowid IN "
                "(SELECT rowid FROM tool_sessions ORDER BY time DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (keep,),
            )

    def counted(self, since: float) -> list[ToolSessions]:
        """In how many sessions each tool was used since then."""
        rows = self._database.rows(
            "SELECT server, tool, COUNT(*), MAX(time) FROM tool_sessions WHERE time >= ? "
            "GROUP BY server, tool",
            (since,),
        )
        return [ToolSessions(*row) for row in rows]

    def tools(self) -> list[tuple[str, str]]:
        """Server and own name of all that are known."""
        rows = self._database.rows("SELECT DISTINCT server, tool FROM tool_sessions")
        return [(server, tool) for server, tool in rows]

    def forget(self, tools: Iterable[tuple[str, str]]) -> None:
        """Forget what is known of tools, by server and own name."""
        with self._database.transaction() as connection:
            connection.executemany("DELETE FROM tool_sessions WHERE server = ? AND tool = ?", list(tools))
