"""An MCP client without the SDK: small, strict, in both eras, over stdio, streamable HTTP and HTTP+SSE.

It takes nothing on trust: whatever the proxy sends that is not a JSON-RPC 2.0 message, answers nothing that
was asked, or answers twice, fails the test on leaving.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urljoin

import anyio
import anyio.abc
import httpx2

from support.plain_http import PlainHttp, PlainResponse

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
OWN = "io.github.mcp-context-proxy/"

CANCELLED = -32800
"""What a cancelled request of the handshake era is answered with over HTTP: its response has to end."""

PATIENCE = 60
"""Seconds before a wait is given up; far more than any takes."""

LOOK_SECONDS = 0.01
"""Between two looks, while waiting for something that the proxy sends on its own accord."""

Answer = Callable[[dict[str, Any]], Any]
"""Answers a request of the server's: params in, result out; raises `RpcError` to refuse."""

NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class RpcError(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code, self.message, self.data = code, message, data
        super().__init__(f"{code}: {message}")


class Wire(Protocol):
    async def send(self, text: str) -> None: ...


class RawClient:
    """One client. Open it with `stdio`, `http` or `sse`."""

    def __init__(self, era: str, capabilities: dict[str, Any], answers: dict[str, Answer]) -> None:
        self.era, self.capabilities, self.answers = era, capabilities, answers
        self.wire: Wire
        self.process: anyio.abc.Process | None = None
        self.introduction: dict[str, Any] = {}
        self.notifications: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.texts: list[str] = []
        """Every message that came, as text."""
        self.violations: list[str] = []
        self.null_errors: list[dict[str, Any]] = []
        """Errors that name no request, as for a line that could not be read."""
        self._next_id = 0
        self._pending: dict[int | str, asyncio.Future[Any]] = {}
        self._abandoned: set[int | str] = set()

    @property
    def modern(self) -> bool:
        return self.era == "modern"

    # Asking

    async def open(self) -> None:
        """Negotiate."""
        if self.modern:
            self.introduction = await self.request("server/discover")
            return
        self.introduction = await self.request(
            "initialize",
            {
                "protocolVersion": HANDSHAKE,
                "capabilities": self.capabilities,
                "clientInfo": {"name": "raw", "version": "1"},
            },
        )
        await self.notify("notifications/initialized")

    async def request(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> Any:
        """Ask, and return the result. Keywords go to `_meta`."""
        with anyio.fail_after(PATIENCE):
            return await (await self.start(method, params, **meta))[1]

    async def start(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        request_id: int | str | None = None,
        **meta: Any,
    ) -> tuple[int | str, asyncio.Future[Any]]:
        """Ask, and return the id and what will be the result."""
        if request_id is None:
            self._next_id += 1
            request_id = self._next_id
        future = self.expect(request_id)
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        full = self._with_meta(params or {}, meta)
        await self.wire.send(json.dumps(message | ({"params": full} if full else {})))
        return request_id, future

    def expect(self, request_id: int | str) -> asyncio.Future[Any]:
        """What will be the result of a request that is sent by other means."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        return future

    async def call(self, name: str, arguments: Any = None, **meta: Any) -> Any:
        """Call a tool, and return its result."""
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}}, **meta)

    async def names(self, **meta: Any) -> list[str]:
        """The names of the listed tools."""
        return [entry["name"] for entry in (await self.request("tools/list", **meta))["tools"]]

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        await self.wire.send(
            json.dumps({"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {}))
        )

    async def cancel(self, request_id: int | str) -> None:
        """Cancel a request; no answer to it is allowed any more, but for the error that ends a POST."""
        self._pending.pop(request_id).cancel()
        if isinstance(self.wire, HttpWire):
            self._abandoned.add(request_id)
        await self.notify("notifications/cancelled", {"requestId": request_id})

    async def until(self, condition: Callable[[RawClient], Any]) -> Any:
        """Wait until `condition` gives something true, and return it."""
        with anyio.fail_after(PATIENCE):
            while not (found := condition(self)):  # noqa: ASYNC110 - another process
                await anyio.sleep(LOOK_SECONDS)
        return found

    async def until_listed(self, *names: str) -> list[str]:
        """Wait until the list has all these names, and return it."""
        with anyio.fail_after(PATIENCE):
            while not set(names) <= set(listed := await self.names()):  # noqa: ASYNC110 - another process
                await anyio.sleep(LOOK_SECONDS)
        return listed

    def notified(self, method: str) -> list[dict[str, Any]]:
        """The params of the notifications of one method, so far."""
        return [note.get("params", {}) for note in self.notifications if note["method"] == method]

    def _with_meta(self, params: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
        full = {**params.get("_meta", {}), **meta}
        if self.modern:
            full[PREFIX + "protocolVersion"] = MODERN
            full[PREFIX + "clientCapabilities"] = self.capabilities
            full[PREFIX + "clientInfo"] = {"name": "raw", "version": "1"}
        return {**params, "_meta": full} if full else params

    # Being told

    def receive(self, text: str) -> None:
        """Take one message from the wire."""
        self.texts.append(text)
        try:
            message = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            self.violations.append(f"not JSON ({error}): {text[:200]!r}")
            return
        if problem := _problem(message):
            self.violations.append(f"{problem}: {text[:200]!r}")
        elif "method" not in message:
            self._receive_reply(message)
        elif "id" in message:
            self.asked.append(message)
            self._group.start_soon(self._answer, message)
        else:
            self.notifications.append(message)

    def _receive_reply(self, message: dict[str, Any]) -> None:
        if message["id"] is None:
            self.null_errors.append(message["error"])
            return
        if message["id"] in self._abandoned and message.get("error", {}).get("code") == CANCELLED:
            return
        future = self._pending.pop(message["id"], None)
        if future is None:
            self.violations.append(f"an answer to nothing that is asked: {json.dumps(message)[:200]}")
        elif future.cancelled():
            return
        elif "error" in message:
            error = message["error"]
            future.set_exception(RpcError(error["code"], error["message"], error.get("data")))
        else:
            future.set_result(message["result"])

    def lost(self, request_id: int | str, error: Exception) -> None:
        """A request will have no answer."""
        future = self._pending.pop(request_id, None)
        if future is None:
            self.violations.append(f"after its answer: {error!r}")
        elif not future.cancelled():
            future.set_exception(error)

    async def _answer(self, message: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        answer = self.answers.get(message["method"])
        try:
            if message["method"] == "ping":
                reply["result"] = {}
            elif answer is None:
                reply["error"] = {"code": -32601, "message": "Method not found"}
            else:
                reply["result"] = answer(message.get("params", {}))
        except RpcError as error:
            reply["error"] = {"code": error.code, "message": error.message}
        await self.wire.send(json.dumps(reply))

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as group:
            self._group = group
            yield group
            group.cancel_scope.cancel()
        for future in self._pending.values():
            future.cancel()
        assert self.violations == []


def _problem(message: Any) -> str | None:
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return "not a JSON-RPC 2.0 message"
    if set(message) - {"jsonrpc", "id", "method", "params", "result", "error"}:
        return "unknown members"
    if "method" in message:
        return "both a request and an answer" if "result" in message or "error" in message else None
    if ("result" in message) == ("error" in message) or "id" not in message:
        return "neither a request nor an answer"
    if "error" in message and not {"code", "message"} <= set(message["error"]):
        return "an incomplete error"
    return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Standard streams


class StdioWire:
    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process

    async def send(self, text: str) -> None:
        await self.write(text.encode() + b"\n")

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(data)


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
            async with client._running() as group:
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
    """Each message is a POST; what it answers, and a stream for the rest, is fed to the client."""

    def __init__(self, http: httpx2.AsyncClient | PlainHttp, url: str, client: RawClient) -> None:
        self._http, self._url, self._client = http, url, client
        self.session: str | None = None
        self.scopes: dict[int | str, anyio.CancelScope] = {}
        """Of the requests under way: cancelled, the connection breaks, as modern clients cancel."""
        self.listening = anyio.Event()
        """The proxy has taken the stream for the rest."""

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
            self._client._group.start_soon(self._exchange, text, message)
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
        """Take what a session is told beside its requests."""
        headers = self.headers({}) | {"accept": "text/event-stream"}
        # There may be nothing to tell for as long as a whole module of tests takes.
        patient = httpx2.Timeout(PATIENCE, read=None)
        async with self._http.stream("GET", self._url, headers=headers, timeout=patient) as response:
            assert response.status_code == 200, await response.aread()
            self.listening.set()
            await self._take(response)


async def events(response: httpx2.Response | PlainResponse) -> AsyncIterator[tuple[str, str]]:
    """The events of a stream: name and data."""
    rest = b""
    async for chunk in response.aiter_bytes():
        # Cut at line feeds alone: U+2028 and the like are ordinary characters here.
        *blocks, rest = (rest + chunk.replace(b"\r\n", b"\n")).split(b"\n\n")
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
        async with client._running() as group:
            if opened:
                await client.open()
                if not client.modern:
                    group.start_soon(wire.listen)
            yield client
            if wire.session is not None:
                ended = await pool.delete(f"{base}/mcp", headers=wire.headers({}))
                assert ended.status_code == 200


# HTTP+SSE


class SseWire:
    def __init__(self, pool: httpx2.AsyncClient, url: str) -> None:
        self._pool, self._url = pool, url

    async def send(self, text: str) -> None:
        response = await self._pool.post(
            self._url, content=text, headers={"content-type": "application/json"}
        )
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
    async with httpx2.AsyncClient(timeout=PATIENCE, verify=False) as pool, client._running() as group:
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
