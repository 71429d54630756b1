"""The start of the HTTP front: its address, its token, and its messages about both."""

import os
import re
import socket
import stat
import subprocess
from pathlib import Path

import anyio
import httpx2
import pytest
from support.proxies import command, http_proxy
from support.servers import Workshop
from support.wires import http


async def test_a_port_in_use_is_reported_without_a_traceback(workshop: Workshop) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = await anyio.run_process(
            command(workshop.config(), "serve", "--http", "--port", str(port)), check=False
        )

    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}".encode() in ended.stderr
    assert b"take another port with --port" in ended.stderr
    assert b"Traceback" not in ended.stderr


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose data folder is the test's own."""
    return {**os.environ, "HOME": str(tmp_path / "home"), "XDG_DATA_HOME": str(tmp_path / "data")}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_token_is_required_and_only_its_owner_can_read_it(
    workshop: Workshop, home: dict[str, str], tmp_path: Path, host: str
) -> None:
    with http_proxy(workshop.config(), "--host", host, auth=True, env=home) as proxy:
        base = proxy.base.replace("0.0.0.0", "127.0.0.1")
        (file,) = (tmp_path / "data").rglob("token")
        token = file.read_text(encoding="utf-8").strip()
        async with httpx2.AsyncClient(timeout=20) as client:
            for path in ("/mcp", "/sse", "/messages/", "/", "/healthz", "/ui", "/ui/none", "/api/v1/none"):
                for given, challenge in (
                    ({}, "Bearer"),
                    ({"authorization": "Bearer wrong"}, 'Bearer error="invalid_token"'),
                    ({"authorization": f"Basic {token}"}, "Bearer"),
                ):
                    response = await client.post(base + path, headers=given)
                    assert response.status_code == 401
                    assert response.headers["www-authenticate"] == challenge
            for path in ("/ui/none", "/ui/../mcp", "/UI", "/ui//usage", "/metrics"):
                assert (await client.get(base + path)).status_code == 401
            for path in ("/healthz", "/ui", "/ui/usage", "/ui/page.js"):
                assert (await client.get(base + path)).status_code == 200
            assert (await client.get(base)).headers["location"] == "ui"
        async with http(base, "modern", headers={"authorization": f"Bearer {token}"}) as raw:
            assert await raw.names()
        log = proxy.folder.joinpath("config.log").read_text(encoding="utf-8")

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token) >= 32
    assert token not in log
    assert f"the bearer token in {file}" in log


def test_serving_without_authentication_is_warned_about(workshop: Workshop) -> None:
    with http_proxy(workshop.config()) as proxy:
        assert httpx2.post(f"{proxy.base}/mcp").status_code == 400
    log = proxy.folder.joinpath("config.log").read_text(encoding="utf-8")

    assert re.search(r"WARNING: serving .* without a token", log)


def test_with_a_token_the_address_is_printed_without_a_warning(workshop: Workshop) -> None:
    with http_proxy(workshop.config(), auth=True) as proxy:
        log = proxy.folder.joinpath("config.log").read_text(encoding="utf-8")

    assert "mcp-context-proxy: serving http://" in log
    assert "WARNING" not in log


async def test_without_a_token_only_loopback_addresses_are_allowed(workshop: Workshop) -> None:
    config = workshop.config()

    async def refused(host: str) -> None:
        serve = command(config, "serve", "--http", "--no-auth", "--host", host, "--port", "0")
        ended = await anyio.run_process(serve, check=False)
        assert ended.returncode == 1, host
        assert b"http.auth" in ended.stderr, host
        assert b"Traceback" not in ended.stderr, host

    async with anyio.create_task_group() as group:
        for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
            group.start_soon(refused, host)


@pytest.mark.parametrize(
    ("host", "token", "told"),
    [
        ("127.0.0.1", "Zq7", b"MCP_CONTEXT_PROXY_TOKEN: a token has at least 16 characters"),
        ("203.0.113.1", "x" * 32, b"203.0.113.1"),
    ],
)
def test_a_short_token_and_an_unavailable_address_are_reported_without_a_traceback(
    workshop: Workshop, host: str, token: str, told: bytes
) -> None:
    ended = subprocess.run(
        command(workshop.config(), "serve", "--http", "--host", host, "--port", "0"),
        capture_output=True,
        check=False,
        env={**os.environ, "MCP_CONTEXT_PROXY_TOKEN": token},
    )

    assert ended.returncode == 1
    assert told in ended.stderr
    assert token.encode() not in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_proxies_that_start_together_agree_on_one_token(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from mcp_context_proxy.trust.tokens import create_token

    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(create_token, [tmp_path / "token"] * 32))

    assert len(tokens) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def test_a_data_folder_that_cannot_be_written_is_reported_with_a_remedy(
    workshop: Workshop, tmp_path: Path
) -> None:
    tmp_path.joinpath("file").touch()
    config = workshop.config(http={"token_file": str(tmp_path / "file" / "token")})
    ended = subprocess.run(
        command(config, "serve", "--http", "--port", "0"), capture_output=True, check=False
    )

    assert ended.returncode == 1
    assert b"MCP_CONTEXT_PROXY_TOKEN" in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_configured_token_is_required_on_loopback_too_and_is_not_replaced(
    workshop: Workshop, tmp_path: Path
) -> None:
    file = tmp_path / "secret" / "token"
    config = workshop.config(http={"token_file": str(file)})
    tokens = []
    for _ in range(2):
        with http_proxy(config, auth=True) as proxy:
            assert httpx2.post(f"{proxy.base}/mcp").status_code == 401
            tokens.append(file.read_text(encoding="utf-8"))

    assert tokens[0] == tokens[1]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_standard_output_stays_empty(workshop: Workshop) -> None:
    with http_proxy(workshop.config()) as proxy:
        httpx2.get(f"{proxy.base}/healthz")
        proxy.process.terminate()
        assert proxy.process.stdout is not None
        assert proxy.process.stdout.read() == ""
