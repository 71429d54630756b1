"""Gets tokens: by the login of a person, whose browser comes back to a port here, or by a secret.

Any program of this machine and any web page can send something there. So a result counts only if it names
the host of the redirect URI and the state of the login; nothing else of it is read before that, and whatever
else comes neither ends the login nor appears anywhere.

The SDK's OAuth providers do discovery (RFC 9728, RFC 8414), registration, PKCE and the checks of state and
issuer. They are driven here, one request at a time, so that nothing is sent unencrypted and a login is
possible with a server that would respond without one. Metadata is checked before a client is registered or a
person is sent anywhere, and the person is told first where they are sent and which scopes are asked for.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TextIO, TypeAlias
from urllib.parse import parse_qs, parse_qsl, urlsplit

import anyio
import httpx2
import msgspec
from anyio.abc import SocketAttribute, SocketStream
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
    TokenEndpointAuthMethod,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from msgspec import Struct, field
from pydantic import AnyUrl, ValidationError

from mcp_context_proxy.config import OAuthConfig, ServerConfig
from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.oauth import OAuthCredentials
from mcp_context_proxy.oauth.bearer import client_with
from mcp_context_proxy.oauth.token_endpoint import (
    REASON_SHOWN,
    REQUEST_SECONDS,
    Destinations,
    TokenResponse,
    check_encrypted,
    error_of,
    exchange,
    explained,
    proof_by_key,
    scopes_beyond,
    too_slow,
    with_tokens,
)
from mcp_context_proxy.protocol import eras
from mcp_context_proxy.protocol.strangers import one_line, url_refusal
from mcp_context_proxy.system import threads

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"

HEAD_BYTES: Final = 32 * 1024
"""Limit of the head of a browser's request; codes are long, but not that long."""

HEAD_SECONDS: Final = 10.0
"""Time for the browser to send it."""

_PAGE: Final = (
    "<!doctype html><meta charset=utf-8><title>MCP Context Proxy</title>"
    "<p style='font: 1.2em sans-serif; margin: 3em'>{}</p>"
)

NOT_FOUND: Final = "404 Not Found", "There is nothing here."
NOT_OURS: Final = (
    "400 Bad Request",
    "This belongs to no login that is under way. Start the login again.",
)


class Loopback(Struct):
    """A port of this machine that waits for the result of a login."""

    server: str
    redirect_uri: str
    _state: bytes | None = None
    """State of the login that is under way."""
    _warned: bool = False
    _query: dict[str, str] = field(default_factory=dict)
    _came: anyio.Event = field(default_factory=anyio.Event)

    def expect(self, address: str) -> None:
        # The parameters of the login come after those that the authorization server may have put there.
        self._state = parse_qs(urlsplit(address).query)["state"][-1].encode()

    async def answer(self) -> AuthorizationCodeResult:
        """Wait for the browser to return the result.

        Raises `AuthorizationError` if the person or the authorization server has refused.
        """
        await self._came.wait()
        query = self._query
        if "error" in query:
            reason = ": ".join(query[key] for key in ("error", "error_description") if query.get(key))
            raise AuthorizationError(self.server, f"the login was refused ({one_line(reason, REASON_SHOWN)})")
        return AuthorizationCodeResult(
            code=query.get("code", ""), state=query.get("state"), iss=query.get("iss")
        )

    async def serve(self, stream: SocketStream) -> None:
        """Answer one request of a browser, and note the result of a login in it."""
        # A browser that goes away ends its connection, and not the login.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with stream:
                with anyio.move_on_after(HEAD_SECONDS):
                    await stream.send(_response(*self._take(await _head(stream))))

    async def read(self, typed: TextIO) -> None:
        """Take a result from a person who types the address at which a browser elsewhere has ended."""
        # Nobody types into something that is neither a terminal nor a pipe.
        with suppress(OSError, ValueError, NotImplementedError):
            descriptor, rest = typed.fileno(), b""
            while True:
                await anyio.wait_readable(descriptor)
                if not (read := os.read(descriptor, HEAD_BYTES)):
                    return
                *lines, rest = (rest + read)[-HEAD_BYTES:].split(b"\n")
                for line in lines:
                    place, _, query = line.strip().decode("ascii", "replace").partition("?")
                    head = (
                        f"GET {PATH}?{query} HTTP/1.1\r\nhost: {urlsplit(self.redirect_uri).netloc}\r\n\r\n"
                    )
                    if place != self.redirect_uri or self._take(head.encode()) == NOT_OURS:
                        logger.warning("%s: this is not the address at which this login ends", self.server)

    def _take(self, head: bytes | None) -> tuple[str, str]:
        """Note the result of a login in the head of a request; return the status and text of the response."""
        query = None if head is None else self._query_of(head)
        if query is None:
            return NOT_FOUND
        states = query.get("state", [])
        given = states[0].encode(errors="replace") if len(states) == 1 else b""
        if self._state is None or not secrets.compare_digest(given, self._state):
            if not self._warned:
                logger.warning("%s: ignored a result that belongs to no login under way", self.server)
            self._warned = True
            return NOT_OURS
        if any(len(values) > 1 for values in query.values()):
            return NOT_OURS
        if not self._came.is_set():
            self._query = {key: values[0] for key, values in query.items()}
            self._came.set()
        outcome = "The login was refused." if "error" in query else "You can close this page."
        return "200 OK", f"{outcome} See the terminal for details."

    def _query_of(self, head: bytes) -> dict[str, list[str]] | None:
        """Return the query of a GET request to the redirect URI; None for anything else."""
        first, *lines = head.partition(b"\r\n\r\n")[0].decode("ascii", "replace").split("\r\n")
        method, _, rest = first.partition(" ")
        headers = (line.partition(":") for line in lines)
        hosts = [value.strip() for name, _, value in headers if name.lower() == "host"]
        own = urlsplit(self.redirect_uri)
        if method != "GET" or hosts != [own.netloc]:
            return None
        try:
            target = urlsplit(rest.partition(" ")[0])
            return parse_qs(target.query, keep_blank_values=True) if target.path == own.path else None
        except ValueError:
            return None


@asynccontextmanager
async def listening(server: str, port: int, typed: TextIO | None = None) -> AsyncIterator[Loopback]:
    """Open a port for the result of a login; 0 takes a free one. It may be `typed` as well.

    Raises `AuthorizationError` if the port cannot be opened.
    """
    try:
        listener = await anyio.create_tcp_listener(local_host=HOST, local_port=port)
    except OSError as error:
        raise AuthorizationError(
            server, f"port {port} cannot be opened ({error.strerror or error})"
        ) from None
    try:
        async with listener:
            bound = listener.extra(SocketAttribute.local_port)
            loopback = Loopback(server, f"http://{HOST}:{bound}{PATH}")
            typing = () if typed is None else (partial(loopback.read, typed),)
            async with threads.alongside(partial(listener.serve, loopback.serve), *typing):
                yield loopback
    except BaseExceptionGroup as failed:
        # A failed login is raised as it is, not wrapped by the task group that serves the port.
        raise failed.exceptions[0] from None


async def _head(stream: SocketStream) -> bytes | None:
    """Return the head of a request; None if it does not come, or is too long."""
    head = bytearray()
    while b"\r\n\r\n" not in head:
        if len(head) >= HEAD_BYTES:
            return None
        try:
            head += await stream.receive()
        except anyio.EndOfStream:
            return None
    return bytes(head)


def _response(status: str, text: str) -> bytes:
    body = _PAGE.format(text).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


CLIENT_NAME: Final = "MCP Context Proxy"

PKCE_METHOD: Final = "S256"

IN_HEADER: Final = "client_secret_basic"
IN_FORM: Final = "client_secret_post"
"""Places of a client's secret in a request. Registered without a word, it is in the header (RFC 7591)."""

ISSUER_PATHS: Final = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")
"""Parts of the path of an authorization server's metadata."""


class LoginOffer(Struct, frozen=True):
    """A login that a person is about to make."""

    issuer: str
    scope: str | None
    """Scopes that are asked for, separated by spaces; None if none is named."""
    page: str
    """Host of the page that the person is sent to."""
    redeemer: str
    """Host that gets the answers of the page."""

    @property
    def is_elsewhere(self) -> bool:
        """True if the page is that of another than the issuer, who gets what the person confirms there."""
        return self.page != httpx2.URL(self.issuer).host


class InMemoryTokenStorage:
    """Storage of the SDK's provider for one flow: returns the client's registration, but no token."""

    def __init__(self) -> None:
        self.client: OAuthClientInformationFull | None = None
        self.tokens: OAuthToken | None = None
        self.audience: str | None = None
        """The authorization server, as a proof by the client's key names it; None for its issuer."""

    async def get_tokens(self) -> OAuthToken | None:
        """Return no token: each flow gets a new one."""
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


Tell: TypeAlias = Callable[[LoginOffer], Awaitable[None]]
"""Tells a person about a login before it goes on."""


async def _tell_nobody(offer: LoginOffer) -> None:
    del offer


async def log_in(
    config: ServerConfig,
    loopback: Loopback,
    show: Callable[[str], Awaitable[None]],
    tell: Tell = _tell_nobody,
) -> OAuthCredentials:
    """Log in as a person, with the authorization code grant and PKCE.

    `tell` tells the person about the login first. Then `show` shows a URL to the person, or opens it in a
    browser; the browser returns the result to `loopback`. Raises `AuthorizationError` if the login was
    refused, or is not possible.
    """
    settings = config.oauth or OAuthConfig()
    redirect = AnyUrl(loopback.redirect_uri)
    method: TokenEndpointAuthMethod | None = None
    if settings.client_id is not None:
        method = IN_FORM if settings.client_secret else "private_key_jwt" if settings.client_key else "none"
    metadata = OAuthClientMetadata(
        redirect_uris=[redirect],
        client_name=CLIENT_NAME,
        scope=settings.scope,
        token_endpoint_auth_method=method,
    )
    kept = InMemoryTokenStorage()
    if settings.client_id is not None:
        kept.client = OAuthClientInformationFull(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            redirect_uris=[redirect],
            token_endpoint_auth_method=method,
        )

    async def redirect_to(address: str) -> None:
        # A long one would push what the person was told out of sight.
        if refusal := url_refusal(address):
            raise OAuthFlowError(f"the address of the login cannot be used: {refusal}")
        loopback.expect(address)
        await show(address)

    provider = LoginProvider(
        config.url or "", metadata, kept, redirect_handler=redirect_to, callback_handler=loopback.answer
    )
    provider.server, provider.settings, provider.tell = config.name, settings, tell
    return await _drive(config, provider, kept)


async def log_in_as_client(config: ServerConfig) -> OAuthCredentials:
    """Log in with the client's own secret, without a person: the client credentials grant.

    Raises `AuthorizationError` if the login was refused, or is not possible.
    """
    settings = config.oauth or OAuthConfig()
    kept = InMemoryTokenStorage()
    provider = ClientCredentialsOAuthProvider(
        config.url or "",
        kept,
        settings.client_id or "",
        settings.client_secret or "",
        issuer=settings.issuer,
    )
    return await _drive(config, provider, kept)


class LoginProvider(OAuthClientProvider):
    """The SDK's provider, bound to the configured issuer and scope."""

    server: str = ""
    settings: OAuthConfig = OAuthConfig()
    tell: Tell = staticmethod(_tell_nobody)

    def check_issuer(self) -> OAuthMetadata:
        """Return the metadata of the authorization server.

        Raises `OAuthFlowError` if there is none, or a login there would not be safe.
        """
        metadata = self.context.oauth_metadata
        if metadata is None:
            raise OAuthFlowError("it publishes no authorization server (RFC 8414)")
        # Also that of a server without metadata, which is one itself.
        if not self._may_be(str(metadata.issuer)):
            raise OAuthFlowError(f"its authorization server is {metadata.issuer}, not {self.settings.issuer}")
        page = str(metadata.authorization_endpoint)
        check_encrypted(page)
        if (parts := httpx2.URL(page)).userinfo or parts.fragment:
            raise OAuthFlowError("the address of its login page has a user name or a fragment")
        # An issuer of the configuration may be anywhere.
        if refusal := url_refusal(page, self.settings.issuer or self.context.server_url):
            raise OAuthFlowError(f"the address of its login page cannot be used: {refusal}")
        # A person is told where a login leads by it.
        if refusal := url_refusal(str(metadata.issuer)):
            raise OAuthFlowError(f"the name of its authorization server cannot be used: {refusal}")
        methods = metadata.code_challenge_methods_supported
        if methods is not None and PKCE_METHOD not in methods:
            raise OAuthFlowError(f"its authorization server does not support PKCE with {PKCE_METHOD}")
        if methods is None and not self.settings.assume_pkce:
            raise OAuthFlowError(
                "its authorization server does not say that it supports PKCE (its metadata has no "
                "code_challenge_methods_supported). If you know that it does, set oauth.assume_pkce = true "
                f"under servers.{self.server}"
            )
        return metadata

    def _select_authorization_server(self, advertised: list[str]) -> str:
        return next(filter(self._may_be, advertised), advertised[0])

    def _may_be(self, issuer: str) -> bool:
        """Return whether an authorization server is the one that the configuration names, if it does."""
        wanted = self.settings.issuer
        return wanted is None or issuer.rstrip("/") == wanted.rstrip("/")

    async def _perform_authorization_code_grant(self) -> tuple[str, str]:
        metadata, client = self.check_issuer(), self.context.client_info
        wanted = self.context.client_metadata
        if self.settings.scope is not None:
            wanted.scope = self.settings.scope
        elif client is not None and client.scope and wanted.scope:
            # An issuer may register less than it was asked for, and refuses a login that asks for more.
            fitting = [scope for scope in wanted.scope.split() if scope in client.scope.split()]
            wanted.scope = " ".join(fitting) or wanted.scope
        if client is not None and client.client_secret:
            client.token_endpoint_auth_method = client.token_endpoint_auth_method or IN_HEADER
        page, redeemer = (
            httpx2.URL(str(each)).host for each in (metadata.authorization_endpoint, metadata.token_endpoint)
        )
        await self.tell(LoginOffer(str(metadata.issuer), wanted.scope, page, redeemer))
        return await super()._perform_authorization_code_grant()


async def _drive(
    config: ServerConfig, provider: OAuthClientProvider, kept: InMemoryTokenStorage
) -> OAuthCredentials:
    """Take a provider through its flow, as if the server had refused a request, up to the tokens."""
    url, destinations = config.url or "", Destinations(config)
    try:
        check_encrypted(url)
        if (resource := None if config.oauth is None else config.oauth.resource) is not None:
            provider.context.get_resource_url = lambda: resource  # type: ignore[method-assign]
            names_it = bool(resource)
            provider.context.should_include_resource_param = lambda protocol_version=None: names_it  # type: ignore[method-assign]
        if config.oauth is not None and config.oauth.client_key is not None:
            provider.context.prepare_token_auth = partial(  # type: ignore[method-assign]
                _with_proof, config.oauth, provider.context, kept
            )
        # The version has the SDK name the server in each request for a token (RFC 8707), come what may.
        version = {MCP_PROTOCOL_VERSION_HEADER: eras.HANDSHAKE_VERSION}
        request = httpx2.Request("GET", url, headers={"accept": "text/event-stream", **version})
        flow = provider.async_auth_flow(request)
        try:
            outgoing = await flow.__anext__()
            response = await _challenge(config, destinations, outgoing)
            while kept.tokens is None:
                outgoing = await flow.asend(response)
                if kept.tokens is None:
                    if outgoing.method == "POST" and isinstance(provider, LoginProvider):
                        # Before a client is registered.
                        provider.check_issuer()
                    response = await exchange(destinations, outgoing)
                    if error_of(response) == "invalid_client":
                        again = _with_other_proof(config, provider.context, kept, outgoing)
                        response = response if again is None else await exchange(destinations, again)
                    _check_resource_metadata(provider.context, outgoing, response)
        finally:
            await flow.aclose()
    except AuthorizationError:
        raise
    except Exception as error:
        # boundary: the SDK's flow, the network, and any response of the authorization server
        cause = explained(error)
        if isinstance(error, OAuthRegistrationError):
            cause += (
                f". Have its operator register a client for http://{HOST}:PORT{PATH}, with a port of your "
                f"choice, and set oauth.client_id and oauth.redirect_port under servers.{config.name}"
            )
        raise AuthorizationError(config.name, cause) from None
    return _credentials(config, provider.context, kept, destinations)


def _with_proof(
    settings: OAuthConfig,
    context: OAuthContext,
    kept: InMemoryTokenStorage,
    data: dict[str, str],
    headers: dict[str, str] | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return fields and headers of a request for a token, with the proof by the client's key."""
    audience = kept.audience or str(context.oauth_metadata and context.oauth_metadata.issuer)
    return data | proof_by_key(settings, audience), headers or {}


def _with_other_proof(
    config: ServerConfig, context: OAuthContext, kept: InMemoryTokenStorage, request: httpx2.Request
) -> httpx2.Request | None:
    """Return a request for a token with another proof of the client; None if there is none.

    Many issuers take a secret at one place only, and only some say at which. A proof by a key names the
    issuer, and was for the endpoint before that was found unsafe with several issuers: ours is configured.
    """
    client, metadata = context.client_info, context.oauth_metadata
    if client is None or metadata is None or request.method != "POST":
        return None
    if config.oauth is not None and config.oauth.client_key is not None:
        kept.audience = str(metadata.token_endpoint)
    elif client.client_secret:
        method = client.token_endpoint_auth_method
        client.token_endpoint_auth_method = IN_FORM if method == IN_HEADER else IN_HEADER
    else:
        return None
    fields = {name: value for name, value in parse_qsl(request.content.decode()) if name != "client_secret"}
    data, headers = context.prepare_token_auth(fields, {})
    return httpx2.Request("POST", request.url, data=data, headers=headers)


def _check_resource_metadata(
    context: OAuthContext, request: httpx2.Request, response: httpx2.Response
) -> None:
    """Refuse broken metadata of the server, which the SDK would take for none.

    Raises `OAuthFlowError` if the response is metadata that cannot be used.
    """
    known = context.protected_resource_metadata is not None or context.oauth_metadata is not None
    of_issuer = any(path in request.url.path for path in ISSUER_PATHS)
    if known or of_issuer or request.method != "GET" or response.status_code != httpx2.codes.OK:
        return
    is_json = "json" in response.headers.get("content-type", "") or response.content.lstrip()[:1] == b"{"
    try:
        ProtectedResourceMetadata.model_validate_json(response.content)
    except ValidationError as error:
        if not is_json:
            # Many servers have a page for every address.
            return
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise OAuthFlowError(
            f"its metadata at {request.url} cannot be used (RFC 9728): {place}: {first['msg']}"
        ) from None


async def _challenge(
    config: ServerConfig, destinations: Destinations, request: httpx2.Request
) -> httpx2.Response:
    """Return the server's refusal of a request without a token; made up if it does not refuse.

    It names the configured scopes first: a client is also registered for those that a refusal names.
    """
    answer = None
    with anyio.move_on_after(REQUEST_SECONDS):
        async with await client_with(config.tls, timeout=REQUEST_SECONDS) as client:
            answer = await client.send(request, stream=True)
            destinations.heard_from(answer)
            await answer.aclose()
    if answer is None:
        raise too_slow(request)
    challenge = answer.headers.get("www-authenticate", "") if answer.status_code == 401 else ""
    if config.oauth is not None and config.oauth.scope is not None:
        challenge = f'Bearer scope="{config.oauth.scope}", {challenge}'
    return httpx2.Response(401, headers={"www-authenticate": challenge}, request=request)


def _credentials(
    config: ServerConfig, context: OAuthContext, kept: InMemoryTokenStorage, destinations: Destinations
) -> OAuthCredentials:
    metadata, client, tokens = context.oauth_metadata, context.client_info, kept.tokens
    if metadata is None or client is None or tokens is None:
        raise AuthorizationError(config.name, "it publishes no authorization server (RFC 8414)")
    asked = context.client_metadata.scope
    if asked is not None and (more := scopes_beyond(tokens.scope, asked)):
        logger.warning("%s: the login was given scopes that nobody asked for: %s", config.name, more)
    revocation = metadata.revocation_endpoint
    bare = OAuthCredentials(
        server=config.name,
        resource=config.url or "",
        issuer=str(metadata.issuer),
        token_endpoint=str(metadata.token_endpoint),
        revocation_endpoint=None if revocation is None else str(revocation),
        client_id=client.client_id,
        client_secret=client.client_secret,
        auth_method=client.token_endpoint_auth_method,
        audience=kept.audience,
        indicator=context.get_resource_url() or None,
        reach=destinations.reach,
        asked=asked,
        access_token="",
    )
    return with_tokens(bare, msgspec.convert(tokens.model_dump(), TokenResponse))
