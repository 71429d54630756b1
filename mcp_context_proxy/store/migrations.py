"""The schema is its history: a store at version n has had the first n migrations. Append, never edit."""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE vectors (
            model_id TEXT NOT NULL,
            key      BLOB NOT NULL,  -- sha256 of the text
            vector   BLOB NOT NULL,  -- float32, little-endian
            PRIMARY KEY (model_id, key)
        )
        """,
    ),
    (
        """
        CREATE TABLE requests (
            id      TEXT PRIMARY KEY,
            time    REAL NOT NULL,  -- seconds since 1970
            session TEXT,           -- public id
            context BLOB NOT NULL   -- JSON
        )
        """,
        "CREATE INDEX requests_by_time ON requests (time)",
        "CREATE INDEX requests_by_session ON requests (session, time)",
    ),
    (
        """
        CREATE TABLE listings (
            key     TEXT PRIMARY KEY,  -- digest of how a server is connected
            time    REAL NOT NULL,     -- seconds since 1970
            digest  BLOB NOT NULL,     -- sha256 of key and listing
            listing BLOB NOT NULL      -- MessagePack
        )
        """,
    ),
    (
        """
        CREATE TABLE learned (
            key        BLOB NOT NULL,  -- sha256 of the query
            server     TEXT NOT NULL,
            tool       TEXT NOT NULL,  -- its own name
            query      TEXT,           -- NULL where queries are not kept
            model_id   TEXT NOT NULL,
            vector     BLOB NOT NULL,  -- float32, little-endian
            confidence REAL NOT NULL,  -- at the last use
            uses       INTEGER NOT NULL,
            first      REAL NOT NULL,  -- seconds since 1970
            last       REAL NOT NULL,
            PRIMARY KEY (key, server, tool)
        )
        """,
    ),
)
"""Statements per version; each version is applied in one transaction."""
