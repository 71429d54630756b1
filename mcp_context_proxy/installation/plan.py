"""Plans the changes of an installation, without changing anything.

The servers of a host move into our configuration, and the host gets one entry that starts the proxy. A server
stays where it is if its entry has a mistake, or needs something that only its host can give. Nothing is left
out silently: the plan has a sentence for each decision of the host that could not be carried over.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import fields, replace

from mcp_context_proxy.bridge import CONFIG_VARIABLE
from mcp_context_proxy.bridge.meeting import options_of
from mcp_context_proxy.config import ServerConfig, default_path
from mcp_context_proxy.config.host_profiles import SERVER
from mcp_context_proxy.config.hosts import (
    APPROVALS,
    DISABLED_SERVERS,
    FIELDS,
    RULE_TABLES,
    SWITCHES,
    TOOL_LISTS,
    converted,
    dialect_of,
    from_host,
    is_ourselves,
    names_for,
)
from mcp_context_proxy.config.load import expand_home
from mcp_context_proxy.config.programs import PROGRAM_ALONE
from mcp_context_proxy.config.settings import SERVER_NAME_CHARACTERS
from mcp_context_proxy.config.source import Mistake, dotted, parse, plain, read_value
from mcp_context_proxy.config.texts import KeyPath, parts_of
from mcp_context_proxy.config.variables import expand
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.installation import HostPlace, about, read_text
from mcp_context_proxy.installation.editing import EditError, Form, Place, edited, entries, with_value
from mcp_context_proxy.protocol.strangers import clean
from mcp_context_proxy.system import matches

CARRIED: Final = frozenset(
    {
        *(*FIELDS, *SWITCHES, *TOOL_LISTS, *APPROVALS),
        *("cmd", "environment", "envs", "env_keys", "env_vars", "uri", "httpUrl", "requestOptions"),
        *("http_headers", "env_http_headers", "bearer_token_env_var", "transportType", "available_tools"),
        *("startup_timeout_sec", "tool_timeout_sec", "name", "display_name", "description", "source"),
        *("bundled", "config", "alwaysLoad", "alwaysLoadTools", "gallery", "version", "schema"),
        "toolPermissions",
    }
)
"""Keys of entries that are carried over, are told by a remark, or mean nothing outside their host."""

HANDED_OVER: Final = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"})
"""Variables that each host hands over to the programs that it starts."""

AROUND: Final = 3
"""Lines that are shown before and after each change."""

NO_VARIABLES: Final[Mapping[str, bool]] = {}
NO_RULES: Final[Mapping[str, Any]] = {}


class FileChange(Struct, frozen=True):
    """The text of a file before and after; before is None if there is no such file yet."""

    file: Path
    before: str | None
    after: str

    def difference(self) -> list[str]:
        """Return the lines that change, with some around them, in the form of ``diff``.

        The numbers of lines in it count from the first of those.
        """
        # To compare lines that are the same anyway would take a second where a host keeps megabytes.
        old, new = _changed((self.before or "").splitlines(), self.after.splitlines())
        old, new = (lines[::-1] for lines in _changed(old[::-1], new[::-1]))
        return list(unified_diff(old, new, str(self.file), str(self.file), lineterm="", n=AROUND))


def _changed(*texts: list[str]) -> list[list[str]]:
    """Return two texts from some lines before the first that differs."""
    same = next((at for at, lines in enumerate(zip(*texts, strict=False)) if len({*lines}) > 1), None)
    first = max(0, (min(map(len, texts)) if same is None else same) - AROUND)
    return [lines[first:] for lines in texts]


class Servers(Struct):
    """The servers found in a host's file: those that move, and those that stay."""

    written: Mapping[str, Any] = field(default_factory=dict)
    """All entries as they stand there, by name."""
    moving: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Our table of each server that moves, by the name that it has in the host."""
    staying: dict[str, str] = field(default_factory=dict)
    """Reasons of those that stay, by name."""
    notes: list[str] = field(default_factory=list)
    """Sentences on settings that are not carried over, and on things to do by hand."""
    ours: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Entries that start this proxy, in the common form, by name."""


class HostPlan(Struct):
    """Everything that an installation does in one host."""

    host: HostPlace
    change: FileChange | None
    """None if the host's file stays as it is."""
    place: Place
    entry_name: str
    moved: dict[str, Any]
    """Entries that leave the host's file, as they stood there."""
    names: dict[str, str]
    """Names in our configuration, by those in the host."""
    staying: dict[str, str]
    notes: list[str]


def rules_of(host: HostPlace, text: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the tables of a host's settings, or of files beside them, that may turn tools or servers off.

    Raises `EditError` if such a file cannot be read: servers that it turns off would be on.
    """
    tables = entries(host.form, text, ())
    if host.rules:
        tables |= _tables_in(host.file(environ, path=host.rules))
    if host.switches:
        states = _tables_in(host.file(environ, path=host.switches))
        off = [name for name, one in states.items() if isinstance(one, dict) and one.get("enabled") is False]
        tables[DISABLED_SERVERS] = off
    return {key: tables[key] for key in RULE_TABLES & tables.keys()}


def _tables_in(file: Path) -> dict[str, Any]:
    with about(file):
        return entries("json", read_text(file) or "", ())


def servers_in(
    file: Path,
    text: str,
    form: Form,
    place: Place,
    environ: Mapping[str, str],
    rules: Mapping[str, Any] = NO_RULES,
) -> Servers:
    """Sort the servers of a host's file; raises `EditError` if the file cannot be read in its form.

    Tools that the rules of the host deny are turned off; a server of which no tool is left stays.
    """
    written = entries(form, text, place)
    found = Servers(written)
    if not written:
        return found
    try:
        source = parse(file, plain(text))
        source = replace(source, tables={**rules, **source.tables})
        projects, dialect = source.tables.get("projects"), dialect_of(place, source)
        source, found_wrong = from_host(source, lambda _warning: None, place)
    except ConfigError as error:
        raise EditError("; ".join(problem.message for problem in error.problems)) from None
    project = place[1] if place[:1] == ("projects",) else None
    off_in = {path: _turned_off(one) for path, one in projects.items()} if isinstance(projects, dict) else {}
    for name, key in names_for(written).items():
        entry = written[name]
        common = converted(dialect, entry) if isinstance(entry, dict) else None
        if common is None:
            found.staying[name] = "it is no table with a command or a url"
        elif common.not_a_server:
            found.staying[name] = f"it {common.not_a_server}"
        elif is_ourselves(common.entry):
            found.ours[name] = common.entry
        else:
            table = dict(source.tables["servers"].get(key, {}))
            if project is not None and table.get("command"):
                # Claude Code starts it there.
                table.setdefault("cwd", project)
            if project is not None and name in off_in[project]:
                table["enabled"] = False
            wrong = [
                f"{dotted(one.path[2:])}: {one.message}" if one.path[2:] else one.message
                for one in found_wrong
                if one.path[:2] == ("servers", key)
            ]
            unset = list[str]()
            wrong += _needs_host(table, environ, unset, name)
            wrong += _only_there(entry)
            wrong += _mistakes(table)
            if not wrong and "*" in table.get("deny", ()):
                wrong.append("its host turns off all its tools")
            if dialect == "continue" and not entry.get("name"):
                wrong.append("it has no name")
            if wrong:
                found.staying[name] = "; ".join(wrong)
                continue
            found.moving[name] = table
            found.notes += unset
            found.notes += (f"{name}: {remark}" for remark in source.remarks[key])
            found.notes += (
                f"{name}: turned off in the project {path}, and on there behind the proxy"
                for path, off in off_in.items()
                if project is None and name in off
            )
            carried = CARRIED | ({"timeout"} if dialect in {"goose", "opencode"} else set())
            if left := [one for one in entry if one not in carried]:
                found.notes.append(f"{name}: not carried over: {', '.join(left)}")
    return found


def _turned_off(project: Any) -> list[Any]:
    """Return the servers that Claude Code has turned off in a project."""
    off = project.get("disabledMcpServers") if isinstance(project, dict) else None
    return off if isinstance(off, list) else []


_ONLY_THERE: Final = {
    "envFile": "its envFile is not read here; name its variables in env",
    "authProviderType": "its host signs in there with credentials of its own",
    "headersHelper": "its host runs a program for its headers, which is not done here",
    "http_headers_helper": "its host runs a program for its headers, which is not done here",
    "auth": "its host signs in there with credentials of its own",
    "sandboxEnabled": "its host runs it in a sandbox, which there is not here",
    "environment_id": "its host runs it on another machine",
    "experimental_environment": "its host runs it on another machine",
    "remote": "its host runs it on another machine",
    "socket": "its host reaches it through a socket",
}
"""Keys of entries with which only their host can start or reach a server, and the reason."""
_NOTHING: Final = (None, False, "", "local", "oauth")
"""Values with which such a key says nothing."""

_BY_HAND: Final = "add the server by hand, with a table [servers.NAME.oauth], to log in as that client here"


def _only_there(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield why nobody but its host can start or reach a server, by the keys of its entry."""
    for key, reason in _ONLY_THERE.items():
        if (value := entry.get(key)) not in _NOTHING and not isinstance(value, dict):
            yield reason
    if any(_names_client(one) for one in (entry, *map(entry.get, ("auth", "oauth", "oauthClient")))):
        yield f"its host logs in as a client of its own; {_BY_HAND}"


def _names_client(login: Any) -> bool:
    """Return whether the settings of a login name a client, whose redirect and secret only its host knows."""
    names = {str(key).replace("_", "").lower() for key in login} if isinstance(login, dict) else set()
    return not names.isdisjoint({"clientid", "oauthclientid"})


def _mistakes(table: Mapping[str, Any]) -> Iterator[str]:
    try:
        json.dumps(table, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        yield "it has half of a character, which no file can have"
    runs = [text for path, text in _texts(table) if path[0] in ("command", "args", "cwd", "url")]
    if [*map(clean, runs)] != runs:
        yield "it hides characters, so that nobody sees which program would run"
    if bool(table.get("command")) == bool(table.get("url")):
        yield "it has both a command and a url" if table.get("url") else "it has neither a command nor a url"
    for key in ("command", "cwd"):
        value = table.get(key)
        if key == "command" and len(str(value).split()) > 1 and not _FULL.match(str(value)):
            yield f"command: {PROGRAM_ALONE}"
            continue
        # A bare name is looked up on the PATH.
        if isinstance(value, str) and (key == "cwd" or re.search(r"[/\\]", value)) and not _FULL.match(value):
            yield f"{key}: {value} {_FROM_ITS_FOLDER}"
    if not table.get("cwd"):
        arguments = (pair for pair in _texts(table) if pair[0][0] == "args")
        yield from (f"{dotted(at)}: {one} {_FROM_ITS_FOLDER}" for at, one in arguments if _HERE.match(one))
    found: list[Mistake] = []
    read_value(ServerConfig, table, (), found)
    yield from (f"{dotted(one.path)}: {one.message}" for one in found)


_FROM_ITS_FOLDER: Final = "counts from the folder that its host has open; write the full path"
_HERE: Final = re.compile(r"(?:--?[\w-]+=)?\.\.?(?:[/\\]|$)")
"""Beginning of an argument that is the folder in which the server starts, or a path from there."""
_FULL: Final = re.compile(r"[/~\\]|[A-Za-z]:|\$\{")
"""Beginning of a path that means the same everywhere, or of a variable."""


def _needs_host(
    table: Mapping[str, Any], environ: Mapping[str, str], notes: list[str], name: str
) -> Iterator[str]:
    """Yield why a server needs its host; note the variables that are not set here."""
    for path, text in _texts(table):
        if (known := _ONLY_HOST.search(text)) is not None:
            yield f"{dotted(path)}: only its host knows {known[0]}; write the value, or ${{VARIABLE}}"
            continue
        for problem in expand(text, environ).problems:
            if problem.variable:
                unset = f"{name}: {problem.variable} is not set here; set it where hosts are started, or the "
                notes += {f"{unset}server is off"}.difference(notes)
            else:
                yield f"{dotted(path)}: {problem.message}"


_ONLY_HOST: Final = re.compile(r"\$\{\{[^}]*\}\}|\{\{\w+\}\}|\{file:[^}]*\}|\$\{file:[^}]*\}")
"""A value that a host looks up: a secret of Continue, a person of LibreChat, or a file."""


def _texts(table: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    return ((path, one) for path, one in parts_of(table) if isinstance(one, str))


class Configuration:
    """The text of our own configuration, to which servers are added one after the other."""

    def __init__(self, file: Path, text: str | None) -> None:
        """Read the servers that are there; `text` is None if there is no such file.

        Raises `EditError` if it is not valid TOML.
        """
        self.file, self.before, self.text = file, text, text or ""
        if file.suffix.lower() != ".toml":
            raise EditError("it is not a config.toml, and servers are only written into one")
        self.servers: dict[str, Any] = entries("toml", self.text, ("servers",))
        self._there_before = frozenset(self.servers)

    def add(self, name: str, table: Mapping[str, Any], host: str) -> str:
        """Add a server, unless the same one is there; return its name.

        Another server of that name keeps it, and the new one gets the name of its host as a suffix. One that
        the file had before is the same with whatever a person has set, turned off or pinned there.
        """
        for known, other in self.servers.items():
            if isinstance(other, dict) and _same(other, table, known in self._there_before):
                self._lengthen(known, other, table)
                return known
        wish, number = name, 1
        while wish in self.servers:
            end = f"-{host}" if number == 1 else f"-{host}-{number}"
            wish, number = name[: SERVER_NAME_CHARACTERS - len(end)] + end, number + 1
        written = _settings(table)
        if table.get("transport") == "sse":
            written["transport"] = "sse"
        self.text = edited("toml", self.text, ("servers",), (), {wish: written})
        self.servers[wish] = written
        return wish

    def with_other_limits(self, name: str) -> list[str]:
        """Return the servers that run the same as one, with other tools on."""
        given = self.servers[name]
        return [
            other
            for other, table in self.servers.items()
            if isinstance(table, dict)
            and all(table.get(key) == given.get(key) for key in ("command", "args", "url"))
            and any(table.get(key) != given.get(key) for key in _LIMITS)
        ]

    def _lengthen(self, name: str, known: dict[str, Any], table: Mapping[str, Any]) -> None:
        """Give a server the time that the host with the most patience gives the same one.

        A time that the file had before is a person's: only a host that states a longer one changes it.
        """
        for key, usual in _PATIENCE.items():
            before = known.get(key, usual)
            wanted = table.get(key, before if name in self._there_before else usual)
            if isinstance(before, int | float) and isinstance(wanted, int | float) and wanted > before:
                text, after = with_value(self.text, ("servers", name), key, wanted), {**known, key: wanted}
                with suppress(EditError):
                    if entries("toml", text, ("servers",)) == {**self.servers, name: after}:
                        self.text = text
                        known[key] = wanted

    def remove(self, name: str) -> None:
        """Remove a server; raises `EditError` if there is none of that name, or it cannot be removed."""
        if name not in self.servers:
            known = ", ".join(self.servers) or "none"
            raise EditError(f"there is no server {name} in {self.file}; there: {known}")
        self.text = edited("toml", self.text, ("servers",), {name}, {})
        del self.servers[name]

    def variables(self, environ: Mapping[str, str]) -> dict[str, bool]:
        """Return the variables that the configuration refers to or inherits, each with True if it is set.

        Of a pattern, those count that are set; of one for all variables, none.
        """
        found: dict[str, bool] = {}
        for path, text in _texts(entries("toml", self.text, ())):
            if path[-2:-1] == ("inherit",) and text != "*":
                found |= {name: True for name in environ if matches(name, (text,))}
                found |= {text: text in environ} if "*" not in text else {}
            value = expand(text, environ)
            found |= {name: True for name, _ in value.variables}
            found |= {problem.variable: False for problem in value.problems if problem.variable}
        return {name: is_set for name, is_set in sorted(found.items()) if name not in HANDED_OVER}

    @property
    def change(self) -> FileChange | None:
        return None if self.text == (self.before or "") else FileChange(self.file, self.before, self.text)


def _same(one: Mapping[str, Any], other: Mapping[str, Any], there_before: bool) -> bool:
    both = [table.get("transport") == "sse" for table in (one, other)]
    ours, theirs = ({**_settings(table), **dict.fromkeys(_PATIENCE)} for table in (one, other))
    for table in (ours, theirs):
        # Other hosts write the same variables as values.
        if isinstance(names := table.pop("inherit", None), list):
            table["env"] = {**{str(name): f"${{{name}}}" for name in names}, **table.get("env", {})}
    if there_before:
        theirs |= {key: value for key, value in ours.items() if key not in (*theirs, *_CONNECTION)}
        words, known = theirs.get("args"), ours.get("args")
        if isinstance(words, list) and isinstance(known, list) and len(words) == len(known):
            theirs["args"] = [
                mine if _VERSION.sub("", str(mine)) == str(word).removesuffix("@latest") else word
                for mine, word in zip(known, words, strict=True)
            ]
    return both[0] == both[1] and ours == theirs


_CONNECTION: Final = ("command", "args", "url", "headers", "env", "cwd")
"""Settings that make another server of it, where only one of two has them."""
_VERSION: Final = re.compile(r"(?<=.)(@v?\d|==\d|@sha256:)\S*$")
"""A version as ``check --pin`` writes it behind the name of a package or an image."""
_PATIENCE: Final = {
    each.name: each.default
    for each in fields(ServerConfig)
    if each.name in {"connect_timeout", "call_timeout"}
}
"""Settings that do not make another server of it, with their defaults."""
_LIMITS: Final = ("enabled", "allow", "deny", "tools")
"""Settings by which a server or some of its tools may be off."""


def _settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say something, in their usual order: two servers with equal ones are one."""
    order = [key for key in ("command", "args", "url", "headers", "env", "inherit") if key in table]
    ordered = {key: table[key] for key in [*order, *table]}
    kept = {key: value for key, value in ordered.items() if value not in ([], {}, None) or key == "allow"}
    kept.pop("transport", None)
    if kept.get("enabled") is True:
        del kept["enabled"]
    return kept


def plan(
    host: HostPlace,
    file: Path,
    text: str | None,
    configuration: Configuration,
    command: Sequence[str],
    environ: Mapping[str, str],
    place: Place | None = None,
    variables: Mapping[str, bool] = NO_VARIABLES,
) -> HostPlan:
    """Plan the installation in one host, and add its servers to our configuration.

    With a `place`, such as a project's, its servers move, but our entry stands only with the host's own. It
    names the variables, each with True if it is set, that the host would keep to itself otherwise. Raises
    `EditError` if the host's file cannot be read or edited.
    """
    own = place is None
    place = place or host.place_in(text or "")
    rules = rules_of(host, text or "", environ)
    found = servers_in(file, text or "", host.form, place, environ, rules)
    before = _ours(found, command, environ)
    entry_name = before or SERVER
    if entry_name in found.staying:
        raise EditError(f"{entry_name} is the name of another server there; rename that one first")
    written = found.written
    entry = dict(written[entry_name]) if before else host.entry_for(command)
    program = Path(str(found.ours[before].get("command"))) if before and own else None
    if program is not None and program.is_absolute() and not _starts(program):
        entry = _with_program(entry, command[: command.index("serve")])
    entry = entry if host.named is None else host.named(entry, variables)
    insert = {entry_name: entry} if own and entry != written.get(entry_name) else {}
    moved = {name: written[name] for name in found.moving}
    after = text or ""
    if insert or moved:
        leaving = moved.keys() | (insert.keys() & written.keys())
        after = edited(host.form, text or host.new_text, place, leaving, insert, listed=host.listed)
    if own:
        after = allowing(host, after, entry_name)
    # Last: servers of a host that cannot be changed stay there alone.
    names = names_for(found.moving)
    added = {name: configuration.add(names[name], table, host.name) for name, table in found.moving.items()}
    for name, ours in added.items():
        known = configuration.servers[ours]
        if more := [key for key in _LIMITS if key in known and key not in found.moving[name]]:
            found.notes.append(f"{name}: {ours} stays as the configuration has it, with {' and '.join(more)}")
        for other in configuration.with_other_limits(ours):
            found.notes.append(
                f"{name}: {other} runs the same with other tools turned off; behind the proxy each host has "
                f"the tools of both, so turn off in both what no host may have"
            )
    change = None
    if after != (text or ""):
        # An entry of ours that was there before comes back with the moved ones.
        moved |= {before: written[before]} if before and own else {}
        change = FileChange(file, text, after)
    return HostPlan(host, change, place, entry_name, moved, added, found.staying, found.notes)


def _starts(program: Path) -> bool:
    """Return False for a program that is gone with its folder, or whose Python is, as after its update."""
    python = program.resolve().with_name("python")
    return program.exists() and (python.exists() or not python.is_symlink())


def allowing(host: HostPlace, text: str, name: str, *, wanted: bool = True) -> str:
    """Return the settings of a host with our entry among the servers that it may start, if it lists those.

    If it is not wanted, it is no longer among them.
    """
    for *outer, key in host.allowed:
        allowed = entries(host.form, text, tuple(outer)).get(key)
        if isinstance(allowed, list) and (name in allowed) is not wanted:
            if outer:
                others = [one for one in allowed if one != name]
                text = edited(host.form, text, tuple(outer), (), {key: [*others, name] if wanted else others})
            elif wanted:
                raise EditError(f"{key} there does not name {name}; add it first")
    return text


ELSEWHERE: Final = frozenset({"docker", "podman", "nerdctl", "kubectl", "ssh", "wsl", "distrobox", "toolbox"})
"""Programs that start another one where our configuration may not be."""


def _ours(found: Servers, command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return the name of the entry that serves the same configuration as a command; None if there is none.

    Raises `EditError` if there is one that serves another, so that servers which move would be missing there.
    """
    ours = _configuration_of({"command": command[0], "args": command[1:]}, environ)
    served = {name: _configuration_of(entry, environ) for name, entry in found.ours.items()}
    if name := next((name for name, file in served.items() if file == ours), None):
        return name
    for name, file in served.items():
        where = "starts the proxy elsewhere" if file is None else f"serves {file}"
        if found.moving or file is not None:
            raise EditError(
                f"{name} there {where}, and not {ours}: remove that entry, or "
                + ("move the servers there by hand" if file is None else f"install with --config {file}")
            )
        return name
    return None


def _configuration_of(entry: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Return the configuration that an entry of ours serves; None if that cannot be told."""
    args, env = entry.get("args"), entry.get("env")
    words = [str(one) for one in args] if isinstance(args, list | tuple) else []
    in_shell = any(" " in one and is_ourselves({"command": one}) for one in words)
    if in_shell or Path(str(entry.get("command"))).stem.lower() in ELSEWHERE:
        return None
    named = env.get(CONFIG_VARIABLE) if isinstance(env, dict) else None
    given = next(reversed(options_of(words, "--config")), named)
    file = default_path(environ) if given is None else expand_home(str(given), environ)
    return os.path.realpath(file) if file.is_absolute() and "$" not in str(file) else None


def _with_program(entry: Mapping[str, Any], program: Sequence[str]) -> dict[str, Any]:
    """Return an entry of ours, in the form of any host, that starts another program with the same options."""
    inner = next((key for key in ("transport", "command") if isinstance(entry.get(key), dict)), None)
    if inner is not None:  # of Cline, and of Zed
        return {**entry, inner: _with_program(entry[inner], program)}
    key = next((one for one in ("cmd", "path") if one in entry), "command")
    listed = isinstance(entry.get(key), list)
    words = [*entry[key]] if listed else [entry.get(key), *(entry.get("args") or [])]
    last = max((at for at, one in enumerate(words) if is_ourselves({"command": one})), default=0)
    words = [*program, *words[last + 1 :]]
    return {**entry, key: words} if listed else {**entry, key: words[0], "args": words[1:]}


def read_configuration(file: Path) -> Configuration:
    """Read our own configuration; raises `EditError` if it cannot be read, or is not valid."""
    with about(file):
        return Configuration(file, read_text(file))
