"""Several replicas as one proxy: who is there, where a session is at home, relays, shared contexts, hints.

Here are the tables of the cluster, and what is kept there for other replicas: the state of a session or
handle, and large results. An id that opens something is stored as its hash. All times are on the clock of
the database.

A replica of a newer version may have written members, elements of lists and values that are not known here.
They stay in the row as they are, however often this replica writes it: `Unknown` holds them meanwhile.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, get_args, get_origin

import anyio
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import astuple, replace

from mcp_context_proxy.context import NO_OVERRIDES, Delivery, Overrides
from mcp_context_proxy.context.session import HISTORY_KEPT, Session, SessionContext
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.eras import Hello
from mcp_context_proxy.results.result_store import KeptResults, KeptText
from mcp_context_proxy.store.credentials import Seal, SealedRow
from mcp_context_proxy.store.database import Database, Tables
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

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
                astuple(replace(row, started=now if at_start else row.started, seen=now)),
            )
            if tidies and transaction.does_upkeep():
                transaction.execute("DELETE FROM replicas WHERE seen < ?", (now - FORGET_SECONDS,))
        return now, self.all()

    def all(self) -> list[ReplicaRow]:
        """Return all replicas, those that started first before the others."""
        return self._database.read(ReplicaRow, "FROM replicas ORDER BY started, replica")

    def drain(self, replica: str, wanted: bool) -> bool:
        """Have a replica drained, or not any more; return whether there is such a one."""
        statement = "UPDATE replicas SET draining = ? WHERE replica = ?"
        return self._database.change(statement, (int(wanted), replica)) > 0

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
        return next(iter(self._database.read(ContextRow, "FROM contexts WHERE id_hash = ?", [id_hash])), None)

    def add(self, row: ContextRow) -> None:
        """Keep a new row; if it is there already, nothing changes."""
        columns = ContextRow.__struct_fields__
        with self._database.transaction() as transaction:
            transaction.execute(
                f"INSERT INTO contexts ({', '.join(columns)}) "
                f"VALUES ({', '.join('?' * (len(columns) - 1))}, {NOW}) ON CONFLICT (id_hash) DO NOTHING",
                astuple(row)[:-1],
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
        self._database.change("DELETE FROM contexts WHERE id_hash = ?", (id_hash,))

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
        rows = self._database.rows("SELECT home, kind, COUNT(*) FROM contexts GROUP BY home, kind")
        return {(home, kind): int(number) for home, kind, number in rows}


class LeftResultTable(Tables):
    """Large results that replicas have left behind when they ended, sealed."""

    def put(self, id_hash: bytes, sealed: bytes, key_mark: str) -> None:
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


LEFT_BYTES = 64 * 1024 * 1024
"""Size of the large results that a replica leaves behind when it ends, compressed."""

LEFT_SECONDS = 3.0
"""Time for leaving them, after everything else has ended."""

_RESULT = "result"


class LeftResults:
    """Large results of replicas that were told to end: they leave them in the store, sealed, for a while.

    A result is sealed for its id and its owner, so that nobody else can read it here either.
    """

    def __init__(self, table: LeftResultTable, seal: Seal, kept: KeptResults) -> None:
        self._table, self._seal, self._kept = table, seal, kept
        kept.left = self.read

    async def read(self, owner: str, result_id: str) -> KeptText | None:
        id_hash = hash_of(result_id)

        def read() -> bytes | None:
            found = self._table.get(id_hash)
            if found is None:
                return None
            content = self._seal.opened(SealedRow(_RESULT, f"{owner}\0{result_id}", *found, 0))
            return None if content is None else zlib.decompress(content)

        try:
            content = await in_thread(read)
        except StoreError:
            return None
        if content is None:
            return None
        server, _, text = content.partition(b"\0")
        return KeptText(text, server.decode())

    async def leave(self) -> None:
        """Leave the latest results behind, as far as there is time and room."""
        left = 0
        with anyio.move_on_after(LEFT_SECONDS):
            for owner, result_id in self._kept.all():
                kept = await self._kept.get(owner, result_id)
                if kept is None:
                    continue
                size = await in_thread(self._write, owner, result_id, kept)
                left += size
                if not size or left > LEFT_BYTES:
                    return

    def _write(self, owner: str, result_id: str, kept: KeptText) -> int:
        content = zlib.compress(kept.server.encode() + b"\0" + kept.text, 1)
        sealed = self._seal.sealed(_RESULT, f"{owner}\0{result_id}", content)
        try:
            self._table.put(hash_of(result_id), sealed, self._seal.mark)
        except StoreError as error:
            logger.warning("large results cannot be left to other replicas: %s", error)
            return 0
        return len(sealed)

    async def forget_old(self, seconds: float) -> None:
        with suppress(StoreError):
            await in_thread(self._table.forget_old, seconds)


def tables_of(database: Database) -> tuple[ReplicaTable, ContextTable, LeftResultTable]:
    return ReplicaTable(database), ContextTable(database), LeftResultTable(database)


class ContextState(Struct, omit_defaults=True):
    """The state of a session or handle that goes with it to another replica."""

    id: str
    """Its public id, by which requests belong to it."""
    created: float
    query: str | None = None
    shown: list[str] = []
    added: list[tuple[Kind, str]] = []
    removed: list[tuple[Kind, str]] = []
    by_person: list[tuple[Kind, str]] = []
    overrides: Overrides = NO_OVERRIDES
    latest_request: str | None = None
    requests: int = 0
    used: list[tuple[str, int]] = []
    history: list[str] = []
    answer: tuple[str, str] | None = None
    meant: list[tuple[str, str, str]] = []
    delivered: list[tuple[Kind, str, str, Delivery]] = []
    noted: list[tuple[str, list[str]]] = []
    log_level: str | None = None
    introduced: list[str] = []
    subscriptions: list[str] = []


WRITTEN_THROUGH: Final = ("added", "removed", "by_person", "overrides", "log_level", "subscriptions")
"""Parts that somebody has set: whoever was told that they are set finds them so at every replica."""

_decode = msgspec.json.Decoder(ContextState).decode
_encode = msgspec.json.Encoder().encode


class _Unknown(Struct, frozen=True):
    """A member of a row that holds more than is known here."""

    written: Raw
    """The member as it is in the row."""
    known: bytes | None
    """The member as this version would write it; None if it would leave it out."""
    elements: tuple[Raw, ...] = ()
    """Elements of a list that cannot be read here."""


Unknown: TypeAlias = Mapping[str, _Unknown]
"""Members of a row that hold more than is known here, by name."""


def encoded(state: ContextState, unknown: Unknown | None = None) -> bytes:
    """Return a state as it is kept, with all that a newer version has written and this one does not know."""
    data = _encode(state)
    if not unknown:
        return data
    members: dict[str, Raw] = envelope.members(data)
    for name, found in unknown.items():
        mine = members.get(name)
        if (None if mine is None else bytes(mine)) == found.known:
            members[name] = found.written
        elif found.elements:
            known = () if mine is None else envelope.elements(mine)
            members[name] = Raw(_encode([*known, *found.elements]))
        elif mine is not None:
            members[name] = _overlaid(found.written, mine)
    return _encode(members)


def decoded(data: bytes) -> tuple[ContextState, Unknown]:
    """Return the state in a row, and the members in which there is more than is known here.

    Raises `msgspec.DecodeError` if the row is damaged.
    """
    try:
        state, elements = _decode(data), dict[str, tuple[Raw, ...]]()
    except msgspec.ValidationError:
        state, elements = _readable(envelope.members(data))
    known = _encode(state)
    if known == data:
        return state, {}
    written, mine = envelope.members(data), envelope.members(known)
    own = {name: bytes(value) for name, value in mine.items()}
    return state, {
        name: _Unknown(value, own.get(name), elements.get(name, ()))
        for name, value in written.items()
        if own.get(name) != bytes(value)
    }


def _readable(members: Mapping[str, Raw]) -> tuple[ContextState, dict[str, tuple[Raw, ...]]]:
    """Return the part of a state that can be read here, and the elements of lists that cannot."""
    values, unreadable = dict[str, Any](), dict[str, tuple[Raw, ...]]()
    for field in msgspec.structs.fields(ContextState):
        if field.name not in members:
            continue
        written = members[field.name]
        try:
            values[field.name] = msgspec.json.decode(written, type=field.type)
        except msgspec.ValidationError:
            if get_origin(field.type) is not list:
                continue
            (kind,), readable, others = get_args(field.type), list[Any](), list[Raw]()
            for element in envelope.elements(written):
                try:
                    readable.append(msgspec.json.decode(element, type=kind))
                except msgspec.ValidationError:
                    others.append(element)
            values[field.name], unreadable[field.name] = readable, tuple(others)
    return msgspec.convert(values, ContextState), unreadable


def _overlaid(written: Raw, mine: Raw) -> Raw:
    """Return a value of ours, with the members that only the value in the row has."""
    try:
        below, above = envelope.members(written), envelope.members(mine)
    except msgspec.DecodeError:
        return mine
    both = below.keys() & above.keys()
    return Raw(_encode({**below, **above, **{name: _overlaid(below[name], above[name]) for name in both}}))


def state_of(context: SessionContext) -> ContextState:
    state = ContextState(
        id=context.id,
        created=context.created,
        query=context.query,
        shown=list(context.shown),
        added=list(context.added),
        removed=sorted(context.removed),
        by_person=sorted(context.by_person),
        overrides=context.overrides,
        latest_request=context.latest_request,
        requests=context.requests,
        used=list(context.used.items()),
        history=list(context.history),
        answer=context.answer,
        meant=[(*key, server) for key, server in context.meant.items()],
        delivered=[(*key, *given) for key, given in context.delivered.items()],
        noted=[(note, sorted(servers)) for note, servers in context.noted.items()],
    )
    if isinstance(context, Session):
        state.log_level = context.log_level
        state.introduced = sorted(context.introduced)
        state.subscriptions = sorted(context.subscriptions)
    return state


def restore(state: ContextState, context: SessionContext) -> None:
    """Give a session or handle a state. The subscriptions of a session are made anew by whoever adopts it."""
    context.id, context.created = state.id, state.created
    context.query, context.latest_request = state.query, state.latest_request
    context.requests, context.answer, context.overrides = state.requests, state.answer, state.overrides
    context.shown = dict.fromkeys(state.shown)
    context.added = dict.fromkeys(state.added)
    context.removed, context.by_person = set(state.removed), set(state.by_person)
    context.used = dict(state.used)
    context.history.clear()
    context.history.extend(state.history)
    context.meant = {(kind, name): server for kind, name, server in state.meant}
    context.delivered = {(kind, name): (print_, form) for kind, name, print_, form in state.delivered}
    context.noted = {note: frozenset(servers) for note, servers in state.noted}
    if isinstance(context, Session):
        context.log_level, context.introduced = state.log_level, set(state.introduced)


def terms_of(hello: Hello | None) -> bytes:
    return b"" if hello is None else _encode(hello)


def hello_of(terms: bytes) -> Hello | None:
    if not terms:
        return None
    found = msgspec.json.decode(terms, type=Hello)
    # Copies, because a part of a row keeps all of it in memory.
    return Hello(found.version, Raw(bytes(found.capabilities)), Raw(bytes(found.client_info)))


def merged(base: ContextState, mine: ContextState, theirs: ContextState) -> ContextState:
    """Return a state with the changes of both since `base`; where both set one value, mine counts."""
    values: dict[str, Any] = {}
    for name in ContextState.__struct_fields__:
        before, here, there = (getattr(each, name) for each in (base, mine, theirs))
        if name == "requests":
            values[name] = there + max(here - before, 0)
        elif name == "used":
            values[name] = list((dict(there) | dict(here)).items())
        elif name == "history":
            new = here[: max(mine.requests - base.requests, 0)] if here != before else []
            values[name] = [*new, *there][:HISTORY_KEPT]
        elif isinstance(here, list):
            kept = [each for each in there if each in here or each not in before]
            values[name] = kept + [each for each in here if each not in before and each not in there]
        else:
            values[name] = here if here != before else there
    return ContextState(**values)
