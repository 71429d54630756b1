"""Rules and references: markdown files of the configured folders, as documents.

A file that is wrong is told as a finding and served with what is usable of it; none stops another.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from mcp_context_proxy.catalog.finding import Finding
from mcp_context_proxy.catalog.folder import Allowance, FolderReader, MarkdownFile
from mcp_context_proxy.catalog.front_matter import FrontMatter, one_line, read_front_matter
from mcp_context_proxy.catalog.overview import overview
from mcp_context_proxy.config import Limits
from mcp_context_proxy.items import Document, IncludeMode, Kind
from mcp_context_proxy.wire.text import clean

PRIORITY: Final = 500
"""Of a document that gives none: in the middle."""

HIDDEN_TOLERATED: Final = 10
"""Unseen characters that are removed without a word: text from the web has a few; more are put there."""


@dataclass(frozen=True, slots=True)
class DocumentFolder:
    """A configured folder, or a single file, of rules or of references."""

    kind: Kind
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


def load_documents(folders: Sequence[DocumentFolder], limits: Limits) -> Loaded:
    """Read all folders. Blocks: call it in a worker thread. Whatever is wrong becomes a finding."""
    allowance = Allowance(files=limits.documents, file_bytes=limits.document_bytes)
    collected = _Collected()
    for folder in folders:
        reader = FolderReader(folder.path, allowance)
        for file in reader.files():
            collected.add(folder, file)
        collected.findings.extend(reader.findings)
        collected.folders.extend(reader.folders)
    return Loaded(
        tuple(sorted(collected.documents(), key=_order)),
        tuple(collected.findings),
        tuple(collected.folders),
    )


class _Collected:
    """Documents in the order of their paths; the first of a name wins."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[Kind, str], tuple[Document, Path]] = {}
        self.findings: list[Finding] = []
        self.folders: list[Path] = []

    def documents(self) -> Iterable[Document]:
        return (document for document, _ in self._by_name.values())

    def add(self, folder: DocumentFolder, file: MarkdownFile) -> None:
        try:
            document, findings = _document(folder, file)
        except _UnusableError as error:
            self.findings.append(Finding(file.path, error.line, f"left out: {error}"))
            return
        self.findings.extend(findings)
        kept, path = self._by_name.setdefault((document.kind, document.name), (document, file.path))
        if kept is not document:
            message = f"left out: {path} is a {document.kind} named {document.name!r} as well; rename one"
            self.findings.append(Finding(file.path, None, message))


class _UnusableError(Exception):
    """Nothing of a file can be served."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


def _order(document: Document) -> tuple[bool, int, str]:
    return document.kind is not Kind.RULE, -document.priority, document.name


def _document(folder: DocumentFolder, file: MarkdownFile) -> tuple[Document, list[Finding]]:
    raw = _decoded(file.data)
    text = clean(raw)
    front = read_front_matter(text)
    body = front.body.strip()
    description = front.description or overview(body)
    if not body and not description:
        raise _UnusableError(None, "it has no text")
    name = front.name or _default_name(file.relative)
    include = front.include or folder.include or IncludeMode.AGENT
    priority = PRIORITY if front.priority is None else front.priority
    said = (folder.kind, unicodedata.normalize("NFC", name), description, body)
    fingerprint = _fingerprint(*said, include, priority, front.tags)
    document = Document(*said, fingerprint, include, priority, front.tags)
    return document, list(_findings(file.path, front, len(raw) - len(text)))


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _UnusableError(line, "it is not UTF-8; save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _default_name(relative: str) -> str:
    """The path without its suffix; what cannot be written in UTF-8 has no name that could be asked for."""
    name = str(PurePosixPath(relative).with_suffix(""))
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _UnusableError(None, "its file name is not UTF-8; rename it") from None
    return one_line(name) or "document"


def _fingerprint(*facts: object) -> str:
    """Over the facts as a JSON array, in which no two different lists look alike."""
    return hashlib.sha256(json.dumps(facts, ensure_ascii=True).encode()).hexdigest()


def _findings(path: Path, front: FrontMatter, hidden: int) -> Iterator[Finding]:
    for problem in front.problems:
        yield Finding(path, problem.line, problem.message)
    if hidden > HIDDEN_TOLERATED:
        yield Finding(
            path, None, f"{hidden} control or unseen characters were removed; look where they are from"
        )
