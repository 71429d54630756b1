"""One connection to the store, for one thread at a time, that stands by what is at its path.

Where the file is replaced, deleted or damaged while it is open, it is opened anew. Whoever finds it held by
another process waits once; until that is over, the next ones hardly wait.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.sqlite import MEMORY, StoreDamagedError, StoreHinderedError, translated

BUSY_TIMEOUT_S: Final = 5.0
"""How long to wait for another process's transaction; ours take milliseconds."""
BUSY_AGAIN_S: Final = 0.05
"""... after that was in vain: what is served must not wait for a lock that somebody holds for minutes."""
AGAIN_SECONDS: Final = 1.0
"""Before a file that could not be opened is tried again."""
DAMAGED_AGAIN_SECONDS: Final = 60.0
"""Before a file is opened anew because it is damaged: that costs a check, which may not find the damage."""

Connect = Callable[[], sqlite3.Connection]


class Line:
    """A connection that is made when it is needed, and again when it is no good any more."""

    def __init__(self, path: Path, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        """Open nothing yet.

        Args:
            path: The file.
            connect: Opens it, or creates it; raises `StoreError` or `OSError`.
            clock: Seconds, of any kind.
        """
        self._path, self._connect, self._clock = path, connect, clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._failure: StoreError | None = None
        self._again_at = self._damaged_again_at = 0.0
        self._patient = True
        self._closed = False

    def open(self) -> None:
        """Open the file now.

        Raises:
            StoreError: it cannot be used.
        """
        with self._lock:
            self._usable()

    @contextlib.contextmanager
    def used(self) -> Iterator[sqlite3.Connection]:
        """Use the connection; nobody else does meanwhile.

        Raises:
            StoreError: it cannot be used.
        """
        if not self._lock.acquire(timeout=-1 if self._patient else BUSY_AGAIN_S):
            raise StoreHinderedError(self._path, "another thread waits for it")
        try:
            with translated(self._path):
                yield self._usable()
        except StoreHinderedError:
            self._be_patient(False)
            raise
        except StoreDamagedError:
            self._begin_anew_if_damaged()
            raise
        else:
            self._be_patient(True)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the file for good; harmless when done twice."""
        with self._lock:
            self._closed = True
            self._drop()

    def _usable(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(self._path, "it is closed")
        if self._connection is not None and self._identity != _identity(self._path):
            self._drop()
        if self._connection is None:
            self._connection = self._opened()
            self._identity = _identity(self._path)
            self._patient = False
            self._be_patient(True)
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        if self._failure is not None and self._clock() < self._again_at:
            raise self._failure.with_traceback(None)
        try:
            connection = self._connect()
        except (StoreError, OSError) as error:
            found = error if isinstance(error, StoreError) else StoreError(self._path, _words(error))
            self._failure, self._again_at = found, self._clock() + AGAIN_SECONDS
            raise found from error
        self._failure = None
        return connection

    def _be_patient(self, patient: bool) -> None:
        if self._connection is not None and patient is not self._patient:
            self._patient = patient
            seconds = BUSY_TIMEOUT_S if patient else BUSY_AGAIN_S
            self._connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _begin_anew_if_damaged(self) -> None:
        if self._path != MEMORY and self._clock() >= self._damaged_again_at:
            self._damaged_again_at = self._clock() + DAMAGED_AGAIN_SECONDS
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # SQLite itself sees that the file was moved, and leaves the log of what is there now alone.
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _words(error: OSError) -> str:
    return error.strerror or str(error)
