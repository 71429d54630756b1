"""A login is made with the right issuer, for the right server, by the right person or machine."""

import re
import stat
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from support.authorization import MACHINE_ID, MACHINE_SECRET, Protected

from mcp_context_proxy.config import ServerConfig, load
from mcp_context_proxy.errors import AuthorizationError, ConfigError
from mcp_context_proxy.oauth import login
from mcp_context_proxy.oauth.credentials import CredentialFile

from .conftest import fetched, logged_in, server_config, visit

pytestmark = pytest.mark.anyio


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


async def test_a_response_with_another_state_is_refused(protected: Protected) -> None:
    protected.issuer.wrong_state = True
    with pytest.raises(AuthorizationError, match="its state is wrong"):
        await logged_in(server_config(protected))

    assert protected.issuer.granted == []


async def test_a_refusal_is_reported_in_its_own_words(protected: Protected) -> None:
    protected.issuer.refuses = True
    with pytest.raises(AuthorizationError, match="access_denied"):
        await logged_in(server_config(protected))


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
            await login.log_in(config, login.Person(waiting.redirect_uri, send, waiting.answer))

    assert [address for address in sent if not address.startswith(f"{protected.issuer.url}/authorize?")] == []
    assert bool(sent) == (door == "")


async def test_a_configured_client_is_used_and_not_registered(protected: Protected) -> None:
    from mcp.shared.auth import OAuthClientInformationFull
    from pydantic import AnyUrl

    async with login.listening("probe", 0) as waiting:
        port = int(waiting.redirect_uri.split(":")[2].split("/")[0])
    redirect = AnyUrl(f"http://127.0.0.1:{port}/callback")
    protected.issuer.clients["mine"] = OAuthClientInformationFull(
        client_id="mine",
        client_secret="my-s3cr3t",
        redirect_uris=[redirect],
        token_endpoint_auth_method="client_secret_post",
    )
    settings = {"client_id": "mine", "client_secret": "my-s3cr3t", "issuer": protected.issuer.url}
    config = server_config(protected, **settings)
    async with login.listening(config.name, port) as waiting:

        async def send(address: str) -> None:
            await visit(address)

        credentials = await login.log_in(config, login.Person(waiting.redirect_uri, send, waiting.answer))

    assert credentials.client_id == "mine"
    assert list(protected.issuer.clients) == ["mine"]


async def test_tokens_never_travel_unencrypted(protected: Protected) -> None:
    config = ServerConfig(name="plain", url="http://mcp.example.com/mcp")
    with pytest.raises(AuthorizationError, match="not reached over https"):
        await login.log_in(config, login.Person("http://127.0.0.1:1/callback", visit, None))  # type: ignore[arg-type]


async def test_the_loopback_port_answers_nothing_but_the_callback(protected: Protected) -> None:
    async with login.listening("any", 0) as waiting:
        base = waiting.redirect_uri.removesuffix("/callback")

        assert (await visit(base + "/")).status_code == 404
        async with httpx2.AsyncClient() as client:
            assert (await client.post(base + "/callback")).status_code == 404
        page = await visit(base + "/callback?code=<b>&state=x")
        assert page.status_code == 200
        assert "<b>" not in page.text
        assert (await waiting.answer()).code == "<b>"


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


async def test_a_client_secret_is_never_sent_to_another_issuer(protected: Protected) -> None:
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "client_secret": MACHINE_SECRET}
    with pytest.raises(AuthorizationError, match=r"mine\.example"):
        await fetched(server_config(protected, **settings, issuer="https://mine.example"))

    assert protected.issuer.granted == []


@pytest.mark.parametrize(
    ("oauth", "told"),
    [
        ('{ grant = "client_credentials", client_id = "a" }', "client_credentials needs client_secret"),
        ('{ client_id = "a", client_secret = "b" }', "client_secret needs issuer"),
    ],
)
async def test_a_secret_without_an_issuer_is_a_configuration_error(
    tmp_path: Path, oauth: str, told: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[servers.a]\nurl = "https://a.example"\noauth = {oauth}\n')
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(path, environ={})
