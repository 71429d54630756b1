"""The bearer token of the HTTP front: from the environment, or a file that only its owner can read."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from mcp_context_proxy.config import HttpConfig
from mcp_context_proxy.errors import ConfigError, ConfigProblem
from mcp_context_proxy.front.guard import is_loopback

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "MCP_CONTEXT_PROXY_TOKEN"
TOKEN_BYTES = 32


def token_for(settings: HttpConfig, environ: Mapping[str, str] = os.environ) -> str | None:
    """The token that a front asks for; None where it listens on this machine alone and none is configured.

    It comes from the environment, else from the configured file, else, where others can reach the front,
    from a file in the user's data folder. A file that does not exist is created with a new token.

    Raises:
        ConfigError: the file cannot be read or created, or is empty.
    """
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        return token
    path = settings.token_file
    if path is None:
        if is_loopback(settings.host):
            return None
        path = platformdirs.user_data_path("mcp-context-proxy") / "token"
        logger.warning("others can reach this front: it asks for the bearer token in %s", path)
    try:
        return _read(path) if path.exists() else create_token(path)
    except OSError as error:
        problem = ConfigProblem(path, None, "http.token_file", f"cannot be used: {error.strerror or error}")
        raise ConfigError([problem]) from error


def create_token(path: Path) -> str:
    """Write a new token to a file of mode 0600 and return it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(token + "\n")
    return token


def _read(path: Path) -> str:
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise ConfigError(
            [ConfigProblem(path, None, "http.token_file", "the file is empty; delete it for a new token")]
        )
    return token
