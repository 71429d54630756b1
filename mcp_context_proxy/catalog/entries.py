"""The entries of front matter: each a text with its line, whatever is wrong beside it.

The YAML is composed into nodes and never constructed into objects: every value is text, so aliases, merges,
dates and numbers have no effect of their own. What is wrong becomes a problem with its line; what is right
beside it still counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import yaml

from mcp_context_proxy.wire.text import clean

FIRST_LINE: Final = 2
"""Of the entries in their file: a line ``---`` comes before them."""

_TOP_LEVEL_KEY: Final = re.compile(r"^(?=[A-Za-z_][\w-]*[ \t]*:)", re.MULTILINE)
_NOT_PLAIN: Final = ("'", '"', "|", ">", "[", "{")
"""Beginnings of values that are no plain text; what is wrong there is not what somebody meant to say."""

_NOT_GIVEN: Final = frozenset({"", "~", "null", "Null", "NULL"})
_COMMA: Final = re.compile(r",(?![^{]*\})")
"""Between words, not between the braces of a pattern."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the front matter."""

    line: int
    """1-based, in the file."""
    message: str


@dataclass(slots=True)
class Entries:
    """The values by key, and the problems met on the way."""

    nodes: dict[str, tuple[yaml.Node, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

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
            self.problems.append(Problem(FIRST_LINE, message))
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
    line = mark.line + FIRST_LINE if mark is not None else 1
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
