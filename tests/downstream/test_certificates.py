"""Certificates: those that are trusted, and those by which a server knows its clients (mutual TLS)."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.streams.tls
import anyio.to_thread
import httpx2
import pytest
from support.certificates import Authority
from support.ledger import until
from support.proxies import Host, inside
from support.servers import Workshop, tool

from mcp_context_proxy.config import TlsConfig
from mcp_context_proxy.downstream.http_client import described
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.errors import StartError
from mcp_context_proxy.oauth.bearer import client_with


@asynccontextmanager
async def certified(authority: Authority, file: Path) -> AsyncIterator[str]:
    """Serve nothing but handshakes at a URL, with a certificate of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.write(file, "localhost"))
    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = anyio.streams.tls.TLSListener(plain, context, standard_compatible=False)
    async with plain, anyio.create_task_group() as group:
        group.start_soon(listener.serve, anyio.aclose_forcefully)
        yield f"https://localhost:{plain.extra(anyio.abc.SocketAttribute.local_port)}/"
        group.cancel_scope.cancel()


async def test_a_peer_without_a_trusted_certificate_is_refused(tmp_path: Path) -> None:
    another = TlsConfig(ca=Authority().trusted(tmp_path / "another.pem"))
    async with certified(Authority(), tmp_path / "server.pem") as url:
        for tls in (None, TlsConfig(), another):
            async with await client_with(tls) as client:
                with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
                    await client.get(url)


async def test_an_authority_that_is_renewed_in_its_file_is_trusted_from_the_next_connection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that were made before know it as well, so nobody has to be restarted."""
    file, renewed = Authority().trusted(tmp_path / "ca.pem"), Authority("renewed")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with certified(renewed, tmp_path / "server.pem") as url, await client_with(None) as client:
        with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
            await client.get(url)
        renewed.trusted(file)
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(url)
        file.write_text("half of")
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(url)


@asynccontextmanager
async def demanding_certificates(authority: Authority, folder: Path, url: str) -> AsyncIterator[str]:
    """Serve what is at a URL over TLS, to clients with a certificate of an authority only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.write(folder / "server.pem", "localhost"))
    context.load_verify_locations(authority.trusted(folder / "clients.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    to = urlsplit(url)

    async def passed_on(client: anyio.abc.ByteStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            async with (
                client,
                await anyio.connect_tcp(to.hostname, to.port) as server,
                anyio.create_task_group() as group,
            ):
                for source, sink in ((client, server), (server, client)):
                    group.start_soon(_pass, source, sink, group.cancel_scope)

    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = anyio.streams.tls.TLSListener(plain, context, standard_compatible=False)
    async with plain, anyio.create_task_group() as group:
        group.start_soon(listener.serve, passed_on)
        yield f"https://localhost:{plain.extra(anyio.abc.SocketAttribute.local_port)}{to.path}"
        group.cancel_scope.cancel()


async def _pass(source: Any, sink: Any, scope: anyio.CancelScope) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for data in source:
            await sink.send(data)
    scope.cancel()


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_server_that_demands_a_certificate_gets_it(workshop: Workshop, kind: str) -> None:
    server = {"http": workshop.http_server, "sse": workshop.sse_server}[kind]("locked", tools=[tool("echo")])
    authority = Authority()
    authority.write(workshop.folder / "client.pem", "proxy", password="open sesame")
    async with demanding_certificates(authority, workshop.folder, server.settings["url"]) as url:
        tls = {"certificate": "client.pem", "password": "open sesame", "ca": "clients.pem"}
        server.settings = {"url": url, "transport": kind, "tls": tls}
        async with inside(workshop.config()) as proxy:
            answered = await Host(proxy, "modern").call("locked__echo")

    assert "isError" not in answered


async def test_a_certificate_that_is_renewed_in_its_file_is_used_for_the_next_connection(
    workshop: Workshop,
) -> None:
    server, authority = workshop.http_server("locked", tools=[tool("echo")]), Authority()
    authority.write(workshop.folder / "client.pem", "proxy", days=-1)
    async with demanding_certificates(authority, workshop.folder, server.settings["url"]) as url:
        server.settings = {"url": url, "tls": {"certificate": "client.pem", "ca": "clients.pem"}}
        async with inside(workshop.config(), patience=None) as proxy:
            client = proxy.fleet.clients["locked"]
            await until(lambda: client.state is ServerState.FAILED)
            expired = str(client.cause)
            authority.write(workshop.folder / "client.pem", "proxy")
            proxy.fleet.restart("locked")
            await until(lambda: proxy.fleet.clients["locked"].state is ServerState.READY)
            answered = await Host(proxy, "modern").call("locked__echo")

    assert "the connection was reset" in expired
    assert "isError" not in answered


async def test_a_refusal_of_a_certificate_that_comes_after_the_handshake_is_told_in_words(
    tmp_path: Path,
) -> None:
    """With TLS 1.3 it is read in place of an answer, and the library passes it on as an error of its own."""
    authority, context = Authority(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.write(tmp_path / "server.pem", "localhost"))
    context.load_verify_locations(authority.trusted(tmp_path / "clients.pem"))
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secured:
            with suppress(ssl.SSLError):
                secured.do_handshake()
            while socket.socket.recv(secured, 4096):  # a reset would take the alert away
                pass

    tls = TlsConfig(ca=tmp_path / "clients.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://localhost:{listener.getsockname()[1]}/mcp"
        async with await client_with(tls) as client, anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, refuse, listener)
            with pytest.raises(httpx2.ReadError) as raised:
                await client.get(url)

    assert "it demands another certificate of this proxy (tls.certificate)" in described(raised.value)


async def test_certificates_that_cannot_be_used_are_told_by_file_and_reason(tmp_path: Path) -> None:
    authority, empty = Authority(), tmp_path / "empty.pem"
    empty.write_text("")
    one, other = (authority.write(tmp_path / f"{name}.pem", name, "open sesame") for name in ("one", "other"))
    told = {}
    for place, reason, tls in (
        ("none.pem", "No such file", TlsConfig(ca=tmp_path / "none.pem")),
        ("empty.pem", "it has no certificate in PEM", TlsConfig(ca=empty)),
        ("empty.pem", "it has no certificate in PEM", TlsConfig(certificate=empty)),
        ("one.pem", "no key that tls.password opens", TlsConfig(certificate=one, password="guess")),
        ("one.pem", "of another certificate", TlsConfig(certificate=one, key=other, password="open sesame")),
    ):
        with pytest.raises(StartError) as raised:
            await client_with(tls)
        if place not in str(raised.value) or reason not in str(raised.value):
            told[reason] = str(raised.value)

    assert told == {}
