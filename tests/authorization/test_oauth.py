"""Logging in to a server, and staying so: against a real authorization server on loopback."""

import io
import json
import logging
import os
import re
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.authorization import MACHINE_ID, MACHINE_SECRET, Protected, protected_server
from support.proxies import Host
from support.raw_client import RpcError

from mcp_context_proxy.app import Proxy, open_proxy
from mcp_context_proxy.authorization import grants, loopback
from mcp_context_proxy.authorization.bearer import BearerAuth
from mcp_context_proxy.authorization.credentials import CredentialFile, Credentials
from mcp_context_proxy.config import OAuthConfig, ServerConfig, load
from mcp_context_proxy.errors import AuthorizationError, ConfigError, LoginRequiredError

pytestmark = pytest.mark.anyio


@pytest.fixture
async def protected() -> AsyncIterator[Protected]:
    with anyio.fail_after(60):
        async with protected_server() as made:
            yield made


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where credentials are kept."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def configuration(tmp_path: Path, protected: Protected, more: str = "") -> Path:
    path = tmp_path / "config.toml"
    path.write_text(f'[store]\npath = "memory"\n[servers.locked]\nurl = "{protected.url}"\n{more}')
    return path


def server_config(protected: Protected, **oauth: Any) -> ServerConfig:
    settings = {"oauth": OAuthConfig(**oauth)} if oauth else {}
    return ServerConfig(name="locked", url=protected.url, **settings)


async def visit(address: str) -> httpx2.Response:
    """What a browser does with an address."""
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        return await browser.get(address)


async def logged_in(config: ServerConfig) -> Credentials:
    """Log in as a person would, and keep it."""
    async with loopback.listening(config.name, 0) as waiting:

        async def send(address: str) -> None:
            await visit(address)

        person = grants.Person(waiting.redirect_uri, send, waiting.answer)
        credentials = await grants.log_in(config, person)
    CredentialFile(config).write(credentials)
    return credentials


def is_there(path: Path) -> bool:
    return path.exists()


def occupy(path: Path) -> None:
    path.write_text("not a folder")


async def fetched(config: ServerConfig, auth: httpx2.Auth | None = None) -> int:
    async with httpx2.AsyncClient(auth=auth or BearerAuth(config, CredentialFile(config))) as client:
        return (await client.get(config.url or "")).status_code


# Logging in


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


async def test_what_is_kept_is_readable_by_its_owner_alone_and_not_in_a_log(
    protected: Protected,
) -> None:
    config = server_config(protected)
    credentials = await logged_in(config)
    file = CredentialFile(config)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert credentials.access_token not in repr(credentials)
    assert file.read() == credentials


async def test_an_answer_with_another_state_is_refused(protected: Protected) -> None:
    protected.issuer.wrong_state = True
    with pytest.raises(AuthorizationError, match="its state is wrong"):
        await logged_in(server_config(protected))

    assert protected.issuer.granted == []


async def test_a_refusal_is_told_as_it_was_given(protected: Protected) -> None:
    protected.issuer.refuses = True
    with pytest.raises(AuthorizationError, match="access_denied"):
        await logged_in(server_config(protected))


async def test_metadata_that_names_another_issuer_is_refused(protected: Protected) -> None:
    protected.issuer.named_issuer = "https://evil.example"
    with pytest.raises(AuthorizationError, match="issuer mismatch"):
        await logged_in(server_config(protected))

    assert protected.issuer.clients == {}


async def test_a_server_that_leads_to_another_issuer_than_the_configured_one_is_refused(
    protected: Protected,
) -> None:
    with pytest.raises(AuthorizationError, match=r"not https://mine\.example"):
        await logged_in(server_config(protected, issuer="https://mine.example"))

    assert protected.issuer.clients == {}


@pytest.mark.parametrize(
    "door", ["javascript:alert(1)", "file:///etc/passwd", "--no-remote", "data:text/html,x", ""]
)
async def test_nobody_is_sent_anywhere_but_to_a_web_page(protected: Protected, door: str) -> None:
    protected.issuer.named_door = door
    sent: list[str] = []
    config = server_config(protected)
    async with loopback.listening(config.name, 0) as waiting:

        async def send(address: str) -> None:
            sent.append(address)
            await visit(address)

        # Where it names no page at all, the one that every issuer has is taken.
        with suppress(AuthorizationError):
            await grants.log_in(config, grants.Person(waiting.redirect_uri, send, waiting.answer))

    assert [address for address in sent if not address.startswith(f"{protected.issuer.url}/authorize?")] == []
    assert bool(sent) == (door == "")


async def test_a_configured_client_is_used_and_not_registered(protected: Protected) -> None:
    from mcp.shared.auth import OAuthClientInformationFull
    from pydantic import AnyUrl

    async with loopback.listening("probe", 0) as waiting:
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
    async with loopback.listening(config.name, port) as waiting:

        async def send(address: str) -> None:
            await visit(address)

        credentials = await grants.log_in(config, grants.Person(waiting.redirect_uri, send, waiting.answer))

    assert credentials.client_id == "mine"
    assert list(protected.issuer.clients) == ["mine"]


async def test_tokens_never_travel_unencrypted(protected: Protected) -> None:
    config = ServerConfig(name="plain", url="http://mcp.example.com/mcp")
    with pytest.raises(AuthorizationError, match="not reached over https"):
        await grants.log_in(config, grants.Person("http://127.0.0.1:1/callback", visit, None))  # type: ignore[arg-type]


async def test_the_loopback_port_answers_nothing_but_the_callback(protected: Protected) -> None:
    async with loopback.listening("any", 0) as waiting:
        base = waiting.redirect_uri.removesuffix("/callback")

        assert (await visit(base + "/")).status_code == 404
        async with httpx2.AsyncClient() as client:
            assert (await client.post(base + "/callback")).status_code == 404
        page = await visit(base + "/callback?code=<b>&state=x")
        assert page.status_code == 200
        assert "<b>" not in page.text
        assert (await waiting.answer()).code == "<b>"


async def test_a_port_that_is_taken_is_told(protected: Protected) -> None:
    async with loopback.listening("one", 0) as waiting:
        port = int(waiting.redirect_uri.split(":")[2].split("/")[0])
        with pytest.raises(AuthorizationError, match=f"port {port} cannot be had"):
            async with loopback.listening("two", port):
                pass


# Staying logged in


async def test_a_token_that_expires_is_renewed_before_it_is_used(protected: Protected) -> None:
    config = server_config(protected)
    first = await logged_in(config)
    file = CredentialFile(config)
    soon = BearerAuth(config, file, clock=lambda: (first.expires_at or 0) - 31)
    assert await fetched(config, soon) != 401
    assert protected.issuer.granted == ["authorization_code"]
    sooner = BearerAuth(config, file, clock=lambda: (first.expires_at or 0) - 29)

    assert await fetched(config, sooner) != 401
    kept = CredentialFile(config).read()
    assert kept is not None
    assert kept.access_token != first.access_token
    assert protected.issuer.granted == ["authorization_code", "refresh_token"]


async def test_a_token_that_is_refused_is_renewed_and_the_request_sent_again(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    protected.issuer.expire_all()

    assert await fetched(config) != 401
    assert protected.issuer.granted[-1] == "refresh_token"


async def test_many_requests_renew_once(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    protected.issuer.expire_all()
    protected.issuer.refresh_seconds = 0.1
    auth, statuses = BearerAuth(config, CredentialFile(config)), []

    async def fetch() -> None:
        statuses.append(await fetched(config, auth))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(fetch)

    assert 401 not in statuses
    assert protected.issuer.granted.count("refresh_token") == 1
    assert protected.issuer.failed == []


PROXY = """
import sys, anyio, httpx2
from pathlib import Path
from mcp_context_proxy.authorization.bearer import BearerAuth
from mcp_context_proxy.authorization.credentials import CredentialFile
from mcp_context_proxy.config import ServerConfig
async def main(url):
    config = ServerConfig(name="locked", url=url)
    async with httpx2.AsyncClient(auth=BearerAuth(config, CredentialFile(config)), timeout=30) as client:
        for _ in range(3):
            print((await client.get(url)).status_code, flush=True)
anyio.run(main, sys.argv[1])
"""


async def test_two_proxies_never_use_a_refresh_token_twice(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    protected.issuer.expire_all()
    protected.issuer.refresh_seconds = 0.3
    outputs: list[bytes] = []

    async def run() -> None:
        done = await anyio.run_process([sys.executable, "-c", PROXY, protected.url], env=dict(os.environ))
        outputs.append(done.stdout)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(run)

    assert b"401" not in b"".join(outputs)
    assert protected.issuer.granted.count("refresh_token") == 1
    assert protected.issuer.failed == []


async def test_a_revoked_login_names_the_command_and_is_tried_once(
    protected: Protected,
) -> None:
    config = server_config(protected)
    await logged_in(config)
    await protected.issuer.revoke_token(None)  # type: ignore[arg-type]
    auth = BearerAuth(config, CredentialFile(config))
    for _ in range(3):
        with pytest.raises(LoginRequiredError, match="run: mcp-context-proxy login locked"):
            await fetched(config, auth)

    assert protected.issuer.failed == ["refresh_token"]


async def test_a_renewal_that_fails_for_now_costs_no_login(protected: Protected) -> None:
    config = server_config(protected)
    credentials = await logged_in(config)
    await_gone = "http://127.0.0.1:9/token"
    broken = {name: getattr(credentials, name) for name in credentials.__struct_fields__}
    CredentialFile(config).write(Credentials(**broken | {"token_endpoint": await_gone}))
    protected.issuer.expire_all()
    with pytest.raises(AuthorizationError) as failed:
        await fetched(config)

    assert not isinstance(failed.value, LoginRequiredError)
    kept = CredentialFile(config).read()
    assert kept is not None
    assert kept.refresh_token == credentials.refresh_token


async def test_credentials_of_another_issuer_url_or_name_are_not_used(protected: Protected) -> None:
    await logged_in(server_config(protected))
    file = CredentialFile(server_config(protected))
    other_issuer = CredentialFile(server_config(protected, issuer="https://mine.example"))
    moved = ServerConfig(name="locked", url=protected.url + "/elsewhere")
    (file.path.parent / CredentialFile(moved).path.name).write_bytes(file.path.read_bytes())

    assert file.read() is not None
    assert other_issuer.path == file.path
    assert other_issuer.read() is None
    assert CredentialFile(moved).read() is None


async def test_where_nothing_was_logged_in_nothing_is_written(protected: Protected, data_home: Path) -> None:
    with pytest.raises(LoginRequiredError):
        await fetched(server_config(protected))

    assert not is_there(data_home)


async def test_without_a_place_for_files_a_login_still_lasts_as_long_as_the_proxy(
    protected: Protected, data_home: Path
) -> None:
    occupy(data_home)
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "client_secret": MACHINE_SECRET}
    config = server_config(protected, **settings, issuer=protected.issuer.url)
    auth = BearerAuth(config, CredentialFile(config))

    assert await fetched(config, auth) != 401
    assert await fetched(config, auth) != 401
    assert protected.issuer.granted == ["client_credentials"]


async def test_a_damaged_file_is_a_login_that_is_missing(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    CredentialFile(config).path.write_bytes(b'{"access_token": 7')

    with pytest.raises(LoginRequiredError):
        await fetched(config)


async def test_a_client_with_a_secret_gets_its_tokens_without_a_person(protected: Protected) -> None:
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "client_secret": MACHINE_SECRET}
    config = server_config(protected, **settings, issuer=protected.issuer.url)

    assert await fetched(config) != 401
    protected.issuer.expire_all()
    assert await fetched(config) != 401
    assert protected.issuer.granted == ["client_credentials", "client_credentials"]


async def test_a_secret_is_sent_to_no_other_issuer(protected: Protected) -> None:
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
async def test_a_secret_without_an_issuer_is_a_mistake(tmp_path: Path, oauth: str, told: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[servers.a]\nurl = "https://a.example"\noauth = {oauth}\n')
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(path, environ={})


# Through the proxy


async def test_a_server_that_wants_a_login_says_which_command_and_works_after_it(
    protected: Protected, tmp_path: Path, era: str
) -> None:
    more = f'era = "{era}"\n[limits]\nbackoff_first_seconds = 0.05\n'
    config = load(configuration(tmp_path, protected, more), environ={})
    async with open_proxy(config) as proxy:
        await proxy.settled()
        assert "run: mcp-context-proxy login locked" in proxy.fleet.clients["locked"].cause
        await logged_in(config.servers["locked"])
        result = await _called(proxy)

    assert result["content"][0]["text"] == "someone"


async def test_a_login_is_taken_at_once_however_long_the_next_try_would_be_away(
    protected: Protected, tmp_path: Path, era: str
) -> None:
    more = f'era = "{era}"\n[limits]\nbackoff_first_seconds = 9000.0\nbackoff_max_seconds = 9000.0\n'
    config = load(configuration(tmp_path, protected, more), environ={})
    async with open_proxy(config) as proxy:
        await proxy.settled()
        await logged_in(config.servers["locked"])
        result = await _called(proxy)

    assert result["content"][0]["text"] == "someone"


@pytest.mark.parametrize("echo", ["failure", "refusal", "result"])
async def test_a_token_that_its_server_tells_is_in_no_error_and_no_log(
    protected: Protected, tmp_path: Path, era: str, echo: str
) -> None:
    config = load(configuration(tmp_path, protected, f'era = "{era}"\n'), environ={})
    token = (await logged_in(config.servers["locked"])).access_token
    log, logged = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(log)
    logged.addHandler(handler)
    try:
        async with open_proxy(config) as proxy:
            await proxy.settled()
            try:
                told = json.dumps(await Host(proxy, "modern").call("locked__whoami", {"echo": echo}))
            except RpcError as error:
                told = f"{error} {error.data}"
            logged.error("it told %s", token)
    finally:
        logged.removeHandler(handler)

    # A result that is no failure passes as it came, whatever it holds: it is the server's to say.
    assert (token in told) == (echo == "result")
    assert ("[redacted access token]" in told) == (echo != "result")
    assert token not in log.getvalue()


async def test_a_server_over_sse_says_the_same(protected: Protected, tmp_path: Path) -> None:
    config = load(configuration(tmp_path, protected, 'transport = "sse"\n'), environ={})
    async with open_proxy(config) as proxy:
        await proxy.settled()

        assert "run: mcp-context-proxy login locked" in proxy.fleet.clients["locked"].cause


async def test_a_token_in_the_headers_is_left_alone(protected: Protected, tmp_path: Path) -> None:
    token = protected.issuer.issue("by-hand", [], protected.url).access_token
    more = f'headers = {{ Authorization = "Bearer {token}" }}\n'
    async with open_proxy(load(configuration(tmp_path, protected, more), environ={})) as proxy:
        await proxy.settled()
        assert (await _called(proxy))["content"][0]["text"] == "someone"
        protected.issuer.expire_all()
        refused = await Host(proxy, "modern").call("locked__whoami")

    assert "401" in refused["content"][0]["text"]


async def test_a_login_that_ends_at_run_time_is_told_to_the_model_and_others_go_on(
    protected: Protected, tmp_path: Path
) -> None:
    config = load(configuration(tmp_path, protected), environ={})
    await logged_in(config.servers["locked"])
    async with open_proxy(config) as proxy:
        await proxy.settled()
        await _called(proxy)
        await protected.issuer.revoke_token(None)  # type: ignore[arg-type]
        told = await Host(proxy, "modern").call("locked__whoami")

        assert told["isError"]
        assert "mcp-context-proxy login locked" in told["content"][0]["text"]
        await logged_in(config.servers["locked"])
        assert (await _called(proxy))["content"][0]["text"] == "someone"


async def _called(proxy: Proxy) -> Any:
    host = Host(proxy, "modern")
    with anyio.fail_after(20):
        while (result := await host.call("locked__whoami")).get("isError"):  # noqa: ASYNC110 - a back-off
            await anyio.sleep(0.05)
    return result


# The commands


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "mcp_context_proxy", *words]


async def test_the_commands_log_in_and_out(protected: Protected, tmp_path: Path) -> None:
    path = configuration(tmp_path, protected)
    log = tmp_path / "stderr"
    words = ("--log-level", "debug", "login", "locked", "--no-browser", "--config", str(path))
    with log.open("wb") as stderr:
        process = await anyio.open_process(command(*words), stderr=stderr)
    async with process:
        assert process.stdout is not None
        said = ""
        while "/authorize?" not in said or not said.rstrip(" ").endswith("\n\n"):
            said += (await process.stdout.receive()).decode()
        address = next(line.strip() for line in said.splitlines() if "/authorize?" in line)
        assert (await visit(address)).status_code == 200
        async for chunk in process.stdout:
            said += chunk.decode()
        assert await process.wait() == 0
    assert f"Logged in to locked at {protected.issuer.url}" in said
    (token,) = protected.issuer.access
    assert token not in said

    words = ("--log-level", "debug", "tools", "--json", "--config", str(path))
    done = await anyio.run_process(command(*words))
    logged = log.read_text() + done.stderr.decode()
    (renewal,) = protected.issuer.refreshable
    (client,) = protected.issuer.clients.values()
    assert "DEBUG" in logged
    for secret in (token, renewal, client.client_secret):
        assert secret is not None
        assert secret not in logged
    assert [tool["name"] for tool in json.loads(done.stdout)["tools"]] == ["locked__whoami"]
    out = await anyio.run_process(command("logout", "locked", "--config", str(path)))
    assert b"revoked and deleted" in out.stdout
    assert protected.issuer.refreshable == {}
    again = await anyio.run_process(command("logout", "locked", "--config", str(path)))
    assert b"There was no login to locked" in again.stdout


@pytest.mark.parametrize(
    ("server", "told"), [("nobody", "at a URL are: locked"), ("local", "it has nowhere to log in")]
)
async def test_a_server_that_cannot_be_logged_in_to_is_told_as_such(
    protected: Protected, tmp_path: Path, server: str, told: str
) -> None:
    path = configuration(tmp_path, protected, '[servers.local]\ncommand = "true"\n')
    done = await anyio.run_process(command("login", server, "--config", str(path)), check=False)

    assert done.returncode == 1
    assert told in done.stderr.decode()
