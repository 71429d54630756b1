"""OAuth for servers at a URL: logs in, and puts the bearer token on every request.

Here are the credentials from a login: in a file for each server, or sealed in the store that replicas share.
There is no keyring, because a proxy that a host starts often has no desktop session, and a prompt that nobody
sees would hang it. Credentials are bound to the server's name and URL and to the issuer of its tokens, and
ignored for any other. A file is readable by its owner alone, and replaced atomically.

Of replicas one renews a token at a time, by a lease: many refresh tokens are valid for one use only. A file
that a replica had before it shared its logins is taken over once, unless there is a login by then.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import IO, Final, TypeAlias

import anyio
import msgspec

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.reload import changes, mark_of
from mcp_context_proxy.errors import AuthorizationError, StoreError
from mcp_context_proxy.store.credentials import (
    ANOTHER_KEY,
    LOGIN,
    LOOK_SECONDS,
    Credential,
    SharedCredentials,
)
from mcp_context_proxy.store.tables import Lease
from mcp_context_proxy.system import lock_file, make_private, make_private_folder, remove_left, write_private
from mcp_context_proxy.system.later import platformdirs
from mcp_context_proxy.system.process import read_own
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

LOCK_SECONDS: Final = 30.0
"""Time that another process may hold the lock to renew a token; then it must be stuck, and is ignored."""

LOCK_POLL_SECONDS: Final = 0.05

ATTEMPTS: Final = 5
"""Attempts to write a login that others change at the same moment."""

AWAY: Final = (
    "its login is in the store, which is away, and another replica might use the same refresh token; it is "
    "tried again"
)


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
    audience: str | None = None
    """The authorization server, as it is named to it by a client that has a key."""
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
    asked: str | None = None
    """Scopes that were asked for. Of those granted, many an issuer does not name ``offline_access``."""

    @property
    def scopes(self) -> str:
        """All scopes that were asked for or granted."""
        return " ".join(dict.fromkeys(f"{self.asked or ''} {self.scope or ''}".split()))

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
    """The login to one server, in a file of its own."""

    def __init__(self, config: ServerConfig) -> None:
        """Compute the path, in the user's data folder; nothing is read or written."""
        self._config = config
        folder = platformdirs.user_data_path("mcp-context-proxy", appauthor=False) / "oauth"
        digest = hashlib.sha256(f"{config.name}\0{config.url}".encode()).hexdigest()[:16]
        self.path = folder / f"{config.name}-{digest}.json"

    @property
    def place(self) -> str:
        return str(self.path)

    def read(self) -> OAuthCredentials | None:
        """Return the credentials for the server as it is configured; None if there are no usable ones."""
        if make_private(self.path):
            logger.warning(
                "other users could read the login in %s; they no longer can, but log in again", self.path
            )
        try:
            found = msgspec.json.decode(read_own(self.path), type=OAuthCredentials)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            logger.warning("%s cannot be used: %s; log in again", self.path, error)
            return None
        return found if _fits(found, self._config) else None

    read_now = read

    def write(self, new: OAuthCredentials, instead_of: OAuthCredentials | None = None) -> bool:
        """Replace the stored credentials, whatever they are: the lock keeps others from changing them.

        Raises `OSError` if the file cannot be written; the old credentials are still there.
        """
        write_private(self.path, msgspec.json.encode(new))
        return True

    def write_later(self, new: OAuthCredentials, instead_of: OAuthCredentials | None) -> None:
        """Do nothing: a folder that cannot be written stays so, and the credentials are in memory."""

    def delete(self) -> bool:
        remove_left(self.path, "-", seconds=0.0)
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    @asynccontextmanager
    async def renewing(self, *, alone: bool = True) -> AsyncIterator[None]:
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
                while not lock_file(file):  # noqa: ASYNC110 - another process
                    await anyio.sleep(LOCK_POLL_SECONDS)
            # The lock ends with the open file, also when the process dies.
            yield

    async def replaced(self) -> None:
        """Wait until there are other credentials than now."""
        before = await in_thread(self.read)
        async for _ in changes(partial(mark_of, self.path)):
            found = await in_thread(self.read)
            if found is not None and found != before:
                return

    def _open_lock(self) -> IO[bytes]:
        make_private_folder(self.path.parent)
        descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        return os.fdopen(descriptor, "r+b")


class SharedLogin:
    """The login to one server that all replicas have; its file is taken over once.

    Methods raise `StoreError` if the store cannot be written, and `AuthorizationError` if it cannot be
    read.
    """

    def __init__(self, config: ServerConfig, shared: SharedCredentials, file: CredentialFile) -> None:
        self._config, self._shared, self._file = config, shared, file
        self._name = file.path.stem
        self._looked_for_file = False

    @property
    def place(self) -> str:
        return "the store, sealed, for all replicas"

    def read(self) -> OAuthCredentials | None:
        """Return the credentials as they were a moment ago: no request waits for the store."""
        known = self._shared.known(LOGIN, self._name)
        if not (known.revision or self._shared.has_looked):
            return self.read_now()
        return self._content(known)

    def read_now(self) -> OAuthCredentials | None:
        try:
            if not self._shared.has_looked:
                self._shared.look(now=True)
            return self._content(self._shared.read(LOGIN, self._name))
        except StoreError:
            raise AuthorizationError(self._config.name, AWAY) from None

    def _content(self, found: Credential) -> OAuthCredentials | None:
        if not found.readable:
            raise AuthorizationError(self._config.name, f"its login is in the store, {ANOTHER_KEY}")
        if not found.revision and not self._looked_for_file:
            found = self._taken_over(found)
        if found.content is None:
            return None
        try:
            credentials = msgspec.json.decode(found.content, type=OAuthCredentials)
        except msgspec.DecodeError as error:
            logger.warning("the login to %s in the store cannot be used: %s", self._config.name, error)
            return None
        return credentials if _fits(credentials, self._config) else None

    def _taken_over(self, found: Credential) -> Credential:
        """Put the login of this replica's file into the store, and delete the file."""
        credentials = self._file.read()
        if credentials is not None and self._shared.problem is None:
            try:
                written = self._shared.write(
                    LOGIN, self._name, msgspec.json.encode(credentials), found.revision
                )
                found = self._shared.read(LOGIN, self._name)
            except StoreError:
                return found
            told = (
                "is in the store now, for all replicas" if written else "is not used: the store has another"
            )
            logger.info("the login to %s in %s %s", self._config.name, self._file.path, told)
            if written:
                self._delete_file()
        self._looked_for_file = True
        return found

    def write(self, new: OAuthCredentials, instead_of: OAuthCredentials | None = None) -> bool:
        """Keep credentials instead of certain ones or of any; return False if those are not there any more.

        Tokens that were got with a refresh token count even if another replica was refused the same one.
        """
        content = msgspec.json.encode(new)
        for _ in range(ATTEMPTS):
            there = self._shared.read(LOGIN, self._name)
            now = self._content(there)
            if now == new:
                return True  # written before, and the answer was lost
            if not there.revision and self._shared.problem is not None:
                raise AuthorizationError(self._config.name, self._shared.problem)
            if instead_of is not None and (now is None or now.access_token != instead_of.access_token):
                return False
            if self._shared.write(LOGIN, self._name, content, there.revision):
                return True
        return False

    def write_later(self, new: OAuthCredentials, instead_of: OAuthCredentials | None) -> None:
        """Write as soon as the store is back."""
        write = partial(self.write, new, instead_of)
        self._shared.write_later(LOGIN, self._name, msgspec.json.encode(new), write)

    def delete(self) -> bool:
        """Give the credentials up, for all replicas; those that cannot be read here as well."""
        for _ in range(ATTEMPTS):
            there = self._shared.read(LOGIN, self._name)
            if there.readable and there.content is None:
                # An old file of this replica must not be taken over later either.
                return self._delete_file()
            if self._shared.write(LOGIN, self._name, None, there.revision):
                self._delete_file()
                return True
        return False

    def _delete_file(self) -> bool:
        try:
            return self._file.delete()
        except OSError as error:
            logger.warning("%s is not used any more and cannot be deleted: %s", self._file.path, error)
            return False

    @asynccontextmanager
    async def renewing(self, *, alone: bool = True) -> AsyncIterator[None]:
        async with self._shared.turn(LOGIN, self._name):
            lease = await self._lease(alone=alone)
            try:
                yield
            finally:
                if lease is not None:
                    with anyio.CancelScope(shield=True), contextlib.suppress(StoreError):
                        await in_thread(self._shared.leases.give_back, lease)

    async def _lease(self, *, alone: bool) -> Lease | None:
        take = partial(self._shared.leases.take, f"{LOGIN} {self._name}", LOCK_SECONDS)
        with anyio.move_on_after(LOCK_SECONDS):
            while True:
                try:
                    lease = await in_thread(take)
                except StoreError:
                    if not alone:
                        return None
                    raise AuthorizationError(self._config.name, AWAY) from None
                if lease is not None:
                    return lease
                await anyio.sleep(LOCK_POLL_SECONDS)
        raise AuthorizationError(self._config.name, "another replica does not end its renewal; try again")

    async def replaced(self) -> None:
        before = self._shared.known(LOGIN, self._name)
        known = partial(self._shared.known, LOGIN, self._name)
        while (found := known()) == before or found.content is None:  # noqa: ASYNC110 - another process
            await anyio.sleep(LOOK_SECONDS)


Login: TypeAlias = CredentialFile | SharedLogin
"""The login to one server. Methods block unless they are coroutines, or say so."""


class Logins:
    """The logins of this proxy: its own files, or those that replicas share."""

    def __init__(self, shared: SharedCredentials | None = None) -> None:
        self.shared = shared

    def of(self, config: ServerConfig) -> Login:
        file = CredentialFile(config)
        return file if self.shared is None else SharedLogin(config, self.shared, file)


def _fits(found: OAuthCredentials, config: ServerConfig) -> bool:
    wanted = None if config.oauth is None else config.oauth.issuer
    same_issuer = wanted is None or _plain(wanted) == _plain(found.issuer)
    return (found.server, found.resource) == (config.name, config.url or "") and same_issuer


def _plain(issuer: str) -> str:
    """Return an issuer for comparison: only a root URL is the same with and without its slash."""
    return issuer.rstrip("/") if issuer.count("/") <= 3 else issuer
