"""Settings of a cluster: several replicas of the proxy behind one balancer, over one database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from mcp_context_proxy.config.tables import Flag, Table

KEY_CHARACTERS: Final = 32
"""Shortest key: 128 random bits in hexadecimal digits. Whoever has it can speak as a replica."""


class ClusterConfig(Table):
    """Settings of this replica."""

    enabled: Flag = False
    replica: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")] | None = None
    """Name of this replica, which no other one has; by default a random one."""
    advertise: Annotated[str, Field(pattern="^https?://[^/?#@]+$")] | None = None
    """Address at which the other replicas reach this one; by default that of the HTTP front."""
    key: Annotated[str, Field(min_length=KEY_CHARACTERS)] | None = Field(default=None, repr=False)
    """Secret that all replicas share."""
    key_file: Path | None = None
    """File with that secret, instead."""
    heartbeat_seconds: Annotated[float, Field(strict=True, ge=0.2, le=60)] = 2.0
    """Time between two signs of life; without one for three times as long, a replica counts as gone."""

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.enabled and (self.key is None) == (self.key_file is None):
            raise ValueError("a cluster needs a key or a key_file, one of them, the same on all replicas")
        return self
