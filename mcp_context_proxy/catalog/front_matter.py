"""Reads front matter: the entries of a markdown document between two ``---`` lines at its top.

The keys are the proxy's own; files of coding agents and editors have theirs beside them, and the proxy's
count first. The YAML is composed into nodes and never constructed into objects: every value is text, so
aliases, merges, dates and numbers have no effect of their own. A mistake becomes a problem with its line; the
entries that are right still count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from itertools import chain, islice, pairwise
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from msgspec import Struct, field

from mcp_context_proxy.items import IncludeMode
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system.later import pattern, yaml

FRONT_MATTER_LIMIT: Final = 16 * 1024
"""Characters in which the closing line must come: more than any tool writes, and quickly parsed."""

NAME_LIMIT: Final = 200
"""Characters of a name: it is part of a URI that models repeat."""

DESCRIPTION_LIMIT: Final = 1024
"""Characters of a description: it is shown in every search answer, the text itself only when it is read."""

PATTERNS_LIMIT: Final = 200
"""Characters of the patterns of files at the end of a description."""

PRIORITY_MAX: Final = 999
"""Three digits; the default stands in the middle."""

FIRST_LINE: Final = 2
"""Line of the first entry in its file: a line ``---`` comes before it."""

_OPENING: Final = pattern(r"---[ \t]*(?:\n|$)")
_CLOSING: Final = pattern(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)
_TOP_LEVEL_KEY: Final = pattern(r"^(?=[A-Za-z_][\w-]*[ \t]*:)", re.MULTILINE)
_NOT_PLAIN: Final = ("'", '"', "|", ">", "[", "{")
"""First characters of values that are no plain text: with a mistake in them they are not used."""
_NOT_GIVEN: Final = frozenset({"", "~", "null", "Null", "NULL"})
_MARK: Final = pattern(r"[,{}]")

PATTERN_KEYS: Final = ("globs", "paths", "applyTo", "fileMatchPattern")
"""Keys under which editors and agents keep the patterns of the files that a rule is for: those of Cursor,
Claude Code, VS Code and Kiro; others use the same."""

_PATTERNS: Final = pattern(rf"^(?:{'|'.join(PATTERN_KEYS)})[ \t]*:", re.MULTILINE)

_WHEN: Final = {
    "trigger": {
        "always_on": IncludeMode.ALWAYS,
        "glob": IncludeMode.AGENT,
        "model_decision": IncludeMode.AGENT,
        "manual": IncludeMode.MANUAL,
    },
    "inclusion": {
        "always": IncludeMode.ALWAYS,
        "fileMatch": IncludeMode.AGENT,
        "auto": IncludeMode.AGENT,
        "manual": IncludeMode.MANUAL,
    },
}
"""Words of Windsurf and of Kiro for when a rule applies."""

_EVERY_FILE: Final = frozenset({"*", "**", "**/*", "*.*", "**/*.*"})

WORDS_LIMIT: Final = 100
"""Words of a list that are used: each is kept with every section of a file."""

BRACKETS_LIMIT: Final = 200
"""Brackets and braces in front matter: parsing a thousand that are nested takes seconds."""

ENTRIES_LIMIT: Final = 100
"""Entries that are parsed one by one where they cannot be parsed together: a rule has fewer than 20."""


class Format(Enum):
    """Format of a document file, told by its name alone."""

    MARKDOWN = auto()
    CURSOR = auto()
    """A rule of Cursor: ``NAME.mdc``, or ``RULE.md`` in a folder called NAME."""
    SKILL = auto()
    """An Agent Skill: ``SKILL.md`` in a folder called as the skill is."""
    AGENTS = auto()
    """Instructions of a project for coding agents, such as ``AGENTS.md`` and ``CLAUDE.md``."""


_BY_NAME: Final = {
    "rule.md": Format.CURSOR,
    "skill.md": Format.SKILL,
    "agents.md": Format.AGENTS,
    "claude.md": Format.AGENTS,
    "claude.local.md": Format.AGENTS,
    "gemini.md": Format.AGENTS,
    "copilot-instructions.md": Format.AGENTS,
    ".cursorrules": Format.AGENTS,
    ".windsurfrules": Format.AGENTS,
    ".clinerules": Format.AGENTS,
}


def format_of(relative: str) -> Format:
    path = PurePosixPath(relative.lower())
    return Format.CURSOR if path.suffix == ".mdc" else _BY_NAME.get(path.name, Format.MARKDOWN)


def default_name(relative: str, folder: str) -> str:
    """Return the name of a document without its own: its path without suffix, or that of its folder.

    ``folder`` is the name of the folder that the file is in.
    """
    path = PurePosixPath(relative)
    if path.name.lower() not in ("rule.md", "skill.md"):
        return str(path.with_suffix("")).removeprefix(".")
    return str(path.parent) if path.parent.name else folder


Problem: TypeAlias = tuple[int | None, str]
"""A mistake with its line in the file, 1-based; None when it is about the file as a whole."""


class FrontMatter(Struct, frozen=True):
    """The entries of a document and its text. None where an entry is missing or not usable."""

    body: str
    name: str | None = None
    title: str | None = None
    description: str | None = None
    include: IncludeMode | None = None
    priority: int | None = None
    tags: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Patterns of the files that it is for; none where it names none, or every file.

    A pattern of every file says nothing about a request: a folder of rules that all have one would come with
    each that names a file.
    """
    is_rule: bool = False
    """True if it says when it applies, as rules of editors and agents do."""
    problems: tuple[Problem, ...] = ()


def read_front_matter(text: str, form: Format = Format.MARKDOWN) -> FrontMatter:
    """Divide a document into front matter and text. Never fails.

    Lines end with a newline alone.
    """
    opening = _OPENING.match(text)
    if opening is None:
        return FrontMatter(body=text)
    closing = _CLOSING.search(text, opening.end(), opening.end() + FRONT_MATTER_LIMIT)
    if closing is None:
        message = "the front matter is not closed by a line '---'; all of it is taken as text"
        return FrontMatter(body=text, problems=((1, message),))
    entries = _Entries()
    source = text[opening.end() : closing.start()]
    # Editors write patterns that are no YAML, such as one that begins with an asterisk.
    if not entries.read(source, loose=form is Format.CURSOR or _PATTERNS.search(source) is not None):
        return FrontMatter(body=text, problems=tuple(entries.problems))
    return FrontMatter(
        body=text[closing.end() :],
        name=entries.name(),
        title=entries.title(),
        description=entries.description(),
        include=entries.include(form),
        priority=entries.priority(),
        tags=entries.words("tags"),
        patterns=() if _EVERY_FILE.intersection(patterns := entries.patterns()) else patterns,
        is_rule=entries.is_rule(),
        problems=tuple(sorted(dict.fromkeys(entries.problems), key=lambda problem: problem[0] or 0)),
    )


def front_matter_nodes(text: str) -> yaml.MappingNode:
    """Return the front matter of a document as YAML nodes, whatever its keys.

    Raises `ValueError` if there is none, or it is not YAML of moderate size.
    """
    opening = _OPENING.match(text)
    closing = opening and _CLOSING.search(text, opening.end(), opening.end() + FRONT_MATTER_LIMIT)
    if opening is None or closing is None:
        raise ValueError("it does not begin with front matter between two lines '---'")
    source = text[opening.end() : closing.start()]
    if source.count("[") + source.count("{") > BRACKETS_LIMIT:
        raise ValueError(f"its front matter has over {BRACKETS_LIMIT} brackets")
    try:
        node = yaml.compose(source, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):
        raise ValueError("its front matter is not valid YAML") from None
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("its front matter is not a list of 'key: value' lines")
    return node


class _Entries(Struct):
    """The values by key with their lines, and the problems met on the way."""

    nodes: dict[str, tuple[yaml.Node, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def read(self, source: str, *, loose: bool) -> bool:
        """Parse the YAML between the two rules; False when it is text and no front matter at all.

        With ``loose``, lines that are not YAML are no problem where they can be read: some editors write
        them.
        """
        if source.count("[") + source.count("{") > BRACKETS_LIMIT:
            message = f"the front matter has over {BRACKETS_LIMIT} brackets and is ignored"
            self.problems.append((1, message))
            return True
        try:
            node = yaml.compose(source, Loader=yaml.BaseLoader)
        except (yaml.YAMLError, RecursionError) as error:
            if not (self._read_each(source) and loose):
                self.problems.append(_yaml_problem(error))
            return True
        if node is None:
            return True
        if not isinstance(node, yaml.MappingNode):
            message = "the front matter is not a list of 'key: value' lines; it is taken as text"
            self.problems.append((FIRST_LINE, message))
            return False
        self._add(node, FIRST_LINE)
        return True

    def name(self) -> str | None:
        text = self._text("name")
        if text is not None and len(text) > NAME_LIMIT:
            self._problem("name", f"is over {NAME_LIMIT} characters and is ignored")
            return None
        return text

    def title(self) -> str | None:
        """Return the title that generators of sites show above the text; anything but text is none."""
        node = self.nodes.get("title", (None, 0))[0]
        text = self._text("title") if isinstance(node, yaml.ScalarNode) else None
        return None if text is None else shorten(text, NAME_LIMIT)

    def description(self) -> str | None:
        """Return the description, and the text that Claude Code adds to it to say when a skill is used."""
        parts = [text for key in ("description", "when_to_use") if (text := self._text(key)) is not None]
        text = " ".join(parts) if "description" in self.nodes and parts else None
        if text is not None and len(text) > DESCRIPTION_LIMIT:
            self._problem("description", f"is over {DESCRIPTION_LIMIT} characters and is cut")
            return shorten(text, DESCRIPTION_LIMIT)
        return text

    def include(self, form: Format) -> IncludeMode | None:
        if (text := self._text("include")) is not None:
            try:
                return IncludeMode(text.lower())
            except ValueError:
                self._problem("include", f"must be one of {', '.join(IncludeMode)} and is ignored")
        if form is not Format.SKILL and (always := self._flag("alwaysApply")) is not None:
            # As Cursor does: always, or when the description or a file calls for it, or only by name.
            if always:
                return IncludeMode.ALWAYS
            called_for = self._text("description") or self.patterns()
            return IncludeMode.AGENT if called_for else IncludeMode.MANUAL
        if form is Format.SKILL and self._flag("disable-model-invocation"):
            return IncludeMode.MANUAL
        return None if form in (Format.CURSOR, Format.SKILL) else self._when()

    def patterns(self) -> tuple[str, ...]:
        return next((found for key in PATTERN_KEYS if (found := self.words(key))), ())

    def is_rule(self) -> bool:
        return "alwaysApply" in self.nodes or bool(self.patterns()) or self._when() is not None

    def _when(self) -> IncludeMode | None:
        """Return when a rule of another program than Cursor applies; None where it does not say that."""
        for key, modes in _WHEN.items():
            if key in self.nodes and (mode := modes.get(self._text(key) or "")) is not None:
                return mode
        patterns = self.patterns()
        if patterns and "globs" not in self.nodes and _EVERY_FILE.issuperset(patterns):
            return IncludeMode.ALWAYS
        return IncludeMode.AGENT if patterns else None

    def priority(self) -> int | None:
        text = self._text("priority")
        if text is None or re.fullmatch(r"[0-9]{1,3}", text):
            return None if text is None else int(text)
        self._problem("priority", f"must be a whole number from 0 to {PRIORITY_MAX} and is ignored")
        return None

    def words(self, key: str) -> tuple[str, ...]:
        """Return the words of a list, or of one text with commas; each once."""
        node = self.nodes.get(key, (None, 0))[0]
        scalars: Iterable[str]
        if isinstance(node, yaml.SequenceNode):
            # YAML takes a pattern after a ``!`` for a tag.
            nodes = [item for item in node.value if isinstance(item, yaml.ScalarNode)]
            scalars = [item.value or item.tag if item.tag.startswith("!") else item.value for item in nodes]
            if len(nodes) < len(node.value):
                self._problem(key, "must be a list of words; other values in it are ignored")
        else:
            scalars = _divided(self._text(key) or "")
        # Each once before it is cleaned as well: a list may repeat one long text by a reference.
        words = dict.fromkeys(word for word in map(one_line, dict.fromkeys(scalars)) if word)
        if len(words) > WORDS_LIMIT:
            self._problem(key, f"has over {WORDS_LIMIT} words; the first {WORDS_LIMIT} are used")
        return tuple(islice(words, WORDS_LIMIT))

    def _flag(self, key: str) -> bool | None:
        text = self._text(key)
        if text is None or text.lower() in ("true", "false"):
            return None if text is None else text.lower() == "true"
        self._problem(key, "must be true or false and is ignored")
        return None

    def _text(self, key: str) -> str | None:
        """Return a text without line breaks; anything but text is a problem."""
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
        self.problems.append((self.nodes[key][1], f"'{key}' in the front matter {message}"))

    def _read_each(self, source: str) -> bool:
        """Parse each entry alone, so that a mistake harms no other; return whether all could be read."""
        starts = dict.fromkeys([0, *(match.start() for match in _TOP_LEVEL_KEY.finditer(source))])
        complete = len(starts) <= ENTRIES_LIMIT
        for start, end in pairwise([*starts, len(source)][: ENTRIES_LIMIT + 1]):
            line = FIRST_LINE + source.count("\n", 0, start)
            try:
                node = yaml.compose(source[start:end], Loader=yaml.BaseLoader)
            except (yaml.YAMLError, RecursionError):
                complete &= self._add_plain(source[start:end], line)
                continue
            if isinstance(node, yaml.MappingNode):
                self._add(node, line)
            else:
                complete &= node is None
        return complete

    def _add(self, node: yaml.MappingNode, first_line: int) -> None:
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                self.nodes[key.value] = value, first_line + key.start_mark.line

    def _add_plain(self, entry: str, line: int) -> bool:
        """Take one line as plain text: a sentence with a colon in it; and patterns that are no YAML list."""
        key, colon, rest = entry.partition(":")
        key, is_listed = key.strip(), key.strip() in PATTERN_KEYS
        values = [one.split(" #", 1)[0].strip() for one in rest.split("\n") if not one.startswith("#")]
        if is_listed:
            values = [",".join(_unquoted(one.removeprefix("- ")) for one in values if one)]
        if not colon or any(values[1:]) or (values[0].startswith(_NOT_PLAIN) and not is_listed):
            return False
        self.nodes[key] = yaml.ScalarNode("", values[0]), line
        return True


def _unquoted(patterns: str) -> str:
    """Return patterns without the quotes and brackets of a list; brackets of characters stay."""
    is_list = patterns.startswith("[") and patterns.endswith("]") and patterns.count("[") == 1
    return re.sub("['\"]", "", patterns[1:-1] if is_list else patterns)


def patterns_text(patterns: Iterable[str]) -> str:
    """Return the patterns that say what a description is about: not those of every file, or of no file."""
    told = (one for one in patterns if re.search(r"^[^!]*\w", one))
    return shorten(", ".join(told), PATTERNS_LIMIT)


def _yaml_problem(error: Exception) -> Problem:
    advice = "the readable entries are used; put values with special characters in quotes"
    if not isinstance(error, yaml.MarkedYAMLError):
        return 1, f"the front matter is not valid YAML; {advice}"
    # An unclosed value fails at the end of the text; the place to mend is where it was opened.
    unclosed = "end of stream" in (error.problem or "")
    mark = (error.context_mark if unclosed else None) or error.problem_mark
    line = mark.line + FIRST_LINE if mark is not None else 1
    return line, f"the front matter is not valid YAML ({error.problem}); {advice}"


def _divided(text: str) -> Iterator[str]:
    """Divide a text at the commas between words, not at those between the braces of a pattern."""
    begin, undecided = 0, list[int]()
    for mark in chain(_MARK.finditer(text), (None,)):
        if mark is not None and mark[0] == ",":
            undecided.append(mark.start())
            continue
        # The brace after a comma decides: a closing one means that the comma is between braces.
        for comma in undecided if mark is None or mark[0] == "{" else ():
            yield text[begin:comma]
            begin = comma + 1
        undecided.clear()
    yield text[begin:]


def shorten(text: str, limit: int) -> str:
    """Cut a text to at most ``limit`` characters, between words where there are any, with a mark."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    return f"{head.rsplit(' ', 1)[0] if ' ' in head else head}…"
