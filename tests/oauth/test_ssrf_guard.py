"""A server leads us nowhere that is nearer to this machine than the server itself is."""

import os
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import anyio.streams.tls
import httpx2
import pytest
from support.certificates import Authority
from support.tables import each

from mcp_context_proxy.config import OAuthConfig, ServerConfig
from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.oauth import OAuthCredentials, token_endpoint
from mcp_context_proxy.oauth.token_endpoint import Destinations, ExchangeError, NetworkReach, exchange

PUBLIC = ServerConfig(name="far", url="https://mcp.example/mcp")
NEARER = "nearer to this machine"


class Canary:
    """A port of this machine that counts who comes, and answers."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.port = 0

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        task_status.started()
        async with listener:
            await listener.serve(self.answer)

    async def answer(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            self.heard.append(await stream.receive())
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    canary = Canary()
    async with anyio.create_task_group() as group:
        await group.start(canary.serve)
        yield canary
        group.cancel_scope.cancel()


async def test_a_server_that_sends_one_byte_after_the_other_delays_nobody_for_longer_than_the_timeout() -> (
    None
):
    async def drip(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError):
                await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{")
                while True:
                    await stream.send(b" ")
                    await anyio.sleep(0.01)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    request = httpx2.Request("GET", f"http://127.0.0.1:{port}/")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, drip)
        with pytest.raises(ExchangeError, match="did not answer within"):
            await exchange(Destinations(PUBLIC, NetworkReach.LOOPBACK), request, seconds=0.2)
        group.cancel_scope.cancel()


async def test_an_authorization_server_that_sends_interim_responses_without_end_is_left_at_once() -> None:
    async def flood(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError):
                for _ in range(10_000):
                    await stream.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    request = httpx2.Request("GET", f"http://127.0.0.1:{port}/")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, flood)
        with pytest.raises(httpx2.RemoteProtocolError, match="more than 32 interim responses"):
            await exchange(Destinations(PUBLIC, NetworkReach.LOOPBACK), request)
        group.cancel_scope.cancel()


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(ExchangeError, match=NEARER):
        yield


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "[::ffff:127.0.0.1]"])
async def test_a_remote_server_cannot_redirect_a_login_to_this_machine(canary: Canary, host: str) -> None:
    with refused():
        await exchange(Destinations(PUBLIC), httpx2.Request("GET", f"https://{host}:{canary.port}/"))

    assert canary.heard == []


@each("reach", [NetworkReach.PUBLIC, NetworkReach.PRIVATE, NetworkReach.LOOPBACK])
@each(
    "host",
    [
        "169.254.169.254",
        "169.254.1.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "0.0.0.0",
        "224.0.0.1",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[::]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[64:ff9b:1::a9fe:a9fe]",
        "[::169.254.169.254]",
        "[::ffff:0:a9fe:a9fe]",
    ],
)
async def test_no_server_leads_to_a_metadata_service_with_credentials(host: str, reach: NetworkReach) -> None:
    with refused():
        await Destinations(PUBLIC, reach).pinned(httpx2.Request("GET", f"https://{host}/"))


@each(
    "host",
    [
        *("10.0.0.1", "172.16.0.1", "100.64.0.1", "[fc00::1]", "[fec0::1]", "[64:ff9b::a00:1]"),
        *("[64:ff9b:1::808:808]", "[::10.0.0.1]", "[::ffff:0:a00:1]"),
    ],
)
async def test_only_a_server_in_the_private_network_can_name_addresses_in_it(host: str) -> None:
    request = httpx2.Request("GET", f"https://{host}/")
    with refused():
        await Destinations(PUBLIC).pinned(request)

    assert await Destinations(PUBLIC, NetworkReach.PRIVATE).pinned(request) == [request]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "169.254.169.254", "127.1", "2852039166", "0xa9.0xfe.0xa9.0xfe"]
)
async def test_behind_a_network_proxy_addresses_that_are_written_out_are_still_checked(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "")
    name = httpx2.Request("GET", "https://login.example/")
    with refused():
        await Destinations(PUBLIC).pinned(httpx2.Request("GET", f"https://{host}/"))

    assert await Destinations(PUBLIC).pinned(name) == [name], "the proxy resolves it"


@each("host", ["8.8.8.8", "[2606:4700::1111]", "[::ffff:8.8.8.8]", "[64:ff9b::808:808]"])
async def test_every_server_can_name_public_addresses(host: str) -> None:
    request = httpx2.Request("GET", f"https://{host}/")

    assert await Destinations(PUBLIC).pinned(request) == [request]


async def test_a_name_is_resolved_once_and_the_checked_address_is_connected_to(canary: Canary) -> None:
    request = httpx2.Request("GET", f"http://localhost:{canary.port}/well-known")
    pinned = await Destinations(PUBLIC, NetworkReach.LOOPBACK).pinned(request)
    answer = await exchange(Destinations(PUBLIC, NetworkReach.LOOPBACK), request)

    assert all(each.url.host in {"127.0.0.1", "::1"} for each in pinned)
    assert all(each.headers["host"] == f"localhost:{canary.port}" for each in pinned)
    assert answer.status_code == 200
    assert f"host: localhost:{canary.port}".encode() in canary.heard[0].lower()


async def test_configured_hosts_are_allowed_at_any_address(canary: Canary) -> None:
    of_issuer = ServerConfig(
        name="far", url="https://mcp.example/mcp", oauth=OAuthConfig(issuer=f"http://localhost:{canary.port}")
    )
    destinations = Destinations(of_issuer)
    await exchange(destinations, httpx2.Request("GET", f"http://localhost:{canary.port}/"))

    # And where that one is, its own endpoints may be.
    await exchange(destinations, httpx2.Request("GET", f"http://127.0.0.1:{canary.port}/"))
    assert len(canary.heard) == 2


async def test_a_renewal_connects_to_no_nearer_address_than_the_login(canary: Canary) -> None:
    def credentials(reach: NetworkReach) -> OAuthCredentials:
        return OAuthCredentials(
            server="far",
            resource="https://mcp.example/mcp",
            issuer="https://login.example",
            token_endpoint=f"http://localhost:{canary.port}/token",
            client_id="us",
            access_token="old",
            refresh_token="again",
            reach=reach,
        )

    with pytest.raises(AuthorizationError, match=NEARER):
        await token_endpoint.refresh(PUBLIC, credentials(NetworkReach.PRIVATE))
    assert canary.heard == []

    with pytest.raises(AuthorizationError, match="no usable token"):
        await token_endpoint.refresh(PUBLIC, credentials(NetworkReach.LOOPBACK))
    assert len(canary.heard) == 1


# A server for one name, with a certificate for it, that is trusted in the process that asks.
ASK = """
import sys, anyio, httpx2
from mcp_context_proxy.oauth.token_endpoint import exchange
from mcp_context_proxy.oauth.token_endpoint import Destinations, NetworkReach
from mcp_context_proxy.config import ServerConfig

async def main():
    far = ServerConfig(name="far", url="https://mcp.example/mcp")
    destinations = Destinations(far, NetworkReach.LOOPBACK)
    try:
        answer = await exchange(destinations, httpx2.Request("GET", sys.argv[1]))
        print(answer.status_code)
    except httpx2.ConnectError as error:
        print(error)

anyio.run(main)
"""


@pytest.mark.parametrize(("named", "told"), [("localhost", "200"), ("other.example", "Hostname mismatch")])
async def test_certificates_are_verified_for_the_host_name_and_not_for_the_address(
    tmp_path: Path, named: str, told: str
) -> None:
    authority, context = Authority(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.write(tmp_path / "server.pem", named))
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def answer(stream: anyio.abc.SocketStream) -> None:
        try:
            async with await anyio.streams.tls.TLSStream.wrap(
                stream, server_side=True, ssl_context=context, standard_compatible=False
            ) as encrypted:
                await encrypted.receive()
                await encrypted.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (ssl.SSLError, anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.aclose()

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, answer)
        asked = await anyio.run_process(
            [sys.executable, "-c", ASK, f"https://localhost:{port}/"],
            env={**os.environ, "SSL_CERT_FILE": str(authority.trusted(tmp_path / "ca.pem"))},
        )
        group.cancel_scope.cancel()

    assert told in asked.stdout.decode()
