"""Requests to the endpoints of an authorization server: renews and revokes tokens.

Each request is encrypted, goes only to allowed addresses, and is bounded in time and size.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from typing import Final

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import ValidationError

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.oauth.credentials import OAuthCredentials
from mcp_context_proxy.oauth.ssrf_guard import Destinations, NetworkReach
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system import threads
from mcp_context_proxy.system.process import time_of_day

logger = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 15.0
"""Timeout of one request to an authorization server."""

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


class GrantRefusedError(AuthorizationError):
    """Raised when the refresh token is no longer valid, so that only a new login helps."""


async def refresh(config: ServerConfig, credentials: OAuthCredentials) -> OAuthCredentials:
    """Return credentials with new tokens for the refresh token.

    Raises:
        GrantRefusedError: the refresh token is no longer valid.
        AuthorizationError: the authorization server cannot be reached, or its response cannot be used.
    """
    data = {
        "grant_type": "refresh_token",
        "refresh_token": credentials.refresh_token or "",
        "client_id": credentials.client_id,
    }
    if credentials.indicator is not None:
        data["resource"] = credentials.indicator
    response = await _post_as_client(config, credentials, credentials.token_endpoint, data)
    if response.status_code in {400, 401}:
        raise GrantRefusedError(credentials.server, reason(response))
    if not response.is_success:
        raise AuthorizationError(credentials.server, reason(response))
    try:
        tokens = OAuthToken.model_validate_json(response.content)
    except ValidationError:
        raise AuthorizationError(
            credentials.server, "its authorization server gave no usable token"
        ) from None
    if credentials.scope is not None and (more := scopes_beyond(tokens.scope, credentials.scope)):
        logger.warning("%s: the new token has scopes that the login had not: %s", credentials.server, more)
    return with_tokens(credentials, tokens)


def scopes_beyond(given: str | None, known: str | None) -> str:
    """Return the scopes in `given` that are not in `known`, for a person."""
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


def with_tokens(credentials: OAuthCredentials, tokens: OAuthToken) -> OAuthCredentials:
    """Return the credentials with new tokens; fields that the response leaves out stay as they were."""
    lasts, now = tokens.expires_in, time_of_day()
    return msgspec.structs.replace(
        credentials,
        access_token=tokens.access_token,
        expires_at=None if lasts is None else now + lasts,
        renew_at=None if lasts is None else now + lasts - min(EARLY_SECONDS, EARLY_SHARE * lasts),
        refresh_token=tokens.refresh_token or credentials.refresh_token,
        scope=tokens.scope or credentials.scope,
    )


async def _post_as_client(
    config: ServerConfig, credentials: OAuthCredentials, url: str, data: dict[str, str]
) -> httpx2.Response:
    context = OAuthContext(
        credentials.resource, OAuthClientMetadata(redirect_uris=None), InMemoryTokenStorage(), None, None
    )
    context.client_info = OAuthClientInformationFull(
        client_id=credentials.client_id,
        client_secret=credentials.client_secret,
        token_endpoint_auth_method=credentials.auth_method,
    )
    try:
        destinations = Destinations(config, NetworkReach(credentials.reach))
        data, headers = context.prepare_token_auth(data, {})
        return await exchange(destinations, httpx2.Request("POST", url, data=data, headers=headers))
    except Exception as error:
        # boundary: the network, and any response of the authorization server
        raise AuthorizationError(credentials.server, explained(error)) from None


async def exchange(
    destinations: Destinations, request: httpx2.Request, most: int = ANSWER_BYTES
) -> httpx2.Response:
    """Send a request and return its whole response, of at most so many bytes.

    Raises:
        OAuthFlowError: the address is not allowed or not encrypted, or the response is too large.
        httpx2.HTTPError: there is no response.
        OSError: the host is not known.
    """
    check_encrypted(str(request.url))
    # A few compressed bytes can stand for any number of others.
    request.headers["accept-encoding"] = "identity"
    *others, last = (await destinations.pinned(request))[:ADDRESSES_TRIED]
    # A client for each request: two names of one address must not share a connection that proved only one.
    async with httpx2.AsyncClient(
        timeout=REQUEST_SECONDS, verify=await threads.trusted_certificates()
    ) as client:
        for pinned in others:
            with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
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
            raise OAuthFlowError(f"{request.url.host} answered with compressed content, unasked")
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > most:
                raise OAuthFlowError(f"{request.url.host} answered with more than {most:,} bytes")
    finally:
        await response.aclose()
    return httpx2.Response(
        response.status_code, headers=response.headers, content=bytes(body), request=request
    )


def check_encrypted(url: str) -> None:
    """Refuse an address to which tokens would go as plain text.

    Raises:
        OAuthFlowError: it is neither https nor this machine.
    """
    parts = httpx2.URL(url)
    if parts.scheme != "https" and not _is_loopback(parts.host):
        raise OAuthFlowError(f"{parts.host} is not reached over https: tokens would be readable on the way")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def explained(error: BaseException) -> str:
    """Return the reason why a request to an authorization server failed, for a person."""
    text = str(error) or type(error).__name__
    if text.startswith("State parameter mismatch"):
        return "the response does not belong to our request (its state is wrong); try again"
    if text.startswith("Invalid token response"):
        # The SDK repeats the response, and so perhaps a token.
        return "its authorization server gave no usable token"
    return one_line(text, REASON_SHOWN)


def reason(response: httpx2.Response) -> str:
    """Return the explanation of an authorization server that refused, for a person."""
    return one_line(
        f"its authorization server answered {response.status_code}: {response.text}", REASON_SHOWN
    )


class InMemoryTokenStorage:
    """Storage of the SDK's provider for one flow: returns the client's registration, but no token."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self.client = client
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Return no token: each flow gets a new one."""
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens that the flow was for."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registration, if there is one."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a new registration."""
        self.client = client_info
