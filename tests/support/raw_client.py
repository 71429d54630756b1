"""An MCP client without the SDK: small, strict, in both eras; its transports are in `wires`.

It takes nothing on trust: whatever the proxy sends that is not a JSON-RPC 2.0 message, answers nothing that
was asked, or answers twice, fails the test on leaving.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import anyio.abc

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
OWN = "io.github.mcp-context-proxy/"

WHO = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
"""The params of `INITIALIZE`."""

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
"""Headers of a message over streamable HTTP."""


def message(method: str, request_id: int | None = 1, **params: Any) -> dict[str, Any]:
    """A request that is written by hand; without an id a notification."""
    numbered = {} if request_id is None else {"id": request_id}
    return {"jsonrpc": "2.0", **numbered, "method": method, "params": params}


INITIALIZE = message("initialize", **WHO)
"""The first message of a client that is written by hand."""

AS_DATA: Any = {OWN + "format": "json"}
"""The `_meta` of a call of the proxy's own tools that asks for data."""

CANCELLED = -32800
"""Error code of a cancelled request of the handshake era over HTTP, whose response has to end."""

PATIENCE = 60
"""Seconds before a wait is given up; far more than any takes."""

LOOK_SECONDS = 0.01
"""Between two looks, while waiting for something that the proxy sends on its own accord."""

Answer = Callable[[dict[str, Any]], Any]
"""Answers a request of the server's: params in, result out; raises `RpcError` to refuse."""


class RpcError(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code, self.message, self.data = code, message, data
        super().__init__(f"{code}: {message}")


class Wire(Protocol):
    answers_cancelled: bool
    """True if each request has a response of its own, which has to end."""

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
        """Ask, and return the id and the future result."""
        if request_id is None:
            self._next_id += 1
            request_id = self._next_id
        future = self.expect(request_id)
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        full = self._with_meta(params or {}, meta)
        await self.wire.send(json.dumps(message | ({"params": full} if full else {})))
        return request_id, future

    def expect(self, request_id: int | str) -> asyncio.Future[Any]:
        """Return the future result of a request that is sent by other means."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        return future

    async def call(self, name: str, arguments: Any = None, **meta: Any) -> Any:
        """Call a tool, and return its result."""
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}}, **meta)

    async def data(self, name: str, arguments: Any = None, **meta: Any) -> dict[str, Any]:
        """Call a tool of the proxy itself as a program does, and return the data."""
        return data_of(await self.call(name, arguments, **AS_DATA, **meta))

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
        if self.wire.answers_cancelled:
            self._abandoned.add(request_id)
        await self.notify("notifications/cancelled", {"requestId": request_id})

    async def abandon(self, request_id: int | str) -> None:
        """Cancel a request as clients of this era do; modern ones close the connection of an HTTP request."""
        scopes = getattr(self.wire, "scopes", None)
        if self.modern and scopes is not None:
            self._pending.pop(request_id).cancel()
            scopes[request_id].cancel()
        else:
            await self.cancel(request_id)

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
            full.setdefault(PREFIX + "clientInfo", {"name": "raw", "version": "1"})
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
            self.group.start_soon(self._answer, message)
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
    async def running(self) -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as group:
            self.group = group
            yield group
            group.cancel_scope.cancel()
        for future in self._pending.values():
            future.cancel()
        assert self.violations == []


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def data_of(result: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a result that was asked for as data: its text says the same."""
    assert "isError" not in result, result
    data: dict[str, Any] = result["structuredContent"]
    (block,) = result["content"]
    assert json.loads(block["text"]) == data
    return data


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
