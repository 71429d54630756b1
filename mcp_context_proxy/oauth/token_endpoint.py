"""Tokens that we have: new ones for a refresh token, and giving them back.

One request to an authorization server: encrypted, where it may go, bounded in time and size.

What the SDK would store, for the length of one conversation with an authorization server.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from typing import Final

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import ValidationError

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.oauth.credentials import OAuthCredentials
from mcp_context_proxy.oauth.ssrf_guard import Destinations, NetworkReach
from mcp_context_proxy.protocol.text import clean
from mcp_context_proxy.system import threads
from mcp_context_proxy.system.clock import time_of_day

REQUEST_SECONDS: Final = 15.0
"""For one answer of an authorization server."""

ANSWER_BYTES: Final = 1024 * 1024
"""Of one such answer; an honest one has a few kilobytes."""

ADDRESSES_TRIED: Final = 3
"""Of a host that has several; more would only make one that is down take longer."""

REASON_SHOWN: Final = 300
"""Characters of a foreign explanation that are passed on."""


async def exchange(destinations: Destinations, request: httpx2.Request) -> httpx2.Response:
    """Send a request; its whole answer.

    Raises:
        OAuthFlowError: it may not go there, tokens would be readable on the way, or the answer is too large.
        httpx2.HTTPError: there is no answer.
        OSError: the host is not known.
    """
    check_encrypted(str(request.url))
    *others, last = (await destinations.pinned(request))[:ADDRESSES_TRIED]
    # A client for each: two names of one address must not share a connection that only one has proved.
    async with httpx2.AsyncClient(
        timeout=REQUEST_SECONDS, verify=await threads.trusted_certificates()
    ) as client:
        for pinned in others:
            with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await _whole(client, pinned, request, destinations)
        return await _whole(client, last, request, destinations)


async def _whole(
    client: httpx2.AsyncClient,
    pinned: httpx2.Request,
    request: httpx2.Request,
    destinations: Destinations,
) -> httpx2.Response:
    answer = await client.send(pinned, stream=True)
    destinations.heard_from(answer)
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
    """Why a request to an authorization server failed, for a person."""
    text = str(error) or type(error).__name__
    if text.startswith("State parameter mismatch"):
        return "the answer that came back was not to our question (its state is wrong); try again"
    return clean(text)[:REASON_SHOWN]


def reason(answer: httpx2.Response) -> str:
    """What an authorization server said when it refused, for a person."""
    return clean(f"its authorization server answered {answer.status_code}: {answer.text}")[:REASON_SHOWN]


class InMemoryTokenStorage:
    """The SDK's storage; it gives the client's registration back, and no token."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self.client = client
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Nothing: each conversation begins anew."""
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep what the conversation was for."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The registration, if there is one."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a new registration."""
        self.client = client_info


logger = logging.getLogger(__name__)

EARLY_SECONDS: Final = 30.0
"""Before a token expires it is renewed: longer than any request is on its way."""

EARLY_SHARE: Final = 0.25
"""Of a token's life at most, so that one that lives for seconds is not renewed with each request."""


class GrantRefusedError(AuthorizationError):
    """The authorization server has taken the refresh token back: only a new login helps."""


async def refresh(config: ServerConfig, credentials: OAuthCredentials) -> OAuthCredentials:
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
        raise GrantRefusedError(credentials.server, reason(answer))
    if not answer.is_success:
        raise AuthorizationError(credentials.server, reason(answer))
    try:
        tokens = OAuthToken.model_validate_json(answer.content)
    except ValidationError:
        raise AuthorizationError(
            credentials.server, "its authorization server gave no usable token"
        ) from None
    return with_tokens(credentials, tokens)


async def revoke(config: ServerConfig, credentials: OAuthCredentials) -> bool:
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


def with_tokens(credentials: OAuthCredentials, tokens: OAuthToken) -> OAuthCredentials:
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
    return OAuthCredentials(**fields)


async def _ask_as_client(
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
        # boundary: the network, and whatever the authorization server answered
        raise AuthorizationError(credentials.server, explained(error)) from None
