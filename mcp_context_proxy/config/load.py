"""Loads the configuration: from a file to a checked `Config`, with every mistake reported at once.

The steps are: find and read the file, convert the entries of a host's file, apply overrides, expand
variables, resolve paths, validate. Loading starts nothing and changes nothing on disk. The working directory
is never searched for a configuration: a repository that somebody opens must not be able to start programs.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from platformdirs import user_config_path
from pydantic import ValidationError

from mcp_context_proxy.config.hosts import Warn, expand, from_host
from mcp_context_proxy.config.settings import Config, Limits, ServerConfig
from mcp_context_proxy.config.source import ConfigSource, KeyPath, changeable_by_others, dotted, read
from mcp_context_proxy.config.validation_messages import contradictions, mistakes
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
            self._resolve(("servers", name, "cwd"), server, "cwd")
            if isinstance(server.get("command"), str) and server["command"].startswith("~"):
                server["command"] = str(expand_home(server["command"], self.environ))

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
        return server | {"name": name, "secrets": tuple(self.secrets.get(name, {}).items())}

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
