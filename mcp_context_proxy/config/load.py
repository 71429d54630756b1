"""Loads the configuration: from a file to a checked `Config`, with every mistake reported at once.

The steps are: find and read the file, convert the entries of a host's file, apply overrides, expand
variables, resolve paths, validate. Loading starts nothing and changes nothing on disk. The working directory
is never searched for a configuration, and no server starts there unless its ``cwd`` says so: a repository
that somebody opens must not be able to start programs.

A mistake costs the part that it stands in, and no more. A server with a mistake is off. Another key has its
default, or its table the cautious values of `_CAUTIOUS`. Only a file that cannot be read, or that others can
change, and a mistake in a protection of the proxy (`_NEEDED`) or on the command line leave nothing to start
with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.bridge import CONFIG_VARIABLE
from mcp_context_proxy.config.hosts import Warn, from_host
from mcp_context_proxy.config.programs import downloads, inherited_secrets
from mcp_context_proxy.config.settings import (
    LAUNCH,
    PACKAGED_MODELS,
    SERVER_NAME,
    SERVER_NAME_CHARACTERS,
    Config,
    ServerConfig,
)
from mcp_context_proxy.config.source import (
    ConfigSource,
    Mistake,
    Unknown,
    any_means,
    changeable_by_others,
    dotted,
    read,
    read_value,
)
from mcp_context_proxy.config.tables import ASKED, CONFIRM
from mcp_context_proxy.config.texts import KeyPath
from mcp_context_proxy.config.variables import REFERENCE, SecretSource, expand, sources, with_unknown
from mcp_context_proxy.errors import ConfigError, ConfigProblem, ServerOff
from mcp_context_proxy.system import TO_BEGIN, default_path
from mcp_context_proxy.system.later import pattern

logger = logging.getLogger(__name__)

_MAY_BE_SECRET: Final = frozenset({"args", "env", "url", "headers", "oauth", "tls"})
_EXPANDED_SERVER_KEYS: Final = _MAY_BE_SECRET | {"command", "cwd"}
"""Keys of a server in which variables are expanded: its other texts are read by people and models."""
_MODEL_TABLES: Final = ("embedding", "rerank")
"""Tables that name a model, in a folder or behind an endpoint."""
_SERVER_PATHS: Final = (("oauth", "client_key"), ("tls", "certificate"), ("tls", "key"), ("tls", "ca"))
_PATHS: Final = (("store", "path"), ("http", "token_file"), ("cluster", "key_file"))
_NEEDED: Final = frozenset({"http", "auth", "clients", "cluster"})
"""Tables without which nothing starts: who may connect, and to what, is not decided by a default."""
_CAUTIOUS: Final[Mapping[str, Mapping[str, Any]]] = {
    "context": {"keep_requests": False},
    "approval": {"mode": "all"},
    "guards": {"results": "redact"},
    "learning": {"enabled": False},
    "statistics": {"enabled": False},
    "interactions": {"enabled": False},
    "store": {"path": "memory"},
    "embedding": {},
    "rerank": {},
}
"""Tables of which nothing is used if there is a mistake in them, with their replacements. The mistake may be
in a key that keeps data from being stored or given away, or without which the others name another model.
Keys of the other tables have their defaults one by one."""
_NO_FILE: Final = "no such file or directory"
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def load(
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] = _NONE,
    warn: Warn = logger.warning,
    unknown: dict[str, None] | None = None,
) -> Config:
    """Load the configuration from `path`, or from the file that `find` returns.

    Args:
        path: A ``config.toml``, or a host's JSON file.
        environ: The environment, for variables and default places.
        overrides: Values that replace those of the file, as dotted keys (``{"http.port": 9000}``) or nested
            tables; None means not given.
        warn: Receives notes on entries that are skipped without being a mistake.
        unknown: Receives the names of values that are not there. Then they are no mistakes, and none is
            fetched from a keyring, a file or a command: for a look at the file where it is not used.

    Raises:
        ConfigError: nothing can be started with the configuration; it holds every mistake, in file order.
    """
    source = read(find(path, environ))
    refused = changeable_by_others(source.file, environ) if unknown is None else ()
    found: list[Mistake] = []
    if source.of_host:
        source, found = from_host(source, warn)
    draft = _Draft(source, environ, _copied(source.tables), found, unknown)
    draft.override(overrides)
    return draft.config(refused)


def find(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the file that is named, or else the user's own; raises `ConfigError` if it does not exist."""
    named = environ.get(CONFIG_VARIABLE) if path is None else str(path)
    found = expand_home(named, environ) if named else default_path(environ)
    if _unreadable(found) != _NO_FILE:
        return found.absolute()  # reading it says why it cannot be used
    if named:
        message = "the file does not exist; correct the path, or create it: a table [servers.NAME] is enough"
        raise ConfigError([ConfigProblem(found, None, "", message)])
    message = f"there is no configuration: {CONFIG_VARIABLE} is not set, and {found} does not exist"
    remedy = f"{TO_BEGIN}; or give a host's own JSON with --config"
    raise ConfigError([ConfigProblem(None, None, "", message, remedy)])


def expand_home(text: str, environ: Mapping[str, str]) -> Path:
    """Convert text to a path, with a leading ``~`` replaced by the home folder."""
    if text == "~" or text.startswith(("~/", "~\\")):
        home = environ.get("HOME") or environ.get("USERPROFILE")
        return (Path(home) if home else Path.home()) / text[2:]
    return Path(text)


class _Draft(Struct, dict=True):
    """Tables that become a `Config`, and the mistakes found so far."""

    source: ConfigSource
    environ: Mapping[str, str]
    tables: dict[str, Any]
    found: list[Mistake] = field(default_factory=list)
    unknown: dict[str, None] | None = None
    overridden: set[KeyPath] = field(default_factory=set)
    secrets: dict[KeyPath, dict[str, str]] = field(default_factory=dict)
    """Variables that may be secrets, by the table that has them."""
    files: list[Path] = field(default_factory=list)
    """Files that values were read from."""

    @cached_property
    def sources(self) -> dict[str, SecretSource]:
        """Other places for values, by prefix."""
        # Of the file alone: what an argument says is not what the user has written down.
        secrets = self.source.tables.get("secrets")
        return sources(
            commands=isinstance(secrets, Mapping) and secrets.get("commands") is True,
            is_host_file=self.source.of_host,
            fetching=self.unknown is None,
            folder=self.source.file.parent,
            environ=self.environ,
            files=self.files,
        )

    def config(self, refused: Sequence[ConfigProblem]) -> Config:
        """Return the configuration without the parts that have a mistake.

        Raises `ConfigError` if the file was `refused`, or a mistake leaves nothing to start with.
        """
        self._expand()
        self._resolve_paths()
        self._resolve_documents()
        unexpanded = {mistake.path for mistake in self.found if mistake.variable}
        config, found = self._validated()
        # An unknown value has no other mistakes.
        self.found += [one for one in found if not any(one.path[: len(p)] == p for p in unexpanded)]
        problems = [(mistake.path, self._problem(mistake)) for mistake in self.found]
        fatal = bool(refused) or any(path[0] in _NEEDED or not p.file for path, p in problems)
        dropped = not fatal and self._drop(self.found)
        while dropped:
            # What is left may contradict itself only now, which is a consequence and no further mistake.
            config, found = self._validated()
            dropped = self._drop(found)
        if fatal or config is None:
            raise ConfigError(_in_file_order([*refused, *(problem for _, problem in problems)]))
        others = (problem for path, problem in problems if path[0] != "servers" or len(path) == 1)
        off, mistakes = self._servers_off(problems), _in_file_order(others)
        return replace(config, off=off, mistakes=mistakes, files=tuple(self.files))

    def _servers_off(self, problems: Iterable[tuple[KeyPath, ConfigProblem]]) -> dict[str, ServerOff]:
        of_server: dict[str, list[ConfigProblem]] = {}
        for path, problem in problems:
            if path[0] == "servers" and len(path) > 1:
                of_server.setdefault(str(path[1]), []).append(problem)
        off = {}
        for name, found in of_server.items():
            first, *_ = ordered = _in_file_order(found)
            key = first.key.removeprefix(dotted(self.source.written(("servers", name)))).removeprefix(".")
            stands_alone = first.variable or not key
            off[name] = ServerOff(first.message if stands_alone else f"{key}: {first.message}", ordered)
        return off

    def _drop(self, found: Iterable[Mistake]) -> bool:
        """Remove each part with a mistake, or replace it as `_CAUTIOUS` says; return whether any was."""
        dropped = [self._drop_unit(unit) for unit in _units(found)]
        return any(dropped)

    def _drop_unit(self, unit: KeyPath) -> bool:
        holder: Any = self.tables
        for part in unit[:-1]:
            holder = holder.get(part) if isinstance(holder, dict) else None
        last: Any = unit[-1]
        there = last in holder if isinstance(holder, dict) else isinstance(holder, list)
        if there and len(unit) == 1 and last in _CAUTIOUS:
            there, holder[last] = holder[last] != _CAUTIOUS[last], dict(_CAUTIOUS[last])
        elif there:
            del holder[last]
        return there

    def override(self, overrides: Mapping[str, Any]) -> None:
        for path, value in _leaves(overrides):
            table = self.tables
            for part in path[:-1]:
                if not isinstance(table.get(part), dict):
                    table[part] = {}
                table = table[part]
            table[str(path[-1])] = value
            self.overridden.add(path)

    def _expand(self) -> None:
        for name, server in _tables(self.tables.get("servers")):
            # A server that is disabled needs no variables.
            if server.get("enabled") is not False:
                keys = [key for key in server if key in _EXPANDED_SERVER_KEYS]
                server.update({key: self._expanded(("servers", name, key), server[key]) for key in keys})
        names = [name for name in self.tables if name != "servers"]
        self.tables.update({name: self._expanded((name,), self.tables[name]) for name in names})

    def _expanded(self, path: KeyPath, value: Any) -> Any:
        if isinstance(value, list):
            return [self._expanded((*path, index), item) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._expanded((*path, key), item) for key, item in value.items()}
        if not isinstance(value, str) or REFERENCE not in value:
            return value
        if self.unknown is None:
            result = expand(value, self.environ, self.sources)
        else:
            result = with_unknown(value, self.environ, self.sources, self.unknown)
        self.found += [Mistake(path, one.message, one.remedy, one.variable) for one in result.problems]
        if path[0] == "env":
            self.secrets.setdefault(("env",), {}).update(result.variables)
        elif path[0] == "servers" and path[2] in _MAY_BE_SECRET:
            self.secrets.setdefault(path[:2], {}).update(result.variables)
        return result.text if self.unknown is None else Unknown(result.text)

    def _resolve_paths(self) -> None:
        for section, key in _PATHS:
            self._resolve((section, key), self.tables.get(section), key)
        for name in _MODEL_TABLES:
            table = self.tables.get(name)
            if isinstance(table, dict) and "endpoint" not in table:
                if name == "embedding" and table.get("model") in PACKAGED_MODELS:
                    continue
                self._resolve((name, "model"), table, "model")
        for name, server in _tables(self.tables.get("servers")):
            if server.get("cwd") == "":
                server["cwd"] = "."
            if server.get("cwd") != str(LAUNCH):
                self._resolve(("servers", name, "cwd"), server, "cwd")
            for table, key in _SERVER_PATHS:
                self._resolve(("servers", name, table, key), server.get(table), key)
            command = server.get("command")
            # A command without a folder is looked for on the PATH.
            if isinstance(command, str) and (command.startswith("~") or Path(command).name != command):
                self._resolve(("servers", name, "command"), server, "command")

    def _resolve_documents(self) -> None:
        documents = self.tables.get("documents")
        for index, document in enumerate(documents if isinstance(documents, list) else ()):
            path = ("documents", index, "path")
            if not isinstance(document, dict):
                continue
            roots, launched = document.get("roots"), document.get("cwd") == str(LAUNCH)
            if isinstance(roots, list) and all(isinstance(root, str) for root in roots):
                folder = self.source.file.parent
                document["roots"] = [str(folder / expand_home(root, self.environ)) for root in roots]
            if launched and isinstance(document.get("path"), str):
                # Where a project has no such file, it has no such documents.
                document["path"] = str(Path.cwd() / expand_home(document["path"], self.environ))
                continue
            known = isinstance(document.get("path"), Unknown) or any(one.path == path for one in self.found)
            self._resolve(path, document, "path")
            text = document.get("path")
            if isinstance(text, str) and not known and (reason := _unreadable(Path(text))):
                self.found.append(Mistake(path, f"{text}: {reason}"))

    def _resolve(self, path: KeyPath, table: Any, key: str) -> None:
        # Paths are relative to the file; those of command-line options to the working directory.
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(value, Path):
            value = str(value)
        if not isinstance(value, str) or not value or (path == ("store", "path") and value == "memory"):
            return
        base = Path.cwd() if path in self.overridden else self.source.file.parent
        table[key] = str(base / expand_home(value, self.environ))

    def _validated(self) -> tuple[Config | None, list[Mistake]]:
        """Return the configuration, if the tables give one, and the mistakes in them."""
        found = [Mistake(*mistake) for mistake in contradictions(self.tables)]
        tables, wrong, servers = self.tables, list[Mistake](), self.tables.get("servers")
        if isinstance(servers, dict):
            understood = {name: self._understood(server) for name, server in servers.items()}
            tables = tables | {"servers": understood}
        config: Config = read_value(Config, tables, (), wrong)
        if wrong:
            return None, found + wrong
        servers = {name: self._with_general(name, config) for name in config.servers}
        return replace(config, path=self.source.file, servers=servers), found

    def _understood(self, server: Any) -> Any:
        if not isinstance(server, dict):
            return server
        # Never where the host was started: a repository that somebody opens would decide what a server runs.
        derived = {"cwd": str(self.source.file.parent)} if "command" in server else {}
        if isinstance(url := server.get("url"), str):
            # Nearly all HTTP+SSE servers are at this path, and no known server of streamable HTTP is.
            of_sse = url.partition("?")[0].rstrip("/").endswith("/sse")
            derived["transport"] = "sse" if of_sse else "http"
        return derived | _with_classes(server)

    def _with_general(self, name: str, config: Config) -> ServerConfig:
        """Return a server with derived settings, and with the general ones where it has none of its own."""
        limits, server, given = config.limits, config.servers[name], self.tables["servers"][name]
        defaults = {"connect_timeout": limits.connect_seconds, "call_timeout": limits.call_seconds}
        update: dict[str, Any] = {key: value for key, value in defaults.items() if key not in given}
        if downloads(server):
            usual = update.get("connect_timeout", server.connect_timeout)
            update["first_connect_timeout"] = max(limits.first_start_seconds, usual)
        secrets = [*self.secrets.get(("servers", name), {}).items()]
        if server.command is not None:
            update["env"] = {**config.env, **server.env}
            update["inherit"] = tuple(dict.fromkeys((*config.inherit, *server.inherit)))
            server = replace(server, **update)
            secrets += [*self.secrets.get(("env",), {}).items(), *inherited_secrets(server, self.environ)]
        places = {dotted(key): self._place(("servers", name, *key)) for key in _refusing(given)}
        remarks = self.source.remarks.get(name, ())
        update |= {"secrets": tuple(dict.fromkeys(secrets)), "places": places, "remarks": remarks}
        return replace(server, name=name, **update)

    def _place(self, path: KeyPath) -> str:
        return dotted(path) if self._is_overridden(path) else self.source.place(path)

    def _problem(self, mistake: Mistake) -> ConfigProblem:
        if self._is_overridden(mistake.path):
            return ConfigProblem(None, None, dotted(mistake.path), mistake.message, mistake.remedy)
        return self.source.problem(mistake)

    def _is_overridden(self, path: KeyPath) -> bool:
        return any(path[: len(overridden)] == overridden for overridden in self.overridden)


def _units(found: Iterable[Mistake]) -> list[KeyPath]:
    """Return the parts that are dropped for mistakes.

    The later entries of a list come first, so that the earlier ones keep their places.
    """

    def unit(path: KeyPath) -> KeyPath:
        if path[0] in ("servers", "documents"):
            return path[:2]
        if path[0] in _CAUTIOUS:
            return path[:1]
        return path[: next((at for at, part in enumerate(path) if isinstance(part, int)), len(path))]

    units = {unit(mistake.path) for mistake in found}
    return sorted(units, key=lambda one: [part for part in one if isinstance(part, int)], reverse=True)


def _in_file_order(problems: Iterable[ConfigProblem]) -> tuple[ConfigProblem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.line or 0))


def _refusing(server: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the keys of a server by which a call can be refused; mistakes in them are found later."""
    if server.get("enabled") is False:
        yield ("enabled",)
    yield from ((key,) for key in ("allow", CONFIRM) if key in server)
    denied = server.get("deny")
    for index in range(len(denied)) if isinstance(denied, list) else ():
        yield "deny", index
    classes = server.get("classes")
    yield from (("classes", name) for name in (classes if isinstance(classes, dict) else ()))
    for name, tool in _tables(server.get("tools")):
        if tool.get("enabled") is False:
            yield "tools", name, "enabled"
        yield from (("tools", name, key) for key in ("allow", "danger", CONFIRM) if key in tool)


def _unreadable(path: Path) -> str | None:
    try:
        path.stat()
    except FileNotFoundError:
        return _NO_FILE  # which each system says in its own words
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", error)).lower()
    return None


def _tables(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, table in value.items() if isinstance(value, dict) else ():
        if isinstance(table, dict):
            yield name, table


def _leaves(
    overrides: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in overrides.items():
        path = (*above, *key.split("."))
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        elif value is not None:
            yield path, value


def _copied(value: Any) -> Any:
    """Copy tables deeply, so that the tables of the file stay as they are."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


_COMMAND_KEYS: Final = ("args", "env", "cwd")
_URL_KEYS: Final = ("headers", "oauth", "tls")
_HEADER_NAME: Final = pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = pattern(r"([!-~]([\t -~]*[!-~])?)?")
_OTHER_MODEL_KEYS: Final = ("pooling", "max_tokens", "query_prefix", "passage_prefix")


def contradictions(tables: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield path and message of each mistake that spans keys."""
    for name, check in _CHECKS.items():
        if isinstance(table := tables.get(name), Mapping):
            yield from (((name, *path), message) for path, message in check(table))
    yield from _check_working_set(tables)
    servers = tables.get("servers")
    for name, server in servers.items() if isinstance(servers, Mapping) else ():
        if not SERVER_NAME.fullmatch(name):
            yield (
                ("servers", name),
                f"a server's name is 1 to {SERVER_NAME_CHARACTERS} of A-Z a-z 0-9 _ - and has no '__', "
                "because it becomes part of its tools' names",
            )
        if isinstance(server, Mapping):
            yield from ((("servers", name, *path), message) for path, message in _check_server(server))


def _check_store(store: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    of_database = {"listen_url", "namespace", "pool", "timeout_seconds", "migrate", "replica"}
    unused, other = ({"path"}, "with") if "url" in store else (of_database, "without")
    for key in sorted(unused & store.keys()):
        yield (key,), f"has no effect {other} store.url"


def _check_working_set(tables: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    learning, statistics = tables.get("learning"), tables.get("statistics")
    if not isinstance(learning, Mapping) or not learning.get("working_set_tokens"):
        return
    key = ("learning", "working_set_tokens")
    if learning.get("enabled") is False:
        yield key, "has no effect with learning.enabled = false"
    elif isinstance(statistics, Mapping) and statistics.get("enabled") is False:
        yield key, "needs statistics.enabled, because the statistics know the cost of a tool"


def _check_embedding(embedding: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    yield from _check_endpoint(embedding, "embedding")
    if "endpoint" not in embedding and embedding.get("model", PACKAGED_MODELS[0]) in PACKAGED_MODELS:
        for key in _OTHER_MODEL_KEYS:
            if key in embedding:
                yield (key,), "has no effect on the packaged model; name another one with model"


def _check_endpoint(table: Mapping[str, Any], name: str) -> Iterator[tuple[KeyPath, str]]:
    endpoint = table.get("endpoint")
    if endpoint is None:
        if "api_key" in table:
            yield ("api_key",), "has no effect without an endpoint"
        return
    if isinstance(key := table.get("api_key"), str) and (reason := _unsendable(key)):
        yield ("api_key",), reason
    if "model" not in table:
        yield ("endpoint",), f"needs {name}.model, too: the name of the model at the endpoint"
    if isinstance(endpoint, str) and ("@" in endpoint or "?" in endpoint):
        yield ("endpoint",), "must hold neither a user nor a query; a key belongs in api_key"


def _check_server(server: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    command, url = "command" in server, "url" in server
    if command and url:
        yield (), "has both command and url; keep one of them"
    elif not command and not url:
        # A misspelt one has a message of its own.
        if not any_means(("command", "url"), server, ServerConfig.keys()):
            yield (), "has neither command nor url; a server needs one of them"
    else:
        kind, others = ("command", _URL_KEYS) if command else ("url", _COMMAND_KEYS)
        yield from (((key,), f"has no effect on a server with a {kind}") for key in others if server.get(key))
        transport = server.get("transport")
        if command and transport in ("http", "sse"):
            yield ("transport",), f"{transport} needs a url, but the server has a command"
        elif not command and transport == "stdio":
            yield ("transport",), "stdio needs a command, but the server has a url"
    yield from _check_confirm(server)
    yield from _check_headers(server.get("headers"))
    yield from _check_oauth(server)
    yield from _check_tls(server)


def _check_confirm(server: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    tools = ((("tools", name), tool, "allow") for name, tool in _tables(server.get("tools")))
    for path, table, key in (((), server, "classes"), *tools):
        if CONFIRM in table and key in table:
            yield (*path, CONFIRM), f"has no effect beside {key}; keep {key}"
        elif str(table.get(CONFIRM, "never")) not in ASKED:
            yield (*path, CONFIRM), 'must be "destructive", "write" or "never"; allow and classes say more'


def _check_headers(headers: Any) -> Iterator[tuple[KeyPath, str]]:
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        if not _HEADER_NAME.fullmatch(name):
            yield ("headers", name), "cannot be the name of a header"
        elif isinstance(value, str) and (reason := _unsendable(value)):
            yield ("headers", name), reason


def _unsendable(value: str) -> str | None:
    """Return why a header cannot carry a value, or None."""
    if _HEADER_VALUE.fullmatch(value):
        return None
    if _HEADER_VALUE.fullmatch(value.strip()):
        return "begins or ends with a space or a line break, which a header cannot carry; remove it"
    return "has a character that a header cannot carry; only ASCII without line breaks is allowed"


def _check_oauth(server: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    oauth, headers = server.get("oauth"), server.get("headers")
    if not isinstance(oauth, Mapping):
        return
    if isinstance(headers, Mapping) and any(str(name).lower() == "authorization" for name in headers):
        yield ("oauth",), "has no effect beside headers.Authorization; keep one of them"
    if oauth.get("grant") == "client_credentials":
        proof = "client_key" if "client_key" in oauth else "client_secret"
        for key in ("client_id", proof, "issuer"):
            if key not in oauth:
                yield ("oauth",), f"client_credentials needs {key}"
    for key in ("client_secret", "client_key"):
        if key in oauth and "issuer" not in oauth and oauth.get("grant") != "client_credentials":
            yield ("oauth",), f"{key} needs issuer, so that it is sent nowhere else"
    if "client_key" in oauth and "client_secret" in oauth:
        yield ("oauth", "client_key"), "has no effect beside client_secret; keep one of them"
    elif "client_key" in oauth and "client_id" not in oauth:
        yield ("oauth", "client_key"), "needs client_id, the client that has this key"


def _check_tls(server: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    tls = server.get("tls")
    if tls and str(server.get("url")).lower().startswith("http://"):
        yield ("tls",), "has no effect on a url that begins with http://"
    for key in ("key", "password"):
        if isinstance(tls, Mapping) and key in tls and "certificate" not in tls:
            yield ("tls", key), "needs certificate, too"


_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any]], Iterator[tuple[KeyPath, str]]]]] = {
    "embedding": _check_embedding,
    "rerank": partial(_check_endpoint, name="rerank"),
    "store": _check_store,
}
"""Tables of their own in which keys may contradict each other."""


def _with_classes(table: Any, key: str = "classes") -> Any:
    """Return the settings of a server with ``confirm`` written as ``classes``, and as ``allow`` of a tool."""
    if not isinstance(table, dict):
        return table
    written = {name: given for name, given in table.items() if name != CONFIRM}
    if key == "classes" and isinstance(tools := table.get("tools"), dict):
        written["tools"] = {name: _with_classes(tool, "allow") for name, tool in tools.items()}
    if CONFIRM not in table:
        return written
    asked = ASKED.get(str(table[CONFIRM]), ())
    value = dict.fromkeys(map(str, asked), "ask") if key == "classes" else "ask" if asked else "always"
    return {key: value, **written}
