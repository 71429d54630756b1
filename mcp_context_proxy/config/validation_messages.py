"""Messages about mistakes in the configuration, in the words of a person who edits the file.

`contradictions` finds mistakes that span several keys, before the models see the tables; `mistakes` rewords
the errors of the models. Values are never repeated in a message, because they may be secrets, except where
only listed words are allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mcp_context_proxy.config.hosts import MAX_NAME, is_name
from mcp_context_proxy.config.settings import Config, ServerConfig, Table
from mcp_context_proxy.config.source import KeyPath

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
"""Names that hosts and people use for a key, where the spelling alone does not lead to ours."""


def mistakes(error: ValidationError) -> list[tuple[KeyPath, str]]:
    """Return path and message of each error of the models."""
    return [(detail["loc"], _sentence(detail)) for detail in error.errors(include_url=False)]


def unknown_key(key: str, allowed: Sequence[str]) -> str:
    """Return the message for a key that does not exist."""
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
    """Return the keys that the table at `path` may have."""
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
        if not is_name(name):
            yield (
                ("servers", name),
                f"a server's name is 1 to {MAX_NAME} of A-Z a-z 0-9 _ - and has no '__', "
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
