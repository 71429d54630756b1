"""A server that wants a login, its authorization server, and a person who logs in."""

from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import anyio
import httpx2
import pytest
from support.authorization import Protected, protected_server
from support.commands import forked_command
from support.postgres import postgres  # noqa: F401 - a fixture

from mcp_context_proxy.config import OAuthConfig, ServerConfig
from mcp_context_proxy.oauth import CredentialFile, OAuthCredentials, login
from mcp_context_proxy.oauth.bearer import BearerAuth


@pytest.fixture
async def protected() -> AsyncIterator[Protected]:
    with anyio.fail_after(60):
        async with protected_server() as made:
            yield made


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder, which holds the credentials."""
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
    """Follow an address as a browser does."""
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        return await browser.get(address)


async def logged_in_by(path: Path, *options: str, stderr: IO[bytes] | None = None) -> tuple[str, str]:
    """Log in by the command, as a person would; return the address that it names, and all that it prints."""
    words = (*options, "login", "locked", "--no-browser", "--config", str(path))
    async with await anyio.open_process(forked_command(*words), stderr=stderr or PIPE) as process:
        assert process.stdout is not None
        said = ""
        while "/authorize?" not in said or not said.rstrip(" ").endswith("\n\n"):
            said += (await process.stdout.receive()).decode()
        address = next(line.strip() for line in said.splitlines() if "/authorize?" in line)
        assert (await visit(address)).status_code == 200
        async for chunk in process.stdout:
            said += chunk.decode()
        assert await process.wait() == 0
    return address, said


async def logged_in(config: ServerConfig) -> OAuthCredentials:
    """Log in as a person would, and keep it."""
    async with login.listening(config.name, 0) as waiting:

        async def send(address: str) -> None:
            await visit(address)

        credentials = await login.log_in(config, waiting, send)
    CredentialFile(config).write(credentials)
    return credentials


async def fetched(config: ServerConfig, auth: httpx2.Auth | None = None) -> int:
    async with httpx2.AsyncClient(auth=auth or BearerAuth(config)) as client:
        return (await client.get(config.url or "")).status_code
