"""Clients without an SDK, so that little but the measured process takes time: raw pipes, raw HTTP.

Standard library only. Requests are built before the clock starts; of an answer only the line is read.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

META = "io.modelcontextprotocol/"
VERSIONS = {"handshake": "2025-11-25", "modern": "2026-07-28"}
CLIENT_INFO = {"name": "benchmark", "version": "1"}


class FailureError(Exception):
    """A subject answered with an error: there is nothing to measure."""


def frame(request_id: int, method: str, params: dict[str, Any], era: str = "handshake") -> bytes:
    """One request, with the envelope of its era, without a line end."""
    if era == "modern":
        envelope = {"protocolVersion": VERSIONS[era], "clientCapabilities": {}, "clientInfo": CLIENT_INFO}
        own = params.get("_meta", {})
        params = params | {"_meta": own | {META + key: value for key, value in envelope.items()}}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()


AS_DATA = {"io.github.mcp-context-proxy/format": "json"}
"""The ``_meta`` of a call that asks for data."""


def call_params(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


class StdioClient:
    """A process that speaks MCP on its standard streams; started on creation."""

    def __init__(self, command: list[str], era: str = "handshake", errors: Path | None = None) -> None:
        self.era = era
        self.spawned = time.perf_counter()
        stderr = subprocess.DEVNULL if errors is None else errors.open("ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._write = self.process.stdin.write
        self._lines = BufferedReader(self.process.stdout, 1 << 18)  # type: ignore[type-var]
        self._ids = iter(range(1, 1 << 62))

    def open(self) -> None:
        """Shake hands; a modern client has nothing to do."""
        if self.era == "handshake":
            params = {"protocolVersion": VERSIONS[self.era], "capabilities": {}, "clientInfo": CLIENT_INFO}
            self.request("initialize", params)
            self._write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def request(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """The result of one request.

        Raises:
            FailureError: there is none.
        """
        return self.result_of(self.exchange(frame(next(self._ids), method, params or {}, self.era)))

    def exchange(self, request: bytes) -> bytes:
        """Send one request and return the line that answers it; notifications are skipped."""
        self._send(request + b"\n")
        return self.reply()

    def send(self, request: bytes) -> None:
        """Send one request, and do not read."""
        self._send(request + b"\n")

    def call(self, name: str, /, **arguments: Any) -> Any:
        """The result of one tool call."""
        return self.request("tools/call", call_params(name, **arguments))

    def data(self, name: str, /, **arguments: Any) -> Any:
        """The data of one call of a tool of the proxy itself."""
        params = call_params(name, **arguments) | {"_meta": AS_DATA}
        return self.request("tools/call", params)["structuredContent"]

    def until(self, condition: Callable[[StdioClient], bool], seconds: float = 60) -> None:
        """Ask again until a condition holds."""
        end = time.perf_counter() + seconds
        while not condition(self):
            if time.perf_counter() > end:
                raise FailureError(f"not within {seconds} s")
            time.sleep(0.002)

    def until_notified(self, method: str, seconds: float = 60) -> None:
        """Read until a notification comes; the process is killed if it does not."""
        watchdog = threading.Timer(seconds, self.process.kill)
        watchdog.start()
        try:
            while method.encode() not in self._line():
                pass
        finally:
            watchdog.cancel()

    def timed(self, method: str, params: dict[str, Any], count: int) -> list[float]:
        """Seconds of each of `count` requests, one after the other; each answer is checked off the clock."""
        return [self._time(next(self._ids), method, params) for _ in range(count)]

    def pipelined(self, params: dict[str, Any], count: int, in_flight: int) -> float:
        """Calls per second with so many always under way."""
        ids = [next(self._ids) for _ in range(count)]
        frames = [frame(request_id, "tools/call", params, self.era) + b"\n" for request_id in ids]
        answers = []
        started = time.perf_counter()
        for request in frames[:in_flight]:
            self._send(request)
        for request in frames[in_flight:]:
            answers.append(self.reply())
            self._send(request)
        answers += [self.reply() for _ in range(min(in_flight, count))]
        seconds = time.perf_counter() - started
        self._check(ids, answers)
        return count / seconds

    def flooded(self, params: dict[str, Any], count: int) -> list[bytes]:
        """The answers to so many calls that are all sent before the first answer is read."""
        for _ in range(count):
            self._send(frame(next(self._ids), "tools/call", params, self.era) + b"\n")
        return [self.reply() for _ in range(count)]

    def peak_mib(self) -> float:
        """Peak resident memory of the process alone, without its children (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def close(self) -> float:
        """Close the process's input; seconds until it has gone."""
        assert self.process.stdin is not None
        started = time.perf_counter()
        self.process.stdin.close()
        self.process.wait(30)
        seconds = time.perf_counter() - started
        self._lines.close()
        return seconds

    def result_of(self, line: bytes) -> Any:
        """The content of a reply.

        Raises:
            FailureError: it is an error, or a tool's failure.
        """
        message = json.loads(line)
        if "result" not in message or message["result"].get("isError"):
            raise FailureError(line[:500].decode())
        return message["result"]

    def _time(self, request_id: int, method: str, params: dict[str, Any]) -> float:
        request = frame(request_id, method, params, self.era)
        started = time.perf_counter()
        answer = self.exchange(request)
        seconds = time.perf_counter() - started
        self._check([request_id], [answer])
        return seconds

    def _check(self, ids: list[int], answers: list[bytes]) -> None:
        """Each request has one answer, and it is a result: an error is answered faster than a call."""
        found = []
        for line in answers:
            self.result_of(line)
            found.append(json.loads(line)["id"])
        if sorted(found) != ids:
            raise FailureError("the answers are not those of the requests")

    def _send(self, data: bytes) -> None:
        while data:
            written = self._write(data) or 0
            data = data[written:] if written < len(data) else b""

    def reply(self) -> bytes:
        """The next line that answers a request."""
        while b'"method"' in (line := self._line())[:80]:
            pass
        return line

    def _line(self) -> bytes:
        line = self._lines.readline()
        if not line:
            raise FailureError("the process has closed its output")
        return line


class HttpClient:
    """Keeps one connection to a streamable HTTP endpoint alive."""

    def __init__(self, port: int, era: str) -> None:
        self.era = era
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSIONS[era],
        }
        self._ids = iter(range(1, 1 << 62))

    def open(self) -> None:
        """Shake hands; a modern client has nothing to do."""
        if self.era == "handshake":
            params = {"protocolVersion": VERSIONS[self.era], "capabilities": {}, "clientInfo": CLIENT_INFO}
            self._post(frame(next(self._ids), "initialize", params), {})
            self._post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', {})

    def timed_calls(self, name: str, count: int) -> list[float]:
        """Seconds of each call, one after the other."""
        extra = {"Mcp-Method": "tools/call", "Mcp-Name": name} if self.era == "modern" else {}
        frames = [frame(next(self._ids), "tools/call", call_params(name), self.era) for _ in range(count)]
        return list(self._timed(frames, extra))

    def request(self, name: str, call_id: int) -> bytes:
        """One call as it goes over the connection."""
        body = frame(call_id, "tools/call", call_params(name), self.era)
        modern = {"Mcp-Method": "tools/call", "Mcp-Name": name} if self.era == "modern" else {}
        host = f"{self._connection.host}:{self._connection.port}"
        headers = {"Host": host, "Content-Length": str(len(body)), **self._headers, **modern}
        lines = [f"{key}: {value}\r\n" for key, value in headers.items()]
        return "".join(["POST /mcp HTTP/1.1\r\n", *lines, "\r\n"]).encode() + body

    @property
    def socket(self) -> socket.socket:
        """The connection itself, between two requests."""
        if self._connection.sock is None:
            self._connection.connect()
        return self._connection.sock

    def timed_ping(self) -> float:
        """Seconds of one ping."""
        return next(self._timed([frame(next(self._ids), "ping", {}, self.era)], {}))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _timed(self, frames: list[bytes], extra: dict[str, str]) -> Iterator[float]:
        for request in frames:
            started = time.perf_counter()
            answer = self._post(request, extra)
            yield time.perf_counter() - started
            if b'"result"' not in answer or b'"isError":true' in answer:
                raise FailureError(answer[:500].decode())

    def _post(self, body: bytes, extra: dict[str, str]) -> bytes:
        self._connection.request("POST", "/mcp", body, self._headers | extra)
        response = self._connection.getresponse()
        session = response.headers.get("Mcp-Session-Id")
        if session is not None:
            self._headers["Mcp-Session-Id"] = session
        answer = response.read()
        if response.status >= 400:
            raise FailureError(f"{response.status} {answer[:300]!r}")
        return answer


def crowd(port: int, era: str, name: str, clients: int, count: int) -> tuple[float, list[float]]:
    """Calls per second of so many clients, each with one call under way, and the seconds of each call."""
    opened = [HttpClient(port, era) for _ in range(clients)]
    for client in opened:
        client.open()
    waiting, began = selectors.DefaultSelector(), dict[socket.socket, float]()
    taken, sent = list[float](), 0

    def send(peer: socket.socket, request: bytes) -> None:
        nonlocal sent
        sent, began[peer] = sent + 1, time.perf_counter()
        peer.sendall(request)

    started = time.perf_counter()
    for number, client in enumerate(opened):
        request = client.request(name, 1_000 + number)
        waiting.register(client.socket, selectors.EVENT_READ, request)
        send(client.socket, request)
    while len(taken) < count:
        for key, _ in waiting.select():
            assert isinstance(key.fileobj, socket.socket)
            answer = _answer(key.fileobj)
            taken.append(time.perf_counter() - began[key.fileobj])
            if b'"result"' not in answer or b'"isError":true' in answer:
                raise FailureError(answer[:500].decode())
            if sent < count:
                send(key.fileobj, key.data)
    seconds = time.perf_counter() - started
    for client in opened:
        client.close()
    return count / seconds, taken


def _answer(peer: socket.socket) -> bytes:
    """The body of the next response: with a length, or in one or more chunks."""
    data = b""
    while True:
        received = peer.recv(1 << 16)
        if not received:
            raise FailureError("the connection was closed before the end of the response")
        data += received
        head, ended, body = data.partition(b"\r\n\r\n")
        if not ended:
            continue
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        if body.endswith(b"0\r\n\r\n") if not length else len(body) >= int(length):
            return body
