"""Puts the bearer token of a server on each request, and renews it once before it expires.

The SDK's provider does this, too, but holds a lock while it waits for a response, so that one slow call would
delay all others, and it does not remember over a restart when a token expires.

Clients of servers and of authorization servers are made here, too: with certificates of their own where a
server has some, and with a bound on interim responses.
"""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import httpcore2
import httpx2
import msgspec

from mcp_context_proxy.config import ServerConfig, TlsConfig
from mcp_context_proxy.config.reload import Mark, mark_of
from mcp_context_proxy.errors import AuthorizationError, Fault, LoginRequiredError, StartError, StoreError
from mcp_context_proxy.oauth import CredentialFile, Login, OAuthCredentials
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.process import time_of_day
from mcp_context_proxy.system.threads import in_thread, load

logger = logging.getLogger(__name__)

RENEWAL_SECONDS: Final = 20.0
"""Timeout of a renewal; less than other processes wait for its lock."""

PAUSE_SECONDS: Final = 5.0
"""Time after a failed renewal in which further requests fail with the same error."""

REREAD_SECONDS: Final = 1.0
"""Time after which a new login or a logout is noticed, by one short read of a file, or of values known of
the store."""

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403

INSUFFICIENT_SCOPE = re.compile(r'error="?insufficient_scope\b')
NEEDED_SCOPE = re.compile(r'\bscope="?([^",]{1,200})(?=[",]|$)')
"""Parts of ``WWW-Authenticate``: the login is valid but lacks a scope, and the scope that is needed."""

Learn: TypeAlias = Callable[[Iterable[tuple[str, str]]], None]
"""Takes secrets to redact: pairs of a name and a value."""


def authorization(config: ServerConfig, learn: Learn, login: Login) -> httpx2.Auth | None:
    """Return the authorization of requests to a server; None if its configured headers contain one."""
    given = any(name.lower() == "authorization" for name in config.headers)
    return None if given else BearerAuth(config, learn, login=login)


class BearerAuth(httpx2.Auth):
    """Puts the current token on each request, and a new one if the server refuses it."""

    def __init__(
        self,
        config: ServerConfig,
        learn: Learn = lambda secrets: None,
        *,
        clock: Callable[[], float] = time_of_day,
        login: Login | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; the login is read with the first request, by default from its file.

        `learn` takes every token before it is used. Tokens expire by `clock`; `steady` is never set
        back, and this waits by it.
        """
        self._config, self._login = config, login or CredentialFile(config)
        self._learn, self._clock, self._steady = learn, clock, steady
        self._without_person = config.oauth is not None and config.oauth.grant == "client_credentials"
        self._known: OAuthCredentials | None = None
        self._kept: OAuthCredentials | None = None
        """The login as it was last read or written; it may be that it cannot be written."""
        self._unstored: tuple[OAuthCredentials, OAuthCredentials | None] | None = None
        """Credentials that could not be stored, and those that are stored and no longer valid."""
        self._read_again_at = -inf
        self._reading = anyio.Lock()
        self._lock = anyio.Lock()
        self._failure: AuthorizationError | None = None
        self._try_again_at = 0.0

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with a token; if it is refused, once more with another."""
        token = await self._token()
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        response = yield request
        challenge = response.headers.get("www-authenticate", "")
        if response.status_code == FORBIDDEN and INSUFFICIENT_SCOPE.search(challenge):
            needed = NEEDED_SCOPE.search(challenge)
            wanted, written = "another scope", ""
            if needed is not None:
                # A login has the scopes that it asks for, and none of those before.
                known = "" if self._known is None else self._known.scopes
                every = " ".join(dict.fromkeys(f"{known} {needed[1]}".split()))
                wanted, written = f"the scope {needed[1]!r}", f" = {json.dumps(every)}"
            raise LoginRequiredError(
                self._config.name,
                f"the login is not enough, {wanted} is needed: "
                f"set oauth.scope{written} under servers.{self._config.name}",
            )
        if response.status_code != UNAUTHORIZED:
            return
        renewed = await self._renewed(token)
        request.headers["authorization"] = f"Bearer {renewed}"
        # A refused request was not run, so it may be sent again.
        response = yield request
        if response.status_code == UNAUTHORIZED:
            raise LoginRequiredError(self._config.name, "it refuses the token that it was sent")

    async def _token(self) -> str | None:
        async with self._reading:
            if self._read_again_at <= self._steady():
                await self._read_if_possible(now=False)
                await self._store_waiting()
                self._read_again_at = self._steady() + REREAD_SECONDS
        known = self._known
        if known is None:
            return await self._renewed(None) if self._without_person else None
        if known.expires_at is None or known.renew_at is None or known.renew_at > self._clock():
            return known.access_token
        if known.refresh_token is None and not self._without_person:
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
        """Return another token than the one that was refused, or raise an error if there is none now."""
        async with self._lock:
            if self._known is not None and self._known.access_token != refused:
                return self._known.access_token
            if self._failure is not None and self._steady() < self._try_again_at:
                raise self._failure
            # Never cancelled half way: the new tokens would be lost, and the old ones are void.
            with anyio.CancelScope(shield=True):
                try:
                    renewed = await self._renew(refused)
                    self._use(renewed)
                except LoginRequiredError:
                    raise
                except AuthorizationError as error:
                    self._failure, self._try_again_at = error, self._steady() + PAUSE_SECONDS
                    raise
            return renewed.access_token

    async def _read(self, *, now: bool) -> OAuthCredentials | None:
        """Read the login, and use its credentials from now on if they have changed."""
        found = await in_thread(self._login.read_now if now else self._login.read)
        if self._unstored is not None:
            new, old = self._unstored
            if (found and found.access_token) == (old and old.access_token):
                # Its refresh token is used up, and a second use would end the login.
                found = new
            else:
                self._unstored = None
        if found != self._kept:
            self._kept = found
            self._use(found)
        return found

    async def _read_if_possible(self, *, now: bool) -> OAuthCredentials | None:
        """Read the login. Without a person, a new token can be had although it cannot be read."""
        try:
            return await self._read(now=now)
        except AuthorizationError:
            if self._without_person:
                return None
            raise

    def _use(self, credentials: OAuthCredentials | None) -> None:
        self._known = credentials
        if credentials is not None:
            self._learn(credentials.secrets())

    async def _renew(self, refused: str | None) -> OAuthCredentials:
        """Return the credentials that another proxy or a new login has stored meanwhile, or get new ones."""
        found = await self._read_if_possible(now=True)
        if found is not None and found.access_token != refused:
            return found
        if not self._without_person:
            self._check_renewable(found)
        # The import of the SDK takes seconds on a busy machine, and must not count against the issuer.
        await load(f"mcp_context_proxy.oauth.{'login' if self._without_person else 'token_endpoint'}")
        async with self._login.renewing(alone=not self._without_person):
            with anyio.move_on_after(RENEWAL_SECONDS):
                found = await self._read_if_possible(now=True)
                if found is not None and found.access_token != refused:
                    return found
                return await self._request_new(found)
        raise AuthorizationError(self._config.name, f"no token came within {RENEWAL_SECONDS:g} s")

    async def _request_new(self, old: OAuthCredentials | None) -> OAuthCredentials:
        name = self._config.name
        if self._without_person:
            from mcp_context_proxy.oauth import login  # noqa: PLC0415 - needs the SDK

            new = await login.log_in_as_client(self._config)
            await self._store(new, old)
            return new
        from mcp_context_proxy.oauth import token_endpoint  # noqa: PLC0415 - many servers want no token

        renewable = self._check_renewable(old)
        try:
            new = await token_endpoint.refresh(self._config, renewable)
        except token_endpoint.GrantRefusedError as error:
            logger.debug("%s", error)
            await self._store(msgspec.structs.replace(renewable, refresh_token=None), renewable)
            raise LoginRequiredError(name, "the login has expired or was revoked") from None
        if await self._store(new, renewable):
            return new
        # Logged out, or in anew, while the answer was on its way.
        await token_endpoint.revoke(self._config, new)
        found = await self._read(now=True)
        if found is None:
            raise LoginRequiredError(name, "it was logged out")
        return found

    def _check_renewable(self, found: OAuthCredentials | None) -> OAuthCredentials:
        if found is None:
            raise LoginRequiredError(self._config.name, "it requires a login")
        if found.refresh_token is None:
            raise LoginRequiredError(self._config.name, "the login has expired or was revoked")
        return found

    async def _store(self, new: OAuthCredentials, old: OAuthCredentials | None) -> bool:
        """Keep new credentials, also later; return False if the old ones are not there any more."""
        level = logging.WARNING
        if self._unstored is not None:
            old, level = self._unstored[1], logging.DEBUG
        try:
            if not await in_thread(self._login.write, new, old):
                return False
            self._kept, self._unstored = new, None
        except (OSError, AuthorizationError) as error:
            self._unstored = new, old
            reason = getattr(error, "strerror", None) or error
            logger.log(
                level,
                "the new token of %s cannot be stored, and is used until then: %s",
                self._config.name,
                reason,
            )
        except StoreError as error:
            logger.warning("the new token of %s cannot be stored yet: %s", self._config.name, error)
            self._login.write_later(new, old)
        return True

    async def _store_waiting(self) -> None:
        """Try again to store credentials, unless they are just being renewed, or were replaced."""
        if self._unstored is None or self._lock.locked():
            return
        async with self._lock, self._login.renewing(alone=not self._without_person):
            await self._read_if_possible(now=True)
            if self._unstored is not None:
                await self._store(*self._unstored)


INTERIM: Final = 32
"""Interim responses, such as 103, of one request: a server has use for one or two."""


async def client_with(tls: TlsConfig | None, **options: Any) -> httpx2.AsyncClient:
    """Return a client with the certificates of a server, which may be hostile; the caller closes it.

    Raises `StartError` if a certificate cannot be used.
    """
    certificates = _certificates_of(tls or TlsConfig())
    await in_thread(certificates.read)
    client = httpx2.AsyncClient(verify=certificates.given, **options)
    # The library has no parameter for it that keeps the proxies of the environment.
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.AsyncHTTPTransport):
            transport._pool._network_backend = _Network(certificates)
    return client


class _Certificates:
    """Certificates of connections, read again when their files have changed: many are short-lived.

    A client that read those of the system by itself would hold the event loop for 30 ms or more.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._read: list[Mark] | None = None
        self.given = self.context = _no_context()
        """The context that clients have, and the one used in its place: none that is in use is changed."""

    def read(self) -> None:
        """Read what has changed; raises `StartError` if it could never be used. Blocks."""
        tls, of_all = self._tls, os.environ.get("SSL_CERT_FILE")
        authorities = tls.ca or (Path(of_all) if of_all else None)
        path, given = None, [one for one in (authorities, tls.certificate, tls.key) if one is not None]
        if (marks := [mark_of(path) for path in given]) == self._read:
            return
        try:
            for path in given:
                path.read_bytes()  # the errors of the library name no file
            context = _no_context() if tls.ca else httpx2.create_ssl_context()
            if (path := authorities) is not None:
                context.load_verify_locations(path)
            if (path := tls.certificate) is not None:
                context.load_cert_chain(path, tls.key, lambda: tls.password or "")
        except OSError as error:
            if self._read is not None:
                return  # half written, most likely: those before are used until then
            reason = error.strerror or str(error)
            if isinstance(error, ssl.SSLError):
                reason = _UNUSABLE.get(error.reason, reason)
            place = path if path != authorities or tls.ca else f"SSL_CERT_FILE={path}"
            raise StartError(Fault.NO_START, f"{place} cannot be used for TLS: {reason}") from None
        context.set_alpn_protocols(["http/1.1"])
        self.context, self._read = context, marks


_certificates_of: Final = cache(_Certificates)

_UNUSABLE: Final = {
    None: "it has no certificate in PEM, or there is no key that tls.password opens",
    "KEY_VALUES_MISMATCH": "the key is that of another certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it has no certificate in PEM",
}
"""Reasons of OpenSSL, in words; for most it gives none."""


def _no_context() -> ssl.SSLContext:
    """Return a context that trusts nobody yet."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class _Network(httpcore2.AnyIOBackend):
    """The network, over which no request gets interim responses without end."""

    def __init__(self, certificates: _Certificates) -> None:
        super().__init__()
        self._certificates = certificates

    async def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        await in_thread(self._certificates.read)
        return _Connection(await super().connect_tcp(*arguments, **options), self._certificates)


_STATUS_LINE: Final = pattern(rb"(?<=\n)HTTP/\d\.\d ([1-5])[^\n]*\n")
_LINE_START: Final = 16
"""Bytes of a line that tell whether it begins a response."""


class _Connection(httpcore2.AsyncNetworkStream):
    """A connection that breaks off if a request gets more than `INTERIM` interim responses.

    The library parses and drops them without a pause, so that a server could keep the event loop busy.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream, certificates: _Certificates) -> None:
        self._stream, self._certificates = stream, certificates
        self._interim = 0
        self._line: bytes | None = None
        """The part read of an unfinished line; None once the response has begun."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            data = await self._stream.read(max_bytes, timeout)
        except ssl.SSLError as error:  # such as the alert of a server that demands another certificate
            raise httpcore2.ReadError(str(error)) from error
        if self._line is not None:
            self._count(self._line + data)
        return data

    def _count(self, read: bytes) -> None:
        for status in _STATUS_LINE.finditer(read):
            if status[1] != b"1":
                self._line = None
                return
            self._interim += 1
            if self._interim > INTERIM:
                raise httpcore2.RemoteProtocolError(f"it sent more than {INTERIM} interim responses")
        self._line = read[read.rfind(b"\n") :][:_LINE_START]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._interim, self._line = 0, b"\n"
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, *arguments: Any, **options: Any
    ) -> httpcore2.AsyncNetworkStream:
        # Not that of a network proxy, which is spoken to before.
        if ssl_context is self._certificates.given:
            ssl_context = self._certificates.context
        secured = await self._stream.start_tls(ssl_context, *arguments, **options)
        return _Connection(secured, self._certificates)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
