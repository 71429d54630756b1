"""The least proxy in plain asyncio and json, without any feature: the mark for the language itself.

    python bare_asyncio_proxy.py SERVERS COUNT [--http PORT]

In front of SERVERS tiny servers with COUNT tools each, names prefixed. It checks nothing, bounds nothing,
counts nothing and speaks the handshake era alone; over HTTP it takes no notice of any header but the length.
With SERVERS 0 it is a server with one tool of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

Answer: TypeAlias = Callable[[Any, Any], None]
"""Writes the response with an id and a result."""

TOOL_SERVER = Path(__file__).with_name("tool_server.py")
LINE = 1 << 24


class Server:
    """One server: its requests by id, and the pipe to it."""

    def __init__(self) -> None:
        self.ids, self.waiting = count(), dict[int, asyncio.Future[Any]]()

    async def start(self, number: int, tools: int) -> list[Any]:
        """Start it, and return its tools."""
        command = [sys.executable, "-S", "-E", str(TOOL_SERVER), str(number), str(tools)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LINE)
        assert process.stdin is not None and process.stdout is not None
        self.pipe = process.stdin
        self.reading = asyncio.create_task(self._read(process.stdout))
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bare"}}
        await self.request("initialize", params)
        self.pipe.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        listed: list[Any] = (await self.request("tools/list", {}))["result"]["tools"]
        return listed

    def request(self, method: str, params: Any) -> asyncio.Future[Any]:
        """Send a request; its response comes in the future."""
        number = next(self.ids)
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.pipe.write(json.dumps(message).encode() + b"\n")
        return future

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            message = json.loads(line)
            self.waiting.pop(message["id"]).set_result(message)


async def serve(servers: int, count_of_tools: int, port: int) -> None:
    running = {f"s{number}": Server() for number in range(servers)}
    starting = asyncio.gather(*(each.start(n, count_of_tools) for n, each in enumerate(running.values())))

    async def list_tools(request_id: Any, answer: Answer) -> None:
        lists = zip(running, await starting, strict=True)
        tools = [tool | {"name": f"{name}__{tool['name']}"} for name, listed in lists for tool in listed]
        answer(request_id, {"tools": tools})

    def take(message: Any, answer: Answer) -> None:
        request_id, method, params = message.get("id"), message["method"], message.get("params", {})
        if method == "tools/call" and not running:
            answer(request_id, {"content": [{"type": "text", "text": "xx"}]})
        elif method == "tools/call":
            name, _, params["name"] = params["name"].partition("__")
            response = running[name].request("tools/call", params)
            response.add_done_callback(lambda done: answer(request_id, done.result()["result"]))
        elif method == "tools/list":
            listing = asyncio.create_task(list_tools(request_id, answer))
            listing.add_done_callback(lambda done: done.result())
        elif method == "initialize":
            info = {"name": "bare", "version": "1"}
            answer(
                request_id,
                {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info},
            )

    if port:
        await starting
        async with await asyncio.start_server(partial(over_http, take), "127.0.0.1", port) as listening:
            await listening.serve_forever()
    await over_pipes(take)


async def over_pipes(take: Callable[[Any, Answer], None]) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    flow = asyncio.streams.FlowControlMixin
    out, _ = await loop.connect_write_pipe(flow, os.fdopen(1, "wb", 0))

    def answer(request_id: Any, result: Any) -> None:
        out.write(encoded(request_id, result) + b"\n")

    while line := await lines.readline():
        take(json.loads(line), answer)


async def over_http(
    take: Callable[[Any, Answer], None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    def answer(request_id: Any, result: Any) -> None:
        body = encoded(request_id, result)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)

    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
            message = json.loads(await reader.readexactly(size))
            if "id" not in message:
                writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            take(message, answer)
    except asyncio.IncompleteReadError:
        writer.close()


def encoded(request_id: Any, result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode()


if __name__ == "__main__":
    wanted = int(sys.argv[4]) if sys.argv[3:4] == ["--http"] else 0
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), wanted))
