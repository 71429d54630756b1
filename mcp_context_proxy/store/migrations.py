"""The schema as its history: a store at version n has had the first n migrations. Append, never edit."""

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
