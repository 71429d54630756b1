"""Tokens that we have: new ones for a refresh token, and giving them back."""

from __future__ import annotations

import logging
from typing import Final

import httpx2
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import ValidationError

from mcp_context_proxy.authorization.credentials import Credentials
from mcp_context_proxy.authorization.exchange import exchange, explained, reason
from mcp_context_proxy.authorization.kept import Kept
from mcp_context_proxy.authorization.reach import Destinations, Reach
from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.errors import AuthorizationError

logger = logging.getLogger(__name__)

EARLY_SECONDS: Final = 30.0
"""Before a token expires it is renewed: longer than any request is on its way."""

EARLY_SHARE: Final = 0.25
"""Of a token's life at most, so that one that lives for seconds is not renewed with each request."""


class RefusedError(AuthorizationError):
    """The authorization server has taken the refresh token back: only a new login helps."""


async def refresh(config: ServerConfig, credentials: Credentials) -> Credentials:
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
    answer = await _ask_as_client(config, credentials, credentials.token_endpoint, data)
    if answer.status_code in {400, 401}:
        raise RefusedError(credentials.server, reason(answer))
    if not answer.is_success:
        raise AuthorizationError(credentials.server, reason(answer))
    try:
        tokens = OAuthToken.model_validate_json(answer.content)
    except ValidationError:
        raise AuthorizationError(
            credentials.server, "its authorization server gave no usable token"
        ) from None
    return with_tokens(credentials, tokens)


async def revoke(config: ServerConfig, credentials: Credentials) -> bool:
    """Ask the authorization server to forget the tokens; whether it said that it has."""
    if credentials.revocation_endpoint is None:
        return False
    token = credentials.refresh_token or credentials.access_token
    data = {"token": token, "client_id": credentials.client_id}
    try:
        answer = await _ask_as_client(config, credentials, credentials.revocation_endpoint, data)
        return answer.is_success
    except AuthorizationError as error:
        logger.debug("%s", error)
        return False


def with_tokens(credentials: Credentials, tokens: OAuthToken) -> Credentials:
    """The credentials with new tokens; what the answer leaves out stays as it was."""
    lasts, now = tokens.expires_in, time_of_day()
    fields = {name: getattr(credentials, name) for name in credentials.__struct_fields__}
    fields |= {
        "access_token": tokens.access_token,
        "expires_at": None if lasts is None else now + lasts,
        "renew_at": None if lasts is None else now + lasts - min(EARLY_SECONDS, EARLY_SHARE * lasts),
        "refresh_token": tokens.refresh_token or credentials.refresh_token,
        "scope": tokens.scope or credentials.scope,
    }
    return Credentials(**fields)


async def _ask_as_client(
    config: ServerConfig, credentials: Credentials, url: str, data: dict[str, str]
) -> httpx2.Response:
    context = OAuthContext(credentials.resource, OAuthClientMetadata(redirect_uris=None), Kept(), None, None)
    context.client_info = OAuthClientInformationFull(
        client_id=credentials.client_id,
        client_secret=credentials.client_secret,
        token_endpoint_auth_method=credentials.auth_method,
    )
    try:
        destinations = Destinations(config, Reach(credentials.reach))
        data, headers = context.prepare_token_auth(data, {})
        return await exchange(destinations, httpx2.Request("POST", url, data=data, headers=headers))
    except Exception as error:
        # boundary: the network, and whatever the authorization server answered
        raise AuthorizationError(credentials.server, explained(error)) from None
