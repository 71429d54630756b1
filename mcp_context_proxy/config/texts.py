"""Texts of configuration files, TOML, JSON and YAML, with the line of each key.

Problems name the line of a key, which neither `tomllib` nor `json` tells, so it is searched for. That is done
only for text that the real parser has accepted, and a line that is not found is no error.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from mcp_context_proxy.system.later import pattern

KeyPath: TypeAlias = tuple[str | int, ...]
"""``("servers", "github", "args", 0)``."""

ROW: Final = pattern(r"[^\n]*\n|[^\n]+")
"""A line with its end; `str.splitlines` also divides at characters that may stand in texts."""
MOST_ROWS: Final = 100
"""Rows of one TOML statement, such as an array, that are searched: each takes a parse of all before it."""
_ENDS: Final = ("", "]", "]}", "]]", "]}]", "]}}")
"""Ends that complete a statement of which only the first rows are known."""
_TOML_TOKEN: Final = pattern(
    r""""{3}[^"\\]*(?:(?:\\.|"{1,2}(?!"))[^"\\]*)*"{3,5}|'{3}[^']*(?:'{1,2}(?!')[^']*)*'{3,5}|"""
    r""""(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|[][{}\n]""",
    re.DOTALL,
)
"""A text, a comment, a bracket or the end of a row: by them one sees where a statement ends."""


class Statement(Struct, frozen=True):
    """One statement of a TOML text: the header of a table, a key with its value, or a row with neither."""

    begin: int
    """Its first row; the first of all is 0."""
    end: int
    """The row after its last one."""
    opens: bool
    """True for a header."""
    table: KeyPath
    """The table that it opens, or in which it stands. In an array of tables, the latest element is meant."""
    value: Mapping[str, Any]
    """The keys that it sets in that table."""


def toml_statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a TOML text; those that are not valid are left out."""
    rows, table, sizes = ROW.findall(text), KeyPath(), dict[KeyPath, int]()
    for begin, end in _divided(text):
        statement = "".join(rows[begin:end])
        if (value := _parsed(statement)) is None:
            continue
        if opens := statement.lstrip().startswith("["):
            table = ()
            while value:
                part, value = next(iter(value.items()))
                table = (*table, part)
                if isinstance(value, list):
                    value, sizes[table] = {}, sizes.get(table, 0) + 1
                if table in sizes:
                    table = (*table, sizes[table] - 1)
        yield Statement(begin, end, opens, table, value)


def _divided(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first row of each statement, and the row after its last one."""
    begin = row = depth = 0
    for token in _TOML_TOKEN.finditer(text):
        found = token[0]
        row += found.count("\n")
        depth += (found in ("[", "{")) - (found in ("]", "}"))
        if found == "\n" and not depth:
            yield begin, row
            begin = row
    if not text.endswith("\n"):
        yield begin, row + 1


def toml_lines(text: str) -> dict[KeyPath, int]:
    """Return the 1-based line of each table, key and array element of a TOML text.

    A statement of several rows is also parsed as if it ended with each of them: the keys and elements that
    are new then stand on that row.
    """
    lines: dict[KeyPath, int] = {}
    rows = ROW.findall(text)
    for one in toml_statements(text):
        line = one.begin + 1
        for size in range(1, len(one.table) + 1 if one.opens else 0):
            lines.setdefault(one.table[:size], line)
        for end in (*range(line, min(one.end, one.begin + MOST_ROWS)), one.end):
            value = one.value if end == one.end else _parsed("".join(rows[one.begin : end]), _ENDS)
            if value is not None:
                for path, _ in parts_of(value):
                    lines.setdefault((*one.table, *path), line)
                line = end + 1
    return lines


def _parsed(statement: str, ends: Iterable[str] = ("",)) -> Any:
    """Return the tables of a statement, with the first end that completes it; None if there is none."""
    for end in ends:
        with suppress(ValueError, RecursionError):
            return tomllib.loads(statement + end)
    return None


def parts_of(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield everything in a table or a list, each with its path."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in inside:
        yield (*path, part), inner
        yield from parts_of(inner, (*path, part))


_COMMENT: Final = pattern(r'("(?:[^"\\\n]|\\.)*+"?)|//[^\n]*+|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA: Final = pattern(r'("(?:[^"\\\n]|\\.)*+"?)|,(?=\s*+[\]}])')
_VISIBLE: Final = pattern(r"\S")
_TOKEN: Final = pattern(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++')


def read_json(text: str, **options: Any) -> Any:
    """Return the data of JSON with comments and trailing commas; raises `ValueError` if it is not valid."""
    # To look for comments takes twenty times as long, and hosts keep megabytes without any.
    with suppress(ValueError):
        return json.loads(text, **options)
    return json.loads(_blanked(text), **options)


def plain_json(text: str) -> str:
    """Convert JSON with comments and trailing commas to strict JSON of the same length.

    Comments and commas become spaces, so that every position stays the one that a person sees.
    """
    with suppress(ValueError):
        json.loads(text, strict=False)
        return text
    return _blanked(text)


def _blanked(text: str) -> str:
    return _TRAILING_COMMA.sub(_blank, without_comments(text))


def without_comments(text: str) -> str:
    """Blank the comments of JSON with comments; its length stays the same."""
    return _COMMENT.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    return match[1] or re.sub(r"[^\n]", " ", match[0])


class JsonLines(Struct):
    """Lines of the keys of a JSON text."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    """The 1-based line of each key and array element."""
    duplicates: list[tuple[KeyPath, int]] = field(default_factory=list)
    """Repeated keys, with the line of the repetition."""


def json_lines(plain: str) -> JsonLines:
    """Find the lines of a text that `json.loads` has accepted."""
    found = JsonLines()
    newlines = [match.start() for match in re.finditer("\n", plain)]
    for path, at in _keys(plain):
        line = bisect_right(newlines, at - 1) + 1
        if path in found.lines:
            found.duplicates.append((path, line))
        found.lines[path] = line
    return found


def _keys(plain: str) -> Iterator[tuple[KeyPath, int]]:
    # The path of the present object or array; inside an array its last part is an index.
    path: list[str | int] = []
    key_next = False
    for match in _TOKEN.finditer(plain):
        token = match[0]
        if token == "{":
            path.append("")
            key_next = True
        elif token == "[":
            path.append(0)
            yield tuple(path), _next(plain, match.end())
        elif token in "}]" and path:
            path.pop()
            key_next = False
        elif token == "," and path and isinstance(path[-1], int):
            path[-1] += 1
            yield tuple(path), _next(plain, match.end())
        elif token == ",":
            key_next = True
        elif key_next and path:
            path[-1] = json.loads(token, strict=False)
            key_next = False
            yield tuple(path), match.start()


def _next(plain: str, at: int) -> int:
    found = _VISIBLE.search(plain, at)
    return found.start() if found else at


YAML_VALUES: Final = 100_000
"""Values of a YAML file, those that its aliases repeat among them."""

_YAML_KINDS: Final = {
    "merge": r"<<$",
    "null": r"(?:~|null|Null|NULL|)$",
    "bool": r"(?:true|True|TRUE|false|False|FALSE)$",
    "int": r"[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+)$",
    "float": r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$",
}
"""Patterns of plain values that are no texts, in the order in which they are tried."""


def read_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Raises `yaml.YAMLError` if it is not valid, or its aliases repeat parts of it without measure, and
    `ValueError` if a value in it cannot be read, and `RecursionError` if it is nested too deeply.
    """
    import yaml  # noqa: PLC0415 - few hosts write it

    loader = _yaml_loader()
    nodes: list[Any] = [yaml.compose(text, Loader=loader)]
    left = YAML_VALUES
    while nodes:
        node = nodes.pop()
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        left -= len(inner)
        if left < 0:
            raise yaml.YAMLError("it has too many values, or its aliases repeat too much of it")
        nodes += [one for pair in inner for one in pair] if isinstance(node, yaml.MappingNode) else inner
    return yaml.load(text, Loader=loader)


@cache
def _yaml_loader() -> Any:
    """Return a loader of YAML 1.2, as hosts read it: ``yes``, ``on``, ``0123`` and ``1_000`` are texts."""
    import yaml  # noqa: PLC0415 - few hosts write it

    class Loader(yaml.SafeLoader):
        """Reads plain values by the core schema."""

    Loader.yaml_implicit_resolvers = {}
    for kind, written in _YAML_KINDS.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(written), None)
    return Loader


def yaml_lines(text: str) -> dict[KeyPath, int]:
    """Return the 1-based line of each key and element of a YAML text that is valid."""
    import yaml  # noqa: PLC0415 - few hosts write it

    found: dict[KeyPath, int] = {}
    nodes: list[tuple[KeyPath, Any]] = [((), yaml.compose(text, Loader=yaml.SafeLoader))]
    seen: set[int] = set()  # an alias may stand for a node above it
    while nodes:
        path, node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        pairs: Iterable[tuple[Any, Any, Any]] = ()
        if isinstance(node, yaml.MappingNode):
            pairs = [(key.value, key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            pairs = [(at, value, value) for at, value in enumerate(node.value)]
        for part, key, value in pairs:
            found.setdefault((*path, part), key.start_mark.line + 1)
            nodes.append(((*path, part), value))
    return found
