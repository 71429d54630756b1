"""Tokens that an issuer has signed (JWT): whose they are, what those may do, and until when.

A person is ``sha256(issuer, subject)``: the same with each new token, and another one with another issuer.
What a token says is believed only once its signature, issuer, audience and times are right; the role and the
reach of a person are the ones that the configuration gives to the values of their claims.

A client without a token is told where to read who issues tokens for this proxy (`ResourceMetadata`, RFC
9728). The place and the content are those of the configuration; nothing of a request is repeated.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from mcp_context_proxy.config import Config
from mcp_context_proxy.errors import ConfigError, ConfigProblem
from mcp_context_proxy.front.issuer_keys import FAMILIES, KeySet
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.trust.tokens import EVERYTHING, NOTHING, Principal, Reach, Role

TOKEN_CHARACTERS: Final = 16 * 1024
"""Longest token; honest ones have one or two thousand characters."""

HEADER_CHARACTERS: Final = 8 * 1024
"""Longest header of a token that is looked at before anything else; honest ones have a hundred."""

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


class IssuedTokens:
    """Verifies the tokens of one issuer."""

    def __init__(
        self, config: Config, keys: KeySet | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Accept the tokens that the configuration describes, signed with `keys`: by default the issuer's.

        Raises:
            ConfigError: something that is needed is not configured, or the extra is not installed.
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
        self._jwt, self._settings, self._audience, self._clock = jwt, settings, audience, clock
        self.keys = KeySet(settings) if keys is None else keys
        self.keys.changed.append(self._forget)
        self._known: OrderedDict[bytes, Issued] = OrderedDict()

    @staticmethod
    def may_be(token: str) -> bool:
        """Return whether a token looks like one of an issuer: it begins with a header, which is an object.

        Any other is counted as a guess, and compared with the proxy's own, which may have dots in it.
        """
        if FORM.fullmatch(token) is None:
            return False
        encoded = token.partition(".")[0][:HEADER_CHARACTERS]
        try:
            header = msgspec.json.decode(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        except (ValueError, RecursionError, msgspec.DecodeError):
            return False
        return isinstance(header, dict)

    async def verify(self, token: str) -> Issued:
        """Return whose token this is.

        Raises:
            TokenRefusedError: it is not accepted.
            KeysUnavailableError: nothing can be said about it now.
        """
        if len(token) > TOKEN_CHARACTERS:
            raise TokenRefusedError("the token is too long")
        digest, now = hashlib.sha256(token.encode()).digest(), self._clock()
        known = self._known.get(digest)
        if known is not None and now < known.until and self.keys.lack is None:
            self._known.move_to_end(digest)
            return known
        algorithm, kid = self._header(token)
        claims = self._claims(token, algorithm, await self.keys.fitting(kid, algorithm))
        # The library reads it so, too, however large it is.
        until = min(int(claims["exp"]), FOR_EVER) + self._settings.leeway_seconds
        issued = Issued(self._principal(claims), until)
        self._known[digest] = issued
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return issued

    def _forget(self) -> None:
        self._known.clear()

    def _header(self, token: str) -> tuple[str, str | None]:
        """Return algorithm and key id of a token; nothing else in its header is looked at, or followed."""
        try:
            encoded = token.partition(".")[0]
            header = msgspec.json.decode(self._jwt.utils.base64url_decode(encoded), type=dict[str, Any])
        except (ValueError, RecursionError, msgspec.DecodeError):
            raise TokenRefusedError("the header of the token cannot be read") from None
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
        member_of = {"*", *values(claims, self._settings.groups_claim)}
        found = [
            Reach(
                None if one.servers is None else frozenset(one.servers),
                None if one.classes is None else frozenset(one.classes),
            )
            for name, one in groups.items()
            if name in member_of
        ]
        return tuple(found) or NOTHING


def principal_name(issuer: str, subject: str) -> str:
    """Return the name of a person; no named token can have it, because of the colon."""
    return "jwt:" + hashlib.sha256(f"{issuer}\0{subject}".encode(errors="surrogatepass")).hexdigest()


def values(claims: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the words of a claim, a list or a text. Dots lead into objects, where no claim has them."""
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        found = found.split()
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

    def refused(self, why: str) -> Response:
        """Return the response to a token that is not accepted."""
        value = self.challenge(error="invalid_token", error_description=why)
        headers = {"WWW-Authenticate": value}
        return PlainTextResponse(f"{why[0].upper()}{why[1:]}.\n", HTTPStatus.UNAUTHORIZED, headers)

    def without_role(self, why: str) -> Response:
        """Return the response to a genuine token of somebody who may not use the proxy."""
        value = self.challenge(error="insufficient_scope", error_description=why)
        headers = {"WWW-Authenticate": value}
        return PlainTextResponse(f"{why[0].upper()}{why[1:]}.\n", HTTPStatus.FORBIDDEN, headers)


def undecided() -> Response:
    """Return the response to a token about which nothing can be said now."""
    text = "The keys of the issuer cannot be had now; nothing was decided about the token.\n"
    return PlainTextResponse(text, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": RETRY_KEYS_SECONDS})
