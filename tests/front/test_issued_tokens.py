"""Tokens of an issuer: a table of good, bad and forged ones, and an issuer that behaves badly."""

import hashlib
import hmac
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from support.clocks import Clock
from support.issuer import AUDIENCE, Issuer, ec_key, encoded, issuing, jwk, pem, rsa_key
from support.tables import each

from mcp_context_proxy.config import Config
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.front.issuer import (
    FRESH_SECONDS,
    REFETCH_SECONDS,
    STALE_SECONDS,
    IssuedTokens,
    KeySet,
    KeysUnavailableError,
    RoleMissingError,
    TokenRefusedError,
    principal_name,
)
from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.trust import NOTHING, Principal, Reach, Role


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        yield running


def config(of: Issuer, /, **more: Any) -> Config:
    return Config.of({"auth": of.settings(**more), "http": {"resource_url": AUDIENCE}})


def tokens_of(issuer: Issuer, clock: Clock | None = None, seconds: float = 10.0, **more: Any) -> IssuedTokens:
    settings = config(issuer, **more)
    keys = KeySet(settings.auth, time.monotonic if clock is None else clock, seconds)
    return IssuedTokens(settings, keys)


async def who(issuer: Issuer, token: str, **more: Any) -> Principal:
    return (await tokens_of(issuer, **more).verify(token)).principal


async def test_a_person_is_issuer_and_subject_whatever_else_is_in_the_token(issuer: Issuer) -> None:
    tokens = tokens_of(issuer)
    first = (await tokens.verify(issuer.token("anna"))).principal
    refreshed = (
        await tokens.verify(issuer.token("anna", jti="another", exp=int(time.time()) + 5000))
    ).principal
    other = (await tokens.verify(issuer.token("ben"))).principal

    assert first.name == refreshed.name == "jwt:" + hashlib.sha256(f"{issuer.url}\0anna".encode()).hexdigest()
    assert other.name != first.name
    assert principal_name("https://other.example", "anna") != first.name
    assert principal_name("a", "b\0c") != principal_name("a\0b", "c\0")
    assert (first.role, first.limited, first.label) == (Role.USE, False, "anna")


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_each_kind_of_key_is_verified(issuer: Issuer, algorithm: str) -> None:
    issuer.key = {
        "RS256": rsa_key,
        "ES256": ec_key,
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
    }[algorithm]()
    issuer.algorithm, issuer.keys = algorithm, [jwk(issuer.key, "one"), jwk(ec_key(), "two")]

    assert (await who(issuer, issuer.token("anna"))).label == "anna"


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"x") -> str:
    parts = [encoded(json.dumps(part).encode()) for part in (header, claims)]
    return ".".join([*parts, encoded(signature)])


def with_secret(issuer: Issuer, secret: bytes, algorithm: str = "HS256") -> str:
    head = unsigned({"alg": algorithm, "typ": "JWT", "kid": issuer.kid}, issuer.claims()).rpartition(".")[0]
    return f"{head}.{encoded(hmac.digest(secret, head.encode(), 'sha256'))}"


def by_a_stranger(issuer: Issuer, **headers: Any) -> str:
    stranger = ec_key()
    own = jwk(stranger, "one")
    named = {name: own if value is ... else value for name, value in headers.items()}
    claims = issuer.claims(iat=int(time.time()) - 5)
    return jwt.encode(claims, stranger, "ES256", headers={"kid": issuer.kid} | named)


def changed(issuer: Issuer) -> str:
    head, _, signature = issuer.token("anna").split(".")
    return f"{head}.{encoded(json.dumps(issuer.claims('ben')).encode())}.{signature}"


FORGED: dict[str, Callable[[Issuer], str]] = {
    "no signature, as the standard writes it": lambda i: unsigned({"alg": "none"}, i.claims(), b""),
    "alg none": lambda i: unsigned({"alg": "none", "kid": i.kid}, i.claims()),
    "alg None": lambda i: unsigned({"alg": "None", "kid": i.kid}, i.claims()),
    "alg nOnE": lambda i: unsigned({"alg": "nOnE", "kid": i.kid}, i.claims()),
    "alg missing": lambda i: unsigned({"kid": i.kid}, i.claims()),
    "alg a list": lambda i: unsigned({"alg": ["ES256"], "kid": i.kid}, i.claims()),
    "the public key as a secret": lambda i: with_secret(i, pem(i.key)),
    "the published key as a secret": lambda i: with_secret(i, json.dumps(i.keys[0]).encode()),
    "an empty secret": lambda i: with_secret(i, b""),
    "a secret called a signature": lambda i: with_secret(i, pem(i.key), "ES256"),
    "a signature of zeros": lambda i: unsigned({"alg": "ES256", "kid": i.kid}, i.claims(), b"\0" * 64),
    "other claims under a signature": changed,
    "a stranger's key": by_a_stranger,
    "a stranger's key in the token": lambda i: by_a_stranger(i, jwk=...),
    "a path as key id": lambda i: by_a_stranger(i, kid="../../../dev/null"),
    "a query as key id": lambda i: by_a_stranger(i, kid="one' UNION SELECT 'x"),
    "a URL as key id": lambda i: by_a_stranger(i, kid=f"{i.url}/attacker"),
    "a number as key id": lambda i: unsigned({"alg": "ES256", "kid": 1}, i.claims()),
    "a long key id": lambda i: by_a_stranger(i, kid="k" * 5000),
    "keys elsewhere": lambda i: by_a_stranger(i, jku=f"{i.url}/attacker", kid="new"),
    "certificates elsewhere": lambda i: by_a_stranger(i, x5u=f"{i.url}/attacker", kid="new"),
    "an unknown extension": lambda i: i.token(headers={"crit": ["exp"]}),
    "a payload that is not encoded": lambda i: i.token(headers={"b64": False}),
    "a token of a logout": lambda i: i.token(headers={"typ": "logout+jwt"}),
    "a proof of a key": lambda i: i.token(headers={"typ": "dpop+jwt"}),
    "another issuer": lambda i: i.token(iss="https://other.example"),
    "an issuer with a slash more": lambda i: i.token(iss=i.url + "/"),
    "no issuer": lambda i: i.token(iss=None),
    "another audience": lambda i: i.token(aud="https://proxy.example.com"),
    "other audiences": lambda i: i.token(aud=["a", "b"]),
    "no audience": lambda i: i.token(aud=None),
    "no subject": lambda i: i.token(sub=None),
    "an empty subject": lambda i: i.token(""),
    "a long subject": lambda i: i.token("x" * 2000),
    "expired": lambda i: i.token(exp=int(time.time()) - 31),
    "no expiry": lambda i: i.token(exp=None),
    "an infinite expiry": lambda i: i.token(exp=float("inf")),
    "an expiry in words": lambda i: i.token(exp="never"),
    "not valid yet": lambda i: i.token(nbf=int(time.time()) + 60),
    "issued in the future": lambda i: i.token(iat=int(time.time()) + 3600),
    "far too long": lambda i: i.token(more="x" * 20_000),
    "a header of brackets": lambda i: f"{encoded(b'[' * 8000)}.e30.eA",
    "a header that is a list": lambda i: f"{encoded(b'[]')}.e30.eA",
    "a header that is no text": lambda i: f"{encoded(bytes(range(200, 256)))}.e30.eA",
    "claims of brackets": lambda i: f"{i.token().partition('.')[0]}.{encoded(b'[' * 8000)}.eA",
}


@each("how", FORGED)
async def test_a_forged_or_unfit_token_is_refused_and_leads_nowhere(issuer: Issuer, how: str) -> None:
    issuer.asked.clear()
    tokens = tokens_of(issuer)
    await tokens.verify(issuer.token())
    token = FORGED[how](issuer)
    with pytest.raises(TokenRefusedError) as refused:
        await tokens.verify(token)

    assert not [path for path in issuer.asked if "attacker" in path or "null" in path]
    assert issuer.asked.count("/keys") == 1
    assert token[:20] not in str(refused.value)


async def test_leeway_and_several_audiences_are_accepted(issuer: Issuer) -> None:
    now = int(time.time())
    await who(issuer, issuer.token(exp=now - 5, nbf=now + 5, aud=["other", AUDIENCE]))
    await who(issuer, issuer.token(headers={"typ": "at+JWT"}))


@each(
    "key",
    [
        pytest.param(lambda i: {"kty": "oct", "kid": "one", "k": encoded(b"s" * 32)}, id="a secret"),
        pytest.param(lambda i: jwk(i.key, "one", use="enc"), id="a key for encryption"),
        pytest.param(lambda i: jwk(i.key, "one", key_ops=["deriveKey"]), id="a key for another operation"),
        pytest.param(lambda i: jwk(i.key, "one", alg="ES384"), id="a key for another algorithm"),
        pytest.param(lambda i: jwk(rsa_key("small", 1024), "one"), id="a short key"),
        pytest.param(lambda i: jwk(ec.generate_private_key(ec.SECP384R1()), "one"), id="another curve"),
        pytest.param(
            lambda i: {"kty": "EC", "crv": "P-256", "kid": "one", "x": "AA", "y": "AA"}, id="no point"
        ),
        pytest.param(lambda i: "one", id="no key at all"),
    ],
)
async def test_a_key_that_does_not_fit_verifies_nothing(issuer: Issuer, key: Callable[[Issuer], Any]) -> None:
    issuer.keys = [key(issuer), jwk(ec_key(), "spare")]
    with pytest.raises(TokenRefusedError):
        await who(issuer, issuer.token())


async def test_a_token_without_a_key_id_is_for_an_issuer_with_one_key(issuer: Issuer) -> None:
    token = jwt.encode(issuer.claims(), issuer.key, "ES256")
    assert (await who(issuer, token)).label == "anna"

    issuer.keys.append(jwk(ec_key(), "two"))
    with pytest.raises(TokenRefusedError):
        await who(issuer, token)


async def test_a_new_key_is_fetched_and_an_old_one_no_longer_believed(issuer: Issuer) -> None:
    clock = Clock(1000.0)
    tokens, old = tokens_of(issuer, clock), issuer.token(iat=int(time.time()) - 5)
    await tokens.verify(old)
    issuer.rotate("two")
    # Until then only a token that is older than the last fetch is refused.
    for newer in ({}, {"iat": time.time()}, {"groups": ["g" * 1_000] * 8}):
        with pytest.raises(KeysUnavailableError):
            await tokens.verify(issuer.token(**newer))
    for made in (int(time.time()) - 5, int(time.time()) + 3600, None, "now"):
        with pytest.raises(TokenRefusedError):
            await tokens.verify(issuer.token(iat=made))
    clock.now += REFETCH_SECONDS + 1

    await tokens.verify(issuer.token())
    with pytest.raises(TokenRefusedError):
        await tokens.verify(old)


async def test_invented_key_ids_cost_one_fetch_in_half_a_minute(issuer: Issuer) -> None:
    clock = Clock(1000.0)
    tokens = tokens_of(issuer, clock)

    async def invented(number: int) -> None:
        with pytest.raises(TokenRefusedError):
            await tokens.verify(by_a_stranger(issuer, kid=f"k{number}"))

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(invented, number)
    assert issuer.asked.count("/keys") == 1
    clock.now += REFETCH_SECONDS + 1
    for number in range(10):
        await invented(number)
    assert issuer.asked.count("/keys") == 2


BAD_ISSUERS: dict[str, dict[str, tuple[int, dict[str, str], bytes]]] = {
    "a redirect": {"/keys": (302, {"location": "/elsewhere"}, b"")},
    "too much": {"/keys": (200, {}, b'{"keys": [' + b'"x",' * 100_000 + b'"x"]}')},
    "no JSON": {"/keys": (200, {}, b"<html>")},
    "brackets": {"/keys": (200, {}, b"[" * 100_000)},
    "a list": {"/keys": (200, {}, b"[]")},
    "no keys": {"/keys": (200, {}, b'{"keys": "one"}')},
    "an error": {"/keys": (500, {}, b"{}")},
    "the document of another": {
        "/.well-known/openid-configuration": (200, {}, b'{"issuer": "https://x.example", "jwks_uri": "x"}')
    },
}


@each("how", BAD_ISSUERS)
async def test_an_issuer_that_answers_badly_lets_nobody_in_and_harms_nothing(
    issuer: Issuer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.asked.clear()
    caplog.clear()
    issuer.answers = BAD_ISSUERS[how]
    tokens = tokens_of(issuer)
    with pytest.raises(KeysUnavailableError):
        await tokens.verify(issuer.token())

    assert tokens.keys.lack is not None
    assert "cannot be fetched" in caplog.text
    assert "/elsewhere" not in issuer.asked


@each("where", ["https://169.254.169.254/keys", "http://10.0.0.1/keys", "file:///etc/passwd"])
async def test_discovery_leads_to_no_address_nearer_or_unencrypted(issuer: Issuer, where: str) -> None:
    document = json.dumps({"issuer": issuer.url, "jwks_uri": where}).encode()
    issuer.answers = {"/.well-known/openid-configuration": (200, {}, document)}
    with pytest.raises(KeysUnavailableError):
        await who(issuer, issuer.token())


async def test_a_slow_issuer_delays_those_alone_who_have_a_new_key(issuer: Issuer) -> None:
    clock = Clock(1000.0)
    tokens = tokens_of(issuer, clock, seconds=1.0)
    known = issuer.token("anna")
    await tokens.verify(known)
    issuer.delay = 2.0
    clock.now += REFETCH_SECONDS + 1
    async with anyio.create_task_group() as group:

        async def unknown() -> None:
            with pytest.raises(KeysUnavailableError):
                await tokens.verify(by_a_stranger(issuer, kid="new"))
            group.cancel_scope.cancel()

        group.start_soon(unknown)
        while not group.cancel_scope.cancel_called:
            await tokens.verify(issuer.token("ben"))
            await anyio.lowlevel.checkpoint()


async def test_keys_are_used_for_an_hour_while_the_issuer_is_away(issuer: Issuer) -> None:
    clock = Clock(1000.0)
    tokens = tokens_of(issuer, clock)
    known = issuer.token()
    await tokens.verify(known)
    issuer.answers = {"/keys": (503, {}, b"")}
    clock.now += FRESH_SECONDS + 1
    await tokens.verify(issuer.token("ben"))
    clock.now += STALE_SECONDS

    # Also one that was accepted before: its key may have been withdrawn.
    for token in (issuer.token("carla"), known):
        with pytest.raises(KeysUnavailableError):
            await tokens.verify(token)


async def test_nothing_is_decided_about_a_new_key_while_the_issuer_is_away(issuer: Issuer) -> None:
    """A client that is told that its token is wrong logs its person in again, and gets another like it."""
    clock = Clock(1000.0)
    tokens, old = tokens_of(issuer, clock), issuer.token()
    await tokens.verify(old)
    issuer.rotate("two")
    issuer.answers = {"/keys": (503, {}, b"")}
    clock.now += REFETCH_SECONDS + 1
    for _ in range(2):
        with pytest.raises(KeysUnavailableError):
            await tokens.verify(issuer.token("ben"))
    await tokens.verify(old)

    issuer.answers.clear()
    clock.now += REFETCH_SECONDS + 1
    assert (await tokens.verify(issuer.token("ben"))).principal.label == "ben"


@pytest.mark.parametrize("exp", [10**400, 1e300])
async def test_a_token_that_hardly_ever_expires_is_one_like_any_other(issuer: Issuer, exp: float) -> None:
    assert (await who(issuer, issuer.token("anna", exp=exp))).label == "anna"


async def test_keys_at_a_configured_url_need_no_discovery(issuer: Issuer) -> None:
    await who(issuer, issuer.token(), jwks_url=f"{issuer.url}/keys")

    assert issuer.asked == ["/keys"]


ROLES = {"roles": {"mcp-view": "view", "mcp-admins": "admin"}}


@each(
    ("settings", "claims", "role"),
    [
        (ROLES, {}, Role.USE),
        (ROLES, {"roles": ["mcp-view", "other"]}, Role.VIEW),
        (ROLES, {"roles": "other mcp-view mcp-admins"}, Role.ADMIN),
        (ROLES, {"roles": ["admin"]}, Role.USE),
        (ROLES, {"roles": {"mcp-admins": True}}, Role.USE),
        (ROLES, {"roles": [["mcp-admins"], 7, None]}, Role.USE),
        (ROLES, {"role": "mcp-admins"}, Role.USE),
        (ROLES | {"default_role": "view"}, {}, Role.VIEW),
        (ROLES | {"roles_claim": "realm_access.roles"}, {"realm_access": {"roles": ["mcp-view"]}}, Role.VIEW),
        (
            ROLES | {"roles_claim": "https://x.example/roles"},
            {"https://x.example/roles": ["mcp-view"]},
            Role.VIEW,
        ),
    ],
)
async def test_a_role_is_the_highest_that_the_claim_gives(
    issuer: Issuer, settings: dict[str, Any], claims: dict[str, Any], role: Role
) -> None:
    assert (await who(issuer, issuer.token(**claims), **settings)).role is role


async def test_without_a_role_nobody_is_let_in_where_there_is_no_default(issuer: Issuer) -> None:
    settings = ROLES | {"default_role": "none"}
    with pytest.raises(RoleMissingError):
        await who(issuer, issuer.token(), **settings)

    assert (await who(issuer, issuer.token(roles=["mcp-view"]), **settings)).role is Role.VIEW


GROUPS: dict[str, Any] = {
    "groups": {"a": {"servers": ["x"], "classes": ["read"]}, "b": {"servers": ["y"]}, "*": {"servers": ["z"]}}
}
X, Y, Z = (
    Reach(frozenset({"x"}), frozenset({ToolClass.READ})),
    Reach(frozenset({"y"})),
    Reach(frozenset({"z"})),
)


@pytest.mark.parametrize(
    ("groups", "claims", "reach"),
    [
        (GROUPS["groups"], {}, {Z}),
        (GROUPS["groups"], {"groups": ["a"]}, {X, Z}),
        (GROUPS["groups"], {"groups": ["a", "b", "c"]}, {X, Y, Z}),
        (GROUPS["groups"], {"groups": "a"}, {X, Z}),
        (GROUPS["groups"], {"groups": "not a"}, {Z}),
        ({"a": GROUPS["groups"]["a"]}, {"groups": ["b"]}, set(NOTHING)),
        ({}, {"groups": ["b"]}, {Reach()}),
        (GROUPS["groups"], {"roles": ["mcp-admins"]}, {Reach()}),
    ],
)
async def test_the_reach_of_somebody_is_that_of_their_groups(
    issuer: Issuer, groups: dict[str, Any], claims: dict[str, Any], reach: set[Reach]
) -> None:
    found = await who(issuer, issuer.token(**claims), groups=groups, **ROLES)

    assert set(found.reach) == reach


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": None},
        {"issuer": "http://issuer.example"},
        {"jwks_url": "ftp://issuer.example/keys"},
        {"algorithms": ["HS256"]},
        {"algorithms": ["none"]},
        {"algorithms": []},
        {"leeway_seconds": 3600.0},
        {"roles": {"x": "root"}},
        {"mode": "basic"},
    ],
)
def test_settings_that_would_let_in_anybody_are_refused(issuer: Issuer, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        config(issuer, **wrong)


def test_an_audience_is_needed(issuer: Issuer) -> None:
    with pytest.raises(ConfigError, match="resource_url"):
        IssuedTokens(Config.of({"auth": issuer.settings()}))


def test_without_the_extra_the_error_says_what_to_install(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(ConfigError, match=r"pip install 'mcp-context-proxy\[jwt\]'"):
        IssuedTokens(config(issuer))


def test_no_library_of_tokens_is_imported_where_none_of_an_issuer_are_accepted() -> None:
    modules = "app.serve, front.http, front.issuer, web"
    imports = ", ".join(f"mcp_context_proxy.{name}" for name in modules.split(", "))
    program = f"import sys, {imports}\nsys.exit('jwt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
