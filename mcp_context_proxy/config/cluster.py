"""Settings of a cluster: several replicas of the proxy behind one balancer, over one database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from mcp_context_proxy.config.tables import Flag, Table
from mcp_context_proxy.errors import ConfigError, ConfigProblem

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
    """Secret that all replicas share: they sign relays and seal credentials with it."""
    key_file: Path | None = None
    """File with that secret, instead."""
    other_keys: tuple[Annotated[str, Field(min_length=KEY_CHARACTERS)], ...] = Field(default=(), repr=False)
    """Further secrets that are accepted, while the key is being changed from one of them or to it."""
    heartbeat_seconds: Annotated[float, Field(strict=True, ge=0.2, le=60)] = 2.0
    """Time between two signs of life; without one for three times as long, a replica counts as gone."""

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.enabled and (self.key is None) == (self.key_file is None):
            raise ValueError("a cluster needs a key or a key_file, one of them, the same on all replicas")
        return self


def keys_of(config: ClusterConfig) -> tuple[bytes, ...]:
    """Return the key of a cluster, and then those that it accepts as well; none if no key is configured.

    Raises:
        ConfigError: the file of the key cannot be read, or holds no key.
    """
    if config.key is not None:
        key = config.key.encode()
    elif config.key_file is not None:
        key = _read(config.key_file)
    else:
        return ()
    return (key, *(other.encode() for other in config.other_keys))


def _read(file: Path) -> bytes:
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ConfigError([ConfigProblem(None, None, "cluster.key_file", reason)]) from error
    if len(key) < KEY_CHARACTERS:
        reason = f"has {len(key)} bytes; a key has {KEY_CHARACTERS} or more (openssl rand -hex 32)"
        raise ConfigError([ConfigProblem(None, None, "cluster.key_file", reason)])
    return key
