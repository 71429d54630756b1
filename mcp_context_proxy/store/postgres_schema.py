"""The schema on PostgreSQL as its history: append, never edit.

A replica of one version works on the schema of the next one, so that a team can be updated replica by
replica: a migration adds, and what is not used any more goes with the version after it.
"""

from __future__ import annotations

from typing import Final

from mcp_context_proxy.store.database import AREAS

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

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
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
