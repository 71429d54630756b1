"""Gets tokens from an authorization server: by the login of a person, or with the client's own secret.

The SDK's OAuth providers do discovery (RFC 9728, RFC 8414), registration, PKCE and the checks of state and
issuer. They are driven here, one request at a time, so that nothing is sent unencrypted and a login is
possible with a server that would respond without one. The browser of the person returns the result to a port
of this machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from anyio.abc import SocketAttribute, SocketStream
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
    TokenEndpointAuthMethod,
)
from pydantic import AnyUrl

from mcp_context_proxy.config import OAuthConfig, ServerConfig
from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.oauth.credentials import OAuthCredentials
from mcp_context_proxy.oauth.ssrf_guard import Destinations
from mcp_context_proxy.oauth.token_endpoint import (
    REQUEST_SECONDS,
    InMemoryTokenStorage,
    check_encrypted,
    exchange,
    explained,
    with_tokens,
)
from mcp_context_proxy.system import threads

CLIENT_NAME: Final = "MCP Context Proxy"

NO_OAUTH: Final = OAuthConfig()

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


@dataclass(frozen=True, slots=True)
class Person:
    """Ways to reach the person who logs in."""

    redirect_uri: str
    send: Callable[[str], Awaitable[None]]
    """Shows a URL to the person, or opens it in a browser."""
    answer: Callable[[], Awaitable[AuthorizationCodeResult]]
    """Waits for the result that the browser returns."""


async def log_in(config: ServerConfig, person: Person) -> OAuthCredentials:
    """Log in as a person, with the authorization code grant and PKCE.

    Raises:
        AuthorizationError: the login was refused, or is not possible.
    """
    settings = config.oauth or NO_OAUTH
    redirect = AnyUrl(person.redirect_uri)
    method: TokenEndpointAuthMethod | None = None
    if settings.client_id is not None:
        method = "client_secret_post" if settings.client_secret else "none"
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
    provider = LoginProvider(
        config.url or "", metadata, kept, redirect_handler=person.send, callback_handler=person.answer
    )
    provider.issuer, provider.scope = settings.issuer, settings.scope
    return await _drive(config, provider, kept)


async def log_in_as_client(config: ServerConfig) -> OAuthCredentials:
    """Log in with the client's own secret, without a person: the client credentials grant.

    Raises:
        AuthorizationError: the login was refused, or is not possible.
    """
    settings = config.oauth or NO_OAUTH
    kept = InMemoryTokenStorage()
    provider = SecretProvider(
        config.url or "",
        kept,
        settings.client_id or "",
        settings.client_secret or "",
        scope=settings.scope,
        issuer=settings.issuer,
    )
    return await _drive(config, provider, kept)


class LoginProvider(OAuthClientProvider):
    """The SDK's provider, bound to the configured issuer and scope."""

    issuer: str | None = None
    scope: str | None = None

    def _select_authorization_server(self, advertised: list[str]) -> str:
        if self.issuer is None:
            return advertised[0]
        for server in advertised:
            if server.rstrip("/") == self.issuer.rstrip("/"):
                return server
        raise OAuthFlowError(f"it names the authorization server {advertised[0]}, not {self.issuer}")

    async def _perform_authorization_code_grant(self) -> tuple[str, str]:
        if self.scope is not None:
            self.context.client_metadata.scope = self.scope
        return await super()._perform_authorization_code_grant()


class SecretProvider(ClientCredentialsOAuthProvider):
    """The SDK's provider for client credentials, with the configured scope."""

    async def _exchange_token_client_credentials(self) -> httpx2.Request:
        wanted = self._fixed_client_info.scope
        self.context.client_metadata.scope = wanted or self.context.client_metadata.scope
        return await super()._exchange_token_client_credentials()


async def _drive(
    config: ServerConfig, provider: OAuthClientProvider, kept: InMemoryTokenStorage
) -> OAuthCredentials:
    """Take a provider through its flow, as if the server had refused a request, up to the tokens.

    Raises:
        AuthorizationError: the login was refused, or is not possible.
    """
    url, destinations = config.url or "", Destinations(config)
    try:
        check_encrypted(url)
        request = httpx2.Request("GET", url, headers={"accept": "text/event-stream"})
        flow = provider.async_auth_flow(request)
        try:
            outgoing = await flow.__anext__()
            response = await _challenge(destinations, outgoing)
            while kept.tokens is None:
                outgoing = await flow.asend(response)
                if kept.tokens is None:
                    response = await exchange(destinations, outgoing)
        finally:
            await flow.aclose()
    except AuthorizationError:
        raise
    except Exception as error:
        # boundary: the SDK's flow, the network, and any response of the authorization server
        raise AuthorizationError(config.name, explained(error)) from None
    return _credentials(config, provider.context, kept.tokens, destinations)


async def _challenge(destinations: Destinations, request: httpx2.Request) -> httpx2.Response:
    """Return the server's refusal of a request without a token; made up if it does not refuse."""
    async with httpx2.AsyncClient(
        timeout=REQUEST_SECONDS, verify=await threads.trusted_certificates()
    ) as client:
        answer = await client.send(request, stream=True)
        destinations.heard_from(answer)
        await answer.aclose()
    headers = answer.headers if answer.status_code == 401 else None
    challenge = {} if headers is None else {"www-authenticate": headers.get("www-authenticate", "")}
    return httpx2.Response(401, headers=challenge, request=request)


def _credentials(
    config: ServerConfig, context: OAuthContext, tokens: OAuthToken | None, destinations: Destinations
) -> OAuthCredentials:
    metadata, client = context.oauth_metadata, context.client_info
    if metadata is None or client is None or tokens is None:
        raise AuthorizationError(config.name, "it publishes no authorization server (RFC 8414)")
    indicator = context.get_resource_url() if context.should_include_resource_param() else None
    bare = OAuthCredentials(
        server=config.name,
        resource=config.url or "",
        issuer=str(metadata.issuer),
        token_endpoint=str(metadata.token_endpoint),
        revocation_endpoint=None
        if metadata.revocation_endpoint is None
        else str(metadata.revocation_endpoint),
        client_id=client.client_id,
        client_secret=client.client_secret,
        auth_method=client.token_endpoint_auth_method,
        indicator=indicator,
        reach=destinations.reach,
        access_token="",
    )
    return with_tokens(bare, tokens)


@dataclass(slots=True)
class Loopback:
    """A port of this machine that waits for the result of a login."""

    server: str
    redirect_uri: str
    _query: dict[str, str] = field(default_factory=dict)
    _came: anyio.Event = field(default_factory=anyio.Event)

    async def answer(self) -> AuthorizationCodeResult:
        """Wait for the browser to return the result.

        Raises:
            AuthorizationError: the person or the authorization server has refused.
        """
        await self._came.wait()
        query = self._query
        if "error" in query:
            reason = ": ".join(query[key] for key in ("error", "error_description") if query.get(key))
            raise AuthorizationError(self.server, f"the login was refused ({reason})")
        return AuthorizationCodeResult(
            code=query.get("code", ""), state=query.get("state"), iss=query.get("iss")
        )

    async def serve(self, stream: SocketStream) -> None:
        """Answer one request of a browser, and note the result of a login in it."""
        async with stream:
            with anyio.move_on_after(HEAD_SECONDS):
                target = await _target(stream)
                if target is None or urlsplit(target).path != PATH:
                    await stream.send(_response("404 Not Found", "There is nothing here."))
                    return
                query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
                outcome = "The login was refused." if "error" in query else "You can close this page."
                await stream.send(_response("200 OK", f"{outcome} See the terminal for details."))
                if not self._came.is_set():
                    self._query = query
                    self._came.set()


@asynccontextmanager
async def listening(server: str, port: int) -> AsyncIterator[Loopback]:
    """Open a port for the result of a login; 0 takes a free one.

    Raises:
        AuthorizationError: the port cannot be opened.
    """
    try:
        listener = await anyio.create_tcp_listener(local_host=HOST, local_port=port)
    except OSError as error:
        raise AuthorizationError(
            server, f"port {port} cannot be opened ({error.strerror or error})"
        ) from None
    try:
        async with listener, anyio.create_task_group() as group:
            bound = listener.extra(SocketAttribute.local_port)
            loopback = Loopback(server, f"http://{HOST}:{bound}{PATH}")
            group.start_soon(listener.serve, loopback.serve)
            yield loopback
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        # A failed login is raised as it is, not wrapped by the task group that serves the port.
        raise failed.exceptions[0] from None


async def _target(stream: SocketStream) -> str | None:
    """Return the path and query of a GET request; None for anything else."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
        try:
            head += await stream.receive()
        except anyio.EndOfStream:
            return None
    method, _, rest = bytes(head).partition(b"\r\n")[0].partition(b" ")
    return rest.partition(b" ")[0].decode("ascii", "replace") if method == b"GET" else None


def _response(status: str, text: str) -> bytes:
    body = _PAGE.format(text).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
