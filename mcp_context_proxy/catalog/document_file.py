"""The documents of one file: one, or of a file for coding agents each of its sections."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from mcp_context_proxy.catalog.entries import one_line, shorten
from mcp_context_proxy.catalog.finding import Finding
from mcp_context_proxy.catalog.folder import MarkdownFile
from mcp_context_proxy.catalog.formats import Format, format_of, usual_kind, usual_name
from mcp_context_proxy.catalog.front_matter import NAME_LIMIT, FrontMatter, read_front_matter
from mcp_context_proxy.catalog.overview import overview
from mcp_context_proxy.catalog.sections import SECTIONS_LIMIT, divide
from mcp_context_proxy.items import Document, IncludeMode, Kind
from mcp_context_proxy.wire.text import clean

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
