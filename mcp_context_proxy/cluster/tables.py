"""Tables of the cluster: the replicas that are there, and the sessions and handles of clients.

An id that opens something is stored as its hash. All times are on the clock of the database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from mcp_context_proxy.store.database import Database, Tables

NOW: Final = "extract(epoch FROM clock_timestamp())"
"""The time on the clock of the database, which is always PostgreSQL here."""

ALL: Final = ""
"""The tenant: there is one for now."""

NOBODY: Final = ""
"""Home of a context that no replica holds in memory, and stands for callers without a name."""

FORGET_SECONDS: Final = 600.0
"""Time after which the row of a replica that is gone is deleted."""


class ReplicaRow(Struct, frozen=True):
    """A replica, as it last gave a sign of life."""

    replica: str
    instance: str
    """Id of its process."""
    address: str
    """URL at which other replicas reach it."""
    key_mark: str
    """Mark of its key: equal for equal keys, and useless for finding one."""
    version: str
    started: float
    seen: float
    draining: int
    """1 if new clients should go elsewhere."""


class ContextRow(Struct, frozen=True):
    """The state of a session or a handle."""

    id_hash: bytes
    tenant: str
    kind: str
    """``session`` or ``handle``."""
    principal: str
    home: str
    epoch: int
    """Grows when another replica becomes its home."""
    hello: bytes
    """The terms of a session, JSON; empty for a handle."""
    state: bytes
    """JSON."""
    revision: int
    """Grows with every change of the state."""
    seen: float


def hash_of(secret: str) -> bytes:
    """Return the key under which the row of a session or handle is stored."""
    return hashlib.sha256(secret.encode()).digest()


class ReplicaTable(Tables):
    """The replicas."""

    def beat(self, row: ReplicaRow, *, at_start: bool) -> tuple[float, list[ReplicaRow]]:
        """Give a sign of life; return the time, and all replicas.

        At the start, a row of the same name is taken over. Later, one that another process has taken over
        stays as it is, and so does the wish of a person that it be drained.
        """
        now, tidies = self._database.now(), self.does_upkeep()
        kept = "" if at_start else " WHERE replicas.instance = excluded.instance"
        draining = "excluded.draining" if at_start else "replicas.draining"
        columns = ReplicaRow.__struct_fields__
        with self._database.transaction() as transaction:
            transaction.execute(
                f"INSERT INTO replicas ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
                "ON CONFLICT (replica) DO UPDATE SET instance = excluded.instance, "
                "address = excluded.address, key_mark = excluded.key_mark, version = excluded.version, "
                f"started = excluded.started, seen = excluded.seen, draining = {draining}{kept}",
                (
                    row.replica,
                    row.instance,
                    row.address,
                    row.key_mark,
                    row.version,
                    now if at_start else row.started,
                    now,
                    row.draining,
                ),
            )
            if tidies and transaction.does_upkeep():
                transaction.execute("DELETE FROM replicas WHERE seen < ?", (now - FORGET_SECONDS,))
        return now, self.all()

    def all(self) -> list[ReplicaRow]:
        """Return all replicas, those that started first before the others."""
        return self._database.read(ReplicaRow, "FROM replicas ORDER BY started, replica")

    def now(self) -> float:
        """Return the time by which replicas are alive."""
        return self._database.now()

    def drain(self, replica: str, wanted: bool) -> bool:
        """Have a replica drained, or not any more; return whether there is such a one."""
        with self._database.transaction() as transaction:
            changed = transaction.execute(
                "UPDATE replicas SET draining = ? WHERE replica = ?", (int(wanted), replica)
            )
            return changed.rowcount > 0

    def leave(self, replica: str, instance: str) -> None:
        """Release all that a replica is the home of, and delete its row."""
        with self._database.transaction() as transaction:
            transaction.execute("UPDATE contexts SET home = ? WHERE home = ?", (NOBODY, replica))
            transaction.execute(
                "DELETE FROM replicas WHERE replica = ? AND instance = ?", (replica, instance)
            )


class ContextTable(Tables):
    """The sessions and handles of all replicas."""

    def get(self, id_hash: bytes) -> ContextRow | None:
        """Return a row; None if there is none."""
        return next(iter(self._database.read(ContextRow, "FROM contexts WHERE id_hash = ?", [id_hash])), None)

    def add(self, row: ContextRow) -> None:
        """Keep a new row; if it is there already, nothing changes."""
        columns = ContextRow.__struct_fields__
        with self._database.transaction() as transaction:
            transaction.execute(
                f"INSERT INTO contexts ({', '.join(columns)}) "
                f"VALUES ({', '.join('?' * (len(columns) - 1))}, {NOW}) ON CONFLICT (id_hash) DO NOTHING",
                (
                    row.id_hash,
                    row.tenant,
                    row.kind,
                    row.principal,
                    row.home,
                    row.epoch,
                    row.hello,
                    row.state,
                    row.revision,
                ),
            )

    def update(self, id_hash: bytes, revision: int, epoch: int, state: bytes) -> bool:
        """Replace a state of this revision and epoch; return False if the row has another one by now."""
        changed = self._database.change(
            f"UPDATE contexts SET state = ?, revision = revision + 1, seen = {NOW} "
            "WHERE id_hash = ? AND revision = ? AND epoch = ?",
            (state, id_hash, revision, epoch),
        )
        return changed > 0

    def adopt(self, id_hash: bytes, epoch: int, home: str) -> bool:
        """Become the home of a context of this epoch; return False if another replica was faster."""
        changed = self._database.change(
            "UPDATE contexts SET home = ?, epoch = epoch + 1 WHERE id_hash = ? AND epoch = ?",
            (home, id_hash, epoch),
        )
        return changed > 0

    def elsewhere(self, home: str, hashes: Sequence[bytes]) -> set[bytes]:
        """Return those of some contexts that have another home than this one."""
        rows = self._database.rows_of_keys(
            "SELECT id_hash FROM contexts WHERE home <> ? AND id_hash IN", hashes, [home]
        )
        return {bytes(id_hash) for (id_hash,) in rows}

    def delete(self, id_hash: bytes) -> None:
        """Delete a row."""
        with self._database.transaction() as transaction:
            transaction.execute("DELETE FROM contexts WHERE id_hash = ?", (id_hash,))

    def seen(self, hashes: Iterable[bytes]) -> None:
        """Note that contexts are in use, which keeps them from being forgotten."""
        with self._database.transaction() as transaction:
            statement = f"UPDATE contexts SET seen = {NOW} WHERE id_hash = ?"
            transaction.executemany(statement, [(each,) for each in sorted(hashes)])

    def forget_idle(self, seconds: float) -> None:
        """Delete all that nobody has used for a while, if this process does the upkeep."""
        with self._upkeep() as transaction:
            if transaction is not None:
                transaction.execute(f"DELETE FROM contexts WHERE seen < {NOW} - ?", (seconds,))

    def by_home(self) -> dict[tuple[str, str], int]:
        """Return the number of contexts by home and kind."""
        rows = self._database.rows("SELECT home, kind, COUNT(*) FROM contexts GROUP BY home, kind")
        return {(home, kind): int(number) for home, kind, number in rows}


class LeftResultTable(Tables):
    """Large results that replicas have left behind when they ended, sealed."""

    def put(self, id_hash: bytes, sealed: bytes, key_mark: str) -> None:
        """Keep a result."""
        self._database.change(
            f"INSERT INTO left_results (id_hash, sealed, key_mark, left_at) VALUES (?, ?, ?, {NOW}) "
            "ON CONFLICT (id_hash) DO NOTHING",
            (id_hash, sealed, key_mark),
        )

    def get(self, id_hash: bytes) -> tuple[bytes, str] | None:
        """Return a result, and the mark of its key; None if there is none."""
        rows = self._database.rows("SELECT sealed, key_mark FROM left_results WHERE id_hash = ?", (id_hash,))
        return (bytes(rows[0][0]), rows[0][1]) if rows else None

    def forget_old(self, seconds: float) -> None:
        """Delete those that were left so long ago, if this process does the upkeep."""
        with self._upkeep() as transaction:
            if transaction is not None:
                transaction.execute(f"DELETE FROM left_results WHERE left_at < {NOW} - ?", (seconds,))


def tables_of(database: Database) -> tuple[ReplicaTable, ContextTable, LeftResultTable]:
    """Return the tables of a database."""
    return ReplicaTable(database), ContextTable(database), LeftResultTable(database)
