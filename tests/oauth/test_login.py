"""A login is made with the right issuer, for the right server, by the right person or machine."""

import base64
import json
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import jwt
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl
from support.authorization import MACHINE_ID, MACHINE_SECRET, Protected, protected_server
from support.certificates import Authority

from mcp_context_proxy.config import OAuthConfig, ServerConfig, load
from mcp_context_proxy.errors import AuthorizationError, LoginRequiredError
from mcp_context_proxy.oauth import CredentialFile, login

from .conftest import fetched, logged_in, server_config, visit


async def test_a_login_discovers_registers_and_gives_tokens_for_this_server(
    protected: Protected,
) -> None:
    credentials = await logged_in(server_config(protected))

    assert credentials.issuer == protected.issuer.url
    assert credentials.token_endpoint == f"{protected.issuer.url}/token"
    issued = protected.issuer.access[credentials.access_token]
    assert issued.resource == protected.url
    assert protected.issuer.clients[credentials.client_id].client_name == "MCP Context Proxy"
    assert await fetched(server_config(protected)) != 401


async def test_stored_credentials_are_readable_by_their_owner_alone_and_never_logged(
    protected: Protected,
) -> None:
    config = server_config(protected)
    credentials = await logged_in(config)
    file = CredentialFile(config)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert credentials.access_token not in repr(credentials)
    assert file.read() == credentials


async def test_a_refusal_is_reported_in_its_own_words(protected: Protected) -> None:
    protected.issuer.refuses = True
    with pytest.raises(AuthorizationError, match="access_denied"):
        await logged_in(server_config(protected))


async def test_where_no_client_is_registered_a_person_is_told_what_to_ask_for_and_to_set(
    protected: Protected,
) -> None:
    protected.issuer.registers = False
    with pytest.raises(AuthorizationError) as refused:
        await logged_in(server_config(protected))

    assert "clients are registered by its operator" in str(refused.value)
    assert "http://127.0.0.1:PORT/callback" in str(refused.value)
    assert "set oauth.client_id and oauth.redirect_port under servers.locked" in str(refused.value)


async def test_a_registration_that_cannot_be_used_tells_no_secret_of_it(protected: Protected) -> None:
    protected.issuer.registered = {"client_secret": "leaked-s3cret"}
    with pytest.raises(AuthorizationError, match="gave no usable client") as failed:
        await logged_in(server_config(protected))

    assert "leaked" not in str(failed.value)


async def test_the_words_of_a_refusal_hide_nothing_and_stay_on_one_line(protected: Protected) -> None:
    protected.issuer.refuses = True
    protected.issuer.refusal = "not\x1b]0;owned\x07\u202e\u2800 you\n" + "\n" * 200 + "x" * 10_000
    with pytest.raises(AuthorizationError) as refused:
        await logged_in(server_config(protected))

    assert "the login was refused (access_denied: not you xxx" in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1_000


async def test_metadata_that_names_another_issuer_is_refused(protected: Protected) -> None:
    protected.issuer.named_issuer = "https://evil.example"
    with pytest.raises(AuthorizationError, match="issuer mismatch"):
        await logged_in(server_config(protected))

    assert protected.issuer.clients == {}


async def test_a_server_that_names_an_issuer_other_than_the_configured_one_is_refused(
    protected: Protected,
) -> None:
    with pytest.raises(AuthorizationError, match=r"not https://mine\.example"):
        await logged_in(server_config(protected, issuer="https://mine.example"))

    assert protected.issuer.clients == {}


@pytest.mark.parametrize("grant", ["registered", "configured"])
async def test_without_a_word_about_pkce_the_login_is_refused_before_anything_is_registered(
    protected: Protected, grant: str
) -> None:
    protected.issuer.pkce_methods = None
    known = {"client_id": "mine", "issuer": protected.issuer.url} if grant == "configured" else {}
    with pytest.raises(AuthorizationError, match=r"set oauth\.assume_pkce = true under servers\.locked"):
        await logged_in(server_config(protected, **known))

    assert protected.issuer.clients == {}
    assert protected.issuer.granted == []


async def test_pkce_can_be_assumed_where_a_person_knows_of_it(protected: Protected) -> None:
    protected.issuer.pkce_methods = None
    config = server_config(protected, assume_pkce=True)
    await logged_in(config)

    assert await fetched(config) != 401


@pytest.mark.parametrize("methods", [[], ["plain"]])
async def test_an_issuer_with_weaker_pkce_is_refused_whatever_is_assumed(
    protected: Protected, methods: list[str]
) -> None:
    protected.issuer.pkce_methods = methods
    with pytest.raises(AuthorizationError, match="does not support PKCE with S256"):
        await logged_in(server_config(protected, assume_pkce=True))

    assert protected.issuer.clients == {}


BROKEN = [b"{", b"{}", b'{"resource": 5}', b'{"resource": "https://a.example", "authorization_servers": []}']


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_broken_metadata_of_the_server_ends_the_login_with_the_reason(
    protected: Protected, content: bytes, kind: str
) -> None:
    protected.metadata = content, kind
    with pytest.raises(AuthorizationError, match=r"its metadata at http.* cannot be used \(RFC 9728\)"):
        await logged_in(server_config(protected))

    assert protected.issuer.clients == {}


HIDING = [
    "http://login.example/authorize",
    "https://google.com@login.example/authorize",
    "https://login.example/#x",
]


@pytest.mark.parametrize("door", HIDING)
async def test_a_person_is_sent_to_no_page_that_is_unencrypted_or_hides_its_host(
    protected: Protected, door: str
) -> None:
    protected.issuer.named_door = door
    with pytest.raises(AuthorizationError, match=r"https|user name"):
        await logged_in(server_config(protected))

    assert protected.issuer.clients == {}


async def test_no_name_of_an_authorization_server_passes_for_that_of_another(protected: Protected) -> None:
    named = protected.issuer.url.replace("//", "//github.com@")
    protected.issuer.named_issuer = named
    metadata = {"resource": protected.url, "authorization_servers": [named]}
    protected.metadata = json.dumps(metadata).encode(), "application/json"
    with pytest.raises(AuthorizationError, match="name of its authorization server cannot be used"):
        await logged_in(server_config(protected))

    assert protected.issuer.clients == {}


async def test_what_a_person_is_told_is_not_pushed_out_of_sight_by_the_address_of_the_login(
    protected: Protected,
) -> None:
    protected.scopes = "read " * 4_000
    shown: list[str] = []
    async with login.listening("locked", 0) as waiting:

        async def show(address: str) -> None:
            shown.append(address)

        with pytest.raises(AuthorizationError, match="8,192 characters"):
            await login.log_in(server_config(protected), waiting, show)

    assert shown == []


async def test_a_token_with_more_scopes_than_were_asked_for_is_told(
    protected: Protected, caplog: pytest.LogCaptureFixture
) -> None:
    protected.issuer.given_scope = "read ad\u202emin"
    protected.scopes = "read"
    await logged_in(server_config(protected, scope="read"))

    assert "scopes that nobody asked for: admin" in caplog.text


async def test_a_client_is_registered_for_the_configured_scopes(protected: Protected) -> None:
    """Else a login with more than the server asks for ends with ``invalid_scope``."""
    protected.scopes = "read"
    credentials = await logged_in(server_config(protected, scope="read write"))

    (client,) = protected.issuer.clients.values()
    assert client.scope == credentials.asked == "read write"


async def test_no_more_scopes_are_asked_for_than_the_client_was_registered_for(protected: Protected) -> None:
    protected.scopes, protected.issuer.registers_scope = "read offline_access", "read profile"

    assert (await logged_in(server_config(protected))).asked == "read"


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_the_secret_of_a_client_is_sent_where_its_issuer_takes_it(
    protected: Protected, method: str
) -> None:
    """Many issuers take it in the header or in the form alone, and say at registration nothing about it."""
    protected.issuer.registers_method = method
    config = server_config(protected)
    credentials = await logged_in(config)
    protected.issuer.expire_all()

    assert await fetched(config) != 401
    assert protected.issuer.granted == ["authorization_code", "refresh_token"]
    assert credentials.client_secret is not None


@pytest.mark.parametrize("resource", ["", "api://notes", None])
async def test_requests_for_tokens_name_the_configured_resource(
    protected: Protected, resource: str | None
) -> None:
    """Microsoft Entra ID refuses one that is not that of the scopes."""
    config = server_config(protected, **({} if resource is None else {"resource": resource}))
    await logged_in(config)
    named = protected.url if resource is None else resource or None
    assert protected.issuer.resources == [named]
    assert dict(parse_qsl(protected.issuer.sent)).get("resource") == named
    protected.issuer.expire_all()
    with suppress(LoginRequiredError):  # this server takes its own resource alone
        await fetched(config)
    assert protected.issuer.granted == ["authorization_code", "refresh_token"]
    assert dict(parse_qsl(protected.issuer.sent)).get("resource") == named


async def test_a_running_proxy_does_not_follow_to_another_issuer(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    async with protected_server() as other:
        named = {"resource": protected.url, "authorization_servers": [other.issuer.url]}
        protected.metadata = json.dumps(named).encode(), "application/json"
        protected.issuer.expire_all()
        protected.issuer.refreshable.clear()
        with pytest.raises(LoginRequiredError, match="expired or was revoked"):
            await fetched(config)

    assert other.issuer.clients == {}
    assert other.issuer.granted == other.issuer.failed == []


@pytest.mark.parametrize(
    "door", ["javascript:alert(1)", "file:///etc/passwd", "--no-remote", "data:text/html,x", ""]
)
async def test_a_person_is_sent_only_to_a_web_page(protected: Protected, door: str) -> None:
    protected.issuer.named_door = door
    sent: list[str] = []
    config = server_config(protected)
    async with login.listening(config.name, 0) as waiting:

        async def send(address: str) -> None:
            sent.append(address)
            await visit(address)

        # Where it names no page at all, the one that every issuer has is taken.
        with suppress(AuthorizationError):
            await login.log_in(config, waiting, send)

    assert [address for address in sent if not address.startswith(f"{protected.issuer.url}/authorize?")] == []
    assert bool(sent) == (door == "")


@pytest.mark.parametrize(
    ("name", "secret"), [("mine", "my-s3cr3t"), ("https://company.example/client.json", None)]
)
async def test_a_configured_client_is_used_and_not_registered(
    protected: Protected, name: str, secret: str | None
) -> None:
    """The name may be the URL of a document about the client, which an issuer fetches (CIMD)."""
    config = server_config(protected, client_id=name, client_secret=secret, issuer=protected.issuer.url)
    async with login.listening(config.name, 0) as waiting:
        protected.issuer.clients[name] = OAuthClientInformationFull(
            client_id=name,
            client_secret=secret,
            redirect_uris=[AnyUrl(waiting.redirect_uri)],
            token_endpoint_auth_method="client_secret_post" if secret else "none",
        )
        credentials = await login.log_in(config, waiting, shown)

    assert credentials.client_id == name
    assert list(protected.issuer.clients) == [name]


async def test_tokens_never_travel_unencrypted(protected: Protected) -> None:
    config = ServerConfig(name="plain", url="http://mcp.example.com/mcp")
    with pytest.raises(AuthorizationError, match="not reached over https"):
        await login.log_in(config, login.Loopback("plain", "http://127.0.0.1:1/callback"), visit)  # type: ignore[arg-type]


async def test_a_port_in_use_is_reported(protected: Protected) -> None:
    async with login.listening("one", 0) as waiting:
        port = int(waiting.redirect_uri.split(":")[2].split("/")[0])
        with pytest.raises(AuthorizationError, match=f"port {port} cannot be opened"):
            async with login.listening("two", port):
                pass


async def test_a_client_with_a_secret_gets_its_tokens_without_a_person(protected: Protected) -> None:
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "client_secret": MACHINE_SECRET}
    config = server_config(protected, **settings, issuer=protected.issuer.url)

    assert await fetched(config) != 401
    protected.issuer.expire_all()
    assert await fetched(config) != 401
    assert protected.issuer.granted == ["client_credentials", "client_credentials"]


async def shown(address: str) -> None:
    await visit(address)


def private_key(kind: str) -> Any:
    """A key of a kind that companies have."""
    if kind == "RSA":
        return rsa.generate_private_key(65537, 2048)
    return (
        ed25519.Ed25519PrivateKey.generate() if kind == "Ed25519" else ec.generate_private_key(CURVES[kind])
    )


CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}


@pytest.mark.parametrize(
    ("kind", "named"),
    [("RSA", "issuer"), ("RSA", "endpoint"), ("P-256", "issuer"), ("P-384", "issuer"), ("Ed25519", "issuer")],
)
async def test_a_client_with_a_key_gets_its_tokens_and_the_key_stays_here(
    protected: Protected, tmp_path: Path, kind: str, named: str
) -> None:
    key, file = private_key(kind), tmp_path / "key.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    protected.issuer.keys[MACHINE_ID] = key.public_key()
    protected.issuer.audience = f"{protected.issuer.url}/token" if named == "endpoint" else ""
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "client_key": file, "key_id": "k1"}
    config = server_config(protected, **settings, issuer=protected.issuer.url)

    assert await fetched(config) != 401
    protected.issuer.expire_all()
    assert await fetched(config) != 401
    assert protected.issuer.granted == ["client_credentials", "client_credentials"]
    assert jwt.get_unverified_header(protected.issuer.proofs[0])["kid"] == "k1"


@pytest.mark.parametrize("named", ["issuer", "endpoint"])
async def test_a_person_logs_in_by_a_client_with_a_key_and_the_login_is_renewed_and_revoked_with_it(
    protected: Protected, tmp_path: Path, named: str
) -> None:
    key, file, issuer = private_key("P-256"), tmp_path / "key.pem", protected.issuer
    certificate = Authority().signed("client", key)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    issuer.keys["mine"] = key.public_key()
    issuer.audience = f"{issuer.url}/token" if named == "endpoint" else ""
    config = server_config(protected, client_id="mine", client_key=file, issuer=issuer.url)

    async with login.listening("locked", 0) as waiting:
        redirect = AnyUrl(waiting.redirect_uri)
        issuer.clients["mine"] = OAuthClientInformationFull(
            client_id="mine", redirect_uris=[redirect], token_endpoint_auth_method="none"
        )
        CredentialFile(config).write(await login.log_in(config, waiting, shown))
    issuer.expire_all()
    assert await fetched(config) != 401

    assert issuer.granted == ["authorization_code", "refresh_token"]
    hashed = jwt.get_unverified_header(issuer.proofs[1])["x5t#S256"]
    assert base64.urlsafe_b64decode(hashed + "=") == certificate.fingerprint(hashes.SHA256())


async def test_a_key_that_cannot_be_used_is_told_by_its_file(protected: Protected, tmp_path: Path) -> None:
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "issuer": protected.issuer.url}
    (tmp_path / "empty.pem").write_text("")
    for name, told in (("none.pem", "No such file"), ("empty.pem", "it has no key in PEM")):
        with pytest.raises(AuthorizationError, match=rf"{name} cannot be used: {told}"):
            await fetched(server_config(protected, **settings, client_key=tmp_path / name))


async def test_a_client_secret_is_never_sent_to_another_issuer(protected: Protected) -> None:
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "client_secret": MACHINE_SECRET}
    with pytest.raises(AuthorizationError, match=r"mine\.example"):
        await fetched(server_config(protected, **settings, issuer="https://mine.example"))

    assert protected.issuer.granted == []


async def test_no_server_without_metadata_gets_the_secret_that_is_for_the_configured_issuer(
    protected: Protected,
) -> None:
    """Such a server is an authorization server itself, as in the oldest version of the protocol."""
    evil = protected.issuer
    settings = {"client_id": "mine", "client_secret": "my-s3cr3t-value", "issuer": "http://127.0.0.1:1"}
    config = ServerConfig(name="locked", url=f"{evil.url}/mcp", oauth=OAuthConfig(**settings))
    async with login.listening(config.name, 0) as waiting:
        evil.clients["mine"] = OAuthClientInformationFull(
            client_id="mine", redirect_uris=[AnyUrl(waiting.redirect_uri)], token_endpoint_auth_method="none"
        )
        with pytest.raises(AuthorizationError, match=r"not http://127\.0\.0\.1:1"):
            await login.log_in(config, waiting, shown)

    assert evil.resources == []
    assert evil.sent == ""


@pytest.mark.parametrize(
    ("oauth", "told"),
    [
        ('{ grant = "client_credentials", client_id = "a" }', "client_credentials needs client_secret"),
        ('{ client_id = "a", client_secret = "b" }', "client_secret needs issuer"),
        ('{ client_id = "a", client_key = "b" }', "client_key needs issuer"),
        ('{ client_key = "b", issuer = "https://b.example" }', "needs client_id"),
    ],
)
async def test_a_secret_without_an_issuer_switches_the_server_off(
    tmp_path: Path, oauth: str, told: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[servers.a]\nurl = "https://a.example"\noauth = {oauth}\n')

    assert told in str(load(path, environ={}).off["a"])
