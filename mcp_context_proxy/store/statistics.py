"""Statistics: usage of tools and searches by hour, later by day, the latest searches, costs of definitions.

Counts are added to those in the store within one transaction, so that several proxies count into one store.
Each owner has counts of its own; replicas of one store each have rows of their own, which are summed up when
they are read, and joined when they grow old.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.items import ToolKey
from mcp_context_proxy.store.database import Database, Tables, Transaction
from mcp_context_proxy.store.migrations import USAGE
from mcp_context_proxy.store.tables import lag_of
from mcp_context_proxy.system.process import time_of_day

HOUR: Final = 3600
DAY: Final = 24 * HOUR
"""Seconds of a slot: an hour or a day. Slots begin at multiples of them since 1970, so days are UTC's."""

Counts: TypeAlias = dict[int, int]
"""A histogram: counts by bucket. `statistics.figures` defines the buckets."""


class UsageSlot(Struct, frozen=True):
    """A stretch of time of one owner that is counted as one."""

    seconds: int
    """`HOUR` or `DAY`."""
    start: int
    """Seconds since 1970."""
    owner: str = ""
    """Principal whose calls and searches are counted; empty for the user and all administrators, and for
    everybody in reports."""

    @classmethod
    def of(cls, time: float, seconds: int = HOUR, owner: str = "") -> UsageSlot:
        return cls(seconds, int(time // seconds) * seconds, owner)


class Usage(Struct):
    """Counts that add up."""

    def plus(self, other: Self) -> Self:
        """Return the sum of both; names are this one's, and the time of the latest is the later one."""
        fields = self.__struct_fields__
        return type(self)(*(_sum(name, getattr(self, name), getattr(other, name)) for name in fields))


def _sum(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, str):
        return one
    if isinstance(one, dict):
        return added(one, other)
    return max(one, other) if name == "last" else one + other


class ToolUsage(Usage):
    """Calls of one tool."""

    server: str
    tool: str
    """The name the server itself uses."""
    calls: int = 0
    errors: int = 0
    timed: int = 0
    """Calls that were sent, so that they took some time."""
    ms: float = 0.0
    """Time of those together."""
    result_bytes: int = 0
    """Size of all results together."""
    last: float = 0.0
    """Time of the latest call, in seconds since 1970."""
    latency: Counts = field(default_factory=dict)

    @property
    def key(self) -> ToolKey:
        return self.server, self.tool


class SearchUsage(Usage):
    """Searches and their success."""

    searches: int = 0
    found: int = 0
    """Searches that found a tool."""
    used: int = 0
    """Searches after which a tool that they had found was called."""
    top_used: int = 0
    """Searches after which the first tool that they had found was called."""
    reranked: int = 0
    ms: float = 0.0
    shown: int = 0
    """Tokens of the selected items, where the tokens of all items were known."""
    behind: int = 0
    """Tokens of all items, summed over the same searches."""
    latency: Counts = field(default_factory=dict)


class SearchRow(Struct, frozen=True):
    """One search."""

    id: str
    """Id of its request context."""
    time: float
    key: bytes
    """Hash of the query."""
    query: str | None
    """None where queries are not kept."""
    origin: str
    results: int
    """Number of tools that were found."""
    top: str | None
    """Exposed name of the first of them."""
    chosen: str | None
    """Exposed name of the one that was called; None until one is."""
    rank: int | None
    """Its place in the results, from 1."""
    ms: float
    reranked: bool
    arm: str | None = None
    """Arm of the comparison that was under way; None for none."""
    session: str | None = None
    """Public id of its session."""
    uses: int = 0
    """Number of tools that it had found and that were called."""
    owner: str = ""
    """Principal who searched; empty for the user and all administrators."""


GONE = -1
"""Tokens of a row that only keeps when a tool was first seen that is gone."""


class DefinitionRow(Struct, frozen=True):
    """A tool or document that is in the catalog, and the tokens that it costs."""

    server: str
    """`DOCUMENTS` for a document."""
    tool: str
    """Own name of the tool; kind, slash and name of a document."""
    fingerprint: str
    tokens: int
    first: float
    """Time at which it was first seen, in seconds since 1970."""

    @property
    def key(self) -> ToolKey:
        return self.server, self.tool


DocumentKey: TypeAlias = tuple[str, str]
"""Kind and name of a rule or reference."""


class DocumentUsage(Usage):
    """Use of one rule or reference."""

    kind: str
    name: str
    found: int = 0
    """Requests that selected it."""
    delivered: int = 0
    """Times that a model was given its text or outline, without having asked for it by name."""
    reads: int = 0
    """Times that it was read by its name or URI."""
    last: float = 0.0
    """Time of the latest of all these, in seconds since 1970."""

    @property
    def key(self) -> DocumentKey:
        return self.kind, self.name


DOCUMENTS: Final = ""
"""Takes the place of the server in the rows of documents among the definitions; no server has this name."""


def added(one: Counts, other: Counts) -> Counts:
    if not other:
        return one
    total = Counter(one)
    total.update(other)
    return dict(total)


K = TypeVar("K")
U = TypeVar("U", ToolUsage, SearchUsage, DocumentUsage)


def count_in(counts: dict[K, U], key: K, usage: U) -> None:
    """Add usage to the counts under the same key."""
    known = counts.get(key)
    counts[key] = usage if known is None else known.plus(usage)


class _UsageTable(Generic[U]):
    """A table of usage by slot, owner and replica; its other columns are the fields of a usage."""

    def __init__(self, name: str, usage: type[U], key: tuple[str, ...]) -> None:
        """Name the table, the class of its rows, and the columns that identify a row beside its slot."""
        self.name, self._named = name, key
        self._key = ("seconds", "start", "owner", "replica", *key)
        self._usage: Callable[..., U] = usage
        self._fields = list(usage.__struct_fields__)
        self._timed = self._fields[-1] == "latency"
        self.columns = ", ".join(self._fields)

    def add(self, transaction: Transaction, replica: str, counted: Iterable[tuple[UsageSlot, U]]) -> None:
        """Add usage to a replica's rows of its slots."""
        rows: dict[UsageSlot, dict[tuple[object, ...], U]] = {}
        changed: dict[tuple[UsageSlot, tuple[object, ...]], None] = {}
        query = (
            f"SELECT {self.columns} FROM {self.name} "
            "WHERE seconds = ? AND start = ? AND owner = ? AND replica = ?"
        )
        for slot, usage in counted:
            if slot not in rows:
                found = transaction.rows(query, (slot.seconds, slot.start, slot.owner, replica))
                rows[slot] = {self._name_of(known): known for known in map(self.read, found)}
            key = self._name_of(usage)
            count_in(rows[slot], key, usage)
            changed[slot, key] = None
        columns = ("seconds", "start", "owner", "replica", *self._fields)
        written = list[Sequence[object]]()
        for slot, key in changed:
            total: U = rows[slot][key]
            row: dict[str, Any] = {name: getattr(total, name) for name in self._fields}
            if self._timed:
                row["latency"] = msgspec.msgpack.encode(dict(row["latency"]))
            written.append([slot.seconds, slot.start, slot.owner, replica, *row.values()])
        transaction.put(self.name, columns, self._key, written)

    def _name_of(self, usage: U) -> tuple[object, ...]:
        return tuple(getattr(usage, column) for column in self._named)

    def read(self, values: Sequence[Any]) -> U:
        return self._usage(*values[:-1], _decoded(values[-1]) if self._timed else values[-1])

    def roll_up(self, transaction: Transaction, hours_before: int, days_before: float) -> None:
        """Turn hours of all replicas before one moment into days, and delete days before another."""
        old = (HOUR, hours_before)
        query = f"SELECT start, owner, {self.columns} FROM {self.name} WHERE seconds = ? AND start < ?"
        found = transaction.rows(query, old)
        days = [(UsageSlot.of(start, DAY, owner), self.read(values)) for start, owner, *values in found]
        self.add(transaction, "", days)
        transaction.execute(f"DELETE FROM {self.name} WHERE seconds = ? AND start < ?", old)
        transaction.execute(
            f"DELETE FROM {self.name} WHERE seconds = ? AND start + seconds <= ?", (DAY, days_before)
        )

    def forget_old(self, transaction: Transaction, most: int) -> None:
        transaction.forget_old(self.name, self._key, by="start", keep=most)


_TOOLS = _UsageTable("tool_usage", ToolUsage, ("server", "tool"))
_SEARCHES = _UsageTable("search_usage", SearchUsage, ())
_DOCUMENTS = _UsageTable("document_usage", DocumentUsage, ("kind", "name"))

WRITERS_SECONDS: Final = 30 * DAY
"""Time for which the last batch of a process is remembered: it sends none again after that."""


class StatisticsStore(Tables):
    """The tables of statistics."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._batches = itertools.count(1)

    def version(self) -> int:
        """Return a number that changes when another process has counted."""
        return self._database.number(
            "SELECT COALESCE(SUM(batch), 0) FROM writers WHERE area = ? AND writer <> ?",
            (USAGE, self._database.writer),
        )

    def next_batch(self) -> int:
        """Return the number of a new batch: figures added twice under one number count once."""
        return next(self._batches)

    def add(
        self,
        tools: Iterable[tuple[UsageSlot, ToolUsage]],
        searches: Mapping[UsageSlot, SearchUsage],
        rows: Iterable[SearchRow],
        batch: int | None = None,
        documents: Iterable[tuple[UsageSlot, DocumentUsage]] = (),
    ) -> None:
        """Add counts to those in the store, and replace searches of the same id; all or nothing."""
        database, number = self._database, self.next_batch() if batch is None else batch
        now = time_of_day()
        # Each replica has rows of its own, so they need not wait for each other, only for a roll-up.
        with database.transaction(USAGE, shared=True) as transaction:
            if not transaction.is_new(database.writer, USAGE, number, now):
                return
            _TOOLS.add(transaction, database.replica, tools)
            _SEARCHES.add(transaction, database.replica, searches.items())
            _DOCUMENTS.add(transaction, database.replica, documents)
            transaction.put_rows("searches", ("id",), rows)

    def roll_up(self, hours_before: float, days_before: float) -> None:
        """Turn hours before one moment into days, and forget the days before another, as the upkeep."""
        # Whole days only: otherwise a report would count some hours twice, alone and as part of a day.
        lag = lag_of(self._database)
        before, now = UsageSlot.of(hours_before - lag, DAY).start, time_of_day() - lag
        with self._upkeep(USAGE) as transaction:
            if transaction is None:
                return
            for table in (_TOOLS, _SEARCHES, _DOCUMENTS):
                table.roll_up(transaction, before, days_before - lag)
            transaction.execute("DELETE FROM writers WHERE time < ?", (now - WRITERS_SECONDS,))

    def forget(self, most_usage: int, most_searches: int, searches_before: float) -> None:
        """Forget searches before a moment, and the oldest of too many rows, as the upkeep."""
        searches_before -= lag_of(self._database)
        with self._upkeep(USAGE) as transaction:
            if transaction is None:
                return
            _TOOLS.forget_old(transaction, most_usage)
            _DOCUMENTS.forget_old(transaction, most_usage)
            transaction.forget_old("searches", ("id",), before=searches_before, keep=most_searches)

    def tools(self, since: float = 0.0) -> list[ToolUsage]:
        """Return the usage of every tool in the slots that end after a moment, summed up over all owners."""
        together: dict[ToolKey, ToolUsage] = {}
        for usage in self.tools_by_owner(since).values():
            for key, one in usage.items():
                count_in(together, key, one)
        return list(together.values())

    def tools_by_owner(self, since: float = 0.0) -> dict[str, dict[ToolKey, ToolUsage]]:
        """Return the usage of every tool by each owner, in the slots that end after a moment."""
        where = "FROM tool_usage WHERE start + seconds > ?"
        latencies: dict[tuple[str, str, str], dict[int, int]] = defaultdict(dict)
        # SQL adds up the numbers: a year of many tools has tens of thousands of rows, and is read often.
        histograms = self._database.rows(f"SELECT owner, server, tool, latency {where}", (since,))
        for owner, server, tool, latency in histograms:
            together = latencies[owner, server, tool]
            for bucket, count in _decoded(latency).items():
                together[bucket] = together.get(bucket, 0) + count
        sums = self._database.rows(
            "SELECT owner, server, tool, SUM(calls), SUM(errors), SUM(timed), SUM(ms), SUM(result_bytes), "
            f"MAX(last) {where} GROUP BY owner, server, tool ORDER BY owner, server, tool",
            (since,),
        )
        found: dict[str, dict[ToolKey, ToolUsage]] = defaultdict(dict)
        for owner, server, tool, calls, errors, timed, ms, result_bytes, last in sums:
            numbers = int(calls), int(errors), int(timed), float(ms), int(result_bytes), last
            found[owner][server, tool] = ToolUsage(server, tool, *numbers, latencies[owner, server, tool])
        return dict(found)

    def documents(self, since: float = 0.0) -> list[DocumentUsage]:
        """Return the use of every document in the slots that end after a moment, summed up."""
        sums = self._database.rows(
            "SELECT kind, name, SUM(found), SUM(delivered), SUM(reads), MAX(last) FROM document_usage "
            "WHERE start + seconds > ? GROUP BY kind, name ORDER BY kind, name",
            (since,),
        )
        return [
            DocumentUsage(kind, name, int(found), int(delivered), int(reads), last)
            for kind, name, found, delivered, reads, last in sums
        ]

    def searched(self, since: float = 0.0) -> dict[UsageSlot, SearchUsage]:
        """Return searches of all owners by slot, for slots that end after a moment, oldest first."""
        rows = self._database.rows(
            f"SELECT seconds, start, {_SEARCHES.columns} FROM search_usage "
            "WHERE start + seconds > ? ORDER BY start",
            (since,),
        )
        found: dict[UsageSlot, SearchUsage] = {}
        for seconds, start, *values in rows:
            count_in(found, UsageSlot(seconds, start), _SEARCHES.read(values))
        return found

    def calls(self, since: float = 0.0) -> dict[UsageSlot, tuple[int, int]]:
        """Return calls and errors of all tools by slot, for slots that end after a moment, oldest first."""
        rows = self._database.rows(
            "SELECT seconds, start, SUM(calls), SUM(errors) FROM tool_usage WHERE start + seconds > ? "
            "GROUP BY start, seconds ORDER BY start",
            (since,),
        )
        return {
            UsageSlot(seconds, start): (int(calls), int(errors)) for seconds, start, calls, errors in rows
        }

    def searches(self, limit: int) -> list[SearchRow]:
        """Return the latest searches, newest first."""
        rest = "FROM searches ORDER BY time DESC, id DESC LIMIT ?"
        rows = self._database.read(SearchRow, rest, [limit])
        return [replace(row, reranked=bool(row.reranked)) for row in rows]  # SQLite has no booleans

    def compared(self, since: float) -> list[SearchRow]:
        """Return the searches since a moment that were part of a comparison, oldest first."""
        rest = "FROM searches WHERE arm IS NOT NULL AND time >= ? ORDER BY time, id"
        return self._database.read(SearchRow, rest, [since])

    def definitions(self) -> list[DefinitionRow]:
        """Return the tools of the catalog when they were last counted."""
        return self._database.read(DefinitionRow, "FROM definitions WHERE tokens >= 0 ORDER BY server, tool")

    def put_definitions(self, server: str, rows: Sequence[DefinitionRow]) -> None:
        """Replace the tools of a server; the time at which one was first seen stays.

        A tool that was not there before takes over the time of one that is gone, the oldest first. So a
        server has new tools only as far as it has more than ever: a renamed tool is none.
        """
        with self._database.transaction(USAGE) as transaction:
            query = "SELECT tool, first FROM definitions WHERE server = ?"
            known = dict(transaction.rows(query, (server,)))
            transaction.execute("DELETE FROM definitions WHERE server = ?", (server,))
            now = {row.tool for row in rows}
            gone = sorted((first, tool) for tool, first in known.items() if tool not in now)
            for row in rows:
                if row.tool not in known and gone:
                    known[row.tool] = min(gone.pop(0)[0], row.first)
            seen = [replace(row, first=known.get(row.tool, row.first)) for row in rows]
            left = [DefinitionRow(server, tool, "", GONE, first) for first, tool in gone]
            transaction.put_rows("definitions", ("server", "tool"), [*seen, *left])

    def settle(self, tools: Iterable[ToolKey]) -> None:
        """Have tools count as old as the first tool of all, so that none of them is new."""
        with self._database.transaction(USAGE) as transaction:
            (first,) = transaction.execute("SELECT MIN(first) FROM definitions").fetchone()
            rows = [
                DefinitionRow(server, tool, "", GONE, first)
                for server, tool in (tools if first is not None else ())
            ]
            transaction.put_rows("definitions", ("server", "tool"), rows)


def _decoded(latency: bytes) -> Counts:
    """Return a histogram; an empty one where it is damaged, so that the counts beside it still count."""
    try:
        return msgspec.msgpack.decode(latency, type=dict[int, int])
    except (msgspec.DecodeError, TypeError):
        return {}
