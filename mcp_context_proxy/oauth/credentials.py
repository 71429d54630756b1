"""Credentials from a login, in one file for each server: readable by its owner alone, replaced atomically.

There is no keyring, because a proxy that a host starts often has no desktop session, and a prompt that nobody
sees would hang it. A file is bound to the server's name and URL and to the issuer of its tokens, and ignored
for any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import IO, Final

import anyio
import msgspec
import platformdirs

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.reload import watch_file
from mcp_context_proxy.system import process
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

LOCK_SECONDS: Final = 30.0
"""Time that another process may hold the lock to renew a token; then it must be stuck, and is ignored."""

LOCK_POLL_SECONDS: Final = 0.05


class OAuthCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one server, and everything that is needed to renew them."""

    server: str
    resource: str
    """URL of the server that the tokens are for."""
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    client_id: str
    client_secret: str | None = None
    auth_method: str | None = None
    """Authentication method of the client at the token endpoint."""
    indicator: str | None = None
    """The ``resource`` parameter of token requests (RFC 8707)."""
    reach: int = 0
    """Nearest `NetworkReach` that the endpoints may have."""
    access_token: str
    expires_at: float | None = None
    """In seconds since 1970; None when the issuer does not say."""
    renew_at: float | None = None
    """Time to renew the token, early enough for it to be valid when a request arrives."""
    refresh_token: str | None = None
    scope: str | None = None

    def secrets(self) -> Iterator[tuple[str, str]]:
        """Yield the values to redact, with a name for each."""
        yield "access token", self.access_token
        if self.refresh_token is not None:
            yield "refresh token", self.refresh_token
        if self.client_secret is not None:
            yield "client secret", self.client_secret

    def __repr__(self) -> str:
        return f"Credentials(server={self.server!r}, resource={self.resource!r}, issuer={self.issuer!r})"


class CredentialFile:
    """The credential file of one server. Methods block unless they are coroutines."""

    def __init__(self, config: ServerConfig) -> None:
        """Compute the path, in the user's data folder; nothing is read or written."""
        self._server, self._resource = config.name, config.url or ""
        self._issuer = None if config.oauth is None else config.oauth.issuer
        folder = platformdirs.user_data_path("mcp-context-proxy", appauthor=False) / "oauth"
        digest = hashlib.sha256(f"{config.name}\0{config.url}".encode()).hexdigest()[:16]
        self.path = folder / f"{config.name}-{digest}.json"

    def read(self) -> OAuthCredentials | None:
        """Return the credentials for the server as it is configured; None if there are no usable ones."""
        if process.make_private(self.path):
            logger.warning(
                "other users could read the login in %s; they no longer can, but log in again", self.path
            )
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=OAuthCredentials)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s cannot be used: %s; log in again", self.path, error)
            return None
        same_issuer = self._issuer is None or _plain(self._issuer) == _plain(found.issuer)
        fits = (found.server, found.resource) == (self._server, self._resource) and same_issuer
        return found if fits else None

    def write(self, credentials: OAuthCredentials) -> None:
        """Replace the stored credentials.

        Raises:
            OSError: the file cannot be written; the old credentials are still there.
        """
        process.make_private_folder(self.path.parent)
        # mkstemp creates files that only their owner may read.
        descriptor, whole = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(credentials))
                file.flush()
                os.fsync(file.fileno())
            os.replace(whole, self.path)  # noqa: PTH105 - its path is a string
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(whole)  # noqa: PTH108 - its path is a string
            raise

    def delete(self) -> bool:
        """Delete the credentials; return False if there were none."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Lock out other proxies during a renewal: a refresh token is often valid for one use only."""
        try:
            file = await in_thread(self._open_lock)
        except OSError as error:
            # If nothing can be written, nothing is shared with another proxy either.
            logger.debug("%s cannot be locked: %s", self.path, error)
            yield
            return
        with file:
            with anyio.move_on_after(LOCK_SECONDS):
                while not process.lock_file(file):  # noqa: ASYNC110 - another process
                    await anyio.sleep(LOCK_POLL_SECONDS)
            # The lock ends with the open file, also when the process dies.
            yield

    async def replaced(self) -> None:
        """Wait until the file has other credentials than now."""
        before, changed = await in_thread(self.read), anyio.Event()

        def note_change() -> None:
            changed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch_file, self.path, note_change)
            while True:
                await changed.wait()
                changed = anyio.Event()
                found = await in_thread(self.read)
                if found is not None and found != before:
                    break
            group.cancel_scope.cancel()

    def _open_lock(self) -> IO[bytes]:
        process.make_private_folder(self.path.parent)
        descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        return os.fdopen(descriptor, "r+b")


def _plain(issuer: str) -> str:
    """Return an issuer for comparison: only a root URL is the same with and without its slash."""
    return issuer.rstrip("/") if issuer.count("/") <= 3 else issuer
