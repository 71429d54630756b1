"""Connections of `RawClient`: standard streams, streamable HTTP, HTTP+SSE; and a client over each."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import urljoin

import anyio
import anyio.abc
import httpx2

from support.plain_http import PlainHttp, PlainResponse
from support.raw_client import HANDSHAKE, MODERN, PATIENCE, Answer, RawClient

NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri", "tasks/get": "taskId"}
"""The parameter of a method that a header repeats."""


# Standard streams


class StdioWire:
    answers_cancelled = False

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process

    async def send(self, text: str) -> None:
        await self.write(text.encode() + b"\n")

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(data)


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe that has no room: one to read without waiting, and one on which a write waits."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"." * 4096)
        os.set_blocking(writing, True)
        yield reading, writing
    finally:
        os.close(writing)
        os.close(reading)


@asynccontextmanager
async def stdio(
    command: Sequence[str],
    era: str = "handshake",
    *,
    capabilities: dict[str, Any] | None = None,
    answers: dict[str, Answer] | None = None,
    opened: bool = True,
    env: dict[str, str] | None = None,
    stderr: Any = None,
) -> AsyncIterator[RawClient]:
    """Start the proxy and be its host; on the way out its input ends and it must exit with 0."""
    client = RawClient(era, capabilities or {}, answers or {})
    environment = {**os.environ, **(env or {})}
    async with await anyio.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment
    ) as process:
        client.process = process
        client.wire = StdioWire(process)
        try:
            async with client.running() as group:
                group.start_soon(_read_lines, process, client)
                if opened:
                    await client.open()
                yield client
                assert process.stdin is not None
                await process.stdin.aclose()
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()


async def _read_lines(process: anyio.abc.Process, client: RawClient) -> None:
    assert process.stdout is not None
    rest = bytearray()
    async for chunk in process.stdout:
        rest += chunk
        if b"\n" not in chunk:
            continue
        *lines, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in lines:
            try:
                client.receive(line.decode())
            except UnicodeDecodeError:
                client.violations.append(f"not UTF-8: {bytes(line[:200])!r}")


# Streamable HTTP


class HttpWire:
    """Each message is a POST; its response, and a stream for the rest, is fed to the client."""

    answers_cancelled = True

    def __init__(self, http: httpx2.AsyncClient | PlainHttp, url: str, client: RawClient) -> None:
        self._http, self._url, self._client = http, url, client
        self.session: str | None = None
        self.scopes: dict[int | str, anyio.CancelScope] = {}
        """Scopes of pending requests; cancelling one closes its connection, as modern clients do."""
        self.listening = anyio.Event()
        """Set once the proxy has accepted the stream for messages that belong to no request."""

    def headers(self, message: dict[str, Any]) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self._client.modern:
            headers |= {"mcp-protocol-version": MODERN, "mcp-method": message.get("method", "")}
            name = message.get("params", {}).get(NAMED.get(message.get("method", ""), ""))
            if isinstance(name, str):
                headers["mcp-name"] = name
        elif self.session is not None:
            headers |= {"mcp-session-id": self.session, "mcp-protocol-version": HANDSHAKE}
        return headers

    async def send(self, text: str) -> None:
        message = json.loads(text)
        if "id" in message and "method" in message:
            self._client.group.start_soon(self._exchange, text, message)
            return
        response = await self._http.post(self._url, content=text, headers=self.headers(message))
        assert response.status_code == 202, response.text

    async def _exchange(self, text: str, message: dict[str, Any]) -> None:
        with anyio.CancelScope() as scope:
            self.scopes[message["id"]] = scope
            try:
                async with self._http.stream(
                    "POST", self._url, content=text, headers=self.headers(message)
                ) as response:
                    if message["method"] == "initialize" and response.is_success:
                        self.session = response.headers["mcp-session-id"]
                    await self._take(response)
            except (httpx2.HTTPError, OSError, EOFError) as error:
                self._client.lost(message["id"], error)
        # The id may be in use again before the connection was put back.
        if self.scopes.get(message["id"]) is scope:
            del self.scopes[message["id"]]

    async def _take(self, response: httpx2.Response | PlainResponse) -> None:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            async for name, data in events(response):
                if data:
                    assert name == "message"
                    self._client.receive(data)
        else:
            body = (await response.aread()).decode()
            try:
                self._client.receive(body)
            except (ValueError, KeyError):
                self._client.violations.append(f"HTTP {response.status_code}: {body[:200]}")

    async def listen(self) -> None:
        """Take the notifications of a session beside its requests."""
        headers = self.headers({}) | {"accept": "text/event-stream"}
        # There may be nothing to tell for as long as a whole module of tests takes.
        patient = httpx2.Timeout(PATIENCE, read=None)
        async with self._http.stream("GET", self._url, headers=headers, timeout=patient) as response:
            assert response.status_code == 200, await response.aread()
            self.listening.set()
            await self._take(response)


async def events(response: httpx2.Response | PlainResponse) -> AsyncIterator[tuple[str, str]]:
    """The events of a stream: name and data."""
    rest, end = bytearray(), b""
    async for chunk in response.aiter_bytes():
        looked_at = max(len(rest) - 1, 0)
        piece = end + chunk
        end = piece[-1:] if piece.endswith(b"\r") else b""  # half of a line end
        rest += piece.removesuffix(b"\r").replace(b"\r\n", b"\n")
        if rest.find(b"\n\n", looked_at) < 0:
            continue
        # Cut at line feeds alone: U+2028 and the like are ordinary characters here.
        *blocks, rest = rest.split(b"\n\n")
        for block in blocks:
            fields = [line.partition(":") for line in block.decode().split("\n")]
            data = [value.removeprefix(" ") for field, _, value in fields if field == "data"]
            names = [value.strip() for field, _, value in fields if field == "event"]
            if data:
                yield (names or ["message"])[-1], "\n".join(data)


@asynccontextmanager
async def http(
    base: str,
    era: str = "handshake",
    *,
    capabilities: dict[str, Any] | None = None,
    answers: dict[str, Answer] | None = None,
    opened: bool = True,
    headers: dict[str, str] | None = None,
    plain: bool = False,
) -> AsyncIterator[RawClient]:
    """A client over streamable HTTP; `base` has no path. One that is `plain` is one of a crowd."""
    client = RawClient(era, capabilities or {}, answers or {})
    async with (
        PlainHttp(PATIENCE)
        if plain
        else httpx2.AsyncClient(timeout=PATIENCE, headers=headers, verify=False) as pool
    ):
        wire = client.wire = HttpWire(pool, f"{base}/mcp", client)
        async with client.running() as group:
            if opened:
                await client.open()
                if not client.modern:
                    group.start_soon(wire.listen)
            yield client
            if wire.session is not None:
                if opened:
                    # A stream of a session that has just ended would be refused.
                    with anyio.move_on_after(5):
                        await wire.listening.wait()
                ended = await pool.delete(f"{base}/mcp", headers=wire.headers({}))
                assert ended.status_code == 200


# HTTP+SSE


class SseWire:
    answers_cancelled = False

    def __init__(self, pool: httpx2.AsyncClient, url: str) -> None:
        self._pool, self.url = pool, url

    async def send(self, text: str) -> None:
        response = await self._pool.post(self.url, content=text, headers={"content-type": "application/json"})
        assert response.status_code == 202, response.text


@asynccontextmanager
async def sse(
    base: str,
    era: str = "handshake",
    *,
    capabilities: dict[str, Any] | None = None,
    answers: dict[str, Answer] | None = None,
    opened: bool = True,
) -> AsyncIterator[RawClient]:
    """A client over HTTP+SSE; `base` has no path."""
    client = RawClient(era, capabilities or {}, answers or {})
    async with httpx2.AsyncClient(timeout=PATIENCE, verify=False) as pool, client.running() as group:
        await group.start(_read_sse, pool, base, client)
        if opened:
            await client.open()
        yield client


async def _read_sse(
    pool: httpx2.AsyncClient,
    base: str,
    client: RawClient,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    async with pool.stream("GET", f"{base}/sse", timeout=httpx2.Timeout(PATIENCE, read=None)) as response:
        async for name, data in events(response):
            if name == "endpoint":
                client.wire = SseWire(pool, urljoin(f"{base}/", data))
                task_status.started()
            else:
                client.receive(data)
