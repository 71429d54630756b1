"""Interactions of agents, with their embeddings.

An interaction that was forgotten leaves its id for a day, so that whoever did not hear of it and sends it
again does not bring it back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.items import Vector
from mcp_context_proxy.store.database import Tables, Transaction
from mcp_context_proxy.store.migrations import INTERACTIONS
from mcp_context_proxy.store.tables import decoded_vector, encoded_vector, is_vector, lag_of
from mcp_context_proxy.system.process import time_of_day

TOMBSTONE_SECONDS = 86_400.0
"""Time for which the ids of forgotten interactions are kept: nobody sends one again so late."""

SEARCH: Final = "search"
CALL: Final = "call"
"""The types of interactions that the proxy records by itself; clients may post any others."""


class Interaction(Struct, frozen=True):
    """An interaction: a search, a call or a message of an agent."""

    agent_name: str
    interaction_type: str
    content: str
    time: float
    """Seconds since 1970."""
    id: int = 0
    """0 until the store has given it one."""
    owner: str = ""
    """Name of the principal that said or did it; empty for the user."""


class InteractionScope(Struct, frozen=True):
    """A choice of interactions; None in a field leaves it open."""

    agent_name: str | None = None
    interaction_type: str | None = None
    before: float | None = None
    """Only interactions before this time, in seconds since 1970."""
    owner: str | None = None
    """Only those of one owner; empty for the user."""


class InteractionVector(Struct, frozen=True, eq=False):
    """The embedding of an interaction."""

    seq: int
    """Greater than that of every earlier change."""
    interaction: int
    vector: Vector
    """Empty where it is damaged."""


class InteractionStore(Tables):
    """The tables of interactions."""

    def put(
        self,
        rows: Sequence[Interaction],
        now: float,
        keep: int,
        since: float,
        origins: Sequence[str] | None = None,
    ) -> list[Interaction]:
        """Keep interactions, all or none, and return them with their ids.

        Of each origin, an id that its writer has given it, the store keeps one, however often it is sent.
        Whoever does the upkeep then forgets old ones, as `forget_old` does.
        """
        if tidies := self.does_upkeep():
            since -= lag_of(self._database)
        origins = [new_origin() for _ in rows] if origins is None else origins
        named = list(zip(rows, origins, strict=True))
        with self._database.transaction(INTERACTIONS) as transaction:
            gone = "SELECT id FROM tombstones WHERE area = ? AND id IN"
            forgotten = {id_ for (id_,) in transaction.rows_of_keys(gone, origins, [INTERACTIONS])}
            transaction.executemany(
                "INSERT INTO interactions "
                "(agent_name, interaction_type, content, time, owner, recorded, origin) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (origin) DO NOTHING",
                [
                    (row.agent_name, row.interaction_type, row.content, row.time, row.owner, now, origin)
                    for row, origin in named
                    if origin not in forgotten
                ],
            )
            ids = dict(
                transaction.rows_of_keys("SELECT origin, id FROM interactions WHERE origin IN", origins)
            )
            if tidies and transaction.does_upkeep():
                _forget_old(transaction, keep, since)
            transaction.next_revision(INTERACTIONS)
        return [replace(row, id=ids.get(origin, 0)) for row, origin in named]

    def forget_old(self, keep: int, since: float) -> None:
        """Forget those before ``since``, and the earliest to arrive beyond ``keep``, as the upkeep."""
        since -= lag_of(self._database)
        with self._upkeep(INTERACTIONS) as transaction:
            if transaction is not None:
                _forget_old(transaction, keep, since)
                transaction.next_revision(INTERACTIONS)

    def after(self, latest: int, limit: int) -> list[Interaction]:
        """Return interactions with a greater id than ``latest``, by id."""
        rest = "FROM interactions WHERE id > ? ORDER BY id LIMIT ?"
        return self._database.read(Interaction, rest, (latest, limit))

    def ids(self) -> list[int]:
        return [id_ for (id_,) in self._database.rows("SELECT id FROM interactions")]

    def put_vectors(self, model_id: str, vectors: Mapping[int, Vector]) -> None:
        """Keep embeddings by id of the interaction, all or none; a forgotten interaction gets none."""
        values = [(model_id, encoded_vector(vector), id_) for id_, vector in vectors.items()]
        with self._database.transaction(INTERACTIONS) as transaction:
            # Deleted first, so that each gets a new `seq`.
            transaction.executemany(
                "DELETE FROM interaction_vectors WHERE interaction = ?", [(id_,) for id_ in vectors]
            )
            transaction.executemany(
                "INSERT INTO interaction_vectors (interaction, model_id, vector) "
                "SELECT id, ?, ? FROM interactions WHERE id = ?",
                values,
            )
            transaction.next_revision(INTERACTIONS)

    def vectors(self, model_id: str, after: int, limit: int) -> list[InteractionVector]:
        """Return embeddings of a model with a greater ``seq`` than ``after``, in its order."""
        rows = self._database.rows(
            "SELECT seq, interaction, vector FROM interaction_vectors WHERE model_id = ? AND seq > ? "
            "ORDER BY seq LIMIT ?",
            (model_id, after, limit),
        )
        return [
            InteractionVector(seq, id_, decoded_vector(blob if is_vector(blob) else b""))
            for seq, id_, blob in rows
        ]

    def vector_count(self, model_id: str) -> int:
        statement = "SELECT COUNT(*) FROM interaction_vectors WHERE model_id = ?"
        return self._database.number(statement, [model_id])

    def unembedded(self, model_id: str, after: int, limit: int) -> list[Interaction]:
        """Return interactions without an embedding of a model whose id is greater than ``after``, by id."""
        return self._database.read(
            Interaction,
            "FROM interactions WHERE id > ? AND NOT EXISTS "
            "(SELECT 1 FROM interaction_vectors WHERE interaction = id AND model_id = ?) "
            "ORDER BY id LIMIT ?",
            (after, model_id, limit),
        )

    def get(self, ids: Sequence[int]) -> list[Interaction]:
        """Return the interactions by some ids that are still there, by id."""
        found = self._database.read_of_keys(Interaction, "FROM interactions WHERE id IN", ids)
        return sorted(found, key=lambda one: one.id)

    def equal(self, rows: Sequence[Interaction]) -> set[Interaction]:
        """Return those of some interactions, with id 0, that are kept already."""
        facts = "agent_name, interaction_type, content, time, 0, owner"
        times = list({row.time for row in rows})
        found = self._database.rows_of_keys(f"SELECT {facts} FROM interactions WHERE time IN", times)
        return {Interaction(*row) for row in found}.intersection(rows)

    def latest(self, limit: int, scope: InteractionScope) -> list[Interaction]:
        """Return the latest interactions, newest first."""
        where, parameters = _where(scope)
        rest = f"FROM interactions{where} ORDER BY time DESC, id DESC LIMIT ?"
        return self._database.read(Interaction, rest, [*parameters, limit])

    def count(self, scope: InteractionScope) -> int:
        where, parameters = _where(scope)
        return self._database.number(f"SELECT COUNT(*) FROM interactions{where}", parameters)

    def kinds(self) -> list[tuple[str, str, int, float]]:
        """Return agents and types, each with the number of interactions and the time of the latest."""
        rows = self._database.rows(
            "SELECT agent_name, interaction_type, COUNT(*), MAX(time) FROM interactions "
            "GROUP BY agent_name, interaction_type ORDER BY COUNT(*) DESC, agent_name, interaction_type"
        )
        return [(agent, kind, count, latest) for agent, kind, count, latest in rows]

    def forget(self, scope: InteractionScope) -> int:
        """Forget interactions for good; return how many."""
        return self._deleted(*_where(scope))

    def forget_one(self, interaction: int) -> bool:
        """Forget one for good; return whether it was there."""
        return self._deleted(" WHERE id = ?", [interaction]) == 1

    def _deleted(self, where: str, parameters: list[Any]) -> int:
        now = time_of_day()
        with self._database.transaction(INTERACTIONS) as transaction:
            revision = transaction.next_revision(INTERACTIONS)
            # Whoever sends one of them again did not hear that it was kept; it stays forgotten.
            transaction.execute(
                "INSERT INTO tombstones (area, id, revision, time) "
                f"SELECT '{INTERACTIONS}', origin, {revision}, {now!r} FROM interactions"
                f"{where or ' WHERE true'} ON CONFLICT DO NOTHING",
                parameters,
            )
            gone = transaction.execute(f"DELETE FROM interactions{where}", parameters).rowcount
            past = now - TOMBSTONE_SECONDS
            transaction.execute("DELETE FROM tombstones WHERE area = ? AND time < ?", (INTERACTIONS, past))
        self._database.overwrite_deleted()
        return gone


def new_origin() -> str:
    """Return an id for an interaction that is written now."""
    return secrets.token_hex(16)


def _where(scope: InteractionScope) -> tuple[str, list[Any]]:
    conditions = {
        "agent_name = ?": scope.agent_name,
        "interaction_type = ?": scope.interaction_type,
        "owner = ?": scope.owner,
        "time < ?": scope.before,
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    return (" WHERE " + " AND ".join(given) if given else ""), list(given.values())


def _forget_old(transaction: Transaction, keep: int, since: float) -> None:
    transaction.execute("DELETE FROM interactions WHERE recorded < ?", (since,))
    over = transaction.number("SELECT COUNT(*) FROM interactions") - keep
    if over <= 0:
        return
    # Searches and calls come by the thousand a day, and must not push out what was said: they go first, while
    # they are more than half. Some more go than need be, because counting them takes a while.
    own = "FROM interactions WHERE interaction_type IN (?, ?)"
    spare = transaction.number(f"SELECT COUNT(*) {own}", (SEARCH, CALL)) - keep // 2
    transaction.execute(
        f"DELETE FROM interactions WHERE id IN (SELECT id {own} ORDER BY id LIMIT ?)",
        (SEARCH, CALL, max(0, min(spare, max(over, keep // 100)))),
    )
    transaction.execute(
        "DELETE FROM interactions WHERE id <= "
        "(SELECT id FROM interactions ORDER BY id DESC LIMIT 1 OFFSET ?)",
        (keep,),
    )
