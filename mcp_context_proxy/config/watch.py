"""Notices that something else stands at the path of a configuration file.

The folders on the way to the file are watched, not the file: editors replace it, and a mounted
configuration changes by a link being turned to another folder. Whatever happens there, and at least once a
second, the file itself is looked at; so nothing depends on what a file system reports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import watchfiles

from mcp_context_proxy.threads import cancellation_told, in_thread, until_spare

logger = logging.getLogger(__name__)

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
    async with cancellation_told() as stop:
        await _Watcher(file, on_change, stop).run()


class _Watcher:
    def __init__(self, file: Path, on_change: Callable[[], None], stop: anyio.Event) -> None:
        self._file, self._on_change, self._stop = file, on_change, stop
        self._seen: Mark | bool = False
        """False before the first look, which tells of what changed since the file was read."""

    async def run(self) -> None:
        while True:
            await self._look()
            folders = await in_thread(_folders, self._file)
            await until_spare()
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
