"""Requests to authorization servers: tokens are renewed and revoked, and no server leads them astray.

The authorization server is found by discovery: a server names URLs, and those name more. A server elsewhere
could thereby have this machine connect to addresses that only this machine can reach. So each host is
resolved once, its addresses are checked, and the connection is made to a checked address: a name that
resolves to something else a moment later (DNS rebinding) has no effect. Hosts that the configuration names
are connected to wherever they are.

Each request is encrypted, goes only to allowed addresses, and is bounded in time and size. Tokens are renewed
without the MCP SDK, which only a login loads.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx2
import msgspec

from mcp_context_proxy.config import AuthConfig, OAuthConfig, ServerConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.oauth import OAuthCredentials
from mcp_context_proxy.oauth.bearer import client_with
from mcp_context_proxy.protocol.strangers import is_loopback, one_line
from mcp_context_proxy.system import threads
from mcp_context_proxy.system.process import time_of_day

logger = logging.getLogger(__name__)

Address: TypeAlias = IPv4Address | IPv6Address

METADATA: Final = frozenset(
    ipaddress.ip_address(address)
    for address in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""Addresses at which clouds give a machine its own credentials, beside the link-local ones."""

LOCAL_TRANSLATION: Final = IPv6Network("64:ff9b:1::/48")
"""Prefix of addresses that a translator of this machine's own network leads anywhere in IPv4 (RFC 8215)."""

TRANSLATED: Final = (
    IPv6Network("64:ff9b::/96"),  # NAT64
    LOCAL_TRANSLATION,
    IPv6Network("::ffff:0:0:0/96"),  # SIIT
    IPv6Network("::/96"),  # IPv4-compatible
)
"""Prefixes of IPv6 addresses that hold an IPv4 address in their last four bytes."""


class ExchangeError(Exception):
    """A request must not be sent, or its response cannot be used."""


class NetworkReach(IntEnum):
    """Nearness of an address to this machine."""

    PUBLIC = 0
    PRIVATE = 1
    """An address in this machine's own networks."""
    LOOPBACK = 2
    """An address of this machine itself."""
    NOWHERE = 3
    """An address never allowed: link-local, multicast, or a cloud's metadata service."""


class Destinations:
    """Addresses that may be connected to on behalf of one server, or of the issuer of clients' tokens."""

    def __init__(self, config: ServerConfig | AuthConfig, reach: NetworkReach = NetworkReach.PUBLIC) -> None:
        """Allow the hosts of the configuration, and others no nearer than `reach`."""
        if isinstance(config, AuthConfig):
            urls = (config.issuer, config.jwks_url)
        else:
            urls = (config.url, None if config.oauth is None else config.oauth.issuer)
        self._configured = {_host(url) for url in urls if url}
        self.reach = reach

    def heard_from(self, answer: httpx2.Response) -> None:
        """Allow addresses as near as a configured host, judged by the connection it responded on.

        The address that its name resolves to is no evidence: the owner of the name can choose any.
        """
        stream = answer.extensions.get("network_stream")
        peer = None if stream is None else stream.get_extra_info("server_addr")
        url = answer.request.url
        if peer and _host(url) in self._configured and not _through_proxy(url):
            found = _reach(ipaddress.ip_address(peer[0].partition("%")[0]))
            # A link-local host is in this network, and not this machine.
            self.reach = max(self.reach, NetworkReach.PRIVATE if found is NetworkReach.NOWHERE else found)

    async def pinned(self, request: httpx2.Request) -> list[httpx2.Request]:
        """Return the request once for each allowed address of its host.

        Raises `ExchangeError` if no address is allowed, and `OSError` if the host is not known.
        """
        url = request.url
        if _host(url) in self._configured:
            return [request]
        literal = True
        try:
            found = [ipaddress.ip_address(url.host.partition("%")[0])]
        except ValueError:
            literal = False
            if _through_proxy(url):
                # The HTTP proxy of the network resolves a name, and connects. An address in another spelling,
                # such as 127.1, is no name.
                with suppress(OSError):
                    self._allowed(url, [IPv4Address(socket.inet_aton(url.host))])
                return [request]
            name = url.raw_host.decode("ascii")
            resolved = await anyio.getaddrinfo(name, url.port, type=socket.SOCK_STREAM)
            addresses = (ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in resolved)
            found = list(dict.fromkeys(addresses))
        allowed = self._allowed(url, found)
        return [request] if literal else [_to(address, request) for address in allowed]

    def _allowed(self, url: httpx2.URL, found: Sequence[Address]) -> list[Address]:
        """Return those of the addresses of a host that may be connected to.

        Raises `ExchangeError` if there are none.
        """
        allowed = [address for address in found if _reach(address) <= self.reach]
        if not allowed:
            where = ", ".join(str(address) for address in found) or "nowhere"
            at = "" if where == url.host else f" ({where})"
            raise ExchangeError(
                f"it leads to {url.host}{at}, an address nearer to this machine than its own; where that is "
                "meant, set oauth.issuer to its authorization server, or auth.jwks_url to the keys"
            )
        return allowed


def _host(url: str | httpx2.URL) -> str:
    return httpx2.URL(url).host.rstrip(".").lower()


def _to(address: Address, request: httpx2.Request) -> httpx2.Request:
    """Return the request to one address; its headers and its TLS handshake still name the host."""
    extensions = {**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")}
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=str(address)),
        headers=request.headers,
        content=request.content,
        extensions=extensions,
    )


def _reach(address: Address) -> NetworkReach:
    """Return the nearest of an address and the IPv4 addresses that it stands for."""
    if isinstance(address, IPv4Address):
        return _reach_of(address)
    if address.ipv4_mapped is not None:
        return _reach_of(address.ipv4_mapped)
    # 6to4 and Teredo.
    meant = [address, address.sixtofour, *(address.teredo or ())]
    if any(address in prefix for prefix in TRANSLATED):
        meant.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return max(_reach_of(each) for each in meant if each is not None)


def _reach_of(address: Address) -> NetworkReach:
    if address in METADATA or address.is_link_local or address.is_multicast or address.is_unspecified:
        return NetworkReach.NOWHERE
    if address.is_loopback:
        return NetworkReach.LOOPBACK
    of_a_site = isinstance(address, IPv6Address) and (address.is_site_local or address in LOCAL_TRANSLATION)
    return NetworkReach.PUBLIC if address.is_global and not of_a_site else NetworkReach.PRIVATE


def _through_proxy(url: httpx2.URL) -> bool:
    proxies = getproxies()
    return (url.scheme in proxies or "all" in proxies) and not proxy_bypass(url.host)


REQUEST_SECONDS: Final = 15.0
"""Timeout of one request to an authorization server, until the whole response is there."""

ANSWER_BYTES: Final = 1024 * 1024
"""Limit of one response; an honest one has a few kilobytes."""

ADDRESSES_TRIED: Final = 3
"""Addresses of one host that are tried; with more, a host that is down would only take longer."""

REASON_SHOWN: Final = 300
"""Characters of an authorization server's explanation that errors show."""

EARLY_SECONDS: Final = 30.0
"""Time before its expiry at which a token is renewed: longer than a request is on its way."""

EARLY_SHARE: Final = 0.25
"""Largest such time as a share of a token's life, so that a short one is not renewed with each request."""

LONGEST_SECONDS: Final = 10 * 365 * 24 * 3600
"""Longest life of a token that is believed."""

_TOKEN: Final = re.compile(r"[!-~][ -~]{0,16383}")
"""A token (RFC 6749, appendix A) that fits into the headers which servers take. To know a longer one in all
forms in which it may be written would take too long."""


class GrantRefusedError(AuthorizationError):
    """Raised when the refresh token is no longer valid, so that only a new login helps."""


class _SlowAnswerError(ExchangeError):
    """Raised when a response is not whole after its time."""


_LOST: Final = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.ReadTimeout, _SlowAnswerError)
"""Errors after which a refresh token may have been used up, and the new one never arrived."""


async def refresh(
    config: ServerConfig, credentials: OAuthCredentials, seconds: float = REQUEST_SECONDS
) -> OAuthCredentials:
    """Return credentials with new tokens for the refresh token, if they come within some seconds.

    Raises `GrantRefusedError` if the refresh token is no longer valid, and `AuthorizationError` if the
    authorization server cannot be reached, or its response cannot be used.
    """
    data = {
        "grant_type": "refresh_token",
        "refresh_token": credentials.refresh_token or "",
        "client_id": credentials.client_id,
    }
    if credentials.indicator is not None:
        data["resource"] = credentials.indicator
    try:
        response = await _post_as_client(config, credentials, credentials.token_endpoint, data, seconds)
    except AuthorizationError as error:
        if not isinstance(error.__context__, _LOST):
            raise
        advice = f"if this goes on, run: mcp-context-proxy login {credentials.server}"
        cause = f"the answer of its authorization server was lost ({error.cause}); {advice}"
        raise AuthorizationError(credentials.server, cause) from None
    refusal, passing = error_of(response), PASSING
    if _configured_secret(config, credentials) is not None:
        # It may have been changed at the issuer, and is changed in the configuration next.
        passing |= {"invalid_client", "incorrect_client_credentials"}
    if refusal is not None and refusal not in passing:
        raise GrantRefusedError(credentials.server, reason(response))
    if not response.is_success:
        raise AuthorizationError(credentials.server, reason(response))
    try:
        tokens = msgspec.json.decode(response.content, type=TokenResponse, strict=False)
        if tokens.token_type.lower() != "bearer":
            raise msgspec.ValidationError(tokens.token_type)
    except (msgspec.DecodeError, RecursionError):
        raise AuthorizationError(
            credentials.server, "its authorization server gave no usable token"
        ) from None
    if credentials.scope is not None and (more := scopes_beyond(tokens.scope, credentials.scope)):
        logger.warning("%s: the new token has scopes that the login had not: %s", credentials.server, more)
    return with_tokens(credentials, tokens)


class _Refusal(msgspec.Struct):
    error: str


PASSING: Final = frozenset({"server_error", "temporarily_unavailable", "slow_down"})
"""Errors after which the same refresh token may be tried again."""


def error_of(response: httpx2.Response) -> str | None:
    """Return the error by which an authorization server refuses a request for a token; None if it does not.

    Something in between, such as a gateway, answers with the same status in words of its own.
    """
    with suppress(msgspec.DecodeError, RecursionError):
        if response.status_code in {200, 400, 401}:  # GitHub refuses with 200
            return msgspec.json.decode(response.content, type=_Refusal).error or None
    return None


def scopes_beyond(given: str | None, known: str | None) -> str:
    more = dict.fromkeys(given.split() if given else ())
    return one_line(" ".join(scope for scope in more if scope not in (known or "").split()), REASON_SHOWN)


async def revoke(config: ServerConfig, credentials: OAuthCredentials) -> bool:
    """Ask the authorization server to revoke the tokens; return whether it has confirmed that."""
    if credentials.revocation_endpoint is None:
        return False
    token = credentials.refresh_token or credentials.access_token
    data = {"token": token, "client_id": credentials.client_id}
    try:
        response = await _post_as_client(config, credentials, credentials.revocation_endpoint, data)
        return response.is_success
    except AuthorizationError as error:
        logger.debug("%s", error)
        return False


class TokenResponse(msgspec.Struct, frozen=True):
    """The tokens in the response of an authorization server (RFC 6749, section 5.1)."""

    access_token: str
    token_type: str = "Bearer"
    expires_in: int | None = None
    scope: str | None = None
    refresh_token: str | None = None


def with_tokens(credentials: OAuthCredentials, tokens: TokenResponse) -> OAuthCredentials:
    """Return the credentials with new tokens; fields that the response leaves out stay as they were.

    Raises `AuthorizationError` if a token, or the secret of the client, cannot be sent as one.
    """
    given = tokens.access_token, tokens.refresh_token, credentials.client_secret
    if not all(one is None or _TOKEN.fullmatch(one) for one in given):
        raise AuthorizationError(credentials.server, "its authorization server gave no usable token")
    lasts, now = tokens.expires_in, time_of_day()
    if lasts is not None:
        lasts = min(max(lasts, 0), LONGEST_SECONDS)
    return msgspec.structs.replace(
        credentials,
        access_token=tokens.access_token,
        expires_at=None if lasts is None else now + lasts,
        renew_at=None if lasts is None else now + lasts - min(EARLY_SECONDS, EARLY_SHARE * lasts),
        refresh_token=tokens.refresh_token or credentials.refresh_token,
        scope=tokens.scope or credentials.scope,
    )


def _configured_secret(config: ServerConfig, credentials: OAuthCredentials) -> str | None:
    """Return the secret that the configuration has for the client of a login, which may have a former one."""
    settings = config.oauth
    return None if settings is None or settings.client_id != credentials.client_id else settings.client_secret


ASSERTION_SECONDS: Final = 60
"""Life of the proof of a client, which is sent at once."""

_ALGORITHMS: Final = {
    "RSAPrivateKey": "RS256",
    "secp256r1": "ES256",
    "secp384r1": "ES384",
    "secp521r1": "ES512",
    "Ed25519PrivateKey": "EdDSA",
}
"""Algorithms by the kind or the curve of a key: those that most authorization servers take."""


def proof_by_key(settings: OAuthConfig, audience: str) -> dict[str, str]:
    """Return the fields of a request by which a client proves with its key who it is (RFC 7523). Blocks.

    A certificate beside the key is named by its hash, as Microsoft Entra ID wants it. Raises `ExchangeError`
    if the key cannot be used.
    """
    import jwt  # noqa: PLC0415 - few clients have a key
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415

    now, name = int(time_of_day()), settings.client_id
    claims = {"iss": name, "sub": name, "aud": audience, "iat": now, "exp": now + ASSERTION_SECONDS}
    headers = {} if settings.key_id is None else {"kid": settings.key_id}
    try:
        content = (settings.client_key or Path()).read_bytes()
        key: Any = serialization.load_pem_private_key(content, None)
        if b"BEGIN CERTIFICATE" in content:
            digest = x509.load_pem_x509_certificate(content).fingerprint(hashes.SHA256())
            headers["x5t#S256"] = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        kind = key.curve.name if hasattr(key, "curve") else type(key).__name__
        signed = jwt.encode(claims | {"jti": secrets.token_hex()}, key, _ALGORITHMS[kind], headers)
    except (OSError, ValueError, TypeError, KeyError) as error:
        cause = getattr(error, "strerror", None) or "it has no key in PEM of a known kind, without a password"
        raise ExchangeError(f"oauth.client_key = {settings.client_key} cannot be used: {cause}") from None
    means = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    return {"client_id": name or "", "client_assertion_type": means, "client_assertion": signed}


async def _post_as_client(
    config: ServerConfig,
    credentials: OAuthCredentials,
    url: str,
    data: dict[str, str],
    seconds: float = REQUEST_SECONDS,
) -> httpx2.Response:
    headers = dict[str, str]()
    secret = _configured_secret(config, credentials) or credentials.client_secret
    settings = config.oauth
    if secret and credentials.auth_method == "client_secret_basic":
        pair = f"{quote(credentials.client_id, safe='')}:{quote(secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif secret and credentials.auth_method == "client_secret_post":
        data = {**data, "client_secret": secret}
    try:
        if settings is not None and settings.client_key and settings.client_id == credentials.client_id:
            audience = credentials.audience or credentials.issuer
            data = {**data, **await threads.in_thread(proof_by_key, settings, audience)}
        destinations = Destinations(config, NetworkReach(credentials.reach))
        request = httpx2.Request("POST", url, data=data, headers=headers)
        return await exchange(destinations, request, seconds=seconds)
    except Exception as error:
        # boundary: the network, and any response of the authorization server
        raise AuthorizationError(credentials.server, explained(error)) from None


async def exchange(
    destinations: Destinations,
    request: httpx2.Request,
    most: int = ANSWER_BYTES,
    seconds: float = REQUEST_SECONDS,
) -> httpx2.Response:
    """Send a request and return its whole response, of at most so many bytes.

    Raises `ExchangeError` if the address is not allowed or not encrypted, or the response is too large or
    too slow, and `httpx2.HTTPError` if there is no response, and `OSError` if the host is not known.
    """
    check_encrypted(str(request.url))
    # Each byte of a response may come within a timeout, and the last one never.
    with anyio.move_on_after(seconds):
        return await _exchange(destinations, request, most)
    raise too_slow(request, seconds)


def too_slow(request: httpx2.Request, seconds: float = REQUEST_SECONDS) -> ExchangeError:
    """Return the error for a response that is not whole after its time."""
    return _SlowAnswerError(f"{request.url.host} did not answer within {seconds:g} s")


async def _exchange(destinations: Destinations, request: httpx2.Request, most: int) -> httpx2.Response:
    # A few compressed bytes can stand for any number of others.
    request.headers["accept-encoding"] = "identity"
    *others, last = (await destinations.pinned(request))[:ADDRESSES_TRIED]
    # A client for each request: two names of one address must not share a connection that proved only one.
    async with await client_with(None, timeout=REQUEST_SECONDS) as client:
        for pinned in others:
            with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await _whole(client, pinned, request, destinations, most)
        return await _whole(client, last, request, destinations, most)


async def _whole(
    client: httpx2.AsyncClient,
    pinned: httpx2.Request,
    request: httpx2.Request,
    destinations: Destinations,
    most: int,
) -> httpx2.Response:
    response = await client.send(pinned, stream=True)
    destinations.heard_from(response)
    body = bytearray()
    try:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ExchangeError(f"{request.url.host} answered with compressed content, unasked")
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > most:
                raise ExchangeError(f"{request.url.host} answered with more than {most:,} bytes")
    finally:
        await response.aclose()
    content, headers = bytes(body), response.headers.raw
    if response.status_code not in (httpx2.codes.OK, httpx2.codes.CREATED):
        redact = _unrepeated(request)
        content, headers = redact(content), [(name, redact(value)) for name, value in headers]
    return httpx2.Response(response.status_code, headers=headers, content=content, request=request)


SECRET_FIELDS: Final = frozenset(
    {"code", "code_verifier", "client_secret", "client_assertion", "refresh_token", "token"}
)
"""Fields of a request that nobody else may see."""


def _unrepeated(request: httpx2.Request) -> Callable[[bytes], bytes]:
    """Return a function that removes the secrets of a request: some servers repeat it in a refusal."""
    fields = [*parse_qsl(request.content.decode()), ("code", request.headers.get("authorization", "")[6:])]
    redact = Redactor((name.replace("_", " "), value) for name, value in fields if name in SECRET_FIELDS)
    return lambda said: redact(said.decode(errors="replace")).encode()


def check_encrypted(url: str) -> None:
    """Refuse an address to which tokens would go as plain text.

    Raises `ExchangeError` if it is neither https nor this machine.
    """
    parts = httpx2.URL(url)
    if parts.scheme != "https" and not is_loopback(parts.host):
        where = parts.host or one_line(url, REASON_SHOWN)
        raise ExchangeError(f"{where} is not reached over https: tokens would be readable on the way")


def explained(error: BaseException) -> str:
    """Return the reason why a request to an authorization server failed, for a person."""
    text = str(error) or type(error).__name__
    if text.startswith("State parameter mismatch"):
        return "the response does not belong to our request (its state is wrong); try again"
    for answer, wanted in (("token", "token"), ("registration", "client")):
        # The SDK repeats the response, and so perhaps a token, or the secret of a client.
        if text.startswith(f"Invalid {answer} response"):
            return f"its authorization server gave no usable {wanted}"
    return one_line(text, REASON_SHOWN)


def reason(response: httpx2.Response) -> str:
    return one_line(
        f"its authorization server answered {response.status_code}: {response.text}", REASON_SHOWN
    )
