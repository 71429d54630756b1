"""The schema of the store: one text for SQLite and PostgreSQL, and the steps from schemas of older versions.

A new store gets the whole schema. An older one takes the steps that it lacks, then it gets the tables and
indexes that it lacks. The oldest schema that a released version (0.1.0) wrote is the ninth of SQLite.

Replicas of two versions share one PostgreSQL, so that a team can be updated replica by replica: there, a
version only adds, and the version after it removes what is not used any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

PAIRS: Final = "pairs"
USAGE: Final = "usage"
INTERACTIONS: Final = "interactions"
LISTINGS: Final = "listings"
WORKING_SET: Final = "working_set"
APPROVALS: Final = "approvals"
CREDENTIALS: Final = "credentials"

AREAS: Final = (PAIRS, USAGE, INTERACTIONS, LISTINGS, WORKING_SET, APPROVALS, CREDENTIALS)
"""Areas of the store; each has a revision, which grows with its changes."""

SQLITE_VERSION, OLDEST_SQLITE_VERSION, POSTGRES_VERSION = 14, 9, 3
"""Versions of the schema: a store of an older SQLite version than the oldest was never released."""

TABLES: Final = {
    "areas": "area TEXT PRIMARY KEY, revision INTEGER NOT NULL",
    "tombstones": """
        area     TEXT NOT NULL,
        id       TEXT NOT NULL,
        revision INTEGER NOT NULL,
        time     REAL NOT NULL,
        PRIMARY KEY (area, id)
    """,
    "writers": """
        writer TEXT NOT NULL,     -- id of a process
        area   TEXT NOT NULL,
        batch  INTEGER NOT NULL,  -- the latest that is in the store
        time   REAL NOT NULL,
        PRIMARY KEY (writer, area)
    """,
    "leases": """
        job    TEXT PRIMARY KEY,
        holder TEXT NOT NULL,     -- id of a process
        token  INTEGER NOT NULL,  -- grows with every holder
        until  REAL NOT NULL
    """,
    "working_sets": """
        day    TEXT NOT NULL,     -- UTC
        budget INTEGER NOT NULL,  -- tokens
        tools  BLOB NOT NULL,     -- JSON
        PRIMARY KEY (day, budget)
    """,
    "vectors": """
        model_id TEXT NOT NULL,
        key      BLOB NOT NULL,  -- sha256 of the text
        vector   BLOB NOT NULL,  -- float32, little-endian, as are all vectors
        checksum INTEGER,        -- NULL: written by an earlier version
        PRIMARY KEY (model_id, key)
    """,
    "requests": """
        id      TEXT PRIMARY KEY,
        time    REAL NOT NULL,
        session TEXT,           -- public id
        context BLOB NOT NULL,  -- JSON
        owner   TEXT            -- NULL: whoever has no credentials
    """,
    "listings": """
        key     TEXT PRIMARY KEY,  -- digest of how a server is connected
        time    REAL NOT NULL,
        digest  BLOB NOT NULL,     -- sha256 of key and listing
        listing BLOB NOT NULL      -- MessagePack
    """,
    "learned": """
        owner      TEXT NOT NULL,  -- principal; empty for the user and all administrators together
        key        BLOB NOT NULL,  -- sha256 of the query
        server     TEXT NOT NULL,
        tool       TEXT NOT NULL,  -- its own name, as in all tables
        query      TEXT,           -- NULL where queries are not kept
        model_id   TEXT NOT NULL,
        vector     BLOB NOT NULL,
        confidence REAL NOT NULL,  -- at the last use
        uses       INTEGER NOT NULL,
        first      REAL NOT NULL,
        last       REAL NOT NULL,
        revision   INTEGER NOT NULL,
        PRIMARY KEY (owner, key, server, tool)
    """,
    "uses": """
        id      TEXT PRIMARY KEY,
        time    REAL NOT NULL,
        owner   TEXT NOT NULL,
        session TEXT NOT NULL,  -- public id, or what stands for it
        server  TEXT NOT NULL,
        tool    TEXT NOT NULL,
        key     BLOB            -- of the pair for which it counted; NULL for a repetition
    """,
    "tool_usage": """
        seconds      INTEGER NOT NULL,  -- of the slot: an hour or a day
        start        INTEGER NOT NULL,
        owner        TEXT NOT NULL,
        replica      TEXT NOT NULL,     -- that counted; empty where all share a file
        server       TEXT NOT NULL,
        tool         TEXT NOT NULL,
        calls        INTEGER NOT NULL,
        errors       INTEGER NOT NULL,
        timed        INTEGER NOT NULL,
        ms           REAL NOT NULL,
        result_bytes INTEGER NOT NULL,
        last         REAL NOT NULL,
        latency      BLOB NOT NULL,     -- counts by bucket, MessagePack
        PRIMARY KEY (seconds, start, owner, replica, server, tool)
    """,
    "search_usage": """
        seconds  INTEGER NOT NULL,
        start    INTEGER NOT NULL,
        owner    TEXT NOT NULL,
        replica  TEXT NOT NULL,
        searches INTEGER NOT NULL,
        found    INTEGER NOT NULL,
        used     INTEGER NOT NULL,
        top_used INTEGER NOT NULL,
        reranked INTEGER NOT NULL,
        ms       REAL NOT NULL,
        latency  BLOB NOT NULL,     -- counts by bucket, MessagePack
        shown    INTEGER NOT NULL,  -- tokens
        behind   INTEGER NOT NULL,
        PRIMARY KEY (seconds, start, owner, replica)
    """,
    "searches": """
        id       TEXT PRIMARY KEY,  -- of the request
        time     REAL NOT NULL,
        key      BLOB NOT NULL,     -- sha256 of the query
        query    TEXT,              -- NULL where queries are not kept
        origin   TEXT NOT NULL,
        results  INTEGER NOT NULL,
        top      TEXT,              -- exposed name
        chosen   TEXT,              -- exposed name; NULL until a tool is used
        rank     INTEGER,
        ms       REAL NOT NULL,
        reranked INTEGER NOT NULL,
        owner    TEXT NOT NULL DEFAULT '',
        arm      TEXT,              -- NULL: no comparison was under way
        session  TEXT,              -- public id
        uses     INTEGER NOT NULL DEFAULT 0
    """,
    "document_usage": """
        seconds   INTEGER NOT NULL,
        start     INTEGER NOT NULL,
        owner     TEXT NOT NULL,
        replica   TEXT NOT NULL,
        kind      TEXT NOT NULL,
        name      TEXT NOT NULL,
        found     INTEGER NOT NULL,
        delivered INTEGER NOT NULL,
        reads     INTEGER NOT NULL,
        last      REAL NOT NULL,
        PRIMARY KEY (seconds, start, owner, replica, kind, name)
    """,
    "definitions": """
        server      TEXT NOT NULL,
        tool        TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        tokens      INTEGER NOT NULL,
        first       REAL NOT NULL,
        PRIMARY KEY (server, tool)
    """,
    "tool_sessions": """
        server  TEXT NOT NULL,
        tool    TEXT NOT NULL,
        session TEXT NOT NULL,  -- public id, or a day
        time    REAL NOT NULL,
        PRIMARY KEY (server, tool, session)
    """,
    "interactions": """
        id               INTEGER PRIMARY KEY AUTOINCREMENT,  -- in the order of arrival, never used again
        agent_name       TEXT NOT NULL,
        interaction_type TEXT NOT NULL,
        content          TEXT NOT NULL,
        time             REAL NOT NULL,             -- when it happened
        recorded         REAL NOT NULL,             -- when it was put here
        origin           TEXT,                      -- id given by its writer: sent twice, it is kept once
        owner            TEXT NOT NULL DEFAULT ''   -- empty: the user
    """,
    "interaction_vectors": """
        seq         INTEGER PRIMARY KEY AUTOINCREMENT,  -- of every change, so that readers can follow
        interaction INTEGER NOT NULL UNIQUE REFERENCES interactions (id) ON DELETE CASCADE,
        model_id    TEXT NOT NULL,
        vector      BLOB NOT NULL
    """,
    "approvals": """
        server   TEXT NOT NULL,
        kind     TEXT NOT NULL,
        name     TEXT NOT NULL,     -- its own name
        seen     BLOB NOT NULL,     -- sha256 of the part that models see
        rest     BLOB NOT NULL,     -- sha256 of the rest
        state    TEXT NOT NULL,
        event    TEXT NOT NULL,     -- that brought it here
        reason   TEXT NOT NULL,
        hints    TEXT NOT NULL,
        version  TEXT NOT NULL,     -- of the server's package
        decided  TEXT NOT NULL,     -- by whom
        time     REAL NOT NULL,
        revision INTEGER NOT NULL,  -- grows with every change
        checksum INTEGER NOT NULL,
        PRIMARY KEY (server, kind, name, seen, rest)
    """,
    "approved_definitions": """
        key        BLOB PRIMARY KEY,  -- sha256 of seen and rest
        definition BLOB NOT NULL      -- JSON as received
    """,
    "approved_versions": """
        server     TEXT NOT NULL,
        kind       TEXT NOT NULL,
        connection TEXT NOT NULL,  -- digest of how the server is connected, without secrets
        version    TEXT NOT NULL,  -- of its package; empty where that is not known
        time       REAL NOT NULL,
        digest     BLOB NOT NULL,  -- of a list in which all was approved; empty where something is not
        PRIMARY KEY (server, kind, connection, version)
    """,
    "credentials": """
        kind     TEXT NOT NULL,     -- login or token
        name     TEXT NOT NULL,
        sealed   BLOB NOT NULL,     -- with a key that is nowhere here; empty: it was given up
        key_mark TEXT NOT NULL,     -- tells which key that was
        revision INTEGER NOT NULL,  -- of its area, when it was written
        PRIMARY KEY (kind, name)
    """,
}
"""Columns of all tables, those first that others refer to. Times are in seconds since 1970."""

_INDEXES: Final = {
    "requests_by_time": "requests (time)",
    "requests_by_session": "requests (session, time)",
    "requests_by_owner": "requests (owner, time)",
    "learned_by_revision": "learned (revision)",
    "uses_by_time": "uses (time)",
    "uses_by_session": "uses (owner, session)",
    "searches_by_time": "searches (time)",
    "tool_sessions_by_time": "tool_sessions (time)",
    "interactions_by_time": "interactions (time)",
    "interactions_by_agent": "interactions (agent_name, interaction_type, time)",
    "interactions_by_arrival": "interactions (recorded)",
    "interaction_vectors_by_model": "interaction_vectors (model_id, seq)",
    "approvals_by_revision": "approvals (revision)",
}

_TRIGGER: Final = """
    CREATE TRIGGER IF NOT EXISTS interaction_forgotten AFTER DELETE ON interactions
    BEGIN
        DELETE FROM interaction_vectors WHERE interaction = OLD.id;
    END
"""
"""Takes the place of the reference: SQLite follows one only on connections that ask for it."""

_STEPS: Final[dict[int, tuple[str, ...]]] = {
    11: (
        "ALTER TABLE learned RENAME TO old_learned",
        f"CREATE TABLE learned ({TABLES['learned']})",
        "INSERT INTO learned SELECT '', key, server, tool, query, model_id, vector, confidence, uses, first, "
        "last, 1 FROM old_learned",
        "DROP TABLE old_learned",
        "ALTER TABLE tool_usage RENAME TO old_tool_usage",
        f"CREATE TABLE tool_usage ({TABLES['tool_usage']})",
        "INSERT INTO tool_usage SELECT seconds, start, '', '', server, tool, calls, errors, timed, ms, "
        "result_bytes, last, latency FROM old_tool_usage",
        "DROP TABLE old_tool_usage",
        "ALTER TABLE search_usage RENAME TO old_search_usage",
        f"CREATE TABLE search_usage ({TABLES['search_usage']})",
        "INSERT INTO search_usage SELECT seconds, start, '', '', searches, found, used, top_used, reranked, "
        "ms, latency, shown, behind FROM old_search_usage",
        "DROP TABLE old_search_usage",
        "ALTER TABLE searches ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE interactions ADD COLUMN origin TEXT",
        "UPDATE interactions SET origin = lower(hex(randomblob(16)))",
    ),
    12: ("ALTER TABLE interactions ADD COLUMN owner TEXT NOT NULL DEFAULT ''",),
    13: (
        "ALTER TABLE searches ADD COLUMN arm TEXT",
        "ALTER TABLE searches ADD COLUMN session TEXT",
        "ALTER TABLE searches ADD COLUMN uses INTEGER NOT NULL DEFAULT 0",
    ),
}
"""Changes of tables that there are already, by the version of SQLite's schema that they lead to."""

CLUSTER_TABLES: Final = {
    "replicas": """
        replica TEXT PRIMARY KEY, instance TEXT NOT NULL, address TEXT NOT NULL, key_mark TEXT NOT NULL,
        version TEXT NOT NULL, started REAL NOT NULL, seen REAL NOT NULL, draining INTEGER NOT NULL
    """,
    "contexts": """
        id_hash BLOB PRIMARY KEY, tenant TEXT NOT NULL, kind TEXT NOT NULL, principal TEXT NOT NULL,
        home TEXT NOT NULL, epoch INTEGER NOT NULL, hello BLOB NOT NULL, state BLOB NOT NULL,
        revision INTEGER NOT NULL, seen REAL NOT NULL
    """,
    "left_results": """
        id_hash BLOB PRIMARY KEY, sealed BLOB NOT NULL, key_mark TEXT NOT NULL, left_at REAL NOT NULL
    """,
}
"""Tables of what replicas do now: only PostgreSQL has them, and no copy of a store."""

_STORAGE: Final = {
    "approvals": " WITHOUT ROWID",
    # A row changes with most requests: room on its page, and no index on what changes, keep that cheap.
    "contexts": " WITH (fillfactor = 70)",
}

_POSTGRES_TYPES: Final = {
    "INTEGER PRIMARY KEY AUTOINCREMENT": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
    "INTEGER": "BIGINT",
    "REAL": "FLOAT8",
    "BLOB": "BYTEA",
    "TEXT": 'TEXT COLLATE "C"',  # ordered as SQLite orders it
    " WITHOUT ROWID": "",
}
_OTHER_TYPES: Final = re.compile("|".join(rf"{name}\b" for name in _POSTGRES_TYPES))


def sqlite_migration(version: int) -> Iterator[str]:
    """Yield the statements that bring an SQLite schema from a version, 0 for an empty file, to this one."""
    if version:
        for number, step in _STEPS.items():
            yield from step if number > version else ()
    # Tables that an empty file has already are not of a store.
    yield from _creation(TABLES, "IF NOT EXISTS" if version else "")
    yield _TRIGGER


def postgres_migration() -> Iterator[str]:
    """Yield the statements that bring a PostgreSQL schema from any earlier version to this one."""
    for statement in _creation(TABLES | CLUSTER_TABLES, "IF NOT EXISTS"):
        yield _OTHER_TYPES.sub(lambda found: _POSTGRES_TYPES[found[0]], statement)


def _creation(tables: dict[str, str], unless: str) -> Iterator[str]:
    for name, columns in tables.items():
        yield f"CREATE TABLE {unless} {name} ({columns}){_STORAGE.get(name, '')}"
    for name, indexed in _INDEXES.items():
        yield f"CREATE INDEX IF NOT EXISTS {name} ON {indexed}"
    yield "CREATE UNIQUE INDEX IF NOT EXISTS interactions_by_origin ON interactions (origin)"
    areas = ", ".join(f"('{area}', 1)" for area in AREAS)
    yield f"INSERT INTO areas (area, revision) VALUES {areas} ON CONFLICT DO NOTHING"
