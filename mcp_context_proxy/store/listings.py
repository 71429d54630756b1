"""What servers listed, in SQLite: by a digest of how they are connected, each with a digest of its own."""

from __future__ import annotations

import hashlib

from mcp_context_proxy.store.database import Database

KEPT = 1_000
"""Servers; those that were listed longest ago make room."""


class SqliteListings:
    """The table of listings of a store."""

    def __init__(self, database: Database) -> None:
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
