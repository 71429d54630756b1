"""Loads the configuration: from a file to a checked `Config`, with every mistake reported at once.

The steps are: find and read the file, convert the entries of a host's file, apply overrides, expand
variables, resolve paths, validate. Loading starts nothing and changes nothing on disk. The working directory
is never searched for a configuration, and no server starts there unless its ``cwd`` says so: a repository
that somebody opens must not be able to start programs.

Variables are written ``${VAR}``, ``${VAR:-default}``, or ``${env:VAR}`` as in VS Code. ``$${`` stands for a
literal ``${``; any other ``$`` stays, since passwords contain them. As in a shell, the default is used when
the variable is unset or empty.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from platformdirs import user_config_path
from pydantic import ValidationError

from mcp_context_proxy.config.hosts import Warn, from_host
from mcp_context_proxy.config.package_runners import downloads
from mcp_context_proxy.config.settings import (
    LAUNCH,
    SERVER_NAME,
    SERVER_NAME_CHARACTERS,
    Config,
    Limits,
    ServerConfig,
)
from mcp_context_proxy.config.source import ConfigSource, KeyPath, changeable_by_others, dotted, read
from mcp_context_proxy.config.validation_messages import mistakes, unknown_key
from mcp_context_proxy.errors import ConfigError, ConfigProblem

logger = logging.getLogger(__name__)

_EXPANDED_SERVER_KEYS: Final = ("command", "args", "env", "cwd", "url", "headers", "oauth")
"""Keys of a server in which variables are expanded."""
_MAY_BE_SECRET: Final = frozenset({"args", "env", "url", "headers", "oauth"})
_MODEL_TABLES: Final = ("embedding", "rerank")
"""Tables that name a model, in a folder or behind an endpoint."""
_EXPANDED_MODEL_KEYS: Final = ("endpoint", "api_key")
_PATHS: Final = (("store", "path"), ("http", "token_file"))
_TO_BEGIN: Final = "create it: a table [servers.NAME] with a command or a url is enough"
_NO_FILE: Final = os.strerror(errno.ENOENT).lower()
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})

VARIABLE: Final = "MCP_CONTEXT_PROXY_CONFIG"
"""Environment variable with the path of the file."""
APP: Final = "mcp-context-proxy"
FILE_NAME: Final = "config.toml"


def load(
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] = _NONE,
    warn: Warn = logger.warning,
) -> Config:
    """Load the configuration from `path`, or from the file that `find` returns.

    Args:
        path: A ``config.toml``, or a host's JSON file.
        environ: The environment, for variables and default places.
        overrides: Values that replace those of the file, as dotted keys (``{"http.port": 9000}``) or nested
            tables; None means not given.
        warn: Receives notes on entries that are skipped without being a mistake.

    Raises:
        ConfigError: the configuration cannot be used; it holds every mistake, in file order.
    """
    source = read(_file(path, environ))
    problems = changeable_by_others(source.file, environ)
    if source.is_json:
        source, of_host = from_host(source, warn)
        problems += of_host
    draft = _Draft(source, environ, _copied(source.tables), problems)
    draft.override(overrides)
    return draft.config()


def _file(path: Path | None, environ: Mapping[str, str]) -> Path:
    found = expand_home(str(path), environ) if path is not None else find(environ)
    if found is None:
        default = default_path(environ)
        looked = f"{VARIABLE} is not set, and {default} does not exist"
        message = f"no configuration found: {looked}; {_TO_BEGIN}; or give a host's own JSON with --config"
        raise ConfigError([ConfigProblem(None, None, "", message)])
    if _unreadable(found) == _NO_FILE:
        message = f"the file does not exist; correct the path, or {_TO_BEGIN}"
        raise ConfigError([ConfigProblem(found, None, "", message)])
    return found.absolute()


def find(environ: Mapping[str, str]) -> Path | None:
    """Return the file to load, or None. A file named by the variable is returned even if it is missing."""
    if named := environ.get(VARIABLE):
        return expand_home(named, environ)
    default = default_path(environ)
    return default if default.is_file() else None


def default_path(environ: Mapping[str, str]) -> Path:
    """Return the place of the user's own configuration."""
    folder = environ.get("XDG_CONFIG_HOME")
    if folder and sys.platform != "win32" and Path(folder).is_absolute():
        return Path(folder) / APP / FILE_NAME
    return user_config_path(APP, appauthor=False) / FILE_NAME


def expand_home(text: str, environ: Mapping[str, str]) -> Path:
    """Convert text to a path, with a leading ``~`` replaced by the home folder."""
    if text == "~" or text.startswith(("~/", "~\\")):
        home = environ.get("HOME") or environ.get("USERPROFILE")
        return (Path(home) if home else Path.home()) / text[2:]
    return Path(text)


@dataclass(slots=True)
class _Draft:
    """Tables that become a `Config`, and the mistakes found so far."""

    source: ConfigSource
    environ: Mapping[str, str]
    tables: dict[str, Any]
    problems: list[ConfigProblem]
    overridden: set[KeyPath] = field(default_factory=set)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)

    def config(self) -> Config:
        self._expand_servers()
        self._expand_models()
        self._resolve_paths()
        self._resolve_documents()
        for path, message in contradictions(self.tables):
            self._add(path, message)
        config = self._validated()
        if self.problems or config is None:
            raise ConfigError(sorted(self.problems, key=lambda problem: problem.line or 0))
        return config

    def override(self, overrides: Mapping[str, Any]) -> None:
        for path, value in _leaves(overrides):
            table = self.tables
            for part in path[:-1]:
                if not isinstance(table.get(part), dict):
                    table[part] = {}
                table = table[part]
            table[str(path[-1])] = value
            self.overridden.add(path)

    def _expand_servers(self) -> None:
        # A server that is disabled needs no variables.
        for name, server in _tables(self.tables.get("servers")):
            if server.get("enabled") is not False:
                for key in _EXPANDED_SERVER_KEYS:
                    if key in server:
                        server[key] = self._expanded(("servers", name, key), server[key])

    def _expand_models(self) -> None:
        for name in _MODEL_TABLES:
            table = self.tables.get(name)
            for key in _EXPANDED_MODEL_KEYS:
                if isinstance(table, dict) and key in table:
                    table[key] = self._expanded((name, key), table[key])

    def _expanded(self, path: KeyPath, value: Any) -> Any:
        if isinstance(value, list):
            return [self._expanded((*path, index), item) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._expanded((*path, key), item) for key, item in value.items()}
        if not isinstance(value, str):
            return value
        result = expand(value, self.environ)
        for problem in result.problems:
            self._add(path, problem)
        if path[0] == "servers" and path[2] in _MAY_BE_SECRET:
            self.secrets.setdefault(str(path[1]), {}).update(result.variables)
        return result.text

    def _resolve_paths(self) -> None:
        for section, key in _PATHS:
            self._resolve((section, key), self.tables.get(section), key)
        for name in _MODEL_TABLES:
            table = self.tables.get(name)
            if isinstance(table, dict) and "endpoint" not in table:
                self._resolve((name, "model"), table, "model")
        for name, server in _tables(self.tables.get("servers")):
            if server.get("cwd") == "":
                server["cwd"] = "."
            if server.get("cwd") != LAUNCH:
                self._resolve(("servers", name, "cwd"), server, "cwd")
            command = server.get("command")
            # A command without a folder is looked for on the PATH.
            if isinstance(command, str) and (command.startswith("~") or Path(command).name != command):
                self._resolve(("servers", name, "command"), server, "command")

    def _resolve_documents(self) -> None:
        documents = self.tables.get("documents")
        for index, document in enumerate(documents if isinstance(documents, list) else ()):
            path = ("documents", index, "path")
            self._resolve(path, document, "path")
            text = document.get("path") if isinstance(document, dict) else None
            if isinstance(text, str) and (reason := _unreadable(Path(text))):
                self._add(path, f"{text}: {reason}")

    def _resolve(self, path: KeyPath, table: Any, key: str) -> None:
        # Paths are relative to the file; those of command-line options to the working directory.
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(value, Path):
            value = str(value)
        if not isinstance(value, str) or not value or (path == ("store", "path") and value == "memory"):
            return
        base = Path.cwd() if path in self.overridden else self.source.file.parent
        table[key] = str(base / expand_home(value, self.environ))

    def _validated(self) -> Config | None:
        servers = self.tables.get("servers")
        complete = dict(self.tables)
        complete.pop("path", None)
        if isinstance(servers, dict):
            complete["servers"] = {name: self._complete(name, server) for name, server in servers.items()}
        try:
            config = Config.model_validate(complete)
        except ValidationError as error:
            for path, message in mistakes(error):
                self._add(path, message)
            return None
        servers_with_limits = {name: _with_limits(s, config.limits) for name, s in config.servers.items()}
        return config.model_copy(update={"path": self.source.file, "servers": servers_with_limits})

    def _complete(self, name: str, server: Any) -> Any:
        if not isinstance(server, dict):
            return server
        given = server | {"name": name, "secrets": tuple(self.secrets.get(name, {}).items())}
        # Never where the host was started: a repository that somebody opens would decide what a server runs.
        return {"cwd": str(self.source.file.parent)} | given if "command" in server else given

    def _add(self, path: KeyPath, message: str) -> None:
        if any(path[: len(overridden)] == overridden for overridden in self.overridden):
            self.problems.append(ConfigProblem(None, None, dotted(path), message))
        else:
            self.problems.append(self.source.problem(path, message))


def _unreadable(path: Path) -> str | None:
    try:
        path.stat()
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", error)).lower()
    return None


def _with_limits(server: ServerConfig, limits: Limits) -> ServerConfig:
    """Give a server the general timeouts where it has none of its own."""
    defaults = {"connect_timeout": limits.connect_seconds, "call_timeout": limits.call_seconds}
    unset = {key: value for key, value in defaults.items() if key not in server.model_fields_set}
    if "connect_timeout" in unset and downloads(server):
        unset["first_connect_timeout"] = max(limits.first_start_seconds, limits.connect_seconds)
    return server.model_copy(update=unset)


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


_REFERENCE: Final = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<body>[^{}]*)\}|(?P<open>\$\{)")
_VARIABLE: Final = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_HOST_VARIABLE: Final = re.compile(
    r"workspaceFolder\w*|userHome|cwd|pathSeparator|file([A-Z]\w*)?|config:.*|command:.*"
)
"""References that only VS Code can replace."""


@dataclass(frozen=True, slots=True)
class ExpandedValue:
    """A text with expanded variables, or the problems in it."""

    text: str
    variables: tuple[tuple[str, str], ...]
    """Name and value of each variable that was used."""
    problems: tuple[str, ...]


def expand(text: str, environ: Mapping[str, str]) -> ExpandedValue:
    """Expand every variable in a text."""
    variables: list[tuple[str, str]] = []
    problems: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["open"]:
            problems.append("'${' has no matching '}'; write '$${' for a literal '${'")
            return ""
        return _lookup(match["body"], environ, variables, problems)

    return ExpandedValue(_REFERENCE.sub(value_of, text), tuple(variables), tuple(problems))


def _lookup(
    body: str, environ: Mapping[str, str], variables: list[tuple[str, str]], problems: list[str]
) -> str:
    found = _VARIABLE.fullmatch(body)
    if found is None or (_HOST_VARIABLE.fullmatch(body) and body not in environ):
        problems.append(_foreign(body))
        return ""
    name, default = found["name"], found["default"]
    value = environ.get(name)
    if value or (value is not None and default is None):
        variables.append((name, value))
        return value
    if default is None:
        problems.append(f"environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return default or ""


def _foreign(body: str) -> str:
    if body.startswith("input:"):
        return (
            f"${{{body}}} asks the user in VS Code, which is not possible here; "
            f"put the value in an environment variable and write ${{env:NAME}}"
        )
    if _HOST_VARIABLE.fullmatch(body):
        return f"${{{body}}} is known only to the editor; write the value, or use an environment variable"
    return "'${...}' must hold the name of an environment variable; write '$${' for a literal '${'"


_COMMAND_KEYS: Final = ("args", "env", "cwd")
_URL_KEYS: Final = ("headers", "oauth")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"([!-~]([\t -~]*[!-~])?)?")
_OTHER_MODEL_KEYS: Final = ("pooling", "max_tokens", "query_prefix", "passage_prefix")


def contradictions(tables: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield path and message of each mistake that spans keys."""
    for key in Config.derived & tables.keys():
        yield (key,), unknown_key(key, Config.keys())
    if isinstance(embedding := tables.get("embedding"), Mapping):
        for path, message in _check_embedding(embedding):
            yield ("embedding", *path), message
    if isinstance(rerank := tables.get("rerank"), Mapping):
        for path, message in _check_endpoint(rerank, "rerank"):
            yield ("rerank", *path), message
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
            for path, message in _check_server(server):
                yield ("servers", name, *path), message


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
    if "endpoint" not in embedding and "model" not in embedding:
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
    if isinstance(endpoint, str):
        for _, message in _check_url(endpoint):
            yield ("endpoint",), message
        if "@" in endpoint or "?" in endpoint:
            yield ("endpoint",), "must hold neither a user nor a query; a key belongs in api_key"


def _check_server(server: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for key in ServerConfig.derived & server.keys():
        yield (key,), unknown_key(key, ServerConfig.keys())
    command, url = "command" in server, "url" in server
    if command and url:
        yield (), "has both command and url; keep one of them"
    elif not command and not url:
        yield (), "has neither command nor url; a server needs one of them"
    else:
        yield from _check_kind(
            server, _URL_KEYS if command else _COMMAND_KEYS, "command" if command else "url"
        )
        yield from _check_transport(server.get("transport"), command)
    yield from _check_headers(server.get("headers"))
    yield from _check_oauth(server)
    if isinstance(server.get("url"), str):
        yield from _check_url(server["url"])


def _check_kind(
    server: Mapping[str, Any], others: tuple[str, ...], kind: str
) -> Iterator[tuple[KeyPath, str]]:
    for key in others:
        if server.get(key):
            yield (key,), f"has no effect on a server with a {kind}"


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
        for key in ("client_id", "client_secret", "issuer"):
            if key not in oauth:
                yield ("oauth",), f"client_credentials needs {key}"
    elif "client_secret" in oauth and "issuer" not in oauth:
        yield ("oauth",), "client_secret needs issuer, so that it is sent nowhere else"


def _check_transport(transport: Any, command: bool) -> Iterator[tuple[KeyPath, str]]:
    if command and transport in ("http", "sse"):
        yield ("transport",), f"{transport} needs a url, but the server has a command"
    elif not command and transport == "stdio":
        yield ("transport",), "stdio needs a command, but the server has a url"


def _check_url(url: str) -> Iterator[tuple[KeyPath, str]]:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        yield ("url",), "must begin with http:// or https:// and name a host"
