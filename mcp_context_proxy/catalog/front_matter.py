"""Front matter: what a document says about itself between two ``---`` lines at its top.

The YAML is composed into nodes and never constructed into objects: every value is text with a line, so
aliases, merges, dates and numbers have no effect of their own. What is wrong becomes a problem with its
line; what is right beside it still counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import yaml

from mcp_context_proxy.items import IncludeMode
from mcp_context_proxy.wire.text import clean

FRONT_MATTER_LIMIT: Final = 16 * 1024
"""Characters in which the closing line must come: more than any tool writes, and quickly parsed."""

NAME_LIMIT: Final = 200
"""Characters of a name: it is part of a URI that models repeat."""

DESCRIPTION_LIMIT: Final = 1024
"""Characters of a description: it is shown in every search answer, the text itself only when it is read."""

PRIORITY_MAX: Final = 999
"""Three digits; the default stands in the middle."""

_OPENING: Final = re.compile(r"---[ \t]*(?:\n|$)")
_CLOSING: Final = re.compile(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)
_TOP_LEVEL_KEY: Final = re.compile(r"^(?=[A-Za-z_][\w-]*[ \t]*:)", re.MULTILINE)
_NOT_GIVEN: Final = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the front matter."""

    line: int
    """1-based, in the file."""
    message: str


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """What the document says, and its text. None where it does not say, or not in a usable way."""

    body: str
    name: str | None = None
    description: str | None = None
    include: IncludeMode | None = None
    priority: int | None = None
    tags: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_front_matter(text: str) -> FrontMatter:
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
    reader = _Reader()
    if not reader.read(text[opening.end() : closing.start()]):
        return FrontMatter(body=text, problems=tuple(reader.problems))
    return FrontMatter(
        body=text[closing.end() :],
        name=reader.line_of_text("name", NAME_LIMIT),
        description=reader.shortened("description", DESCRIPTION_LIMIT),
        include=reader.include(),
        priority=reader.priority(),
        tags=reader.tags(),
        problems=tuple(sorted(reader.problems, key=lambda problem: problem.line)),
    )


@dataclass(slots=True)
class _Reader:
    """The values by key, and the problems met on the way."""

    nodes: dict[str, tuple[yaml.Node, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def read(self, source: str) -> bool:
        """Take in the YAML. False when it is not front matter at all but text between two rules."""
        try:
            node = _compose(source)
        except (yaml.YAMLError, RecursionError) as error:
            self.problems.append(_yaml_problem(error))
            self._salvage(source)
            return True
        if node is None:
            return True
        if not isinstance(node, yaml.MappingNode):
            self.problems.append(
                Problem(2, "the front matter is not a list of 'key: value' lines; it is taken as text")
            )
            return False
        self._take(node, 2)
        return True

    def _salvage(self, source: str) -> None:
        """Each entry alone: one that other tools write with a syntax of their own harms no other."""
        starts = [match.start() for match in _TOP_LEVEL_KEY.finditer(source)]
        for start, end in pairwise([*starts, len(source)]):
            try:
                node = _compose(source[start:end])
            except (yaml.YAMLError, RecursionError):
                continue
            if isinstance(node, yaml.MappingNode):
                self._take(node, 2 + source.count("\n", 0, start))

    def _take(self, node: yaml.MappingNode, first_line: int) -> None:
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                self.nodes[key.value] = value, first_line + key.start_mark.line

    def line_of_text(self, key: str, limit: int) -> str | None:
        """A text without line breaks; a longer one is a problem and not used."""
        text = self._text(key)
        if text is not None and len(text) > limit:
            self._problem(key, f"is over {limit} characters and is ignored")
            return None
        return text

    def shortened(self, key: str, limit: int) -> str | None:
        """A text without line breaks; a longer one is a problem and cut."""
        text = self._text(key)
        if text is not None and len(text) > limit:
            self._problem(key, f"is over {limit} characters and is cut")
            return shorten(text, limit)
        return text

    def include(self) -> IncludeMode | None:
        text = self._text("include")
        if text is None:
            return None
        try:
            return IncludeMode(text.lower())
        except ValueError:
            self._problem("include", f"must be one of {', '.join(IncludeMode)} and is ignored")
            return None

    def priority(self) -> int | None:
        text = self._text("priority")
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{1,3}", text):
            return int(text)
        self._problem("priority", f"must be a whole number from 0 to {PRIORITY_MAX} and is ignored")
        return None

    def tags(self) -> tuple[str, ...]:
        node = self.nodes.get("tags", (None, 0))[0]
        if isinstance(node, yaml.SequenceNode):
            scalars = [item.value for item in node.value if isinstance(item, yaml.ScalarNode)]
            if len(scalars) < len(node.value):
                self._problem("tags", "must be a list of words; what is not one is ignored")
        else:
            scalars = (self._text("tags") or "").split(",")
        return tuple(dict.fromkeys(tag for tag in map(one_line, scalars) if tag))

    def _text(self, key: str) -> str | None:
        node = self.nodes.get(key, (None, 0))[0]
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            self._problem(key, "must be text and is ignored")
            return None
        if node.style is None and node.value in _NOT_GIVEN:
            return None
        return one_line(node.value) or None

    def _problem(self, key: str, message: str) -> None:
        self.problems.append(Problem(self.nodes[key][1], f"'{key}' in the front matter {message}"))


def _compose(source: str) -> yaml.Node | None:
    node: yaml.Node | None = yaml.compose(source, Loader=yaml.BaseLoader)
    return node


def _yaml_problem(error: Exception) -> Problem:
    advice = "what can be read of it is used; put values with special characters in quotes"
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(1, f"the front matter is not valid YAML; {advice}")
    # What is never closed fails at the end of the text; where it was opened is the place to mend.
    unclosed = "end of stream" in (error.problem or "")
    mark = (error.context_mark if unclosed else None) or error.problem_mark
    line = mark.line + 2 if mark is not None else 1
    return Problem(line, f"the front matter is not valid YAML ({error.problem}); {advice}")


def one_line(text: str) -> str:
    """Clean text with single spaces and no line breaks."""
    return " ".join(clean(text).split())


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut between words where there are any, with a mark."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    return f"{head.rsplit(' ', 1)[0] if ' ' in head else head}…"
