"""Export and import of interactions, and a memory of them for programs without a proxy.

Interactions that are there already are not imported again, so an import that was interrupted goes on where it
ended. Nothing that is remembered is pushed out: only as many as there is room for are imported, the latest.
"""

from __future__ import annotations

import codecs
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of
from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
from mcp_context_proxy.errors import DataFileError, check_bounds
from mcp_context_proxy.interactions import BATCH, MESSAGE, Backfilled, InteractionMemory, backfill, scope_of
from mcp_context_proxy.store.memory import Interaction, InteractionScope, InteractionStore
from mcp_context_proxy.store.opening import IN_MEMORY, open_store
from mcp_context_proxy.system import LONGEST_LINE, Closing, write_private
from mcp_context_proxy.system.process import time_of_day

WRITTEN_TOGETHER: Final = 500
"""Interactions of one transaction: an import that is interrupted loses no more."""

SQLITE_HEADER: Final = b"SQLite format 3\0"

MILLISECONDS_FROM: Final = 1e11
"""Numbers from which on a time is in milliseconds; as seconds it would be in the year 5138."""

OnProgress = Callable[[int, int], None]
"""Gets the number of interactions that are done, and of all."""


class MessageTable(Struct, frozen=True):
    """A table of messages in a SQLite file, with the names of its columns, or the fields of lines of JSON."""

    name: str = "messages"
    agent: str = "agent_name"
    """Without such a column, the agent is ``unknown``."""
    kind: str = "role"
    """Becomes the type; without such a column it is ``message``."""
    content: str = "content"
    time: str = "timestamp"
    """Seconds or milliseconds since 1970, or ISO 8601, which is UTC unless it says otherwise."""


class Imported(Struct):
    """The result of an import."""

    read: int = 0
    kept: int = 0
    known: int = 0
    """Interactions that were there already."""
    no_room: int = 0
    """Interactions left out because no more are kept (``interactions.keep``); the oldest ones."""
    unusable: int = 0
    """Rows that are no interaction."""
    reasons: list[str] = field(default_factory=list)
    """The first reasons for it, each with its place."""


class _Line(msgspec.Struct, omit_defaults=True):
    """An interaction as it is exported."""

    agent_name: str
    interaction_type: str
    content: str
    time: float
    owner: str = ""


REASONS: Final = 5
"""Reasons that are reported: more of them say the same."""


def export_lines(store: InteractionStore, scope: InteractionScope) -> Iterator[bytes]:
    """Yield interactions as lines of JSON, in the order of their arrival."""
    latest = 0
    while batch := store.after(latest, WRITTEN_TOGETHER):
        latest = batch[-1].id
        for one in batch:
            if scope.agent_name in (None, one.agent_name) and scope.interaction_type in (
                None,
                one.interaction_type,
            ):
                line = _Line(one.agent_name, one.interaction_type, one.content, one.time, one.owner)
                yield msgspec.json.encode(line) + b"\n"


def export_file(store: InteractionStore, scope: InteractionScope, path: Path) -> int:
    """Write interactions to a file and return how many; the former file stays until all are written."""
    count = 0

    def counted() -> Iterator[bytes]:
        nonlocal count
        for count, line in enumerate(export_lines(store, scope), 1):  # noqa: B007 - the last one is returned
            yield line

    write_private(path, counted())
    return count


def import_file(
    memory: InteractionMemory,
    path: Path,
    table: MessageTable | None = None,
    on_progress: OnProgress | None = None,
) -> Imported:
    """Import lines of JSON, such as an exported file, or the table of a SQLite file. Nothing is embedded.

    Raises `DataFileError` if the file cannot be read, or it has no such table, and `StoreError` if the store
    failed; the interactions written until then are kept.
    """
    done = Imported()
    try:
        with path.open("rb") as file:
            is_table = file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
            written = os.fstat(file.fileno()).st_mtime
        columns = table or MessageTable()
        rows = _of_table(path, columns, done) if is_table else _of_lines(path, columns, written, done)
        room = max(memory.room(), 0)
        # A time in the future, as by another time zone, becomes the same one each time the file is read.
        dated = (replace(one, time=min(one.time, written)) for one in rows)
        fresh = nlargest(room + 1, _unknown(memory, dated, done), key=lambda one: one.time)
    except (OSError, sqlite3.Error) as error:
        raise DataFileError(path, None, f"it cannot be read: {error}") from None
    chosen = sorted(fresh[:room], key=lambda one: one.time)
    done.no_room = done.read - done.unusable - done.known - len(chosen)
    report = on_progress or (lambda _done, _total: None)
    for start in range(0, len(chosen), WRITTEN_TOGETHER):
        done.kept += len(memory.keep(chosen[start : start + WRITTEN_TOGETHER]))
        report(done.kept, len(chosen))
    return done


def _unknown(memory: InteractionMemory, rows: Iterator[Interaction], done: Imported) -> Iterator[Interaction]:
    """Yield the interactions, as they are kept, that are not there yet; equal ones once."""
    seen: set[Interaction] = set()
    while batch := [memory.presentable(one) for one in islice(rows, WRITTEN_TOGETHER)]:
        there = memory.known(batch)
        for one in batch:
            if one in there or one in seen or not one.content:
                done.known += 1
            else:
                seen.add(one)
                yield one


def _of_lines(path: Path, columns: MessageTable, written: float, done: Imported) -> Iterator[Interaction]:
    """Yield the interactions of lines of JSON: those of an export, or the messages of another program.

    A message without a time has that of the file, which is the same each time the file is read.
    """
    with path.open("rb") as file:
        # PowerShell writes UTF-16, which its byte order mark tells, and others a mark before UTF-8.
        is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding = "utf-16" if is_utf16 else "utf-8-sig"
    with path.open(encoding=encoding, errors="replace", newline="\n") as lines:
        for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE), ""), 1):
            if len(line) == LONGEST_LINE:
                raise DataFileError(path, number, f"the line has no end within {LONGEST_LINE:,} characters")
            if not line.strip():
                continue
            if not done.read and line.lstrip().startswith("["):
                wanted = "write a line for each message instead, as `jq -c '.[]'` does"
                raise DataFileError(path, number, f"it is one array of JSON; {wanted}")
            done.read += 1
            try:
                found = msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.MsgspecError, ValueError, RecursionError):
                _unusable(done, f"line {number}: it is no object of JSON")
                continue
            text, kind = found.get(columns.content), found.get("interaction_type", found.get(columns.kind))
            time = found.get("time", found.get(columns.time, written))
            if (one := _interaction(found.get(columns.agent), kind, text, time)) is None:
                what = "its time" if _moment(time) is None else f"its text, {columns.content!r},"
                _unusable(done, f"line {number}: {what} cannot be read")
                continue
            yield replace(one, owner=str(found.get("owner") or ""))


def _interaction(agent: Any, kind: Any, text: Any, time: Any) -> Interaction | None:
    """Return the interaction of a line or row; None if its text or time cannot be read."""
    moment = _moment(time)
    if isinstance(text, list):
        # The parts of a message, as models are sent them.
        parts = (one.get("text") for one in text if isinstance(one, dict))
        text = "\n".join(part for part in parts if isinstance(part, str))
    if moment is None or not isinstance(text, str) or not text.strip():
        return None
    return Interaction(str(agent or ""), str(kind or MESSAGE), text, moment)


def _of_table(path: Path, table: MessageTable, done: Imported) -> Iterator[Interaction]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            columns = _columns(connection, table.name)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_CORRUPT:
                raise
            # Of a file that was cut off, SQLite reads what there is only so. Nothing is written.
            connection.execute("PRAGMA writable_schema = ON")
            columns = _columns(connection, table.name)
        if not columns:
            tables = connection.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")
            told = ", ".join(sorted(str(name) for (name,) in tables)) or "none"
            raise DataFileError(path, None, f"it has no table {table.name!r}; it has {told}")
        if missing := {table.content, table.time} - columns:
            told, column = ", ".join(sorted(columns)), min(missing)
            use = "text" if column == table.content else "time"
            raise DataFileError(
                path,
                None,
                f"table {table.name!r} has no column {column!r} for the {use}: "
                f"name the one that has it, of {told}",
            )
        wanted = [
            _quoted(column) if column in columns else "NULL"
            for column in (table.agent, table.kind, table.content, table.time)
        ]
        query = f"SELECT {', '.join(wanted)} FROM {_quoted(table.name)}"
        rows, number = connection.execute(query), 0
        while True:
            number += 1
            try:
                if (row := rows.fetchone()) is None:
                    return
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_CORRUPT or not done.read:
                    raise
                done.read += 1
                _unusable(done, f"row {number} and those after it: {error}")
                return
            done.read += 1
            agent, kind, content, time = row
            if (one := _interaction(agent, kind, content, time)) is None:
                what = "its time" if _moment(time) is None else "its text"
                _unusable(done, f"row {number}: {what} cannot be read")
                continue
            yield one


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({_quoted(table)})")}


def _unusable(done: Imported, reason: str) -> None:
    done.unusable += 1
    if len(done.reasons) < REASONS:
        done.reasons.append(reason)


def _moment(value: Any) -> float | None:
    """Return a time of another program in seconds since 1970; None if it is none."""
    try:
        number = float(value)
    except (TypeError, OverflowError):
        return None
    except ValueError:
        try:
            moment = datetime.fromisoformat(str(value).strip())
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= number < MILLISECONDS_FROM**2:
        return None
    return number / 1000 if number >= MILLISECONDS_FROM else number


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Interactions(InteractionMemory, Closing):
    """A memory of interactions with a store and a model of its own.

    Blocking and thread-safe. Close it, or use it as a context manager.
    """

    def __init__(self, store: Path | str = IN_MEMORY, config: Config | None = None) -> None:
        """Open a memory.

        Args:
            store: A file that keeps it, such as a proxy's; by default nothing is kept after closing.
            config: Bounds of the interactions kept, and the embedding model; by default as in the proxy.
        """
        config = config or Config()
        self._opened = open_store(IN_MEMORY if store == IN_MEMORY else Path(store))
        self._lazy = LazyModel(partial(open_model, config))
        super().__init__(
            self._lazy, self._opened.interactions, config, redact=Redactor(all_secrets_of(config))
        )

    def record(
        self, agent_name: str, interaction_type: str, content: str, when: float | None = None
    ) -> Interaction:
        """Keep and embed an interaction; return it as it is kept.

        Args:
            agent_name: Name of the agent.
            interaction_type: Such as ``search``, ``call`` or ``message``.
            content: The text of the interaction.
            when: Seconds since 1970; by default now.

        Raises:
            ValueError: it has no type or no text, or its time is before 1970.
            StoreError: it was not kept.
            ModelError: it was kept, and has no embedding.
        """
        moment = time_of_day() if when is None else when
        (kept,) = self.add([Interaction(agent_name, interaction_type, content, moment)])
        self.embed([kept])
        return kept

    def backfill(
        self, batch_size: int = BATCH, on_progress: Callable[[int, int], None] | None = None
    ) -> Backfilled:
        """Embed the interactions without an embedding, such as those that `add` or `import_from` kept.

        Args:
            batch_size: Interactions that are embedded and stored together, at least 1.
            on_progress: Gets the number of interactions that were tried, and of all.

        Raises:
            ValueError: the batch size is below 1.
            ModelError: there is no model.
            StoreError: the store failed; the embeddings made until then are kept.
        """
        check_bounds("batch_size", batch_size, 1)
        return backfill(self, batch_size, on_progress)

    def export(
        self, path: Path | str, agent_name: str | None = None, interaction_type: str | None = None
    ) -> int:
        """Write interactions to a file, a line of JSON each, without embeddings; return how many.

        Raises `OSError` if it cannot be written; a former file is still there.
        """
        scope = scope_of(agent_name, interaction_type)
        return export_file(self._opened.interactions, scope, Path(path))

    def import_from(
        self,
        path: Path | str,
        table: MessageTable | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Imported:
        """Import a file that `export` wrote, or a table of messages in a SQLite file, without embedding them.

        Interactions that are there already are not imported again. Raises `DataFileError` if the file cannot
        be read, or it has no such table, and `StoreError` if the store failed; the interactions written until
        then are kept.
        """
        return import_file(self, Path(path), table, on_progress)

    def close(self) -> None:
        self._lazy.close()
        self._opened.close()
