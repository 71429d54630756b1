"""Request contexts in SQLite: the latest of all processes that share the store."""

from __future__ import annotations

from collections.abc import Iterable

from mcp_context_proxy.store.database import Database
from mcp_context_proxy.store.protocol import RequestRow

_COLUMNS = "id, time, session, context, owner"


class SqliteRequests:
    """The table of request contexts of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, rows: Iterable[RequestRow], keep: int, since: float) -> None:
        """Keep the rows, then only the latest ``keep`` of all and none before ``since``."""
        values = [(row.id, row.time, row.session, row.context, row.owner) for row in rows]
        with self._database.transaction() as connection:
            connection.executemany(
                f"INSERT OR REPLACE INTO requests ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)", values
            )
            connection.execute("DELETE FROM requests WHERE time < ?", (since,))
            connection.execute(
                "DELETE FROM requests WHERE rowid IN "
                "(SELECT rowid FROM requests ORDER BY time DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (keep,),
            )

    def get(self, request_id: str) -> RequestRow | None:
        """The one by that id."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM requests WHERE id = ?", (request_id,))
        return RequestRow(*rows[0]) if rows else None

    def latest(self, limit: int, session: str | None = None) -> list[RequestRow]:
        """The latest, newest first."""
        where, parameters = ("WHERE session = ?", [session]) if session is not None else ("", [])
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM requests {where} ORDER BY time DESC, rowid DESC LIMIT ?",
            [*parameters, limit],
        )
        return [RequestRow(*row) for row in rows]

    def latest_of(self, owner: str | None, limit: int) -> list[RequestRow]:
        """The latest of one who asked, newest first."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM requests WHERE owner IS ? ORDER BY time DESC, rowid DESC LIMIT ?",
            (owner, limit),
        )
        return [RequestRow(*row) for row in rows]
