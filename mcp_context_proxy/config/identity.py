"""Settings of identity: how clients over HTTP prove who they are, and the role and reach of each."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from mcp_context_proxy.config.tables import Table, Text
from mcp_context_proxy.items import ToolClass

Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Signatures that only the holder of a private key can make. ``none`` and those with a shared secret (HS256
and its kin) are not among them: with a public key as the secret, anyone could make those."""

RoleName: TypeAlias = Literal["use", "view", "operate", "admin"]

LONGEST_LEEWAY = 300.0
"""Clocks that differ by more than five minutes are wrong, and every second of leeway prolongs each token."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class GroupConfig(Table):
    """Servers and classes of tools that the members of a group may reach."""

    servers: tuple[Text, ...] | None = None
    """None for all."""
    classes: tuple[ToolClass, ...] | None = None
    """None for all."""


class AuthConfig(Table):
    """Settings of the identity of clients over HTTP."""

    mode: Literal["token", "jwt"] = "token"
    """``token``: the proxy's own token and named ones; ``jwt``: tokens that an issuer has signed, too."""
    issuer: Text | None = None
    """URL of the issuer, exactly as it is in the claim ``iss``."""
    audience: Text | None = None
    """Value that the claim ``aud`` has; by default ``http.resource_url``."""
    jwks_url: Text | None = None
    """URL of the issuer's public keys; by default found by OIDC discovery."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "EdDSA")
    """Signatures that are accepted."""
    leeway_seconds: Annotated[float, Field(strict=True, ge=0, le=LONGEST_LEEWAY)] = 30.0
    """Difference of the clocks of the issuer and this machine."""
    roles_claim: Text = "roles"
    """Claim with the roles: a list, or words; dots lead into objects (``realm_access.roles``)."""
    roles: dict[str, RoleName] = Field(default={})
    """Role by value of that claim; the highest one counts."""
    default_role: Literal["none", "use", "view"] = "use"
    """Role of everybody else; ``none`` refuses them."""
    groups_claim: Text = "groups"
    """Claim with the groups."""
    groups: dict[str, GroupConfig] = Field(default={})
    """Reach by value of that claim, ``*`` for everybody; where any is configured, nobody reaches more."""
    scopes: tuple[Text, ...] = ()
    """Scopes that clients are told to ask the issuer for."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.mode == "jwt" and self.issuer is None:
            raise ValueError("mode = 'jwt' needs an issuer, the URL in the claim iss of its tokens")
        for name in ("issuer", "jwks_url"):
            url = getattr(self, name)
            if url is not None and not is_encrypted(url):
                raise ValueError(f"{name} must begin with https://; http:// is for this machine only")
        return self


def is_encrypted(url: str) -> bool:
    """Return whether a URL is one of https, or of this machine."""
    try:
        parts = urlsplit(url)
        return (parts.scheme == "https" and bool(parts.hostname)) or (
            parts.scheme == "http" and parts.hostname in LOOPBACK_NAMES
        )
    except ValueError:
        return False
