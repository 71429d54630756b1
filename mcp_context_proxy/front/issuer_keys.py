"""Public keys of the issuer of tokens: found by discovery, kept for minutes, fetched again for a new one.

A token chooses among the keys that the issuer has published, by its ``kid``, and nothing else: where keys
come from is in the configuration, and no header of a token leads anywhere. Fetching is bounded in time, size
and rate, so that tokens with invented key ids cost one fetch in half a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from mcp_context_proxy.config.tables import AuthConfig, is_encrypted
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system.flights import in_task
from mcp_context_proxy.system.threads import load_oauth

if TYPE_CHECKING:
    from mcp_context_proxy.oauth.token_endpoint import Destinations

logger = logging.getLogger(__name__)

FRESH_SECONDS: Final = 600.0
"""Age at which keys are fetched again."""

REFETCH_SECONDS: Final = 30.0
"""Least time between two fetches, however many tokens name keys that are not known."""

STALE_SECONDS: Final = 3600.0
"""Age up to which keys are used when the issuer cannot be reached: a key that it has withdrawn would be
accepted for so long at most."""

FETCH_SECONDS: Final = 10.0
"""Time for discovery and keys together."""

DOCUMENT_BYTES: Final = 256 * 1024
"""Largest document of an issuer; an honest one has some kilobytes."""

MOST_KEYS: Final = 100
"""Keys of an issuer; an honest one has a handful."""

MOST_WAITING: Final = 64
"""Requests that wait for a fetch at a time; further ones are told to come again."""

LEAST_RSA_BITS: Final = 2048

FAULT_CHARACTERS: Final = 300
"""Characters of a reason that the log has."""

FAMILIES: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Type and curve of the keys of each algorithm: a key of another type is never used with it."""


class KeysUnavailableError(Exception):
    """The keys of the issuer cannot be had now, so nothing can be said about a token."""


class PublicKey(Struct, frozen=True):
    """A key of the issuer, and the algorithms that it may be used with."""

    kid: str | None
    algorithms: frozenset[str]
    key: Any
    """The key as the library of signatures takes it."""


class KeySet:
    """The keys of one issuer."""

    def __init__(
        self,
        config: AuthConfig,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = FETCH_SECONDS,
    ) -> None:
        """Know no key until `run` or the first token; a fetch takes no longer than `seconds`."""
        assert config.issuer is not None
        self._issuer, self._url, self._clock = config.issuer, config.jwks_url, clock
        self._algorithms, self._seconds = config.algorithms, seconds
        self._config = config
        self._destinations: Destinations | None = None
        self._keys: tuple[PublicKey, ...] = ()
        self._fetched_at = self._tried_at = -float("inf")
        self._fetching: anyio.Event | None = None
        self._waiting = 0
        self._fault: str | None = None
        self.changed: list[Callable[[], None]] = []
        """Called when keys have been fetched: tokens are looked at again."""

    @property
    def lack(self) -> str | None:
        """The thing that is missing before anybody can be let in; None if nothing is."""
        return None if self._usable else "the keys of the issuer have not been fetched"

    @property
    def _usable(self) -> bool:
        return bool(self._keys) and self._clock() - self._fetched_at < STALE_SECONDS

    async def fitting(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        """Return the keys that may have signed a token; none if the issuer has no such key.

        Raises:
            KeysUnavailableError: the keys are not known, and cannot be fetched now.
        """
        if self._usable and (found := self._among(kid, algorithm)):
            return found
        await self._refreshed()
        if not self._usable:
            raise KeysUnavailableError
        return self._among(kid, algorithm)

    def _among(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        fit = [key for key in self._keys if algorithm in key.algorithms]
        if kid is None:
            # A token without a key id is for issuers with one key.
            return fit if len(fit) == 1 else ()
        return [key for key in fit if key.kid == kid]

    async def run(self) -> None:
        """Keep the keys fresh until cancelled."""
        while True:
            await self._refreshed()
            due = FRESH_SECONDS if self._fault is None else REFETCH_SECONDS
            await anyio.sleep(max(self._tried_at + due - self._clock(), 1.0))

    async def _refreshed(self) -> None:
        """Fetch the keys, or wait for those who do; return at once if somebody did a moment ago."""
        if self._fetching is None:
            if self._clock() - self._tried_at < REFETCH_SECONDS:
                return
            await in_task()
            self._tried_at, self._fetching = self._clock(), anyio.Event()
            try:
                # A client that goes away does not end the fetch that others wait for.
                with anyio.CancelScope(shield=True):
                    await self._fetch()
            finally:
                self._fetching.set()
                self._fetching = None
            return
        if self._waiting >= MOST_WAITING:
            raise KeysUnavailableError
        self._waiting += 1
        try:
            await self._fetching.wait()
        finally:
            self._waiting -= 1

    async def _fetch(self) -> None:
        fault: str | None = None
        try:
            with anyio.fail_after(self._seconds):
                url = self._url or await self._discovered()
                keys = _keys(await self._document(url), self._algorithms)
            if not keys:
                raise ValueError("it has no public key for the configured algorithms")
            self._keys, self._fetched_at = keys, self._clock()
            for changed in self.changed:
                changed()
        except TimeoutError:
            fault = f"they did not come within {self._seconds:g} s"
        except Exception as error:
            # boundary: the network, and any document of the issuer
            fault = one_line(str(error) or type(error).__name__, FAULT_CHARACTERS)
        if fault is not None and fault != self._fault:
            logger.warning("the keys of the issuer %s cannot be fetched: %s", self._issuer, fault)
        elif fault is None and self._fault is not None:
            logger.warning("the keys of the issuer %s have been fetched again", self._issuer)
        self._fault = fault

    async def _discovered(self) -> str:
        """Return the URL of the keys, as the issuer's own document names it."""
        parts = urlsplit(self._issuer)
        base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        places = [f"{base}{path}/.well-known/openid-configuration"]
        # RFC 8414 puts the well-known path first.
        places.append(f"{base}/.well-known/oauth-authorization-server{path}")
        fault: Exception | None = None
        for place in places:
            try:
                found = await self._document(place)
            except ValueError as error:
                fault = fault or error
                continue
            if found.get("issuer") != self._issuer:
                raise ValueError(f"{place} is the document of another issuer")
            url = found.get("jwks_uri")
            if not isinstance(url, str) or not is_encrypted(url):
                raise ValueError(f"{place} names no jwks_uri that begins with https://")
            return url
        raise fault or ValueError("it has no document for discovery")

    async def _document(self, url: str) -> dict[str, Any]:
        """Return the JSON object at a URL; redirects are not followed."""
        await load_oauth()
        # Loaded only where an issuer is configured: nothing else of the front needs an HTTP client.
        import httpx2  # noqa: PLC0415

        from mcp_context_proxy.oauth.token_endpoint import (  # noqa: PLC0415
            Destinations,
            exchange,
        )

        if self._destinations is None:
            self._destinations = Destinations(self._config)
        request = httpx2.Request("GET", url, headers={"accept": "application/json"})
        answer = await exchange(self._destinations, request, DOCUMENT_BYTES)
        if answer.status_code != 200:
            raise ValueError(f"{url} answered {answer.status_code}")
        try:
            return msgspec.json.decode(answer.content, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"{url} is no JSON object") from error


def _keys(document: dict[str, Any], algorithms: Sequence[str]) -> tuple[PublicKey, ...]:
    """Return the public keys of a document that can verify signatures; others are left out."""
    entries = document.get("keys")
    found = list[PublicKey]()
    for entry in entries[:MOST_KEYS] if isinstance(entries, list) else ():
        if isinstance(entry, dict) and (key := _key(entry, algorithms)) is not None:
            found.append(key)
    return tuple(found)


def _key(entry: dict[str, Any], algorithms: Sequence[str]) -> PublicKey | None:
    import jwt  # noqa: PLC0415 - only where tokens of an issuer are accepted

    kid = entry.get("kid")
    if entry.get("use", "sig") != "sig" or not isinstance(kid, str | None):
        return None
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    shape = entry.get("kty"), entry.get("crv")
    named = entry.get("alg")
    fitting = [
        one
        for one in algorithms
        if (FAMILIES[one][0], FAMILIES[one][1] or shape[1]) == shape and named in (None, one)
    ]
    # The private part of a key that was published by mistake is not wanted here.
    public = {name: value for name, value in entry.items() if name not in ("d", "p", "q", "dp", "dq", "qi")}
    if not fitting:
        return None
    try:
        key = jwt.PyJWK(public, algorithm=fitting[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if shape[0] == "RSA" and key.key_size < LEAST_RSA_BITS:
        return None
    return PublicKey(kid, frozenset(fitting), key)
