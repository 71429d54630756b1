"""What the SDK would store, for the length of one conversation with an authorization server."""

from __future__ import annotations

from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


class Kept:
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
