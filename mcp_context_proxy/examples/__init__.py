"""Small real MCP servers, rules and references that ship with the product, for its demo and its tests.

The proxy imports none of the servers, and they import nothing of the proxy: each starts as a process of its
own, with ``python -m mcp_context_proxy.examples NAME``, and must be up at once.

Here is the core of such a server: framing, envelopes, both protocol eras and the dispatch of requests.
`functions` makes tools and prompts from typed functions on top of it. The stub servers of the tests and the
benchmarks stand on it, too. It imports little of the standard library and nothing else.

A request whose ``_meta`` names a protocol version is modern and stands alone; any other request belongs to
the handshake era. One process serves both, request by request.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than this module
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any, ClassVar, TypeAlias

    JSON: TypeAlias = Any
    Message: TypeAlias = dict[str, JSON]

SERVERS = {
    "calculator": "stateless",
    "calendar": "desk",
    "clock": "stateless",
    "files": "files",
    "issues": "desk",
    "notes": "desk",
    "text": "stateless",
}
"""The servers by name, which is also the key in a configuration, each with its module in this package."""

DATA_VARIABLE = "MCP_EXAMPLE_DATA"
"""Environment variable that names the folder where the servers keep their data."""


def servers() -> dict[str, list[str]]:
    """The command of each example server, by its key."""
    return {name: [sys.executable, "-m", __name__, name] for name in SERVERS}


def documents() -> dict[str, Path]:
    """The folders of the example rules and references, by the kind of document."""
    from pathlib import Path  # noqa: PLC0415 - no server waits for it

    here = Path(__file__).parent
    return {"rule": here / "rules", "reference": here / "references"}


HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first: the first one is the counter-offer to a client that asks for another."""

MODERN_VERSIONS = ("2026-07-28",)

META = "io.modelcontextprotocol/"
VERSION_KEY = f"{META}protocolVersion"
CAPABILITIES_KEY = f"{META}clientCapabilities"
SERVER_INFO_KEY = f"{META}serverInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_VERSION = -32022
RESOURCE_NOT_FOUND = -32002
"""Handshake era only; the modern era has `INVALID_PARAMS` instead."""

HANDSHAKE_ONLY = ("initialize", "ping")
MODERN_ONLY = ("server/discover",)

FIXED = (300_000, "public")
"""Lifetime in milliseconds and scope of a list that stays the same while the process lives."""

LIVE = (0, "private")

MAX_LINE = 16 << 20
"""Bytes of one message; far more than any tool here accepts, and a bound on memory."""

PROGRESS_SECONDS = 0.1
"""Time between two progress notifications of one call."""


class RpcError(Exception):
    """A JSON-RPC error that answers a request."""

    def __init__(self, code: int, message: str, data: JSON = None) -> None:
        self.code, self.data = code, data
        super().__init__(message)

    def to_json(self) -> Message:
        error = {"code": self.code, "message": str(self)}
        return error if self.data is None else error | {"data": self.data}


class NoResponse(Exception):  # noqa: N818
    """A request gets no response from its handler: it was cancelled, or the response is written otherwise."""


class ReplyChannel:
    """The way to one client; a transport writes the bytes."""

    def send(self, message: Message) -> None:
        self.line(encode(message))

    def refuse(self, request_id: JSON, error: RpcError) -> None:
        self.send({"jsonrpc": "2.0", "id": request_id, "error": error.to_json()})

    def line(self, data: bytes) -> None:
        raise NotImplementedError


class Pipe(ReplyChannel):
    """Standard output, with one message a line; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def line(self, data: bytes) -> None:
        self.write(data + b"\n")

    def write(self, data: bytes) -> None:
        # os.write, not a buffered stream: the interpreter may end while a worker writes, and a stream's
        # lock held by a dead thread would make that end a crash.
        rest = memoryview(data)
        with self._lock:
            while rest:
                rest = rest[os.write(1, rest) :]


class Request:
    """A request or notification of the client, and the way for messages that belong to it."""

    def __init__(self, server: Core, message: Message, channel: ReplyChannel) -> None:
        params = message.get("params")
        self.server, self.channel = server, channel
        self.id: JSON = message.get("id")
        self.method: JSON = message.get("method")
        self.params: Message = params if isinstance(params, dict) else {}
        meta = self.params.get("_meta")
        self.meta: Message = meta if isinstance(meta, dict) else {}
        self.modern = self.meta.get(VERSION_KEY) is not None
        self.cancelled = threading.Event()
        self._next_progress = 0.0

    def reply(self, result: JSON) -> None:
        """Send the result, unless the client has cancelled the request."""
        if not (self.cancelled.is_set() and self.server.heeds_cancellation):
            self.channel.send(self.response(result))
        self.server.pending.pop(self.id, None)

    def response(self, result: JSON) -> Message:
        """The response with a result, which gets the members that only the modern era demands."""
        if self.modern and isinstance(result, dict):
            stamp: Message = {"resultType": "complete"}
            if self.method in self.server.caching:
                stamp["ttlMs"], stamp["cacheScope"] = self.server.caching[self.method]
            meta = result.get("_meta", {})
            if isinstance(meta, dict):
                result = result | {"_meta": {SERVER_INFO_KEY: self.server.info} | meta}
            result = stamp | result
        return {"jsonrpc": "2.0", "id": self.id, "result": result}

    def refuse(self, error: RpcError) -> None:
        self.channel.refuse(self.id, error)
        self.server.pending.pop(self.id, None)

    def notify(self, method: str, params: Message) -> None:
        self.channel.send({"jsonrpc": "2.0", "method": method, "params": params})

    def progress(self, done: float, total: float | None, message: str) -> None:
        """Send a progress notification if the client has asked for progress."""
        token = self.meta.get("progressToken")
        if isinstance(token, int | str):
            progress = {"progressToken": token, "progress": done, "total": total, "message": message}
            self.notify("notifications/progress", progress)

    def step(self, done: float, total: float, message: str) -> None:
        """Report the first, the last and some steps of a long call; NoResponse ends a cancelled one."""
        if self.cancelled.is_set():
            raise NoResponse
        if done >= total or time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            self.progress(done, total, message)


class Core:
    """An MCP server: takes messages from any transport and answers requests in the eras that it speaks.

    A subclass provides `tools` and `call`, and adds handlers of further methods to `handlers`. `receive`
    takes a message and returns a request; the transport passes it to `answer`, in a thread of its choice.
    """

    era = "both"
    """``handshake``, ``modern`` or ``both``."""

    heeds_cancellation = True
    """True while a cancelled request gets no response."""

    page_size: int | None = None
    """Entries on a page of a list; None for one page with everything."""

    caching: ClassVar[dict[str, tuple[int, str]]] = {
        "server/discover": FIXED,
        "tools/list": FIXED,
        "prompts/list": FIXED,
        "resources/templates/list": FIXED,
        "resources/list": LIVE,
        "resources/read": LIVE,
    }
    """Caching hints of modern results, by method."""

    def __init__(self, info: Message, instructions: str = "") -> None:
        self.info, self.instructions = info, instructions
        self.pending: dict[JSON, Request] = {}
        self.greeted = False
        self.handlers: dict[str, Callable[[Request], JSON]] = {
            "initialize": self.initialize,
            "server/discover": self.discover,
            "ping": lambda _request: {},
            "tools/list": lambda request: self.page(request, "tools", self.tools()),
            "tools/call": self.call,
        }

    def tools(self) -> list[JSON]:
        raise NotImplementedError

    def call(self, request: Request) -> JSON:
        raise NotImplementedError

    def capabilities(self) -> Message:
        return {"tools": {}}

    def receive(self, line: bytes, channel: ReplyChannel) -> Request | None:
        """Take one message; return a request that is to be answered, or None."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            channel.refuse(None, RpcError(PARSE_ERROR, "not a line of JSON"))
            return None
        if not isinstance(message, dict):
            channel.refuse(None, RpcError(INVALID_REQUEST, "a message is one object; no batches"))
            return None
        request = Request(self, message, channel)
        if "method" not in message:
            self.take_response(message)
        elif "id" not in message:
            self.take_notification(request)
        elif isinstance(request.id, bool) or not isinstance(request.id, int | str):
            error = RpcError(INVALID_REQUEST, "a request needs an id that is a string or an integer")
            channel.refuse(None, error)
        elif message.get("jsonrpc") != "2.0" or not isinstance(request.method, str):
            request.refuse(RpcError(INVALID_REQUEST, 'a request needs "jsonrpc": "2.0" and a method'))
        elif not isinstance(message.get("params") or {}, dict):
            request.refuse(RpcError(INVALID_PARAMS, "params must be an object"))
        else:
            self.greeted = self.greeted or request.method == "initialize"
            self.pending[request.id] = request
            return request
        return None

    def take_response(self, message: Message) -> None:
        """Take the client's response to a request of this server; there are none here."""

    def take_notification(self, request: Request) -> None:
        if request.method == "notifications/cancelled":
            target = request.params.get("requestId")
            pending = self.pending.pop(target, None) if isinstance(target, int | str) else None
            if pending is not None:
                self.cancel(pending)

    def cancel(self, request: Request) -> None:
        request.cancelled.set()

    def answer(self, request: Request) -> None:
        if request.cancelled.is_set() and self.heeds_cancellation:
            return
        try:
            result = self.respond(request)
        except NoResponse:
            return
        except RpcError as e:
            request.refuse(e)
        except Exception as e:  # boundary: one request must not take the server down
            request.refuse(RpcError(INTERNAL_ERROR, f"{type(e).__name__}: {e}"))
        else:
            request.reply(result)

    def respond(self, request: Request) -> JSON:
        """Check the era of a request and return the result of its handler."""
        method, modern, version = request.method, request.modern, request.meta.get(VERSION_KEY)
        known = method not in (HANDSHAKE_ONLY if modern else MODERN_ONLY)
        if modern and self.era == "handshake":
            known = False
        elif version not in MODERN_VERSIONS and (modern or self.era == "modern"):
            data = {"supported": self.versions(), "requested": version}
            raise RpcError(UNSUPPORTED_VERSION, f"unsupported protocol version {version!r}", data)
        elif modern and not isinstance(request.meta.get(CAPABILITIES_KEY), dict):
            raise RpcError(INVALID_PARAMS, f"_meta lacks {CAPABILITIES_KEY}")
        elif not modern and not self.greeted and method not in HANDSHAKE_ONLY:
            hint = f"call initialize first, or name the protocol version in _meta as {VERSION_KEY}"
            raise RpcError(INVALID_REQUEST, hint)
        if not known or method not in self.handlers:
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method!r}")
        return self.handlers[method](request)

    def versions(self) -> list[str]:
        """The protocol versions that the server speaks, newest first."""
        return [*MODERN_VERSIONS, *(HANDSHAKE_VERSIONS if self.era != "modern" else ())]

    def initialize(self, request: Request) -> JSON:
        """Answer the handshake with the version that the client asks for, or with the newest one."""
        asked = request.params.get("protocolVersion")
        version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
        return {"protocolVersion": version, "serverInfo": self.info} | self.introduction(request)

    def discover(self, request: Request) -> JSON:
        return {"supportedVersions": self.versions()} | self.introduction(request)

    def introduction(self, _request: Request) -> Message:
        """The members that the answers to ``initialize`` and ``server/discover`` have in common."""
        return {"capabilities": self.capabilities(), "instructions": self.instructions}

    def page(self, request: Request, member: str, entries: list[JSON]) -> Message:
        """One page of a list; a cursor is the position of the page's first entry."""
        size = self.page_size or max(len(entries), 1)
        cursor = request.params.get("cursor")
        if cursor not in (None, *map(str, range(size, len(entries), size))):
            raise RpcError(INVALID_PARAMS, "invalid cursor")
        end = int(cursor or 0) + size
        page: Message = {member: entries[end - size : end]}
        return page | {"nextCursor": str(end)} if end < len(entries) else page


def serve_stdio(server: Core, channel: Pipe, start: Callable[[Request], object] | None = None) -> None:
    """Take messages from standard input until it ends.

    ``start`` has a request answered, in another thread for example. Without it, the reader answers each
    request before it takes the next one.
    """
    start, source = start or server.answer, sys.stdin.buffer
    while line := source.readline(MAX_LINE):
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = source.readline(MAX_LINE)
            channel.refuse(None, RpcError(PARSE_ERROR, f"a message may have {MAX_LINE} bytes"))
        elif line.strip():
            request = server.receive(line, channel)
            if request is not None:
                start(request)


def encode(message: JSON) -> bytes:
    """The UTF-8 bytes of a message; escaped where half of a surrogate pair cannot be encoded."""
    try:
        return _compact(message).encode()
    except UnicodeEncodeError:
        return json.dumps(message).encode()


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
