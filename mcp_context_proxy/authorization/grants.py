"""Getting tokens from an authorization server: by logging in, by a client's own secret, by a refresh token.

Discovery (RFC 9728, RFC 8414), registration, PKCE and the checks of state and issuer are the SDK's; its
providers are driven here one request at a time, so that nothing goes out unencrypted and a login can be done
with a server that would answer without one.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import httpx2
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
from pydantic import AnyUrl, ValidationError

from mcp_context_proxy.authorization.credentials import Credentials
from mcp_context_proxy.config import OAuthConfig, ServerConfig
from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.wire.text import clean

logger = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 15.0
"""For one answer of an authorization server."""

ANSWER_BYTES: Final = 1024 * 1024
"""Of one such answer; an honest one has a few kilobytes."""

EARLY_SECONDS: Final = 30.0
"""Before a token expires it is renewed: longer than any request is on its way."""

EARLY_SHARE: Final = 0.25
"""Of a token's life at most, so that one that lives for seconds is not renewed with each request."""

REASON_SHOWN: Final = 300
"""Characters of a foreign explanation that are passed on."""

CLIENT_NAME: Final = "MCP Context Proxy"

NO_OAUTH: Final = OAuthConfig()


class RefusedError(AuthorizationError):
    """The authorization server has taken the refresh token back: only a new login helps."""


@dataclass(frozen=True, slots=True)
class Person:
    """How the person who logs in is reached."""

    redirect_uri: str
    send: Callable[[str], Awaitable[None]]
    """Shows the person, or the person's browser, an address."""
    answer: Callable[[], Awaitable[AuthorizationCodeResult]]
    """Waits for what the browser brings back."""


class _Kept:
    """The SDK's storage for the length of one login."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self.client = client
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def log_in(config: ServerConfig, person: Person) -> Credentials:
    """Have a person allow us to use the server: the authorization code grant with PKCE.

    Raises:
        AuthorizationError: it was refused, or is not possible.
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
    kept = _Kept()
    if settings.client_id is not None:
        kept.client = OAuthClientInformationFull(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            redirect_uris=[redirect],
            token_endpoint_auth_method=method,
        )
    provider = _LoginProvider(
        config.url or "", metadata, kept, redirect_handler=person.send, callback_handler=person.answer
    )
    provider.issuer, provider.scope = settings.issuer, settings.scope
    return await _driven(config, provider, kept)


async def prove_ourselves(config: ServerConfig) -> Credentials:
    """Get a token with the client's own secret, without a person: the client credentials grant.

    Raises:
        AuthorizationError: it was refused, or is not possible.
    """
    settings = config.oauth or NO_OAUTH
    kept = _Kept()
    provider = _SecretProvider(
        config.url or "",
        kept,
        settings.client_id or "",
        settings.client_secret or "",
        scope=settings.scope,
        issuer=settings.issuer,
    )
    return await _driven(config, provider, kept)


async def refresh(credentials: Credentials) -> Credentials:
    """New tokens for a refresh token.

    Raises:
        RefusedError: the refresh token is no longer good.
        AuthorizationError: the authorization server cannot be asked now.
    """
    data = {
        "grant_type": "refresh_token",
        "refresh_token": credentials.refresh_token or "",
        "client_id": credentials.client_id,
    }
    if credentials.indicator is not None:
        data["resource"] = credentials.indicator
    answer = await _ask_as_client(credentials, credentials.token_endpoint, data)
    if answer.status_code in {400, 401}:
        raise RefusedError(credentials.server, _reason(answer))
    if not answer.is_success:
        raise AuthorizationError(credentials.server, _reason(answer))
    try:
        tokens = OAuthToken.model_validate_json(answer.content)
    except ValidationError:
        raise AuthorizationError(
            credentials.server, "its authorization server gave no usable token"
        ) from None
    return _with(credentials, tokens)


async def revoke(credentials: Credentials) -> bool:
    """Ask the authorization server to forget the tokens; whether it said that it has."""
    if credentials.revocation_endpoint is None:
        return False
    token = credentials.refresh_token or credentials.access_token
    data = {"token": token, "client_id": credentials.client_id}
    try:
        return (await _ask_as_client(credentials, credentials.revocation_endpoint, data)).is_success
    except AuthorizationError as error:
        logger.debug("%s", error)
        return False


class _LoginProvider(OAuthClientProvider):
    """The SDK's provider, held to what is configured."""

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


class _SecretProvider(ClientCredentialsOAuthProvider):
    """The SDK's provider; a scope that is configured is asked for."""

    async def _exchange_token_client_credentials(self) -> httpx2.Request:
        wanted = self._fixed_client_info.scope
        self.context.client_metadata.scope = wanted or self.context.client_metadata.scope
        return await super()._exchange_token_client_credentials()


async def _driven(config: ServerConfig, provider: OAuthClientProvider, kept: _Kept) -> Credentials:
    """Take a provider through its flow as if the server had refused us, up to the tokens."""
    url = config.url or ""
    try:
        _check_encrypted(url)
        async with httpx2.AsyncClient(timeout=REQUEST_SECONDS) as client:
            request = client.build_request("GET", url, headers={"accept": "text/event-stream"})
            flow = provider.async_auth_flow(request)
            try:
                outgoing = await flow.__anext__()
                response = await _challenge(client, outgoing)
                while kept.tokens is None:
                    outgoing = await flow.asend(response)
                    if kept.tokens is None:
                        response = await _exchange(client, outgoing)
            finally:
                await flow.aclose()
    except AuthorizationError:
        raise
    except Exception as error:
        # boundary: the SDK's flow, the network, and whatever the authorization server answered
        raise AuthorizationError(config.name, _explained(error)) from None
    return _credentials(config, provider.context, kept.tokens)


async def _challenge(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """How the server refuses a request without a token; one that does not refuse is taken to."""
    answer = await client.send(request, stream=True)
    await answer.aclose()
    headers = answer.headers if answer.status_code == 401 else None
    challenge = {} if headers is None else {"www-authenticate": headers.get("www-authenticate", "")}
    return httpx2.Response(401, headers=challenge, request=request)


async def _exchange(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    _check_encrypted(str(request.url))
    answer = await client.send(request, stream=True)
    body = bytearray()
    try:
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES:
                raise OAuthFlowError(f"{request.url.host} answered with more than {ANSWER_BYTES:,} bytes")
    finally:
        await answer.aclose()
    plain = {key: value for key, value in answer.headers.items() if key != "content-encoding"}
    return httpx2.Response(answer.status_code, headers=plain, content=bytes(body), request=request)


def _check_encrypted(url: str) -> None:
    parts = httpx2.URL(url)
    if parts.scheme != "https" and not _is_loopback(parts.host):
        raise OAuthFlowError(f"{parts.host} is not reached over https: tokens would be readable on the way")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _ask_as_client(credentials: Credentials, url: str, data: dict[str, str]) -> httpx2.Response:
    context = OAuthContext(credentials.resource, OAuthClientMetadata(redirect_uris=None), _Kept(), None, None)
    context.client_info = OAuthClientInformationFull(
        client_id=credentials.client_id,
        client_secret=credentials.client_secret,
        token_endpoint_auth_method=credentials.auth_method,
    )
    try:
        data, headers = context.prepare_token_auth(data, {})
        async with httpx2.AsyncClient(timeout=REQUEST_SECONDS) as client:
            return await _exchange(client, client.build_request("POST", url, data=data, headers=headers))
    except Exception as error:
        # boundary: the network, and whatever the authorization server answered
        raise AuthorizationError(credentials.server, _explained(error)) from None


def _credentials(config: ServerConfig, context: OAuthContext, tokens: OAuthToken | None) -> Credentials:
    metadata, client = context.oauth_metadata, context.client_info
    if metadata is None or client is None or tokens is None:
        raise AuthorizationError(config.name, "it publishes no authorization server (RFC 8414)")
    indicator = context.get_resource_url() if context.should_include_resource_param() else None
    bare = Credentials(
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
        access_token="",
    )
    return _with(bare, tokens)


def _with(credentials: Credentials, tokens: OAuthToken) -> Credentials:
    """The credentials with new tokens; what the answer leaves out stays as it was."""
    lasts, now = tokens.expires_in, time.time()
    fields = {name: getattr(credentials, name) for name in credentials.__struct_fields__}
    fields |= {
        "access_token": tokens.access_token,
        "expires_at": None if lasts is None else now + lasts,
        "renew_at": None if lasts is None else now + lasts - min(EARLY_SECONDS, EARLY_SHARE * lasts),
        "refresh_token": tokens.refresh_token or credentials.refresh_token,
        "scope": tokens.scope or credentials.scope,
    }
    return Credentials(**fields)


def _explained(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if text.startswith("State parameter mismatch"):
        return "the answer that came back was not to our question (its state is wrong); try again"
    return clean(text)[:REASON_SHOWN]


def _reason(answer: httpx2.Response) -> str:
    return clean(f"its authorization server answered {answer.status_code}: {answer.text}")[:REASON_SHOWN]
