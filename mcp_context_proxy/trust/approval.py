"""Approval of definitions: the decision about each definition of a listing, and its record.

A definition is known by server, kind, own name and fingerprint; `states` has the table of decisions. Nothing
that a model can reach approves.

A change under a version in which the server was seen before is never taken. The version is that of the
package, as its files have it, and the digest of the connection: a server at a URL, or a program without a
package, has changed only if the configuration has.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config.settings import ApprovalMode
from mcp_context_proxy.errors import NOTICE, UNREAD, StoreError
from mcp_context_proxy.items import ToolKey
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, one_line
from mcp_context_proxy.store.tables import Additions, ApprovalRecord, ApprovalRow, ApprovalStore, VersionRow
from mcp_context_proxy.system.process import Bucket, time_of_day
from mcp_context_proxy.trust.fingerprints import (
    APPROVED,
    DECISIONS,
    TAKEN,
    TOLD,
    UNDECIDED,
    Approvable,
    Candidate,
    Event,
    Fingerprint,
    Ruling,
    State,
    event_of,
    foreign,
    is_distinctive,
    list_digest,
    own_words,
    ruling_of,
    suspicion,
    visible_part,
    withheld,
)

logger = logging.getLogger(__name__)

Name = tuple[str, str]
"""Kind and own name of a definition."""

RECORDED_PER_SECOND: Final = 1.0
RECORDED: Final = 20_000
"""Rate and burst of definitions of one server that are recorded; others are held all the same. A server that
changes its lists for ever takes 350 MB of the disk a day at most."""

COUNTED_AS_ONE: Final = 4096
"""Bytes for each of which a definition counts as one more."""

REREAD: Final = 200
"""Former definitions in which own words of a server are looked for; few real servers have as many tools."""

NAMES_RECORDED: Final = 40_000
"""Names of one server that are recorded; more than its lists can have at a time."""


class ApprovalEvent(Struct, frozen=True):
    """A decision for those who keep books, such as an audit."""

    server: str
    kind: str
    name: str
    event: str
    state: str
    decided: str
    """A mode, or the way in which a person decided."""
    fingerprint: str
    """Hexadecimal digest of the definition."""
    version: str
    time: float
    key: tuple[str, str]
    """Server and own name, uncut."""
    elsewhere: bool = False
    """True if another process has decided, which has also recorded it."""

    @property
    def approved_tool(self) -> tuple[str, str] | None:
        """Server and own name of a tool that a person has approved; None for any other decision."""
        by_person = self.state == State.APPROVED and self.decided not in get_args(ApprovalMode)
        return self.key if by_person and self.kind == Approvable.TOOL else None

    @property
    def facts(self) -> dict[str, str]:
        """Everything but the time, for a record that has one of its own."""
        return {
            "server": self.server,
            "definition": self.kind,
            "name": self.name,
            "event": self.event,
            "state": self.state,
            "decided": self.decided,
            "fingerprint": self.fingerprint,
            "version": self.version,
        }


Observer = Callable[[Sequence[ApprovalEvent]], None]


class Origin(Struct, frozen=True):
    """The source of a listing."""

    server: str
    mode: ApprovalMode
    connection: str
    """Digest of how the server is connected, without secrets."""
    version: str = ""
    """Version of its package; empty where that is not known."""

    @property
    def key(self) -> str:
        """Everything but the mode as one text."""
        return f"{self.server}\0{self.connection}\0{self.version}\0"


class Record:
    """Everything that was decided about one server, in memory."""

    def __init__(self, kept: ApprovalRecord) -> None:
        self.kept = kept
        """The record as the store has it, where nothing is waiting."""
        self.rows: dict[Name, list[ApprovalRow]] = defaultdict(list)
        """Rows by kind and name, the oldest decision first."""
        for row in kept.rows:
            self.rows[row.kind, row.name].append(row)
        self.versions = {(row.kind, row.connection, row.version): row.digest for row in kept.versions}
        """Digest of the list in which all was approved last, by kind, connection and version."""
        self.damaged = kept.damaged
        self.waiting = Additions()
        """Decisions that the store has refused so far."""

    def has(self, kind: str) -> bool:
        """Return whether definitions of a kind were seen before."""
        return any(one == kind for one, _, _ in self.versions) or any(one == kind for one, _ in self.rows)

    def find(self, candidate: Candidate) -> ApprovalRow | None:
        """Return the row of exactly this definition."""
        of_name = self.rows.get((candidate.kind, candidate.name), ())
        rows = {Fingerprint(row.seen, row.rest): row for row in of_name}
        found = rows.get(candidate.fingerprint)
        return rows.get(candidate.exact) if rows and found is None else found

    def add(self, additions: Additions) -> None:
        """Add decisions, each as the latest of its name."""
        for row in additions.rows:
            of_name = self.rows[row.kind, row.name]
            of_name[:] = [one for one in of_name if (one.seen, one.rest) != (row.seen, row.rest)]
            of_name.append(row)
        self.versions |= {(row.kind, row.connection, row.version): row.digest for row in additions.versions}


class _Judgement(Struct):
    """Rulings about the definitions of one kind in one listing, and their additions to the record."""

    rulings: dict[str, Ruling] = field(default_factory=dict)
    rows: list[ApprovalRow] = field(default_factory=list)
    definitions: dict[bytes, bytes] = field(default_factory=dict)
    versions: list[VersionRow] = field(default_factory=list)

    @property
    def additions(self) -> Additions:
        return Additions(tuple(self.rows), self.definitions, tuple(self.versions))


class _Judged(Struct, frozen=True):
    """The rulings about a list, as long as it and its origin stay the same."""

    candidates: Mapping[str, Candidate]
    origin: Origin
    rulings: Mapping[str, Ruling]
    outdated: bool = False
    """True once somebody else has decided something."""


class Approvals:
    """Decides about definitions. Blocking and thread-safe; lists are judged one after the other.

    While the store fails, decisions are kept in memory, and nothing that was held is taken. Of a server whose
    record a database has, and which was not read here before, nothing is: it may have been rejected.
    """

    def __init__(self, store: ApprovalStore, mode: ApprovalMode = "notice") -> None:
        """Read nothing yet; ``mode`` is that of servers without one of their own."""
        self._store = store
        self.mode = mode
        self.observers: list[Observer] = []
        """Called with each decision once, in a thread; those of others come with the next `refresh`."""
        self.findings: dict[str, str] = {}
        """Messages for a person about the record of a server, by server."""
        self.first_seen: Mapping[ToolKey, float] = {}
        """Time at which each tool was first seen; see `Snapshot.first_seen`."""
        self._deciding = threading.Lock()
        self._records: dict[str, Record] = {}
        self._judged: dict[Name, _Judged] = {}
        self._distinctive: dict[str, frozenset[str]] = {}
        """Distinctive names of the tools of each server, which are found out when others may mention them."""
        self._buckets: dict[str, Bucket] = defaultdict(lambda: Bucket(RECORDED_PER_SECOND, RECORDED))
        self._unread: set[str] = set()
        """Servers whose record could not be read yet."""
        self._revision: int | None = None
        self._told: set[tuple[bytes, str, float]] = set()
        """Decisions of this process since the last `refresh`: key, state and time."""

    def rulings(
        self,
        origin: Origin,
        kind: Approvable,
        candidates: Mapping[str, Candidate],
        own_names: Callable[[], Iterable[str]],
    ) -> Mapping[str, Ruling]:
        """Return the decision about each definition of one list, by own name: the same one again for nothing.

        Args:
            origin: The source of the list.
            kind: The kind of its definitions.
            candidates: The definitions, by own name.
            own_names: Returns the names of all that the server lists, also of tools that are turned off;
                called if a definition is new.
        """
        with self._deciding:
            known = self._judged.get((origin.server, kind))
            stands = known if known and known.origin == origin and not known.outdated else None
            if stands is not None and stands.candidates is candidates:
                return stands.rulings
            rulings = self._decided(origin, kind, candidates, known, own_names) if candidates else {}
            if kind is Approvable.TOOL:
                self._distinctive.pop(origin.server, None)
            self._tell_withheld(origin.server, kind, {} if known is None else known.rulings, rulings)
            self._judged[origin.server, kind] = _Judged(candidates, origin, rulings)
            return rulings

    def keep(self, servers: Collection[str]) -> None:
        """Forget the lists of all other servers, which are gone."""
        with self._deciding:
            self._judged = {key: known for key, known in self._judged.items() if key[0] in servers}
            self._distinctive = {key: names for key, names in self._distinctive.items() if key in servers}

    def refresh(self) -> bool:
        """Read the decisions of other processes, and write those that the store has refused.

        Returns:
            True if a list may be judged otherwise now.
        """
        with self._deciding:
            try:
                for server, record in self._records.items():
                    if record.waiting:
                        self._store.decide(server, _replaying(record.waiting))
                revision = self._store.revision()
                before = self._revision
                changed = before not in (None, revision)
                rows = self._store.decided_since(before or 0) if changed else []
                self.first_seen = self._store.first_seen() if changed else self.first_seen
            except StoreError:
                return False
            changed |= any(record.waiting for record in self._records.values()) or bool(self._unread)
            self._unread.clear()
            self._revision = revision
            if changed:
                self._records.clear()
                # The rulings stay, to tell afterwards what is withheld now and was not before.
                self._judged = {key: replace(known, outdated=True) for key, known in self._judged.items()}
            told, self._told = self._told, set()
        self._observe([event_for(row, elsewhere=True) for row in rows if _identity(row) not in told])
        return changed

    def take(self, decide: Callable[[], list[ApprovalRow]]) -> list[ApprovalRow]:
        """Have a person's decision written, and tell the observers; return its rows.

        Raises `ApprovalError` if ``decide`` refuses, and `StoreError` if nothing was written.
        """
        with self._deciding:
            rows = decide()
            self._told.update(map(_identity, rows))
        self.refresh()
        self._observe([event_for(row) for row in rows])
        return rows

    def _decided(
        self,
        origin: Origin,
        kind: Approvable,
        candidates: Mapping[str, Candidate],
        known: _Judged | None,
        own_names: Callable[[], Iterable[str]],
    ) -> dict[str, Ruling]:
        listed = {} if known is None else known.candidates
        if origin.server not in self._records and self._all_approved(origin, kind, candidates):
            return dict.fromkeys(candidates, APPROVED)
        if (record := self._record_of(origin.server)) is None:
            prints = {name: one.fingerprint for name, one in candidates.items()}
            before = {} if known is None else known.rulings
            same = {name: one for name, one in before.items() if prints.get(name) == listed[name].fingerprint}
            return dict.fromkeys(candidates, Ruling(State.HELD, UNREAD)) | same
        unknown = [one for one in candidates.values() if record.find(one) is None]
        owners = self._names_of_others(origin.server, own_names()) if unknown else {}
        signs = {one.name: sign for one in unknown if (sign := suspicion(one, owners)) is not None}
        if owners and signs:
            words = own_words((one.definition for one in candidates.values()), self._taken(record))
            owners = {name: owner for name, owner in owners.items() if name not in words}
            suspects = [one for one in unknown if one.name in signs]
            signs = {one.name: sign for one in suspects if (sign := suspicion(one, owners)) is not None}
        seen_alike = self._seen_alike(record, unknown)
        judgement = self._judge(record, origin, kind, candidates, listed, signs, seen_alike)
        if not judgement.additions:
            return judgement.rulings

        def decide(kept: ApprovalRecord) -> Additions:
            nonlocal judgement
            if record.waiting or kept != record.kept:
                # Anew, because another process has decided about the same server meanwhile.
                judgement = self._judge(Record(kept), origin, kind, candidates, listed, signs, seen_alike)
            return judgement.additions

        try:
            if record.waiting:
                self._store.decide(origin.server, _replaying(record.waiting))
            self._records[origin.server] = Record(self._store.decide(origin.server, decide))
            self.first_seen = self._store.first_seen()
        except StoreError:
            # What was held in memory stays held, whatever the store has by then.
            judgement = self._judge(record, origin, kind, candidates, listed, signs, seen_alike)
            record.add(judgement.additions)
            waiting, added = record.waiting, judgement.additions
            record.waiting = Additions(
                waiting.rows + added.rows,
                {**waiting.definitions, **added.definitions},
                waiting.versions + added.versions,
            )
        self._tell(origin, judgement)
        return judgement.rulings

    def _all_approved(self, origin: Origin, kind: str, candidates: Mapping[str, Candidate]) -> bool:
        """Return whether a list is one of which all was approved, without reading the whole record."""
        try:
            known = self._store.approved_digest(origin.server, kind, origin.connection, origin.version)
            self._look()
        except StoreError:
            return False
        return bool(known) and known == list_digest(origin.key, candidates)

    def _look(self) -> None:
        """Read the records that belong to no single server, at the first use."""
        if self._revision is None:
            self._revision, self.first_seen = self._store.revision(), self._store.first_seen()

    def _record_of(self, server: str) -> Record | None:
        record = self._records.get(server)
        if record is None:
            try:
                kept = self._store.record(server)
                self._look()
            except StoreError as error:
                if self._store.is_remote:
                    self._unread.add(server)
                    return None
                kept = ApprovalRecord()
                self.findings[server] = f"the record of approved definitions cannot be read: {error}"
            else:
                self.findings.pop(server, None)
            record = self._records[server] = Record(kept)
            if record.damaged:
                self.findings[server] = (
                    f"{record.damaged:,} approved definitions could not be read from the store: they count "
                    "as seen for the first time"
                )
                logger.warning("server %s: %s", server, self.findings[server])
        return record

    def _judge(
        self,
        record: Record,
        origin: Origin,
        kind: Approvable,
        candidates: Mapping[str, Candidate],
        listed: Mapping[str, Candidate],
        signs: Mapping[str, str],
        seen_alike: Collection[str],
    ) -> _Judgement:
        """Return the decisions about a list, and their additions to a record.

        What was `listed` here before, and is unchanged, yields to what another process lists; only one that
        waits comes before one that does not. Otherwise each would write its own as the latest for ever.
        """
        judgement, now = _Judgement(), time_of_day()
        first = not record.has(kind)
        seen = (kind, origin.connection, origin.version) in record.versions
        for name, one in candidates.items():
            row = record.find(one)
            of_name: Sequence[ApprovalRow] = record.rows.get((kind, name), [])
            latest = row is not None and of_name[-1] is row
            if row is not None and name in listed and listed[name].fingerprint == one.fingerprint:
                latest = latest or row.state not in UNDECIDED or of_name[-1].state in UNDECIDED
            if row is not None and row.state == State.APPROVED and latest:
                judgement.rulings[name] = APPROVED
                continue
            state = None
            if row is None:
                sign = signs.get(name)
                event = event_of(
                    one,
                    of_name,
                    first=first,
                    version_seen=seen,
                    suspect=sign is not None,
                    only_rest=name in seen_alike,
                )
                state = DECISIONS[event][origin.mode]
                row = _row(one, origin, state, event, sign or "", now)
            elif row.state == State.HELD:
                # A person who relaxes the mode has decided about what the former one held.
                decided = DECISIONS[Event(row.event)][origin.mode]
                state = decided if decided in TAKEN else None
                row = msgspec.structs.replace(row, state=decided, decided=origin.mode, time=now)
            if (state is not None or not latest) and self._may_record(record, origin.server, one):
                # Also where a server goes back to a definition: the latest row is the one that it lists.
                judgement.rows.append(row)
                judgement.definitions[row.key] = bytes(one.definition)
            elif state in TAKEN:
                row = msgspec.structs.replace(row, state=State.HELD)
            judgement.rulings[name] = ruling_of(row, of_name)
        whole = all(ruling is APPROVED for ruling in judgement.rulings.values())
        digest = list_digest(origin.key, candidates) if whole else b""
        if not seen or digest != record.versions[kind, origin.connection, origin.version]:
            source = (origin.server, kind, origin.connection, origin.version)
            judgement.versions.append(VersionRow(*source, now, digest))
        return judgement

    def _seen_alike(self, record: Record, unknown: Iterable[Candidate]) -> set[str]:
        """Return the names of definitions that differ from a taken one, but in nothing that a model may see.

        None do while the store cannot be read, or has lost the taken ones.
        """
        alike = {
            one.name: [
                row.key
                for row in record.rows.get((one.kind, one.name), ())
                if row.state in TAKEN and row.seen == one.fingerprint.seen
            ]
            for one in unknown
        }
        kept = self._kept(record, {key for keys in alike.values() for key in keys})
        return {
            one.name
            for one in unknown
            for key in alike[one.name]
            if key in kept and visible_part(kept[key]) == visible_part(bytes(one.definition))
        }

    def _taken(self, record: Record) -> Iterable[bytes]:
        """Return definitions of a server that were taken, and are known, up to `REREAD`."""
        taken = (row.key for rows in record.rows.values() for row in rows if row.state in TAKEN)
        keys = set(islice(taken, REREAD))
        return [known for key, known in self._kept(record, keys).items() if key in keys]

    def _kept(self, record: Record, keys: Collection[bytes]) -> dict[bytes, bytes]:
        kept = dict(record.waiting.definitions)
        with suppress(StoreError):
            kept |= self._store.definitions(keys)
        return kept

    def _may_record(self, record: Record, server: str, one: Candidate) -> bool:
        name = one.kind, one.name
        if name not in record.rows and len(record.rows) >= NAMES_RECORDED:
            return False
        return all(self._buckets[server].take() for _ in range(1 + len(one.definition) // COUNTED_AS_ONE))

    def _names_of_others(self, server: str, own: Iterable[str]) -> dict[str, str]:
        """Return the distinctive names that exactly one other server has, each with that server.

        Those of tools that a person has rejected are left out: nothing can be meant by them any more.
        """
        for (other, kind), known in self._judged.items():
            if kind is Approvable.TOOL and other not in self._distinctive:
                left = (name for name, one in known.rulings.items() if one.state is not State.REJECTED)
                self._distinctive[other] = frozenset(filter(is_distinctive, left))
        owners = self._distinctive.items()
        others = [(name, other) for other, names in owners if other != server for name in names]
        count = Counter(name for name, _ in others)
        return foreign({name: other for name, other in others if count[name] == 1}, own)

    def _tell(self, origin: Origin, judgement: _Judgement) -> None:
        told = Counter(row.event for row in judgement.rows if row.state in TAKEN)
        for event, words in TOLD.items():
            if count := told[event]:
                logger.log(
                    NOTICE,
                    "server %s: %d definition%s: %s; look with: mcp-context-proxy changes %s",
                    origin.server,
                    count,
                    "" if count == 1 else "s",
                    words,
                    origin.server,
                )
        if told[Event.FIRST]:
            logger.info(
                "server %s: seen for the first time; its definitions (%d) are approved as they are",
                origin.server,
                told[Event.FIRST],
            )
        self._told.update(map(_identity, judgement.rows))
        self._observe([event_for(row) for row in judgement.rows])

    def _observe(self, events: Sequence[ApprovalEvent]) -> None:
        for observer in self.observers if events else ():
            observer(events)

    def _tell_withheld(
        self, server: str, kind: Approvable, before: Mapping[str, Ruling], now: Mapping[str, Ruling]
    ) -> None:
        fresh = [
            name
            for name, ruling in now.items()
            if ruling is not APPROVED and not ruling.taken and (name not in before or before[name].taken)
        ]
        if fresh:
            logger.warning("%s", withheld(server, kind, [now[name].why for name in fresh]))


def _identity(row: ApprovalRow) -> tuple[bytes, str, float]:
    return row.key, row.state, row.time


def event_for(row: ApprovalRow, *, elsewhere: bool = False) -> ApprovalEvent:
    """Return a row as an event for observers; ``elsewhere`` if another process has decided."""
    return ApprovalEvent(
        row.server,
        row.kind,
        one_line(row.name, NAME_CHARACTERS),
        row.event,
        row.state,
        row.decided,
        Fingerprint(row.seen, row.rest).key.hex(),
        row.version,
        row.time,
        (row.server, row.name),
        elsewhere,
    )


def _row(one: Candidate, origin: Origin, state: State, event: Event, reason: str, now: float) -> ApprovalRow:
    return ApprovalRow(
        server=origin.server,
        kind=one.kind,
        name=one.name,
        seen=one.fingerprint.seen,
        rest=one.fingerprint.rest,
        state=state,
        event=event,
        reason=reason,
        hints=str(one.hints),
        version=origin.version,
        decided=origin.mode,
        time=now,
    )


def _replaying(waiting: Additions) -> Callable[[ApprovalRecord], Additions]:
    """Return a decision that writes decisions made in memory while the store failed.

    What contradicts a record that the store had all the time is held.
    """

    def decide(kept: ApprovalRecord) -> Additions:
        record = Record(kept)
        rows = []
        for row in waiting.rows:
            of_name = record.rows.get((row.kind, row.name), [])
            if any((one.seen, one.rest) == (row.seen, row.rest) for one in of_name):
                continue
            contradicts = of_name and row.state in TAKEN
            rows.append(
                msgspec.structs.replace(row, state=State.HELD, event=Event.CHANGED) if contradicts else row
            )
        kept_definitions = {row.key: waiting.definitions[row.key] for row in rows}
        # Without digests: not all of a list may be approved beside what the store has.
        versions = tuple(replace(version, digest=b"") for version in waiting.versions)
        return Additions(tuple(rows), kept_definitions, versions)

    return decide
