"""Access control of the HTTP front: `Guard` checks every request, on every route, before anything else.

A web page must not reach a proxy on the same machine (`objection`), and nobody without the bearer token may
reach one that listens for other machines. Those who guess a token are slowed down (`Guesses`). The guard
notes the principal of each request: the identity behind its token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from http import HTTPStatus
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import anyio
from msgspec import Struct, field
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_context_proxy.config.tables import LOOPBACK_NAMES
from mcp_context_proxy.front import ASKED_KEY, last_event
from mcp_context_proxy.front.issuer import (
    NEEDED,
    WELL_KNOWN,
    Issued,
    IssuedTokens,
    KeysUnavailableError,
    ResourceMetadata,
    RoleMissingError,
    TokenRefusedError,
    undecided,
)
from mcp_context_proxy.protocol.envelope import RequestId
from mcp_context_proxy.protocol.headers import HeaderFields
from mcp_context_proxy.protocol.strangers import is_loopback
from mcp_context_proxy.server.gateway import Drain
from mcp_context_proxy.server.negotiation import LISTEN
from mcp_context_proxy.system.process import Bucket
from mcp_context_proxy.system.threads import Cancellable, assigned, in_task, keep_latest
from mcp_context_proxy.trust import ACTING, THE_USER, Principal, Role
from mcp_context_proxy.trust.tokens import OWNER, NamedToken, TokenBook

PROBE_PATHS: Final = frozenset({"/livez", "/readyz"})
"""Paths of the probes, which are answered without a token and under any Host."""

RIGHTS_KEY = "mcp-context-proxy/rights"
"""Key of an ASGI scope: the `Principal`, with its limits."""

PROVEN_KEY = "mcp-context-proxy/proven"
"""Key of an ASGI scope: True if the guard has seen a token that it knows."""

METRICS_PATH: Final = "/metrics"

HEALTH_PATH = "/healthz"
"""Path that is answered without a token: its response then says that the proxy is up, and nothing else."""

MESSAGE_PATHS: Final = ("/mcp", "/messages")
"""Beginnings of the paths to which clients post messages."""

RETRY_SECONDS: Final = "1"
"""Value of ``Retry-After`` while the proxy stops: another replica, or the next process, is there by then."""

HTTP_VERSIONS = ("1.0", "1.1")
"""Versions that are spoken here; the parser takes any other for the last of them."""

POLICY_VIOLATION = 1008
"""Close code of a WebSocket."""

FIELDS_KEY: Final = "mcp-context-proxy/fields"
"""Key of an ASGI scope: its `HeaderFields`, once anybody has looked at them."""


def fields_of(scope: Scope) -> HeaderFields:
    found: HeaderFields | None = scope.get(FIELDS_KEY)
    if found is None:
        found = scope[FIELDS_KEY] = HeaderFields(scope["headers"])
    return found


def rights_of(scope: Scope) -> Principal:
    found: Principal = scope.get(RIGHTS_KEY, THE_USER)
    return found


def is_proven(scope: Scope) -> bool:
    """Return whether it is known whose HTTP request this is; it is not where no token is required."""
    return scope.get(PROVEN_KEY) is True


def principal_of(scope: Scope) -> str | None:
    """Return the identity behind an HTTP request; None if callers have none."""
    return rights_of(scope).name


class Policy(Struct, frozen=True):
    """The requests that the guard lets in."""

    hosts: frozenset[str] | None
    """``host:port`` values of the Host header; None for any, where a token is required."""
    token: str | None
    """The bearer token of the owner; None if none is required."""
    named: TokenBook = field(default_factory=lambda: TokenBook(None))
    """Tokens of others."""
    refused: Callable[[str], None] = lambda _address: None
    """Takes the address of a client that has sent a wrong token."""
    drain: Drain = field(default_factory=Drain)
    """Whether the proxy is about to stop, or stops."""
    issued: IssuedTokens | None = None
    """Verifies tokens of an issuer; None if none are accepted."""
    resource: ResourceMetadata | None = None
    """Where clients without a token read who issues them."""

    @property
    def required(self) -> bool:
        return self.token is not None or self.issued is not None


def policy(host: str, port: int, extra_hosts: Iterable[str], token: str | None) -> Policy:
    if not is_loopback(host) and not extra_hosts:
        return Policy(None, token)
    names = ["127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host]
    own = {f"{name}:{port}".lower() for name in names} if is_loopback(host) else set[str]()
    own |= {name.removesuffix(":80") for name in own}  # which clients leave out
    return Policy(frozenset(own | {name.lower() for name in extra_hosts}), token)


Client: TypeAlias = tuple[str, int]
"""Address and port of a client's end of a connection."""

WRONG_PER_SECOND, WRONG_AT_ONCE = 1.0, 20
"""Rate and burst of wrong tokens from one address: a client with an old token keeps trying, but slowly."""

ALL_WRONG_PER_SECOND, ALL_WRONG_AT_ONCE = 20.0, 200
"""Rate and burst of wrong tokens from all addresses together."""

HELD_SECONDS: Final = 1.0
"""Time that a token waits after too many wrong ones: the longest delay of a right one."""

MOST_HELD_OF_ADDRESS, MOST_HELD = 32, 128
"""Requests that wait at a time; further ones are refused unseen. Connections are left for everybody else."""

ADDRESSES_KEPT, CONNECTIONS_KEPT = 1024, 1024
"""Addresses with a count of their own, and connections known to have sent the right token."""

NETWORK_BITS: Final = 64
"""Length of the IPv6 prefix that counts as one address: a single machine has all the addresses in it."""


class Guesses:
    """Throttle of wrong bearer tokens: nobody tries many, and nobody keeps those out who have the right one.

    Wrong tokens are counted for each client address, and for all addresses together. Once an address has sent
    too many, each token from it is looked at only after a moment, a right one too: a guess that is refused at
    once and a hit that is served at once would be no throttle. Only a few can wait, so that the number of
    tokens that are looked at in a second is bounded. A connection that has sent the right token never waits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Bucket(ALL_WRONG_PER_SECOND, ALL_WRONG_AT_ONCE, clock)
        self._by_address: OrderedDict[str, Bucket] = OrderedDict()
        self._held: Counter[str] = Counter()
        """Number of requests that wait, by address."""
        self._proven: OrderedDict[Client, None] = OrderedDict()

    def delays(self, client: Client | None) -> bool:
        """Return whether a token that came over this connection waits."""
        if client in self._proven:
            return False
        bucket = self._by_address.get(address_of(client))
        return self._all.is_empty or (bucket is not None and bucket.is_empty)

    async def wait(self, client: Client | None) -> bool:
        """Wait until the token may be looked at; return False if too many wait already."""
        address = address_of(client)
        if self._held[address] >= MOST_HELD_OF_ADDRESS or self._held.total() >= MOST_HELD:
            return False
        self._held[address] += 1
        try:
            await anyio.sleep(HELD_SECONDS)
        finally:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]
        return True

    def right(self, client: Client | None) -> None:
        """Note that a connection has sent the right token."""
        if client is not None and client not in self._proven:
            keep_latest(self._proven, client, None, CONNECTIONS_KEPT)

    def wrong(self, client: Client | None) -> None:
        if client is not None:
            # The port may be that of an earlier connection by now.
            self._proven.pop(client, None)
        address = address_of(client)
        bucket = self._by_address.get(address) or Bucket(WRONG_PER_SECOND, WRONG_AT_ONCE, self._clock)
        keep_latest(self._by_address, address, bucket, ADDRESSES_KEPT).take()
        self._all.take()


def address_of(client: Client | None) -> str:
    """Return the address that a client's guesses are counted for."""
    if client is None or ":" not in client[0]:
        return "" if client is None else client[0]
    try:
        return str(ipaddress.IPv6Network((client[0].partition("%")[0], NETWORK_BITS), strict=False))
    except ValueError:
        return client[0]


class Guard:
    """ASGI middleware that enforces a policy."""

    def __init__(
        self, app: ASGIApp, policy: Policy, pages: Collection[str] = (), most_of_one: int = sys.maxsize
    ) -> None:
        """Enforce `policy`; `pages` are paths without data, which fetch it with the token themselves.

        Nobody but the owner has more than `most_of_one` requests under way, streams among them: the others
        find a connection, however many somebody opens.
        """
        self._app, self._policy, self._most_of_one = app, policy, most_of_one
        self._under_way = Counter[str | None]()
        """Number of requests with a named or issued token, by principal."""
        self._pages = frozenset(pages)
        self._guesses = Guesses()
        self._open: dict[Cancellable, NamedToken | Issued] = {}
        """Requests under way with a named or issued token."""
        policy.named.changed.append(self._end_unaccepted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # Nothing here speaks it, and none of the checks below would be made.
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        if scope["type"] == "http":
            headers = fields_of(scope)
            if self._policy.drain.leaving:
                send = _closing(send)
            refusal = self._refusal(scope, headers) or await self._token_refusal(scope, headers)
            refusal = refusal or self._beyond(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
            with assigned(ACTING, rights_of(scope)):
                token = scope.get(_TOKEN_KEY)
                if token is None:
                    await self._app(scope, receive, send)
                elif self._under_way[principal_of(scope)] >= self._most_of_one:
                    text = f"You have {self._most_of_one:,} requests under way; the others are for others.\n"
                    refusal = PlainTextResponse(text, 503, {"Retry-After": RETRY_SECONDS})
                    await refusal(scope, receive, send)
                else:
                    await self._serve_while_accepted(token, scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _serve_while_accepted(
        self, token: NamedToken | Issued, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request, and end it, with its stream, when its token is no longer accepted.

        When an issued token expires, its streams end, and a call that has begun may finish.
        """
        begun: Message | None = None
        complete = False
        asked: list[RequestId] = []
        scope[ASKED_KEY] = asked

        async def noting(message: Message) -> None:
            nonlocal begun, complete
            begun = begun or message
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        name = principal_of(scope)
        self._under_way[name] += 1
        with Cancellable() as ending:
            self._open[ending] = token
            is_stream = scope["method"] == "GET" or fields_of(scope).get("mcp-method") == LISTEN
            if not isinstance(token, NamedToken) and is_stream:
                await in_task()
                ending.end_at(anyio.current_time() + token.until - time.time())
            try:
                await self._app(scope, receive, noting)
            finally:
                self._open.pop(ending, None)
                self._under_way[name] -= 1
                if not self._under_way[name]:
                    del self._under_way[name]
        if ending.caught and not complete:
            if begun:
                kind = HeaderFields(begun["headers"]).get("content-type") or ""
                is_stream = kind.startswith("text/event-stream")
                end = last_event(asked[-1], ENDED) if asked and is_stream else b""
                await send({"type": "http.response.body", "body": end, "more_body": False})
            else:
                await self._unknown()(scope, receive, send)

    def _end_unaccepted(self) -> None:
        for ending, token in list(self._open.items()):
            named = self._policy.named
            if isinstance(token, NamedToken):
                is_accepted = named.accepts(token)
            else:
                is_accepted = not named.refuses(token.principal.name, token.made)
            if not is_accepted:
                ending.cancel()

    def _refusal(self, scope: Scope, headers: HeaderFields) -> Response | None:
        """Return the refusal of a request that nobody may make, with whatever token."""
        if scope["http_version"] not in HTTP_VERSIONS:
            return PlainTextResponse("Only HTTP/1.1 is spoken here.\n", 505, {"Connection": "close"})
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy in front of us may have gone by the other header: the rest would be a smuggled request.
            text = "A body has a length or comes in chunks, not both.\n"
            return PlainTextResponse(text, 400, {"Connection": "close"})
        hosts = headers.all("host")
        known = len(hosts) == 1 and (self._policy.hosts is None or hosts[0].lower() in self._policy.hosts)
        if not known and (not _is_probe(scope) or _is_browser(headers)):
            # A reverse proxy may have put a name of its own there, which its administrator has to know.
            named = f": {hosts[0]}" if len(hosts) == 1 and _HOST.fullmatch(hosts[0]) else ""
            return PlainTextResponse(f"This Host is not served here{named}; see http.allowed_hosts.\n", 421)
        page, public = scope["path"] in self._pages, self._is_public(scope)
        why = objection(headers, scope["method"], hosts[0] if known else "", page=page, public=public)
        # Only the content of a message tells whether it begins anything.
        takes = scope["method"] == "POST" and scope["path"].startswith(MESSAGE_PATHS)
        if why is None and self._policy.drain.stopping and not (public or takes):
            text = "The proxy was told to stop; the request did not run.\n"
            return PlainTextResponse(text, 503, {"Retry-After": RETRY_SECONDS})
        return None if why is None else PlainTextResponse(why, 403)

    async def _token_refusal(self, scope: Scope, headers: HeaderFields) -> Response | None:
        """Return the refusal of a request without the right token; note whose request it is otherwise."""
        given = headers.all("authorization")
        if not self._policy.required:
            # Without a token a client may still say who it is, to be kept apart from others.
            if given:
                scope[RIGHTS_KEY] = Principal(hashlib.sha256(given[0].encode()).hexdigest())
            return None
        if self._is_public(scope) and (not given or scope["path"] != HEALTH_PATH):
            return None
        if not given:
            return self._unauthorized()
        client = scope.get("client")
        token = _bearer(given)
        if self._policy.issued is not None and self._policy.issued.may_be(token):
            # Nobody guesses a signature, so a wrong one delays nobody else behind the same balancer.
            return await self._issued_refusal(self._policy.issued, token, scope)
        delayed = self._guesses.delays(client)
        if delayed and not await self._guesses.wait(client):
            return _too_many()
        own = self._policy.token
        owned = own is not None and hmac.compare_digest(token.encode(), own.encode())
        named = self._policy.named.find(token)
        if owned or named is not None:
            self._guesses.right(client)
            scope[RIGHTS_KEY] = named.principal if named is not None and not owned else Principal(OWNER)
            scope[_TOKEN_KEY] = None if owned else named
            scope[PROVEN_KEY] = True
            return None
        self._guesses.wrong(client)
        self._policy.refused(address_of(client))
        return _too_many() if delayed else self._unknown() if token else self._unauthorized()

    async def _issued_refusal(self, tokens: IssuedTokens, token: str, scope: Scope) -> Response | None:
        """Return the refusal of a request with a token of an issuer; note whose request it is otherwise."""
        resource = self._policy.resource
        assert resource is not None
        try:
            issued = await tokens.verify(token)
        except KeysUnavailableError:
            return undecided()
        except RoleMissingError as error:
            return resource.refused(str(error), HTTPStatus.FORBIDDEN, "insufficient_scope")
        except TokenRefusedError as error:
            self._policy.refused(address_of(scope.get("client")))
            return resource.refused(str(error))
        revoked = self._policy.named.refuses(issued.principal.name, issued.made)
        if revoked is None:
            return undecided()
        if revoked:
            self._policy.refused(address_of(scope.get("client")))
            return resource.refused(REVOKED)
        scope[RIGHTS_KEY], scope[_TOKEN_KEY], scope[PROVEN_KEY] = issued.principal, issued, True
        return None

    def _beyond(self, scope: Scope) -> Response | None:
        """Return the refusal of a request that its token, which is right, is not for."""
        if rights_of(scope).may(Role.USE) or scope["path"] in (METRICS_PATH, HEALTH_PATH):
            return None
        return PlainTextResponse(f"This token is for {METRICS_PATH} alone.\n", HTTPStatus.FORBIDDEN)

    def _unauthorized(self) -> Response:
        resource = self._policy.resource
        value = "Bearer" if resource is None else resource.challenge()
        return PlainTextResponse(NEEDED, 401, {"WWW-Authenticate": value})

    def _unknown(self) -> Response:
        if self._policy.resource is not None:
            return self._policy.resource.refused(UNKNOWN)
        headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
        return PlainTextResponse(f"{UNKNOWN[0].upper()}{UNKNOWN[1:]}.\n", 401, headers)

    def _is_public(self, scope: Scope) -> bool:
        known = scope["path"] == HEALTH_PATH or scope["path"] in self._pages
        known = known or (self._policy.resource is not None and scope["path"].startswith(WELL_KNOWN))
        return (known and scope["method"] in ("GET", "HEAD")) or _is_probe(scope)


_HOST: Final = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}")
"""A Host that a refusal may repeat."""

UNKNOWN: Final = "the bearer token is not known here, or has expired"
"""Reason for refusing a token; it does not tell which, to somebody who guesses."""

REVOKED: Final = "the token was revoked here; log in once more"

ENDED: Final = f"{UNKNOWN} by now; the request may or may not have run"

_TOKEN_KEY: Final = "mcp-context-proxy/token"
"""Key of an ASGI scope: the named or issued token of the request, if it has one."""


def _bearer(given: list[str]) -> str:
    """Return the token of a request; empty if it has none, or several."""
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_probe(scope: Scope) -> bool:
    return scope["path"] in PROBE_PATHS and scope["method"] in ("GET", "HEAD")


def _is_browser(headers: HeaderFields) -> bool:
    """Return whether a browser may have sent it, perhaps for a page whose name leads here by now."""
    named = any(agent.startswith(BROWSER) for agent in headers.all("user-agent"))
    return named or "origin" in headers or any(name.startswith("sec-fetch-") for name in headers)


def _closing(send: Send) -> Send:
    """Return a `Send` that has the connection closed after the response, so that clients open another one."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"connection"]
            message = {**message, "headers": [*headers, (b"connection", b"close")]}
        await send(message)

    return sending


def _too_many() -> PlainTextResponse:
    text = "Too many wrong tokens came; wait a second.\n"
    return PlainTextResponse(text, 429, {"Retry-After": "1"})


# A page of another origin can have a browser send many kinds of requests here: fetch, images, scripts, links,
# forms, frames, event streams. Origin is on some of them only. Browsers name the relation of the two sites in
# Sec-Fetch-Site (Fetch Metadata); another port of this machine is the same site, and still a stranger.
# Following a link to one of our pages is allowed, because they show nothing without asking for it. Browsers
# before 2023 send no Sec-Fetch-Site. They are known by their name, and need a header that a page of another
# origin cannot set.

OWN_SITES: Final = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` of our own pages, and of addresses that a person or an application opens."""

BROWSER: Final = "Mozilla/"
"""Beginning of the name of every browser."""

OWN_HEADERS: Final = ("authorization", "mcp-protocol-version", "mcp-session-id", "x-requested-with")
"""Headers of clients and of our own pages. A browser asks before it sends any of them to another origin, and
that question is refused."""

OTHER_ORIGIN: Final = "Requests from other origins are refused.\n"
OLD_BROWSER: Final = (
    "A browser that does not say which page makes a request (Sec-Fetch-Site) gets nothing but the pages. "
    "If this is no browser, send any X-Requested-With header.\n"
)


def objection(headers: HeaderFields, method: str, host: str, *, page: bool, public: bool) -> str | None:
    """Return why a request may not be served; None if no page of another origin can have made it.

    Args:
        headers: Headers of the request.
        method: HTTP method.
        host: Value of the Host header, which is one of ours.
        page: Whether the request is for one of our pages or their files.
        public: Whether everybody may read the response.
    """
    if not same_origin(headers.all("origin"), host):
        return OTHER_ORIGIN
    sites = headers.all("sec-fetch-site")
    if sites:
        own = len(sites) == 1 and sites[0] in OWN_SITES
        return None if own or (page and method == "GET" and _is_navigation(headers)) else OTHER_ORIGIN
    if public or method not in ("GET", "HEAD"):
        # Every browser sends the Origin of another page with any other method.
        return None
    referrers = headers.all("referer")
    if referrers and not same_origin([_origin_of(referrer) for referrer in referrers], host):
        return OTHER_ORIGIN
    is_browser = any(agent.startswith(BROWSER) for agent in headers.all("user-agent"))
    return OLD_BROWSER if is_browser and not any(name in headers for name in OWN_HEADERS) else None


def _is_navigation(headers: HeaderFields) -> bool:
    """Return whether a browser opens a document in a tab or window, and not in a frame."""
    wanted = {"sec-fetch-mode": ["navigate"], "sec-fetch-dest": ["document"]}
    return all(headers.all(name) == values for name, values in wanted.items())


def _origin_of(url: str) -> str:
    """Return the origin of a URL; an empty string, which is no origin, if it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}"


def same_origin(origins: list[str], host: str) -> bool:
    """Return whether a request has no Origin (it is not from a browser) or the origin of this front."""
    if not origins:
        return True
    if len(origins) > 1:
        return False
    try:
        origin, own = urlsplit(origins[0]), urlsplit(f"//{host}")
        # With nothing in it but a scheme, a host and a port.
        is_origin = origin.username is None and not (origin.path or origin.query or origin.fragment)
        default = {"https": 443, "http": 80}.get(origin.scheme)
        if not is_origin or default is None or (origin.port or default) != (own.port or default):
            return False
    except ValueError:
        return False
    hosts = {origin.hostname, own.hostname}
    return None not in hosts and (len(hosts) == 1 or hosts <= LOOPBACK_NAMES)
