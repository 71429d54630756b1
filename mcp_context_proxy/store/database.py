"""The database of a store: what reads does not wait for what writes, and what fails is told once in a while.

A part that writes keeps what is refused, within bounds, and writes it when that is over.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.line import Line
from mcp_context_proxy.store.sqlite import immediate
from mcp_context_proxy.store.trouble import Trouble


class Database:
    """An open store of the current schema. Blocking and thread-safe."""

    def __init__(self, writing: Line, reading: Line) -> None:
        """Use two connections; one of a database in memory, which has only that."""
        self._writing, self._reading = writing, reading
        self._trouble = Trouble()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one query."""
        with self._told(), self._reading.used() as connection:
            return connection.execute(statement, parameters).fetchall()

    def version(self) -> int:
        """Another number once another process has written."""
        with self._told(), self._writing.used() as connection:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write; all or nothing. Nothing else may use the database inside the block."""
        with self._told(), self._writing.used() as connection, immediate(connection):
            yield connection
        self._trouble.over()

    def close(self) -> None:
        """Close the file; harmless when done twice."""
        self._reading.close()
        self._writing.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._trouble.tell(error)
            raise
