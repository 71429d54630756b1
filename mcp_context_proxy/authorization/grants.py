"""Getting tokens from an authorization server: by having a person log in, or by a client's own secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    TokenEndpointAuthMethod,
)
from pydantic import AnyUrl

from mcp_context_proxy.authorization.credentials import Credentials
from mcp_context_proxy.authorization.flow import LoginProvider, SecretProvider, driven
from mcp_context_proxy.authorization.kept import Kept
from mcp_context_proxy.config import OAuthConfig, ServerConfig

CLIENT_NAME: Final = "MCP Context Proxy"

NO_OAUTH: Final = OAuthConfig()


@dataclass(frozen=True, slots=True)
class Person:
    """How the person who logs in is reached."""

    redirect_uri: str
    send: Callable[[str], Awaitable[None]]
    """Shows the person, or the person's browser, an address."""
    answer: Callable[[], Awaitable[AuthorizationCodeResult]]
    """Waits for what the browser brings back."""


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
    kept = Kept()
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
    return await driven(config, provider, kept)


async def prove_ourselves(config: ServerConfig) -> Credentials:
    """Get a token with the client's own secret, without a person: the client credentials grant.

    Raises:
        AuthorizationError: it was refused, or is not possible.
    """
    settings = config.oauth or NO_OAUTH
    kept = Kept()
    provider = SecretProvider(
        config.url or "",
        kept,
        settings.client_id or "",
        settings.client_secret or "",
        scope=settings.scope,
        issuer=settings.issuer,
    )
    return await driven(config, provider, kept)
