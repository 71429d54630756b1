"""Loads rules and references: reads the markdown files of the configured folders as documents.

A file is one document; a file for coding agents (``AGENTS.md``) is one document for each of its sections. A
problem in a file becomes a finding; the usable part of the file is served, and no file stops another.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final, TypeAlias

from mcp_context_proxy.catalog.files import Allowance, Finding, FolderReader, MarkdownFile
from mcp_context_proxy.catalog.front_matter import (
    NAME_LIMIT,
    Format,
    FrontMatter,
    default_kind,
    default_name,
    format_of,
    one_line,
    read_front_matter,
    shorten,
)
from mcp_context_proxy.config import Limits
from mcp_context_proxy.items import Document, IncludeMode, Kind
from mcp_context_proxy.protocol.text import clean

PRIORITY: Final = 500
"""Default priority of a document: in the middle."""

HIDDEN_TOLERATED: Final = 10
"""Unseen characters that are removed without a finding: text from the web has a few; more are put there."""

SECTIONS_LIMIT: Final = 200
"""Sections of one file: ten times a long one; each is a document of its own."""

OVERVIEW_LIMIT: Final = 200
"""Characters of a derived description: one line in a list."""

_LOOKED_AT: Final = 4096
"""Characters of the text in which the first words must be; also bounds the search for comments."""

_FENCE: Final = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)", re.DOTALL)
"""A fence of code at any depth: the blocks of a list are indented with it."""
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_HEADING: Final = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)[ \t#]*$")
_SECTION_HEADING: Final = re.compile(r" {0,3}(#{1,2})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_MARKER: Final = re.compile(r"[ \t]*(?:[>*+-]|[0-9]{1,9}[.)])[ \t]+")
_LETTER: Final = re.compile(r"[^\W_]")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…؟।])\s|(?<=[。！？])")


@dataclass(frozen=True, slots=True)
class DocumentFolder:
    """A configured folder, or a single file, of rules or of references."""

    kind: Kind | None
    """None is the default of each file's format."""
    path: Path
    include: IncludeMode | None = None
    """Default for documents without their own."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of reading all folders once."""

    documents: tuple[Document, ...]
    """Rules before references; within a kind by priority, highest first, then by name."""
    findings: tuple[Finding, ...]
    folders: tuple[Path, ...] = ()
    """Every folder that was read: where a change can be."""


class UnusableError(Exception):
    """A file of which nothing can be served."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


Parsed: TypeAlias = tuple[list[Document], list[Finding]]


class ParsedFiles:
    """Cache of parsed files by their content, of the latest reading."""

    def __init__(self) -> None:
        self._known: dict[bytes, Parsed | UnusableError] = {}
        self._asked: dict[bytes, Parsed | UnusableError] = {}

    def begin(self) -> None:
        """Begin another reading; files that the latest one did not ask for are forgotten."""
        self._known, self._asked = self._asked, {}

    def of(self, folder: DocumentFolder, file: MarkdownFile) -> Parsed:
        """Return the documents and findings of a file; raises `UnusableError`."""
        key = hashlib.sha256(repr((folder.kind, folder.include, file.path)).encode() + file.data).digest()
        found = self._known.get(key)
        if found is None:
            try:
                found = _parse(file, folder.kind, folder.include)
            except UnusableError as error:
                found = error.with_traceback(None)
        self._asked[key] = found
        if isinstance(found, UnusableError):
            raise found
        return found


def load_documents(
    folders: Sequence[DocumentFolder], limits: Limits, parsed: ParsedFiles | None = None
) -> Loaded:
    """Read all folders. Blocks: call it in a worker thread. Every problem becomes a finding.

    Of several documents of one kind and name the first wins, in the order of folders and paths.
    """
    allowance = Allowance(files=limits.documents, file_bytes=limits.document_bytes)
    parsed = parsed or ParsedFiles()
    parsed.begin()
    by_name: dict[tuple[Kind, str], tuple[Document, Path]] = {}
    findings: list[Finding] = []
    read_folders: list[Path] = []
    for folder in folders:
        reader = FolderReader(folder.path, allowance)
        for file in reader.files():
            try:
                documents, own_findings = parsed.of(folder, file)
            except UnusableError as error:
                findings.append(Finding(file.path, error.line, f"left out: {error}"))
                continue
            findings.extend(own_findings)
            room = limits.documents - len(by_name)
            if len(documents) > room:
                message = f"only {room} of its {len(documents)} sections fit into the limit 'documents'"
                findings.append(Finding(file.path, None, message))
            for document in documents[:room]:
                key = document.kind, document.name
                kept, path = by_name.setdefault(key, (document, file.path))
                if kept is not document:
                    message = (
                        f"left out: {path} is a {document.kind} named {document.name!r} as well; rename one"
                    )
                    findings.append(Finding(file.path, None, message))
        findings.extend(reader.findings)
        read_folders.extend(reader.folders)
    ordered = sorted(
        (document for document, _ in by_name.values()),
        key=lambda document: (document.kind is not Kind.RULE, -document.priority, document.name),
    )
    return Loaded(tuple(ordered), tuple(findings), tuple(read_folders))


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a file that becomes one document."""

    name: str
    description: str
    text: str


def _parse(file: MarkdownFile, kind: Kind | None, include: IncludeMode | None) -> Parsed:
    """Return the documents of a file, and findings about it.

    Args:
        file: The file as it was read.
        kind: Kind of its documents; None is the default of its format.
        include: Default for documents without their own.

    Raises:
        UnusableError: The file has nothing that could be served.
    """
    form = format_of(file.relative)
    kind = kind or default_kind(form)
    raw = _decoded(file.data)
    text = clean(raw)
    front = read_front_matter(text, form)
    include = front.include or include or IncludeMode.AGENT
    priority = PRIORITY if front.priority is None else front.priority
    whole = _whole(file, front)
    parts, undivided = [whole], 0
    # A rule is followed as a whole; a reference for agents is looked up by its sections.
    if form is Format.AGENTS and kind is Kind.REFERENCE:
        parts, undivided = _sections(whole, front)
    if not any(part.text or part.description for part in parts):
        raise UnusableError(None, "it has no text")
    documents = []
    for part in parts:
        facts = (kind, unicodedata.normalize("NFC", part.name), part.description, part.text)
        # As a JSON array, in which no two different lists look alike.
        identity = json.dumps((*facts, include, priority, front.tags), ensure_ascii=True)
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        documents.append(Document(*facts, fingerprint, include, priority, front.tags))
    problems: list[tuple[int | None, str]] = [(problem.line, problem.message) for problem in front.problems]
    if form is Format.SKILL and not front.description:
        problems.append((1, "the front matter of a skill needs a 'description'; its first words are used"))
    if undivided:
        message = f"it has over {SECTIONS_LIMIT} sections; {undivided} more are left in the last one"
        problems.append((None, message))
    if (hidden := len(raw) - len(text)) > HIDDEN_TOLERATED:
        message = f"{hidden} control or unseen characters were removed; check where they come from"
        problems.append((None, message))
    return documents, [Finding(file.path, *problem) for problem in problems]


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnusableError(line, "it is not UTF-8; save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _whole(file: MarkdownFile, front: FrontMatter) -> _Part:
    name = front.name
    if name is None:
        name = default_name(file.relative, file.path.absolute().parent.name)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UnusableError(None, "its file name is not UTF-8; rename it") from None
        name = one_line(name) or "document"
    body = front.body.strip()
    description = front.description or overview(body)
    if front.patterns:
        description = f"{description} (for files: {front.patterns})".lstrip()
    return _Part(name, description, body)


def _sections(whole: _Part, front: FrontMatter) -> tuple[list[_Part], int]:
    """Return each section with a text of its own, or the whole, and the headings beyond the limit."""
    parts: list[_Part] = []
    names: Counter[str] = Counter()
    sections, undivided = divide(whole.text)
    for section in sections:
        if not section.body:
            continue
        name = shorten(one_line("/".join((whole.name, *section.path))), NAME_LIMIT)
        names[name] += 1
        description = overview(section.body) or one_line(section.path[-1] if section.path else whole.name)
        part = _Part(name, description, f"{section.heading}\n\n{section.body}".strip())
        if not section.path:
            part = replace(part, description=front.description or part.description)
        parts.append(part if names[name] == 1 else replace(part, name=f"{name} ({names[name]})"))
    return parts or [whole], undivided


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a markdown text; each heading of the first or second level begins one."""

    path: tuple[str, ...]
    """The headings that lead to it; none for the text before the first one."""
    heading: str
    """The line it begins with; empty before the first heading."""
    body: str
    """The text below its heading; may be empty."""


def divide(text: str) -> tuple[list[Section], int]:
    """Return the sections in order, and the number of headings beyond `SECTIONS_LIMIT`, which begin none.

    A heading of the first level is part of the path of those of the second only where there are several of
    it: a single one is the title of the whole.
    """
    parts: list[tuple[int, str, list[str]]] = [(0, "", [])]
    left = 0
    for line, code in _with_code_marked(text):
        heading = None if code else _SECTION_HEADING.match(line)
        begins = heading is not None and bool(heading[2])
        if heading is not None and begins and len(parts) <= SECTIONS_LIMIT:
            parts.append((len(heading[1]), line, []))
        else:
            left += begins
            parts[-1][2].append(line)
    several = sum(level == 1 for level, _, _ in parts) > 1
    sections: list[Section] = []
    above: tuple[str, ...] = ()
    for level, line, lines in parts:
        match = _SECTION_HEADING.match(line)
        path = (match[2],) if match else ()
        if level == 1:
            above = path if several else ()
        sections.append(Section(above + path if level > 1 else path, line.strip(), "\n".join(lines).strip()))
    return sections, left


def overview(text: str) -> str:
    """Return the first heading or the first sentence of a text; empty when it has no words.

    Whichever comes first, since a heading far below says less about the whole than the words at its top.
    """
    lines: list[str] = []
    for line, code in _with_code_marked(_COMMENT.sub("", text[:_LOOKED_AT])):
        if not code and (lines or _LETTER.search(line)):
            lines.append(line)
    if not lines:
        return ""
    heading = _HEADING.match(lines[0])
    if heading is not None:
        return shorten(one_line(heading[1]), OVERVIEW_LIMIT)
    paragraph = one_line(" ".join(takewhile(lambda line: line.strip() and not _HEADING.match(line), lines)))
    return shorten(_SENTENCE_END.split(_MARKER.sub("", paragraph, count=1), maxsplit=1)[0], OVERVIEW_LIMIT)


def _with_code_marked(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it is code between fences or a fence: a ``#`` there begins a comment."""
    opening = ""
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if not opening:
            opening = fence[1] if fence else ""
            yield line, bool(opening)
            continue
        yield line, True
        if fence and fence[1].startswith(opening) and not fence[2].strip():
            opening = ""
