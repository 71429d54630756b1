"""Access control of the HTTP front: `Guard` checks every request, on every route, before anything else.

A web page must not reach a proxy on the same machine (`web_pages`), and nobody without the bearer token may
reach one that listens for other machines. The token comes from the environment, or from a file that only its
owner can read. Those who guess it are slowed down (`guesses`). The guard notes the principal of each request:
the identity behind its token.
"""

from __future__ import annotations

import contextlib
import hashlib
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

import platformdirs
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_context_proxy.config import HttpConfig
from mcp_context_proxy.config.secrets import NOTICE
from mcp_context_proxy.errors import ConfigError, ConfigProblem
from mcp_context_proxy.front import web_pages
from mcp_context_proxy.front.guesses import Guesses
from mcp_context_proxy.server.caller import PRINCIPAL_KEY
from mcp_context_proxy.system import process

logger = logging.getLogger(__name__)

HEALTH_PATH = "/healthz"
"""Path that is answered without a token: its response then says that the proxy is up, and nothing else."""

HTTP_VERSIONS = ("1.0", "1.1")
"""Versions that are spoken here; the parser takes any other for the last of them."""

TOKEN_VARIABLE = "MCP_CONTEXT_PROXY_TOKEN"
TOKEN_BYTES = 32

SHORTEST_TOKEN = 16
"""Characters of a token: nobody finds that many by trying, if they were not chosen by a person."""

NEW_TOKEN = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
"""Command that makes a good one."""

POLICY_VIOLATION = 1008
"""Close code of a WebSocket."""


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
        self._pages = frozenset(pages)
        self._guesses = Guesses()
        token = policy.token
        self._principal = None if token is None else _identity(f"Bearer {token}")
        """Identity of those who have the token, however they write the header."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] == "websocket":
            # Nothing here speaks it, and none of the checks below would be made.
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = self._refusal(scope, headers) or await self._token_refusal(scope, headers)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        """Return the refusal of a request that nobody may make, with whatever token."""
        if scope["http_version"] not in HTTP_VERSIONS:
            return PlainTextResponse("Only HTTP/1.1 is spoken here.\n", 505, {"Connection": "close"})
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy in front of us may have gone by the other header: the rest would be a smuggled request.
            text = "A body has a length or comes in chunks, not both.\n"
            return PlainTextResponse(text, 400, {"Connection": "close"})
        hosts = headers.getlist("host")
        if len(hosts) != 1 or (self._policy.hosts is not None and hosts[0].lower() not in self._policy.hosts):
            return PlainTextResponse("This Host is not served here; see allowed_hosts.\n", 421)
        page, public = scope["path"] in self._pages, self._is_public(scope)
        why = web_pages.objection(headers, scope["method"], hosts[0], page=page, public=public)
        return None if why is None else PlainTextResponse(why, 403)

    async def _token_refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        """Return the refusal of a request without the right token; note whose request it is otherwise."""
        given = headers.getlist("authorization")
        if self._policy.token is None:
            # Without a token a client may still say who it is, to be kept apart from others.
            scope[PRINCIPAL_KEY] = _identity(given[0]) if given else None
            return None
        if self._is_public(scope) and (not given or scope["path"] != HEALTH_PATH):
            return None
        if not given:
            return _unauthorized()
        client = scope.get("client")
        delayed = self._guesses.delays(client)
        if delayed and not await self._guesses.wait(client):
            return _too_many()
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        authorized = hmac.compare_digest(token.strip().encode(), self._policy.token.encode())
        if authorized and scheme.lower() == "bearer":
            self._guesses.right(client)
            scope[PRINCIPAL_KEY] = self._principal
            return None
        self._guesses.wrong(client)
        return _too_many() if delayed else _unauthorized()

    def _is_public(self, scope: Scope) -> bool:
        known = scope["path"] == HEALTH_PATH or scope["path"] in self._pages
        return known and scope["method"] in ("GET", "HEAD")


def _identity(credentials: str) -> str:
    return hashlib.sha256(credentials.encode()).hexdigest()


def _unauthorized() -> PlainTextResponse:
    text = "A bearer token is needed: Authorization: Bearer TOKEN\n"
    return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})


def _too_many() -> PlainTextResponse:
    text = "Too many wrong tokens came; wait a second.\n"
    return PlainTextResponse(text, 429, {"Retry-After": "1"})


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


def credentials_for(settings: HttpConfig, environ: Mapping[str, str] = os.environ) -> BearerToken:
    """Return the token that a front requires.

    The token comes from the environment, else from the configured file, else from a file in the user's data
    folder. A file that does not exist is created with a new token.

    Raises:
        ConfigError: the front would be open to other machines, the token can be guessed, or the file cannot
            be read or created.
    """
    if not settings.auth:
        if is_loopback(settings.host):
            text = " without a token: every user and program of this machine can use your servers"
            return BearerToken(None, text)
        message = f"serving without a token needs a loopback address, and {settings.host} is none"
        raise ConfigError([ConfigProblem(None, None, "http.auth", message)])
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        if fault := _fault(token.encode()):
            message = f"{fault}; make one with: {NEW_TOKEN}"
            raise ConfigError([ConfigProblem(None, None, TOKEN_VARIABLE, message)])
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
    if fault := _fault(token):
        raise _unusable(path, f"{fault}; delete the file for a new one")
    return token.decode()


def _fault(token: bytes) -> str | None:
    """Return why a token cannot be used, without any of it."""
    if not re.fullmatch(rb"[!-~]+", token):
        return "a token is one line of visible ASCII"
    if len(token) < SHORTEST_TOKEN:
        return f"a token has at least {SHORTEST_TOKEN} characters, and this one {len(token)}"
    return None


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
