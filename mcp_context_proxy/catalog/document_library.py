"""The library: the documents that are served now, and their embeddings, through every reload.

What it holds is swapped whole; a reader that takes a value keeps a consistent one. Embeddings stay while
their document does, and go when it goes or changes.

Watching the folders of a library: a file that changes is served anew, without a restart.

Exactly the folders that were read are watched, one by one and not recursively: no link and no hidden tree is
entered. A configured folder that is not there is awaited in the nearest folder above it. Every start of the
watcher is followed by a reload, so that nothing falls between reading and watching.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import anyio
import watchfiles

from mcp_context_proxy.catalog.documents import DocumentFolder, Loaded, ParsedFiles, load_documents
from mcp_context_proxy.catalog.files import SUFFIXES, Finding
from mcp_context_proxy.config import Limits
from mcp_context_proxy.items import Document, IndexedChunk, Kind, Source
from mcp_context_proxy.system.threads import cancellation_event, in_thread, wait_for_spare_threads

logger = logging.getLogger(__name__)

FINDINGS_LOGGED: Final = 20
"""At one reload; the others are kept, and counted in the log."""

_KEYS: Final[Mapping[Kind, str]] = {Kind.RULE: "rules", Kind.REFERENCE: "references"}


@dataclass(frozen=True, slots=True)
class DocumentChanges:
    """What a reload changed, by URI, sorted; false when nothing did."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class DocumentLibrary:
    """Owns the documents of the configured folders and their embeddings. Empty until the first reload."""

    def __init__(self, folders: Sequence[DocumentFolder], limits: Limits) -> None:
        self.folders = tuple(folders)
        self._limits = limits
        self._reloading = threading.Lock()
        self._loaded, self._parsed = Loaded((), ()), ParsedFiles()
        self._embeddings: dict[Kind, dict[str, list[IndexedChunk]]] = {kind: {} for kind in _KEYS}
        self._sources = {kind: Source(key, (), self._embeddings[kind]) for kind, key in _KEYS.items()}

    @property
    def sources(self) -> tuple[Source, ...]:
        """One for the rules, one for the references; the same objects until their documents change."""
        return tuple(self._sources.values())

    @property
    def documents(self) -> tuple[Document, ...]:
        """Rules before references; within a kind by priority, highest first, then by name."""
        return self._loaded.documents

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a person should mend in their files."""
        return self._loaded.findings

    @property
    def read_folders(self) -> tuple[Path, ...]:
        """Every folder that the last reload read."""
        return self._loaded.folders

    def configure(self, folders: Sequence[DocumentFolder], limits: Limits) -> None:
        """Read other folders, or within other bounds, from the next reload on."""
        with self._reloading:
            self.folders, self._limits = tuple(folders), limits

    def reload(self) -> DocumentChanges:
        """Read all folders again and publish what they hold. Blocks: call it in a worker thread."""
        with self._reloading:
            loaded = load_documents(self.folders, self._limits, self._parsed)
            changes = _changes(self._loaded.documents, loaded.documents)
            _log_new(self._loaded.findings, loaded.findings)
            if changes:
                self._sources = {kind: self._source(kind, loaded.documents) for kind in _KEYS}
            self._loaded = loaded
            return changes

    def _source(self, kind: Kind, documents: Iterable[Document]) -> Source:
        source = self._sources[kind]
        items = tuple(document for document in documents if document.kind is kind)
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


def _log_new(before: Iterable[Finding], after: Iterable[Finding]) -> None:
    known = set(before)
    new = [finding for finding in after if finding not in known]
    for finding in new[:FINDINGS_LOGGED]:
        logger.warning("%s", finding)
    if len(new) > FINDINGS_LOGGED:
        logger.warning("and %d more findings about documents", len(new) - FINDINGS_LOGGED)


DEBOUNCE_MS: Final = 400
"""For changes that come together: an editor's save, a checkout of another branch."""

TIMEOUT_MS: Final = 1_000
"""Between two looks at whether the configured folders are still the same ones; costs a `stat` of each."""

POLL_MS: Final = 2_000
"""Between two readings of folders where the system cannot watch them."""

REST: Final = 3.0
"""Times that reading rests for as long as it took: a file that grows all the time must not have thousands of
others read all the time."""

RETRY_SECONDS: Final = 1.0
"""Before watching is tried again when it cannot start at all."""

OnChange: TypeAlias = Callable[[DocumentChanges], Awaitable[None]]
Identity: TypeAlias = tuple[tuple[int, int] | None, ...]


class WatchPaths(Protocol):
    """`watchfiles.awatch`, as far as it is used here."""

    def __call__(
        self,
        *paths: str,
        watch_filter: Callable[[watchfiles.Change, str], bool],
        debounce: int,
        stop_event: anyio.Event,
        rust_timeout: int,
        yield_on_timeout: bool,
        force_polling: bool | None,
        poll_delay_ms: int,
        recursive: bool,
        ignore_permission_denied: bool,
    ) -> AsyncGenerator[set[tuple[watchfiles.Change, str]], None]:
        """Yield what has changed; an empty set after the timeout."""
        ...


async def watch(
    library: DocumentLibrary, on_change: OnChange, *, watch_paths: WatchPaths = watchfiles.awatch
) -> None:
    """Reload the library whenever its files change, and tell what really did. Runs until it is cancelled."""
    if not library.folders:
        return
    async with cancellation_event() as stop:
        await _FolderWatcher(library, on_change, partial(watch_paths, stop_event=stop)).run()


class _FolderWatcher:
    def __init__(
        self,
        library: DocumentLibrary,
        on_change: OnChange,
        watch_paths: Callable[..., AsyncGenerator[set[tuple[watchfiles.Change, str]], None]],
    ) -> None:
        self._library, self._on_change, self._watch_paths = library, on_change, watch_paths
        self._polling: bool | None = None
        """None leaves it to the system and to ``WATCHFILES_FORCE_POLLING``."""

    async def run(self) -> None:
        while True:
            targets = await in_thread(_targets, self._library)
            await wait_for_spare_threads()
            try:
                await self._until_targets_change(targets)
            except FileNotFoundError:  # gone between the look and the start of the watcher
                await anyio.sleep(RETRY_SECONDS)
            except Exception as error:  # boundary: the watcher, whose failures have no common class
                await self._fall_back(error)

    async def _until_targets_change(self, targets: frozenset[str]) -> None:
        roots = await in_thread(_identity, self._library)
        first = True
        async with aclosing(self._events(targets)) as events:
            async for changes in events:
                present = await in_thread(_identity, self._library)
                if not (first or changes or present != roots):
                    continue
                first, began = False, anyio.current_time()
                await self._reload()
                await anyio.sleep(REST * (anyio.current_time() - began))
                renewed = await in_thread(_targets, self._library)
                # A folder that is itself named has been moved or made anew: the old watch is blind.
                if renewed != targets or present != roots or any(path in targets for _, path in changes):
                    return

    def _events(self, targets: frozenset[str]) -> AsyncGenerator[set[tuple[watchfiles.Change, str]], None]:
        return self._watch_paths(
            *sorted(targets),
            watch_filter=lambda _, path: _may_matter(path, targets),
            debounce=DEBOUNCE_MS,
            rust_timeout=TIMEOUT_MS,
            yield_on_timeout=True,
            force_polling=self._polling,
            poll_delay_ms=POLL_MS,
            recursive=False,
            ignore_permission_denied=True,
        )

    async def _reload(self) -> None:
        try:
            changes = await in_thread(self._library.reload)
            if changes:
                await self._on_change(changes)
        except Exception:  # boundary: one failed reload or callback; the next change is a new try
            logger.exception("rules and references could not be reloaded")

    async def _fall_back(self, error: Exception) -> None:
        if _is_undecodable(error):
            # Somebody else uses a file whose name is not UTF-8; it is left out, but others may have changed.
            await self._reload()
            await anyio.sleep(RETRY_SECONDS)
            return
        if not self._polling:
            logger.warning("folders of documents cannot be watched (%s); they are polled instead", error)
            self._polling = True
            return
        logger.debug("folders of documents cannot be polled (%s); tried again", error)
        await self._reload()
        await anyio.sleep(RETRY_SECONDS)


def _is_undecodable(error: BaseException) -> bool:
    """Whether the watcher has met a name that it cannot tell."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_undecodable, error.exceptions))
    return "decode path" in str(error)


def _targets(library: DocumentLibrary) -> frozenset[str]:
    """The folders to watch: those that were read, and for each root that is no folder the nearest above."""
    return frozenset(map(str, (*filter(Path.is_dir, library.read_folders), *_awaited(library))))


def _awaited(library: DocumentLibrary) -> Iterator[Path]:
    for folder in library.folders:
        if not folder.path.is_dir():
            yield next((above for above in folder.path.absolute().parents if above.is_dir()), Path.cwd())


def _identity(library: DocumentLibrary) -> Identity:
    """Which folders stand at the configured paths now."""
    return tuple(_device_and_inode(folder.path) for folder in library.folders)


def _device_and_inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _may_matter(path: str, targets: frozenset[str]) -> bool:
    """Markdown, a watched folder itself, or another folder; what is neither cannot change a document."""
    name = os.path.basename(path)  # noqa: PTH119  # called for each event: no `Path` needed
    if path in targets:
        return True
    return not name.startswith(".") and (name.lower().endswith(SUFFIXES) or os.path.isdir(path))  # noqa: PTH112
