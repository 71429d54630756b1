"""Memory of use: learned pairs, the working set of each day, and interactions of agents.

A use is learned in one transaction: the pairs as they are then, the lessons that its session has had before,
and what follows from both. So two processes lose no use, and count no repetition.

An interaction that was forgotten leaves its id for a day, so that whoever did not hear of it and sends it
again does not bring it back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import astuple, replace

from mcp_context_proxy.items import ToolKey, Vector
from mcp_context_proxy.store.database import Queries, Tables, Transaction
from mcp_context_proxy.store.migrations import INTERACTIONS, PAIRS, WORKING_SET
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.store.tables import decoded_vector, encoded_vector, is_vector, lag_of
from mcp_context_proxy.system.process import time_of_day

_COLUMNS: Final = (
    *("key", "server", "tool", "query", "vector"),
    *("model_id", "confidence", "uses", "first", "last", "owner", "revision"),
)
_SELECT: Final = f"SELECT {', '.join(_COLUMNS[:-1])} FROM learned"

DECAY_PER_DAY: Final = 0.95
"""The share of a confidence that is left after a day: 0.21 after 30 days."""

USES_KEPT: Final = 10_000
"""Uses that are remembered, the latest, so that a repetition in one session counts once: 2 MB."""

REMEMBERED_DAYS: Final = 30
"""Days for which uses and forgotten pairs are remembered."""


class Pair(Struct, frozen=True, eq=False):
    """A learned pair: a query, and a tool that was used for it."""

    key: bytes
    """SHA-256 of the query's words."""
    tool: ToolKey
    query: str | None
    """None where queries are not kept."""
    vector: Vector
    model_id: str
    """The model that made the vector."""
    confidence: float
    """The confidence at the last use; see `confidence_at`."""
    uses: int
    first: float
    """Seconds since 1970, as is `last`."""
    last: float
    owner: str = ""
    """Principal whose uses it is learned from; empty for the user and all administrators."""

    @property
    def id(self) -> PairId:
        """Key and tool, which no other pair of the same owner has both."""
        return self.key, self.tool

    def confidence_at(self, now: float) -> float:
        """Return the confidence that is left at a time: it halves in two weeks without a use."""
        return float(self.confidence * DECAY_PER_DAY ** max((now - self.last) / DAY, 0.0))


PairId: TypeAlias = tuple[bytes, ToolKey]
"""Key and tool of a pair."""


class UseRow(Struct, frozen=True):
    """A use of a tool, of which a store learns once."""

    id: str
    """Given by who saw it: the same use may be sent again."""
    time: float
    """Seconds since 1970."""
    owner: str
    session: str
    """Public id of the session, or the mark in its place."""
    tool: ToolKey


class PairChanges(Struct, frozen=True):
    """Changes of the pairs after a revision."""

    revision: int
    """Revision up to which these are all."""
    pairs: tuple[Pair, ...] = ()
    """New and changed ones, oldest first, except those with a damaged vector."""
    gone: frozenset[tuple[str, PairId]] = field(default=frozenset())
    """Forgotten ones: owner, and key and tool."""


Taught: TypeAlias = frozenset[PairId]
"""The pairs that a session has taught."""

Decide: TypeAlias = Callable[[PairChanges, Taught], tuple[Sequence[Pair], bytes | None]]
"""Returns the pairs that a use changes, and the key of the one for which it counts, if it does. Called inside
a transaction, so it must be quick."""


class LearnedStore(Tables):
    """Learned pairs, and uses."""

    def all(self) -> list[Pair]:
        """Return every pair, oldest first, except those with a damaged vector."""
        return list(self.changes(0).pairs)

    def count(self) -> int:
        return self._database.number("SELECT COUNT(*) FROM learned")

    def revision(self) -> int:
        return self._database.revision(PAIRS)

    def changes(self, after: int) -> PairChanges:
        return _changes(self._database, after)

    def teach(self, use: UseRow, after: int, decide: Decide) -> PairChanges:
        """Learn from a use; return its changes.

        ``decide`` gets the changes of others after a revision. A use that is known already changes
        nothing; then those changes are returned.
        """
        with self._database.transaction(PAIRS) as transaction:
            before = _changes(transaction, after)
            if transaction.number("SELECT 1 FROM uses WHERE id = ?", (use.id,)):
                return before
            taught = transaction.rows(
                "SELECT key, server, tool FROM uses WHERE owner = ? AND session = ? AND key IS NOT NULL",
                (use.owner, use.session),
            )
            pairs, key = decide(before, frozenset((each, (server, tool)) for each, server, tool in taught))
            transaction.put(
                "uses",
                ("id", "time", "owner", "session", "server", "tool", "key"),
                ("id",),
                [(use.id, use.time, use.owner, use.session, *use.tool, key)],
            )
            if not pairs:
                return PairChanges(before.revision)
            return PairChanges(_put(transaction, pairs), tuple(pairs))

    def put(self, pairs: Iterable[Pair]) -> None:
        """Keep pairs, all or none; a pair of the same owner, key and tool is replaced."""
        with self._database.transaction(PAIRS) as transaction:
            _put(transaction, list(pairs))

    def remove(self, pairs: Iterable[Pair], revision: int | None = None) -> None:
        """Forget pairs; with a revision, only those that have not changed after it."""
        if rows := [(pair.owner, pair.key, *pair.tool) for pair in pairs]:
            with self._database.transaction(PAIRS) as transaction:
                _remove(transaction, rows, revision)

    def prune(self, pairs: Iterable[Pair], revision: int) -> None:
        """Forget pairs that have not changed after a revision, as the upkeep."""
        if rows := [(pair.owner, pair.key, *pair.tool) for pair in pairs]:
            with self._upkeep(PAIRS) as transaction:
                if transaction is not None:
                    _remove(transaction, rows, revision)

    def forget_tools(self, tools: Iterable[ToolKey]) -> None:
        now = time_of_day()
        with self._database.transaction(PAIRS) as transaction:
            query = "SELECT owner, key, server, tool FROM learned WHERE server = ? AND tool = ?"
            rows = [tuple(row) for tool in tools for row in transaction.rows(query, tool)]
            _forget(transaction, rows, now)

    def lag(self) -> float:
        return lag_of(self._database)

    def forget_uses(self) -> None:
        """Forget uses and tombstones that are too old or too many, as the upkeep: nobody sends them again."""
        since = time_of_day() - REMEMBERED_DAYS * DAY - lag_of(self._database)
        with self._upkeep(PAIRS) as transaction:
            if transaction is None:
                return
            transaction.forget_old("uses", ("id",), before=since, keep=USES_KEPT)
            transaction.execute("DELETE FROM tombstones WHERE area = ? AND time < ?", (PAIRS, since))


_GONE: Final = "SELECT id FROM tombstones WHERE area = ? AND revision > ?"


def _changes(queries: Queries, after: int) -> PairChanges:
    # The revision first: what is committed in between comes once more with the next look.
    revision = queries.revision(PAIRS)
    if revision <= after:
        return PairChanges(revision)
    gone = [] if after == 0 else queries.rows(_GONE, (PAIRS, after))
    found = [
        Pair(key, (server, tool), query, decoded_vector(vector), *facts)
        for key, server, tool, query, vector, *facts in queries.rows(
            f"{_SELECT} WHERE revision > ?", (after,)
        )
        if is_vector(vector)
    ]
    found.sort(key=lambda pair: (pair.first, pair.key, pair.tool))
    return PairChanges(revision, tuple(found), frozenset(_read_id(each) for (each,) in gone))


def _put(transaction: Transaction, pairs: Sequence[Pair]) -> int:
    revision = transaction.next_revision(PAIRS)
    rows = []
    for pair in pairs:
        key, tool, query, vector, *facts = astuple(pair)
        rows.append((key, *tool, query, encoded_vector(vector), *facts, revision))
    transaction.put("learned", _COLUMNS, ("owner", "key", "server", "tool"), rows)
    ids = [(PAIRS, _written_id(pair.owner, pair.key, *pair.tool)) for pair in pairs]
    transaction.executemany("DELETE FROM tombstones WHERE area = ? AND id = ?", ids)
    return revision


def _remove(
    transaction: Transaction, rows: Sequence[tuple[str, bytes, str, str]], revision: int | None
) -> None:
    if revision is not None:
        changed = "SELECT owner, key, server, tool FROM learned WHERE revision > ?"
        renewed = {tuple(row) for row in transaction.rows(changed, (revision,))}
        rows = [row for row in rows if row not in renewed]
    _forget(transaction, rows, time_of_day())


def _forget(transaction: Transaction, rows: Sequence[tuple[str, bytes, str, str]], now: float) -> None:
    if rows:
        revision = transaction.next_revision(PAIRS)
        transaction.executemany(
            "DELETE FROM learned WHERE owner = ? AND key = ? AND server = ? AND tool = ?", rows
        )
        gone = [(PAIRS, _written_id(*row), revision, now) for row in rows]
        transaction.put("tombstones", ("area", "id", "revision", "time"), ("area", "id"), gone)


def _written_id(owner: str, key: bytes, server: str, tool: str) -> str:
    return msgspec.json.encode((owner, key.hex(), server, tool)).decode()


def _read_id(written: str) -> tuple[str, PairId]:
    owner, key, server, tool = msgspec.json.decode(written, type=tuple[str, str, str, str])
    return owner, (bytes.fromhex(key), (server, tool))


WORKING_SETS_KEPT = 30
"""Days whose choice is kept, to look back."""


class _Chosen(Struct, frozen=True):
    server: str
    tool: str
    why: str


class WorkingSetStore(Tables):
    """The working set of each day: chosen by the first process that needs it, the same for all others."""

    def get(self, day: str, budget: int) -> dict[ToolKey, str] | None:
        """Return the tools of a day, each with the reason; None if nobody has chosen them yet."""
        return _tools_of(self._database, day, budget)

    def choose(self, day: str, budget: int, chosen: Mapping[ToolKey, str]) -> dict[ToolKey, str]:
        """Keep the tools of a day, and return those that count: another process may have been faster."""
        encoded = msgspec.json.encode([_Chosen(*tool, why) for tool, why in chosen.items()])
        with self._database.transaction(WORKING_SET) as transaction:
            transaction.execute(
                "INSERT INTO working_sets (day, budget, tools) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (day, budget, encoded),
            )
            transaction.next_revision(WORKING_SET)
            transaction.forget_old("working_sets", ("day", "budget"), by="day", keep=WORKING_SETS_KEPT)
            return _tools_of(transaction, day, budget) or dict(chosen)


def _tools_of(queries: Queries, day: str, budget: int) -> dict[ToolKey, str] | None:
    """Return the tools of a day; None where there is no row, or a damaged one."""
    rows = queries.rows("SELECT tools FROM working_sets WHERE day = ? AND budget = ?", (day, budget))
    try:
        found = msgspec.json.decode(rows[0][0] if rows else b"", type=list[_Chosen])
    except (msgspec.DecodeError, TypeError):
        return None
    return {(one.server, one.tool): one.why for one in found}


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
