"""Rules and references: files of the configured folders, as documents.

A file that is wrong is told as a finding and served with what is usable of it; none stops another.

The documents of one file: one, or of a file for coding agents each of its sections.

The description of a document that gives none: its first heading or its first sentence.

Whichever comes first, since a heading far below says less about the whole than the words at its top.

The sections of a markdown text: each heading of the first or second level begins one.

Which lines of markdown are code between fences; a ``#`` there begins a comment, not a section.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final, TypeAlias

from mcp_context_proxy.catalog.files import Allowance, Finding, FolderReader, MarkdownFile
from mcp_context_proxy.catalog.front_matter import (
    NAME_LIMIT,
    Format,
    FrontMatter,
    format_of,
    one_line,
    read_front_matter,
    shorten,
    usual_kind,
    usual_name,
)
from mcp_context_proxy.config import Limits
from mcp_context_proxy.items import Document, IncludeMode, Kind
from mcp_context_proxy.protocol.text import clean

_FENCE: Final = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)", re.DOTALL)
"""At any depth: the blocks of a list are indented with it."""


def with_code_marked(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a fenced block; the fences do."""
    opening = ""
    for line in lines:
        fence = _FENCE.match(line)
        if not opening:
            opening = fence[1] if fence else ""
            yield line, bool(opening)
            continue
        yield line, True
        if fence and fence[1].startswith(opening) and not fence[2].strip():
            opening = ""


OVERVIEW_LIMIT: Final = 200
"""Characters: one line in a list."""

_LOOKED_AT: Final = 4096
"""Characters of the text in which the first words must be; also bounds the search for comments."""

_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_HEADING: Final = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)[ \t#]*$")
_MARKER: Final = re.compile(r"[ \t]*(?:[>*+-]|[0-9]{1,9}[.)])[ \t]+")
_WORDS: Final = re.compile(r"[^\W_]")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…؟।])\s|(?<=[。！？])")


def overview(text: str) -> str:
    """One line on what the text is about; empty when it has no words."""
    lines = list(_prose(_COMMENT.sub("", text[:_LOOKED_AT])))
    if not lines:
        return ""
    heading = _HEADING.match(lines[0])
    if heading is not None:
        return shorten(one_line(heading[1]), OVERVIEW_LIMIT)
    paragraph = one_line(" ".join(takewhile(lambda line: line.strip() and not _HEADING.match(line), lines)))
    return shorten(_SENTENCE_END.split(_MARKER.sub("", paragraph, count=1), maxsplit=1)[0], OVERVIEW_LIMIT)


def _prose(text: str) -> Iterator[str]:
    """The lines from the first one with words on, without blocks of code."""
    begun = False
    for line, code in with_code_marked(text.split("\n")):
        begun = begun or (not code and bool(_WORDS.search(line)))
        if begun and not code:
            yield line


SECTIONS_LIMIT: Final = 200
"""Of one file: ten times a long one; each is a document of its own."""

_SECTION_HEADING: Final = re.compile(r" {0,3}(#{1,2})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a text."""

    path: tuple[str, ...]
    """The headings that lead to it; none for what stands before the first one."""
    heading: str
    """The line it begins with; empty before the first heading."""
    body: str
    """What stands below its heading; may be empty."""


def divide(text: str) -> tuple[list[Section], int]:
    """The sections in order, and how many headings beyond `SECTIONS_LIMIT` begin none.

    A heading of the first level leads to those of the second only where there are several of it: a single
    one is the title of the whole.
    """
    parts: list[tuple[int, str, list[str]]] = [(0, "", [])]
    left = 0
    for line, code in with_code_marked(text.split("\n")):
        heading = None if code else _SECTION_HEADING.match(line)
        begins = heading is not None and bool(heading[2])
        if heading is not None and begins and len(parts) <= SECTIONS_LIMIT:
            parts.append((len(heading[1]), line, []))
        else:
            left += begins
            parts[-1][2].append(line)
    return _named(parts), left


def _named(parts: list[tuple[int, str, list[str]]]) -> list[Section]:
    several = sum(level == 1 for level, _, _ in parts) > 1
    sections: list[Section] = []
    above: tuple[str, ...] = ()
    for level, line, lines in parts:
        match = _SECTION_HEADING.match(line)
        path = (match[2],) if match else ()
        if level == 1:
            above = path if several else ()
        sections.append(Section(above + path if level > 1 else path, line.strip(), "\n".join(lines).strip()))
    return sections


PRIORITY: Final = 500
"""Of a document that gives none: in the middle."""

HIDDEN_TOLERATED: Final = 10
"""Unseen characters that are removed without a word: text from the web has a few; more are put there."""


class UnusableError(Exception):
    """Nothing of a file can be served."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class _Part:
    """What becomes one document."""

    name: str
    description: str
    text: str


def read_document_file(
    file: MarkdownFile, kind: Kind | None, include: IncludeMode | None
) -> tuple[list[Document], list[Finding]]:
    """What a file holds, and what a person should mend in it.

    Args:
        file: As it was read.
        kind: Of its documents; None for what its format usually is.
        include: For what does not say it itself.

    Raises:
        UnusableError: there is nothing that could be served.
    """
    form = format_of(file.relative)
    kind = kind or usual_kind(form)
    raw = _decoded(file.data)
    text = clean(raw)
    front = read_front_matter(text, form)
    include = front.include or include or IncludeMode.AGENT
    priority = PRIORITY if front.priority is None else front.priority
    whole = _whole(file, front)
    # A rule is followed as a whole; what is looked up is looked up by its section.
    by_section = form is Format.AGENTS and kind is Kind.REFERENCE
    parts, undivided = _sections(whole, front) if by_section else ([whole], 0)
    if not any(part.text or part.description for part in parts):
        raise UnusableError(None, "it has no text")
    documents = []
    for part in parts:
        said = (kind, unicodedata.normalize("NFC", part.name), part.description, part.text)
        fingerprint = _fingerprint(*said, include, priority, front.tags)
        documents.append(Document(*said, fingerprint, include, priority, front.tags))
    problems = _problems(form, front, undivided, len(raw) - len(text))
    return documents, [Finding(file.path, *problem) for problem in problems]


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnusableError(line, "it is not UTF-8; save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _whole(file: MarkdownFile, front: FrontMatter) -> _Part:
    body = front.body.strip()
    description = front.description or overview(body)
    if front.patterns:
        description = f"{description} (for files: {front.patterns})".lstrip()
    return _Part(front.name or _default_name(file), description, body)


def _default_name(file: MarkdownFile) -> str:
    """What cannot be written in UTF-8 has no name that could be asked for."""
    name = usual_name(file.relative, file.path.absolute().parent.name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UnusableError(None, "its file name is not UTF-8; rename it") from None
    return one_line(name) or "document"


def _sections(whole: _Part, front: FrontMatter) -> tuple[list[_Part], int]:
    """Each section with a text of its own, the whole where there are none; and headings that begin none."""
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


def _fingerprint(*facts: object) -> str:
    """Over the facts as a JSON array, in which no two different lists look alike."""
    return hashlib.sha256(json.dumps(facts, ensure_ascii=True).encode()).hexdigest()


def _problems(
    form: Format, front: FrontMatter, undivided: int, hidden: int
) -> Iterator[tuple[int | None, str]]:
    for problem in front.problems:
        yield problem.line, problem.message
    if form is Format.SKILL and not front.description:
        yield 1, "a skill says by 'description' in its front matter what it is for; its first words are used"
    if undivided:
        yield None, f"it has over {SECTIONS_LIMIT} sections; {undivided} more are left in the last one"
    if hidden > HIDDEN_TOLERATED:
        yield None, f"{hidden} control or unseen characters were removed; look where they are from"


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
