"""What one key alone cannot tell: contradictions in a server's table, names, and keys that are ours.

Works on plain tables before the models see them, so that these mistakes are reported beside the models'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from mcp_context_proxy.config.hosts import MAX_NAME, is_name
from mcp_context_proxy.config.mistakes import unknown_key
from mcp_context_proxy.config.servers import ServerConfig
from mcp_context_proxy.config.settings import Config
from mcp_context_proxy.config.toml_lines import KeyPath

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
