"""Converts the entries of hosts with forms of their own to the common one.

Most hosts write a server as Claude Desktop does: ``command``, ``args``, ``env``, or ``url`` and ``headers``.
Codex, Zed, opencode, Goose, Continue and Gemini CLI have other keys, or write variables in another way. Here
an entry of theirs becomes one of the common form, so that the rest of the program knows one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct

from mcp_context_proxy.system.later import pattern

Dialect: TypeAlias = str
"""``common``, ``codex``, ``zed``, ``opencode``, ``goose``, ``continue`` or ``gemini``."""

PLACES: Final[tuple[tuple[tuple[str, ...], Dialect], ...]] = (
    (("mcpServers",), "common"),
    (("servers",), "common"),
    (("mcp", "servers"), "common"),
    (("mcp", "mcpServers"), "common"),
    (("context_servers",), "zed"),
    (("mcp_servers",), "codex"),
    (("extensions",), "goose"),
    (("mcp",), "opencode"),
)
"""Keys under which hosts write their servers, with the form that they have there."""

_OPENCODE_VARIABLE: Final = pattern(r"\{env:([A-Za-z_]\w*)\}")
_DOLLAR: Final = pattern(r"\$([A-Za-z_]\w*)")
_BUILT_IN: Final = frozenset({"builtin", "platform", "frontend", "inline_python"})
_LITERAL: Final = pattern(r"\$(?=\{)")


class Converted(Struct, frozen=True):
    """An entry in the common form, or the reason why it has none."""

    entry: Mapping[str, Any]
    not_a_server: str = ""
    """Nature of the entry, if the host runs it by itself: a sentence without a subject."""


def converted(dialect: Dialect, entry: Mapping[str, Any]) -> Converted:
    """Return an entry in the common form; values of a wrong type stay, and are refused later.

    Of the variables that only editors know, those that mean the same everywhere are replaced.
    """
    home = str(Path("~").expanduser())
    resolved = {"${userHome}": home, "${/}": os.sep, "${pathSeparator}": os.sep}

    def known(text: str) -> str:
        for variable, value in resolved.items():
            text = text.replace(variable, value)
        return text

    return _CONVERTERS[dialect](_each_text(dict(entry), known))


def dialect_of(place: tuple[str, ...], file: Path, servers: Any) -> Dialect:
    """Return the form of the servers at a place in a file."""
    if isinstance(servers, list):
        return "continue"
    if file.parent.name == ".gemini":
        return "gemini"
    if file.stem == "opencode":
        return "opencode"
    return next(dialect for known, dialect in PLACES if known == place)


def _common(entry: dict[str, Any]) -> Converted:
    if isinstance(inner := entry.get("transport"), dict):  # Cline, since version 3
        entry = {**{key: value for key, value in entry.items() if key != "transport"}, **inner}
    # A list of words is that of opencode, whatever its file is called.
    return _opencode(entry) if isinstance(entry.get("command"), list) else Converted(entry)


def _codex(entry: dict[str, Any]) -> Converted:
    # Codex passes texts on as they are.
    entry = _each_text(entry, lambda text: _LITERAL.sub("$$", text))
    env, headers = dict(_table(entry, "env")), dict(_table(entry, "http_headers"))
    named = entry.pop("env_vars", None)
    for one in named if isinstance(named, list) else ():
        name = one.get("name") if isinstance(one, dict) else one
        env.setdefault(str(name), f"${{{name}}}")
    for header, name in _table(entry, "env_http_headers").items():
        headers[header] = f"${{{name}}}"
    if token := entry.pop("bearer_token_env_var", None):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    if "http_headers" in entry or headers:
        entry["headers"] = headers
    if "env" in entry or env:
        entry["env"] = env
    return _renamed(entry, {"startup_timeout_sec": "connect_timeout", "tool_timeout_sec": "call_timeout"})


def _zed(entry: dict[str, Any]) -> Converted:
    if isinstance(command := entry.get("command"), dict):
        entry |= {key: command[key] for key in ("args", "env") if key in command}
        entry["command"] = command.get("path")
    if entry.get("source") == "extension" or ("command" not in entry and "url" not in entry):
        return Converted(entry, "is an extension of Zed, which Zed starts by itself")
    return Converted(entry)


def _opencode(entry: dict[str, Any]) -> Converted:
    entry = _each_text(entry, lambda text: _OPENCODE_VARIABLE.sub(r"${\1}", _LITERAL.sub("$$", text)))
    if isinstance(command := entry.get("command"), list) and command:
        entry |= {"command": command[0], "args": command[1:]}
    entry.pop("timeout", None)  # of its list of tools, in milliseconds
    if "command" not in entry and "url" not in entry:
        return Converted(entry, "only turns a server of the organisation on or off")
    return _renamed(entry, {"environment": "env"})


def _goose(entry: dict[str, Any]) -> Converted:
    if isinstance(inner := entry.get("config"), dict):
        entry = {**inner, **{key: value for key, value in entry.items() if key != "config"}}
    if entry.get("type") in _BUILT_IN:
        return Converted(entry, "is a part of Goose")
    env = dict(_table(entry, "envs") or _table(entry, "env"))
    keys = entry.pop("env_keys", None)
    for name in keys if isinstance(keys, list) else ():
        env.setdefault(str(name), f"${{{name}}}")
    if env:
        entry["env"] = env
    if not entry.get("available_tools"):
        entry.pop("available_tools", None)
    names = {"cmd": "command", "uri": "url", "timeout": "call_timeout", "available_tools": "includeTools"}
    return _renamed(entry, names)


def _continue(entry: dict[str, Any]) -> Converted:
    if headers := _table(entry, "requestOptions").get("headers"):
        entry["headers"] = headers
    return Converted(entry)


def _gemini(entry: dict[str, Any]) -> Converted:
    entry = _each_text(entry, lambda text: _DOLLAR.sub(r"${\1}", text))
    if "httpUrl" in entry:
        entry |= {"url": entry.pop("httpUrl"), "type": "http"}
    return Converted(entry)


_CONVERTERS: Final[Mapping[Dialect, Callable[[dict[str, Any]], Converted]]] = {
    "common": _common,
    "codex": _codex,
    "zed": _zed,
    "opencode": _opencode,
    "goose": _goose,
    "continue": _continue,
    "gemini": _gemini,
}


def _renamed(entry: dict[str, Any], names: Mapping[str, str]) -> Converted:
    for theirs, ours in names.items():
        if theirs in entry:
            entry[ours] = entry.pop(theirs)
    return Converted(entry)


def _table(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with every text in it changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _each_text(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_each_text(inner, change) for inner in value]
    return value
