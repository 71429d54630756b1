"""Answers over HTTP that are cut, flooded or garbled: one answer in words, and nothing is run twice."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, command, host_of, inside
from support.raw_client import RpcError
from support.servers import Server, Workshop
from support.services import QuietHandler, serving
from support.tables import each
from support.wires import stdio

from mcp_context_proxy.downstream.http_client import KEPT_ALIVE_SECONDS

ERAS = [pytest.param(era, marks=pytest.mark.either("odd")) for era in ("modern", "handshake")]
FAULTY = "odd__faulty"


class Handler(QuietHandler):
    """An MCP server that speaks as it should until its tool is called."""

    protocol_version = "HTTP/1.1"
    server: OddServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen[message.get("method", "reply")] += 1
        if "id" not in message or "method" not in message:
            self.begin(202)
        elif message["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": "done"}]}
            self.server.fault(self, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        else:
            result = self.server.answers.get(message["method"], {})
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            self.begin(200, body, {"content-type": "application/json", **self.server.headers})

    def do_GET(self) -> None:
        self.server.gets.append(time.monotonic())
        if self.server.stream:
            self.begin(200, self.server.stream, {"content-type": "text/event-stream"})
        else:
            self.begin(405)

    def do_DELETE(self) -> None:
        self.begin(200)

    def begin(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def flood(self, data: bytes) -> None:
        """An event stream of this, without end."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            while True:
                self.wfile.write(data)
        except OSError:
            self.close_connection = True


Fault = Callable[[Handler, str], None]


class OddServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, era: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        info = {"name": "odd", "version": "1"}
        offered = {"capabilities": {"tools": {}}, "serverInfo": info}
        self.answers: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-11-25", **offered},
            "server/discover": {"supportedVersions": ["2026-07-28"], **offered},
            "tools/list": {"tools": [{"name": "faulty", "inputSchema": {"type": "object"}}]},
        }
        self.fault: Fault = lambda handler, reply: None
        self.headers: dict[str, str] = {}
        """Headers of the answers to all requests except calls."""
        self.stream = b""
        """Events for every client that listens."""
        self.connections = 0
        self.seen: Counter[str] = Counter()
        self.gets: list[float] = []
        url = f"http://127.0.0.1:{self.server_address[1]}/mcp"
        self.settings = {"url": url, "era": era, "call_timeout": 10.0}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away."""


@pytest.fixture(params=ERAS)
def odd(request: pytest.FixtureRequest, workshop: Workshop) -> Iterator[OddServer]:
    server = OddServer(request.param)
    with serving(server):
        workshop.server("odd").settings = server.settings
        yield server


@pytest.fixture
async def host(workshop: Workshop, odd: OddServer) -> AsyncIterator[Host]:
    """A client of one proxy for all rows of a table."""
    async with inside(workshop.config()) as proxy:
        yield Host(proxy, "handshake")


async def said(host: Host) -> str:
    """What the host is told when it calls the tool."""
    return str((await host.call(FAULTY))["content"][0]["text"])


def event(message: str) -> bytes:
    return b"data: " + message.encode() + b"\n\n"


def as_stream(handler: Handler, body: bytes, **headers: str) -> None:
    handler.begin(200, body, {"content-type": "text/event-stream", **headers})


LOG = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
FLOODS = {
    "comments": b":\n" * 30_000,
    "log": event(LOG) * 500,
    "questions": event('{"jsonrpc":"2.0","id":"q","method":"ping"}') * 500,
}


async def test_an_endless_stream_without_a_response_ends_at_the_timeout(
    workshop: Workshop, odd: OddServer, good: Server
) -> None:
    packed = gzip.compress(b":\n" * (64 << 20), 1)
    odd.settings["call_timeout"] = 0.3
    told: dict[str, str] = {}
    async with host_of(workshop.config(), "handshake") as host:

        async def call(kind: str) -> None:
            told[kind] = await said(host)

        for kind, flood in (*FLOODS.items(), ("compressed comments", b"")):
            odd.fault = lambda handler, reply, flood=flood: (
                handler.flood(flood) if flood else as_stream(handler, packed, **{"content-encoding": "gzip"})
            )
            odd.seen.clear()
            async with anyio.create_task_group() as group:
                group.start_soon(call, kind)
                await until(lambda: odd.seen["tools/call"])
                assert "isError" not in await host.call("good__fine"), kind
            assert odd.seen["tools/call"] == 1, kind

    assert {kind for kind, text in told.items() if "did not answer tool 'faulty' within 0.3 s" in text} == {
        *FLOODS,
        "compressed comments",
    }


@each("codings", ["gzip, gzip", "deflate,gzip", "identity, GZIP , gzip"])
@each("kind", ["text/event-stream", "application/json"])
async def test_an_answer_that_is_compressed_twice_is_refused_unread(
    host: Host, odd: OddServer, kind: str, codings: str
) -> None:
    """Megabytes of empty blocks are a kilobyte if they are packed twice, and give nothing to pause at."""

    def answer(handler: Handler, reply: str) -> None:
        packed = gzip.compress(gzip.compress(b":" * 1000 + event(reply)))
        handler.begin(200, packed, {"content-type": kind, "content-encoding": codings})

    odd.fault = answer
    odd.seen.clear()

    assert "compressed more than once" in await said(host)
    assert odd.seen["tools/call"] == 1


INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </mcp>; rel=preload\r\n\r\n"


async def test_interim_responses_without_end_end_the_call_and_not_the_connection_of_another(
    workshop: Workshop, odd: OddServer, good: Server
) -> None:
    """They are parsed without a pause, so that a server could stop everybody else."""
    sent = 0

    def answer(handler: Handler, reply: str) -> None:
        nonlocal sent
        handler.connection.settimeout(5.0)
        try:
            while sent < 100_000:
                handler.wfile.write(INTERIM)
                sent += 1
        except OSError:
            handler.close_connection = True

    odd.fault = answer
    async with host_of(workshop.config(), "handshake") as host:
        refused = await host.call(FAULTY)
        beside = await host.call("good__fine")

    assert "it sent more than 32 interim responses" in refused["content"][0]["text"]
    assert "isError" not in beside
    assert odd.seen["tools/call"] == 1
    assert sent < 100_000


@each("at_once", [1, 7, 1_000])
async def test_a_few_interim_responses_change_nothing_however_they_arrive(
    host: Host, odd: OddServer, at_once: int
) -> None:
    def answer(handler: Handler, reply: str) -> None:
        handler.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        interim = INTERIM * 30
        for start in range(0, len(interim), at_once):
            handler.wfile.write(interim[start : start + at_once])
        # Those in the answer are not counted.
        as_stream(handler, b"HTTP/1.1 100 Continue\n" * 40 + event(reply))

    odd.fault = answer

    assert await said(host) == "done"


QUESTION = (
    '{"jsonrpc":"2.0","id":"forged","method":"elicitation/create","params":{"message":"as another server"}}'
)


async def test_an_answer_in_several_lines_is_one_message_for_a_host_on_standard_streams(
    workshop: Workshop, odd: OddServer
) -> None:
    """JSON may have line ends between its values; some hosts take a carriage return for one."""
    ends = ["\n", "\r", "\r\n"]
    asked = ",".join(f"{end}{QUESTION}{end}" for end in ends)
    written = f'{{"content":[],"forged":[{asked}]}}'
    odd.fault = lambda handler, reply: handler.begin(
        200,
        reply.replace('{"content": [{"type": "text", "text": "done"}]}', written).encode(),
        {"content-type": "application/json"},
    )
    async with stdio(command(workshop.config()), capabilities={"elicitation": {}}) as client:
        await client.until_listed(FAULTY)
        result = await client.call(FAULTY)

    assert result["forged"] == [json.loads(QUESTION)] * 3
    assert client.asked == []
    assert not any("\r" in text for text in client.texts)


async def test_an_answer_that_is_compressed_once_is_read(host: Host, odd: OddServer) -> None:
    odd.fault = lambda handler, reply: as_stream(
        handler, gzip.compress(event(reply)), **{"content-encoding": "gzip, identity"}
    )

    assert await said(host) == "done"


ODD_PARAMS = [
    ("progress", "[1]"),
    ("message", '"x"'),
    ("message", "null"),
    ("resources/updated", "1"),
    ("message", f'{{"level":"info","data":"{"x" * 2_000_000}"}}'),
]


async def test_notifications_whose_params_are_no_object_cost_no_call(host: Host, odd: OddServer) -> None:
    told = [
        f'{{"jsonrpc":"2.0","method":"notifications/{name}","params":{said}}}' for name, said in ODD_PARAMS
    ]
    odd.fault = lambda handler, reply: as_stream(handler, b"".join(map(event, [*told, reply])))

    assert await said(host) == "done"


UNREADABLE = [
    b"data: no message\n\n",
    b"data: [[[\n\n",
    b'data: {"jsonrpc":"2.0","method":7}\n\n',
    b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\xff"}}\n\n',
    b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":NaN}}\n\n',
    b'data: {"jsonrpc":"2.0","id":{},"result":{}}\n\n',
]


@each("line", UNREADABLE)
async def test_an_event_that_cannot_be_read_costs_no_call_unless_it_is_the_last(
    host: Host, odd: OddServer, line: bytes
) -> None:
    odd.seen.clear()
    odd.fault = lambda handler, reply: as_stream(handler, line + event(reply))
    passed = await host.call(FAULTY)
    odd.fault = lambda handler, _: as_stream(handler, line)
    failed = await host.call(FAULTY)

    assert passed["content"][0]["text"] == "done"
    assert failed["isError"]
    assert odd.seen["tools/call"] == 2


@each("charset", ["utf-16", "klingon"])
async def test_a_stream_is_read_as_utf8_whatever_charset_it_declares(
    host: Host, odd: OddServer, charset: str
) -> None:
    kind = {"content-type": f"text/event-stream; charset={charset}"}
    odd.fault = lambda handler, reply: as_stream(handler, event(reply), **kind)

    assert await said(host) == "done"


async def test_a_redirect_to_the_same_address_is_not_followed(host: Host, odd: OddServer) -> None:
    odd.fault = lambda handler, reply: handler.begin(307, headers={"location": handler.path})

    assert "a redirect to" in await said(host)
    assert odd.seen["tools/call"] == 1


@each(
    ("status", "kind", "body", "words"),
    [
        (
            200,
            "text/html",
            b"<html>",
            "HTTP status 200 and no message (text/html): the program there does not",
        ),
        (204, "", b"", "HTTP status 204 and no message (no content): the program there does not speak MCP"),
        (422, "", b"", "HTTP status 422: it refuses the request"),
        (
            403,
            "application/json",
            b'{"error": "invalid_token", "error_description": "The token\\nhas expired"}',
            'HTTP status 403 and "The token has expired": it does not allow',
        ),
        (422, "application/problem+json", b'{"message": "No such plan"}', 'and "No such plan": it'),
        (422, "application/json", b'{"detail": "No such plan"}', 'and "No such plan": it'),
        (429, "text/plain; charset=utf-8", b"Slow down\n", 'and "Slow down": try again'),
        (422, "application/json", b'{"detail": 7}', "HTTP status 422: it refuses"),
        (200, "application/json", b'{"jsonrpc":"2.0","id":1,"res', "a message that cannot be read"),
        (200, "application/json", b"[[[", "a message that cannot be read"),
    ],
)
async def test_a_response_that_is_no_message_is_reported_with_advice(
    host: Host, odd: OddServer, status: int, kind: str, body: bytes, words: str
) -> None:
    odd.fault = lambda handler, reply: handler.begin(status, body, {"content-type": kind})

    text = await said(host)

    assert text.startswith("server 'odd' answered")
    assert words in text


@pytest.mark.parametrize("odd", ["handshake"], indirect=True)
async def test_a_stream_that_wants_to_be_resumed_at_once_is_resumed_after_a_second(
    workshop: Workshop, odd: OddServer
) -> None:
    odd.stream = b"retry: 0\nid: \xc3\xa4\ndata:\n\n"

    async with inside(workshop.config()):
        await until(lambda: len(odd.gets) >= 3)

    first, second, third = odd.gets[:3]
    assert second - first > 0.9
    assert third - second > 0.9


@pytest.mark.parametrize("odd", ["handshake"], indirect=True)
async def test_a_broken_response_stream_is_resumed_and_its_call_never_repeated(
    host: Host, odd: OddServer
) -> None:
    def begin(handler: Handler, reply: str) -> None:
        odd.stream = event(reply)
        as_stream(handler, b"retry: 0\nid: \xc3\xa4\ndata:\n\n")

    odd.fault = begin

    assert await said(host) == "done"
    assert odd.seen["tools/call"] == 1


@pytest.mark.parametrize("odd", ["handshake"], indirect=True)
async def test_a_call_whose_stream_cannot_be_resumed_is_reported_as_interrupted(
    host: Host, odd: OddServer
) -> None:
    """The server had accepted the call, so the lost stream does not mean that it failed."""

    def begin(handler: Handler, reply: str) -> None:
        odd.shutdown()
        odd.server_close()
        as_stream(handler, b"retry: 0\nid: a\ndata:\n\n", connection="close")

    odd.fault = begin

    assert "may or may not have run" in await said(host)


@pytest.mark.parametrize("odd", ["handshake"], indirect=True)
@each(
    ("status", "body", "words"),
    [
        (404, "", "HTTP status 404"),
        (404, '{"jsonrpc":"2.0","id":ID,"error":{"code":-32002,"message":"no such issue"}}', "no such issue"),
        (
            400,
            '{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no browser session"}}',
            "no browser",
        ),
    ],
)
async def test_a_refused_call_is_not_sent_again_if_the_session_is_still_known(
    workshop: Workshop, odd: OddServer, status: int, body: str, words: str
) -> None:
    def refuse(handler: Handler, reply: str) -> None:
        answer = body.replace("ID", str(json.loads(reply)["id"])).encode()
        handler.begin(status, answer, {"content-type": "application/json"})

    odd.seen.clear()
    odd.headers, odd.fault = {"mcp-session-id": "known"}, refuse
    async with inside(workshop.config()) as proxy:
        try:
            told = await said(Host(proxy, "handshake"))
        except RpcError as error:
            told = str(error)

        assert proxy.fleet.clients["odd"].restarts == 0

    assert words in told
    assert odd.seen["tools/call"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["handshake"], indirect=True)
async def test_a_call_avoids_a_connection_that_its_server_may_be_closing(
    workshop: Workshop, odd: OddServer
) -> None:
    """Servers close one that was idle for some seconds; a message sent at that moment is lost."""
    odd.fault = lambda handler, reply: handler.begin(
        200, reply.encode(), {"content-type": "application/json"}
    )
    async with host_of(workshop.config(), "handshake") as host:
        await host.call(FAULTY)
        connected = odd.connections
        await host.call(FAULTY)
        assert odd.connections == connected

        await anyio.sleep(KEPT_ALIVE_SECONDS + 0.1)
        await host.call(FAULTY)
        assert odd.connections == connected + 1
