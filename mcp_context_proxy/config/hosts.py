"""Converts the files of hosts to our tables.

Claude Desktop, Claude Code, Cursor and many others write ``mcpServers``; VS Code writes ``servers``, or
``mcp.servers`` in its settings; others have places and forms of their own (`PLACES`). Of the rest of such a
file only what turns servers and tools off is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config.settings import SERVER_NAME, SERVER_NAME_CHARACTERS
from mcp_context_proxy.config.source import ConfigSource, Mistake, dotted
from mcp_context_proxy.config.texts import KeyPath, parts_of
from mcp_context_proxy.errors import ConfigError, ConfigProblem, some_of
from mcp_context_proxy.system.later import pattern

Dialect: TypeAlias = str
"""A key of `_CONVERTERS`."""

PLACES: Final[tuple[tuple[tuple[str, ...], Dialect], ...]] = (
    (("mcpServers",), "common"),
    (("amp.mcpServers",), "common"),
    (("servers",), "common"),
    (("mcp", "servers"), "common"),
    (("mcp", "mcpServers"), "common"),
    (("settings", "mcp", "servers"), "common"),
    (("customizations", "vscode", "mcp", "servers"), "common"),
    (("context_servers",), "zed"),
    (("mcp_servers",), "codex"),
    (("extensions",), "goose"),
    (("mcp",), "opencode"),
)
"""Keys under which hosts write their servers, with the form that they have there."""

_OPENCODE_VARIABLE: Final = pattern(r"\{env:([A-Za-z_]\w*)\}")
_DOLLAR: Final = pattern(r"\$([A-Za-z_]\w*)")
_REFERENCE: Final = pattern(r"\$\{?([A-Za-z_]\w*)\}?")
_BUILT_IN: Final = frozenset({"builtin", "platform", "frontend", "inline_python"})
_LITERAL: Final = pattern(r"\$(?=\{)")
_OF_EDITORS: Final = pattern(r"(?<!\$)\$\{env:(?=[A-Za-z_])")


class Converted(Struct, frozen=True):
    """An entry in the common form, or the reason why it has none."""

    entry: Mapping[str, Any]
    not_a_server: str = ""
    """Nature of the entry, if the host runs it by itself: a sentence without a subject."""
    places: Mapping[str, KeyPath] = {}
    """Keys under which the host has what stands under another key here."""


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

    # Jan writes an empty command beside each url.
    said = {key: one for key, one in entry.items() if one or key not in ("command", "url")}
    return _CONVERTERS[dialect](_each_text(said or dict(entry), known))


def dialect_of(place: KeyPath, source: ConfigSource) -> Dialect:
    if isinstance(_at(source.tables, place), list):
        return "continue"
    if source.file.parent.name in {".gemini", ".qwen"} or "$version" in source.tables:
        return "gemini"  # Qwen Code, in any folder, has a version
    if (stem := source.file.stem.lstrip(".")) in {"crush", "opencode", "cline_mcp_settings"}:
        return stem
    if place == ("mcp_servers",) and source.file.suffix != ".toml":
        return "common"  # Hermes
    return next(dialect for known, dialect in PLACES if known in (place, place[-1:]))


def _common(entry: dict[str, Any]) -> Converted:
    if isinstance(inner := entry.get("transport"), dict):  # Cline, since version 3
        entry = {**{key: value for key, value in entry.items() if key != "transport"}, **inner}
    places = dict[str, KeyPath]()
    for key, names in _table(entry, "tools").items():
        if key in ("include", "exclude"):  # Hermes
            entry[f"{key}Tools"] = [names] if isinstance(names, str) else names
            places[f"{key}Tools"] = ("tools", key)
    decided, tools = [*_table(entry, "toolPermissions").items()], entry.get("tools")
    if isinstance(tools, list) and tools and all(isinstance(one, dict) for one in tools):
        decided += [(str(one.get("name")), one.get("permission_policy")) for one in tools]
        tools = None
    if decided:  # Claude Code
        denied = dict.fromkeys(name for name, decision in decided if decision in ("always_deny", "blocked"))
        if isinstance(before := entry.get("excludeTools", []), list):
            entry["excludeTools"] = [*before, *denied]
            if denied:
                places["excludeTools"] = ("toolPermissions" if "toolPermissions" in entry else "tools",)
        asked = {name: {"approval_mode": one} for name, one in decided if name not in denied}
        entry["tools"] = asked if tools is None else tools
    if isinstance(entry.get("command"), list):
        return _opencode(entry)  # whatever its file is called
    return Converted(_each_text(entry, lambda text: _OF_EDITORS.sub("${", text)), places=places)


def _codex(entry: dict[str, Any]) -> Converted:
    # Codex passes texts on as they are, and variables where they are set.
    entry = _each_text(entry, lambda text: _LITERAL.sub("$$", text))
    if names := _names_in(entry.pop("env_vars", None)):
        entry["inherit"] = names
    headers = dict(_table(entry, "http_headers"))
    headers |= {header: f"${{{name}}}" for header, name in _table(entry, "env_http_headers").items()}
    if token := entry.pop("bearer_token_env_var", None):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    if "http_headers" in entry or headers:
        entry["headers"] = headers
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
    if str(entry.get("type")) in _BUILT_IN:
        return Converted(entry, "is a part of Goose")
    env = dict(_table(entry, "envs") or _table(entry, "env"))
    if env := {**{name: f"${{{name}}}" for name in _names_in(entry.pop("env_keys", None))}, **env}:
        entry["env"] = env
    if "uri" in entry and isinstance(env := entry.get("env", {}), dict):
        # Goose has variables of an address for that alone, and knows no others there.
        entry.pop("env", None)
        held = {key: entry[key] for key in ("uri", "headers") if key in entry}
        entry |= _each_text(held, lambda text: _REFERENCE.sub(lambda one: str(env.get(one[1], one[0])), text))
    if not entry.get("available_tools"):
        entry.pop("available_tools", None)
    names = {"cmd": "command", "uri": "url", "timeout": "call_timeout", "available_tools": "includeTools"}
    return _renamed(entry, names)


def _continue(entry: dict[str, Any]) -> Converted:
    headers = _table(entry, "requestOptions").get("headers")
    if (key := entry.pop("apiKey", None)) and isinstance(headers, dict | None):
        headers = {"Authorization": f"Bearer {key}", **(headers or {})}
    if headers:
        entry["headers"] = headers
    return Converted(entry)


def _gemini(entry: dict[str, Any]) -> Converted:
    entry = _each_text(entry, lambda text: _DOLLAR.sub(r"${\1}", text))
    if "httpUrl" in entry:
        entry |= {"url": entry.pop("httpUrl"), "type": "http"}
    return Converted(entry)


def _cline(entry: dict[str, Any]) -> Converted:
    if "url" in entry:
        entry.setdefault("type", entry.get("transportType", "sse"))
    return _common(entry)


def _crush(entry: dict[str, Any]) -> Converted:
    if any("$(" in text for _, text in parts_of(entry) if isinstance(text, str)):
        return Converted(entry, "has a value from a shell, which only Crush starts")
    return _gemini(entry)


_CONVERTERS: Final[Mapping[Dialect, Callable[[dict[str, Any]], Converted]]] = {
    "common": _common,
    "codex": _codex,
    "zed": _zed,
    "opencode": _opencode,
    "goose": _goose,
    "continue": _continue,
    "gemini": _gemini,
    "crush": _crush,
    "cline_mcp_settings": _cline,
}


def _names_in(listed: object) -> list[str]:
    """Return the variables that a list names."""
    names = listed if isinstance(listed, list) else []
    return [str(one.get("name") if isinstance(one, dict) else one) for one in names]


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


Warn: TypeAlias = Callable[[str], None]
"""Receives a sentence about an entry that is skipped without being a mistake."""

FIELDS: Final = {
    "command": "command",
    "args": "args",
    "env": "env",
    "inherit": "inherit",
    "cwd": "cwd",
    "working_directory": "cwd",
    "url": "url",
    "serverUrl": "url",
    "baseUrl": "url",
    "headers": "headers",
    "type": "transport",
    "transport": "transport",
    "connect_timeout": "connect_timeout",
    "call_timeout": "call_timeout",
}
SWITCHES: Final = {"enabled": False, "disabled": True, "active": False, "isActive": False}
"""Keys of an entry that turn its server off, with the value that does."""
_TRANSPORTS: Final = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamablehttp": "http",
    "remote": "http",
    "sse": "sse",
}
TOOL_LISTS: Final = {
    "includeTools": "allow",  # Gemini CLI
    "enabledTools": "allow",
    "enabled_tools": "allow",  # Codex
    "tools": "allow",  # Copilot CLI, with "*" for all
    "excludeTools": "deny",  # Gemini CLI
    "disabledTools": "deny",  # Windsurf, Roo Code, Kiro
    "disabled_tools": "deny",  # Codex
}
"""Lists of tools in an entry, with their names here."""
APPROVALS: Final = ("alwaysAllow", "autoApprove", "tools")
"""Tools that a host calls without asking, or, in Codex, after asking; it is the host that asks."""
DISABLED_SERVERS: Final = "disabledMcpServers"
ALLOWED_SERVERS: Final[tuple[tuple[str, ...], ...]] = (("mcp", "allowed"), ("allowMCPServers",))
_EXCLUDED_SERVERS: Final[tuple[KeyPath, ...]] = (
    *(("mcp", "excluded"), ("excludeMCPServers",)),  # Gemini CLI
    (DISABLED_SERVERS,),  # Copilot CLI, in a file of its own
)
"""Lists of servers beside the entries. Gemini CLI takes no notice of upper and lower case in them."""
_RULES: Final[tuple[tuple[Dialect, tuple[str, ...], str], ...]] = (
    *(("common", ("permissions", decision), "mcp__{}__") for decision in ("allow", "ask", "deny")),
    *(("common", ("amp.tools.disable",), form) for form in ("mcp__{}__", "")),
    ("opencode", ("tools",), "{}_"),
    ("opencode", ("permission",), "{}_"),  # since 1.1
    ("zed", ("agent", "tool_permissions", "tools"), "mcp:{}:"),
)
"""Places of rules about tools beside the entries, with the beginning of the name that a tool has in them.
The last rule for a tool counts. Those of the common form are Claude Code's and Amp's."""
_DECISIONS: Final[Mapping[str | bool, str]] = {False: "deny", "confirm": "ask", "amp.tools.disable": "deny"}
"""Decisions of rules that are spelt otherwise than `_RULED` has them."""
_RULED: Final[Mapping[str, str]] = {
    "deny": "is carried over as deny",
    "ask": 'is not carried over, and names tools that it sees no longer; allow = "ask" asks here',
    "allow": "is not carried over; allow there again what you want, under the names of this proxy",
}
"""Decisions of rules, with their meaning behind the proxy."""
RULE_TABLES: Final = frozenset({DISABLED_SERVERS, *(place[0] for _, place, _ in _RULES)})
"""Tables at the top of a host's settings that have such rules."""
_OURSELVES: Final = pattern(
    r"(?<![\w-])(?:mcp-context-proxy(?![\w/\\-])|(?<![/\\])mcp_context_proxy(?![\w./\\-]))"
)
"""Our program or package as a word. It does not match a module of the package, such as an example server, nor
a file in a folder that happens to have our name."""


def from_host(
    source: ConfigSource, warn: Warn, place: KeyPath | None = None
) -> tuple[ConfigSource, list[Mistake]]:
    """Convert the servers of a host's file to our tables; also return the mistakes in their shape.

    They are those at the `place`, or else where it has some. Raises `ConfigError` if the file has no server
    entries, or has them twice.
    """
    place = place or servers_place(source.tables)
    if place is None:
        message = 'has neither "mcpServers" nor "servers"; it must be a host\'s MCP settings, or config.toml'
        raise ConfigError([source.problem(Mistake((), message))])
    entries = _at(source.tables, place)
    dialect = dialect_of(place, source)
    keys: dict[str, Any] = {}
    for at, entry in enumerate(entries):
        keys |= {name_in_list(entry, at): at} if isinstance(entries, list) else {entry: entry}
    names = names_for(keys)
    mistakes = [*_given_twice(source, place, names), *_unreadable_lists(source.tables)]
    servers: dict[str, Any] = {}
    for written, key in keys.items():
        entry, name, path = entries[key], names[written], (*place, key)
        source.origins["servers", name] = path
        if not isinstance(entry, dict):
            mistakes.append(Mistake(("servers", name), "must be an object with a command or a url"))
            continue
        common = converted(dialect, entry)
        if common.not_a_server:
            warn(f"{source.file}: server {written!r} {common.not_a_server}, and is skipped")
        elif is_ourselves(common.entry):
            warn(f"{source.file}: server {written!r} is this proxy itself and is skipped")
        else:
            servers[name] = _entry(source, ("servers", name), path, common.entry, mistakes)
            if (by := _switched_off(source.tables, written)) is not None:
                servers[name]["enabled"] = False
                source.origins["servers", name, "enabled"] = by
            ruled = _ruled(source.tables, dialect, written)
            source.remarks[name] = (
                *_tool_lists(source, ("servers", name), path, common, servers[name], mistakes),
                *_approvals(source, path, common.entry),
                *_with_rules(source, ("servers", name), ruled, servers[name]),
            )
            if "envFile" in entry:
                warn(f"{source.file}: server {written!r}: envFile is not read; name its variables in env")
    return replace(source, tables={"servers": servers}), mistakes


def servers_place(tables: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the keys under which a host's file has its servers; None if it has none."""
    for place, _ in PLACES:
        found = _at(tables, place)
        if place == ("mcp",):  # settings of other hosts have a table of that name as well
            entries = found.values() if isinstance(found, dict) else (None,)
            if all(isinstance(entry, dict) for entry in entries):
                return place
        elif isinstance(found, dict | list):
            return place
    return None


def name_in_list(entry: Any, at: int) -> str:
    """Return the name of a server in a list, or its number."""
    name = entry.get("name") if isinstance(entry, dict) else None
    return str(name) if name else f"server {at + 1}"


def _given_twice(source: ConfigSource, place: KeyPath, names: Mapping[str, str]) -> list[Mistake]:
    """Return a mistake for each repeated key of the servers, but not for keys inside a repeated one.

    Raises `ConfigError` if the servers as a whole are given twice.
    """
    told: list[KeyPath] = []
    mistakes = []
    message = "is given twice; keep one of them"
    for path, line in source.duplicates:
        if place[: len(path)] == path:
            raise ConfigError([ConfigProblem(source.file, line, dotted(path), message)])
    for path, line in source.duplicates:
        if path[: len(place)] == place and not any(path[: len(outer)] == outer for outer in told):
            told.append(path)
            written, *inner = path[len(place) :]
            mistakes.append(Mistake(("servers", names[str(written)], *inner), message, line=line))
    return mistakes


def names_for(written: Iterable[str]) -> dict[str, str]:
    """Map each name in a host's file to an allowed and unique one; allowed names stay."""
    wishes = {name: name if SERVER_NAME.fullmatch(name) else _allowed(name) for name in written}
    taken = {name for name in wishes if SERVER_NAME.fullmatch(name)}
    names = {}
    for name, wish in wishes.items():
        rivals = sum(other == wish for other in wishes.values())
        names[name] = wish if name in taken or rivals == 1 else _distinct(wish, name)
    return names


def _allowed(name: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_-]+", "-", name)
    return re.sub(r"_{2,}", "_", text)[:SERVER_NAME_CHARACTERS].strip("-") or _distinct("server", name)


def _distinct(wish: str, name: str) -> str:
    """Add a suffix made of the original name, so that it does not depend on the order of the file."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{wish[: SERVER_NAME_CHARACTERS - 9]}-{digest}"


def _entry(
    source: ConfigSource, path: KeyPath, place: KeyPath, entry: Mapping[str, Any], mistakes: list[Mistake]
) -> dict[str, Any]:
    server: dict[str, Any] = {}
    for key, value in entry.items():
        if (ours := FIELDS.get(key)) and value is not None:
            server[ours] = _texts(value) if ours in ("env", "headers") else value
            source.origins[*path, ours] = (*place, key)
    for key, off in SWITCHES.items():
        if isinstance(entry.get(key), bool) and server.get("enabled") is not False:
            server["enabled"] = entry[key] is not off
            source.origins[*path, "enabled"] = (*place, key)
    # Hosts spell the name of the transport in many ways, or leave it out.
    if (written := server.pop("transport", None)) is not None:
        spelt = re.sub(r"[^a-z]", "", written.lower()) if isinstance(written, str) else ""
        if (known := _TRANSPORTS.get(spelt)) is None:
            mistakes.append(Mistake((*path, "transport"), "must be stdio, http or sse"))
        else:
            server["transport"] = known
    return server


def _tool_lists(
    source: ConfigSource,
    path: KeyPath,
    place: KeyPath,
    common: Converted,
    server: dict[str, Any],
    mistakes: list[Mistake],
) -> Iterator[str]:
    """Carry over the tools that a host leaves out, and yield a remark for a person on each list of them.

    A list that cannot be read is a mistake, not ignored.
    """
    for key, ours in TOOL_LISTS.items():
        value, written = common.entry.get(key), (*place, *common.places.get(key, (key,)))
        leaves_out_none = value is None or (ours == "allow" and value == ["*"])
        if leaves_out_none or (key == "tools" and not isinstance(value, list)):
            continue
        if isinstance(value, list) and (value or ours == "allow"):
            yield f"{source.place(written)} is carried over as {ours}: {_listed(value)}"
        before = server.get(ours)
        if ours == "allow" and before is not None:
            other = dotted(source.written((*path, ours))[-1:])
            message = f"says the same as {other}; keep one of them"
            mistakes.append(Mistake((*path, key), message))
            continue
        if not isinstance(before, list | None):
            continue  # it cannot be read, which is a mistake already
        if before is None or not isinstance(value, list):
            source.origins[*path, ours] = written
        if isinstance(value, list):
            value = [*(known := before or []), *value]
            for index in range(len(known), len(value)):
                # In a table of another shape the names have no places of their own.
                at = () if key in common.places else (index - len(known),)
                source.origins[*path, ours, index] = (*written, *at)
        server[ours] = value


def _switched_off(tables: Mapping[str, Any], name: str) -> KeyPath | None:
    """Return the list beside the entries that switches a server off; None if none does."""
    for place in _EXCLUDED_SERVERS:
        if name.lower() in (names := [one.lower() for one in _names_at(tables, place) or ()]):
            return (*place, names.index(name.lower()))
    for place in ALLOWED_SERVERS:
        allowed = _names_at(tables, place)
        if allowed is not None and name.lower() not in map(str.lower, allowed):
            return place
    return None


def _with_rules(
    source: ConfigSource, path: KeyPath, ruled: Mapping[str, tuple[Any, KeyPath]], server: dict[str, Any]
) -> Iterator[str]:
    """Add the tools that rules beside the entries deny to those of a server; yield a remark on each place."""
    for decision, remark in _RULED.items():
        found = {tools: place for tools, (made, place) in ruled.items() if made == decision}
        before = server.get("deny", [])
        if decision == "deny" and found and isinstance(before, list):
            server["deny"] = [*before, *found]
            for index, place in enumerate(found.values(), len(before)):
                source.origins[*path, "deny", index] = place
        for place in dict.fromkeys(found.values()):
            named = _listed([tools for tools, one in found.items() if one == place])
            yield f"{dotted(place)} of its host {remark}: {named}"


def _ruled(tables: Mapping[str, Any], dialect: Dialect, written: str) -> dict[str, tuple[Any, KeyPath]]:
    """Return globs of the tools of a server, each with the last decision of a rule and the place of that."""
    found: dict[str, tuple[Any, KeyPath]] = {}
    for _, place, form in (one for one in _RULES if one[0] == dialect):
        rules = _at(tables, place)
        if isinstance(rules, list):
            rules = dict.fromkeys((rule for rule in rules if isinstance(rule, str)), place[-1])
        for rule, given in rules.items() if isinstance(rules, dict) else ():
            decision = given.get("default", given.get("*")) if isinstance(given, dict) else given
            decision = _DECISIONS.get(decision, decision) if isinstance(decision, str | bool) else None
            # Some hosts replace what may not stand in the name of a tool.
            for name in dict.fromkeys((written, re.sub(r"[^\w-]", "_", written, flags=re.ASCII))):
                for tools in _tools_of(rule, form.format(name)):
                    found = {one: made for one, made in found.items() if not fnmatchcase(one, tools)}
                    if rule != "*" or decision == "deny":
                        found[tools] = (decision, place)
    return found


def _tools_of(rule: str, begin: str) -> Iterator[str]:
    """Yield globs of the tools whose names, after `begin`, a rule matches."""
    if not begin and not rule.startswith(("mcp__", "builtin:")):
        yield rule  # Amp: a tool of any server
    if f"{rule}__" == begin:
        yield "*"  # Claude Code: the server as a whole
    for cut in range(1, len(rule) + 1):
        if fnmatchcase(begin, rule[:cut]) and (rest := f"{'*' * (rule[cut - 1] == '*')}{rule[cut:]}"):
            yield rest.replace("?", "*")


def _names_at(tables: Mapping[str, Any], place: KeyPath) -> list[str] | None:
    """Return a list of names; None if there is none, or if it is something else."""
    names = _at(tables, place)
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _unreadable_lists(tables: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield a mistake for each list of servers or tools that cannot be read: they are on."""
    of_tools = dict.fromkeys(place for dialect, place, _ in _RULES if dialect == "common")
    for place in (*ALLOWED_SERVERS, *_EXCLUDED_SERVERS, *of_tools):
        if _at(tables, place) is not None and _names_at(tables, place) is None:
            yield Mistake(place, f"must be a list of names of {'tools' if place in of_tools else 'servers'}")


def _approvals(source: ConfigSource, place: KeyPath, entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield for a person which tools a host calls without asking, which is not carried over."""
    for key in APPROVALS:
        value = entry.get(key)
        if key == "tools":  # a list of them says what is allowed, as above
            tools = value.items() if isinstance(value, dict) else ()
            value = [name for name, one in tools if isinstance(one, dict) and "approval_mode" in one]
        if value and isinstance(value, list):
            yield (
                f"{source.place((*place, key))} is not carried over, because it is the host that asks before "
                f"a call; allow there again what you want, under the names of this proxy: {_listed(value)}"
            )


def _listed(names: list[Any]) -> str:
    return some_of([*map(str, names)]) or "no tool"


def _texts(value: Any) -> Any:
    # Hosts accept numbers and booleans in env, and pass them as text.
    if not isinstance(value, dict):
        return value
    return {key: _text(item) for key, item in value.items() if item is not None}


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def is_ourselves(entry: Mapping[str, Any]) -> bool:
    """Return True if an entry in the common form starts this proxy."""
    # Starting this proxy behind itself would start proxies forever.
    command, args = entry.get("command"), entry.get("args")
    words = [command, *(args if isinstance(args, list) else [])]
    return any(isinstance(word, str) and _OURSELVES.search(word) and not _is_folder(word) for word in words)


def _is_folder(word: str) -> bool:
    return Path(word).is_absolute() and os.path.isdir(word)  # noqa: PTH112 - no error


def _at(tables: Mapping[str, Any], place: KeyPath) -> Any:
    value: Any = tables
    for part in place:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
