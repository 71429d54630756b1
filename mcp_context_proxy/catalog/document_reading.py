"""Reads documents by parts: their headings with sizes, one section, one page, and the files of a skill.

A file for agents is divided at its headings into documents of their own, and a text without a description is
described by its first words.

A document is named by its URI or its name, a file of a skill by that of the skill and its path below it, such
as ``reference://pdf/scripts/fill.py``. A section is named by its heading, with those above it where several
are called so. Everything here blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, pairwise, takewhile
from typing import Final
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog import names
from mcp_context_proxy.catalog.files import UnsafePathError, read_skill_file, skill_files
from mcp_context_proxy.catalog.front_matter import NAME_LIMIT, Format, format_of, shorten
from mcp_context_proxy.errors import ContextProxyError, UnknownItemError
from mcp_context_proxy.items import DOCUMENT_KINDS, Document, Kind, SkillFolder, Snapshot, uri_of
from mcp_context_proxy.protocol.strangers import clean, one_line
from mcp_context_proxy.system.later import pattern

PAGE_CHARACTERS: Final = 20_000
"""Length of a page: some 5,000 tokens, half of where hosts begin to warn of a large result."""

HEADED_CHARACTERS: Final = 1024 * 1024
"""Length of a text whose pages end at headings: that of a document. A server may give longer ones."""

HEADINGS_LIMIT: Final = 500
"""Headings of a document that begin a section; the text below others belongs to the last one."""

OUTLINED: Final = 40
"""Headings in an outline; of more, the deepest are left out, and then the last."""

TITLE_CHARACTERS: Final = 80
"""Length to which an outline cuts a heading."""

FILES_NAMED: Final = 30
"""Files of a skill that are named with it; the others are counted."""

SECTIONS_SUGGESTED: Final = 12
"""Sections that are named where a file of sections is asked for, which is no document itself."""

SECTION_LEVELS: Final = 2
"""Levels of headings at which a file for agents is divided into documents."""

HEADING_LIMIT: Final = 4 * NAME_LIMIT
"""Characters of a heading that are read: each heading below a long one would repeat it in its name."""

SECTIONS_LIMIT: Final = 200
"""Sections of one file: ten times a long one; each is a document of its own."""

OVERVIEW_LIMIT: Final = 200
"""Characters of a derived description: one line in a list."""

_LOOKED_AT: Final = 4096
"""Characters of the text in which the first words must be; also bounds the search for comments."""

_FENCE: Final = pattern(r"[ \t]*(`{3,}|~{3,})(.*)", re.DOTALL)
"""A fence of code at any depth: the blocks of a list are indented with it."""
_HEADING: Final = pattern(r" {0,3}(#{1,6})[ \t]+(.*)")
"""The end of a heading is stripped without an expression, which would try it anew at each character."""
_COMMENT: Final = pattern(r"<!--.*?(?:-->|\Z)", re.DOTALL)  # to the end where it is not closed
_LINK: Final = pattern(r"!?\[([^\[\]\n]{0,300})\]\([^()\n]{0,500}\)")
_DECORATION: Final = pattern(
    r"\A\s*<.*|\A\s*\|.*|\A(?:import|export) .*['\"={].*|"
    r"\[!\[[^\n]{0,300}?\]\([^()\n]{0,500}\)\]\([^()\n]{0,500}\)|" + _LINK.pattern
)
"""Markup, a row of a table, imports of MDX, badges, pictures and links: none tells the subject of a text."""
_UNDERLINE: Final = pattern(r" {0,3}(?:={3,}|-{3,})[ \t]*")
_NO_TITLE: Final = pattern(r" {4}|\t| {0,3}[|<]")
"""The beginning of code, of a table or of markup: a line below it underlines nothing."""
_MARKER: Final = pattern(r"^[ \t]*(?:[>*+-]|[0-9]{1,9}[.)])[ \t]+")
_LETTER: Final = pattern(r"[^\W_]")
_WORD: Final = pattern(r"\w+")
_SENTENCE_END: Final = pattern(r"(?<=[.!?…؟।])\s|(?<=[。！？])")


class UnreadableDocumentError(ContextProxyError):
    """A document, a section or a file of a skill that cannot be read as asked for; the text says why."""


class Section(Struct, frozen=True):
    """A section of a markdown text; each heading of a level up to `SECTION_LEVELS` begins one."""

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
    parts: list[tuple[int, str, str, list[str]]] = [(0, "", "", [])]
    left = 0
    for line, level, title in with_titles(text):
        begins = 0 < level <= SECTION_LEVELS
        if begins and len(parts) <= SECTIONS_LIMIT:
            parts.append((level, title, line, []))
        else:
            left += begins
            parts[-1][3].append(line)
    several = sum(level == 1 for level, *_ in parts) > 1
    sections: list[Section] = []
    above: tuple[str, ...] = ()
    for level, title, line, lines in parts:
        path = (title,) if level else ()
        if level == 1:
            above = path if several else ()
        sections.append(Section(above + path if level > 1 else path, line.strip(), "\n".join(lines).strip()))
    return sections, left


def with_titles(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield each line with the level and the title of the heading that it is; 0 for any other line.

    A heading that is underlined comes with the line below it, in one.
    """
    before, is_underline = "", False
    for (line, code), (below, is_code) in pairwise(chain(with_code_marked(text), [("", True)])):
        if is_underline:
            before, is_underline = "", False
            continue
        match = None if code else _HEADING.match(line)
        level, title = (len(match[1]), title_of(match[2])) if match else (0, "")
        if not (match or code or is_code or before.strip()) and _UNDERLINE.fullmatch(below):
            is_underline = bool(_LETTER.search(line)) and not (_MARKER.match(line) or _NO_TITLE.match(line))
        if is_underline:
            level, title = 1 if "=" in below else 2, line.strip()[:HEADING_LIMIT]
        before = line
        yield f"{line}\n{below}" if is_underline else line, level if title else 0, title


def title_of(heading: str) -> str:
    """Return the text of a heading without the signs that close it."""
    text = heading.rstrip(" \t")
    unclosed = text.rstrip("#")
    return (unclosed.rstrip(" \t") if unclosed[-1:] in (" ", "\t") else text)[:HEADING_LIMIT]


def overview(text: str) -> str:
    """Return the first heading or the first sentence of a text; empty when it has no words.

    Whichever comes first, since a heading far below says less about the whole than the words at its top.
    """
    said = [line for line, code in with_code_marked(_COMMENT.sub("", text[:_LOOKED_AT])) if not code]
    lettered = [at for at, line in enumerate(said) if _LETTER.search(line)]
    # Many begin with a logo, badges or a way back, as every page beside them does.
    telling = (at for at in lettered if _LETTER.search(_DECORATION.sub("", said[at])))
    if (first := next(telling, lettered[0] if lettered else None)) is None:
        return ""
    lines = [_LINK.sub(r"\1", line) for line in said[first:]]
    heading = _HEADING.match(lines[0])
    if heading is not None or _UNDERLINE.fullmatch(lines[1] if len(lines) > 1 else ""):
        title = lines[0] if heading is None else heading[2].rstrip(" \t#")
        return shorten(one_line(title), OVERVIEW_LIMIT)
    paragraph = one_line(" ".join(takewhile(lambda line: line.strip() and not _HEADING.match(line), lines)))
    return shorten(_SENTENCE_END.split(_MARKER.sub("", paragraph, count=1), maxsplit=1)[0], OVERVIEW_LIMIT)


def with_code_marked(text: str) -> Iterator[tuple[str, bool]]:
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


class Heading(Struct, frozen=True):
    """A heading of a text and the section below it, which ends at the next heading of its level or above."""

    level: int
    """Number of signs before it, from 1; of one that is underlined, 1 or 2."""
    name: str
    """Its words after those of the headings above it, with ``/``; repeated ones are numbered."""
    title: str
    start: int
    """Offset of its line."""
    end: int
    """Offset behind the section."""


class DocumentPart(Struct, frozen=True):
    """A part of a document or of a skill's file, as it was asked for."""

    uri: str
    document: Document
    """The document; for a file of a skill, that of the skill."""
    text: str
    section: str | None = None
    """Name of the section; None for all of it."""
    page: int = 1
    pages: int = 1
    outline: tuple[str, ...] = ()
    """Headings of the whole, on the first page of a long one."""
    folder: str = ""
    """Folder and files of a skill, where it is read whole; see `files_line`."""
    is_whole: bool = False
    """True if this is all of the document."""


def headings(text: str) -> list[Heading]:
    found: list[Heading] = []
    above: list[tuple[int, str]] = []
    repeated: Counter[str] = Counter()
    offset = 0
    for line, level, written in with_titles(text):
        title = one_line(written)
        if title and len(found) < HEADINGS_LIMIT:
            above = [one for one in above if one[0] < level]
            name = "/".join([*(one for _, one in above), title])
            above.append((level, title))
            repeated[name] += 1
            if repeated[name] > 1:
                name = f"{name} ({repeated[name]})"
            found.append(Heading(level, name, title, offset, len(text)))
        offset += len(line) + 1
    ends: list[tuple[int, int]] = []
    """Level and offset of the headings behind, the nearest last."""
    for place in reversed(range(len(found))):
        heading = found[place]
        while ends and ends[-1][0] > heading.level:
            ends.pop()
        if ends:
            found[place] = replace(heading, end=ends[-1][1])
        ends.append((heading.level, heading.start))
    return found


def outline(text: str, tokens: int) -> list[str]:
    """Return the headings of a text as indented lines, each with the estimated tokens of its section.

    ``tokens`` is the size of the whole text, of which each section has a share by its length.
    """
    found = headings(text)
    deepest = 6
    while deepest > 1 and sum(one.level <= deepest for one in found) > OUTLINED:
        deepest -= 1
    shown = [one for one in found if one.level <= deepest] or found
    top = min((one.level for one in shown), default=1)
    share = tokens / max(1, len(text))
    lines = [
        f"{'  ' * (one.level - top)}- {one_line(one.title, TITLE_CHARACTERS)}{_number(one)} "
        f"({round((one.end - one.start) * share):,})"
        for one in shown[:OUTLINED]
    ]
    return [*lines, f"- and {len(shown) - OUTLINED:,} more headings"] if len(shown) > OUTLINED else lines


def sections_with(text: str, piece: str) -> list[str]:
    """Return the smallest sections of a text in which paragraphs of a piece of it stand, in their order.

    Of a section around another one it is the text before its first heading. All of the text is none of them.
    """
    known, found, begin = headings(text), dict[Heading, None](), 0
    for paragraph in filter(str.strip, piece.strip().split("\n\n")):
        said = paragraph
        # Before what a search has found there may be the name with a colon.
        while (place := text.find(said, begin)) < 0 and ": " in said:
            said = said.partition(": ")[2]
        # The same paragraph, such as "Example:", may stand in other sections as well.
        begin = max(begin, place)
        around = [one for one in known if one.start <= place < one.end]
        found.update(dict.fromkeys(around[-1:]))
    parts = []
    for one in found:
        has_another = any(one.start < other.start < one.end for other in found)
        end = next(other.start for other in known if other.start > one.start) if has_another else one.end
        parts.append(text[one.start : end].strip())
    return [part for part in parts if "\n" in part and len(part) < len(text.strip())]


def _number(heading: Heading) -> str:
    """Return the number of a heading whose name is repeated; empty for any other."""
    last = heading.name.rpartition("/")[2]
    return last.removeprefix(heading.title) if last.startswith(heading.title) else ""


def files_line(skill: SkillFolder) -> str:
    """Return the folder of a skill and its files with sizes, on a line each."""
    where = f"Folder: {one_line(str(skill.path))}"
    try:
        files, more = skill_files(skill)
    except (UnsafePathError, OSError):
        return where
    if not files:
        return where
    named = ", ".join(f"{one_line(path)} ({_size(size)})" for path, size in files[:FILES_NAMED])
    left = len(files) - FILES_NAMED
    rest = f" and {'over ' if more else ''}{left} more" if left > 0 else " and more" if more else ""
    return f"{where}\nFiles: {named}{rest}"


def _size(size: int) -> str:
    return f"{size} bytes" if size < 1000 else f"{size / 1000:,.1f} kB"


def read_part(
    snapshot: Snapshot,
    name: str,
    section: str | None,
    page: int,
    most: int,
    count: Callable[[str], int],
) -> DocumentPart:
    """Return the part of a document that was asked for; without a section, the page of the whole.

    The name may be that of a skill with the path of one of its files, of which `most` bytes are read. `count`
    estimates the tokens of a text, for the outline of a long one. Raises `UnknownItemError` if there is no
    such document, and `UnreadableDocumentError` if there is no such section, page or file, or the file must
    not be read.
    """
    document, path = find(snapshot, name)
    uri, text = document.uri, document.text.strip()
    if path:
        uri, text = f"{uri}/{path}", _file_text(document, path, most)
    whole = text
    if section and section.strip():
        heading = _heading_named(section, headings(text), uri)
        text, section = text[heading.start : heading.end].strip(), heading.name
    else:
        section = None
    pages = paged(text)
    if not 1 <= page <= len(pages):
        size = "1 page" if len(pages) == 1 else f"{len(pages)} pages"
        raise UnreadableDocumentError(
            f"{uri} has no page {page}: {'its section' if section else 'it'} has {size}"
        )
    lines: Sequence[str] = ()
    if len(pages) > 1 and page == 1 and section is None:
        lines = outline(whole, count(whole))
    is_whole = len(pages) == 1 and section is None and not path
    folder = files_line(document.folder) if document.folder is not None and is_whole else ""
    return DocumentPart(
        uri, document, pages[page - 1], section, page, len(pages), tuple(lines), folder, is_whole
    )


def find(snapshot: Snapshot, name: str) -> tuple[Document, str]:
    """Return the document that a name leads to, and the path of a file where it names one of a skill's.

    A name without the folders before it will do where one document's name ends with it: which of the files of
    several projects has the plain name depends on documents that a caller may not see. Raises
    `UnknownItemError` if there is none, and `UnreadableDocumentError` if a rule and a reference have that
    name.
    """
    name = name.strip()
    for end in (len(name), *_slashes(name)):
        found = [one for uri in uris_meant(name[:end]) if (one := snapshot.document(uri)) is not None]
        found = [one for one in found if end == len(name) or one.folder is not None]
        if len(found) > 1:
            known = " or ".join(one.uri for one in found)
            raise UnreadableDocumentError(f"several documents are named {one_line(name, 100)}: read {known}")
        if found:
            return found[0], name[end + 1 :]
    plain = "/" + _bare(name)
    ending = [one for one in snapshot.documents.values() if f"/{one.name.casefold()}".endswith(plain)]
    if len(ending) == 1:
        return ending[0], ""
    suggested = [one.uri for one in ending[:SECTIONS_SUGGESTED]] or near_documents(snapshot, name)
    raise UnknownItemError("document", one_line(name, 200), suggested)


def near_documents(snapshot: Snapshot, name: str) -> list[str]:
    """Return the URIs of the documents that a name without one may mean: its sections, or like names."""
    # Names may be shared by a rule and a reference; what is suggested can be read as it stands.
    uris: dict[str, list[str]] = {}
    for uri, document in snapshot.documents.items():
        uris.setdefault(document.name, []).append(uri)
    sections = (known for known in uris if known.casefold().startswith(_bare(name) + "/"))
    near = list(islice(sections, SECTIONS_SUGGESTED))
    if not near and _is_for_agents(_bare(name)):
        # What one agent reads as CLAUDE.md, often by a link or an import, is AGENTS.md for another.
        near = list(islice(filter(_is_for_agents, uris), SECTIONS_SUGGESTED))
    near = near or names.nearest(unquote(_without_scheme(name)), uris)
    return [uri for known in near for uri in uris[known]]


def _bare(name: str) -> str:
    return unquote(_without_scheme(name)).casefold().removesuffix(".md")


def _is_for_agents(name: str) -> bool:
    """Return whether a name has that of a file for coding agents, such as ``AGENTS``."""
    return any(format_of(f"{part}.md") is Format.AGENTS for part in name.split("/"))


def _slashes(name: str) -> Iterator[int]:
    """Yield the places of slashes from the last to the first; those of deeper paths are not looked at."""
    end = len(name)
    for _ in range(16):
        end = name.rfind("/", 0, end)
        if end <= 0:
            return
        yield end


def uris_meant(name: str) -> list[str]:
    """Return the URIs of documents that a name may mean: it may be one, with or without escapes."""
    kinds = [kind for kind in Kind if kind in DOCUMENT_KINDS]
    stated, plain = [kind for kind in kinds if name.startswith(f"{kind}://")], _without_scheme(name)
    return list(
        dict.fromkeys(uri_of(kind, one) for kind in stated or kinds for one in (plain, unquote(plain)))
    )


def _without_scheme(name: str) -> str:
    return re.sub(r"\A(?:rule|reference)://", "", name)


def _file_text(document: Document, path: str, most: int) -> str:
    assert document.folder is not None
    try:
        data = read_skill_file(document.folder, path, most)
    except UnsafePathError as error:
        raise UnreadableDocumentError(
            f"{one_line(path, 200)} of {document.uri} is not read: {error}"
        ) from None
    except OSError:
        hint = ""
        try:
            known = [name for name, _ in skill_files(document.folder)[0]]
            near = names.nearest(path, known)
            hint = (
                f"; did you mean {' or '.join(near)}?"
                if near
                else f"; it has {', '.join(known[:5]) or 'none'}"
            )
        except (UnsafePathError, OSError):
            pass
        raise UnreadableDocumentError(f"{document.uri} has no file {one_line(path, 200)}{hint}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        where = one_line(str(document.folder.path.joinpath(*path.split("/"))))
        raise UnreadableDocumentError(
            f"{path} of {document.uri} is no text ({_size(len(data))}); it is {where}"
        )
    return clean(text.replace("\r\n", "\n").replace("\r", "\n")).strip("\n")


def _heading_named(section: str, known: Sequence[Heading], uri: str) -> Heading:
    """Return the heading of that full name, or the only one with that end of it, or with all of its words."""
    wanted, words = _plain(section), set(_WORD.findall(_plain(section)))
    found = (
        [one for one in known if _plain(one.name) == wanted]
        or [one for one in known if _plain(one.name).endswith(f"/{wanted}")]
        or [one for one in known if words and words.issubset(_WORD.findall(_plain(one.title)))]
    )
    if len(found) == 1:
        return found[0]
    if found:
        named = " or ".join(one.name for one in found[:5])
        raise UnreadableDocumentError(
            f"several sections of {uri} are called {one_line(section, 100)}: name {named}"
        )
    if not known:
        raise UnreadableDocumentError(f"{uri} has no sections; leave 'section' out")
    near = names.nearest(section.strip(), dict.fromkeys(one.title for one in known), HEADINGS_LIMIT)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"it has {', '.join(one.title for one in known[:8])}"
    )
    raise UnreadableDocumentError(f"{uri} has no section {one_line(section, 100)!r}; {hint}")


def _plain(name: str) -> str:
    """Return the name of a section as it is compared: without signs, case and repeated spaces."""
    parts = (" ".join(part.split()) for part in name.strip().lstrip("#").split("/"))
    return "/".join(parts).casefold()


def paged(text: str) -> list[str]:
    """Divide a text into pages, of at least a half where there is a heading or else a blank line to end it.

    Otherwise a page ends with a line, or within one that is longer than a page. There is at least one page,
    and all of them together are the text.
    """
    pages, start = [], 0
    has_headings = PAGE_CHARACTERS < len(text) <= HEADED_CHARACTERS
    begun = [one.start for one in headings(text)] if has_headings else []
    while len(text) - start > PAGE_CHARACTERS:
        half, most = start + PAGE_CHARACTERS // 2, start + PAGE_CHARACTERS
        end = (
            max((one for one in begun if half < one <= most), default=0)
            or text.rfind("\n\n", half, most) + 1
            or text.rfind("\n", start, most) + 1
            or most
        )
        pages.append(text[start:end])
        start = end
    return [*pages, text[start:]]
