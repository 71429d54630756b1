"""From a file to a checked `Config`: every mistake found is reported, none is worked around.

Read, take over a host's entries, apply overrides, expand variables, validate. Nothing here starts
anything, and nothing is changed on disk.

What one key alone cannot tell: contradictions in a server's table, names, and keys that are ours.

Works on plain tables before the models see them, so that these mistakes are reported beside the models'.

What the models refuse, in the words of a person who edits the file.

Values are not repeated, except where only a listed word is allowed: any other may be a secret.

Where the configuration is: the named file, else the user's configuration folder.

Never the working directory: a repository someone opens must not be able to start programs.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from platformdirs import user_config_path
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mcp_context_proxy.config.hosts import MAX_NAME, Warn, expand, from_host, is_name
from mcp_context_proxy.config.settings import Config, Limits, ServerConfig, Table
from mcp_context_proxy.config.source import ConfigSource, KeyPath, changeable_by_others, dotted, read
from mcp_context_proxy.errors import ConfigError, ConfigProblem

_WANTED: Final = {
    "string_type": "text in quotes",
    "path_type": "text in quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_OTHER_WORDS: Final = {
    "mcpServers": "servers",
    "serverUrl": "url",
    "type": "transport",
    "disabled": "enabled",
    "environment": "env",
    "timeout": "call_timeout",
}
"""What hosts and people call a key, where spelling alone does not lead to ours."""


def mistakes(error: ValidationError) -> list[tuple[KeyPath, str]]:
    """Path and sentence of each mistake."""
    return [(detail["loc"], _sentence(detail)) for detail in error.errors(include_url=False)]


def unknown_key(key: str, allowed: Sequence[str]) -> str:
    """The sentence for a key that does not exist."""
    other = _OTHER_WORDS.get(key)
    near = [other] if other in allowed else difflib.get_close_matches(key, allowed, n=1)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; allowed here: {', '.join(allowed)}"


def _sentence(detail: ErrorDetails) -> str:
    kind, value, facts = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(str(detail["loc"][-1]), allowed_keys(detail["loc"][:-1]))
    if kind == "missing":
        return "is missing"
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {_kind_of(value)}"
    if kind in ("literal_error", "enum"):
        return f"must be {_choice(facts['expected'])}, not {_shown(value)}"
    return _range(kind, facts) or detail["msg"].lower()


def _range(kind: str, facts: Mapping[str, Any]) -> str | None:
    match kind:
        case "greater_than_equal":
            return f"must be at least {facts['ge']:g}"
        case "greater_than":
            return f"must be more than {facts['gt']:g}"
        case "less_than_equal":
            return f"must be at most {facts['le']:g}"
        case "finite_number":
            return "must be a finite number"
        case "string_too_short":
            return "must not be empty"
    return None


def _choice(expected: str) -> str:
    return expected.replace("'", '"')


def _shown(value: Any) -> str:
    return f'"{value[:40]}"' if isinstance(value, str) else _kind_of(value)


def _kind_of(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return "text"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
        case None:
            return "null"
    return "a date"


def allowed_keys(path: KeyPath) -> list[str]:
    """The keys of the table at `path`."""
    model: Any = Config
    for part in path:
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[str(part)].annotation
        else:
            model = next(arg for arg in reversed(get_args(model)) if arg is not Ellipsis)
    return _keys(model)


def _keys(model: Any) -> list[str]:
    if isinstance(model, type) and issubclass(model, Table):
        return model.keys()
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


_OF_COMMAND: Final = ("args", "env", "cwd")
_OF_URL: Final = ("headers", "oauth")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"([!-~]([\t -~]*[!-~])?)?")
_OF_OTHER_MODELS: Final = ("pooling", "max_tokens", "query_prefix", "passage_prefix")


def contradictions(tables: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Path and sentence of each mistake that spans keys."""
    for key in Config.derived & tables.keys():
        yield (key,), unknown_key(key, Config.keys())
    if isinstance(embedding := tables.get("embedding"), Mapping):
        for path, message in _of_embedding(embedding):
            yield ("embedding", *path), message
    if isinstance(rerank := tables.get("rerank"), Mapping):
        for path, message in _of_endpoint(rerank, "rerank"):
            yield ("rerank", *path), message
    yield from _of_working_set(tables)
    servers = tables.get("servers")
    for name, server in servers.items() if isinstance(servers, Mapping) else ():
        if not is_name(name):
            yield (
                ("servers", name),
                f"a server's name is 1 to {MAX_NAME} of A-Z a-z 0-9 _ - and has no '__', "
                "because it becomes part of its tools' names",
            )
        if isinstance(server, Mapping):
            for path, message in _of_server(server):
                yield ("servers", name, *path), message


def _of_working_set(tables: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    learning, statistics = tables.get("learning"), tables.get("statistics")
    if not isinstance(learning, Mapping) or not learning.get("working_set_tokens"):
        return
    key = ("learning", "working_set_tokens")
    if learning.get("enabled") is False:
        yield key, "has no effect with learning.enabled = false"
    elif isinstance(statistics, Mapping) and statistics.get("enabled") is False:
        yield key, "needs statistics.enabled: they know what a tool costs"


def _of_embedding(embedding: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    yield from _of_endpoint(embedding, "embedding")
    if "endpoint" not in embedding and "model" not in embedding:
        for key in _OF_OTHER_MODELS:
            if key in embedding:
                yield (key,), "is for another model than the packaged one; name it with model"


def _of_endpoint(table: Mapping[str, Any], name: str) -> Iterator[tuple[KeyPath, str]]:
    endpoint = table.get("endpoint")
    if endpoint is None:
        if "api_key" in table:
            yield ("api_key",), "has no effect without an endpoint"
        return
    if isinstance(key := table.get("api_key"), str) and (reason := _unsendable(key)):
        yield ("api_key",), reason
    if "model" not in table:
        yield ("endpoint",), f"needs {name}.model too: what the model is called there"
    if isinstance(endpoint, str):
        for _, message in _of_url(endpoint):
            yield ("endpoint",), message
        if "@" in endpoint or "?" in endpoint:
            yield ("endpoint",), "must hold neither a user nor a query; a key belongs in api_key"


def _of_server(server: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for key in ServerConfig.derived & server.keys():
        yield (key,), unknown_key(key, ServerConfig.keys())
    command, url = "command" in server, "url" in server
    if command and url:
        yield (), "has both command and url; keep the one that is meant"
    elif not command and not url:
        yield (), "has neither command nor url; a server needs one of them"
    else:
        yield from _of_kind(server, _OF_URL if command else _OF_COMMAND, "command" if command else "url")
        yield from _of_transport(server.get("transport"), command)
    yield from _of_headers(server.get("headers"))
    yield from _of_oauth(server)
    if isinstance(server.get("url"), str):
        yield from _of_url(server["url"])


def _of_kind(server: Mapping[str, Any], others: tuple[str, ...], kind: str) -> Iterator[tuple[KeyPath, str]]:
    for key in others:
        if server.get(key):
            yield (key,), f"has no effect on a server with a {kind}"


def _of_headers(headers: Any) -> Iterator[tuple[KeyPath, str]]:
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        if not _HEADER_NAME.fullmatch(name):
            yield ("headers", name), "cannot be the name of a header"
        elif isinstance(value, str) and (reason := _unsendable(value)):
            yield ("headers", name), reason


def _unsendable(value: str) -> str | None:
    """Why a header cannot carry a value, without the value: it may be a secret."""
    if _HEADER_VALUE.fullmatch(value):
        return None
    if _HEADER_VALUE.fullmatch(value.strip()):
        return "begins or ends with a space or a line break, which a header cannot carry; take it away"
    return "has a character that a header cannot carry: only ASCII, and no line breaks"


def _of_oauth(server: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    oauth, headers = server.get("oauth"), server.get("headers")
    if not isinstance(oauth, Mapping):
        return
    if isinstance(headers, Mapping) and any(str(name).lower() == "authorization" for name in headers):
        yield ("oauth",), "has no effect beside headers.Authorization; keep the one that is meant"
    if oauth.get("grant") == "client_credentials":
        for key in ("client_id", "client_secret", "issuer"):
            if key not in oauth:
                yield ("oauth",), f"client_credentials needs {key}"
    elif "client_secret" in oauth and "issuer" not in oauth:
        yield ("oauth",), "client_secret needs issuer, so that it is sent to nobody else"


def _of_transport(transport: Any, command: bool) -> Iterator[tuple[KeyPath, str]]:
    if command and transport in ("http", "sse"):
        yield ("transport",), f"{transport} needs a url, but the server has a command"
    elif not command and transport == "stdio":
        yield ("transport",), "stdio needs a command, but the server has a url"


def _of_url(url: str) -> Iterator[tuple[KeyPath, str]]:
    """Says nothing of the URL itself: it may hold a secret."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        yield ("url",), "must begin with http:// or https:// and name a host"


VARIABLE: Final = "MCP_CONTEXT_PROXY_CONFIG"
"""Environment variable that names the file."""
APP: Final = "mcp-context-proxy"
FILE_NAME: Final = "config.toml"


def find(environ: Mapping[str, str]) -> Path | None:
    """The file to load, or None when there is none. A file named by the variable is never passed over."""
    if named := environ.get(VARIABLE):
        return expand_home(named, environ)
    default = default_path(environ)
    return default if default.is_file() else None


def default_path(environ: Mapping[str, str]) -> Path:
    """Where a user's own configuration belongs."""
    folder = environ.get("XDG_CONFIG_HOME")
    if folder and sys.platform != "win32" and Path(folder).is_absolute():
        return Path(folder) / APP / FILE_NAME
    return user_config_path(APP, appauthor=False) / FILE_NAME


def expand_home(text: str, environ: Mapping[str, str]) -> Path:
    """`text` as a path, with a leading ``~`` replaced by the home folder."""
    if text == "~" or text.startswith(("~/", "~\\")):
        home = environ.get("HOME") or environ.get("USERPROFILE")
        return (Path(home) if home else Path.home()) / text[2:]
    return Path(text)


logger = logging.getLogger(__name__)

_EXPANDED: Final = ("command", "args", "env", "cwd", "url", "headers", "oauth")
"""Keys of a server in which variables are replaced."""
_MAY_BE_SECRET: Final = frozenset({"args", "env", "url", "headers", "oauth"})
_OF_MODELS: Final = ("embedding", "rerank")
"""Tables that name a model: in a folder, or behind an endpoint."""
_EXPANDED_OF_MODELS: Final = ("endpoint", "api_key")
_PATHS: Final = (("store", "path"), ("http", "token_file"))
_TO_BEGIN: Final = "write it: a table [servers.NAME] with a command or a url is enough"
_NO_FILE: Final = os.strerror(errno.ENOENT).lower()
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def load(
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] = _NONE,
    warn: Warn = logger.warning,
) -> Config:
    """Load the configuration from `path`, or from where `find` finds it.

    `overrides` beat the file: dotted keys (``{"http.port": 9000}``) or nested tables; None means not given.
    `warn` takes what is passed over without being a mistake.

    Raises:
        ConfigError: it cannot be used; holds every mistake, in file order.
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
        looked = f"{VARIABLE} is not set, and there is no {default}"
        message = f"none found: {looked}; {_TO_BEGIN}; or name a host's own JSON with --config"
        raise ConfigError([ConfigProblem(None, None, "", message)])
    if _unreadable(found) == _NO_FILE:
        message = f"there is no such file; correct the path, or {_TO_BEGIN}"
        raise ConfigError([ConfigProblem(found, None, "", message)])
    return found.absolute()


@dataclass(slots=True)
class _Draft:
    """The tables on their way to a `Config`, with the mistakes found so far."""

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
        """A server that is switched off needs no variables."""
        for name, server in _tables(self.tables.get("servers")):
            if server.get("enabled") is not False:
                for key in _EXPANDED:
                    if key in server:
                        server[key] = self._expanded(("servers", name, key), server[key])

    def _expand_models(self) -> None:
        for name in _OF_MODELS:
            table = self.tables.get(name)
            for key in _EXPANDED_OF_MODELS:
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
        for name in _OF_MODELS:
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
        """Relative to the file; a command-line option is relative to where it was typed."""
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
        """With what is not written in the file."""
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
    """A server's own timeouts, else the general ones."""
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
    """Tables of our own: what was read stays as it was."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
