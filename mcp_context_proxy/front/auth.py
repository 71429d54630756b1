"""Access control of the HTTP front: `Guard` checks every request, on every route, before anything else.

A web page must not reach a proxy on the same machine (Host and Origin are checked), and nobody without the
bearer token may reach one that listens for other machines. The token comes from the environment, or from a
file that only its owner can read.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_context_proxy.config import HttpConfig
from mcp_context_proxy.config.secrets import NOTICE
from mcp_context_proxy.errors import ConfigError, ConfigProblem
from mcp_context_proxy.system import process

logger = logging.getLogger(__name__)

HEALTH_PATH = "/healthz"
"""Path that is answered without a token: its response tells nothing."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names that count as one origin: on a given port each of them is this front. Other names of this machine may
belong to others."""

HTTP_VERSIONS = ("1.0", "1.1")
"""Versions that are spoken here; the parser takes any other for the last of them."""

TOKEN_VARIABLE = "MCP_CONTEXT_PROXY_TOKEN"
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Policy:
    """The requests that the guard lets in."""

    hosts: frozenset[str] | None
    """``host:port`` values of the Host header; None for any, where a token is required."""
    token: str | None
    """The bearer token; None if none is required."""


def policy(host: str, port: int, extra_hosts: Iterable[str], token: str | None) -> Policy:
    """Return the policy for a front that listens on `host` and `port`."""
    if not is_loopback(host) and not extra_hosts:
        return Policy(None, token)
    names = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else []
    own = {f"{name}:{port}" for name in names}
    return Policy(frozenset(own | {name.lower() for name in extra_hosts}), token)


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware that enforces a policy."""

    def __init__(self, app: ASGIApp, policy: Policy, pages: Collection[str] = ()) -> None:
        """Enforce `policy`; `pages` are paths without data, which fetch it with the token themselves."""
        self._app, self._policy = app, policy
        self._open = frozenset({HEALTH_PATH, *pages})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] == "http" and (refusal := self._refusal(scope, Headers(scope=scope))):
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        if scope["http_version"] not in HTTP_VERSIONS:
            return PlainTextResponse("Only HTTP/1.1 is spoken here.\n", 505, {"Connection": "close"})
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy in front of us may have gone by the other header: the rest would be a smuggled request.
            text = "A body has a length or comes in chunks, not both.\n"
            return PlainTextResponse(text, 400, {"Connection": "close"})
        hosts = headers.getlist("host")
        if len(hosts) != 1 or (self._policy.hosts is not None and hosts[0].lower() not in self._policy.hosts):
            return PlainTextResponse("This Host is not served here; see allowed_hosts.\n", 421)
        if not _same_origin(headers.getlist("origin"), hosts[0]):
            return PlainTextResponse("Requests from other origins are refused.\n", 403)
        is_open = scope["path"] in self._open and scope["method"] in ("GET", "HEAD")
        if self._policy.token is not None and not is_open and not self._authorized(headers):
            text = "A bearer token is needed: Authorization: Bearer TOKEN\n"
            return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})
        return None

    def _authorized(self, headers: Headers) -> bool:
        credentials = headers.getlist("authorization")
        scheme, _, given = credentials[0].partition(" ") if len(credentials) == 1 else ("", "", "")
        wanted = self._policy.token or ""
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted.encode())


def _same_origin(origins: list[str], host: str) -> bool:
    """Return whether a request has no Origin (it is not from a browser) or the origin of this front."""
    if not origins:
        return True
    if len(origins) > 1:
        return False
    try:
        origin, own = urlsplit(origins[0]), urlsplit(f"//{host}")
        if origin.scheme not in ("http", "https") or origin.username is not None or origin.hostname is None:
            return False
        if origin.path or origin.query or origin.fragment:
            return False
        default = 443 if origin.scheme == "https" else 80
        if own.hostname is None or (origin.port or default) != (own.port or default):
            return False
    except ValueError:
        return False
    return origin.hostname == own.hostname or {origin.hostname, own.hostname} <= LOOPBACK_NAMES


@dataclass(frozen=True, slots=True)
class BearerToken:
    """The token that clients of the HTTP front must send, if any."""

    token: str | None
    """The token; None if none is required."""
    whereabouts: str
    """End of the sentence that says where the front serves: the place of the token, or the lack of one."""

    @property
    def level(self) -> int:
        """Log level of that sentence: a warning only if there is no token."""
        return logging.WARNING if self.token is None else NOTICE


OPEN_TO_ALL = BearerToken(
    None, " without a token: every user and program of this machine can use your servers"
)


def credentials_for(settings: HttpConfig, environ: Mapping[str, str] = os.environ) -> BearerToken:
    """Return the token that a front requires.

    The token comes from the environment, else from the configured file, else from a file in the user's data
    folder. A file that does not exist is created with a new token.

    Raises:
        ConfigError: the front would be open to other machines, or the file cannot be read or created.
    """
    if not settings.auth:
        if is_loopback(settings.host):
            return OPEN_TO_ALL
        message = f"serving without a token needs a loopback address, and {settings.host} is none"
        raise ConfigError([ConfigProblem(None, None, "http.auth", message)])
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        return BearerToken(token, f"; clients send the bearer token in {TOKEN_VARIABLE}")
    path = settings.token_file or platformdirs.user_data_path("mcp-context-proxy") / "token"
    try:
        token = _read(path) if path.exists() else create_token(path)
    except OSError as error:
        message = (
            f"{path} cannot be used: {error.strerror or error}; name another file, or set {TOKEN_VARIABLE}"
        )
        raise ConfigError([ConfigProblem(None, None, "http.token_file", message)]) from error
    return BearerToken(token, f"; clients send the bearer token in {path}")


def create_token(path: Path) -> str:
    """Write a new token to a file of mode 0600 and return it, or the one of a process that was faster."""
    process.make_private_folder(path.parent)
    descriptor, whole = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        # A link appears with its content and never replaces: nobody reads half a token, and one wins.
        with contextlib.suppress(FileExistsError):
            os.link(whole, path)
    finally:
        os.unlink(whole)  # noqa: PTH108 - its path is a string
    return _read(path)


def _read(path: Path) -> str:
    if not path.is_file():
        raise _unusable(path, "this is not a file")
    _protect(path)
    token = path.read_bytes().strip()
    if not token:
        raise _unusable(path, "the file is empty; delete it for a new token")
    if not re.fullmatch(rb"[!-~]+", token):
        raise _unusable(path, "a token is one line of visible ASCII; delete the file for a new one")
    return token.decode()


def _protect(path: Path) -> None:
    """Let nobody but its owner read the file; refuse one that others could have written, and so know."""
    if sys.platform == "win32":
        return
    folder = path.resolve().parent.stat().st_mode
    if path.stat().st_mode & stat.S_IWOTH or (folder & stat.S_IWOTH and not folder & stat.S_ISVTX):
        remedy = f"delete it, and run: chmod go-w {path.resolve().parent}"
        raise _unusable(path, f"everyone can write to it, or to its folder; {remedy}")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        try:
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        except OSError:
            logger.warning("other users can read the token in %s", path)
        else:
            logger.warning(
                "other users could read the token in %s, and no longer can; delete it for a new one", path
            )


def _unusable(path: Path, message: str) -> ConfigError:
    return ConfigError([ConfigProblem(path, None, "http.token_file", message)])
