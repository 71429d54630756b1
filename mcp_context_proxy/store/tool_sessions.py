"""In which sessions each tool was used, in SQLite."""

from __future__ import annotations

from collections.abc import Iterable

from mcp_context_proxy.store.database import Database
from mcp_context_proxy.store.protocol import ToolSession, ToolSessions


class SqliteToolSessions:
    """The table of sessions by tool of a store."""

    def __init__(self, database: Database) -> None:
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
