"""Learned pairs, the uses that taught them, and the working set of each day.

A use is learned in one transaction: the pairs as they are then, the lessons that its session has had before,
and what follows from both. So two processes lose no use, and count no repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import astuple

from mcp_context_proxy.items import ToolKey, Vector
from mcp_context_proxy.store.database import Queries, Tables, Transaction
from mcp_context_proxy.store.migrations import PAIRS, WORKING_SET
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
