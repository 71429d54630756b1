"""``login`` and ``logout``, as a person types them."""

import json
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import msgspec
import pytest
from support.authorization import Protected
from support.commands import forked_command

from mcp_context_proxy.config import load
from mcp_context_proxy.oauth import CredentialFile
from mcp_context_proxy.trust.audit import audit_file

from .conftest import configuration, logged_in, logged_in_by, server_config


async def test_the_commands_log_in_and_out(protected: Protected, tmp_path: Path) -> None:
    path = configuration(tmp_path, protected)
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        address, said = await logged_in_by(path, "--log-level", "debug", stderr=stderr)
    assert f"Logged in to locked at {protected.issuer.url}" in said
    port = parse_qs(urlsplit(address).query)["redirect_uri"][0].split(":")[2].split("/")[0]
    assert f"ssh -L {port}:127.0.0.1:{port} " in said, "the way for a browser on another machine"
    (token,) = protected.issuer.access
    assert token not in said

    words = ("--log-level", "debug", "tools", "--json", "--config", str(path))
    done = await anyio.run_process(forked_command(*words))
    logged = log.read_text() + done.stderr.decode()
    (renewal,) = protected.issuer.refreshable
    (client,) = protected.issuer.clients.values()
    assert "DEBUG" in logged
    for secret in (token, renewal, client.client_secret):
        assert secret is not None
        assert secret not in logged
    assert [tool["name"] for tool in json.loads(done.stdout)["tools"]] == ["locked__whoami"]
    out = await anyio.run_process(forked_command("logout", "locked", "--config", str(path)))
    assert b"revoked and deleted" in out.stdout
    assert protected.issuer.refreshable == {}
    again = await anyio.run_process(forked_command("logout", "locked", "--config", str(path)))
    assert b"There was no login to locked" in again.stdout


async def test_the_address_at_which_the_browser_of_another_machine_ends_may_be_typed(
    protected: Protected, tmp_path: Path
) -> None:
    """A container, for example, whose loopback address nobody else reaches."""
    words = ("login", "locked", "--no-browser", "--config", str(configuration(tmp_path, protected)))
    with (warned := tmp_path / "stderr").open("wb") as stderr:
        process = await anyio.open_process(forked_command(*words), stderr=stderr)
    async with process:
        assert process.stdout is not None
        assert process.stdin is not None
        said = ""
        while not (found := re.search(r"http\S+/authorize\?\S+", said)):
            said += (await process.stdout.receive()).decode()
        async with httpx2.AsyncClient() as browser:
            ended = (await browser.get(found[0])).headers["location"]
        foreign = re.sub("state=[^&]*", "state=another", ended)
        await process.stdin.send(f"{foreign}\nhttp://[\n{ended}\n".encode())
        async for chunk in process.stdout:
            said += chunk.decode()

    assert warned.read_text().count("this is not the address at which this login ends") == 2
    assert "Logged in to locked" in said


async def test_the_audit_has_each_login_and_logout(protected: Protected, tmp_path: Path) -> None:
    path = configuration(tmp_path, protected)
    text = path.read_text().replace('path = "memory"', f'path = "{tmp_path / "state" / "store.db"}"')
    path.write_text(
        text if "[store]" in text else f'{text}\n[store]\npath = "{tmp_path / "state" / "s.db"}"\n'
    )
    await logged_in_by(path)
    await anyio.run_process(forked_command("logout", "locked", "--config", str(path)))

    file = audit_file(load(path, environ={}))
    assert file is not None
    entries = [entry for entry in file.entries() if entry["kind"] == "login"]
    assert [(entry["server"], entry["event"]) for entry in entries] == [
        ("locked", "logged in"),
        ("locked", "logged out"),
    ]
    (token, *_) = protected.issuer.access or [""]
    assert not token or token not in json.dumps(entries)


async def offered(path: Path, warned: Path) -> str:
    """Return what a login prints until it names its address; then give it up. Its warnings are in a file."""
    words = ("login", "locked", "--no-browser", "--config", str(path))
    with warned.open("wb") as stderr:
        process = await anyio.open_process(forked_command(*words), stderr=stderr)
    async with process:
        assert process.stdout is not None
        said = ""
        while "/authorize?" not in said:
            said += (await process.stdout.receive()).decode()
        process.terminate()
    return said


@pytest.mark.parametrize("changed", [True, False])
async def test_a_login_tells_first_where_it_leads_what_it_asks_for_and_what_has_changed(
    protected: Protected, tmp_path: Path, changed: bool
) -> None:
    path = configuration(tmp_path, protected)
    protected.scopes, protected.issuer.given_scope = "read write", "read"
    config = server_config(protected)
    before = await logged_in(config)
    if changed:
        before = msgspec.structs.replace(before, issuer="https://old.example", asked=None)
    CredentialFile(config).write(before)
    told, _, _ = (await offered(path, warned := tmp_path / "stderr")).partition("Open this address")

    assert f"locked wants a login at {protected.issuer.url}, and asks for the scopes read write." in told
    warning = warned.read_text()
    assert ("WARNING: the last login was at https://old.example." in warning) == changed
    assert ("WARNING: the last login did not have the scopes write." in warning) == changed


async def test_the_address_of_a_login_is_whole_although_the_configuration_has_a_key_of_it(
    protected: Protected, tmp_path: Path
) -> None:
    tenant = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
    protected.issuer.named_door = f"{protected.issuer.url}/{tenant}/authorize"
    path = configuration(tmp_path, protected, f'headers = {{ X-Tenant = "{tenant}" }}\n')

    assert f"  {protected.issuer.named_door}?" in await offered(path, tmp_path / "stderr")


async def test_a_login_whose_page_is_that_of_another_is_warned_about_and_not_opened(
    protected: Protected, tmp_path: Path
) -> None:
    """Whoever has the code of another's page redeems it there: a mix-up of authorization servers."""
    protected.issuer.named_door = "https://accounts.example/authorize"
    await offered(configuration(tmp_path, protected), warned := tmp_path / "stderr")

    host = protected.issuer.url.split("//")[1].split(":")[0]
    warning = " ".join(warned.read_text().split())
    assert f"its login page is at accounts.example, and {host} gets what you confirm there" in warning


@pytest.mark.parametrize(
    ("server", "told"), [("nobody", "with a URL are: locked"), ("local", "there is no login to it")]
)
async def test_a_server_without_a_login_is_reported_as_such(
    protected: Protected, tmp_path: Path, server: str, told: str
) -> None:
    path = configuration(tmp_path, protected, '[servers.local]\ncommand = "true"\n')
    done = await anyio.run_process(forked_command("login", server, "--config", str(path)), check=False)

    assert done.returncode == 1
    assert told in done.stderr.decode()
