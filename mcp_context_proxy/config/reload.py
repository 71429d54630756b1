"""Follows the configuration file while the proxy runs: a good one is applied, a bad one changes nothing.

Notices that something else stands at the path of a configuration file.

The folders on the way to the file are watched, not the file: editors replace it, and a mounted
configuration changes by a link being turned to another folder. Whatever happens there, and at least once a
second, the file itself is looked at; so nothing depends on what a file system reports.

What of a changed configuration a running proxy can take over, and at what price.

A server is restarted only for what its connection depends on. A key is taken to be such a one unless it is
listed here, and a table to need a restart of the proxy: what is new is never half applied.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import msgspec
import watchfiles
from pydantic import BaseModel

from mcp_context_proxy.config.secrets import NOTICE
from mcp_context_proxy.config.settings import Config, ServerConfig
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.system.threads import cancellation_event, in_thread, wait_for_spare_threads

LOOK_MS: Final = 1_000
"""Between two looks where no change is reported; costs one `stat`."""

DEBOUNCE_MS: Final = 100
"""Reports that come together are one."""

SETTLE_SECONDS: Final = 0.1
"""A file that is being written changes again within this time: it is read when it no longer does."""

SETTLE_LOOKS: Final = 20
"""After so many the file is read as it is; something writes it all the time."""

MISSING_LOOKS: Final = 10
"""A file that is gone is usually there again at once: some editors delete before they write."""

MAX_LINKS: Final = 40
"""Of a chain of symbolic links; the system's own bound."""

Mark: TypeAlias = tuple[str, int, int, int, int] | None
"""What stands at the path: where it leads, device, inode, time and size; None when nothing does."""


async def watch_file(file: Path, on_change: Callable[[], None]) -> None:
    """Call `on_change` once at the beginning and whenever the file may have changed. Runs until cancelled."""
    async with cancellation_event() as stop:
        await _FileWatcher(file, on_change, stop).run()


class _FileWatcher:
    def __init__(self, file: Path, on_change: Callable[[], None], stop: anyio.Event) -> None:
        self._file, self._on_change, self._stop = file, on_change, stop
        self._seen: Mark | bool = False
        """False before the first look, which tells of what changed since the file was read."""

    async def run(self) -> None:
        while True:
            await self._look()
            folders = await in_thread(_folders, self._file)
            await wait_for_spare_threads()
            try:
                await self._until_folders_change(folders)
            except Exception as error:  # boundary: the watcher, whose failures have no common class
                logger.debug("%s cannot be watched (%s); it is looked at instead", self._file, error)
                await anyio.sleep(LOOK_MS / 1000)

    async def _until_folders_change(self, folders: frozenset[str]) -> None:
        watcher = watchfiles.awatch(
            *sorted(folders),
            watch_filter=None,
            debounce=DEBOUNCE_MS,
            rust_timeout=LOOK_MS,
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=False,
            ignore_permission_denied=True,
        )
        async with aclosing(watcher) as reports:
            async for _ in reports:
                await self._look()
                if await in_thread(_folders, self._file) != folders:
                    return

    async def _look(self) -> None:
        mark = await in_thread(_mark, self._file)
        if mark == self._seen:
            return
        self._seen = await self._settled(mark)
        self._on_change()

    async def _settled(self, mark: Mark) -> Mark:
        missing = 0
        for _ in range(SETTLE_LOOKS):
            await anyio.sleep(SETTLE_SECONDS)
            before, mark = mark, await in_thread(_mark, self._file)
            missing = missing + 1 if mark is None else 0
            if mark == before and (mark is not None or missing >= MISSING_LOOKS):
                break
        return mark


def _mark(file: Path) -> Mark:
    try:
        status = file.stat()
        return str(file.resolve()), status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
    except (OSError, RuntimeError):
        return None


def _folders(file: Path) -> frozenset[str]:
    """The folders in which a change can make the path lead elsewhere; those that are there."""
    found = []
    for _ in range(MAX_LINKS):
        found.append(file.parent)
        try:
            file = file.parent / file.readlink()
        except OSError:
            break
    return frozenset(str(folder) for folder in found if folder.is_dir())


_APPLIED_TO_RUNNING: Final = frozenset(
    {
        "include",
        "tools",
        "tags",
        "category",
        "connect_timeout",
        "call_timeout",
        "start",
        "idle_timeout",
        "spotlight",
        "enabled",
        "secrets",
    }
)
"""Keys of a server that say nothing of its connection. What is secret shows in the keys it was put into."""

_APPLIED: Final = frozenset({"expose", "search", "context", "documents", "servers", "limits", "path"})
"""Tables that a running proxy takes over."""

_READ_ONCE: Final = frozenset(
    {
        "context.keep_requests",
        "limits.embedding_seconds",
        "limits.embedding_query_seconds",
        "limits.rerank_seconds",
        "expose.page_size",
        "limits.http_body_bytes",
        "limits.http_header_seconds",
        "limits.http_body_seconds",
        "limits.http_idle_seconds",
        "limits.http_connections",
        "limits.sessions",
        "limits.session_idle_seconds",
        "limits.requests_kept",
        "limits.requests_age_seconds",
        "limits.statistics_hours_seconds",
        "limits.statistics_days_seconds",
        "limits.statistics_rows",
        "limits.searches_kept",
        "limits.searches_age_seconds",
        "limits.in_flight",
        "limits.starts_at_once",
        "limits.ask_seconds",
        "limits.parked_calls",
    }
)
"""Keys of those tables with which parts are built that live as long as the proxy."""


def connection_key(server: ServerConfig) -> str:
    """A digest of all that a server's connection depends on; the same for the same program and place."""
    facts = server.model_dump(mode="json", exclude=set(_APPLIED_TO_RUNNING))
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()


def same_connection(one: ServerConfig, other: ServerConfig) -> bool:
    """Whether a running server need not be started again to follow the other configuration."""
    return connection_key(one) == connection_key(other)


def needs_restart(started: Config, now: Config) -> tuple[str, ...]:
    """The dotted keys that differ and are read only when the proxy starts."""
    return tuple(_differing(started, now))


def _differing(started: Config, now: Config) -> Iterator[str]:
    for table in Config.model_fields:
        old, new = getattr(started, table), getattr(now, table)
        for key in type(new).model_fields if old != new and isinstance(new, BaseModel) else ():
            dotted = f"{table}.{key}"
            if getattr(old, key) != getattr(new, key) and (table not in _APPLIED or dotted in _READ_ONCE):
                yield dotted


logger = logging.getLogger(__name__)

SECOND_LOOK_SECONDS: Final = 1.0
"""After which a file is read again that names a server no more: one that is only half written may look so."""

Load = Callable[[], Config]
"""Reads the configuration again, from where it was read first.

Raises:
    ConfigError: it cannot be used.
"""

Apply = Callable[[Config], Awaitable[None]]
"""Makes the running proxy follow a configuration."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How what runs differs from what is written."""

    problems: tuple[str, ...] = ()
    """Why the file as it is now is not used: each with file, line and key. Empty when it is."""
    needs_restart: tuple[str, ...] = ()
    """Dotted keys that were changed since the start and have no effect before the next one."""


class Reloader:
    """Loads the configuration when its file changes, or when it is asked to."""

    def __init__(self, started: Config, load: Load) -> None:
        """Prepare to follow.

        Args:
            started: What the proxy was started with.
            load: Reads the file again; called in a thread.
        """
        self._started, self._current, self._load = started, started, load
        self._asked = anyio.Event()
        self.standing = Standing()

    def ask(self) -> None:
        """Have the file read soon, whether or not it looks changed."""
        self._asked.set()

    async def run(self, apply: Apply) -> None:
        """Follow the file until cancelled: `apply` takes each configuration that differs from the last."""
        async with anyio.create_task_group() as group:
            if self._started.path is not None:
                group.start_soon(watch_file, self._started.path, self.ask)
            while True:
                await self._asked.wait()
                self._asked = anyio.Event()
                try:
                    await self._reload(apply)
                except Exception:
                    # boundary: a fault in one reload; the next edit is a new try
                    logger.exception("the changed configuration could not be applied")

    async def _reload(self, apply: Apply) -> None:
        try:
            config = await self._loaded()
        except ConfigError as error:
            self._refuse(error)
            return
        if self.standing.problems:
            logger.log(NOTICE, "%s can be used again", config.path)
            self.standing = replace(self.standing, problems=())
        if config == self._current:
            return
        await apply(config)
        self._current = config
        self._tell_needs_restart(config)

    async def _loaded(self) -> Config:
        config = await in_thread(self._load)
        if self._current.servers.keys() - config.servers.keys():
            await anyio.sleep(SECOND_LOOK_SECONDS)
            config = await in_thread(self._load)
        return config

    def _refuse(self, error: ConfigError) -> None:
        problems = tuple(map(str, error.problems))
        if problems == self.standing.problems:
            return
        self.standing = replace(self.standing, problems=problems)
        logger.error("the changed configuration is not used, what runs stays as it is. %s", error)

    def _tell_needs_restart(self, config: Config) -> None:
        keys = needs_restart(self._started, config)
        if keys and keys != self.standing.needs_restart:
            logger.warning("%s: needs a restart: %s", config.path, ", ".join(keys))
        self.standing = replace(self.standing, needs_restart=keys)
