"""The bearer token of the HTTP front: from the environment, or a file that only its owner can read."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from mcp_context_proxy import private
from mcp_context_proxy.config import HttpConfig
from mcp_context_proxy.config.notices import NOTICE
from mcp_context_proxy.errors import ConfigError, ConfigProblem
from mcp_context_proxy.front.guard import is_loopback

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "MCP_CONTEXT_PROXY_TOKEN"
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Credentials:
    """What clients of the HTTP front must know."""

    token: str | None
    """The bearer token; None where none is asked for."""
    whereabouts: str
    """For the line that says what is served: where the token is, or what it means that there is none."""

    @property
    def level(self) -> int:
        """Of logging, of that line: it is a warning only where there is no token."""
        return logging.WARNING if self.token is None else NOTICE


OPEN_TO_ALL = Credentials(
    None, " without a token: every user and program of this machine can use your servers"
)


def credentials_for(settings: HttpConfig, environ: Mapping[str, str] = os.environ) -> Credentials:
    """What a front asks of its clients.

    The token comes from the environment, else from the configured file, else from a file in the user's data
    folder. A file that does not exist is created with a new token.

    Raises:
        ConfigError: the front would be open to other machines, or the file cannot be read or created.
    """
    if not settings.auth:
        if is_loopback(settings.host):
            return OPEN_TO_ALL
        message = f"no token is only possible on a loopback address, and {settings.host} is none"
        raise ConfigError([ConfigProblem(None, None, "http.auth", message)])
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        return Credentials(token, f"; clients send the bearer token in {TOKEN_VARIABLE}")
    path = settings.token_file or platformdirs.user_data_path("mcp-context-proxy") / "token"
    try:
        token = _read(path) if path.exists() else create_token(path)
    except OSError as error:
        message = (
            f"{path} cannot be used: {error.strerror or error}; name another file, or set {TOKEN_VARIABLE}"
        )
        raise ConfigError([ConfigProblem(None, None, "http.token_file", message)]) from error
    return Credentials(token, f"; clients send the bearer token in {path}")


def create_token(path: Path) -> str:
    """Write a new token to a file of mode 0600 and return it, or the one of whoever was faster."""
    private.make_folder(path.parent)
    descriptor, whole = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        # A link appears with its content and never replaces: nobody reads half a token, and one wins.
        with contextlib.suppress(FileExistsError):
            os.link(whole, path)
    finally:
        os.unlink(whole)  # noqa: PTH108 - its path is a string
    return _read(path)


def _read(path: Path) -> str:
    if not path.is_file():
        raise _unusable(path, "this is no file")
    _protect(path)
    token = path.read_bytes().strip()
    if not token:
        raise _unusable(path, "the file is empty; delete it for a new token")
    if not re.fullmatch(rb"[!-~]+", token):
        raise _unusable(path, "a token is one line of visible ASCII; delete the file for a new one")
    return token.decode()


def _protect(path: Path) -> None:
    """Let nobody but its owner read the file; refuse one that others could have written.

    Raises:
        ConfigError: whoever it is that wrote it would be let in.
        OSError: it cannot be looked at.
    """
    if sys.platform == "win32":
        return
    folder = path.resolve().parent.stat().st_mode
    if path.stat().st_mode & stat.S_IWOTH or (folder & stat.S_IWOTH and not folder & stat.S_ISVTX):
        what = f"everyone may write it, or its folder; delete it, and run: chmod go-w {path.resolve().parent}"
        raise _unusable(path, what)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        try:
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        except OSError:
            logger.warning("others than you can read the token in %s", path)
        else:
            logger.warning(
                "others could read the token in %s, and no longer can; delete it for a new one", path
            )


def _unusable(path: Path, what: str) -> ConfigError:
    return ConfigError([ConfigProblem(path, None, "http.token_file", what)])
