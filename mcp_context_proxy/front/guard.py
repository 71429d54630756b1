"""Decides who may speak to the HTTP front: checked on every route, before anything else.

A web page must not reach a proxy on the same machine (Host, Origin), and nobody without the token may
reach one that listens beyond it.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HEALTH_PATH = "/healthz"
"""Answered without a token: it tells nothing."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""One origin: what listens on a port of one of them is this front. Others of this machine may be others'."""

VERSIONS = ("1.0", "1.1")
"""Of HTTP: the parser takes any for the last of them."""


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Policy:
    """What the guard lets in."""

    hosts: frozenset[str] | None
    """``host:port`` values of the Host header; None for any, where a token stands in front."""
    token: str | None
    """The bearer token; None where none is asked for."""


def policy(host: str, port: int, extra_hosts: Iterable[str], token: str | None) -> Policy:
    """The policy for a front that listens on `host` and `port`."""
    if not is_loopback(host) and not extra_hosts:
        return Policy(None, token)
    names = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else []
    own = {f"{name}:{port}" for name in names}
    return Policy(frozenset(own | {name.lower() for name in extra_hosts}), token)


class Guard:
    """ASGI middleware that enforces a policy."""

    def __init__(self, app: ASGIApp, policy: Policy, pages: Collection[str] = ()) -> None:
        """Enforce `policy`; `pages` are paths of what has no data, and asks for it with a token."""
        self._app, self._policy = app, policy
        self._open = frozenset({HEALTH_PATH, *pages})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "http" and (refusal := self._refusal(scope, Headers(scope=scope))):
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        if scope["http_version"] not in VERSIONS:
            return PlainTextResponse("Only HTTP/1.1 is spoken here.\n", 505, {"Connection": "close"})
        if "transfer-encoding" in headers and "content-length" in headers:
            # Who stands before us may have taken the other one: what follows is nobody's request.
            text = "A body has a length or comes in chunks, not both.\n"
            return PlainTextResponse(text, 400, {"Connection": "close"})
        hosts = headers.getlist("host")
        if len(hosts) != 1 or (self._policy.hosts is not None and hosts[0].lower() not in self._policy.hosts):
            return PlainTextResponse("This Host is not served here; see allowed_hosts.\n", 421)
        if not _same_origin(headers.getlist("origin"), hosts[0]):
            return PlainTextResponse("Requests from other origins are refused.\n", 403)
        if self._policy.token is not None and not self._is_open(scope) and not self._authorized(headers):
            text = "A bearer token is needed: Authorization: Bearer TOKEN\n"
            return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})
        return None

    def _is_open(self, scope: Scope) -> bool:
        return scope["path"] in self._open and scope["method"] in ("GET", "HEAD")

    def _authorized(self, headers: Headers) -> bool:
        credentials = headers.getlist("authorization")
        scheme, _, given = credentials[0].partition(" ") if len(credentials) == 1 else ("", "", "")
        wanted = self._policy.token or ""
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted.encode())


def _same_origin(origins: list[str], host: str) -> bool:
    """No Origin (not a browser), or the one that this front itself has; loopback names are one origin."""
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
        if own.hostname is None or (origin.port or _default(origin.scheme)) != (
            own.port or _default(origin.scheme)
        ):
            return False
    except ValueError:
        return False
    same = origin.hostname == own.hostname
    return same or {origin.hostname, own.hostname} <= LOOPBACK_NAMES


def _default(scheme: str) -> int:
    return 443 if scheme == "https" else 80
