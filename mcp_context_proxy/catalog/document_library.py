"""The document library: the rules and references that are served, their embeddings, and the folder watcher.

The library replaces its documents whole; a reader that takes a value keeps a consistent one. Embeddings stay
while their document does, and are dropped when it goes or changes.

The watcher reloads the library when a file changes. It watches exactly the folders that were read, one by one
and not recursively, so that it enters no link and no hidden tree. For a configured folder that does not exist
it watches the nearest folder above it. Every start of the watcher is followed by a reload, so that no change
is lost between reading and watching.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
from msgspec import Struct

from mcp_context_proxy.catalog.documents import Loaded, load_documents
from mcp_context_proxy.catalog.files import SUFFIXES
from mcp_context_proxy.config import DocumentsConfig, Limits
from mcp_context_proxy.items import Document, Kind, Source
from mcp_context_proxy.system.later import watchfiles
from mcp_context_proxy.system.threads import cancellation_event, in_thread, wait_for_spare_threads

logger = logging.getLogger(__name__)

FINDINGS_LOGGED: Final = 20
"""Findings logged at one reload; the others are kept, and counted in the log."""

DEBOUNCE_MS: Final = 400
"""For changes that come together: an editor's save, a checkout of another branch."""

TIMEOUT_MS: Final = 1_000
"""Interval of checks whether the configured folders are still the same ones; costs a `stat` of each."""

POLL_MS: Final = 2_000
"""Interval of reading folders where the system cannot watch them."""

PAUSE_FACTOR: Final = 3.0
"""Pause after a reload, times its duration: a file that grows all the time must not have thousands of others
read all the time."""

RETRY_SECONDS: Final = 1.0
"""Delay before watching is tried again when it cannot start at all."""

_KEYS: Final[Mapping[Kind, str]] = {Kind.RULE: "rules", Kind.REFERENCE: "references"}


class DocumentChanges(Struct, frozen=True):
    """Documents that a reload changed, by URI, sorted; false when there are none."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class DocumentLibrary:
    """Owns the documents of the configured folders and their embeddings. Empty until the first reload."""

    def __init__(self, folders: Sequence[DocumentsConfig], limits: Limits) -> None:
        self.folders = tuple(folders)
        self._limits = limits
        self._reloading = threading.Lock()
        self.loaded = Loaded((), ())
        """The documents, findings and folders of the last reload."""
        self.sources = tuple(Source(key, (), {}) for key in _KEYS.values())
        """One source for the rules, one for the references; the same objects until their documents change."""

    def configure(self, folders: Sequence[DocumentsConfig], limits: Limits) -> None:
        """Change folders and bounds, from the next reload on."""
        with self._reloading:
            self.folders, self._limits = tuple(folders), limits

    def reload(self) -> DocumentChanges:
        """Read all folders again and publish their documents. Blocks: call it in a worker thread."""
        with self._reloading:
            loaded = load_documents(self.folders, self._limits, self.loaded.parsed)
            changes = _changes(self.loaded.documents, loaded.documents)
            known = set(self.loaded.findings)
            new = [finding for finding in loaded.findings if finding not in known]
            for finding in new[:FINDINGS_LOGGED]:
                logger.warning("%s", finding)
            if len(new) > FINDINGS_LOGGED:
                logger.warning("and %d more findings about documents", len(new) - FINDINGS_LOGGED)
            if changes:
                self.sources = tuple(
                    _with_documents(source, tuple(item for item in loaded.documents if item.kind is kind))
                    for source, kind in zip(self.sources, _KEYS, strict=True)
                )
            self.loaded = loaded
            return changes


def _with_documents(source: Source, items: tuple[Document, ...]) -> Source:
    """Return the source with these documents; embeddings of the others are dropped."""
    if items == source.items:
        return source
    kept = {item.name for item in set(items).intersection(source.items)}
    for name in {item.name for item in source.items} - kept:
        source.embeddings.pop(name, None)
    return Source(source.key, items, source.embeddings)


def _changes(before: Iterable[Document], after: Iterable[Document]) -> DocumentChanges:
    old = {document.uri: document.fingerprint for document in before}
    new = {document.uri: document.fingerprint for document in after}
    return DocumentChanges(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(uri for uri in new.keys() & old.keys() if new[uri] != old[uri])),
    )


OnChange: TypeAlias = Callable[[DocumentChanges], Awaitable[None]]
WatchPaths: TypeAlias = "Callable[..., AsyncGenerator[set[tuple[watchfiles.Change, str]], None]]"
"""`watchfiles.awatch`; yields changes, and an empty set after the timeout."""


async def watch(
    library: DocumentLibrary, on_change: OnChange, *, watch_paths: WatchPaths | None = None
) -> None:
    """Reload the library whenever its files change, and report changed documents. Runs until cancelled."""
    if not library.folders:
        return
    async with cancellation_event() as stop:
        await _FolderWatcher(
            library, on_change, partial(watch_paths or watchfiles.awatch, stop_event=stop)
        ).run()


class _FolderWatcher:
    def __init__(self, library: DocumentLibrary, on_change: OnChange, watch_paths: WatchPaths) -> None:
        self._library, self._on_change, self._watch_paths = library, on_change, watch_paths
        self._polling: bool | None = None
        """None leaves it to the system and to ``WATCHFILES_FORCE_POLLING``."""

    async def run(self) -> None:
        while True:
            targets = await in_thread(_targets, self._library)
            await wait_for_spare_threads()
            try:
                await self._until_targets_change(targets)
            except FileNotFoundError:  # removed between the look and the start of the watcher
                await anyio.sleep(RETRY_SECONDS)
            except Exception as error:  # boundary: the watcher, whose failures have no common class
                await self._fall_back(error)

    async def _until_targets_change(self, targets: frozenset[str]) -> None:
        roots = await in_thread(_identities, self._library)
        first = True
        events = self._watch_paths(
            *sorted(targets),
            watch_filter=partial(_may_matter, targets),
            debounce=DEBOUNCE_MS,
            rust_timeout=TIMEOUT_MS,
            yield_on_timeout=True,
            force_polling=self._polling,
            poll_delay_ms=POLL_MS,
            recursive=False,
            ignore_permission_denied=True,
        )
        async with aclosing(events):
            async for changes in events:
                present = await in_thread(_identities, self._library)
                if not (first or changes or present != roots):
                    continue
                first, began = False, anyio.current_time()
                await self._reload()
                await anyio.sleep(PAUSE_FACTOR * (anyio.current_time() - began))
                renewed = await in_thread(_targets, self._library)
                # A watched folder was moved or created anew: the old watch sees nothing of the new one.
                if renewed != targets or present != roots or any(path in targets for _, path in changes):
                    return

    async def _reload(self) -> None:
        try:
            changes = await in_thread(self._library.reload)
            if changes:
                await self._on_change(changes)
        except Exception:  # boundary: one failed reload or callback; the next change is a new try
            logger.exception("rules and references could not be reloaded")

    async def _fall_back(self, error: Exception) -> None:
        if not self._polling and not _is_undecodable(error):
            logger.warning("folders of documents cannot be watched (%s); they are polled instead", error)
            self._polling = True
            return
        # An undecodable name is another program's file; it is left out, but others may have changed.
        if not _is_undecodable(error):
            logger.debug("folders of documents cannot be polled (%s); retrying", error)
        await self._reload()
        await anyio.sleep(RETRY_SECONDS)


def _is_undecodable(error: BaseException) -> bool:
    """Return whether the watcher has met a file name that it cannot decode."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_undecodable, error.exceptions))
    return "decode path" in str(error)


def _targets(library: DocumentLibrary) -> frozenset[str]:
    """Return the folders to watch: those that were read, or the nearest existing one above a missing one."""
    missing = (folder.path.absolute() for folder in library.folders if not folder.path.is_dir())
    nearest = (next(filter(Path.is_dir, path.parents), Path.cwd()) for path in missing)
    return frozenset(map(str, (*filter(Path.is_dir, library.loaded.folders), *nearest)))


def _identities(library: DocumentLibrary) -> list[tuple[int, int] | None]:
    """Return device and inode of the configured folders, None for one that does not exist."""
    found: list[tuple[int, int] | None] = []
    for folder in library.folders:
        try:
            status = folder.path.stat()
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return found


def _may_matter(targets: frozenset[str], _change: Any, path: str) -> bool:
    """Return whether a path is markdown, a watched folder or another folder; others change no document."""
    name = os.path.basename(path)  # noqa: PTH119  # called for each event: no `Path` needed
    if path in targets:
        return True
    return not name.startswith(".") and (name.lower().endswith(SUFFIXES) or os.path.isdir(path))  # noqa: PTH112
