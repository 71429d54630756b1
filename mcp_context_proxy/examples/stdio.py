"""Moves JSON lines between a client and a server: one reader, a few workers, bounded lines.

Every request runs in a worker thread, so a long call never keeps a cancellation from being read. At the end
of input the process leaves at once; calls under way are abandoned.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, BinaryIO

from mcp_context_proxy.examples import protocol
from mcp_context_proxy.examples.kit import Call, CallCancelled, Server
from mcp_context_proxy.examples.protocol import JSON, Request, RpcError

WORKERS = 4
"""Calls at once; enough that one long call does not hold up the others."""

MAX_LINE = 16 << 20
"""Bytes of one message; far more than any tool here accepts, and a bound on memory."""


class Connection:
    """One client on standard input and output."""

    def __init__(self, server: Server, source: BinaryIO | None = None, sink: int | None = None) -> None:
        self._server = server
        self._source = sys.stdin.buffer if source is None else source
        self._sink = sys.stdout.fileno() if sink is None else sink
        self._write_lock = threading.Lock()
        self._queue: SimpleQueue[tuple[Request, Call]] = SimpleQueue()
        self._under_way: dict[int | str, Call] = {}
        self._greeted = False

    def serve(self) -> None:
        """Answer until the end of input."""
        for _ in range(WORKERS):
            threading.Thread(target=self._work, daemon=True).start()
        try:
            for line in self._lines():
                self._take(line)
        except (KeyboardInterrupt, BrokenPipeError):
            return

    def _lines(self) -> Iterator[bytes]:
        while line := self._source.readline(MAX_LINE):
            if line.endswith(b"\n") or len(line) < MAX_LINE:
                yield line
                continue
            while line and not line.endswith(b"\n"):
                line = self._source.readline(MAX_LINE)
            self._refuse(None, RpcError(protocol.PARSE_ERROR, f"a message may have {MAX_LINE} bytes"))

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse(None, RpcError(protocol.PARSE_ERROR, "not a line of JSON"))
            return
        if not isinstance(message, dict):
            self._refuse(None, RpcError(protocol.INVALID_REQUEST, "a message is one object; no batches"))
        elif "method" in message and "id" in message:
            self._take_request(message)
        elif message.get("method") == "notifications/cancelled":
            self._cancel(message.get("params"))

    def _take_request(self, message: dict[str, JSON]) -> None:
        try:
            request = protocol.parse_request(message)
            self._check_order(request)
        except RpcError as e:
            request_id = message["id"]
            self._refuse(request_id if isinstance(request_id, int | str) else None, e)
            return
        token = request.meta.get("progressToken")
        call = Call(self._notify, token if isinstance(token, int | str) else None)
        self._under_way[request.id] = call
        self._queue.put((request, call))

    def _check_order(self, request: Request) -> None:
        if request.method == "initialize":
            self._greeted = True
        if not (self._greeted or request.modern or request.method == "ping"):
            hint = f"call initialize first, or name the protocol version in _meta as {protocol.VERSION_KEY}"
            raise RpcError(protocol.INVALID_REQUEST, hint)

    def _cancel(self, params: Any) -> None:
        request_id = params.get("requestId") if isinstance(params, dict) else None
        call = self._under_way.get(request_id) if isinstance(request_id, int | str) else None
        if call is not None:
            call.cancelled = True

    def _work(self) -> None:
        while True:
            request, call = self._queue.get()
            try:
                self._answer(request, call)
            except BrokenPipeError:
                return
            finally:
                self._under_way.pop(request.id, None)

    def _answer(self, request: Request, call: Call) -> None:
        if call.cancelled:
            return
        try:
            result = self._server.answer(request, call)
        except CallCancelled:
            return
        except RpcError as e:
            self._refuse(request.id, e)
        except Exception as e:  # boundary: one request must not take the server down
            self._refuse(request.id, RpcError(protocol.INTERNAL_ERROR, f"{type(e).__name__}: {e}"))
        else:
            if not call.cancelled:
                self._send({"jsonrpc": "2.0", "id": request.id, "result": result})

    def _refuse(self, request_id: int | str | None, error: RpcError) -> None:
        self._send({"jsonrpc": "2.0", "id": request_id, "error": error.to_json()})

    def _notify(self, method: str, params: JSON) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def _send(self, message: JSON) -> None:
        # os.write, not a buffered stream: the interpreter may end while a worker writes, and a stream's
        # lock held by a dead thread would make that end a crash.
        data = memoryview(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        with self._write_lock:
            while data:
                data = data[os.write(self._sink, data) :]
