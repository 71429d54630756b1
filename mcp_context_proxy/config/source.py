"""Reads one configuration file, TOML or a host's JSON or YAML, with the line of each key.

Problems name the line of a key, which neither `tomllib` nor `json` tells, so it is searched for. That is done
only for text that the real parser has accepted, and a line that is not found is no error.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from mcp_context_proxy.errors import ConfigError, ConfigProblem
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

DEEPEST: Final = 100
"""Levels of a configuration file; hosts' files have ten. The functions that read tables call themselves."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Limit for a configuration file. A host's settings can hold histories and grow to many megabytes."""
TRUST_VARIABLE: Final = "MCP_CONTEXT_PROXY_TRUST_CONFIG"
"""Environment variable that allows a file others can change, for volumes with owners of their own."""
_JSON_SUFFIXES: Final = frozenset({".json", ".jsonc", ".code-workspace"})
_YAML_SUFFIXES: Final = frozenset({".yaml", ".yml"})
_CODEX: Final = "mcp_servers"
_POSITION: Final = pattern(
    r"^(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$"
)
_BARE_KEY: Final = pattern(r"[A-Za-z0-9_-]+")


class Mistake(Struct, frozen=True):
    """A mistake at a path; the texts are those of `ConfigProblem`."""

    path: KeyPath
    message: str
    remedy: str = ""
    variable: str = ""
    line: int | None = None
    """The line, where it is not that of the key."""


class ConfigSource(Struct, frozen=True):
    """The tables of one file, before validation."""

    file: Path
    tables: Mapping[str, Any]
    of_host: bool
    """True for the settings of a host: JSON, YAML, or the TOML of Codex."""
    lines: Callable[[], Mapping[KeyPath, int]]
    """Computed for the first problem, so that a valid file costs nothing."""
    origins: dict[KeyPath, KeyPath] = field(default_factory=dict)
    """Original paths of tables that were taken from another place in the file (hosts' JSON)."""
    duplicates: tuple[tuple[KeyPath, int], ...] = ()
    """Keys given more than once, with the line of the repetition."""
    remarks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Sentences for a person about the entries of servers, by name (hosts' JSON)."""

    def problem(self, mistake: Mistake) -> ConfigProblem:
        """Return a mistake as a problem with its file, and with the line of the nearest key in it."""
        written = self.written(mistake.path)
        line = mistake.line or self._line(written)
        return ConfigProblem(
            self.file, line, dotted(written), mistake.message, mistake.remedy, mistake.variable
        )

    def place(self, path: KeyPath) -> str:
        """Return where a key stands, as a person reads it: ``servers.github.deny[0] (config.toml:7)``."""
        written = self.written(path)
        line = self._line(written)
        return f"{dotted(written)} ({self.file.name}{'' if line is None else f':{line}'})"

    def written(self, path: KeyPath) -> KeyPath:
        for size in range(len(path), 0, -1):
            if path[:size] in self.origins:
                return self.origins[path[:size]] + path[size:]
        return path

    def _line(self, path: KeyPath) -> int | None:
        lines = self.lines()
        return next((lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in lines), None)


def dotted(path: KeyPath) -> str:
    """Format a path as a person writes it: ``servers.github.args[0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (
                part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            )
    return text


def read(file: Path) -> ConfigSource:
    """Read and parse `file`; raises `ConfigError` if the file cannot be read, or is not valid."""
    return parse(file, _text(file))


def parse(file: Path, text: str) -> ConfigSource:
    """Parse the text of `file`, as TOML, JSON or YAML: by its suffix, or else by its beginning.

    Raises `ConfigError` if it is not valid.
    """
    suffix = file.suffix.lower()
    is_json = suffix in _JSON_SUFFIXES or (suffix != ".toml" and text.lstrip().startswith("{"))
    parsed = _parse_yaml if suffix in _YAML_SUFFIXES else _parse_json if is_json else _parse_toml
    try:
        source = parsed(file, text)
    except RecursionError:
        raise _failure(file, None, "is nested too deeply") from None
    level: list[Any] = [source.tables]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _within(one)]
    if level:
        raise _failure(file, None, "is nested too deeply")
    return source


def plain(text: str) -> str:
    """Return a text as the parsers take it: without a mark of its encoding, with line ends of Unix."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


_SO_RUN: Final = "and so run programs as you"


def changeable_by_others(file: Path, environ: Mapping[str, str]) -> list[ConfigProblem]:
    """Return problems if other users can write or replace the file, and so run programs as its reader."""
    if os.name != "posix" or environ.get(TRUST_VARIABLE):
        return []
    try:
        status, folders = file.stat(), {file.parent, file.resolve().parent}
        if not stat.S_ISREG(status.st_mode):
            return []
        modes = {folder: folder.stat().st_mode for folder in sorted(folders)}
    except (OSError, RuntimeError):  # gone since it was read: nobody can change it now
        return []
    messages = []
    if status.st_mode & stat.S_IWOTH:
        messages.append(f"everyone on this machine can change it, {_SO_RUN}; run: chmod o-w '{file}'")
    if status.st_uid not in (0, os.geteuid()):
        messages.append(
            f"it belongs to another user (id {status.st_uid}), who could run programs as you; "
            f"run: sudo chown $(id -u) '{file}'"
        )
    for folder, mode in modes.items():
        # In a folder with the sticky bit, such as /tmp, only the owner of a file can replace it.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            messages.append(f"everyone on this machine can replace it, {_SO_RUN}; run: chmod o-w '{folder}'")
    otherwise = f", or set {TRUST_VARIABLE}=1 to allow it"
    return [ConfigProblem(file, None, "", message + otherwise) for message in messages]


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _failure(file, None, f"cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise _failure(file, None, f"is larger than {MAX_BYTES // 1024**2} MiB")
    try:
        return plain(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _failure(file, line, "is not UTF-8 text; save it with that encoding") from None


_LONG_KEY: Final = pattern(
    r"(?:^|[\[{,])[ \t]*+(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"
    rf"{{{DEEPEST}}}",
    re.MULTILINE,
)
"""A key with so many dots that its parts are too many levels; anywhere but in a text."""


def read_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; raises `ValueError` if it is not valid, and `RecursionError`."""
    # `tomllib` takes the square of the number of parts.
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.end()) + 1
        raise ValueError(f"A key has more than {DEEPEST} parts (at line {line}, column 1)")
    return tomllib.loads(text)


def _parse_toml(file: Path, text: str) -> ConfigSource:
    try:
        tables = read_toml(text)
    except ValueError as error:
        raise _toml_failure(file, text, str(error)) from None
    of_host = _CODEX in tables and "servers" not in tables
    return ConfigSource(file, tables, of_host, cache(lambda: toml_lines(text)))


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


def _parse_yaml(file: Path, text: str) -> ConfigSource:
    import yaml  # noqa: PLC0415 - few hosts write it

    try:
        tables = read_yaml(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise _failure(file, line, f"is not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _failure(file, None, f"is not valid YAML: {error}") from None
    if not isinstance(tables, dict):
        raise _failure(file, 1, "must hold a YAML mapping")

    def lines() -> dict[KeyPath, int]:
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

    return ConfigSource(file, tables, True, cache(lines))


def _toml_failure(file: Path, text: str, message: str) -> ConfigError:
    found = _POSITION.match(message)
    if found is None:
        return _failure(file, None, f"is not valid TOML: {message}")
    rows = text.split("\n")
    number = int(found["line"]) if found["line"] else len(rows)
    what, row = found["what"], rows[number - 1] if number <= len(rows) else ""
    if what.startswith(("Cannot overwrite", "Cannot declare", "Duplicate inline table key")):
        key = row.split("=")[0].strip().strip("[]").strip()
        return _failure(file, number, "is given twice; keep one of them", key)
    place = f" (column {found['column']})" if found["column"] else ""
    hint = next((hint for start, hint in _TOML_HINTS.items() if what.startswith(start)), "")
    return _failure(file, number, f"is not valid TOML: {what}{place}{hint}")


_TOML_HINTS: Final[Mapping[str, str]] = {
    "Unescaped '\\'": "; write a path with backslashes in single quotes: 'C:\\folder'",
    "Invalid hex value": "; write a path with backslashes in single quotes: 'C:\\folder'",
    "Illegal character '\\n'": "; a quote is not closed on this line",
    "Invalid value": "; text stands in straight quotes, and true and false are small",
    "Invalid statement": "; a line is KEY = VALUE or [TABLE], and JSON needs a file name that ends in .json",
    "Expected '=' after a key": "; a line is KEY = VALUE, with quotes around a key that has spaces",
}
"""Ends of the message about the mistakes that people make most, by its beginning."""


def _parse_json(file: Path, text: str) -> ConfigSource:
    repeated: list[str] = []

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) < len(pairs):
            repeated.append("")
        return keys

    try:
        tables = read_json(text, object_pairs_hook=table)
    except json.JSONDecodeError as error:
        message = f"is not valid JSON: {error.msg} (column {error.colno})"
        raise _failure(file, error.lineno, message) from None
    except ValueError as error:
        raise _failure(file, None, f"is not valid JSON: {error}") from None
    if not isinstance(tables, dict):
        raise _failure(file, 1, "must hold a JSON object")
    found = cache(lambda: json_lines(plain_json(text)))
    return ConfigSource(
        file, tables, True, lambda: found().lines, duplicates=tuple(found().duplicates) if repeated else ()
    )


def _failure(file: Path, line: int | None, message: str, key: str = "") -> ConfigError:
    return ConfigError([ConfigProblem(file, line, key, message)])
