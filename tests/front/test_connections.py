"""Requests are answered alike however they arrive, and nothing is kept for a client that has gone."""

import gc
import json
import socket
import struct
from collections.abc import Iterator

import anyio
import anyio.abc
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.ledger import until
from support.proxies import HttpProxy, http_proxy
from support.raw_client import PREFIX
from support.servers import Workshop, tool

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front import http
from mcp_context_proxy.front.http_connections import BoundedConnection

CLIENTS = 20
RESET = struct.pack("ii", 1, 0)
"""Have a socket say on closing that nothing more is of interest, as one does that leaves answers unread."""

ASKS = [
    b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
]


@pytest.fixture
def no_search_for_garbage() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_search_for_garbage")
@pytest.mark.parametrize("asks", ASKS, ids=["parsed", "plain"])
async def test_a_connection_that_its_client_reset_is_freed_without_the_garbage_collector(asks: bytes) -> None:
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("here"), methods=["GET", "POST"])])
    bound = http.listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    async with anyio.create_task_group() as group:
        group.start_soon(http.serve, app, bound, Limits())
        for _ in range(CLIENTS):
            async with await anyio.connect_tcp("127.0.0.1", port) as client:
                await client.send(asks)
                assert (await client.receive()).startswith(b"HTTP/1.1 200")
                plain = client.extra(anyio.abc.SocketAttribute.raw_socket)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

        await until(lambda: not connections())
        group.cancel_scope.cancel()


def connections() -> int:
    return sum(issubclass(type(known), BoundedConnection) for known in gc.get_objects())


VERSION = "2026-07-28"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    workshop = Workshop(tmp_path_factory.mktemp("connections"))
    workshop.server("work", tools=[tool("echo")])
    with http_proxy(workshop.config()) as running:
        yield running


def head_of(proxy: HttpProxy, method: str, length: str, *more: str) -> bytes:
    lines = [
        "POST /mcp HTTP/1.1",
        f"host: {proxy.base.removeprefix('http://')}",
        "accept: application/json, text/event-stream",
        "content-type: application/json",
        f"mcp-protocol-version: {VERSION}",
        f"mcp-method: {method}",
        *([length] if length else []),
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def body_of(number: int, method: str = "server/discover") -> bytes:
    meta = {PREFIX + "protocolVersion": VERSION, PREFIX + "clientCapabilities": {}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": {"_meta": meta}}).encode()


def connected(proxy: HttpProxy) -> socket.socket:
    host, port = proxy.base.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), timeout=20)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def answers(peer: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Statuses and bodies of so many answers."""
    found, data = list[tuple[int, bytes]](), b""
    while len(found) < count:
        head, ended, rest = data.partition(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:]) if ended else {}
        size = int(fields.get(b"content-length", b"0"))
        if not ended or len(rest) < size:
            came = peer.recv(1 << 16)
            assert came, (found, data)
            data += came
            continue
        found.append((int(head[9:12]), rest[:size]))
        data = rest[size:]
    assert not data
    return found


@pytest.mark.parametrize("way", ["whole", "body later", "byte by byte", "in chunks", "unusual value"])
async def test_a_request_is_answered_alike_however_it_arrives(proxy: HttpProxy, way: str) -> None:
    body = body_of(7)
    length, more, sent = f"content-length: {len(body)}", list[str](), body
    if way == "in chunks":
        length, sent = "transfer-encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    if way == "unusual value":
        more = ["x-name: gr\u00fc\u00dfe\tund mehr"]
    whole = head_of(proxy, "server/discover", length, *more) + sent
    with connected(proxy) as peer:
        for _ in range(3):
            pieces = {"byte by byte": [whole[at : at + 1] for at in range(len(whole))]}.get(way, [whole])
            if way == "body later":
                pieces = [whole[: -len(body)], body[:20], body[20:]]
            for piece in pieces:
                peer.sendall(piece)
                if way == "body later":
                    await anyio.sleep(0.01)
            ((status, answer),) = answers(peer, 1)
            assert (status, json.loads(answer)["id"]) == (200, 7)


async def test_requests_that_are_sent_at_once_are_answered_in_their_order(proxy: HttpProxy) -> None:
    count, many = 0, b""
    for number in range(1, 1500):
        body = body_of(number)
        many += head_of(proxy, "server/discover", f"content-length: {len(body)}") + body
        count += 1
        if number % 100 == 0:
            host = proxy.base.removeprefix("http://")
            many += f"GET /livez HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
            count += 1
    with connected(proxy) as peer:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, peer.sendall, many)
            found = await anyio.to_thread.run_sync(answers, peer, count)

    assert all(status == 200 for status, _ in found)
    numbers = [json.loads(answer)["id"] for _, answer in found if answer.startswith(b'{"jsonrpc"')]
    assert numbers == list(range(1, 1500))


async def test_a_request_that_is_refused_before_its_body_comes_leaves_the_next_one_whole(
    proxy: HttpProxy,
) -> None:
    body = body_of(8)
    head = head_of(proxy, "server/discover", f"content-length: {len(body)}")
    with connected(proxy) as peer:
        peer.sendall(head.replace(b"content-type", b"origin: http://evil.example\r\ncontent-type"))
        assert answers(peer, 1)[0][0] == 403
        peer.sendall(body + head + body)
        ((status, answer),) = answers(peer, 1)

    assert (status, json.loads(answer)["id"]) == (200, 8)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ((b"content-length: ", b"content-length: 0\r\ncontent-length: "), 400),
        ((b"content-length: ", b"transfer-encoding: chunked\r\ncontent-length: "), 400),
        ((b"content-length: ", b"content-length: +"), 400),
        ((b"content-length: ", b"content-length : "), 400),
        ((b"accept: ", b" accept: "), 421),
        ((b"accept: ", b"accept: a\nb: "), 406),
        ((b"host: ", b"host: other\r\nhost: "), 400),
        ((b"host: ", b"x-host: "), 400),
    ],
)
async def test_a_request_that_two_readers_may_read_differently_is_refused(
    proxy: HttpProxy, change: tuple[bytes, bytes], status: int
) -> None:
    body = body_of(9)
    head = head_of(proxy, "server/discover", f"content-length: {len(body)}")
    with connected(proxy) as peer:
        peer.sendall(head.replace(*change) + body)

        received = peer.recv(1 << 16)

    assert received.startswith(b"HTTP/1.1 %d " % status), received
