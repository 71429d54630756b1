"""A message posted to a server over HTTP+SSE fails or waits without affecting any other."""

import json
import queue
import socket
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, inside
from support.raw_client import text_of
from support.servers import Workshop
from support.services import QuietHandler, serving

CROWD = 20


class Posted(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2 * CROWD

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.events: queue.Queue[str | None] = queue.Queue()
        self.crowd = threading.Barrier(CROWD)
        self.called: list[str] = []
        self.released = threading.Event()

    def answer(self, message: dict[str, Any]) -> None:
        """Over the stream."""
        info = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        names = ("crowd", "wait", "refuse", "reset")
        results: dict[str, Any] = {
            "initialize": info | {"serverInfo": {"name": "posted", "version": "1"}},
            "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }
        if message.get("method") in results:
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
            self.events.put(json.dumps(reply))


class Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: Posted

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /post\n\n")
        while (data := self.server.events.get()) is not None:
            self.wfile.write(b"data: " + data.encode() + b"\n\n")
        self.close_connection = True

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if message.get("method") == "tools/call":
            name = message["params"]["name"]
            self.server.called.append(name)
            if name == "crowd":
                self.server.crowd.wait(60)
            elif name == "wait":
                self.server.released.wait(60)
            elif name == "refuse":
                self.receipt(503)
                return
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        self.server.answer(message)
        self.receipt(202)

    def receipt(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()


@pytest.fixture
def posted(workshop: Workshop) -> Iterator[Posted]:
    server = Posted()
    with serving(server) as root:
        workshop.server("posted").settings = {
            "url": f"{root}/sse",
            "transport": "sse",
            "era": "handshake",
            "call_timeout": 10.0,
        }
        yield server
        server.events.put(None)


async def test_calls_do_not_wait_for_a_server_that_accepts_a_post_only_when_it_has_run(
    workshop: Workshop, posted: Posted
) -> None:
    results: list[str] = []
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        host = Host(proxy, "modern")

        async def call() -> None:
            results.append(text_of(await host.call("posted__crowd")))

        for _ in range(CROWD):
            group.start_soon(call)

    assert results == ["done"] * CROWD


async def test_a_post_that_fails_fails_its_own_call(workshop: Workshop, posted: Posted) -> None:
    waited: list[str] = []
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "modern")
        async with anyio.create_task_group() as group:

            async def call() -> None:
                waited.append(text_of(await host.call("posted__wait")))

            group.start_soon(call)
            await until(lambda: posted.called == ["wait"])
            refused = text_of(await host.call("posted__refuse"))
            reset = text_of(await host.call("posted__reset"))
            posted.released.set()

        assert proxy.fleet.clients["posted"].restarts == 0

    assert "HTTP status 503" in refused
    assert "may or may not have run" in reset
    assert waited == ["done"]
