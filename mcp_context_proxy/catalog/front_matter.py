"""Front matter: what a document says about itself between two ``---`` lines at its top.

The keys are this proxy's own; in the formats of other programs theirs count beside them, and ours first.

The entries of front matter: each a text with its line, whatever is wrong beside it.

The YAML is composed into nodes and never constructed into objects: every value is text, so aliases, merges,
dates and numbers have no effect of their own. What is wrong becomes a problem with its line; what is right
beside it still counts.

What a file is, by its name alone: plain markdown, or what a host or an editor keeps for its own use.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final

import yaml

from mcp_context_proxy.items import IncludeMode, Kind
from mcp_context_proxy.protocol.text import clean

FIRST_LINE: Final = 2
"""Of the entries in their file: a line ``---`` comes before them."""

_TOP_LEVEL_KEY: Final = re.compile(r"^(?=[A-Za-z_][\w-]*[ \t]*:)", re.MULTILINE)
_NOT_PLAIN: Final = ("'", '"', "|", ">", "[", "{")
"""Beginnings of values that are no plain text; what is wrong there is not what somebody meant to say."""

_NOT_GIVEN: Final = frozenset({"", "~", "null", "Null", "NULL"})
_COMMA: Final = re.compile(r",(?![^{]*\})")
"""Between words, not between the braces of a pattern."""


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """One thing that is wrong with the front matter."""

    line: int
    """1-based, in the file."""
    message: str


@dataclass(slots=True)
class Entries:
    """The values by key, and the problems met on the way."""

    nodes: dict[str, tuple[yaml.Node, int]] = field(default_factory=dict)
    problems: list[EntryProblem] = field(default_factory=list)

    def read(self, source: str, *, loose: bool = False) -> bool:
        """Take in the YAML. False when it is not front matter at all but text between two rules.

        Args:
            source: The lines between the two rules.
            loose: Whether single lines that are not YAML are as good: what some editors write themselves.
        """
        try:
            node = _compose(source)
        except (yaml.YAMLError, RecursionError) as error:
            if not (self._salvage(source) and loose):
                self.problems.append(_yaml_problem(error))
            return True
        if node is None:
            return True
        if not isinstance(node, yaml.MappingNode):
            message = "the front matter is not a list of 'key: value' lines; it is taken as text"
            self.problems.append(EntryProblem(FIRST_LINE, message))
            return False
        self._take(node, FIRST_LINE)
        return True

    def _salvage(self, source: str) -> bool:
        """Each entry alone: one that is not YAML harms no other. Whether all could be read in some way."""
        starts = dict.fromkeys([0, *(match.start() for match in _TOP_LEVEL_KEY.finditer(source))])
        complete = True
        for start, end in pairwise([*starts, len(source)]):
            line = FIRST_LINE + source.count("\n", 0, start)
            try:
                node = _compose(source[start:end])
            except (yaml.YAMLError, RecursionError):
                complete &= self._take_as_text(source[start:end], line)
                continue
            if isinstance(node, yaml.MappingNode):
                self._take(node, line)
            else:
                complete &= node is None
        return complete

    def _take(self, node: yaml.MappingNode, first_line: int) -> None:
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                self.nodes[key.value] = value, first_line + key.start_mark.line

    def _take_as_text(self, entry: str, line: int) -> bool:
        """One line as it stands: a pattern that begins with ``*``, a sentence with a colon in it."""
        first, *others = entry.split("\n")
        key, colon, rest = first.partition(":")
        value = rest.split(" #", 1)[0].strip()
        if not colon or any(other.strip() and not other.startswith("#") for other in others):
            return False
        if key.strip() != "globs" and value.startswith(_NOT_PLAIN):
            return False
        self.nodes[key.strip()] = yaml.ScalarNode("", value), line
        return True

    def line_of_text(self, key: str, limit: int) -> str | None:
        """A text without line breaks; a longer one is a problem and not used."""
        text = self.text(key)
        if text is not None and len(text) > limit:
            self.problem(key, f"is over {limit} characters and is ignored")
            return None
        return text

    def shortened(self, key: str, limit: int) -> str | None:
        """A text without line breaks; a longer one is a problem and cut."""
        text = self.text(key)
        if text is not None and len(text) > limit:
            self.problem(key, f"is over {limit} characters and is cut")
            return shorten(text, limit)
        return text

    def flag(self, key: str) -> bool | None:
        """True or false; anything else is a problem."""
        text = self.text(key)
        if text is None or text.lower() in ("true", "false"):
            return None if text is None else text.lower() == "true"
        self.problem(key, "must be true or false and is ignored")
        return None

    def words(self, key: str) -> tuple[str, ...]:
        """A list, or one text with commas; each word once."""
        node = self.nodes.get(key, (None, 0))[0]
        if isinstance(node, yaml.SequenceNode):
            scalars = [item.value for item in node.value if isinstance(item, yaml.ScalarNode)]
            if len(scalars) < len(node.value):
                self.problem(key, "must be a list of words; what is not one is ignored")
        else:
            scalars = _COMMA.split(self.text(key) or "")
        return tuple(dict.fromkeys(word for word in map(one_line, scalars) if word))

    def text(self, key: str) -> str | None:
        """A text without line breaks; anything but text is a problem."""
        node = self.nodes.get(key, (None, 0))[0]
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            self.problem(key, "must be text and is ignored")
            return None
        if node.style is None and node.value in _NOT_GIVEN:
            return None
        return one_line(node.value) or None

    def problem(self, key: str, message: str) -> None:
        """Tell what is wrong with the value of a key."""
        self.problems.append(EntryProblem(self.nodes[key][1], f"'{key}' in the front matter {message}"))


def _compose(source: str) -> yaml.Node | None:
    node: yaml.Node | None = yaml.compose(source, Loader=yaml.BaseLoader)
    return node


def _yaml_problem(error: Exception) -> EntryProblem:
    advice = "what can be read of it is used; put values with special characters in quotes"
    if not isinstance(error, yaml.MarkedYAMLError):
        return EntryProblem(1, f"the front matter is not valid YAML; {advice}")
    # What is never closed fails at the end of the text; where it was opened is the place to mend.
    unclosed = "end of stream" in (error.problem or "")
    mark = (error.context_mark if unclosed else None) or error.problem_mark
    line = mark.line + FIRST_LINE if mark is not None else 1
    return EntryProblem(line, f"the front matter is not valid YAML ({error.problem}); {advice}")


def one_line(text: str) -> str:
    """Clean text with single spaces and no line breaks."""
    return " ".join(clean(text).split())


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut between words where there are any, with a mark."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    return f"{head.rsplit(' ', 1)[0] if ' ' in head else head}…"


class Format(Enum):
    """How a file is read."""

    MARKDOWN = auto()
    CURSOR = auto()
    """A rule of Cursor: ``NAME.mdc``, or ``RULE.md`` in a folder called NAME."""
    SKILL = auto()
    """An Agent Skill: ``SKILL.md`` in a folder called as the skill is."""
    AGENTS = auto()
    """What coding agents are told of a project: ``AGENTS.md`` or ``CLAUDE.md``."""


_BY_NAME: Final = {
    "rule.md": Format.CURSOR,
    "skill.md": Format.SKILL,
    "agents.md": Format.AGENTS,
    "claude.md": Format.AGENTS,
}


def format_of(relative: str) -> Format:
    """The format of a file."""
    path = PurePosixPath(relative.lower())
    return Format.CURSOR if path.suffix == ".mdc" else _BY_NAME.get(path.name, Format.MARKDOWN)


def usual_kind(form: Format) -> Kind:
    """What documents of a format are, where the configuration does not say it."""
    return Kind.RULE if form is Format.CURSOR else Kind.REFERENCE


def usual_name(relative: str, folder: str) -> str:
    """The name of a document that gives none: its path without suffix, or that of its folder.

    Args:
        relative: Path of the file from the configured folder, with ``/``.
        folder: Name of the folder that the file is in.
    """
    path = PurePosixPath(relative)
    if path.name.lower() not in ("rule.md", "skill.md"):
        return str(path.with_suffix(""))
    return str(path.parent) if path.parent.name else folder


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
    problems: tuple[EntryProblem, ...] = ()


def read_front_matter(text: str, form: Format = Format.MARKDOWN) -> FrontMatter:
    """Divide a document into what it says about itself and its text. Never fails.

    Lines end with a newline alone.
    """
    opening = _OPENING.match(text)
    if opening is None:
        return FrontMatter(body=text)
    closing = _CLOSING.search(text, opening.end(), opening.end() + FRONT_MATTER_LIMIT)
    if closing is None:
        problem = EntryProblem(
            1, "the front matter is not closed by a line '---'; all of it is taken as text"
        )
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
