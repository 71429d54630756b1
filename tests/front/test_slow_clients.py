"""Over HTTP nobody has unlimited time, and no crowd of slow ones keeps out who behaves."""

import asyncio
import contextlib
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from support.ledger import until
from support.proxies import HttpProxy, http_proxy
from support.servers import Workshop, tool
from support.wires import HttpWire, http

from mcp_context_proxy.config import Limits
from mcp_context_proxy.front.http import WARNINGS_AT_ONCE
from mcp_context_proxy.front.http_connections import (
    CHUNKS_STEP,
    HEADER_BYTES,
    HEADER_STEP,
    WriteBacklog,
    connection_class,
)

WHOLE = {"max_tokens": 0}
"""Results are passed on whole, however large."""
LIMITS = {
    "http_header_seconds": 0.6,
    "http_body_seconds": 0.6,
    "http_idle_seconds": 1.0,
    "http_connections": 20,
    "stalled_seconds": 0.6,
}
TOO_MANY_WAKINGS = 23
"""Wakings per second: there are 17, and ten more with uvicorn's own looks at the clock."""
HTTP = "http://"
HOST = "127.0.0.1"
MESSAGE = "notifications/message"
OPEN_STREAM = "GET /sse HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\n\r\n"
HEAD = "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    workshop = Workshop(tmp_path_factory.mktemp("slow"))
    workshop.server("work", tools=[tool("dump")], calls={"dump": [{"large": 8_000_000}]})
    with http_proxy(workshop.config(limits=LIMITS, results=WHOLE)) as running:
        yield running


@pytest.fixture(scope="module")
def patient_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    """A proxy that disconnects nobody for being slow during a test."""
    workshop = Workshop(tmp_path_factory.mktemp("patient"))
    with http_proxy(workshop.config(limits={"http_connections": LIMITS["http_connections"]})) as running:
        yield running


def address(proxy: HttpProxy) -> tuple[str, int]:
    host, port = proxy.base.removeprefix(HTTP).split(":")
    return host, int(port)


def opened(proxy: HttpProxy) -> socket.socket:
    made = socket.create_connection(address(proxy), timeout=20)
    made.settimeout(20)
    return made


def sent(proxy: HttpProxy, text: str) -> socket.socket:
    made = opened(proxy)
    made.sendall(text.format(proxy.base.removeprefix(HTTP)).encode())
    return made


def until_received(peer: socket.socket, text: bytes, *, most: int = 1 << 16) -> bytes:
    """Read until a text or more than `most` bytes have arrived: one read may hold any part of an answer."""
    received = b""
    while text not in received and len(received) <= most and (data := peer.recv(1 << 16)):
        received += data
    return received


def until_closed(peer: socket.socket) -> bytes:
    """Everything until the proxy closes the connection, which must happen."""
    received = b""
    try:
        while data := peer.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("size", [50_000, HEADER_BYTES + HEADER_STEP, 100_000, 200_000])
def test_headers_are_refused_at_the_same_size_however_they_arrive(proxy: HttpProxy, size: int) -> None:
    for _ in range(5):
        much = "GET /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nx-much: " + "a" * size + "\r\n\r\n"
        with opened(proxy) as peer:
            with contextlib.suppress(ConnectionError):
                peer.sendall(much.format(proxy.base.removeprefix(HTTP)).encode())
            answer = until_closed(peer)
        # A connection that is closed with something unread loses its answer.
        assert answer[9:12] in ([b"200"] if size < HEADER_BYTES else [b"400", b""])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="silent"),
        pytest.param("POST /mc", id="half-a-line"),
        pytest.param(HEAD, id="half-the-headers"),
        pytest.param(HEAD + "content-length: 100\r\n\r\n" + "[1,", id="half-the-body"),
        pytest.param("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", id="idle-after-an-answer"),
    ],
)
def test_a_client_that_stops_sending_is_disconnected(proxy: HttpProxy, text: str) -> None:
    with sent(proxy, text) as peer:
        until_closed(peer)


def test_a_client_that_sends_single_bytes_slowly_is_disconnected(proxy: HttpProxy) -> None:
    with sent(proxy, HEAD) as peer:
        peer.settimeout(0.1)
        closed = False
        while not closed:
            try:
                peer.sendall(b"x")
                closed = peer.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True


async def test_a_client_that_does_not_read_a_large_answer_is_disconnected(proxy: HttpProxy) -> None:
    until_called(proxy)
    with asked(proxy) as peer:
        assert until_received(peer, b"\r\n").startswith(b"HTTP/1.1 200")
        await until(lambda: is_reset(peer))


async def test_others_have_their_turn_while_a_body_comes_in_chunks_of_one_byte() -> None:
    """Each chunk is parsed on its own, and 16 KiB come at once: crowds of them stopped everybody else."""
    pieces: list[int] = []

    async def read(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            pieces.append(len(message["body"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limits = Limits()
    connections = connection_class(limits, WriteBacklog(limits))
    config = uvicorn.Config(read, http=connections, lifespan="off", log_config=None)
    config.load()
    state = uvicorn.server.ServerState()
    listener = await asyncio.get_running_loop().create_server(lambda: connections(config, state, {}), HOST, 0)
    async with listener, await anyio.connect_tcp(*listener.sockets[0].getsockname()) as client:
        head = HEAD.format("x") + "connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        await client.send(head.encode() + b"1\r\n \r\n" * 20_000 + b"0\r\n\r\n")
        with anyio.fail_after(60):
            assert (await client.receive()).startswith(b"HTTP/1.1 204")

    assert max(pieces) <= (HEADER_STEP + 2 * CHUNKS_STEP) / 6
    assert sum(pieces) + max(pieces) >= 20_000


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param("POST /mcp HTTP/1.1\r\n", b"", id="half-the-headers"),
        pytest.param("GET /livez HTTP/1.1\r\nhost: {}\r\n\r\n", b"\r\n\r\n", id="idle-after-an-answer"),
        pytest.param(
            "POST /livez HTTP/1.1\r\nhost: {}\r\ncontent-length: 100\r\n\r\nx",
            b"",
            id="refused-before-the-body",
        ),
        pytest.param(HEAD + "content-length: 100\r\n\r\n[1,", b"", id="half-the-body"),
    ],
)
async def test_a_crowd_of_connections_keeps_nobody_out(
    patient_proxy: HttpProxy, text: str, answer: bytes
) -> None:
    with ExitStack() as stack:
        for _ in range(3 * LIMITS["http_connections"]):
            # A connection whose request is under way gives up its place to nobody.
            until_received(stack.enter_context(sent(patient_proxy, text)), answer)
        async with httpx2.AsyncClient(timeout=20) as client:
            statuses = [(await client.get(patient_proxy.base + "/healthz")).status_code for _ in range(5)]

    assert statuses == [200] * 5


def test_a_crowd_ends_no_request_that_is_under_way(patient_proxy: HttpProxy) -> None:
    with ExitStack() as stack:
        stream = stack.enter_context(sent(patient_proxy, OPEN_STREAM))
        assert b"event: endpoint" in until_received(stream, b"event: endpoint")
        for _ in range(3 * LIMITS["http_connections"]):
            stack.enter_context(sent(patient_proxy, "GET /livez HTTP/1.1\r\nhost: {}\r\n\r\n"))

        assert not is_reset(stream)


def wakings(process: int) -> int:
    """Return how often the threads of a process have begun to wait so far."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    lines = "".join((task / "status").read_text(encoding="ascii") for task in tasks).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.skipif(sys.platform != "linux", reason="it is counted there")
async def test_a_front_sleeps_while_its_clients_have_read_everything(tmp_path: Path) -> None:
    with (
        http_proxy(Workshop(tmp_path).config(), real=True) as proxy,
        sent(proxy, OPEN_STREAM) as stream,
        anyio.fail_after(30),
    ):
        until_received(stream, b"event: endpoint")
        counted = TOO_MANY_WAKINGS
        while counted >= TOO_MANY_WAKINGS:
            before = wakings(proxy.process.pid)
            await anyio.sleep(1)
            counted = wakings(proxy.process.pid) - before


def test_what_is_no_request_fills_no_log(proxy: HttpProxy) -> None:
    host = proxy.base.removeprefix(HTTP)
    chunks = f"HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\nno chunk\r\n\r\n"
    for text in ("no request\r\n\r\n", *(f"{method} /mcp {chunks}" for method in ("POST", "GET", "HEAD"))):
        for _ in range(20):
            with sent(proxy, text) as peer:
                assert until_closed(peer).startswith(b"HTTP/1.1 4")

    log = proxy.folder.joinpath("config.log").read_text(encoding="utf-8")
    assert 0 < log.count("Invalid HTTP request") <= 2 * WARNINGS_AT_ONCE
    assert "Traceback" not in log


def test_a_request_that_arrives_slowly_but_in_time_is_served(proxy: HttpProxy) -> None:
    with opened(proxy) as peer:
        for piece in (
            "GET /healthz HT",
            f"TP/1.1\r\nhost: {proxy.base.removeprefix(HTTP)}\r\n",
            "connection: close\r\n\r\n",
        ):
            peer.sendall(piece.encode())

        assert until_closed(peer).startswith(b"HTTP/1.1 200")


async def test_a_session_that_does_not_read_delays_no_other(workshop: Workshop) -> None:
    go, count = workshop.flag("go"), 300
    message = {"method": MESSAGE, "params": {"level": "error", "data": "x" * 50_000}}
    workshop.server(
        "loud",
        tools=[tool("work")],
        capabilities={"tools": {}, "logging": {}},
        after_initialized=[{"wait": str(go)}, *[{"announce": message}] * count],
    )
    with http_proxy(workshop.config(limits={"stalled_seconds": 600.0})) as proxy:
        async with http(proxy.base, opened=False) as deaf, http(proxy.base) as listening:
            await deaf.open()
            assert isinstance(deaf.wire, HttpWire)
            for client in (deaf, listening):
                await client.request("logging/setLevel", {"level": "debug"})
            await listening.until_listed("loud__work")
            headers = deaf.wire.headers({}) | {"accept": "text/event-stream"}
            async with deaf.wire._http.stream("GET", f"{proxy.base}/mcp", headers=headers) as unread:
                assert unread.status_code == 200
                go.touch()
                await listening.until(lambda client: len(client.notified(MESSAGE)) == count)


CALL = (
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work__%s","arguments":{},"_meta":'
    '{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}'
)


PAGE = 1_500_000
"""Bytes of an answer for which there is room beside a large one that nobody reads."""


def asked(proxy: HttpProxy, path: str = "/mcp", name: str = "dump") -> socket.socket:
    """A connection on which a tool was called, of which nothing is read."""
    call = CALL % name
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {proxy.base.removeprefix(HTTP)}\r\ncontent-type: application/json\r\n"
        "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
        f"mcp-method: tools/call\r\nmcp-name: work__{name}\r\ncontent-length: {len(call)}\r\n\r\n"
    )
    made = opened(proxy)
    made.sendall((head + call).encode())
    return made


def is_reset(peer: socket.socket) -> bool:
    """Return whether the proxy has closed a connection, without reading from it."""
    poll = select.poll()
    poll.register(peer, select.POLLHUP)
    return bool(poll.poll(0))


@contextlib.contextmanager
def deaf_proxy(workshop: Workshop, size: int, **limits: Any) -> Iterator[HttpProxy]:
    answers = {"dump": [{"large": size}], "page": [{"large": PAGE}]}
    workshop.server("work", tools=[tool("dump"), tool("page")], calls=answers)
    with http_proxy(workshop.config(limits={"http_idle_seconds": 600.0} | limits, results=WHOLE)) as running:
        until_called(running)
        yield running


def until_called(proxy: HttpProxy) -> None:
    """Call the tool until the proxy knows it. Its answer is far larger than the error for an unknown tool."""
    unknown = b"unknown tool"
    while True:
        with asked(proxy) as peer:
            if unknown not in until_received(peer, unknown, most=4_000):
                return


async def test_a_client_that_does_not_read_a_small_answer_is_disconnected(
    workshop: Workshop,
) -> None:
    with deaf_proxy(workshop, 3_000_000, stalled_seconds=0.6) as proxy, asked(proxy) as peer:
        await until(lambda: is_reset(peer))


async def test_an_unread_event_stream_is_closed(workshop: Workshop) -> None:
    with deaf_proxy(workshop, 8_000_000, stalled_seconds=0.6) as proxy, sent(proxy, OPEN_STREAM) as stream:
        posted_at = b""
        while b"session_id=" not in posted_at or not posted_at.endswith(b"\r\n"):
            posted_at += stream.recv(1)
        path = posted_at.decode().rpartition("data: ")[2].strip()
        with asked(proxy, path):
            await until(lambda: is_reset(stream))


async def test_with_a_large_backlog_clients_that_do_not_read_are_dropped_first(
    workshop: Workshop,
) -> None:
    size, count = 12_000_000, 4
    with deaf_proxy(workshop, size, stalled_seconds=600.0) as proxy, ExitStack() as stack:
        deaf = [stack.enter_context(asked(proxy)) for _ in range(count)]
        await until(lambda: any(map(is_reset, deaf)))
        with asked(proxy, name="page") as peer:
            answer = await anyio.to_thread.run_sync(until_whole, peer, PAGE)

        assert len(answer) > PAGE
        assert not all(map(is_reset, deaf))


async def test_where_larger_messages_are_allowed_more_may_wait_for_clients_that_pause(
    workshop: Workshop,
) -> None:
    allowed, size, count = 40_000_000, 12_000_000, 6
    with (
        deaf_proxy(workshop, size, stalled_seconds=600.0, message_bytes=allowed) as proxy,
        ExitStack() as stack,
    ):
        deaf = [stack.enter_context(asked(proxy)) for _ in range(count)]
        await until(lambda: any(map(is_reset, deaf)))
        with asked(proxy, name="page") as peer:
            await anyio.to_thread.run_sync(until_whole, peer, PAGE)

        assert count - sum(map(is_reset, deaf)) >= allowed // size


def until_whole(peer: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) <= size and (data := peer.recv(1 << 20)):
        received += data
    return received
