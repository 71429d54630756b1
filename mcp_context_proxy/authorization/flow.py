"""Takes the SDK's OAuth providers through their flow, one request at a time, up to the tokens.

Discovery (RFC 9728, RFC 8414), registration, PKCE and the checks of state and issuer are theirs. They are
driven here so that nothing goes out unencrypted and a login can be done with a server that would answer
without one.
"""

from __future__ import annotations

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthToken

from mcp_context_proxy.authorization.credentials import Credentials
from mcp_context_proxy.authorization.exchange import REQUEST_SECONDS, check_encrypted, exchange, explained
from mcp_context_proxy.authorization.kept import Kept
from mcp_context_proxy.authorization.reach import Destinations
from mcp_context_proxy.authorization.tokens import with_tokens
from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.wire import certificates


class LoginProvider(OAuthClientProvider):
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


class SecretProvider(ClientCredentialsOAuthProvider):
    """The SDK's provider; a scope that is configured is asked for."""

    async def _exchange_token_client_credentials(self) -> httpx2.Request:
        wanted = self._fixed_client_info.scope
        self.context.client_metadata.scope = wanted or self.context.client_metadata.scope
        return await super()._exchange_token_client_credentials()


async def driven(config: ServerConfig, provider: OAuthClientProvider, kept: Kept) -> Credentials:
    """Take a provider through its flow as if the server had refused us, up to the tokens.

    Raises:
        AuthorizationError: it was refused, or is not possible.
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
        # boundary: the SDK's flow, the network, and whatever the authorization server answered
        raise AuthorizationError(config.name, explained(error)) from None
    return _credentials(config, provider.context, kept.tokens, destinations)


async def _challenge(destinations: Destinations, request: httpx2.Request) -> httpx2.Response:
    """How the server refuses a request without a token; one that does not refuse is taken to."""
    async with httpx2.AsyncClient(timeout=REQUEST_SECONDS, verify=await certificates.trusted()) as client:
        answer = await client.send(request, stream=True)
        destinations.heard_from(answer)
        await answer.aclose()
    headers = answer.headers if answer.status_code == 401 else None
    challenge = {} if headers is None else {"www-authenticate": headers.get("www-authenticate", "")}
    return httpx2.Response(401, headers=challenge, request=request)


def _credentials(
    config: ServerConfig, context: OAuthContext, tokens: OAuthToken | None, destinations: Destinations
) -> Credentials:
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
        reach=destinations.reach,
        access_token="",
    )
    return with_tokens(bare, tokens)
