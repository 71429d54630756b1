"""Opening the store never fails: a damaged file is set aside, an unusable one replaced by memory."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import platformdirs

from mcp_context_proxy.closing import Closing
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.interactions import SqliteInteractions
from mcp_context_proxy.store.learned import SqliteLearned
from mcp_context_proxy.store.listings import SqliteListings
from mcp_context_proxy.store.protocol import (
    InteractionStore,
    LearnedStore,
    ListingStore,
    RequestStore,
    StatisticsStore,
    ToolSessionStore,
    VectorStore,
)
from mcp_context_proxy.store.requests import SqliteRequests
from mcp_context_proxy.store.sqlite import Database, StoreDamagedError, open_database
from mcp_context_proxy.store.statistics import SqliteStatistics
from mcp_context_proxy.store.tool_sessions import SqliteToolSessions
from mcp_context_proxy.store.vectors import SqliteVectors

logger = logging.getLogger(__name__)

IN_MEMORY: Final = "memory"
"""The path that keeps nothing."""
ATTEMPTS = 3
"""Openings before memory is used: the first, one after a damaged file was set aside, and one more for when
another process did that at the same moment."""


@dataclass(frozen=True, slots=True)
class Store(Closing):
    """An open store: its tables, and where it is."""

    vectors: VectorStore
    requests: RequestStore
    listings: ListingStore
    learned: LearnedStore
    statistics: StatisticsStore
    tool_sessions: ToolSessionStore
    interactions: InteractionStore
    path: Path | None
    """None when nothing is kept."""
    warning: str | None
    """What a person should know about this store; None when all is well. Already logged."""
    database: Database

    def close(self) -> None:
        """Close the file."""
        self.database.close()


def default_path() -> Path:
    """The store in the user's data folder."""
    return Path(platformdirs.user_data_dir("mcp-context-proxy", appauthor=False)) / "store.sqlite3"


def open_store(path: Path | Literal["memory"] | None = None) -> Store:
    """Open the store, at the default path if none is given. Blocking; never fails.

    A damaged file is moved aside and an empty one begun. When there can be no file, the store is in memory.
    """
    if path == IN_MEMORY:
        return _opened(None, None)
    file = Path(path) if path is not None else default_path()
    try:
        return _open_file(file)
    except (StoreError, OSError) as e:
        reason = e.reason if isinstance(e, StoreError) else e.strerror or str(e)
        warning = f"store {file} cannot be used: {reason}. Nothing is kept after this run"
        logger.warning("%s.", warning)
        return _opened(None, warning)


def _open_file(path: Path) -> Store:
    warning = None
    for attempt in range(1, ATTEMPTS + 1):
        identity = _create(path)
        try:
            return _opened(path, warning)
        except StoreDamagedError as e:
            if attempt == ATTEMPTS:
                raise
            warning = _set_aside(path, identity, e.reason) or warning
    raise AssertionError("unreachable")


def _opened(path: Path | None, warning: str | None) -> Store:
    database = open_database(path)
    return Store(
        SqliteVectors(database),
        SqliteRequests(database),
        SqliteListings(database),
        SqliteLearned(database),
        SqliteStatistics(database),
        SqliteToolSessions(database),
        SqliteInteractions(database),
        path,
        warning,
        database,
    )


def _create(path: Path) -> int:
    """Make sure there is a file that only its owner may read; return its identity."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Only a new file may be opened here: closing it again would drop the locks of another connection of ours.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be read and written", str(path))
    return path.stat().st_ino


def _set_aside(path: Path, identity: int, reason: str) -> str | None:
    """Rename the damaged file and what belongs to it, unless another process has done so already."""
    if not path.exists() or path.stat().st_ino != identity:
        return None
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.stem}.corrupt-{moment}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(aside.with_name(aside.name + suffix))
    warning = f"store {path} was damaged ({reason}); it was moved to {aside.name} and an empty one begun"
    logger.warning("%s.", warning)
    return warning
