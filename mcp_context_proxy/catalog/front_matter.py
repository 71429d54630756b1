"""Front matter: what a document says about itself between two ``---`` lines at its top.

The keys are this proxy's own; in the formats of other programs theirs count beside them, and ours first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mcp_context_proxy.catalog.entries import Entries, Problem, shorten
from mcp_context_proxy.catalog.formats import Format
from mcp_context_proxy.items import IncludeMode

FRONT_MATTER_LIMIT: Final = 16 * 1024
"""Characters in which the closing line must come: more than any tool writes, and quickly parsed."""

NAME_LIMIT: Final = 200
"""Characters of a name: it is part of a URI that models repeat."""

DESCRIPTION_LIMIT: Final = 1024
"""Characters of a description: it is shown in every search answer, the text itself only when it is read."""

PATTERNS_LIMIT: Final = 200
"""Characters of the patterns of files that a description ends with."""

PRIORITY_MAX: Final = 999
"""Three digits; the default stands in the middle."""

_OPENING: Final = re.compile(r"---[ \t]*(?:\n|$)")
_CLOSING: Final = re.compile(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """What the document says, and its text. None where it does not say, or not in a usable way."""

    body: str
    name: str | None = None
    description: str | None = None
    include: IncludeMode | None = None
    priority: int | None = None
    tags: tuple[str, ...] = ()
    patterns: str = ""
    """Of the files that it is about, as a text; empty when it says none."""
    problems: tuple[Problem, ...] = ()


def read_front_matter(text: str, form: Format = Format.MARKDOWN) -> FrontMatter:
    """Divide a document into what it says about itself and its text. Never fails.

    Lines end with a newline alone.
    """
    opening = _OPENING.match(text)
    if opening is None:
        return FrontMatter(body=text)
    closing = _CLOSING.search(text, opening.end(), opening.end() + FRONT_MATTER_LIMIT)
    if closing is None:
        problem = Problem(1, "the front matter is not closed by a line '---'; all of it is taken as text")
        return FrontMatter(body=text, problems=(problem,))
    entries = Entries()
    if not entries.read(text[opening.end() : closing.start()], loose=form is Format.CURSOR):
        return FrontMatter(body=text, problems=tuple(entries.problems))
    return FrontMatter(
        body=text[closing.end() :],
        name=entries.line_of_text("name", NAME_LIMIT),
        description=entries.shortened("description", DESCRIPTION_LIMIT),
        include=_include(entries) or _INCLUDE_OF.get(form, _unsaid)(entries),
        priority=_priority(entries),
        tags=entries.words("tags"),
        patterns=_patterns(entries) if form is Format.CURSOR else "",
        problems=tuple(sorted(dict.fromkeys(entries.problems), key=lambda problem: problem.line)),
    )


def _include(entries: Entries) -> IncludeMode | None:
    text = entries.text("include")
    if text is None:
        return None
    try:
        return IncludeMode(text.lower())
    except ValueError:
        entries.problem("include", f"must be one of {', '.join(IncludeMode)} and is ignored")
        return None


def _include_of_cursor(entries: Entries) -> IncludeMode | None:
    """As Cursor does: always, or when the description or a file calls for it, or only by name."""
    always = entries.flag("alwaysApply")
    if always is None:
        return None
    if always:
        return IncludeMode.ALWAYS
    called_for = entries.text("description") or entries.words("globs")
    return IncludeMode.AGENT if called_for else IncludeMode.MANUAL


def _include_of_skill(entries: Entries) -> IncludeMode | None:
    """A skill that only a person may call for is never found by a model."""
    return IncludeMode.MANUAL if entries.flag("disable-model-invocation") else None


def _patterns(entries: Entries) -> str:
    """Without those for every file, which tell nothing."""
    telling = (pattern for pattern in entries.words("globs") if re.search(r"\w", pattern))
    return shorten(", ".join(telling), PATTERNS_LIMIT)


def _unsaid(entries: Entries) -> IncludeMode | None:
    del entries
    return None


_INCLUDE_OF: Final[dict[Format, Callable[[Entries], IncludeMode | None]]] = {
    Format.CURSOR: _include_of_cursor,
    Format.SKILL: _include_of_skill,
}


def _priority(entries: Entries) -> int | None:
    text = entries.text("priority")
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,3}", text):
        return int(text)
    entries.problem("priority", f"must be a whole number from 0 to {PRIORITY_MAX} and is ignored")
    return None
