"""Statistics in SQLite: usage by hour, later by day, the latest searches, and what definitions cost.

Counts are added to what is there within one transaction, so that several proxies count into one store.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from mcp_context_proxy.store.rows import (
    DAY,
    HOUR,
    Counts,
    DefinitionRow,
    SearchRow,
    SearchUsage,
    ToolUsage,
    UsageSlot,
)
from mcp_context_proxy.store.sqlite import StoreDatabase

_TOOL: Final = "server, tool, calls, errors, timed, ms, result_bytes, last, latency"
_SEARCH: Final = "searches, found, used, top_used, reranked, ms, latency, shown, behind"
_ROW: Final = "id, time, key, query, origin, results, top, chosen, rank, ms, reranked"


class SqliteStatistics:
    """The tables of statistics of a store."""

    def __init__(self, database: StoreDatabase) -> None:
        self._database = database

    def add(
        self,
        tools: Iterable[tuple[UsageSlot, ToolUsage]],
        searches: Mapping[UsageSlot, SearchUsage],
        rows: Iterable[SearchRow],
    ) -> None:
        """Add to what is known, all or nothing; a search that is known is replaced."""
        with self._database.transaction() as connection:
            for slot, usage in tools:
                _add_tool(connection, slot, usage)
            for slot, searched in searches.items():
                _add_search(connection, slot, searched)
            connection.executemany(
                f"INSERT OR REPLACE INTO searches ({_ROW}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [_values(row) for row in rows],
            )

    def roll_up(self, hours_before: float, days_before: float) -> None:
        """Make days of the hours before one moment, and forget the days before another."""
        # Whole days only, so that no moment lies both in an hour and in a day that is told.
        before = UsageSlot.of(hours_before, DAY).start
        with self._database.transaction() as connection:
            old = (HOUR, before)
            for start, *values in connection.execute(
                f"SELECT start, {_TOOL} FROM tool_usage WHERE seconds = ? AND start < ?", old
            ).fetchall():
                _add_tool(connection, UsageSlot.of(start, DAY), _tool(values))
            for start, *values in connection.execute(
                f"SELECT start, {_SEARCH} FROM search_usage WHERE seconds = ? AND start < ?", old
            ).fetchall():
                _add_search(connection, UsageSlot.of(start, DAY), _search(values))
            for table in ("tool_usage", "search_usage"):
                connection.execute(f"DELETE FROM {table} WHERE seconds = ? AND start < ?", old)
                connection.execute(
                    f"DELETE FROM {table} WHERE seconds = ? AND start + seconds <= ?", (DAY, days_before)
                )

    def forget(self, most_usage: int, most_searches: int, searches_before: float) -> None:
        """Forget the oldest of what is more than may be kept."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM searches WHERE time < ?", (searches_before,))
            for table, oldest, most in (
                ("tool_usage", "start", most_usage),
                ("searches", "time", most_searches),
            ):
                connection.execute(
                    f"DELETE FROM {table} WHERE rowid IN "
                    f"(SELECT rowid FROM {table} ORDER BY {oldest} DESC, rowid DESC LIMIT -1 OFFSET ?)",
                    (most,),
                )

    def tools(self, since: float = 0.0) -> list[ToolUsage]:
        """Usage of every tool in the slots that end after a moment, summed up."""
        where = "FROM tool_usage WHERE start + seconds > ?"
        latencies: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        # Not by adding up rows as values: a year of many tools is tens of thousands, and this is read often.
        for server, tool, latency in self._database.rows(f"SELECT server, tool, latency {where}", (since,)):
            together = latencies[server, tool]
            for bucket, count in _decoded(latency).items():
                together[bucket] = together.get(bucket, 0) + count
        sums = self._database.rows(
            "SELECT server, tool, SUM(calls), SUM(errors), SUM(timed), SUM(ms), SUM(result_bytes), MAX(last) "
            f"{where} GROUP BY server, tool",
            (since,),
        )
        return [ToolUsage(*(*values, latencies[values[0], values[1]])) for values in sums]

    def searched(self, since: float = 0.0) -> dict[UsageSlot, SearchUsage]:
        """Searches by slot, those that end after a moment, oldest first."""
        rows = self._database.rows(
            f"SELECT seconds, start, {_SEARCH} FROM search_usage WHERE start + seconds > ? ORDER BY start",
            (since,),
        )
        return {UsageSlot(seconds, start): _search(values) for seconds, start, *values in rows}

    def calls(self, since: float = 0.0) -> dict[UsageSlot, tuple[int, int]]:
        """Calls and errors of all tools together by slot, those that end after a moment, oldest first."""
        rows = self._database.rows(
            "SELECT seconds, start, SUM(calls), SUM(errors) FROM tool_usage WHERE start + seconds > ? "
            "GROUP BY start, seconds ORDER BY start",
            (since,),
        )
        return {UsageSlot(seconds, start): (calls, errors) for seconds, start, calls, errors in rows}

    def searches(self, limit: int) -> list[SearchRow]:
        """The latest, newest first."""
        rows = self._database.rows(
            f"SELECT {_ROW} FROM searches ORDER BY time DESC, rowid DESC LIMIT ?", (limit,)
        )
        return [SearchRow(*(*values[:-1], bool(values[-1]))) for values in rows]

    def definitions(self) -> list[DefinitionRow]:
        """The tools that there were when they were last looked at."""
        columns = "server, tool, fingerprint, tokens, first"
        return [DefinitionRow(*row) for row in self._database.rows(f"SELECT {columns} FROM definitions")]

    def put_definitions(self, server: str, rows: Sequence[DefinitionRow]) -> None:
        """Know these tools of a server and no others; when one was first seen stays."""
        with self._database.transaction() as connection:
            known = dict(
                connection.execute("SELECT tool, first FROM definitions WHERE server = ?", (server,))
            )
            connection.execute("DELETE FROM definitions WHERE server = ?", (server,))
            connection.executemany(
                "INSERT INTO definitions (server, tool, fingerprint, tokens, first) VALUES (?, ?, ?, ?, ?)",
                [
                    (server, row.tool, row.fingerprint, row.tokens, known.get(row.tool, row.first))
                    for row in rows
                ],
            )

    def version(self) -> int:
        """Changes whenever another process has changed the store."""
        return self._database.version()


def _add_tool(connection: sqlite3.Connection, slot: UsageSlot, usage: ToolUsage) -> None:
    key = (slot.seconds, slot.start, usage.server, usage.tool)
    known = connection.execute(
        f"SELECT {_TOOL} FROM tool_usage WHERE seconds = ? AND start = ? AND server = ? AND tool = ?", key
    ).fetchone()
    total = usage if known is None else _tool(known).plus(usage)
    connection.execute(
        f"INSERT OR REPLACE INTO tool_usage (seconds, start, {_TOOL}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *key,
            total.calls,
            total.errors,
            total.timed,
            total.ms,
            total.result_bytes,
            total.last,
            _encoded(total.latency),
        ),
    )


def _add_search(connection: sqlite3.Connection, slot: UsageSlot, usage: SearchUsage) -> None:
    key = (slot.seconds, slot.start)
    known = connection.execute(
        f"SELECT {_SEARCH} FROM search_usage WHERE seconds = ? AND start = ?", key
    ).fetchone()
    total = usage if known is None else _search(known).plus(usage)
    connection.execute(
        f"INSERT OR REPLACE INTO search_usage (seconds, start, {_SEARCH}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *key,
            total.searches,
            total.found,
            total.used,
            total.top_used,
            total.reranked,
            total.ms,
            _encoded(total.latency),
            total.shown,
            total.behind,
        ),
    )


def _tool(values: Sequence[Any]) -> ToolUsage:
    return ToolUsage(*(*values[:-1], _decoded(values[-1])))


def _search(values: Sequence[Any]) -> SearchUsage:
    before, latency, after = values[:6], values[6], values[7:]
    return SearchUsage(*(*before, _decoded(latency), *after))


def _values(row: SearchRow) -> tuple[object, ...]:
    return (
        row.id,
        row.time,
        row.key,
        row.query,
        row.origin,
        row.results,
        row.top,
        row.chosen,
        row.rank,
        row.ms,
        row.reranked,
    )


def _encoded(counts: Counts) -> bytes:
    return msgspec.msgpack.encode(dict(counts))


def _decoded(latency: bytes) -> Counts:
    """A histogram; an empty one where it is damaged, so that the counts beside it still count."""
    try:
        return msgspec.msgpack.decode(latency, type=dict[int, int])
    except (msgspec.DecodeError, TypeError):
        return {}
