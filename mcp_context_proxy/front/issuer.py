"""Tokens that an issuer has signed (JWT), and its public keys: whose a token is, and what it may do.

A token chooses among the keys that the issuer has published, by its ``kid``, and nothing else: where keys
come from is in the configuration, and no header of a token leads anywhere. Fetching is bounded in time, size
and rate, so that tokens with invented key ids cost one fetch in half a minute.

A person is ``sha256(issuer, subject)``: the same with each new token, and another one with another issuer.
The claims of a token are believed only once its signature, issuer, audience and times are right; the role and
the reach of a person are the ones that the configuration gives to the values of their claims.

A client without a token is told where to read who issues tokens for this proxy (`ResourceMetadata`, RFC
9728). The place and the content are those of the configuration; nothing of a request is repeated.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.tables import AuthConfig, is_encrypted
from mcp_context_proxy.errors import ConfigError, ConfigProblem
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system.threads import in_task, keep_latest, load
from mcp_context_proxy.trust import EVERYTHING, NOTHING, Principal, Reach, Role

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
        self._config, self._issuer, self._clock, self._seconds = config, config.issuer, clock, seconds
        self._destinations: Destinations | None = None
        self._keys: tuple[PublicKey, ...] = ()
        self._fetched_at = self._tried_at = -float("inf")
        self.fetched = 0.0
        """Time of the last successful fetch, in seconds since 1970."""
        self._fetching: anyio.Event | None = None
        self._waiting = 0
        self.fault: str | None = None
        """The reason why the last fetch failed; None if it did not."""
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

        Raises `KeysUnavailableError` if the keys are not known, and cannot be fetched now.
        """
        if self._usable and (found := self._among(kid, algorithm)):
            return found
        await self._refreshed()
        found = self._among(kid, algorithm)
        if not self._usable or (not found and self.fault is not None):
            raise KeysUnavailableError
        return found

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
            due = FRESH_SECONDS if self.fault is None else REFETCH_SECONDS
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
                url = self._config.jwks_url or await self._discovered()
                keys = _keys(await self._document(url), self._config.algorithms)
            if not keys:
                raise ValueError("it has no public key for the configured algorithms")
            self._keys, self._fetched_at, self.fetched = keys, self._clock(), time.time()
            for changed in self.changed:
                changed()
        except TimeoutError:
            fault = f"they did not come within {self._seconds:g} s"
        except Exception as error:
            # boundary: the network, and any document of the issuer
            fault = one_line(str(error) or type(error).__name__, FAULT_CHARACTERS)
        if fault is not None and fault != self.fault:
            logger.warning("the keys of the issuer %s cannot be fetched: %s", self._issuer, fault)
        elif fault is None and self.fault is not None:
            logger.warning("the keys of the issuer %s have been fetched again", self._issuer)
        self.fault = fault

    async def _discovered(self) -> str:
        """Return the URL of the keys, as the issuer's own document names it."""
        parts = urlsplit(self._issuer)
        base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        places = [
            f"{base}{path}/.well-known/openid-configuration",
            # RFC 8414 puts the well-known path first.
            f"{base}/.well-known/oauth-authorization-server{path}",
        ]
        fault: Exception | None = None
        for place in places:
            try:
                found = await self._document(place)
            except ValueError as error:
                fault = fault or error
                continue
            if found.get("issuer") != self._issuer:
                raise ValueError(f"{place} is the document of another issuer, {found.get('issuer')}")
            url = found.get("jwks_uri")
            if not isinstance(url, str) or not is_encrypted(url):
                raise ValueError(f"{place} names no jwks_uri that begins with https://")
            return url
        raise fault or ValueError("it has no document for discovery")

    async def _document(self, url: str) -> dict[str, Any]:
        """Return the JSON object at a URL; redirects are not followed."""
        # Loaded only where an issuer is configured: nothing else of the front needs an HTTP client.
        await load("mcp_context_proxy.oauth.token_endpoint")
        import httpx2  # noqa: PLC0415

        from mcp_context_proxy.oauth.token_endpoint import Destinations, exchange  # noqa: PLC0415

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


TOKEN_CHARACTERS: Final = 16 * 1024
"""Longest token; honest ones have one or two thousand characters."""

KID_CHARACTERS: Final = 256
SUBJECT_CHARACTERS: Final = 1024
LABEL_CHARACTERS: Final = 100

VALUES_READ: Final = 1000
"""Values of a claim that are looked at: more groups than a person is in."""

FOR_EVER: Final = 1 << 40
"""A time in seconds since 1970 that is later than any that matters."""

KEPT: Final = 4096
"""Tokens whose signature is not looked at again while the keys stay the same."""

TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Types of tokens that give access (RFC 9068); others of the same issuer log somebody out or prove a key."""

FORM: Final = re.compile(r"[A-Za-z0-9_-]{1,}\.[A-Za-z0-9_-]{1,}\.[A-Za-z0-9_-]{1,}", re.ASCII)
"""Form of a signed token. One without a signature has none."""

INSTALL: Final = "pip install 'mcp-context-proxy[jwt]'"


class TokenRefusedError(Exception):
    """A token is not accepted; the message says why, for the client that has it, and quotes nothing of it."""


class RoleMissingError(TokenRefusedError):
    """A token is genuine, and its owner may not use this proxy."""


class Issued(Struct, frozen=True):
    """An accepted token."""

    principal: Principal
    until: float
    """End of its validity, with the leeway, in seconds since 1970."""
    made: float
    """The earliest time at which it can have been made; minus infinity if it does not tell."""


class IssuedTokens:
    """Verifies the tokens of one issuer."""

    def __init__(self, config: Config, keys: KeySet | None = None) -> None:
        """Accept the tokens that the configuration describes, signed with `keys`: by default the issuer's.

        Raises `ConfigError` if something that is needed is not configured, or the extra is not installed.
        """
        settings = config.auth
        audience = settings.audience or config.http.resource_url
        if audience is None:
            message = "mode = 'jwt' needs http.resource_url, the public URL of this proxy: tokens are for it"
            raise ConfigError([ConfigProblem(config.path, None, "auth.mode", message)])
        try:
            import jwt  # noqa: PLC0415 - only where tokens of an issuer are accepted

            if not jwt.algorithms.has_crypto:
                raise ImportError
        except ImportError:
            message = f"mode = 'jwt' needs PyJWT with cryptography; run: {INSTALL}"
            raise ConfigError([ConfigProblem(config.path, None, "auth.mode", message)]) from None
        self._jwt, self._settings, self._audience = jwt, settings, audience
        self.keys = KeySet(settings) if keys is None else keys
        self.keys.changed.append(self._forget)
        self._known: OrderedDict[bytes, Issued] = OrderedDict()

    @staticmethod
    def may_be(token: str) -> bool:
        """Return whether a token looks like one of an issuer: it begins with a header, which is an object.

        Any other is counted as a guess, and compared with the proxy's own, which may have dots in it.
        """
        return FORM.fullmatch(token) is not None and _part_of(token, 0) is not None

    async def verify(self, token: str) -> Issued:
        """Return whose token this is.

        Raises `TokenRefusedError` if it is not accepted, and `KeysUnavailableError` if nothing can be said
        about it now.
        """
        if len(token) > TOKEN_CHARACTERS:
            raise TokenRefusedError("the token is too long")
        digest, now = hashlib.sha256(token.encode()).digest(), time.time()
        known = self._known.get(digest)
        if known is not None and now < known.until and self.keys.lack is None:
            self._known.move_to_end(digest)
            return known
        algorithm, kid = self._header(token)
        keys = await self.keys.fitting(kid, algorithm)
        if not keys and self.keys.fetched < now and self._is_newer(token, now):
            raise KeysUnavailableError
        claims = self._claims(token, algorithm, keys)
        # The library reads it so, too, however large it is.
        leeway, made = self._settings.leeway_seconds, claims.get("iat")
        until = min(int(claims["exp"]), FOR_EVER) + leeway
        made = made - leeway if isinstance(made, int | float) and math.isfinite(made) else -math.inf
        return keep_latest(self._known, digest, Issued(self._principal(claims), until, made), KEPT)

    def _is_newer(self, token: str, now: float) -> bool:
        """Return whether a token says that it is newer than the keys.

        That decides between waiting and refusal: whoever is refused logs in again, and gets another like it.
        """
        made = (_part_of(token, 1) or {}).get("iat")
        # Issuers write whole seconds.
        newest = now + self._settings.leeway_seconds
        return isinstance(made, int | float) and self.keys.fetched - 1 < made <= newest

    def _forget(self) -> None:
        self._known.clear()

    def _header(self, token: str) -> tuple[str, str | None]:
        """Return algorithm and key id of a token; nothing else in its header is looked at, or followed."""
        header = _part_of(token, 0)
        if header is None:
            raise TokenRefusedError("the header of the token cannot be read")
        algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
        if not isinstance(algorithm, str) or algorithm not in self._settings.algorithms:
            raise TokenRefusedError("the token is signed in a way that is not accepted here")
        if "crit" in header or "b64" in header:
            raise TokenRefusedError("the token needs an extension that is not known here")
        if not isinstance(kind, str) or kind.lower() not in TYPES:
            raise TokenRefusedError("this is no access token")
        if kid is not None and (not isinstance(kid, str) or len(kid) > KID_CHARACTERS):
            raise TokenRefusedError("the key of the token cannot be read")
        assert algorithm in FAMILIES
        return algorithm, kid

    def _claims(self, token: str, algorithm: str, keys: Any) -> dict[str, Any]:
        jwt, reason = self._jwt, "it is signed with a key that the issuer does not have"
        for key in keys:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key.key,
                    algorithms=[algorithm],
                    audience=self._audience,
                    issuer=self._settings.issuer,
                    leeway=self._settings.leeway_seconds,
                    options={"require": ["exp", "iss", "aud", "sub"]},
                )
            except jwt.InvalidSignatureError:
                reason = "its signature is wrong"
            except jwt.ExpiredSignatureError:
                reason = "it has expired"
            except jwt.ImmatureSignatureError:
                reason = "it is not valid yet"
            except jwt.InvalidIssuerError:
                reason = "it is from another issuer"
            except jwt.InvalidAudienceError:
                reason = "it is for another service"
            except jwt.MissingRequiredClaimError as error:
                reason = f"it lacks the claim {error.claim}"
            except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError):
                reason = "it cannot be read"
            else:
                return claims
        raise TokenRefusedError(f"the token is not accepted: {reason}")

    def _principal(self, claims: dict[str, Any]) -> Principal:
        settings, subject = self._settings, claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARACTERS:
            raise TokenRefusedError("the token is not accepted: its claim sub cannot be used")
        given = [settings.roles[one] for one in values(claims, settings.roles_claim) if one in settings.roles]
        if not given:
            if settings.default_role == "none":
                raise RoleMissingError("the token gives no role here")
            given.append(settings.default_role)
        role = max(Role[one.upper()] for one in given)
        return Principal(
            principal_name(claims["iss"], subject),
            role,
            EVERYTHING if role is Role.ADMIN else self._reach(claims),
            one_line(subject, LABEL_CHARACTERS),
        )

    def _reach(self, claims: dict[str, Any]) -> tuple[Reach, ...]:
        groups = self._settings.groups
        if not groups:
            return EVERYTHING
        member_of = {"*", *values(claims, self._settings.groups_claim, words=False)}
        found = [
            Reach(
                None if one.servers is None else frozenset(one.servers),
                None if one.classes is None else frozenset(one.classes),
            )
            for name, one in groups.items()
            if name in member_of
        ]
        return tuple(found) or NOTHING


def _part_of(token: str, number: int) -> dict[str, Any] | None:
    encoded = token.split(".", 2)[number][:TOKEN_CHARACTERS]
    try:
        decoded = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        return msgspec.json.decode(decoded, type=dict[str, Any])
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None


def principal_name(issuer: str, subject: str) -> str:
    """Return the name of a person; no named token can have it, because of the colon."""
    return "jwt:" + hashlib.sha256(f"{issuer}\0{subject}".encode(errors="surrogatepass")).hexdigest()


def values(claims: dict[str, Any], path: str, *, words: bool = True) -> Iterator[str]:
    """Yield the values of a claim, a list or a text, with `words` each of its words.

    Dots lead into objects, where no claim has them.
    """
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        found = found.split() if words else [found]
    for value in found[:VALUES_READ] if isinstance(found, list) else ():
        if isinstance(value, str):
            yield value


WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
"""Beginning of the paths of the metadata; a resource with a path has it after this."""

RETRY_KEYS_SECONDS: Final = "5"
"""Value of ``Retry-After`` while the keys of the issuer cannot be had."""

NEEDED: Final = "A bearer token is needed: Authorization: Bearer TOKEN\n"


class ResourceMetadata:
    """The metadata of one proxy, and its challenges."""

    def __init__(self, config: Config) -> None:
        """Describe the proxy of a configuration with ``auth.mode = "jwt"``."""
        resource = config.http.resource_url or config.auth.audience or ""
        parts = urlsplit(resource)
        self._path = parts.path.rstrip("/")
        self._url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{self._path}" if parts.netloc else None
        self._content = {
            "resource": resource,
            "resource_name": "mcp-context-proxy",
            "authorization_servers": [config.auth.issuer],
            "bearer_methods_supported": ["header"],
        }
        if config.auth.scopes:
            self._content["scopes_supported"] = list(config.auth.scopes)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the metadata: with the path of the resource, and without it."""

        async def metadata(_request: Request) -> Response:
            return JSONResponse(self._content, headers={"Cache-Control": "max-age=600"})

        paths = dict.fromkeys((WELL_KNOWN, WELL_KNOWN + self._path))
        return [Route(path, metadata, methods=["GET"]) for path in paths]

    def challenge(self, **facts: str) -> str:
        """Return the value of ``WWW-Authenticate``; the facts are words of ours, without quotation marks."""
        if self._url is not None:
            facts["resource_metadata"] = self._url
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in facts.items())

    def refused(
        self, why: str, status: HTTPStatus = HTTPStatus.UNAUTHORIZED, error: str = "invalid_token"
    ) -> Response:
        headers = {"WWW-Authenticate": self.challenge(error=error, error_description=why)}
        return PlainTextResponse(f"{why[0].upper()}{why[1:]}.\n", status, headers)


def undecided() -> Response:
    text = "The keys of the issuer, or what was revoked, cannot be read now; nothing was decided.\n"
    return PlainTextResponse(text, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": RETRY_KEYS_SECONDS})
