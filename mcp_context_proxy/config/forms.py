"""Forms of the configuration: tables with the type of each key, and the reading of values.

All values are read even where some have a mistake, so that every mistake is told at once, in the words of a
person who edits the file. Values are never repeated in a message, because they may be secrets, except where
only listed words are allowed.
"""

from __future__ import annotations

import os
import sys
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

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config.source import KeyPath, Mistake, dotted
from mcp_context_proxy.errors import ConfigError, ConfigProblem, nearest_names
from mcp_context_proxy.system.later import pattern


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
        before, value = len(found), read_value(parts[0], value, path, found)
        for check in filter(callable, parts[1:]):
            try:
                value = check(value) if len(found) == before else value
            except ValueError as error:
                found.append(Mistake(path, str(error)))
        return value
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
