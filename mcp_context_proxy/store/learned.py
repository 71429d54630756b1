"""Learned pairs in SQLite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcp_context_proxy.store.database import Database
from mcp_context_proxy.store.protocol import LearnedRow
from mcp_context_proxy.store.vectors import STORED, decoded_vector, is_vector

_COLUMNS = "key, server, tool, query, model_id, vector, confidence, uses, first, last"


class SqliteLearned:
    """The table of learned pairs of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[LearnedRow]:
        """Every pair, oldest first; a row with a damaged vector is left out."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM learned ORDER BY first, key, server, tool")
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
                f"INSERT OR REPLACE INTO learned ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values
            )

    def remove(self, keys: Sequence[tuple[bytes, str, str]]) -> None:
        """Forget pairs, by key, server and tool."""
        with self._database.transaction() as connection:
            connection.executemany("DELETE FROM learned WHERE key = ? AND server = ? AND tool = ?", keys)
