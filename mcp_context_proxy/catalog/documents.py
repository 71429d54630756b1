"""Rules and references: files of the configured folders, as documents.

A file that is wrong is told as a finding and served with what is usable of it; none stops another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mcp_context_proxy.catalog.document_file import UnusableError, read_document_file
from mcp_context_proxy.catalog.finding import Finding
from mcp_context_proxy.catalog.folder import Allowance, FolderReader, MarkdownFile
from mcp_context_proxy.config import Limits
from mcp_context_proxy.items import Document, IncludeMode, Kind


@dataclass(frozen=True, slots=True)
class DocumentFolder:
    """A configured folder, or a single file, of rules or of references."""

    kind: Kind | None
    """None: what the format of each file usually is."""
    path: Path
    include: IncludeMode | None = None
    """For documents that do not say it themselves."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one reading of all folders gave."""

    documents: tuple[Document, ...]
    """Rules before references; within a kind by priority, highest first, then by name."""
    findings: tuple[Finding, ...]
    folders: tuple[Path, ...] = ()
    """Every folder that was read: where a change can be."""


Parsed: TypeAlias = tuple[list[Document], list[Finding]]


class ParsedFiles:
    """What files hold, by their content: one that is as it was is not parsed again.

    Only what the latest reading asked for is kept.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Parsed | UnusableError] = {}
        self._asked: dict[bytes, Parsed | UnusableError] = {}

    def begin(self) -> None:
        """Another reading begins."""
        self._known, self._asked = self._asked, {}

    def of(self, folder: DocumentFolder, file: MarkdownFile) -> Parsed:
        """The documents of a file, and what a person should mend in it; raises `UnusableError`."""
        key = hashlib.sha256(repr((folder.kind, folder.include, file.path)).encode() + file.data).digest()
        found = self._known.get(key)
        if found is None:
            try:
                found = read_document_file(file, folder.kind, folder.include)
            except UnusableError as error:
                found = error.with_traceback(None)
        self._asked[key] = found
        if isinstance(found, UnusableError):
            raise found
        return found


def load_documents(
    folders: Sequence[DocumentFolder], limits: Limits, parsed: ParsedFiles | None = None
) -> Loaded:
    """Read all folders. Blocks: call it in a worker thread. Whatever is wrong becomes a finding."""
    allowance = Allowance(files=limits.documents, file_bytes=limits.document_bytes)
    parsed = parsed or ParsedFiles()
    parsed.begin()
    collected = _Collected(limits.documents, parsed)
    for folder in folders:
        reader = FolderReader(folder.path, allowance)
        for file in reader.files():
            collected.add_file(folder, file)
        collected.findings.extend(reader.findings)
        collected.folders.extend(reader.folders)
    return Loaded(
        tuple(sorted(collected.documents(), key=_order)),
        tuple(collected.findings),
        tuple(collected.folders),
    )


class _Collected:
    """Documents in the order of their paths; the first of a name wins."""

    def __init__(self, limit: int, parsed: ParsedFiles) -> None:
        self._limit, self._parsed = limit, parsed
        self._by_name: dict[tuple[Kind, str], tuple[Document, Path]] = {}
        self.findings: list[Finding] = []
        self.folders: list[Path] = []

    def documents(self) -> Iterable[Document]:
        return (document for document, _ in self._by_name.values())

    def add_file(self, folder: DocumentFolder, file: MarkdownFile) -> None:
        try:
            documents, findings = self._parsed.of(folder, file)
        except UnusableError as error:
            self.findings.append(Finding(file.path, error.line, f"left out: {error}"))
            return
        self.findings.extend(findings)
        room = self._limit - len(self._by_name)
        if len(documents) > room:
            message = f"only {room} of its {len(documents)} sections fit into the limit 'documents'"
            self.findings.append(Finding(file.path, None, message))
        for document in documents[:room]:
            self._add(document, file.path)

    def _add(self, document: Document, file: Path) -> None:
        kept, path = self._by_name.setdefault((document.kind, document.name), (document, file))
        if kept is not document:
            message = f"left out: {path} is a {document.kind} named {document.name!r} as well; rename one"
            self.findings.append(Finding(file, None, message))


def _order(document: Document) -> tuple[bool, int, str]:
    return document.kind is not Kind.RULE, -document.priority, document.name
