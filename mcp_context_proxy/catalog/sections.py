"""The sections of a markdown text: each heading of the first or second level begins one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mcp_context_proxy.catalog.fences import with_code_marked

SECTIONS_LIMIT: Final = 200
"""Of one file: ten times a long one; each is a document of its own."""

_HEADING: Final = re.compile(r" {0,3}(#{1,2})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")


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
        heading = None if code else _HEADING.match(line)
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
        match = _HEADING.match(line)
        path = (match[2],) if match else ()
        if level == 1:
            above = path if several else ()
        sections.append(Section(above + path if level > 1 else path, line.strip(), "\n".join(lines).strip()))
    return sections
