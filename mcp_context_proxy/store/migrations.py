"""The schemas of SQLite and of PostgreSQL as their histories: append, never edit.

A store at version n has had the first n migrations of its database. Replicas of two versions share one on
PostgreSQL, so a team can be updated replica by replica: a migration there adds, and what is not used any more
goes with the version after it.
"""

from __future__ import annotations

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
    (
        """
        CREATE TABLE tool_usage (
            seconds      INTEGER NOT NULL,  -- of the slot: an hour or a day
            start        INTEGER NOT NULL,  -- seconds since 1970
            server       TEXT NOT NULL,
            tool         TEXT NOT NULL,     -- its own name
            calls        INTEGER NOT NULL,
            errors       INTEGER NOT NULL,
            timed        INTEGER NOT NULL,
            ms           REAL NOT NULL,
            result_bytes INTEGER NOT NULL,
            last         REAL NOT NULL,     -- seconds since 1970
            latency      BLOB NOT NULL,     -- counts by bucket, MessagePack
            PRIMARY KEY (seconds, start, server, tool)
        )
        """,
        """
        CREATE TABLE search_usage (
            seconds  INTEGER NOT NULL,
            start    INTEGER NOT NULL,
            searches INTEGER NOT NULL,
            found    INTEGER NOT NULL,
            used     INTEGER NOT NULL,
            top_used INTEGER NOT NULL,
            reranked INTEGER NOT NULL,
            ms       REAL NOT NULL,
            latency  BLOB NOT NULL,         -- counts by bucket, MessagePack
            shown    INTEGER NOT NULL,      -- tokens
            behind   INTEGER NOT NULL,
            PRIMARY KEY (seconds, start)
        )
        """,
        """
        CREATE TABLE searches (
            id       TEXT PRIMARY KEY,      -- of the request
            time     REAL NOT NULL,         -- seconds since 1970
            key      BLOB NOT NULL,         -- sha256 of the query
            query    TEXT,                  -- NULL where queries are not kept
            origin   TEXT NOT NULL,
            results  INTEGER NOT NULL,
            top      TEXT,                  -- exposed name
            chosen   TEXT,                  -- exposed name; NULL until a tool is used
            rank     INTEGER,
            ms       REAL NOT NULL,
            reranked INTEGER NOT NULL
        )
        """,
        "CREATE INDEX searches_by_time ON searches (time)",
        """
        CREATE TABLE definitions (
            server      TEXT NOT NULL,
            tool        TEXT NOT NULL,      -- its own name
            fingerprint TEXT NOT NULL,
            tokens      INTEGER NOT NULL,
            first       REAL NOT NULL,      -- seconds since 1970
            PRIMARY KEY (server, tool)
        )
        """,
    ),
    (
        """
        CREATE TABLE tool_sessions (
            server  TEXT NOT NULL,
            tool    TEXT NOT NULL,  -- its own name
            session TEXT NOT NULL,  -- public id, or a day
            time    REAL NOT NULL,  -- seconds since 1970
            PRIMARY KEY (server, tool, session)
        )
        """,
        "CREATE INDEX tool_sessions_by_time ON tool_sessions (time)",
    ),
    (
        """
        CREATE TABLE interactions (
            id               INTEGER PRIMARY KEY AUTOINCREMENT,  -- in the order of arrival, never used again
            agent_name       TEXT NOT NULL,
            interaction_type TEXT NOT NULL,
            content          TEXT NOT NULL,
            time             REAL NOT NULL,  -- when it happened, seconds since 1970
            recorded         REAL NOT NULL   -- when it was put here
        )
        """,
        "CREATE INDEX interactions_by_time ON interactions (time)",
        "CREATE INDEX interactions_by_agent ON interactions (agent_name, interaction_type, time)",
        """
        CREATE TABLE interaction_vectors (
            seq         INTEGER PRIMARY KEY AUTOINCREMENT,  -- of every change, so that readers can follow
            interaction INTEGER NOT NULL UNIQUE,
            model_id    TEXT NOT NULL,
            vector      BLOB NOT NULL  -- float32, little-endian
        )
        """,
        "CREATE INDEX interaction_vectors_by_model ON interaction_vectors (model_id, seq)",
        """
        CREATE TRIGGER interaction_forgotten AFTER DELETE ON interactions
        BEGIN
            DELETE FROM interaction_vectors WHERE interaction = OLD.id;
        END
        """,
    ),
    (
        "ALTER TABLE requests ADD COLUMN owner TEXT",  # NULL: whoever has no credentials
        "CREATE INDEX requests_by_owner ON requests (owner, time)",
        "CREATE INDEX interactions_by_arrival ON interactions (recorded)",
    ),
    ("ALTER TABLE vectors ADD COLUMN checksum INTEGER",),  # NULL: written by an earlier version
    (
        """
        CREATE TABLE approvals (
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
            time     REAL NOT NULL,     -- seconds since 1970
            revision INTEGER NOT NULL,  -- grows with every change
            checksum INTEGER NOT NULL,
            PRIMARY KEY (server, kind, name, seen, rest)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX approvals_by_revision ON approvals (revision)",
        """
        CREATE TABLE approved_definitions (
            key        BLOB PRIMARY KEY,  -- sha256 of seen and rest
            definition BLOB NOT NULL      -- JSON as received
        )
        """,
        """
        CREATE TABLE approved_versions (
            server     TEXT NOT NULL,
            kind       TEXT NOT NULL,
            connection TEXT NOT NULL,  -- digest of how the server is connected, without secrets
            version    TEXT NOT NULL,  -- of its package; empty where that is not known
            time       REAL NOT NULL,  -- seconds since 1970
            digest     BLOB NOT NULL,  -- of a list in which all was approved; empty where something is not
            PRIMARY KEY (server, kind, connection, version)
        )
        """,
    ),
    (
        # The revisions of what others have to notice, and what is gone since when.
        "CREATE TABLE areas (area TEXT PRIMARY KEY, revision INTEGER NOT NULL)",
        "INSERT INTO areas (area, revision) VALUES ('pairs', 1), ('usage', 1), ('interactions', 1), "
        "('listings', 1), ('working_set', 1), ('approvals', 1), ('credentials', 1)",
        """
        CREATE TABLE tombstones (
            area     TEXT NOT NULL,
            id       TEXT NOT NULL,
            revision INTEGER NOT NULL,
            time     REAL NOT NULL,   -- seconds since 1970
            PRIMARY KEY (area, id)
        )
        """,
        """
        CREATE TABLE writers (
            writer TEXT NOT NULL,     -- id of a process
            area   TEXT NOT NULL,
            batch  INTEGER NOT NULL,  -- the latest that is in the store
            time   REAL NOT NULL,     -- seconds since 1970
            PRIMARY KEY (writer, area)
        )
        """,
        """
        CREATE TABLE leases (
            job    TEXT PRIMARY KEY,
            holder TEXT NOT NULL,     -- id of a process
            token  INTEGER NOT NULL,  -- grows with every holder
            until  REAL NOT NULL      -- seconds since 1970
        )
        """,
        """
        CREATE TABLE working_sets (
            day    TEXT NOT NULL,     -- UTC
            budget INTEGER NOT NULL,  -- tokens
            tools  BLOB NOT NULL,     -- JSON
            PRIMARY KEY (day, budget)
        )
        """,
        # Whose it is: empty for the user and all administrators together, else the name of a principal.
        """
        CREATE TABLE learned_by_owner (
            owner      TEXT NOT NULL,
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
            revision   INTEGER NOT NULL,
            PRIMARY KEY (owner, key, server, tool)
        )
        """,
        "INSERT INTO learned_by_owner SELECT '', key, server, tool, query, model_id, vector, confidence, "
        "uses, first, last, 1 FROM learned",
        "DROP TABLE learned",
        "ALTER TABLE learned_by_owner RENAME TO learned",
        "CREATE INDEX learned_by_revision ON learned (revision)",
        """
        CREATE TABLE uses (
            id      TEXT PRIMARY KEY,
            time    REAL NOT NULL,     -- seconds since 1970
            owner   TEXT NOT NULL,
            session TEXT NOT NULL,     -- public id, or what stands for it
            server  TEXT NOT NULL,
            tool    TEXT NOT NULL,     -- its own name
            key     BLOB               -- of the pair for which it counted; NULL for a repetition
        )
        """,
        "CREATE INDEX uses_by_time ON uses (time)",
        "CREATE INDEX uses_by_session ON uses (owner, session)",
        """
        CREATE TABLE tool_usage_by_owner (
            seconds      INTEGER NOT NULL,  -- of the slot: an hour or a day
            start        INTEGER NOT NULL,  -- seconds since 1970
            owner        TEXT NOT NULL,
            replica      TEXT NOT NULL,     -- that counted; empty where all share a file
            server       TEXT NOT NULL,
            tool         TEXT NOT NULL,     -- its own name
            calls        INTEGER NOT NULL,
            errors       INTEGER NOT NULL,
            timed        INTEGER NOT NULL,
            ms           REAL NOT NULL,
            result_bytes INTEGER NOT NULL,
            last         REAL NOT NULL,     -- seconds since 1970
            latency      BLOB NOT NULL,     -- counts by bucket, MessagePack
            PRIMARY KEY (seconds, start, owner, replica, server, tool)
        )
        """,
        "INSERT INTO tool_usage_by_owner SELECT seconds, start, '', '', server, tool, calls, errors, timed, "
        "ms, result_bytes, last, latency FROM tool_usage",
        "DROP TABLE tool_usage",
        "ALTER TABLE tool_usage_by_owner RENAME TO tool_usage",
        """
        CREATE TABLE search_usage_by_owner (
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
            latency  BLOB NOT NULL,         -- counts by bucket, MessagePack
            shown    INTEGER NOT NULL,      -- tokens
            behind   INTEGER NOT NULL,
            PRIMARY KEY (seconds, start, owner, replica)
        )
        """,
        "INSERT INTO search_usage_by_owner SELECT seconds, start, '', '', searches, found, used, top_used, "
        "reranked, ms, latency, shown, behind FROM search_usage",
        "DROP TABLE search_usage",
        "ALTER TABLE search_usage_by_owner RENAME TO search_usage",
        "ALTER TABLE searches ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        # An id that a writer gives, so that one that is sent twice is kept once.
        "ALTER TABLE interactions ADD COLUMN origin TEXT",
        "UPDATE interactions SET origin = lower(hex(randomblob(16)))",
        "CREATE UNIQUE INDEX interactions_by_origin ON interactions (origin)",
    ),
    ("ALTER TABLE interactions ADD COLUMN owner TEXT NOT NULL DEFAULT ''",),  # empty: the user
    (
        "ALTER TABLE searches ADD COLUMN arm TEXT",  # NULL: no comparison was under way
        "ALTER TABLE searches ADD COLUMN session TEXT",  # public id
        "ALTER TABLE searches ADD COLUMN uses INTEGER NOT NULL DEFAULT 0",
        """
        CREATE TABLE document_usage (
            seconds   INTEGER NOT NULL,  -- of the slot: an hour or a day
            start     INTEGER NOT NULL,  -- seconds since 1970
            owner     TEXT NOT NULL,
            replica   TEXT NOT NULL,
            kind      TEXT NOT NULL,
            name      TEXT NOT NULL,
            found     INTEGER NOT NULL,
            delivered INTEGER NOT NULL,
            reads     INTEGER NOT NULL,
            last      REAL NOT NULL,     -- seconds since 1970
            PRIMARY KEY (seconds, start, owner, replica, kind, name)
        )
        """,
    ),
    (
        """
        CREATE TABLE credentials (
            kind     TEXT NOT NULL,     -- login or token
            name     TEXT NOT NULL,
            sealed   BLOB NOT NULL,     -- with a key that is nowhere here; empty: it was given up
            key_mark TEXT NOT NULL,     -- tells which key that was
            revision INTEGER NOT NULL,  -- of its area, when it was written
            PRIMARY KEY (kind, name)
        )
        """,
    ),
)
"""Statements per version; each version is applied in one transaction."""


TABLES: Final = (
    "areas",
    "tombstones",
    "writers",
    "leases",
    "working_sets",
    "vectors",
    "requests",
    "listings",
    "learned",
    "uses",
    "tool_usage",
    "search_usage",
    "searches",
    "document_usage",
    "definitions",
    "tool_sessions",
    "interactions",
    "interaction_vectors",
    "approvals",
    "approved_definitions",
    "approved_versions",
    "credentials",
)
"""All tables but that of the migrations, those first that others refer to."""

OF_THE_CLUSTER: Final = ("replicas", "contexts", "left_results")
"""Tables of what replicas do now: no other database has them, and no copy of a store."""

_AREAS: Final = ", ".join(f"('{area}', 1)" for area in AREAS)

POSTGRES_MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE areas (area TEXT PRIMARY KEY, revision BIGINT NOT NULL)",
        f"INSERT INTO areas (area, revision) VALUES {_AREAS}",
        """
        CREATE TABLE tombstones (
            area TEXT NOT NULL, id TEXT NOT NULL, revision BIGINT NOT NULL, time FLOAT8 NOT NULL,
            PRIMARY KEY (area, id)
        )
        """,
        """
        CREATE TABLE writers (
            writer TEXT NOT NULL, area TEXT NOT NULL, batch BIGINT NOT NULL, time FLOAT8 NOT NULL,
            PRIMARY KEY (writer, area)
        )
        """,
        "CREATE TABLE leases (job TEXT PRIMARY KEY, holder TEXT NOT NULL, token BIGINT NOT NULL, "
        "until FLOAT8 NOT NULL)",
        """
        CREATE TABLE working_sets (
            day TEXT COLLATE "C" NOT NULL, budget BIGINT NOT NULL, tools BYTEA NOT NULL,
            PRIMARY KEY (day, budget)
        )
        """,
        """
        CREATE TABLE vectors (
            model_id TEXT NOT NULL, key BYTEA NOT NULL, vector BYTEA NOT NULL, checksum BIGINT,
            PRIMARY KEY (model_id, key)
        )
        """,
        """
        CREATE TABLE requests (
            id TEXT COLLATE "C" PRIMARY KEY, time FLOAT8 NOT NULL, session TEXT, context BYTEA NOT NULL,
            owner TEXT
        )
        """,
        "CREATE INDEX requests_by_time ON requests (time)",
        "CREATE INDEX requests_by_session ON requests (session, time)",
        "CREATE INDEX requests_by_owner ON requests (owner, time)",
        """
        CREATE TABLE listings (
            key TEXT COLLATE "C" PRIMARY KEY, time FLOAT8 NOT NULL, digest BYTEA NOT NULL,
            listing BYTEA NOT NULL
        )
        """,
        """
        CREATE TABLE learned (
            owner TEXT COLLATE "C" NOT NULL, key BYTEA NOT NULL, server TEXT COLLATE "C" NOT NULL,
            tool TEXT COLLATE "C" NOT NULL, query TEXT, model_id TEXT NOT NULL, vector BYTEA NOT NULL,
            confidence FLOAT8 NOT NULL, uses BIGINT NOT NULL, first FLOAT8 NOT NULL, last FLOAT8 NOT NULL,
            revision BIGINT NOT NULL,
            PRIMARY KEY (owner, key, server, tool)
        )
        """,
        "CREATE INDEX learned_by_revision ON learned (revision)",
        """
        CREATE TABLE uses (
            id TEXT COLLATE "C" PRIMARY KEY, time FLOAT8 NOT NULL, owner TEXT NOT NULL,
            session TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, key BYTEA
        )
        """,
        "CREATE INDEX uses_by_time ON uses (time)",
        "CREATE INDEX uses_by_session ON uses (owner, session)",
        """
        CREATE TABLE tool_usage (
            seconds BIGINT NOT NULL, start BIGINT NOT NULL, owner TEXT COLLATE "C" NOT NULL,
            replica TEXT COLLATE "C" NOT NULL, server TEXT COLLATE "C" NOT NULL,
            tool TEXT COLLATE "C" NOT NULL, calls BIGINT NOT NULL, errors BIGINT NOT NULL,
            timed BIGINT NOT NULL, ms FLOAT8 NOT NULL, result_bytes BIGINT NOT NULL, last FLOAT8 NOT NULL,
            latency BYTEA NOT NULL,
            PRIMARY KEY (seconds, start, owner, replica, server, tool)
        )
        """,
        """
        CREATE TABLE search_usage (
            seconds BIGINT NOT NULL, start BIGINT NOT NULL, owner TEXT NOT NULL, replica TEXT NOT NULL,
            searches BIGINT NOT NULL, found BIGINT NOT NULL, used BIGINT NOT NULL, top_used BIGINT NOT NULL,
            reranked BIGINT NOT NULL, ms FLOAT8 NOT NULL, latency BYTEA NOT NULL, shown BIGINT NOT NULL,
            behind BIGINT NOT NULL,
            PRIMARY KEY (seconds, start, owner, replica)
        )
        """,
        """
        CREATE TABLE searches (
            id TEXT COLLATE "C" PRIMARY KEY, time FLOAT8 NOT NULL, key BYTEA NOT NULL, query TEXT,
            origin TEXT NOT NULL, results BIGINT NOT NULL, top TEXT, chosen TEXT, rank BIGINT,
            ms FLOAT8 NOT NULL, reranked BIGINT NOT NULL, owner TEXT NOT NULL DEFAULT '', arm TEXT,
            session TEXT, uses BIGINT NOT NULL DEFAULT 0
        )
        """,
        "CREATE INDEX searches_by_time ON searches (time)",
        """
        CREATE TABLE document_usage (
            seconds BIGINT NOT NULL, start BIGINT NOT NULL, owner TEXT COLLATE "C" NOT NULL,
            replica TEXT NOT NULL, kind TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL,
            found BIGINT NOT NULL, delivered BIGINT NOT NULL, reads BIGINT NOT NULL, last FLOAT8 NOT NULL,
            PRIMARY KEY (seconds, start, owner, replica, kind, name)
        )
        """,
        """
        CREATE TABLE definitions (
            server TEXT NOT NULL, tool TEXT NOT NULL, fingerprint TEXT NOT NULL, tokens BIGINT NOT NULL,
            first FLOAT8 NOT NULL,
            PRIMARY KEY (server, tool)
        )
        """,
        """
        CREATE TABLE tool_sessions (
            server TEXT COLLATE "C" NOT NULL, tool TEXT COLLATE "C" NOT NULL,
            session TEXT COLLATE "C" NOT NULL, time FLOAT8 NOT NULL,
            PRIMARY KEY (server, tool, session)
        )
        """,
        "CREATE INDEX tool_sessions_by_time ON tool_sessions (time)",
        """
        CREATE TABLE interactions (
            id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, agent_name TEXT COLLATE "C" NOT NULL,
            interaction_type TEXT COLLATE "C" NOT NULL, content TEXT NOT NULL, time FLOAT8 NOT NULL,
            owner TEXT NOT NULL DEFAULT '', recorded FLOAT8 NOT NULL, origin TEXT UNIQUE
        )
        """,
        "CREATE INDEX interactions_by_time ON interactions (time)",
        "CREATE INDEX interactions_by_agent ON interactions (agent_name, interaction_type, time)",
        "CREATE INDEX interactions_by_arrival ON interactions (recorded)",
        """
        CREATE TABLE interaction_vectors (
            seq BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
            interaction BIGINT NOT NULL UNIQUE REFERENCES interactions (id) ON DELETE CASCADE,
            model_id TEXT NOT NULL, vector BYTEA NOT NULL
        )
        """,
        "CREATE INDEX interaction_vectors_by_model ON interaction_vectors (model_id, seq)",
        """
        CREATE TABLE approvals (
            server TEXT COLLATE "C" NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, seen BYTEA NOT NULL,
            rest BYTEA NOT NULL, state TEXT NOT NULL, event TEXT NOT NULL, reason TEXT NOT NULL,
            hints TEXT NOT NULL, version TEXT NOT NULL, decided TEXT NOT NULL, time FLOAT8 NOT NULL,
            revision BIGINT NOT NULL, checksum BIGINT NOT NULL,
            PRIMARY KEY (server, kind, name, seen, rest)
        )
        """,
        "CREATE INDEX approvals_by_revision ON approvals (revision)",
        "CREATE TABLE approved_definitions (key BYTEA PRIMARY KEY, definition BYTEA NOT NULL)",
        """
        CREATE TABLE approved_versions (
            server TEXT NOT NULL, kind TEXT COLLATE "C" NOT NULL, connection TEXT COLLATE "C" NOT NULL,
            version TEXT COLLATE "C" NOT NULL, time FLOAT8 NOT NULL, digest BYTEA NOT NULL,
            PRIMARY KEY (server, kind, connection, version)
        )
        """,
    ),
    (
        """
        CREATE TABLE replicas (
            replica TEXT COLLATE "C" PRIMARY KEY, instance TEXT NOT NULL, address TEXT NOT NULL,
            key_mark TEXT NOT NULL, version TEXT NOT NULL, started FLOAT8 NOT NULL, seen FLOAT8 NOT NULL,
            draining BIGINT NOT NULL
        )
        """,
        # A row changes with most requests: room on its page, and no index on what changes, keep that cheap.
        """
        CREATE TABLE contexts (
            id_hash BYTEA PRIMARY KEY, tenant TEXT NOT NULL, kind TEXT NOT NULL, principal TEXT NOT NULL,
            home TEXT NOT NULL, epoch BIGINT NOT NULL, hello BYTEA NOT NULL, state BYTEA NOT NULL,
            revision BIGINT NOT NULL, seen FLOAT8 NOT NULL
        ) WITH (fillfactor = 70)
        """,
    ),
    (
        """
        CREATE TABLE credentials (
            kind TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL, sealed BYTEA NOT NULL,
            key_mark TEXT NOT NULL, revision BIGINT NOT NULL,
            PRIMARY KEY (kind, name)
        )
        """,
        """
        CREATE TABLE left_results (
            id_hash BYTEA PRIMARY KEY, sealed BYTEA NOT NULL, key_mark TEXT NOT NULL, left_at FLOAT8 NOT NULL
        )
        """,
    ),
)
"""Statements per version; all that are missing are applied in one transaction."""
