"""Source of the configuration: a file, parsed, and its values in the forms of the tables that have them.

All values are read even where some have a mistake, so that every mistake is told at once, in the words of a
person who edits the file. Values are never repeated in a message, because they may be secrets, except where
only listed words are allowed.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, EnumMeta, auto
from functools import cache
from itertools import islice
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeGuard, get_args, get_origin
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config.texts import (
    KeyPath,
    json_lines,
    plain_json,
    read_json,
    read_yaml,
    toml_lines,
    yaml_lines,
)
from mcp_context_proxy.errors import ConfigError, ConfigProblem, nearest_names
from mcp_context_proxy.system.later import pattern

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


class Unknown(str):
    """A value that is not known here: it may be one that fits, so that its form alone is looked at."""


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

    return ConfigSource(file, tables, True, cache(lambda: yaml_lines(text)))


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


class Reload(Enum):
    """Effect of a changed setting while the proxy runs, as a marker on the field of a table.

    A table without a marker needs a restart of the proxy, a key of a live table is applied, and a key of a
    server without a marker starts the server again.
    """

    LIVE = auto()
    """The change is applied to the running proxy or server."""
    RESTART = auto()
    """The change needs a restart of the proxy."""


HIDDEN: Final = "hidden"
"""Marker on a field that may hold a secret: it is not shown with its table."""


class Table(Struct, frozen=True):
    """One table of the file: frozen, without unknown keys. A constructor does not check its values."""

    derived: ClassVar[frozenset[str]] = frozenset()
    """Fields that are computed while loading and cannot be set in a file."""

    @classmethod
    def keys(cls) -> list[str]:
        return [name for name in cls.__struct_fields__ if name not in cls.derived]

    @classmethod
    def of(cls, values: Mapping[str, Any], **derived: Any) -> Self:
        """Return the table of values as they stand in a file; raises `ConfigError` with all mistakes."""
        found: list[Mistake] = []
        table: Self = read_value(cls, values, (), found)
        if found:
            raise ConfigError([ConfigProblem(None, None, dotted(one.path), one.message) for one in found])
        return replace(table, **derived)

    def __repr__(self) -> str:
        shown = [name for name in self.__struct_fields__ if name not in marked(type(self), HIDDEN)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


@cache
def _forms_of(table: type[Table]) -> Mapping[str, Any]:
    return typing.get_type_hints(table, include_extras=True)


@cache
def marked(table: type[Table], marker: Reload | str) -> frozenset[str]:
    forms = _forms_of(table)
    return frozenset(name for name in table.__struct_fields__ if marker in get_args(forms[name])[1:])


Check: TypeAlias = Callable[[Any], Any]
"""Returns a value as it is used, or raises `ValueError` with the reason why it cannot be."""

LARGEST: Final = 10**15
"""Largest number anywhere: all that counts or reserves by numbers takes it, and no larger ones."""

LONGEST: Final = 10**9
"""Longest time, in seconds: some thirty years, beyond which clocks and timers of systems do not go."""


def within(least: float = -inf, most: float = LARGEST, *, above: float = -inf, below: float = inf) -> Check:
    def check(number: float) -> float:
        for wrong, words, bound in (
            (number < least, "at least", least),
            (number <= above, "more than", above),
            (number > most, "at most", most),
            (number >= below, "less than", below),
        ):
            if wrong:
                raise ValueError(f"must be {words} {bound:.16g}")
        return number

    return check


def sized(least: int = 0, most: float = inf, unit: str = "entries") -> Check:
    def check(value: Any) -> Any:
        if not value and least:
            raise ValueError("must not be empty")
        if not least <= len(value) <= most:
            raise ValueError(
                f"must have at {f'least {least}' if len(value) < least else f'most {most}'} {unit}"
            )
        return value

    return check


def like(expression: str, message: str) -> Check:
    compiled = pattern(expression)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(message)
        return text

    return check


def is_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must begin with http:// or https:// and name a host")
    return text


Text = Annotated[str, sized(1)]
Url = Annotated[str, is_url]
VariableName = Annotated[str, like("[^=]+", "cannot be the name of a variable")]
Scopes = Annotated[str, sized(1), like(r"[ !#-\[\]-~]*", "has a character that no scope has (RFC 6749)")]
Environment = dict[VariableName, str]
Count = Annotated[int, within(1)]
Amount = Annotated[int, within(0)]
Score = Annotated[float, within(0, 1)]
Seconds = Annotated[float, within(above=0, most=LONGEST)]
SecondsOrNone = Annotated[float, within(0, LONGEST)]


def read_value(form: Any, value: Any, path: KeyPath, found: list[Mistake]) -> Any:
    """Return a value in its form; where there is a mistake in it, add that, and return anything."""
    origin, parts = get_origin(form), get_args(form)
    if origin in (typing.Union, UnionType):
        if value is None and NoneType in parts:
            return None
        # A key with two forms has either one value or a list of them.
        lists = isinstance(value, list) and [part for part in parts if get_origin(part) is tuple]
        return read_value(lists[0] if lists else parts[0], value, path, found)
    if origin is Annotated:
        before, read = len(found), read_value(parts[0], value, path, found)
        for check in filter(callable, () if isinstance(value, Unknown) else parts[1:]):
            try:
                read = check(read) if len(found) == before else read
            except ValueError as error:
                found.append(Mistake(path, str(error)))
        return read
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(read_value(parts[0], item, (*path, at), found) for at, item in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        places = {key: (*path, str(key)) for key in value}
        names = {key: read_value(parts[0], key, place, found) for key, place in places.items()}
        return {names[key]: read_value(parts[1], value[key], place, found) for key, place in places.items()}
    if _is_table(form) and isinstance(value, Mapping):
        return _read_table(form, value, path, found)
    if isinstance(value, str) and (form is Path or (origin is None and form is str)):
        encode = os.fsencode if form is Path else str.encode  # the name of a folder need not be UTF-8
        reason = "must not be empty" if form is Path and not value else _unusable(value, encode)
        found += [Mistake(path, reason)] if reason else []
        return form(value)
    if form is float and type(value) in (int, float):
        if abs(value) <= sys.float_info.max:
            return float(value)
        found.append(Mistake(path, "must be a finite number"))
        return value
    words: Sequence[str] = [*form] if isinstance(form, EnumMeta) else parts if origin is Literal else ()
    if words and isinstance(value, Unknown):
        value = words[0]
    if value in words:
        return form(value) if isinstance(form, EnumMeta) else value
    if origin is None and isinstance(value, form) and (form is bool or not isinstance(value, bool)):
        return value
    *others, last = [f'"{word}"' for word in words] or [_WANTED.get(origin or form, "a table")]
    wanted = f"{', '.join(others)} or {last}" if others else last
    given = f'"{value[:40]}"' if words and isinstance(value, str) else _kind_of(value)
    if origin is tuple and isinstance(value, Mapping) and _is_table(parts[0]):
        given += f"; write [[{path[-1]}]] above each"
    found.append(Mistake(path, f"must be {wanted}, not {given}"))
    return value


def _is_table(form: Any) -> TypeGuard[type[Table]]:
    return isinstance(form, type) and issubclass(form, Table)


def _unusable(text: str, encode: Callable[[str], bytes]) -> str:
    """Return why no program can be given a text; nothing if one can."""
    try:
        encode(text)
    except UnicodeEncodeError:
        return "has half of a character, which no program can be given"
    return "has the character U+0000, which no program can be given" if "\0" in text else ""


_WANTED: Final[Mapping[Any, str]] = {
    str: "text in quotes",
    Path: "text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
}
_GIVEN: Final[Mapping[type, str]] = {
    str: "text",
    Unknown: "text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
    NoneType: "null",
}


def _kind_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else _GIVEN.get(type(value), "a date")


def _read_table(table: type[Table], values: Mapping[str, Any], path: KeyPath, found: list[Mistake]) -> Any:
    before, forms, keys = len(found), _forms_of(table), table.keys()
    given = {key: read_value(forms[key], values[key], (*path, key), found) for key in keys if key in values}
    for key in (key for key in values if key not in keys):
        message = unknown_key(str(key), keys) if len(found) < EXPLAINED else "unknown key"
        found.append(Mistake((*path, str(key)), message))
    required = table.__struct_fields__[: len(table.__struct_fields__) - len(table.__struct_defaults__)]
    found += [Mistake((*path, key), "is missing") for key in required if key not in values]
    if len(found) == before:
        try:
            return table(**given)
        except ValueError as error:
            found.append(Mistake(path, str(error)))
    return None


_OTHER_WORDS: Final = {
    "mcpServers": "servers",
    "serverUrl": "url",
    "type": "transport",
    "disabled": "enabled",
    "environment": "env",
    "timeout": "call_timeout",
}
"""Names that hosts and people use for a key, where the spelling alone does not lead to ours."""

_WORD: Final = 5
"""Letters from which on a word of a key is compared alone; shorter ones are like too many others."""
_MEANT: Final = 3
"""Keys with the same word that a message names at most."""

EXPLAINED: Final = 100
"""Mistakes after which the message of an unknown key no longer names similar ones, which takes time."""


_GONE: Final = frozenset(("description_indexed_bytes", "queue_per_server"))
"""Keys of earlier versions that have no successor."""


def unknown_key(key: str, allowed: Sequence[str]) -> str:
    """Return the message for a key that does not exist."""
    if key in _GONE:
        return "unknown key, of an earlier version; nothing takes its place, so remove it"
    if near := meant_keys(key, allowed):
        return f"unknown key; did you mean {' or '.join(near)}?"
    return f"unknown key; allowed here: {', '.join(allowed)}"


def any_means(keys: Iterable[str], values: Mapping[str, Any], allowed: Sequence[str]) -> bool:
    """Return whether an unknown key among the values may stand for one of some keys."""
    unknown = (str(key) for key in islice(values, EXPLAINED) if key not in allowed)
    return any(not {*keys}.isdisjoint(meant_keys(key, allowed)) for key in unknown)


def meant_keys(key: str, allowed: Sequence[str]) -> list[str]:
    """Return the keys that one which does not exist may stand for: the likely one, or those with its word."""
    other = _OTHER_WORDS.get(key)
    if other is not None and other in allowed:
        return [other]
    if near := nearest_names(key.lower(), allowed, 1):
        return near
    words = {word for name in allowed for word in name.split("_") if len(word) >= _WORD}
    asked = (word for word in key.lower().split("_") if len(word) >= _WORD)
    same = {near for word in asked for near in nearest_names(word, words, 1)}
    return [name for name in allowed if same & set(name.split("_"))][:_MEANT]
