"""The token of a server on each of our requests: renewed before it expires, once, by whoever comes first.

The SDK's provider would do this, too, but holds a lock from the sending of a request to its answer, so that
one slow call would hold up all others, and forgets over a restart when a token expires.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final

import anyio
import httpx2
import msgspec

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.errors import AuthorizationError, LoginRequiredError
from mcp_context_proxy.oauth.credentials import CredentialFile, OAuthCredentials
from mcp_context_proxy.system.clock import time_of_day
from mcp_context_proxy.system.threads import in_thread, load_oauth

logger = logging.getLogger(__name__)

RENEWAL_SECONDS: Final = 20.0
"""For a renewal; less than others wait for its lock."""

PAUSE_SECONDS: Final = 5.0
"""After an authorization server could not be asked: those who wait for it meanwhile hear the same."""

LOOK_SECONDS: Final = 1.0
"""After which a login that a person made anew, or ended, is noticed: it is one short read of a file."""

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403

LACKING = re.compile(r'error="?insufficient_scope\b')
WANTED = re.compile(r'\bscope="([^"]{1,200})"')
"""In ``WWW-Authenticate``: the login is good, but not for this, and for what it would be."""


Learn = Callable[[Iterable[tuple[str, str]]], None]
"""Takes secrets that must not be told: pairs of a name and a value."""


def authorization(config: ServerConfig, learn: Learn) -> httpx2.Auth | None:
    """What puts a token on the requests to a server; None where its configured headers have one."""
    given = any(name.lower() == "authorization" for name in config.headers)
    return None if given else BearerAuth(config, CredentialFile(config), learn)


class BearerAuth(httpx2.Auth):
    """Puts the current token on each request, and a new one where the server refuses it."""

    def __init__(
        self,
        config: ServerConfig,
        file: CredentialFile,
        learn: Learn = lambda secrets: None,
        clock: Callable[[], float] = time_of_day,
    ) -> None:
        """Know no token yet.

        Args:
            config: Of the server.
            file: Where its credentials are kept.
            learn: Told of every token, before it is used.
            clock: The time, in seconds since 1970.
        """
        self._config, self._file, self._learn, self._clock = config, file, learn, clock
        self._itself = config.oauth is not None and config.oauth.grant == "client_credentials"
        self._known: OAuthCredentials | None = None
        self._filed: OAuthCredentials | None = None
        """What the file held when it was last looked at, or written; it may not be possible to write it."""
        self._look_again_at = 0.0
        self._looking = anyio.Lock()
        self._lock = anyio.Lock()
        self._failure: AuthorizationError | None = None
        self._ask_again_at = 0.0

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send with a token; where that is refused, once more with another."""
        token = await self._token()
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        response = yield request
        self._check_scope(response)
        if response.status_code != UNAUTHORIZED:
            return
        renewed = await self._renewed(token)
        request.headers["authorization"] = f"Bearer {renewed}"
        # A refused request was not run: to send it again does nothing twice.
        response = yield request
        if response.status_code == UNAUTHORIZED:
            raise LoginRequiredError(self._config.name, "it refuses the token that it was sent")

    def _check_scope(self, response: httpx2.Response) -> None:
        """Tell what a login lacks that is good, but not for this request."""
        said = response.headers.get("www-authenticate", "")
        if response.status_code == FORBIDDEN and LACKING.search(said):
            scope = WANTED.search(said)
            wanted = "another scope" if scope is None else f"the scope {scope[1]!r}"
            raise LoginRequiredError(
                self._config.name,
                f"what is there is not enough, {wanted} is needed: "
                f"name it in oauth.scope under servers.{self._config.name}",
            )

    async def _token(self) -> str | None:
        async with self._looking:
            if self._look_again_at <= self._clock():
                await self._look()
                self._look_again_at = self._clock() + LOOK_SECONDS
        known = self._known
        if known is None:
            return await self._renewed(None) if self._itself else None
        if known.expires_at is None or known.renew_at is None or known.renew_at > self._clock():
            return known.access_token
        if known.refresh_token is None and not self._itself:
            return known.access_token
        try:
            return await self._renewed(known.access_token)
        except LoginRequiredError:
            raise
        except AuthorizationError as error:
            if known.expires_at <= self._clock():
                raise
            logger.debug("%s", error)
            return known.access_token

    async def _renewed(self, refused: str | None) -> str:
        """Another token than the one that is of no use any more.

        Raises:
            LoginRequiredError: only a person can get one.
            AuthorizationError: there is none now.
        """
        async with self._lock:
            if self._known is not None and self._known.access_token != refused:
                return self._known.access_token
            if self._failure is not None and self._clock() < self._ask_again_at:
                raise self._failure
            # Not given up half way: the new tokens would be lost, and the old ones are void.
            with anyio.CancelScope(shield=True):
                try:
                    renewed = await self._renew(refused)
                    self._know(renewed)
                except LoginRequiredError:
                    raise
                except AuthorizationError as error:
                    self._failure, self._ask_again_at = error, self._clock() + PAUSE_SECONDS
                    raise
            return renewed.access_token

    async def _look(self) -> OAuthCredentials | None:
        """What the file holds; what is new there since the last look is used from now on."""
        found = await in_thread(self._file.read)
        if found != self._filed:
            self._filed = found
            self._know(found)
        return found

    def _know(self, credentials: OAuthCredentials | None) -> None:
        self._known = credentials
        if credentials is not None:
            self._learn(credentials.secrets())

    async def _renew(self, refused: str | None) -> OAuthCredentials:
        """What another proxy or a new login has brought meanwhile, else what we get ourselves."""
        found = await self._look()
        if found is not None and found.access_token != refused:
            return found
        if not self._itself:
            self._check_renewable(found)
        async with self._file.locked():
            with anyio.move_on_after(RENEWAL_SECONDS):
                found = await self._look()
                if found is not None and found.access_token != refused:
                    return found
                return await self._another(found)
        raise AuthorizationError(self._config.name, f"no token came within {RENEWAL_SECONDS:g} s")

    async def _another(self, old: OAuthCredentials | None) -> OAuthCredentials:
        name = self._config.name
        await load_oauth()
        from mcp_context_proxy.oauth import login, token_endpoint  # noqa: PLC0415 - many servers want no token

        if self._itself:
            new = await login.prove_ourselves(self._config)
        else:
            renewable = self._check_renewable(old)
            try:
                new = await token_endpoint.refresh(self._config, renewable)
            except token_endpoint.GrantRefusedError as error:
                logger.debug("%s", error)
                await self._keep(msgspec.structs.replace(renewable, refresh_token=None))
                raise LoginRequiredError(name, "the login has expired or was revoked") from None
        await self._keep(new)
        return new

    def _check_renewable(self, found: OAuthCredentials | None) -> OAuthCredentials:
        if found is None:
            raise LoginRequiredError(self._config.name, "it wants to know who you are")
        if found.refresh_token is None:
            raise LoginRequiredError(self._config.name, "the login has expired or was revoked")
        return found

    async def _keep(self, new: OAuthCredentials) -> None:
        try:
            await in_thread(self._file.write, new)
            self._filed = new
        except OSError as error:
            logger.warning("the new token of %s is not kept: %s", self._config.name, error.strerror or error)
