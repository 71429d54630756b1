"""Interactions in SQLite: what agents searched, called and said, with embeddings in a table beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import Vector
from mcp_context_proxy.store.rows import InteractionRow, InteractionScope, InteractionVector
from mcp_context_proxy.store.sqlite import StoreDatabase
from mcp_context_proxy.store.tables import KEYS_PER_QUERY, STORED, decoded_vector, is_vector

_COLUMNS = "agent_name, interaction_type, content, time, id"


class SqliteInteractions:
    """The tables of interactions of a store."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    def put(
        self, rows: Sequence[InteractionRow], now: float, keep: int, since: float
    ) -> list[InteractionRow]:
        """Keep the rows, then only the latest ``keep`` to arrive, and none that arrived before ``since``."""
        insert = (
            "INSERT INTO interactions (agent_name, interaction_type, content, time, recorded) "
            "VALUES (?, ?, ?, ?, ?)"
        )
        kept = []
        with self._database.transaction() as connection:
            for row in rows:
                facts = (row.agent_name, row.interaction_type, row.content, row.time)
                kept.append(InteractionRow(*facts, connection.execute(insert, (*facts, now)).lastrowid or 0))
            connection.execute("DELETE FROM interactions WHERE recorded < ?", (since,))
            connection.execute(
                "DELETE FROM interactions WHERE id <= "
                "(SELECT id FROM interactions ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (keep,),
            )
        return kept

    def put_vectors(self, model_id: str, vectors: Mapping[int, Vector]) -> None:
        """Keep embeddings of interactions that are still there, in one transaction."""
        values = [(model_id, vector.astype(STORED).tobytes(), id_) for id_, vector in vectors.items()]
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO interaction_vectors (interaction, model_id, vector) "
                "SELECT id, ?, ? FROM interactions WHERE id = ?",
                values,
            )

    def vectors(self, model_id: str, after: int, limit: int) -> list[InteractionVector]:
        """Embeddings with a greater ``seq``, in its order; a damaged one is empty."""
        rows = self._database.rows(
            "SELECT seq, id, agent_name, interaction_type, time, vector FROM interaction_vectors "
            "JOIN interactions ON id = interaction WHERE model_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            (model_id, after, limit),
        )
        return [
            InteractionVector(seq, id_, agent, kind, time, decoded_vector(blob if is_vector(blob) else b""))
            for seq, id_, agent, kind, time, blob in rows
        ]

    def vector_count(self, model_id: str) -> int:
        """How many embeddings of a model there are."""
        statement = "SELECT COUNT(*) FROM interaction_vectors WHERE model_id = ?"
        return int(self._database.rows(statement, (model_id,))[0][0])

    def vector_seqs(self, model_id: str) -> list[int]:
        """The ``seq`` of each."""
        statement = "SELECT seq FROM interaction_vectors WHERE model_id = ?"
        return [seq for (seq,) in self._database.rows(statement, (model_id,))]

    def unembedded(self, model_id: str, after: int, limit: int) -> list[InteractionRow]:
        """Interactions without an embedding of a model."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM interactions WHERE id > ? AND NOT EXISTS "
            "(SELECT 1 FROM interaction_vectors WHERE interaction = id AND model_id = ?) "
            "ORDER BY id LIMIT ?",
            (after, model_id, limit),
        )
        return [InteractionRow(*row) for row in rows]

    def get(self, ids: Sequence[int]) -> list[InteractionRow]:
        """Those of some ids that are there."""
        found: list[InteractionRow] = []
        for start in range(0, len(ids), KEYS_PER_QUERY):
            some = ids[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(some))
            rows = self._database.rows(f"SELECT {_COLUMNS} FROM interactions WHERE id IN ({marks})", some)
            found += [InteractionRow(*row) for row in rows]
        return found

    def latest(self, limit: int, scope: InteractionScope) -> list[InteractionRow]:
        """The latest to happen, newest first."""
        where, parameters = _where(scope)
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM interactions{where} ORDER BY time DESC, id DESC LIMIT ?",
            [*parameters, limit],
        )
        return [InteractionRow(*row) for row in rows]

    def count(self, scope: InteractionScope) -> int:
        """How many there are."""
        where, parameters = _where(scope)
        return int(self._database.rows(f"SELECT COUNT(*) FROM interactions{where}", parameters)[0][0])

    def kinds(self) -> list[tuple[str, str, int, float]]:
        """Agents, types, how many of each, and when the latest happened."""
        rows = self._database.rows(
            "SELECT agent_name, interaction_type, COUNT(*), MAX(time) FROM interactions "
            "GROUP BY agent_name, interaction_type ORDER BY COUNT(*) DESC, agent_name, interaction_type"
        )
        return [(agent, kind, count, latest) for agent, kind, count, latest in rows]

    def forget(self, scope: InteractionScope) -> int:
        """Forget what is meant."""
        return self._deleted(*_where(scope))

    def forget_one(self, interaction: int) -> bool:
        """Forget one."""
        return self._deleted(" WHERE id = ?", [interaction]) == 1

    def _deleted(self, where: str, parameters: list[Any]) -> int:
        with self._database.transaction() as connection:
            gone = connection.execute(f"DELETE FROM interactions{where}", parameters).rowcount
        # The log of changes still has the text. Where another process is reading, the next one takes care.
        with contextlib.suppress(StoreError):
            self._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        return gone


def _where(scope: InteractionScope) -> tuple[str, list[Any]]:
    conditions = {
        "agent_name = ?": scope.agent_name,
        "interaction_type = ?": scope.interaction_type,
        "time < ?": scope.before,
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    return (" WHERE " + " AND ".join(given) if given else ""), list(given.values())
