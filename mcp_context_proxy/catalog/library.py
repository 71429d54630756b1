"""The library: the documents that are served now, and their embeddings, through every reload.

What it holds is swapped whole; a reader that takes a value keeps a consistent one. Embeddings stay while
their document does, and go when it goes or changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_context_proxy.catalog.documents import DocumentFolder, Loaded, ParsedFiles, load_documents
from mcp_context_proxy.catalog.finding import Finding
from mcp_context_proxy.config import Limits
from mcp_context_proxy.items import Document, IndexedChunk, Kind, Source

logger = logging.getLogger(__name__)

FINDINGS_LOGGED: Final = 20
"""At one reload; the others are kept, and counted in the log."""

_KEYS: Final[Mapping[Kind, str]] = {Kind.RULE: "rules", Kind.REFERENCE: "references"}


@dataclass(frozen=True, slots=True)
class Changes:
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

    def reload(self) -> Changes:
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


def _changes(before: Iterable[Document], after: Iterable[Document]) -> Changes:
    old = {document.uri: document.fingerprint for document in before}
    new = {document.uri: document.fingerprint for document in after}
    return Changes(
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
