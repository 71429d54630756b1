"""What of a configuration is secret: values of variables, what is named like a secret, passwords in URLs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import unquote, unquote_plus

from mcp_context_proxy.config.servers import ServerConfig
from mcp_context_proxy.config.settings import Config

_TELLING: Final = re.compile(r"token|secret|key|passw|pwd|credential|auth|cookie", re.IGNORECASE)
"""Names of variables, headers and parameters of URLs whose literal values are secrets."""

_SECRET_WORD: Final = r"[\w-]*(?:token|secret|passw|pwd|credential|auth|api[-_]?key|access[-_]?key)[\w-]*"
"""Of arguments: ``--key`` alone is as often the key of an entry."""
_FLAG: Final = re.compile(rf"--?{_SECRET_WORD}", re.IGNORECASE)
_FLAG_AND_VALUE: Final = re.compile(rf"((?:--?)?{_SECRET_WORD})[=:]\s*(.+)", re.IGNORECASE | re.DOTALL)

_SCHEME: Final = re.compile(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(?<=://)([^/?#\s@:]*)(?::([^/?#\s]*))?@")
_PARAMETER: Final = re.compile(r"[?&]([^=&#\s]+)=([^&#\s]+)")


def all_secrets_of(config: Config) -> list[tuple[str, str]]:
    """What of a whole configuration is secret."""
    secrets = [secret for server in config.servers.values() for secret in secrets_of(server)]
    if config.embedding.api_key is not None:
        secrets.append(("embedding.api_key", config.embedding.api_key))
    if config.rerank.api_key is not None:
        secrets.append(("rerank.api_key", config.rerank.api_key))
    return secrets


def secrets_of(server: ServerConfig) -> Iterable[tuple[str, str]]:
    """What of a server's configuration is secret."""
    yield from server.secrets
    if server.oauth is not None and server.oauth.client_secret is not None:
        yield "oauth.client_secret", server.oauth.client_secret
    for name, value in (*server.env.items(), *server.headers.items()):
        if _TELLING.search(name):
            yield name, value
            yield name, _SCHEME.sub("", value)
    for position, name, value in secret_arguments(server.args):
        del position
        yield name, value
    for text in (server.url or "", *server.args, *server.env.values()):
        yield from _in_url(text)


def secret_arguments(arguments: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Position, name and value of each argument that by its name, or that of the one before, is a secret."""
    before = ""
    for position, argument in enumerate(arguments):
        if found := _FLAG_AND_VALUE.fullmatch(argument):
            yield position, found[1], found[2]
        elif _FLAG.fullmatch(before) and not argument.startswith("-"):
            yield position, before, argument
        before = argument


def _in_url(text: str) -> Iterator[tuple[str, str]]:
    """Passwords, and parameters that are named like secrets, of a URL, as they are written and decoded."""
    for user, password in _USER_INFO.findall(text):
        # A user without a password is a token, as some services have it.
        yield "password", password or user
        yield "password", unquote(password or user)
    for name, value in _PARAMETER.findall(text) if "://" in text else ():
        if _TELLING.search(name):
            yield name, value
            yield name, unquote_plus(value)
